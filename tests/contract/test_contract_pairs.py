"""Pairs of every graph of the zoo: what the methods prove of two networks, in every form, against drawn and attacked
networks, exact minima, and exact arithmetic."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import binom

from bnn_vnnlib import Model, Property, Verdict, verify
from bnn_vnnlib import attack as attacks
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.methods.safety.portfolio import METHODS
from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.pairs import side_by_side
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.pairs import Differences, differences
from bnn_vnnlib.problem.problem import from_property
from bnn_vnnlib.relations import equivalent, fair, monotone
from bnn_vnnlib.system.clock import Deadline
from contract import zoo
from contract.truth import LEVEL
from fuzz.outcomes import processor_time
from support import exact
from support.builders import model as chain
from support.pairs import disturbed

DRAWS = 200
SECONDS = 0.1
"""Processor time of one call."""

FLOORS = {"tails": 0.2, "centred boxes": 0.2}
"""Least share of informative lower bounds on P_safe, all forms together."""

COUPLINGS = ("same", "independent", "shared", "noise")


def shifted(model: Model) -> Model:
    """Other weights, and the same posterior around them."""
    return replace(model, network=disturbed(model.network, np.random.default_rng(5), 0.01))


@dataclass(frozen=True, eq=False)
class Pair:
    """Two networks, how they are drawn, and a violation that attacked draws show with about probability `mass`."""

    graph: str
    coupling: str

    @cached_property
    def joined(self) -> Model:
        first = zoo.model_of(self.graph, "gaussian", "tiny" if self.coupling == "independent" else "narrow")
        second = first if self.coupling in ("same", "shared") else shifted(first)
        return side_by_side(first, second, self.coupling, same=self.coupling == "same")

    def asked(self, delta: float) -> Property:
        """All outputs are to differ by at most delta."""
        assert self.joined.pair is not None
        first, second = self.joined.pair.first, self.joined.pair.second
        lower, upper = self.box
        delta = round(max(delta, 1e-9), 9)
        if self.coupling in ("same", "shared"):
            relation = fair(first, lower, upper, (), 0.02, delta)
            text = relation.text if self.coupling == "same" else relation.text.replace("equal-to", "isomorphic-to")
            return replace(relation, text=text).property
        return equivalent(first, second, lower, upper, delta).property

    @cached_property
    def box(self) -> tuple[np.ndarray, np.ndarray]:
        n = self.joined.network.signature.input_size // 2
        centre = (0.7 * np.random.default_rng(7).normal(size=n)).round(3)
        return centre - 0.05, centre + 0.05

    @cached_property
    def shown(self) -> np.ndarray:
        """(DRAWS,) the largest difference of each draw that an attack finds in T."""
        way = differences(self.joined, self.asked(0.0))[0]
        drawn = sample(way.model.network, way.model.posterior, DRAWS, torch.Generator().manual_seed(11))
        how = attacks.Attack(steps=10, restarts=1, deepest=True)
        return -attacks.run(way.model.network, from_property(way.inner), drawn, how)[1][:, 0].numpy()

    @property
    def levels(self) -> tuple[float, float]:
        """Deltas that about half of the draws exceed, and none by far."""
        return float(np.quantile(self.shown, 0.5)), 3.0 * float(self.shown.max())


PAIRS = [Pair(graph, "same") for graph in zoo.GRAPHS]
PAIRS += [Pair(graph, COUPLINGS[1 + k % 3]) for k, graph in enumerate(zoo.GRAPHS)]


def bounded(way: Differences) -> Iterator[tuple[str, float, float, np.ndarray]]:
    """Lower and upper bounds on P_safe, and the point, of every method that serves; by name."""
    problem = from_property(way.inner)
    for means in ("tails", "boxes"):
        for method in METHODS:
            with processor_time():
                deadline = Deadline(time.monotonic() + SECONDS)
                bounds = OutputBounds(Engine(way.model.network, "linear", deadline), "identity")
                attack = attacks.Attack(steps=10, restarts=2, deadline=deadline)
                task = SafetyTask(bounds, way.model.posterior, problem, attack, deadline, Goal(0.95, 0.95), means)  # type: ignore[arg-type]
                if method.serves(task) is None:
                    found = method.bounds(task, None)
                    yield method.name, float(found.lower[0]), float(found.upper[0]), found.point[0].numpy()


def test_bounds_on_pairs_are_right_and_informative() -> None:
    tally: Counter[tuple[str, str]] = Counter()
    evidence = []
    for pair in PAIRS:
        for delta, safe in zip(pair.levels, (0.5, 1.0), strict=True):
            ways = differences(pair.joined, pair.asked(delta))
            assert ways, (pair.graph, pair.coupling)
            count = int((pair.shown >= delta + 1e-8).sum())
            best: dict[str, float] = {}
            for way in ways:
                for name, low, high, point in bounded(way):
                    best[name] = max(low, best.get(name, 0.0))
                    told = f"{pair.graph}, {pair.coupling}, {delta:.3g}, {name}: [{low}, {high}]"
                    if binom.sf(count - 1, DRAWS, min(1.0, 1 - low)) < LEVEL:
                        evidence.append(f"{told}, and {count} of {DRAWS} draws violate")
                    if not way.only_safe and high < 1:
                        held = violating(way, point)
                        if binom.cdf(held, DRAWS, 1 - high) < LEVEL:
                            evidence.append(f"{told}, and {held} of {DRAWS} draws violate at its point")
            for name, low in best.items():
                tally[name, "asked"] += 1
                tally[name, "told"] += low >= safe / 2
    for name in FLOORS:
        sys.stdout.write(f"{name:20s} {tally[name, 'told']} of {tally[name, 'asked']}\n")
    assert evidence == []
    assert [name for name, floor in FLOORS.items() if tally[name, "told"] < floor * tally[name, "asked"]] == []


def violating(way: Differences, point: np.ndarray) -> int:
    """How many draws violate at one point."""
    network, problem = way.model.network, from_property(way.inner)
    drawn = sample(network, way.model.posterior, DRAWS, torch.Generator().manual_seed(13))
    x = torch.as_tensor(point)[None, None, None]
    return int((attacks.violation(network, problem, drawn, x, "identity")[:, 0, 0] <= 0).sum())


# Exact minima

RNG = np.random.default_rng(2)
LAYERS = [(RNG.normal(size=(3, 2)), 0.3 * RNG.normal(size=3)), (RNG.normal(size=(1, 3)), np.zeros(1))]
OTHER = [(w + 0.1 * RNG.normal(size=w.shape), b) for w, b in LAYERS]


def largest(first: list, second: list, near: float) -> float:
    """max of f(x) - g(u) over x in [0, 1]^2 and |x_0 - u_0| <= near, x_1 = u_1: a linear program for each pattern of
    signs of the six hidden units."""
    best = -np.inf
    (w, b), (v, c) = first
    (p, q), (r, s) = second
    for signs in itertools.product((0.0, 1.0), repeat=6):
        on, off = np.array(signs[:3]), np.array(signs[3:])
        cost = -np.concatenate([(v * on) @ w, -(r * off) @ p], 1)[0]
        fixed = float((v @ (on * b) + c - r @ (off * q) - s)[0])
        flip = np.concatenate([1 - 2 * on, 1 - 2 * off])[:, None]
        rows = [
            flip * np.block([[w, np.zeros((3, 2))], [np.zeros((3, 2)), p]]),
            np.array([[1, 0, -1, 0], [-1, 0, 1, 0]]),
        ]
        right = [-flip[:, 0] * np.concatenate([b, q]), np.full(2, near)]
        found = linprog(cost, np.concatenate(rows), np.concatenate(right), [[0, 1, 0, -1]], [0], bounds=[(0, 1)] * 4)
        best = max(best, fixed - found.fun) if found.status == 0 else best
    return best


@pytest.mark.parametrize("word", ["equal-to", "isomorphic-to"])
def test_verdicts_around_the_exact_maximum(word: str) -> None:
    """Of f - g and of g - f."""
    near = 0.1
    second = LAYERS if word == "equal-to" else OTHER
    text = f"""(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,1]))
