"""Why there is no verdict, and what to try next: known causes are named, and suggested commands do what they say."""

from __future__ import annotations

import itertools
import json
import math
import shlex
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import Result as Run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import bnn_vnnlib
from bnn_vnnlib import Model, OptionError, attach, diagnosis, read_property, verify
from bnn_vnnlib.model import Component, GaussianDiagonal, GaussianFull, Mixture
from bnn_vnnlib.result import Diagnosis
from bnn_vnnlib.runs.records import Entry
from bnn_vnnlib.runs.tables import causes
from support.builders import model, outputs, properties
from support.command import call

TOO_DEEP = "inputs vary in front of more than two hidden layers, or of large ones"
NO_CHAIN = "the network is no chain of dense layers with ReLU and independent Gaussian weights"


@pytest.fixture
def patient(monkeypatch):
    """All looks come to their end, however short the run was and however busy the machine is."""
    monkeypatch.setattr(diagnosis, "for_diagnosis", lambda spent: 30.0)


def text(folder: Path, box: list[tuple[float, float]], outputs_: int, violation: str) -> Path:
    """A property file over X_0, .. and Y_0, .."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(box))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs_)]
    lines += [f"(assert (>= X_{i} {low}))(assert (<= X_{i} {high}))" for i, (low, high) in enumerate(box)]
    path = folder / "p.vnnlib"
    path.write_text("\n".join([*lines, f"(assert {violation})"]) + "\n")
    return path


def files(folder: Path, net: Model) -> Path:
    """The model as a file."""
    proto = onnx.load_from_string(net.onnx_bytes)
    proto = proto if net.posterior is None else attach(proto, net.posterior, likelihood=net.likelihood)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def asked(net: Model, prop: Path, **options) -> Diagnosis:
    """The diagnosis of a run without a verdict; its command is parsed, and run where it claims to decide."""
    found = verify(net, read_property(prop, net.network.signature), **options)
    assert found.verdict in ("unknown", "timeout")
    seen = found.diagnosis
    assert 2 <= len(seen.lines) <= 4
    assert seen.why in seen.lines[0]
    if seen.command is None:
        assert not seen.decides
        return seen
    named = seen.with_files(prop, files(prop.parent, net))
    assert shlex.join(named.command) in named.lines[-1]
    if seen.decides:
        assert again(named).stdout.split()[0] in ("sat", "unsat")
        return seen
    with pytest.MonkeyPatch.context() as patch:  # its options are parsed and checked as ever, but nothing is worked on
        patch.setattr(diagnosis, "for_diagnosis", lambda spent: 0.0)
        patch.setattr(bnn_vnnlib, "verify", lambda *args, **more: verify(*args, **{**more, "timeout": 0.0}))
        assert call(*named.command[1:]).stdout.split()[0] in ("unknown", "timeout", "sat", "unsat")
    return seen


def again(seen: Diagnosis) -> Run:
    """The suggested command, but for its time limit: this machine may be busy."""
    return call(*(word for word in seen.command[1:] if not word.startswith("--timeout")))


def line(deviation: float = 1.0, **settings) -> Model:
    """y = w x, w ~ N(1, deviation^2)."""
    return model([([[1.0]], [0.0])], [([[deviation**2]], None)], **settings)


def bent() -> Model:
    """y = relu(w x), w ~ N(1, 1): D(1) = 1.083."""
    return model([([[1.0]], [0.0]), ([[1.0]], [0.0])], [([[1.0]], None), ([[0.0]], None)], likelihood="gaussian")


def deep(
    noisy: int | None,
    activation: str = "relu",
    big: float = 0.5,
    small: float = 1e-4,
    widths=(3, 12, 12, 12, 2),
    **settings,
) -> Model:
    """A network with deviations of `big` in one layer, and next to none in the others."""
    rng = np.random.default_rng(1)
    layers, variances = [], []
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        layers.append((1.4 * rng.normal(size=(after, before)) / np.sqrt(before), 0.1 * rng.normal(size=after)))
        deviation = big if k == noisy else small
        variances.append((np.full((after, before), deviation**2 / before), np.full(after, deviation**2)))
    return model(layers, variances, activation=activation, **settings)


def away(net: Model, by: float, x: float = 0.5) -> str:
    """A violation that the mean network misses by so much at the point (x, x, ..)."""
    y = outputs(net, [x] * net.network.signature.input_size).ravel()
    return f"(<= Y_0 {float(y[0]) - by!r})"


# The network is weak: it is broken at a rate that is known


@pytest.mark.parametrize("bound", [0.4, 0.9, -0.2])
def test_a_network_that_attacks_break_at_a_known_rate(tmp_path, patient, bound):
    """y = w at the point 1, w ~ N(1, 1): y <= bound for a share Phi(bound - 1) of the networks, and no attack to do."""
    rate = stats.norm.cdf(bound - 1)
    seen = asked(line(), text(tmp_path, [(1, 1)], 1, f"(<= Y_0 {bound})"), timeout=0.0)
    assert (seen.cause, seen.drawn, seen.limit) == ("weak network", 64, "time")
    assert abs(seen.broken - rate) < 4 * math.sqrt(rate * (1 - rate) / 64)
    assert f"{100 * seen.broken:.0f} % of 64 drawn networks" in seen.why
    assert "estimate" in seen.why
    assert "(case 1 of 1)" in seen.rows[0]
    assert seen.lines[1].startswith("violated: ")


@pytest.mark.parametrize(("widths", "batches"), [((1, 8, 1), [64]), ((1, 400, 400, 1), [12, 24, 28])])
def test_networks_that_are_little_work_are_attacked_at_once(tmp_path, patient, monkeypatch, widths, batches):
    """2^21 weights at first: 64 networks of 25, or 12 of 161,601; then twice as many at a time."""
    seen, run = [], diagnosis.attack.run

    def counted(network, problem, params, *args):
        if params:
            seen.append(len(params["W0"]))
        return run(network, problem, params, *args)

    net = deep(None, widths=widths)
    prop = read_property(text(tmp_path, [(0.5, 0.5)], 1, away(net, 9.0)), net.network.signature)
    monkeypatch.setattr(diagnosis.attack, "run", counted)
    found = verify(net, prop, timeout=0.0)
    assert found.diagnosis.drawn == 64
    assert seen[-len(batches) :] == batches


def test_the_attack_moves_the_input(tmp_path, patient):
    """y = w x for x in [-1, 1] goes below -0.5 for some x where |w| >= 0.5: with 0.62 + 0.067."""
    rate = stats.norm.sf(-0.5) + stats.norm.cdf(-1.5)
    seen = asked(line(), text(tmp_path, [(-1, 1)], 1, "(<= Y_0 -0.5)"), timeout=0.0)
    assert abs(seen.broken - rate) < 4 * math.sqrt(rate * (1 - rate) / 64)
    assert seen.cause == "weak network"


@pytest.mark.parametrize("violating", [2, 3])
def test_of_weight_samples_all_are_attacked(tmp_path, patient, violating):
    """Five samples of a weight with probabilities 0.1, 0.3, 0.2, 0.2, 0.2, of which the first two or three violate."""
    weights = np.where(np.arange(5) < violating, 0.0, 1.0).reshape(5, 1, 1)
    net = model([([[1.0]], [0.0])], samples=[(weights, None)], probabilities=[0.1, 0.3, 0.2, 0.2, 0.2])
    seen = asked(net, text(tmp_path, [(1, 1)], 1, "(<= Y_0 0.5)"), timeout=0.0)
    assert (seen.cause, seen.drawn) == ("weak network", 5)
    assert seen.broken == pytest.approx({2: 0.4, 3: 0.6}[violating])
    assert "weight samples" in seen.why


def test_one_broken_network_of_many_leaves_the_bound_weak(tmp_path, patient):
    """One of ten samples violates: P_safe = 0.9 is above tau_safe = 0.8, so better bounds would prove it."""
    weights = np.where(np.arange(10) < 1, 0.0, 1.0).reshape(10, 1, 1)
    net = model([([[1.0]], [0.0])], samples=[(weights, None)])
    seen = asked(net, text(tmp_path, [(1, 1)], 1, "(<= Y_0 0.5)"), timeout=0.0, tau_safe=0.8)
    assert (seen.cause, seen.broken) == ("weak bound", pytest.approx(0.1))


def test_mixtures_are_attacked_as_they_are(tmp_path, patient):
    """A component at 1 and one at 0, both nearly points: half of the networks have y <= 0.5."""
    parts = tuple(
        Component({"W0": np.full((1, 1), m)}, GaussianDiagonal({"W0": np.full((1, 1), 1e-6)})) for m in (0.0, 1.0)
    )
    net = model([([[0.5]], [0.0])])
    net = replace(net, posterior=Mixture(parts, np.array([0.5, 0.5])))
    seen = asked(net, text(tmp_path, [(1, 1)], 1, "(<= Y_0 0.4)"), timeout=0.0)
    assert (seen.cause, seen.loss) == ("weak network", {})
    assert abs(seen.broken - 0.5) < 0.25


def test_the_case_that_most_networks_violate_is_named(tmp_path, patient):
    """Of three cases only the second one can happen."""
    prop = text(tmp_path, [(1, 1)], 1, "(or (and (<= Y_0 -90)) (and (<= Y_0 0.9)) (and (>= Y_0 95)))")
    seen = asked(line(), prop, timeout=0.0)
    assert seen.rows == ("Y_0 <= 0.9 (case 2 of 3)",)


# The bound is weak: by construction in one part


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("noisy", [0, 1, 2, 3])
def test_the_layer_whose_weights_cost_the_bound(tmp_path, patient, noisy, activation):
    net = deep(noisy, activation)
    seen = asked(net, text(tmp_path, [(0.5, 0.5)] * 3, 2, away(net, 6.0)), timeout=0.0)
    assert (seen.cause, seen.broken) == ("weak bound", 0.0)
    assert max(seen.loss, key=seen.loss.get) == f"layer {noisy + 1} (z{noisy} (Gemm))"
    assert max(seen.loss.values()) > 0.8
    assert sum(seen.loss.values()) == pytest.approx(1)
    assert f"layer {noisy + 1}" in seen.lines[1]


def test_the_layer_of_correlated_weights(tmp_path, patient):
    """A full covariance in which the second layer moves as a whole."""
    net = deep(1, widths=(3, 6, 6, 2))
    names = list(net.posterior.variances)
    rng = np.random.default_rng(0)
    shapes = {name: net.network.tensors[name].shape for name in names}
    factors = {
        name: (0.5 if name in ("W1", "b1") else 1e-4) * rng.normal(size=(4, *shape)) for name, shape in shapes.items()
    }
    net = replace(net, posterior=GaussianFull(factors))
    seen = asked(net, text(tmp_path, [(0.5, 0.5)] * 3, 2, away(net, 8.0)), timeout=0.0)
    assert seen.cause == "weak bound"
    assert max(seen.loss, key=seen.loss.get) == "layer 2 (z1 (Gemm))"
    assert seen.unserved == ("large variance does not serve: the posterior's weights are not independent",)


def test_the_layer_of_the_most_probable_component(tmp_path, patient):
    """The second component has its noise elsewhere, and a quarter of the probability."""
    net, other = deep(2), deep(0)
    means = {name: net.network.tensors[name] for name in net.posterior.variances}
    parts = Component(means, net.posterior), Component(means, other.posterior)
    net = replace(net, posterior=Mixture(parts, np.array([0.75, 0.25])))
    seen = asked(net, text(tmp_path, [(0.5, 0.5)] * 3, 2, away(net, 6.0)), timeout=0.0)
    assert max(seen.loss, key=seen.loss.get) == "layer 3 (z2 (Gemm))"
    assert max(seen.loss.values()) > 0.8


def kinked(at: int, activation: str, samples: int | None, **settings) -> Model:
    """A network whose activations are at their kink behind one layer, and far beyond all kinks elsewhere."""
    rng = np.random.default_rng(2)
    layers = [
        (rng.normal(size=(after, before)), np.zeros(after) if k in (at, 3) else np.full(after, 50.0))
        for k, (before, after) in enumerate(itertools.pairwise((2, 8, 8, 8, 1)))
    ]
    layers = [
        (w, b - w @ np.full(w.shape[1], 50.0 if k > 0 and k - 1 != at else 0.0)) for k, (w, b) in enumerate(layers)
    ]
    drawn = None
    if samples is not None:
        noise = [[1 + 1e-3 * rng.normal(size=(samples, *part.shape)) for part in pair] for pair in layers]
        drawn = [tuple(map(np.multiply, *both)) for both in zip(layers, noise, strict=True)]
    return model(layers, samples=drawn, activation=activation, **settings)


def drawn_of(net: Model) -> list[dict[str, torch.Tensor] | None]:
    """The weight samples of a network, or its own weights."""
    if net.posterior is None:
        return [None]
    return [{name: torch.tensor(v[k]) for name, v in net.posterior.samples.items()} for k in range(5)]


@pytest.mark.parametrize("query", ["deterministic", "probabilistic", "decision"])
@pytest.mark.parametrize(
    ("at", "activation", "operator"), [(0, "relu", "Relu"), (1, "leaky_relu", "LeakyRelu"), (2, "relu", "Relu")]
)
def test_the_layer_whose_lines_cost_the_bound(tmp_path, patient, monkeypatch, at, activation, operator, query):
    """Fixed weights lose nothing but at kinks, and those are behind one layer."""
    monkeypatch.setattr(diagnosis, "_WIDTHS", ())  # smaller boxes have tests of their own
    net = kinked(at, activation, None if query == "deterministic" else 5, likelihood="gaussian")
    grid = np.stack(np.meshgrid(*[np.linspace(-0.5, 0.5, 101)] * 2), -1).reshape(-1, 2)
    y = np.concatenate([outputs(net, grid, one).ravel() for one in drawn_of(net)])
    bound = float(y.min() - 0.05 * (y.max() - y.min()))
    prop = read_property(text(tmp_path, [(-0.5, 0.5)] * 2, 1, f"(<= Y_0 {bound!r})"))
    seen = verify(net, prop, query=query, timeout=0.0).diagnosis
    assert seen.cause == "weak bound"
    assert seen.loss[f"layer {at + 1} (a{at} ({operator}))"] > 0.99
    assert sum(seen.loss.values()) == pytest.approx(1)


def test_points_lose_nothing_by_lines(tmp_path, patient):
    """Two outputs whose difference is within the rounding that is paid for."""
    net = kinked(1, "relu", None)
    y = float(outputs(net, [0.1, 0.2]).ravel()[0])
    prop = read_property(text(tmp_path, [(0.1, 0.1), (0.2, 0.2)], 1, f"(<= Y_0 {math.nextafter(y, -1e9)!r})"))
    seen = verify(net, prop, query="deterministic", timeout=0.0).diagnosis
    assert seen is None or seen.loss == {}


def shallow() -> Model:
    """y = relu(x) - relu(-x) = x, with next to no noise."""
    small = np.full((2, 1), 1e-8)
    return model([([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])], [(small, None), (small.T, None)])


@pytest.mark.parametrize(("low", "share"), [(-0.5, 0.5), (-2.5, 0.25), (-14, 0.0625), (-5000, 0.0)])
def test_the_inputs_cost_the_bound_and_a_smaller_box_is_decided(tmp_path, patient, low, share):
    """y = x around 1 stays above 0 where the half-width is below 1: the largest such share of 1 - low is found."""
    prop = text(tmp_path, [(low, 2 - low)], 1, "(<= Y_0 0)")
    seen = verify(shallow(), read_property(prop), timeout=0.0).diagnosis
    assert seen.smaller == share
    assert f"--shrink={share:g}" in seen.command
    assert seen.decides
    named = seen.with_files(prop, files(tmp_path, shallow()))
    assert again(named).stdout == "unsat\n"


def test_the_share_of_the_inputs_in_the_loss(tmp_path, patient):
    """Hardly any noise, a wide box, and a violation that is out of reach: the bound loses nothing but by the inputs."""
    net = deep(None)
    seen = asked(net, text(tmp_path, [(0.2, 0.8)] * 3, 2, away(net, 3.0)), timeout=0.0)
    assert max(seen.loss, key=seen.loss.get) == "the input box"
    assert seen.loss["the input box"] > 0.9


def test_a_shrunk_box_is_shrunk_further(tmp_path, patient):
    """The command means a share of the file's boxes, not of those that were asked about."""
    prop = text(tmp_path, [(-3.5, 5.5)], 1, "(<= Y_0 0)")
    seen = verify(shallow(), read_property(prop).shrunk(0.5), timeout=0.0).diagnosis
    assert (seen.smaller, "--shrink=0.125" in seen.command) == (0.25, True)
    assert again(seen.with_files(prop, files(tmp_path, shallow()))).stdout == "unsat\n"


