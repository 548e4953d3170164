"""Time is up at every look at the clock in turn, under every method: what was proved stays, and no more is claimed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from bnn_vnnlib import Model, verify, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.methods.safety.by_weights import SAMPLES
from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask
from bnn_vnnlib.model import Component, GaussianDiagonal, GaussianLowRank, Mixture, WeightSamples
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, outputs, properties, random_model, random_samples, rows
from support.clock import Clock, at_looks
from support.networks import Builder

Batch = tuple[np.ndarray, np.ndarray, list[Any]]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the clock for every item that is bounded."""
    monkeypatch.setattr(Engine, "chunk", lambda *_: 1)
    monkeypatch.setattr(TailEngine, "chunk", lambda *_: 1)
    for name in (
        "methods.safety.large_variance.rows.PIECE", "methods.safety.refine._ATTACK_CHUNK",
        "methods.safety.refine._SPLIT_CHUNK", "problem.refute._LP_SIZE", "splitting.branch._BATCH",
    ):  # fmt: skip
        monkeypatch.setattr(f"bnn_vnnlib.{name}", 8 if name.endswith(("BATCH", "CHUNK")) else 1)
    for name in (
        "decision.by_weights", "decision.softmax.method", "decision.softmax.one_layer", "decision.regression.medians",
        "decision.regression.moments_deep", "decision.regression.two_layers", "safety.large_variance.one_layer",
        "safety.large_variance.pairs", "safety.large_variance.two_layers",
    ):  # fmt: skip
        monkeypatch.setattr(f"bnn_vnnlib.methods.{name}.at_once", lambda numbers: 1)


def instances(net: Model, seed: int = 0, *, radius: float = 0.15) -> Batch:
    """Four boxes with bounds on the outputs: safe by far, less so, violated, and one with two cases."""
    rng = np.random.default_rng(seed)
    center = rng.normal(size=(4, net.network.signature.input_size))
    y = outputs(net, center)
    m = y.shape[1]
    first, last = np.eye(m)[0], np.eye(m)[-1]
    cases = [[rows([first], [value])] for value in (y[0, 0] - 4.0, y[1, 0] - 0.8, y[2, 0] + 0.8)]
    cases.append([rows([first, -last], [y[3, 0] - 0.3, -y[3, -1] - 0.3]), rows([last], [y[3, -1] - 3.0])])
    return center - radius, center + radius, cases


def labelled(net: Model, seed: int = 0, *, radius: float = 0.15) -> Batch:
    """Four boxes and the class of the mean network at the centre, the wrong one for the last."""
    center = np.random.default_rng(seed).normal(size=(4, net.network.signature.input_size))
    label = outputs(net, center).argmax(1)
    label[3] = (label[3] + 1) % outputs(net, center).shape[1]
    return center - radius, center + radius, label


@dataclass(frozen=True)
class Setup:
    """A model, a question about several boxes, and how it is bounded."""

    net: Model
    batch: Batch
    options: dict[str, Any]

    def run(self) -> np.ndarray:
        """(instances, what grows as bounds improve)."""
        lower, upper, question = self.batch
        kind = "labels" if isinstance(question, np.ndarray) else "properties"
        found = verify_batch(self.net, lower, upper, timeout=1000.0, **{kind: question}, **self.options)
        sides = [found.lower, -found.upper]
        if found.row_lower is not None and found.row_upper is not None:
            sides += [found.row_lower, -found.row_upper]
        decided = np.isin(found.verdicts, ["sat", "unsat"])
        return np.concatenate([side.reshape(len(lower), -1) for side in [*sides, decided.astype(float)]], 1)


@dataclass(frozen=True)
class Single:
    """The same for one property over three boxes with constraints and cases of two rows."""

    net: Model
    query: str

    def run(self) -> np.ndarray:
        """(1, what grows)."""
        y = outputs(self.net, np.zeros((1, 2)))[0]
        away = [([1.0, 0.0], None, y[0] - 1.5, False), ([0.0, -1.0], None, 0.6 - y[1], True)]
        near = [([1.0, -1.0], None, y[0] - y[1] - 0.15, False)]
        boxes = [(-0.4, 0.0), (0.0, 0.4), (-0.2, 0.3)]
        limits = [(0, [1.0, 1.0], -0.1, False), (2, [1.0, -1.0], 0.2, True)]
        asked = properties(self.net, boxes, [(0, away), (1, near), (2, away), (2, near)], limits)
        found = verify(self.net, asked, query=self.query, timeout=1000.0)
        values = [float(found.verdict in ("sat", "unsat"))]
        if found.p_safe is not None:
            values += [found.p_safe.lower, -found.p_safe.upper]
        if found.decision is not None:
            bounds = found.decision
            values += [*bounds.lower, *-bounds.upper, *bounds.row_lower, *-bounds.row_upper]
        return np.array([values])


