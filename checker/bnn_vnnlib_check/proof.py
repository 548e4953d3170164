"""Proofs: every node gives one number q, an upper bound of P_w(some case is violated on its region), computed here.

Which cases have to be covered by which boxes is never read from the certificate: the cases come from the property.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from flint import arb

from bnn_vnnlib_check.balls import ZERO, Floats, at_most_one, ball, surely_at_least, surely_less
from bnn_vnnlib_check.bounds import Box, Chain, reached
from bnn_vnnlib_check.container import Certificate, Node
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from bnn_vnnlib_check.model import Layer, Model
from bnn_vnnlib_check.tails import Claim, Gaussian, Leaf
from bnn_vnnlib_check.vnnlib import Case, Property, Row

MOST_NODES, MOST_ROWS = 2**24, 2**16
FAR = Fraction(1, 10**6)
"""A point is tried for cases whose box is not farther from it, relative to its size or to 1."""

Tick = Callable[[int, int], None]
"""Told of leaves: how many are done, of how many."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of some cases as floats: C y + G x, what rounding left out of them, and their bounds.

    of : the case of each row; missed : what the floats of G miss, as exact coefficients
    """

    rows: tuple[Row, ...]
    of: tuple[int, ...]
    outputs: Floats
    inputs: Floats | None
    missed: tuple[dict[int, Fraction], ...]


def rows_of(cases: Sequence[Case], outputs: int, inputs: int) -> Rows:
    """The rows of all cases, times a number that makes their coefficients of outputs whole.

    Coefficients of inputs that are no floats are rounded, and the rest is kept.
    """
    rows = tuple(_whole(row) for case in cases for row in case.rows)
    of = tuple(i for i, case in enumerate(cases) for _ in case.rows)
    if len(rows) > MOST_ROWS:
        raise UnreadableError(f"a box with more than {MOST_ROWS} rows")
    c, g, missed = np.zeros((len(rows), outputs)), np.zeros((len(rows), inputs)), []
    for r, row in enumerate(rows):
        rest = {}
        for i, value in row.outputs.items():
            c[r, i] = _float(value)
            if Fraction(c[r, i]) != value:
                raise UnreadableError("no rule for a coefficient of an output that is no float64")
        for i, value in row.inputs.items():
            g[r, i] = _float(value)
            rest[i] = value - Fraction(g[r, i])
        missed.append({i: value for i, value in rest.items() if value})
    return Rows(rows, of, c, g if g.any() else None, tuple(missed))


def _whole(row: Row) -> Row:
    scale = Fraction(math.lcm(*(a.denominator for a in row.outputs.values())))
    outputs, inputs = ({i: scale * a for i, a in part.items()} for part in (row.outputs, row.inputs))
    return Row(outputs, inputs, scale * row.bound, row.strict)


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise UnreadableError("a coefficient of the property is larger than any float64") from error


def _bounds(rows: Rows, box: Box) -> list[arb]:
    """What a row C y + G x compares with: its bound, less what was left out of its inputs, anywhere in the box."""
    found, balls = [], box.balls.entries()
    for row, rest in zip(rows.rows, rows.missed, strict=True):
        bound = ball(row.bound)
        for i, value in rest.items():
            bound = bound - ball(value) * balls[i]
        found.append(bound)
    return found


# Leaves


@dataclass(eq=False)
class Network:
    """One network with its rules: `tails/1` where it has noise, else `linear/1`."""

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        self.chain = Chain(self.layers)
        self.gaussian = Gaussian(self.chain) if self.chain.random(len(self.layers) - 1) else None
        self.claimed = [k for k in range(len(self.layers) - 1) if self.chain.random(k)]


@dataclass(eq=False)
class Leaves:
    """The rule of all leaves of a tree, with their arrays for each claimed layer: claims (leaves, width), and slopes
    (leaves, 2, width) of the lines below and above, which are hints."""

    network: Network
    lower: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)
    near: list[Floats] | None = None
    slopes: list[Floats] | None = None

    @staticmethod
    def read(node: Node, file: Certificate, network: Network, count: int) -> Leaves:
        """From the certificate, for a number of leaves."""
        rule = node.text("rule")
        wanted = "linear/1" if network.gaussian is None else "tails/1"
        if rule != wanted:
            raise UnreadableError(f"{node.where}: rule {rule[:40]!r} is not known for this network, {wanted} is")
        if network.gaussian is None:
            node.done()
            return Leaves(network)

        def arrays(key: str, *shape: int) -> list[Floats]:
            names = node.items(key)
            if len(names) != len(network.claimed):
                raise UnreadableError(f"{node.where}: {len(names)} arrays for {len(network.claimed)} claimed layers")
            widths = [len(network.layers[k].bias) for k in network.claimed]
            return [file.floats(name, (count, *shape, width)) for name, width in zip(names, widths, strict=True)]

        near = arrays("near") if node.has("near") else None
        slopes = arrays("slopes", 2) if node.has("slopes") else None
        found = Leaves(network, arrays("lower"), arrays("upper"), near, slopes)
        node.done()
        return found

    def fail(self, index: int, box: Box, cases: Sequence[Case], rows: Rows) -> arb:
        """q of a leaf: the best row of each case; a case without rows counts 1."""
        thresholds = [bound.upper() for bound in _bounds(rows, box)]
        if self.network.gaussian is None:
            q, failures = ZERO, self._false(box, rows, thresholds)
        else:
            leaf = self.leaf(index, box)
            q, failures = leaf.q, leaf.failures(rows.outputs, thresholds, rows.inputs)
        for c in range(len(cases)):
            best = arb(1)
            for failure, of in zip(failures, rows.of, strict=True):
                if of == c and surely_less(failure, best):
                    best = failure
            q = q + best
        return at_most_one(q)

    def _false(self, box: Box, rows: Rows, thresholds: list[arb]) -> list[arb]:
        """0 for rows that no x of the box meets, else 1."""
        if not rows.rows:
            return []
        last, ranges = len(self.network.chain) - 1, reached(self.network.chain, box)
        either = zip(
            ranges.walk(last, rows.outputs, rows.inputs), ranges.folded(last, rows.outputs, rows.inputs), strict=True
        )
        return [
            ZERO if any(_exceeds(value, bound, row) for value in values) else arb(1)
            for row, values, bound in zip(rows.rows, either, thresholds, strict=True)
        ]

    def leaf(self, index: int, box: Box) -> Leaf:
        """A leaf with its claims."""
        if self.network.gaussian is None:
            raise RejectedError("claims of a network without noise")
        claims = [
            Claim(Box(self.lower[k][index], self.upper[k][index]), None if self.near is None else self.near[k][index])
            for k in range(len(self.lower))
        ]
        slopes = zip(self.network.claimed, self.slopes or [], strict=False)
        return Leaf(self.network.gaussian, box, claims, {k: values[index] for k, values in slopes})

    def hold(self, leaf: Leaf, point: Box, rows: Rows) -> arb:
        """An upper bound of P_w(some row of a case does not hold at the point): the events, and all its rows."""
        against = [-bound.lower() for bound in _bounds(rows, point)]
        inputs = None if rows.inputs is None else -rows.inputs
        failures = leaf.failures(-rows.outputs, against, inputs) if rows.rows else []
        return at_most_one(sum(failures, leaf.q))


def _exceeds(least: arb, bound: arb, row: Row) -> bool:
    """No value from `least` on meets the row."""
    return surely_at_least(least, bound) if row.strict else surely_less(bound, least)


# Proofs of unsat


def _tree(node: Node, file: Certificate, box: Box) -> list[Box]:
    """Rule `split_inputs/1`: the leaves of a tree, in preorder. Halves are closed and made here."""
    rule = node.text("rule")
    if rule != "split_inputs/1":
        raise UnreadableError(f"{node.where}: rule {rule[:40]!r} is not known")
    inputs, cuts = file.array(node.get("inputs"), "i", (None,)), file.floats(node.get("cuts"), (None,))
    if len(inputs) != len(cuts) or not 0 < len(inputs) <= MOST_NODES:
        raise UnreadableError(f"{node.where}: a tree of {len(inputs)} inputs and {len(cuts)} cuts")
    leaves, waiting = [], [box]
    for place, (i, cut) in enumerate(zip(inputs.tolist(), cuts.tolist(), strict=True)):
        if not waiting:
            raise RejectedError(f"{node.where}: the tree goes on after its last leaf, at node {place}")
        now = waiting.pop()
        if i < 0:
            leaves.append(now)
            continue
        if i >= len(now.lower) or not now.lower[i] <= cut <= now.upper[i]:
            raise RejectedError(f"{node.where}: node {place} cuts input {i} outside of its box")
        lower, upper = now.lower.copy(), now.upper.copy()
        upper[i] = lower[i] = cut
        waiting += [Box(lower, now.upper), Box(now.lower, upper)]
    if waiting:
        raise RejectedError(f"{node.where}: the tree ends before {len(waiting)} of its boxes")
    return leaves


def _items(node: Node, file: Certificate, network: Network, prop: Property, tick: Tick) -> arb:
    """Rule `items/1`: every case of the property is served by an item whose box contains the case's box."""
    rule = node.text("rule")
    if rule != "items/1":
        raise UnreadableError(f"{node.where}: rule {rule[:40]!r} is not known")
    items = node.nodes("items")
    node.done()
    boxes = []
    for item in items:
        sides = file.floats(item.get("box"), (2, prop.inputs))
        boxes.append(Box(sides[0], sides[1]))
    served: list[list[Case]] = [[] for _ in items]
    exact = [([Fraction(v) for v in box.lower.tolist()], [Fraction(v) for v in box.upper.tolist()]) for box in boxes]
    found: dict[tuple[tuple[Fraction, ...], tuple[Fraction, ...]], int] = {}
    for number, case in enumerate(prop.cases):
        key = case.lower, case.upper
        if key not in found:
            inside = [i for i, sides in enumerate(exact) if _contains(sides, case)]
            if not inside:
                raise RejectedError(f"no item's box contains the box of case {number + 1} of the property")
            found[key] = inside[0]
        served[found[key]].append(case)
    total = ZERO
    for item, box, cases in zip(items, boxes, served, strict=True):
        tree = item.node("tree")
        leaves = _tree(tree, file, box)
        rule_of = Leaves.read(tree.node("leaf"), file, network, len(leaves))
        tree.done()
        item.done()
        rows = rows_of(cases, prop.outputs, prop.inputs)
        for index, leaf in enumerate(leaves if cases else []):
            total = total + rule_of.fail(index, leaf, cases, rows)
            tick(index + 1, len(leaves))
    return at_most_one(total)