def test_open_rows_of_a_decision(tmp_path, patient):
    """Class 0 is ahead of class 1 by little and of class 2 by far, under wide weights: class 1 is what stays open."""
    net = model(
        [(np.eye(3), np.zeros(3)), (np.eye(3), np.zeros(3))],
        [(np.full((3, 3), 1.0), None), (np.full((3, 3), 0.5), None)],
        likelihood="categorical",
    )  # fmt: skip
    prop = text(tmp_path, [(1.0, 1.4), (0.5, 0.9), (0.0, 0.0)], 3, "(or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2)))")
    seen = asked(net, prop, query="decision", timeout=0.0)
    assert (seen.cause, seen.broken, seen.drawn) == ("weak bound", None, 32)
    assert 0 < seen.margin < 0.5
    assert seen.rows[0] == "Y_0 <= Y_1 (case 1 of 2)"
    assert "estimate" in seen.why


def test_a_decision_that_is_violated_by_estimate(tmp_path, patient):
    """The decision of y = w x at 1 is the mean of w, which is 1: y <= 1.5 holds for it, and by half of it."""
    net = line(0.1, likelihood="gaussian")
    seen = asked(net, text(tmp_path, [(1, 1)], 1, "(<= Y_0 1.5)"), query="decision", timeout=0.0)
    assert (seen.cause, seen.broken) == ("weak network", None)
    assert seen.margin == pytest.approx(-0.5, abs=4 * 0.1 / math.sqrt(32))