def with_posterior(net: Model, family: str) -> Model:
    """The same network with weights that depend on each other, or with a mixture."""
    assert isinstance(net.posterior, GaussianDiagonal)
    rng = np.random.default_rng(5)
    tensors, variances = net.network.tensors, net.posterior.variances
    if family == "low rank":
        factors = {name: 0.05 * rng.normal(size=(2, *variance.shape)) for name, variance in variances.items()}
        return replace(net, posterior=GaussianLowRank(factors, variances))
    parts = []
    for _ in range(2):
        means = {name: tensors[name] + 0.05 * rng.normal(size=sd.shape) for name, sd in variances.items()}
        parts.append(Component(means, net.posterior))
    return replace(net, posterior=Mixture(tuple(parts), np.array([0.4, 0.6])))


def small(*widths: int, spread: float = 0.1, **settings: Any) -> Model:
    return random_model(3, widths, spread=spread, **settings)


def classifier(*widths: int, **settings: Any) -> Model:
    return small(*widths, likelihood="categorical", **settings)


def asked(net: Model, batch: Callable[..., Batch] = instances, radius: float = 0.15, **options: Any) -> Setup:
    return Setup(net, batch(net, radius=radius), options)


def decision(net: Model, **options: Any) -> Setup:
    batch = labelled if net.likelihood == "categorical" else instances
    return asked(net, batch, query="decision", **options)


SETUPS: dict[str, Callable[[], Setup | Single]] = {
    "boxes": lambda: asked(small(2, 5, 2), method="linear"),
    "intervals": lambda: asked(small(2, 5, 2), method="interval"),
    "one margin": lambda: asked(small(2, 5, 2), margin=3.0),
    "scattered boxes": lambda: asked(small(1, 2, 1), boxes="sampled", margin=2.5, num_boxes=4),
    "tails": lambda: asked(small(2, 5, 2, activation="tanh"), method="tails"),
    "all": lambda: asked(small(2, 5, 2)),
    "wide": lambda: asked(small(2, 8, 2, spread=1.0), radius=0.02, tau_safe=0.9, tau_unsafe=0.3),
    "wide, deep": lambda: asked(small(2, 5, 5, 2, spread=0.7), radius=0.01),
    "samples": lambda: asked(random_samples(0, [2, 5, 2], 5)),
    "low rank": lambda: asked(with_posterior(small(2, 5, 2), "low rank")),
    "mixture": lambda: asked(with_posterior(small(2, 5, 2), "mixture")),
    "deterministic": lambda: asked(small(2, 5, 2), query="deterministic", radius=0.6),
    "deterministic, many inputs": lambda: asked(small(24, 6, 2), query="deterministic", radius=0.1),
    "softmax": lambda: decision(classifier(2, 5, 3)),
    "softmax, deep": lambda: decision(classifier(2, 4, 4, 2)),
    "softmax by tails": lambda: decision(classifier(2, 4, 2, activation="tanh")),
    "softmax by boxes": lambda: decision(classifier(2, 4, 2), margin=3.0),
    "softmax of samples": lambda: decision(random_samples(0, [2, 4, 3], 4, likelihood="categorical")),
    "softmax of a mixture": lambda: decision(with_posterior(classifier(2, 4, 2), "mixture")),
    "softmax, low rank": lambda: decision(with_posterior(classifier(2, 4, 2), "low rank")),
    "sigmoid": lambda: asked(
        small(2, 4, 1, likelihood="bernoulli"), query="decision"
    ),
    "regression": lambda: decision(small(1, 4, 2, likelihood="gaussian")),
    "regression, tanh": lambda: decision(small(2, 4, 2, likelihood="gaussian", activation="tanh")),
    "regression, deep": lambda: decision(small(1, 3, 3, 2, likelihood="gaussian")),
    "regression of samples": lambda: decision(random_samples(0, [2, 4, 2], 4, likelihood="gaussian")),
    "medians": lambda: decision(small(1, 4, 2, likelihood="gaussian"), rule="median"),
    "medians by tails": lambda: decision(small(2, 3, 3, 1, likelihood="gaussian"), rule="median"),
    "medians of samples": lambda: decision(random_samples(0, [2, 4, 2], 5, likelihood="gaussian"), rule="median"),
    **{f"boxes with constraints, {query}": partial(Single, small(2, 4, 2, likelihood="gaussian"), query)
       for query in ("probabilistic", "decision", "deterministic")},
}  # fmt: skip

EVERY, MOST, STRIDE = 24, 520, 71
"""Time is up at every look up to here, and then at some."""


@pytest.mark.parametrize("name", SETUPS)
def test_what_was_proved_in_time_stays(name: str, one_by_one: None) -> None:
    """Bounds and verdicts are never worse than those a look before, and there is no look at which all comes at once."""
    asked = SETUPS[name]()
    found = at_looks({*range(EVERY), *range(EVERY, MOST, STRIDE)}, asked.run)
    assert not [failed for failed in found if isinstance(failed, str)]
    assert len(found) > 12
    for before, after in itertools.pairwise(found):
        assert (after >= before).all()
    assert (found[-1] > found[0]).any()
    if isinstance(asked, Setup) and "query" not in asked.options:
        assert (found[0][:, :2] == [0.0, -1.0]).all()
        for before, after in itertools.pairwise(found[:EVERY]):
            assert (before != after).any(1).sum() <= 1