def _contains(sides: tuple[list[Fraction], list[Fraction]], case: Case) -> bool:
    lower, upper = sides
    return all(a <= b for a, b in zip(lower, case.lower, strict=True)) and all(
        a <= b for a, b in zip(case.upper, upper, strict=True)
    )


# Proofs of sat


def _at_point(node: Node, file: Certificate, network: Network, prop: Property) -> arb:
    """Rule `point/1`: an upper bound of P_w(no case is violated at the point), the point of each case's box."""
    rule = node.text("rule")
    if rule != "point/1":
        raise UnreadableError(f"{node.where}: rule {rule[:40]!r} is not known")
    x = [Fraction(v) for v in file.floats(node.get("x"), (prop.inputs,)).tolist()]
    leaves = None if network.gaussian is None else Leaves.read(node.node("leaf"), file, network, 1)
    node.done()
    best, boxes, tried = (
        arb(1),
        dict[tuple[Fraction, ...], Leaf](),
        dict[tuple[Fraction, ...], list[Fraction] | list[arb]](),
    )
    for case in prop.cases:
        point = tuple(_clipped(v, low, high) for v, low, high in zip(x, case.lower, case.upper, strict=True))
        if any(abs(p - v) > FAR * max(Fraction(1), abs(v)) for p, v in zip(point, x, strict=True)):
            continue
        if not all(_holds(row, point, []) for row in case.constraints):
            continue
        if leaves is None:
            if point not in tried:
                tried[point] = network.chain.at(point)
            found = ZERO if all(_holds(row, point, tried[point]) for row in case.rows) else arb(1)
        else:
            if point not in boxes:
                boxes[point] = leaves.leaf(0, _around(point))
            found = leaves.hold(boxes[point], _around(point), rows_of([case], prop.outputs, prop.inputs))
        best = found if surely_less(found, best) else best
    return best