def test_a_median_is_attacked_as_a_median(tmp_path, patient):
    """Three of five samples are 1 and two are 100: the median is 1, the mean 40.6."""
    weights = np.array([1.0, 1.0, 1.0, 100.0, 100.0]).reshape(5, 1, 1)
    net = model([([[40.6]], [0.0])], samples=[(weights, None)], likelihood="gaussian")
    prop = text(tmp_path, [(1, 1)], 1, "(>= Y_0 20)")
    seen = asked(net, prop, query="decision", rule="median", timeout=0.0)
    assert seen.cause in ("weak bound", "weak network")  # of 32 draws
    assert seen.margin in (pytest.approx(19.0), pytest.approx(-80.0))
    assert "median" in seen.why
    assert "--rule=median" in seen.command


def test_how_far_a_network_is_from_a_violation(tmp_path, patient):
    """y = relu(x) - relu(x) = 0: y <= -0.5 is missed by 0.5, and 2 y <= -1 by as much in units of its coefficient.

    Fixed weights lose the bound at the only kinks that there are.
    """
    net = model([([[1.0], [1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])])
    for violation in ("(<= Y_0 -0.5)", "(<= (* 2 Y_0) -1.0)"):
        seen = asked(net, text(tmp_path, [(0, 1)], 1, violation), timeout=0.0)
        assert (seen.cause, seen.drawn, seen.broken) == ("weak bound", 1, None)
        assert seen.loss == {"layer 1 (a0 (Relu))": 1.0}
        assert seen.margin == pytest.approx(0.5)
        assert seen.decides  # in the time of the looks
        assert seen.smaller == 0.5


# What limits, and what to do


def test_between_the_thresholds(tmp_path, patient):
    """P_safe = 0.7257 is proved to lie between 0.5 and 0.9: lower thresholds decide, and nothing limits."""
    seen = asked(line(), text(tmp_path, [(1, 1)], 1, "(<= Y_0 0.4)"), tau_safe=0.9, tau_unsafe=0.5)
    assert (seen.cause, seen.limit, seen.limited_by, seen.smaller) == ("between", None, None, None)
    assert "[0.725, 0.726], between tau_unsafe = 0.5 and tau_safe = 0.9" in seen.why
    assert "--tau-safe=0.725" in seen.command
    assert seen.decides


def test_a_method_that_was_chosen_is_not_the_best(tmp_path, patient):
    """Boxes of weights prove 0.99953 at a point where tails prove 0.99977; without a time limit the work limits."""
    prop = text(tmp_path, [(1, 1)], 1, "(<= Y_0 -2.5)")
    seen = asked(line(), prop, method="interval", tau_safe=0.9996)
    assert (seen.cause, seen.broken, seen.limit) == ("weak bound", 0.0, "effort")
    assert not any("--method" in word for word in seen.command)
    assert again(seen.with_files(prop, tmp_path / "m.onnx")).stdout == "unsat\n"


@pytest.mark.parametrize("options", [{"boxes": "sampled", "num_boxes": 1, "margin": 0.5}, {"margin": 0.5}])
def test_boxes_that_were_chosen_are_not_the_best(tmp_path, patient, options):
    prop = text(tmp_path, [(1, 1)], 1, "(<= Y_0 -1)")
    seen = asked(line(), prop, **options)
    assert not any(word.startswith(("--boxes", "--margin", "--num")) for word in seen.command)
    assert again(seen.with_files(prop, tmp_path / "m.onnx")).stdout == "unsat\n"


def test_a_suggested_command_has_time_to_start(tmp_path, patient):
    """A limit of 5 s may be over before the command is loaded; without one there is still none."""
    prop = text(tmp_path, [(1, 1)], 1, "(<= Y_0 -2.5)")
    for timeout, limited in ((5.0, True), (None, False)):
        seen = asked(line(), prop, method="interval", tau_safe=0.9996, timeout=timeout)
        assert ("--timeout=60" in seen.command) is limited
        assert any(word.startswith("--timeout") for word in seen.command) is limited


def test_methods_that_came_to_their_end(tmp_path, patient):
    """Boxes of weights know an expectation as well as they can after one look, and an hour would not be used."""
    prop = text(tmp_path, [(1, 1)], 1, "(<= Y_0 1.08)")
    seen = asked(bent(), prop, query="decision", method="interval", timeout=3600.0)
    assert seen.limit == "methods"
    assert "--timeout=3600" in seen.command


def test_more_time_where_time_limits(tmp_path, patient):
    """No smaller box than a point is there to be tried."""
    seen = asked(line(), text(tmp_path, [(1, 1)], 1, "(<= Y_0 0)"), timeout=0.0)
    assert seen.limit == "time"
    assert seen.limited_by.startswith("the time limit of 0 s")
    assert "--timeout=60" in seen.command
    assert "more time" in seen.advice


def test_drawn_networks_where_nothing_is_proved(tmp_path, patient, monkeypatch):
    """And not where certain bounds have had no time yet."""
    prop = text(tmp_path, [(1, 1)], 1, "(<= Y_0 -3)")
    for patience, suggested in ((0.0, True), (5.0, False)):
        monkeypatch.setattr(diagnosis, "_PATIENCE", patience)
        seen = asked(line(), prop, timeout=0.0)
        assert seen.cause == "weak bound"
        assert ("--guarantee=statistical" in seen.command) is suggested
        assert ("stated confidence" in seen.advice) is suggested


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (deep(0, "tanh"), f"large variance does not serve: {NO_CHAIN}"),
        (
            deep(0),
            f"large variance does not serve: {TOO_DEEP}",
        ),
        (line(), f"large variance does not serve: {NO_CHAIN}"),
    ],
)
def test_a_method_that_does_not_serve_is_named(tmp_path, monkeypatch, net, reason):
    monkeypatch.setattr(diagnosis, "for_diagnosis", lambda spent: 4.0)  # which methods serve hangs on no search
    size, outs = net.network.signature.input_size, net.network.signature.output_size
    seen = asked(net, text(tmp_path, [(0.4, 0.6)] * size, outs, away(net, 2.0)), timeout=0.0)
    assert seen.unserved == (reason,)
    assert any(reason in line for line in seen.lines)


