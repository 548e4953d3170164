"""Proofs: every node gives one number q, an upper bound of P_w(some case is violated on its region), computed here.

Which cases have to be covered by which boxes is never read from the certificate: the cases come from the property.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from flint import arb, arb_mat

from bnn_vnnlib_check.balls import ROOT, ZERO, Floats, at_most_one, ball, column, matrix, surely_at_least, surely_less
from bnn_vnnlib_check.bounds import KINKS, Box, Chain, Ranges, reached
from bnn_vnnlib_check.container import Certificate, Node
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from bnn_vnnlib_check.model import Layer, Layers, Model
from bnn_vnnlib_check.tails import Gaussian, Leaf
from bnn_vnnlib_check.vnnlib import Case, Property, Row, number

MOST_NODES, MOST_ROWS = 2**24, 2**16
PARTS = {"samples": "samples", "mixture": "components"}
FAR = Fraction(1, 10**6)
"""A point is tried for cases whose box is not farther from it, relative to its size or to 1."""

Tick = Callable[[int, int], None]
"""Function that is told of leaves: how many are done, of how many."""

Point = tuple[Fraction, ...]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of some cases: C y + G x against their bounds.

    of : the case of each row; outputs : C as floats, exact; inputs : G, or None
    """

    rows: tuple[Row, ...]
    of: tuple[int, ...]
    outputs: Floats
    inputs: arb_mat | None

    @staticmethod
    def over(prop: Property, cases: Sequence[Case], constraints: bool = False) -> Rows:
        """Rows times a number that makes their coefficients of outputs whole; constraints : those of inputs, too."""
        parts = [case.rows + (case.constraints if constraints else ()) for case in cases]
        rows = tuple(_whole(row) for part in parts for row in part)
        if len(rows) > MOST_ROWS:
            raise UnreadableError(f"a box with more than {MOST_ROWS} rows")
        c, g = np.zeros((len(rows), prop.outputs)), arb_mat(len(rows), prop.inputs)
        for r, row in enumerate(rows):
            for i, value in row.outputs.items():
                if max(abs(value), abs(row.bound)) > Fraction(2) ** 1000:
                    raise UnreadableError("a number of the property is larger than any float64")
                c[r, i] = float(value)
                if Fraction(c[r, i]) != value:
                    raise UnreadableError("no rule for a coefficient of an output that is no float64")
            for i, value in row.inputs.items():
                g[r, i] = ball(value)
        of = tuple(i for i, part in enumerate(parts) for _ in part)
        return Rows(rows, of, c, g if any(row.inputs for row in rows) else None)

    @property
    def bounds(self) -> list[arb]:
        """The bounds that the rows are compared with, as balls."""
        return [ball(row.bound) for row in self.rows]


def _whole(row: Row) -> Row:
    scale = Fraction(math.lcm(*(a.denominator for a in row.outputs.values())))
    outputs, inputs = ({i: scale * a for i, a in part.items()} for part in (row.outputs, row.inputs))
    return Row(outputs, inputs, scale * row.bound, row.strict)


# Leaves


class Network:
    """One network and the rule of its leaves: `tails/1` if it has noise, else `linear/1`. margin : see `Chain`."""

    def __init__(self, layers: Layers, margin: Fraction | None = None) -> None:
        self.chain, self.margin = Chain(layers, margin), margin
        noisy = margin is None and self.chain.random(len(layers) - 1)
        self.gaussian = Gaussian(self.chain) if noisy else None

    def leaves(self, node: Node, file: Certificate, count: int) -> Callable[[int, Box], Leaf | Sure]:
        """What is known on the box of each of so many leaves, by their rule and its arrays."""
        node.rule("linear/1" if self.gaussian is None else "tails/1")
        if (gaussian := self.gaussian) is None:
            node.done()
            return lambda index, box: Sure(self.chain, box)
        claimed = [k for k in range(len(self.chain) - 1) if self.chain.random(k)]

        def arrays(key: str, *shape: int) -> list[Floats]:
            names = node.items(key)
            if len(names) != len(claimed):
                raise UnreadableError(f"{node.where}: {len(names)} arrays for {len(claimed)} claimed layers")
            widths = [len(self.chain.layers[k].bias) for k in claimed]
            return [file.array(name, "f", (count, *shape, width)) for name, width in zip(names, widths, strict=True)]

        ranges = list(zip(arrays("lower"), arrays("upper"), strict=True))
        near = arrays("near") if node.has("near") else [None] * len(claimed)
        slopes = arrays("slopes", 2) if node.has("slopes") else []
        node.done()

        def leaf(index: int, box: Box) -> Leaf:
            claims = [
                (Box(low[index], high[index]), None if v is None else v[index])
                for (low, high), v in zip(ranges, near, strict=True)
            ]
            return Leaf(gaussian, box, claims, {k: s[index] for k, s in zip(claimed, slopes, strict=False)})

        return leaf