def _clipped(value: Fraction, lower: Fraction, upper: Fraction) -> Fraction:
    return lower if value < lower else upper if value > upper else value


def _holds(row: Row, x: Sequence[Fraction], y: Sequence[Fraction] | Sequence[arb]) -> bool:
    total = sum((a * x[i] for i, a in row.inputs.items()), Fraction(0))
    exact, balls = total, ball(total)
    for i, a in row.outputs.items():
        value = y[i]
        if isinstance(value, Fraction):
            exact += a * value
        else:
            balls = balls + ball(a) * value
    if any(not isinstance(value, Fraction) for value in y):
        return surely_less(balls, ball(row.bound))
    return exact < row.bound or (exact == row.bound and not row.strict)


def _around(point: Sequence[Fraction]) -> Box:
    """The smallest box of floats with the point inside."""
    nearest = [float(v) for v in point]
    lower = [v if Fraction(v) <= p else np.nextafter(v, -np.inf) for v, p in zip(nearest, point, strict=True)]
    upper = [v if Fraction(v) >= p else np.nextafter(v, np.inf) for v, p in zip(nearest, point, strict=True)]
    return Box(np.array(lower), np.array(upper))


# The whole proof


def proved(node: Node, file: Certificate, model: Model, query: str, prop: Property, safe: bool, tick: Tick) -> arb:
    """q of the whole proof: for `safe` an upper bound of P_w(violated), else one of P_w(safe).

    query : "deterministic" asks the mean network, "probabilistic" the posterior
    """

    def of(part: Node, network: Network) -> arb:
        return _items(part, file, network, prop, tick) if safe else _at_point(part, file, network, prop)

    if query == "deterministic":
        return of(node, Network(model.mean))
    if model.family == "gaussian_diag":
        return of(node, Network(model.layers))
    rule = node.text("rule")
    if rule != "samples/1":
        raise UnreadableError(f"{node.where}: rule {rule[:40]!r} is not known for weight samples")
    parts, q, left = node.nodes("samples"), ZERO, set(range(len(model.samples)))
    node.done()
    for part in parts:
        index = part.whole("index")
        if index not in left:
            raise RejectedError(f"{part.where}: there is no sample {index}, or it comes twice")
        left.remove(index)
        q = q + ball(model.probabilities[index]) * of(part.node("proof"), Network(model.samples[index]))
        part.done()
    q = q + sum((ball(model.probabilities[i]) for i in left), ZERO)
    return at_most_one(q)