def test_tails_that_do_not_serve_are_named(tmp_path, patient):
    """Rows over probabilities with a constant."""
    net = deep(0, widths=(2, 3, 2), end=("Softmax",))
    seen = asked(net, text(tmp_path, [(0.4, 0.6)] * 2, 2, "(<= Y_0 0.001)"), timeout=0.0)
    assert seen.unserved == (
        "tails does not serve: the property compares probabilities with something else than each other",
    )


def test_a_smaller_threshold_where_much_is_proved(tmp_path, patient):
    """y = w at a point, by a box of 1 deviation: 0.68 is proved, and about a sixth of the networks is broken."""
    prop = text(tmp_path, [(1, 1)], 1, "(<= Y_0 0)")
    net = line()
    seen = asked(net, prop, tau_safe=0.9, tau_unsafe=0.1)
    assert seen.cause == "between"
    assert again(seen.with_files(prop, tmp_path / "m.onnx")).stdout == "unsat\n"


# What it costs, and where it is said


@pytest.mark.parametrize("query", ["probabilistic", "decision", "deterministic"])
def test_bounds_do_not_depend_on_the_diagnosis(tmp_path, monkeypatch, query):
    """Bounds, verdict and witness of a run whose diagnosis is left out are those of one with it."""
    net, options = bent(), {"query": query, "timeout": 0.0}
    if query == "probabilistic":
        options = {"query": query, "method": "interval", "tau_safe": 0.9996}
    if query == "deterministic":
        net = model([([[1.0], [1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])])
    if query == "probabilistic":
        net = line()
    violation = {"deterministic": "(<= Y_0 -0.5)", "probabilistic": "(<= Y_0 -2.5)", "decision": "(<= Y_0 1.08)"}[query]
    box = (0, 1) if query == "deterministic" else (1, 1)
    prop = read_property(text(tmp_path, [box], 1, violation))
    with_it = verify(net, prop, **options)
    monkeypatch.setattr(diagnosis, "diagnose", lambda *args: None)
    without = verify(net, prop, **options)
    assert with_it.diagnosis is not None
    assert without.diagnosis is None
    for name in ("verdict", "p_safe", "method", "witness", "notes", "details"):
        assert repr(getattr(with_it, name)) == repr(getattr(without, name))  # in which nan is nan
    if query == "decision":
        for side in ("lower", "upper", "row_lower", "row_upper"):
            assert np.array_equal(getattr(with_it.decision, side), getattr(without.decision, side))


def test_a_diagnosis_that_fails_costs_no_bound(tmp_path, monkeypatch):
    def failing(*args: object) -> None:
        raise MemoryError("too many networks")

    prop = read_property(text(tmp_path, [(1, 1)], 1, "(<= Y_0 -2.5)"))
    options = {"query": "probabilistic", "method": "interval", "tau_safe": 0.9996}
    sound = verify(line(), prop, **options)
    monkeypatch.setattr(diagnosis, "diagnose", failing)
    found = verify(line(), prop, **options)
    assert (found.verdict, found.p_safe, found.diagnosis) == (sound.verdict, sound.p_safe, None)
    assert found.notes[-1] == "no diagnosis could be made (MemoryError: too many networks)"


def test_a_verdict_needs_no_diagnosis(tmp_path):
    prop = read_property(text(tmp_path, [(1, 1)], 1, "(<= Y_0 -9)"))
    assert verify(line(), prop).diagnosis is None


def test_the_diagnosis_takes_a_twentieth_of_the_run(tmp_path, monkeypatch):
    """By a clock of processor time, which other processes do not use up; with it the limit is kept."""
    spent = []

    def measured(*args):
        before = time.process_time()
        found = diagnose(*args)
        spent.append(time.process_time() - before)
        return found

    diagnose = diagnosis.diagnose
    monkeypatch.setattr(diagnosis, "diagnose", measured)
    monkeypatch.setattr(time, "monotonic", time.process_time)
    net = deep(0, widths=(8, 24, 24, 24, 4))
    prop = read_property(text(tmp_path, [(0.2, 0.8)] * 8, 4, away(net, 2.0)))
    begun = time.process_time()
    found = verify(net, prop, timeout=8.0)
    taken = time.process_time() - begun
    assert found.verdict == "timeout"
    assert taken < 8.0
    assert spent[0] < 0.05 * taken


def test_the_record_and_standard_error_say_it(tmp_path):
    prop, net = text(tmp_path, [(1, 1)], 1, "(<= Y_0 -2.5)"), line()
    path = files(tmp_path, net)
    answer = call("verify", prop, path, "--method=interval", "--tau-safe=0.9996", "--json", tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())["diagnosis"]
    assert told["command"].startswith(f"bnn-vnnlib verify {prop} --network={path} ")
    assert all(line in " ".join(answer.stderr.split()) for line in (" ".join(one.split()) for one in told["lines"]))


def entry(verdict: str, cause: str | None, **loss: float) -> Entry:
    """A finished instance."""
    return Entry(Path("r.txt"), {"verdict": verdict, "diagnosis": cause and {"cause": cause, "loss": loss}})


def test_a_run_sums_causes_up():
    many = [entry("unknown", "weak bound", first=0.8, second=0.2)] * 5 + [entry("timeout", "weak bound")] * 4
    many += [entry("timeout", "weak network")] * 3 + [entry("timeout", None), entry("sat", None)]
    expected = "13 unknown or timeout: 9 weak bound (5 first), 3 weak network, 1 not known"
    assert causes(many) == expected
    assert causes([entry("sat", None)]) is None


# Smaller boxes

ENDS = st.floats(-1e300, 1e300) | st.sampled_from([0.0, 5e-324, -5e-324, 1.7e308, -1.7e308])


@settings(deadline=None)
@given(ENDS, ENDS, st.floats(0, 1))
def test_shrunk_boxes_lie_in_the_old_ones_around_their_centre(one, other, width):
    low, high = min(one, other), max(one, other)
    net = line()
    old = properties(net, [(low, high)], [(0, [([1.0], None, 0.0, False)])])
    new = old.shrunk(width)
    lower, upper = new.boxes.lower[0, 0], new.boxes.upper[0, 0]
    assert low <= lower <= upper <= high
    assert upper / 2 - lower / 2 == pytest.approx(
        width * (high / 2 - low / 2), rel=1e-9, abs=1e-9 * max(abs(low), abs(high)) + 1e-323
    )
    assert (new.boxes.inner_lower == new.boxes.lower).all()
    assert new.width == width
    assert any("shrunk" in note for note in new.notes)


def test_an_interval_without_a_float_stays(tmp_path):
    """x = 0.1 has no float64: no share of its width has one either."""
    old = read_property(text(tmp_path, [(0.1, 0.1), (0, 1)], 1, "(<= Y_0 0)"))
    new = old.shrunk(0.5).boxes
    assert (new.lower[0, 0], new.upper[0, 0]) == (old.boxes.lower[0, 0], old.boxes.upper[0, 0])
    assert (new.lower[0, 1], new.upper[0, 1]) == (0.25, 0.75)


@pytest.mark.parametrize("width", [-0.1, 1.1, math.nan])
def test_a_share_that_is_none(tmp_path, width):
    prop = text(tmp_path, [(0, 1)], 1, "(<= Y_0 0)")
    with pytest.raises(OptionError, match="share"):
        read_property(prop).shrunk(width)
    assert "share" in call("verify", prop, files(tmp_path, line()), f"--shrink={width}", code=2).stderr