class Sure:
    """What is known on a box of weights that have no noise, or lie in a box; failures are 0 or 1."""

    q = ZERO

    def __init__(self, chain: Chain, box: Box) -> None:
        self._last = len(chain) - 1
        self._ranges = reached(chain, box, self._last)

    def failures(
        self, rows: Floats, thresholds: list[arb], inputs: arb_mat | None, strict: Sequence[bool]
    ) -> list[arb]:  # fmt: skip
        """Failure of each row: 0 where no x of the box meets it, else 1."""
        both = (self._ranges.walk(self._last, rows, inputs, folded=folded) for folded in (False, True))
        return [
            ZERO if any(_exceeds(value, end, sharp) for value in values) else arb(1)
            for values, end, sharp in zip(zip(*both, strict=True), thresholds, strict, strict=True)
        ]


def _exceeds(least: arb, bound: arb, strict: bool) -> bool:
    """Whether no value from `least` on meets a row with this bound."""
    return surely_at_least(least, bound) if strict else surely_less(bound, least)


def _violated(known: Leaf | Sure, cases: Sequence[Case], rows: Rows) -> arb:
    """q of a leaf: the best row of each case; a case without rows counts 1."""
    bounds, strict = [bound.upper() for bound in rows.bounds], [row.strict for row in rows.rows]
    found, q = known.failures(rows.outputs, bounds, rows.inputs, strict) if strict else [], known.q
    for c in range(len(cases)):
        best = arb(1)
        for failure, of in zip(found, rows.of, strict=True):
            best = failure if of == c and surely_less(failure, best) else best
        q = q + best
    return at_most_one(q)


def _safe(known: Leaf | Sure, rows: Rows) -> arb:
    """An upper bound of P_w(some row of a case does not hold at a point): the events, and all its rows."""
    against, strict = [-bound.lower() for bound in rows.bounds], [not row.strict for row in rows.rows]
    inputs = None if rows.inputs is None else -rows.inputs
    return at_most_one(sum(known.failures(-rows.outputs, against, inputs, strict) if strict else [], known.q))


# Trees


def _leaves(where: str, kinds: Sequence[int], root: T, halves: Callable[[int, T], tuple[T, T]]) -> list[T]:
    """The leaves of a tree in preorder; a node of kind -1 is one, and what `halves` makes of another comes next."""
    if not 0 < len(kinds) <= MOST_NODES:
        raise UnreadableError(f"{where}: a tree of {len(kinds)} nodes")
    leaves, waiting = [], [root]
    for place, kind in enumerate(kinds):
        if not waiting:
            raise RejectedError(f"{where}: the tree goes on after its last leaf, at node {place}")
        now = waiting.pop()
        if kind < 0:
            leaves.append(now)
        else:
            first, second = halves(place, now)
            waiting += [second, first]
    if waiting:
        raise RejectedError(f"{where}: the tree ends before {len(waiting)} of its boxes")
    return leaves


def _boxes(node: Node, file: Certificate, box: Box) -> list[Box]:
    """Rule `split_inputs/1`. Halves are closed and made here."""
    inputs, cuts = file.array(node.get("inputs"), "i", (None,)), file.array(node.get("cuts"), "f", (None,))
    if len(inputs) != len(cuts):
        raise UnreadableError(f"{node.where}: a tree of {len(inputs)} inputs and {len(cuts)} cuts")

    def halves(place: int, now: Box) -> tuple[Box, Box]:
        i, cut = int(inputs[place]), float(cuts[place])
        if i >= len(now.lower) or not now.lower[i] <= cut <= now.upper[i]:
            raise RejectedError(f"{node.where}: node {place} cuts input {i} outside of its box")
        lower, upper = now.lower.copy(), now.upper.copy()
        upper[i] = lower[i] = cut
        return Box(now.lower, upper), Box(lower, now.upper)

    return _leaves(node.where, inputs.tolist(), box, halves)