(declare-network g ({word} f) (declare-input U real [1,2]) (declare-output V real [1,1]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0) (>= U[0,0] 0.0) (<= U[0,0] 1.0)))
(assert (and (== X[0,1] U[0,1]) (<= X[0,0] (+ U[0,0] {near})) (<= U[0,0] (+ X[0,0] {near}))))
"""
    from bnn_vnnlib.vnnlib import parse_property

    nets = chain(LAYERS), chain(LAYERS if word == "equal-to" else OTHER)
    for more, less, most in (("Y", "V", largest(LAYERS, second, near)), ("V", "Y", largest(second, LAYERS, near))):
        for factor, verdict in ((1.001, Verdict.UNSAT), (0.999, Verdict.SAT)):
            asked = parse_property(f"{text}(assert (>= {more}[0,0] (+ {less}[0,0] {factor * most:.12f})))")
            assert verify(nets[:1] if word == "equal-to" else nets, asked, timeout=30).verdict is verdict


# Exact arithmetic


@pytest.mark.parametrize("graph", zoo.GRAPHS)
@pytest.mark.parametrize("coupling", ["same", "independent"])
def test_exact_differences_keep_the_bounds(graph: str, coupling: str) -> None:
    """At corners of T both networks in exact arithmetic give no difference below the bound: for the mean weights."""
    pair = Pair(graph, coupling)
    assert pair.joined.pair is not None
    networks = [side.network for side in (pair.joined.pair.first, pair.joined.pair.second)]
    rng = np.random.default_rng(1)
    for way in differences(pair.joined, pair.asked(0.1)):
        if way.only_safe:
            continue
        problem, n = from_property(way.inner), len(pair.box[0])
        weights = weight_sets.mean_weights(way.model.network, torch.device("cpu"))
        rows = problem.rows
        found = Engine(way.model.network).rows(weights, problem.lower, problem.upper, rows.outputs, rows.inputs)
        low, high = problem.lower[0].numpy(), problem.upper[0].numpy()
        for _ in range(2):
            x = exact.fractions(np.where(rng.random(2 * n) < 0.5, low, high))
            ends = [exact.evaluate(net, part, {name: exact.fractions(t) for name, t in net.tensors.items()})
                    for net, part in zip(networks, (x[:n], x[:n] - x[n:]), strict=True)]  # fmt: skip
            outputs = np.concatenate([*ends, ends[0] - ends[1]])
            for r in np.flatnonzero(problem.rows.case[0] < problem.cases).tolist():
                value = sum((Fraction(a) * y for a, y in zip(rows.outputs[0, r].tolist(), outputs, strict=True) if a),
                            Fraction(0))  # fmt: skip
                assert exact.at_most(Fraction(float(found.lower[0, 0, r])), value)


def test_a_fall_of_a_tenth_of_the_draws_is_no_proof() -> None:
    """A single weight N(1, s^2) that is negative with probability 0.1: P_safe of "never falls" is 0.9."""
    from scipy.stats import norm

    spread = 1 / norm.isf(0.1)
    net = chain([(np.eye(1), np.zeros(1))], [(np.full((1, 1), spread**2), np.zeros(1))])
    with processor_time():
        found = verify(net, monotone(net, 0, 1, 0).property, timeout=5)
    assert found.p_safe.lower <= 0.9 + 1e-9
    assert found.p_safe.lower == pytest.approx(0.9, abs=1e-6)
    assert found.p_safe.upper >= 0.9 - 1e-9
