"""Certified radii against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from bnn_vnnlib import InputError, OptionError
from bnn_vnnlib.files.arrays import read_columns
from bnn_vnnlib.sweeps import Bounding, Radii, Source, make_inputs, radii
from support.builders import model, random_samples
from sweeps.sweep_models import documented, told, write_net

SEARCH = Radii(largest=1.0, tolerance=0.01)
SLOPE, SPREAD, DELTA = 2.0, 0.3, 0.5


def truth(x: float, scale: float, threshold: float) -> float:
    """y = w x, w ~ N(2, .3^2), must stay within .5 of 2 x over [x - r scale, x + r scale], which is |w| r scale +
    |w - 2| |x| <= .5: two lines in w. The radius at which that has the probability `threshold`.
    """

    def safe(r: float) -> float:
        w = np.linspace(SLOPE - 8 * SPREAD, SLOPE + 8 * SPREAD, 400_001)
        good = np.abs(w) * r * scale + np.abs(w - SLOPE) * abs(x) <= DELTA
        if not good.any():
            return 0.0
        low, high = w[good][[0, -1]]
        return float(stats.norm.cdf(high, SLOPE, SPREAD) - stats.norm.cdf(low, SLOPE, SPREAD))

    return float(optimize.brentq(lambda r: safe(r) - threshold, 0, 1, xtol=1e-6))


@pytest.fixture(scope="module")
def line():
    """One random weight."""
    return model([([[SLOPE]], [0.0])], [([[SPREAD**2]], [0.0])], likelihood="gaussian")


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_the_true_radius_lies_between_the_two(line, scale):
    x = np.array([[0.1], [-0.5]])
    inputs = make_inputs({"x": x, "scale": np.array([scale])})
    found = radii(Source(memory=line), inputs, Radii(1.0, 0.04, 0.25), threshold=0.7, delta=DELTA, chunk=3)
    true = np.array([truth(value, scale, 0.7) for value in x[:, 0]])
    assert (found.robust <= true + 1e-6).all()
    assert (found.unrobust >= true - 1e-6).all()
    assert (found.robust > 0.75 * true - 0.04).all()  # and close to it
    assert (found.unrobust < 1.25 * true + 0.04).all()
    assert (found.robust_gap <= 0.04).all()
    assert (found.unrobust_gap <= 0.04).all()
    np.testing.assert_array_equal(found.columns["output_lower"][:, 0], SLOPE * x[:, 0] - DELTA)


def test_two_thresholds(line):
    """Robust at the one, unrobust at the other; one alone stands for both."""
    inputs = make_inputs({"x": np.array([[0.1], [-0.5]])})
    how = Bounding(tau_safe=0.9, tau_unsafe=0.3)
    found = radii(Source(memory=line), inputs, Radii(1.0, 0.04, 0.25), delta=DELTA, bounding=how)
    for i, x in enumerate((0.1, -0.5)):
        safe, unsafe = (truth(x, 1.0, tau) for tau in (0.9, 0.3))
        assert 0.75 * safe - 0.04 < found.robust[i] <= safe + 1e-6
        assert unsafe - 1e-6 <= found.unrobust[i] < 1.25 * unsafe + 0.04
        assert safe < unsafe
    one, both = (
        radii(Source(memory=line), inputs, Radii(1.0, 0.2), delta=DELTA, **how)
        for how in ({"bounding": Bounding(tau_safe=0.9)}, {"threshold": 0.9})
    )
    np.testing.assert_array_equal(one.unrobust, both.unrobust)


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_goes_on_after_its_last_step(tmp_path, workers):
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = write_net(tmp_path / "net.onnx", [3, 6, 4], samples=3)
    inputs = make_inputs({"x": np.random.default_rng(1).uniform(0, 1, (6, 3))})
    search = Radii(1.0, 0.01)

    def looked_for(out, watch=None, **more):
        return radii(Source(net), inputs, search, bounding=Bounding(), out=tmp_path / out, watch=watch, **more)

    seen = []
    whole = looked_for("whole", seen.append, chunk=3)
    steps = int(whole.columns["probes"][::3].sum())
    assert seen[-1].steps == steps - 2  # each chunk ends with its last step
    assert {one.done for one in seen} > {0, 3, 6}  # inputs, not only chunks

    def kill(progress):
        if progress.steps >= 4:
            raise Killed

    with pytest.raises(Killed):
        looked_for("killed", kill, workers=workers, chunk=3)
    assert 1 <= len(list((tmp_path / "killed" / "steps").iterdir())) <= workers  # one of two may be late
    seen.clear()
    again = looked_for("killed", seen.append)
    assert seen[-1].steps <= steps - 2 - 4
    assert (tmp_path / "killed/radii.parquet").read_bytes() == (tmp_path / "whole/radii.parquet").read_bytes()
    assert again.spent.rows == 6
    assert not list((tmp_path / "killed" / "steps").iterdir())


def test_a_damaged_step_is_done_again(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = write_net(tmp_path / "net.onnx", [3, 6, 4], samples=3)
    inputs = make_inputs({"x": np.random.default_rng(1).uniform(0, 1, (2, 3))})

    def kill(progress):
        if progress.steps >= 3:
            raise Killed

    with pytest.raises(Killed):
        radii(Source(net), inputs, Radii(1.0, 0.05), out=tmp_path / "out", watch=kill)
    (step,) = (tmp_path / "out" / "steps").iterdir()
    data = bytearray(step.read_bytes())
    data[100] ^= 4
    step.write_bytes(data)
    seen = []
    found = radii(Source(net), inputs, Radii(1.0, 0.05), out=tmp_path / "out", watch=seen.append)
    assert seen[0].redone == {"damaged or of another job": 1}
    expected = radii(Source(net), inputs, Radii(1.0, 0.05))
    np.testing.assert_array_equal(found.robust, expected.robust)


def test_a_wanted_value_that_is_missed_and_one_that_is_never_left(line):
    x = np.array([[0.1], [0.1]])
    y = np.array([5.0, 0.2])
    inputs = make_inputs({"x": x, "y": y, "valid_lower": np.array([0.05]), "valid_upper": np.array([0.15])})
    found = radii(Source(memory=line), inputs, SEARCH, delta=DELTA)
    assert np.isnan(found.robust[0])
    assert found.unrobust[0] == 0
    assert found.robust[1] == 1  # the valid range keeps every ball small
    assert np.isinf(found.unrobust[1])
    own = radii(Source(memory=line), inputs, SEARCH, delta=DELTA, own=True)
    assert own.robust[0] == 1


@pytest.mark.parametrize("query", ["probabilistic", "decision", "deterministic"])
def test_certificates_hold_on_samples_and_grids(query):
    """Weight samples: P_safe and the decision are known at every point, so no certificate may be contradicted."""
    net = random_samples(2, [2, 6, 3], 5, spread=0.15, likelihood="categorical")
    x = np.random.default_rng(0).normal(size=(12, 2))
    inputs = make_inputs({"x": x})
    found = radii(Source(memory=net), inputs, Radii(1.0, 0.05), bounding=Bounding(query))
    label = found.columns["label"]
    share = np.stack(np.meshgrid(*[np.linspace(-1, 1, 21)] * 2), -1).reshape(-1, 2)

    def outputs(points):
        w0, b0, w1, b1 = (net.posterior.samples[name] for name in ("W0", "b0", "W1", "b1"))
        if query == "deterministic":
            w0, b0, w1, b1 = (net.network.tensors[name][None] for name in ("W0", "b0", "W1", "b1"))
        hidden = np.maximum(np.einsum("shi,pi->sph", w0, points) + b0[:, None], 0)
        return np.einsum("soh,sph->spo", w1, hidden) + b1[:, None]

    def safe(i, radius):
        y = outputs(x[i] + radius * share)
        if query == "decision":
            y = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
            y = np.tensordot(net.posterior.probabilities, y, 1)[None]
        good = (y.argmax(-1) == label[i]).all(1)
        return good @ net.posterior.probabilities >= 0.7 if query == "probabilistic" else good.all()

    robust = [i for i in range(12) if found.robust[i] > 0]
    assert len(robust) > 3
    assert all(safe(i, found.robust[i]) for i in robust)
    broken = [i for i in range(12) if found.unrobust[i] <= 1]
    assert len(broken) > 3
    # a grid may miss the violation, but not by much
    assert sum(safe(i, found.unrobust[i]) for i in broken) <= 1
    assert (found.robust[robust] < found.unrobust[robust]).all()


def test_what_does_not_fit_is_refused(line):
    source, x = Source(memory=line), np.zeros((2, 1))
    for arrays, options, words in (
        ({"x": np.zeros((2, 3))}, {"delta": 0.1}, "inputs have 3 numbers, the network takes 1"),
        ({"x": x}, {}, "a network with one output has no classes to keep"),
        ({"x": x}, {"delta": -1.0}, "delta must be one positive number"),
        ({"x": x}, {"delta": [1.0, 2.0]}, "delta must be one positive number"),
        ({"x": x, "y": np.zeros((2, 2))}, {"delta": 1.0}, r"y must be finite, of shape \(2, 1\)"),
        ({"x": x, "y": np.zeros(2)}, {}, "a value to stay near needs delta"),
        (
            {"x": x, "label": np.zeros(2, int)},
            {"delta": 1.0},
            "labels are for classification, delta and y for regression",
        ),
        ({"x": x}, {"delta": 0.1, "threshold": 1.5}, "threshold must be a probability between 0 and 1, found 1.5"),
        ({"x": x}, {"delta": 0.1, "threshold": 0.7, "bounding": Bounding(tau_safe=0.5)}, "give either it or those two"),
        ({"x": x}, {"delta": 0.1, "bounding": Bounding(tau_safe=0.5, tau_unsafe=0.6)}, "must not exceed"),
        ({"x": x}, {"delta": 0.1, "threshold": 0.5, "bounding": Bounding("decision")}, "which query decision does not"),
        ({"x": x}, {"delta": 0.1, "bounding": Bounding("decision", 0.5)}, "tau_safe does not apply"),
        ({"x": x}, {"delta": 0.1, "chunk": 0}, "at least one input"),
        ({"x": x}, {"delta": 0.1, "workers": 0}, "workers must be at least 1"),
    ):
        with pytest.raises((InputError, OptionError), match=words):
            radii(source, make_inputs(arrays), SEARCH, **options)


def test_the_command(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = write_net(tmp_path / "net.onnx", [3, 6, 4], samples=3)
    x = np.random.default_rng(1).uniform(0, 1, (5, 3))
    np.savez(tmp_path / "inputs.npz", x=x, label=np.arange(5) % 4)
    arguments = ["radius", net, tmp_path / "inputs.npz", "--tolerance", "0.05", "--clip", "0", "1", "--chunk", "2"]
    arguments += ["--workers", "1"]
    said = told(*arguments, "--out", tmp_path / "out")
    assert "0 of 5 inputs are finished; 5 to go" in said
    assert ", step 1" in said
    assert "5 inputs in" in said
    columns, _ = read_columns(tmp_path / "out" / "radii.parquet")
    assert columns["label"].tolist() == [0, 1, 2, 3, 0]
    assert documented(set(columns))
    own = told(*arguments, "--predicted", "--out", tmp_path / "own")
    assert "written to" in own
    assert (read_columns(tmp_path / "own" / "radii.parquet")[0]["robust_radius"] > 0).all()
    assert "target: given there, own now" in told(*arguments, "--predicted", "--out", tmp_path / "out", code=2)
    np.savez(tmp_path / "wrong.npz", x=x, label=np.arange(5))
    wrong = told("radius", net, tmp_path / "wrong.npz", "--out", tmp_path / "wrong", code=2)
    assert wrong == "error: labels must lie in 0 .. 3; row 4 has 4"
    assert "--largest" not in told(
        "radius", net, tmp_path / "inputs.npz", "--out", tmp_path / "w", "--largest", "0", code=2
    )