def _by_signs(node: Node, file: Certificate, network: Network, known: Ranges, rows: Rows, tick: Tick) -> arb:
    """Rule `split_signs/1`: 0 where every leaf of the tree excludes the case of these rows, else 1."""
    kinks = [k for k, layer in enumerate(network.chain.layers) if layer.activation in KINKS]
    ends = np.cumsum([len(network.chain.layers[k].bias) for k in kinks], dtype=int).tolist()
    neurons, count = file.array(node.get("neurons"), "i", (None,)), ends[-1] if ends else 0

    def halves(place: int, now: Floats) -> tuple[Floats, Floats]:
        neuron = int(neurons[place])
        if neuron >= count or now[neuron]:
            raise RejectedError(f"{node.where}: node {place} splits neuron {neuron}, which is not there or has a sign")
        off, on = now.copy(), now.copy()
        off[neuron], on[neuron] = -1.0, 1.0
        return off, on

    leaves = _leaves(node.where, neurons.tolist(), np.zeros(count), halves)
    widths = {"slopes": count, "beta": count, "rows": len(rows.rows)}
    slopes, beta, mixture = (file.array(node.get(key), "f", (len(leaves), width)) for key, width in widths.items())
    node.done()
    if (beta < 0).any() or (mixture < 0).any():
        raise RejectedError(f"{node.where}: a multiplier is negative")
    chain = Chain([*network.chain.layers, Layer(rows.outputs, np.zeros(len(rows.rows)))], network.margin)
    for index, (signs, m) in enumerate(zip(leaves, mixture, strict=True)):
        tick(index + 1, len(leaves))
        ranges = known.signed(chain, signs, slopes[index])
        if ranges is None:
            continue
        multipliers = np.split((beta[index] * signs)[None], ends[:-1], 1)
        less = dict(zip(kinks, multipliers, strict=False))
        inputs = None if rows.inputs is None else matrix(m[None]) * rows.inputs
        (least,) = ranges.walk(len(chain) - 1, m[None], inputs, less=less)
        strict = any(row.strict and weight > 0 for row, weight in zip(rows.rows, m.tolist(), strict=True))
        if not _exceeds(least, (matrix(m[None]) * column(rows.bounds))[0, 0], strict):
            return arb(1)
    return ZERO


# The whole proof


