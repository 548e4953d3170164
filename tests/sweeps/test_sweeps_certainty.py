"""Readings of uncertainty against networks whose decision is known at every point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnn_vnnlib import BatchResult, InputError, OptionError
from bnn_vnnlib.files.arrays import read_columns
from bnn_vnnlib.sweeps import Bounding, Reading, Source, make_inputs, uncertainty
from bnn_vnnlib.sweeps.certainty import nested
from support.builders import model, random_samples
from support.command import call
from sweeps.sweep_models import documented, told, write_net

RADII = (0.0, 0.05, 0.3)
SHARE = np.stack(np.meshgrid(*[np.linspace(-1, 1, 15)] * 2), -1).reshape(-1, 2)


@pytest.fixture(scope="module")
def net():
    return random_samples(5, [2, 6, 3], 4, spread=0.8, likelihood="categorical")


def logits(net, points):
    """(S, P, m)"""
    w0, b0, w1, b1 = (net.posterior.samples[name] for name in ("W0", "b0", "W1", "b1"))
    hidden = np.maximum(np.einsum("shi,pi->sph", w0, points) + b0[:, None], 0)
    return np.einsum("soh,sph->spo", w1, hidden) + b1[:, None]


def decision(net, points):
    """(P, m)"""
    y = np.exp(logits(net, points))
    return np.tensordot(net.posterior.probabilities, y / y.sum(-1, keepdims=True), 1)


@pytest.mark.parametrize("quick", [False, True])
def test_every_reading_holds_at_every_point(net, quick):
    x = np.random.default_rng(0).normal(size=(25, 2))
    found = uncertainty(
        Source(memory=net), make_inputs({"x": x}), RADII, Reading(0.5, 0.6, quick), chunk=10
    ).columns  # fmt: skip
    assert found["row"].tolist() == np.repeat(np.arange(25), 3).tolist()
    assert found["radius"].tolist() == list(RADII) * 25
    for k, (row, radius) in enumerate(zip(found["row"], found["radius"], strict=True)):
        points = x[row] + radius * SHARE
        d, y = decision(net, points), logits(net, points)
        assert (found["decision_lower"][k] <= d.min(0) + 1e-12).all()
        assert (found["decision_upper"][k] >= d.max(0) - 1e-12).all()
        assert d.max() <= found["aleatoric"][k] + 1e-12
        assert found["label_lower"][k] == found["decision_lower"][k, found["label"][k]]
        if found["uncertain"][k] == "yes":
            assert d.max() <= 0.5
        if found["uncertain"][k] == "no" and quick:
            assert d.max() > 0.5  # without an attack it is proved at the input, at least
        if found["decided"][k] >= 0:
            assert (d.argmax(1) == found["decided"][k]).all()
        same = np.stack([(y.argmax(-1) == c).all(1) for c in range(3)])  # (m, S)
        p_safe = same @ net.posterior.probabilities
        assert (found["p_safe_upper"][k] >= found["p_safe_lower"][k]).all()
        assert (found["p_safe_lower"][k] <= p_safe + 1e-12).all()
        if found["epistemic"][k] == "no":
            assert p_safe.max() >= 0.6 - 1e-12
    for name in ("uncertain", "epistemic"):
        assert {"yes", "no"} <= set(found[name]), name
    assert (found["decided"] >= 0).any()
    if not quick:
        assert (found["uncertain"] == "unknown").mean() < 0.1


def test_what_holds_on_a_ball_holds_inside_it(net):
    """And what some input of a ball does is done in the balls around it, without any search."""
    x = np.random.default_rng(0).normal(size=(25, 2))
    found = uncertainty(Source(memory=net), make_inputs({"x": x}), RADII, Reading(0.5, quick=True)).columns
    lower, upper = (found[name].reshape(25, 3, 3) for name in ("decision_lower", "decision_upper"))
    assert (np.diff(lower, axis=1) <= 0).all()
    assert (np.diff(upper, axis=1) >= 0).all()
    words = found["uncertain"].reshape(25, 3)
    assert (words[words[:, 0] == "no"] == "no").all()
    assert ((words[:, 2] == "no") & (lower[:, 2].max(-1) <= 0.5)).any()  # the bounds on the ball itself do not say so


def test_bounds_of_nested_balls_are_taken_over():
    """Two inputs, three radii; a bound that got better with a larger radius serves the smaller ones."""
    none = np.array([None] * 6, dtype=object)
    low, high = np.array([[0.5, 0.6, 0.1], [0.3, 0.2, 0.1]]), np.array([[0.9, 0.7, 0.8], [0.4, 0.5, 0.4]])
    batch = BatchResult(low.reshape(6, 1), high.reshape(6, 1), none, np.zeros((6, 1)), "", 0.0)
    found = nested(batch, 3)
    assert found.lower[:, 0].tolist() == [0.6, 0.6, 0.1, 0.3, 0.2, 0.1]
    assert found.upper[:, 0].tolist() == [0.7, 0.7, 0.8, 0.4, 0.4, 0.4]


def test_the_device_is_heard(tmp_path):
    """A device that is not there is refused, before any work."""
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 64)))
    model = Path(__file__).resolve().parents[2] / "benchmarks" / "digits" / "onnx" / "digits_vi_mlp.onnx"
    args = ["uncertainty", model, tmp_path / "x.npz", "--out", tmp_path / "out", "--radius", 0.1]
    assert "cuda:77" in call(*args, "--device", "cuda:77", code=2).stderr


def test_the_upper_bounds_on_p_safe_hold(net):
    """At radius 0 P_safe of every class is known."""
    x = np.random.default_rng(3).normal(size=(10, 2))
    how = Bounding(likelihood="categorical")  # which P_safe does not need
    found = uncertainty(Source(memory=net), make_inputs({"x": x}), [0.0], Reading(epistemic=0.6), bounding=how).columns
    y = logits(net, x)
    p_safe = np.stack([net.posterior.probabilities @ (y.argmax(-1) == c) for c in range(3)], 1)
    np.testing.assert_allclose(found["p_safe_lower"], p_safe, atol=1e-9)
    np.testing.assert_allclose(found["p_safe_upper"], p_safe, atol=1e-9)
    assert ((found["epistemic"] == "yes") == (p_safe < 0.6).all(1)).all()


def test_shares_by_radius(net):
    x = np.random.default_rng(0).normal(size=(12, 2))
    label = decision(net, x).argmax(1)
    label[:3] = (label[:3] + 1) % 3
    result = uncertainty(Source(memory=net), make_inputs({"x": x, "label": label}), [0.0, 0.2], Reading(0.5))
    for line in result.readings:
        some = {name: values[result.columns["radius"] == line.radius] for name, values in result.columns.items()}
        assert line.inputs == 12
        assert line.uncertain == (some["uncertain"] == "yes").mean()
        assert line.decided == (some["decided"] >= 0).mean()
        assert line.correct == (some["decided"] == label).mean() < line.decided
        assert line.lower == pytest.approx(some["decision_lower"][np.arange(12), label].mean())
        assert np.isnan(line.epistemic)
    assert result.readings[0].decided > 0.9  # a point: nothing but rounding is lost
    own = uncertainty(Source(memory=net), make_inputs({"x": x, "label": label}), [0.0], Reading(0.5), own=True)
    assert (own.columns["label"] != label).any()


def test_one_probability_has_an_opposite_event():
    net = model([([[3.0]], [0.0])], [([[0.01]], [0.01])], likelihood="bernoulli")
    x = np.array([[0.0], [1.0], [-1.0]])
    found = uncertainty(Source(memory=net), make_inputs({"x": x}), [0.01], Reading(tau=0.7)).columns
    assert found["uncertain"].tolist() == ["yes", "no", "no"]
    assert found["decided"].tolist()[1:] == [1, 0]
    for tau, words in ((0.4, "one has at least .5"), (0.5, "one has at least .5")):
        with pytest.raises(OptionError, match=words):
            uncertainty(Source(memory=net), make_inputs({"x": x}), [0.01], Reading(tau=tau))
    with pytest.raises(OptionError, match="at least two outputs"):
        uncertainty(Source(memory=net), make_inputs({"x": x}), [0.01], Reading(tau=0.7, epistemic=0.7))


def test_a_regression_has_no_classes():
    net = random_samples(0, [2, 5, 1], 3, spread=0.05, likelihood="gaussian")
    x = np.random.default_rng(0).normal(size=(4, 2))
    inputs = make_inputs({"x": x})
    plain = uncertainty(Source(memory=net), inputs, [0.1])
    assert set(plain.columns) == {"row", "radius", "decision_lower", "decision_upper"}
    assert plain.readings[0].lower == pytest.approx(plain.columns["decision_lower"].mean())
    full = uncertainty(Source(memory=net), inputs, [0.01, 1.0], Reading(epistemic=0.9), delta=0.3).columns
    assert full["epistemic"].tolist()[::2] == ["no"] * 4
    assert full["p_safe_upper"].shape == (8, 1)
    for reading, delta, words in (
        (Reading(tau=0.4), None, "tau is for classifiers"),
        (Reading(epistemic=0.5), None, "epistemic needs delta"),
        (Reading(), 0.5, "epistemic needs delta"),
    ):
        with pytest.raises(OptionError, match=words):
            uncertainty(Source(memory=net), inputs, [0.1], reading, delta=delta)


@pytest.mark.parametrize("radii", [[], [0.1, 0.1], [0.2, 0.1], [-0.1], [np.nan], [np.inf]])
def test_radii_that_make_no_sense_are_refused(net, radii):
    with pytest.raises(OptionError, match="radii must be finite, not negative and increasing"):
        uncertainty(Source(memory=net), make_inputs({"x": np.zeros((1, 2))}), radii)


def test_what_does_not_fit_is_refused(net):
    for arrays, words in (
        ({"x": np.zeros((1, 3))}, "inputs have 3 numbers, the network takes 2"),
        ({"x": np.zeros((1, 2)), "label": np.array([3])}, "row 0 has 3"),
    ):
        with pytest.raises(InputError, match=words):
            uncertainty(Source(memory=net), make_inputs(arrays), [0.1])
    with pytest.raises(OptionError, match="delta is for regression"):
        uncertainty(Source(memory=net), make_inputs({"x": np.zeros((1, 2))}), [0.1], Reading(epistemic=0.5), delta=1.0)
    with pytest.raises(OptionError, match="tau must be a probability"):
        Reading(tau=1.5)


def test_the_command(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow (extra `parquet`) is not installed")
    net = write_net(tmp_path / "net.onnx", [3, 6, 4], samples=3)
    np.savez(tmp_path / "inputs.npz", x=np.random.default_rng(1).uniform(0, 1, (5, 3)))
    arguments = ["uncertainty", net, tmp_path / "inputs.npz", "-r", "0.01", "-r", "0.1", "--tau", "0.5", "--chunk", "2"]
    said = told(*arguments, "--out", tmp_path / "out", "--workers", "2")
    assert "10 balls in" in said
    alone = told(*arguments, "--out", tmp_path / "alone", "--workers", "1")
    assert "written to" in alone
    one, two = (tmp_path / name / "uncertainty.parquet" for name in ("out", "alone"))
    assert one.read_bytes() == two.read_bytes()
    assert documented(read_columns(one)[0])
    assert set(read_columns(one)[0]["uncertain"]) <= {"yes", "no", "unknown"}
    assert (tmp_path / "out" / "summary.csv").read_text().startswith("radius,inputs,uncertain,not_uncertain,decided,")
    assert "tau: 0.5 there, 0.6 now" in told(*arguments, "--tau", "0.6", "--out", tmp_path / "out", code=2)