def hats(heights: Sequence[float]) -> Model:
    """y = |x - 1/3| + |x + 1/3| + height, least on the whole of [-1/3, 1/3], with one of these heights each."""
    first = ([[1.0], [-1.0], [1.0], [-1.0]], [-1 / 3, 1 / 3, 1 / 3, -1 / 3])
    last = ([[1.0, 1.0, 1.0, 1.0]], [0.0])
    count = len(heights)
    drawn = [[np.repeat(np.array(part)[None], count, 0) for part in layer] for layer in (first, last)]
    drawn[1][1] = np.array(heights)[:, None]
    return model([first, last], samples=drawn)


def test_one_hard_sample_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven networks are safe, and of the twelfth nobody knows, since it comes down to the bound but for rounding."""
    net = hats([1.0] * 11 + [-2 / 3])
    Clock(monkeypatch, 100)
    found = verify_batch(net, [[-1.0]], [[1.0]], properties=[[rows([[1.0]], [0.0])]], timeout=1000.0)
    assert found.verdicts[0] == "timeout"
    assert found.lower[0] == pytest.approx(11 / 12)
    assert found.upper[0] == 1.0


def test_one_hard_box_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    net = hats([-2 / 3, 1.0, 2.0])
    low, high = np.arange(8.0)[:, None] - 4, np.arange(8.0)[:, None] - 3.5
    low[4] = -0.1  # where y is constant under every network
    case = [[rows([[1.0]], [0.0])]] * 3 + [[rows([[-1.0]], [-1.0])]] + [[rows([[1.0]], [0.0])]] * 4
    Clock(monkeypatch, 100)
    found = verify_batch(net, low, high, properties=case, timeout=1000.0)
    assert found.verdicts.tolist() == ["unsat"] * 3 + ["sat", "timeout"] + ["unsat"] * 3


def test_a_bound_from_samples_comes_with_a_point_of_positive_mass() -> None:
    """Whenever time is up: what a sample is proved to violate at is the point that is shown."""
    net = random_samples(0, [2, 5, 2], 5)
    assert isinstance(net.posterior, WeightSamples)
    lower, upper, cases = instances(net)
    question = from_cases(torch.tensor(lower), torch.tensor(upper), cases, 2)
    bounds = OutputBounds(Engine(net.network, deadline=Deadline(0.0)), "identity")

    def run() -> np.ndarray:
        task = SafetyTask(bounds, net.posterior, question, Attack(), Deadline(), Goal(0.95, 0.95))
        found = SAMPLES.bounds(task, None)
        return np.stack([found.upper, found.point_mass])

    found = at_looks(range(200), run)
    assert len(found) < 200
    assert any((above < 1).any() for above, _ in found)
    for above, mass in found:
        assert (mass[above < 1] > 0).all()


def test_a_walk_that_is_cut_off_leaves_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is looked at between the nodes of a walk. Whenever time is up, an item that has been begun has a bound,
    which is no more than what the last layer alone, which is the only random one, gives at a corner."""
    monkeypatch.setattr(backward, "lengthy", lambda network, position: True)
    make = Builder(1)
    x = make.input(1, 2, 6, 6)
    for size in (4, 3):
        x = make.activation(make.shift(make.conv(x, (size, make.shape(x)[1], 3, 3), pads=(1, 1, 1, 1)), (size, 1, 1)))
    x = make.dense(make.reshape(x, 1, 108), 6, "relu")
    network = make.network(make.dense(x, 1))
    last = list(network.tensors)[-2:]
    spread = {name: np.full(network.tensors[name].shape, 4.0) for name in last}
    net = Model(network, GaussianDiagonal(spread), None, None, b"")
    at = np.full((1, 72), 0.5)
    hidden = replace(network, outputs=(len(network.nodes) - 3,))
    values = evaluate(hidden, torch.tensor(at))[0].numpy()
    deviation = 2.0 * np.sqrt(values @ values + 1)
    mean = outputs(net, at)[0, 0]
    truth = NormalDist().cdf(1.5)

    def run() -> np.ndarray:
        case = [rows([[1.0]], [mean - 1.5 * deviation])]
        found = verify_batch(net, at, at + 0.001, properties=[case], method="tails", timeout=1000.0)
        return np.array([found.lower[0], found.upper[0]])

    found = np.array(at_looks(range(20, 50), run))
    begun = found[found[:, 0] > 0]
    assert (found[-len(begun) :] == begun).all()
    assert len(begun) > 20
    assert len(np.unique(begun[:, 0])) > 1
    assert (begun[:, 0] <= truth).all()