@dataclass(frozen=True, eq=False)
class Proof:
    """file : the certificate; prop : what the proof is about; tick : is told how far it is."""

    file: Certificate
    prop: Property
    tick: Tick

    def q(self, node: Node, model: Model, query: str, safe: bool) -> arb:
        """Upper bound on a probability, from the whole proof: of P_w(violated) for `safe`, else of P_w(safe).

        query : "deterministic" asks the mean network, "probabilistic" the posterior
        """
        if query == "deterministic":
            return self._of(node, model.mean, safe)
        if model.family == "gaussian_diag":
            return self._of(node, model.parts[0], safe)
        node.rule(f"{model.family}/1")
        parts, q, left = node.nodes(PARTS[model.family]), ZERO, set(range(len(model.parts)))
        node.done()
        for part in parts:
            index = part.whole("index")
            if index not in left:
                raise RejectedError(f"{part.where}: the posterior has no part {index}, or it comes twice")
            left.remove(index)
            q = q + ball(model.probabilities[index]) * self._of(part.node("proof"), model.parts[index], safe)
            part.done()
        return at_most_one(q + sum((ball(model.probabilities[i]) for i in left), ZERO))

    def _of(self, node: Node, layers: Layers, safe: bool) -> arb:
        """Upper bound on a probability, for one network: of P_w(violated) for `safe`, else of P_w(safe)."""
        if not safe:
            return self._at_point(node, Network(layers))
        return self._box_mass(node, layers) if node.text("rule") == "box_mass/1" else self._items(node, Network(layers))

    def _items(self, node: Node, network: Network) -> arb:
        """Rule `items/1`: every case of the property is served by an item whose box contains the case's box."""
        node.rule("items/1")
        items, served, total = node.nodes("items"), dict[int, list[Case]](), ZERO
        node.done()
        boxes = [Box(*self.file.array(item.get("box"), "f", (2, self.prop.inputs))) for item in items]
        exact = [tuple(tuple(map(Fraction, side.tolist())) for side in (box.lower, box.upper)) for box in boxes]
        found: dict[tuple[Point, Point], int] = {}
        for place, case in enumerate(self.prop.cases):
            key = case.lower, case.upper
            if key not in found:
                inside = (i for i, sides in enumerate(exact) if _contains(sides, case))
                found[key] = next(inside, -1)
            if found[key] < 0:
                raise RejectedError(f"no item's box contains the box of case {place + 1} of the property")
            served.setdefault(found[key], []).append(case)
        for index, (item, box) in enumerate(zip(items, boxes, strict=True)):
            total = total + self._item(item, network, box, served.get(index, []))
        return at_most_one(total)

    def _item(self, item: Node, network: Network, box: Box, cases: Sequence[Case]) -> arb:
        """Upper bound on the probability that an item is violated: the sum over the leaves of its tree."""
        tree, q = item.node("tree"), ZERO
        item.done()
        if tree.text("rule") == "split_signs/1":
            trees = tree.nodes("cases")
            tree.done()
            if network.gaussian is not None or len(trees) != len(cases):
                raise RejectedError(f"{tree.where}: {len(trees)} trees for {len(cases)} cases, or a network with noise")
            known = reached(network.chain, box, len(network.chain))
            for part, case in zip(trees, cases, strict=True):
                rows = Rows.over(self.prop, [case], constraints=True)
                q = q + _by_signs(part, self.file, network, known, rows, self.tick)
            return q
        tree.rule("split_inputs/1")
        boxes = _boxes(tree, self.file, box)
        known_of = network.leaves(tree.node("leaf"), self.file, len(boxes))
        tree.done()
        rows = Rows.over(self.prop, cases)
        for index, leaf in enumerate(boxes if cases else []):
            q = q + _violated(known_of(index, leaf), cases, rows)
            self.tick(index + 1, len(boxes))
        return q

    def _box_mass(self, node: Node, layers: Layers) -> arb:
        """Rule `box_mass/1`: no weights of a box violate, and the others have the rest of the probability."""
        margin, proof = number(node.text("margin")), node.node("proof")
        node.done()
        if margin <= 0 or not any(layer.variances for layer in layers):
            raise RejectedError(f"{node.where}: a box of weights needs a margin above 0, and weights with noise")
        if not surely_less(self._items(proof, Network(layers, margin)), arb(1)):
            return arb(1)
        count = sum(int(np.count_nonzero(part)) for layer in layers for part in layer.variances)
        return at_most_one(1 - (ball(margin) / ROOT).erf().lower() ** count)

    def _at_point(self, node: Node, network: Network) -> arb:
        """Rule `point/1`: an upper bound of P_w(no case is violated at the point), the point of each case's box."""
        node.rule("point/1")
        x = [Fraction(v) for v in self.file.array(node.get("x"), "f", (self.prop.inputs,)).tolist()]
        known_of = None if network.gaussian is None else network.leaves(node.node("leaf"), self.file, 1)
        node.done()
        best, outputs, known = arb(1), dict[Point, list[Fraction]](), dict[Point, Leaf | Sure]()
        for case in self.prop.cases:
            point = tuple(min(max(v, low), high) for v, low, high in zip(x, case.lower, case.upper, strict=True))
            far = any(abs(p - v) > FAR * max(Fraction(1), abs(v)) for p, v in zip(point, x, strict=True))
            if far or not all(_holds(row, point, []) for row in case.constraints):
                continue
            if known_of is None and network.chain.rational:
                outputs[point] = outputs.get(point) or network.chain.at(point)
                found = ZERO if all(_holds(row, point, outputs[point]) for row in case.rows) else arb(1)
            else:
                if point not in known:
                    around = _around(point)
                    known[point] = Sure(network.chain, around) if known_of is None else known_of(0, around)
                found = _safe(known[point], Rows.over(self.prop, [case]))
            best = found if surely_less(found, best) else best
        return best


def _contains(sides: tuple[Point, ...], case: Case) -> bool:
    return all(a <= b for a, b in zip(sides[0] + case.upper, case.lower + sides[1], strict=True))


def _holds(row: Row, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
    value = sum((a * x[i] for i, a in row.inputs.items()), Fraction(0)) + sum(a * y[i] for i, a in row.outputs.items())
    return value < row.bound or (value == row.bound and not row.strict)


def _around(point: Point) -> Box:
    """The smallest box of floats with the point inside."""
    nearest = [float(v) for v in point]
    lower = [v if Fraction(v) <= p else np.nextafter(v, -np.inf) for v, p in zip(nearest, point, strict=True)]
    upper = [v if Fraction(v) >= p else np.nextafter(v, np.inf) for v, p in zip(nearest, point, strict=True)]
    return Box(np.array(lower), np.array(upper))
