"""A property of two networks over (x_f, d) with d = x_f - x_g, for the networks in differences (`network.pairs`).

It says the same of the same pairs of inputs: x_f and d are in boxes, and what these do not say stays as constraints.

1. Rows. a.f + b.g becomes a'.f + b'.g + t.(f - g) with a' = a - t and b' = b + t, where t takes what has opposite signs
   in a and b. An output that no path connects with an input in which x_f and x_g may differ is one number for both
   copies of one network (`may_change`), so that a f_i + b g_i = (a + b) f_i there. Inputs: p.x_f + q.x_g =
   (p + q).x_f - q.d. Sums that float64 does not hold make the transformation fail.
2. The box of d. d_j >= l and d_j <= u from the boxes of x_f and x_g, rounded outward, and from every constraint
   p.x_f + q.x_g <= b that is one on d_j alone (p = -q with a single entry +-1); that is what T says, so no pair of T is
   lost. Such a constraint holds of d_j's inner box exactly and is not kept. All others are.
3. Where d_j is 0, both inputs are one number: its box is the intersection of both. Elsewhere the box of x_g is kept as
   constraints x_f - d in [l, u], with the bounds and inner bounds of the box.
4. Quotients, for rows t.(f - g) < b with b <= 0 (or <= b with b < 0). Let the box D of d contain 0, and d in D be not
   0. With s = max over j of d_j / D_j, D_j the end of D on the side of d_j, s is in (0, 1] and d / s lies in D with
   some coordinate at its end: on a face. If t.(f - g) / s >= 0 for all d / s on the faces, s in (0, 1] and x_f, then
   t.(f - g) >= 0 on all of D (at d = 0 both copies agree), and no such row holds. So a face is a box of its own,
   whose cases have these rows alone, strict and with bound 0. It forgets all other constraints, which loses no pair.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from bnn_vnnlib.arrays import Flags, Floats
from bnn_vnnlib.network.network import Model
from bnn_vnnlib.network.pairs import in_differences, may_change
from bnn_vnnlib.question.property import Boxes, HalfSpaces, Polynomial, Property, input_feasible, row_false


@dataclass(frozen=True, eq=False)
class Differences:
    """A question about two networks, and the same in differences.

    Attributes
    ----------
    property : over (x_f, x_g) and (f, g), as it was asked
    model, inner : over (x_f, d) and (f, g, f - g); of quotients over (x_f, d / t, d) and (f, g, (f - g) / t)
    only_safe : what is proved to be safe here is safe; nothing else follows
    """

    property: Property
    model: Model
    inner: Property
    only_safe: bool = False


def differences(model: Model, property: Property) -> list[Differences]:
    """The question in differences, in several ways, the most promising first; [] where shapes or float64 forbid it."""
    n, m = property.signature.input_size // 2, property.signature.output_size // 2
    boxes, constraints, pair = property.boxes, property.constraints, model.pair
    odd = 2 * n != property.signature.input_size or 2 * m != property.signature.output_size
    if property.second is None or pair is None or odd or not len(boxes):
        return []
    label = property.second.name
    rows, inputs = property.rows, _inputs(property.rows.inputs, n)
    further = _inputs(constraints.inputs, n)
    made = None if isinstance(further, str) else _sets(boxes, constraints, further, n)
    if made is None or isinstance(inputs, str):
        return []
    ranges = _narrower(boxes, made[0], n)
    joined = in_differences(model, ranges, label=label)
    if joined is None:
        return []
    outputs = _outputs(rows.outputs, m)
    apart = np.any((made[0].lower[:, n:] != 0) | (made[0].upper[:, n:] != 0), axis=0)
    same = pair.coupling == "same" and not apart.any()
    if pair.coupling == "same":
        one = ~may_change(model, apart) & _exact(rows.outputs[:, :m], rows.outputs[:, m:]).all(axis=0)
        outputs[:, np.tile(one, 3)] = 0.0
        outputs[:, :m][:, one] = (rows.outputs[:, :m] + rows.outputs[:, m:])[:, one]
    inner = replace(
        property, signature=joined.network.signature, boxes=made[0], constraints=made[1], hidden=(), second=None,
        rows=replace(rows, outputs=outputs, inputs=inputs), version=(2, 0),
        polynomials=tuple(tuple(_substituted(one, n) for one in each) for each in property.polynomials),
    )  # fmt: skip
    inner = _without_idle_cases(inner)
    found = [Differences(property, joined, inner)]
    if pair.coupling == "independent" and model.posterior is not None:
        copies = in_differences(model, ranges, form="copies", label=label)
        found += [] if copies is None else [Differences(property, copies, inner)]
    faces = None if same or pair.coupling not in ("same", "shared") else _faces(inner, n, m)
    quotients = None if faces is None else in_differences(model, ranges, form="quotients", label=label)
    if faces is not None and quotients is not None:
        faces = replace(faces, signature=quotients.network.signature)
        found.append(Differences(property, quotients, faces, only_safe=True))
    return found


def _without_idle_cases(inner: Property) -> Property:
    """The property without cases one row of which is no longer about anything, and false."""
    rows = inner.rows
    about = rows.outputs.any(axis=1) | (False if rows.inputs is None else rows.inputs.any(axis=1))
    gone = np.unique(rows.owner[~about & row_false(0.0, rows.bound, rows.strict)])
    if not len(gone):
        return inner
    case = np.setdiff1d(np.arange(inner.num_cases), gone)
    kept = np.isin(rows.owner, case)
    left = HalfSpaces(
        rows.outputs[kept], None if rows.inputs is None else rows.inputs[kept], rows.bound[kept],
        rows.inner_bound[kept], rows.strict[kept], np.searchsorted(case, rows.owner[kept]),
    )  # fmt: skip
    return replace(inner, case_box=inner.case_box[case], rows=left)


def _faces(inner: Property, n: int, m: int) -> Property | None:
    """The property over the faces of the boxes of d, for quotients (step 4); None where a case has no row in
    differences alone, or a box leaves out d = 0.
    """
    rows, boxes = inner.rows, inner.boxes
    alone = ~rows.outputs[:, : 2 * m].any(axis=1) & ((rows.bound < 0) | ((rows.bound == 0) & rows.strict))
    if rows.inputs is not None:
        alone &= ~rows.inputs.any(axis=1)
    lower, upper = boxes.lower[:, n:], boxes.upper[:, n:]
    if not np.isin(np.arange(inner.num_cases), rows.owner[alone]).all() or (lower > 0).any() or (upper < 0).any():
        return None
    kept = np.flatnonzero(alone)
    sides: tuple[list[Floats], list[Floats]] = ([], [])
    box_of: list[int] = []
    for box in range(len(boxes)):
        for end, far in ((0, lower), (1, upper)):
            for j in np.flatnonzero(far[box]).tolist():
                d = [lower[box].copy(), upper[box].copy()]
                d[1 - end][j] = far[box, j]
                for side, quotient, whole, x in zip(sides, d, (lower, upper), (boxes.lower, boxes.upper), strict=True):
                    side.append(np.concatenate([x[box, :n], quotient, whole[box]]))
                box_of.append(box)
    cases = [(face, case) for face, box in enumerate(box_of) for case in np.flatnonzero(inner.case_box == box).tolist()]
    if not cases:
        return None
    owned = [np.flatnonzero(rows.owner[kept] == case) for _, case in cases]
    which, owner = kept[np.concatenate(owned)], np.repeat(np.arange(len(cases)), [len(part) for part in owned])
    none = np.zeros(len(which))
    ends = [np.array(side) for side in sides]
    return replace(
        inner, boxes=Boxes(ends[0], ends[1], ends[0].copy(), ends[1].copy()),
        constraints=HalfSpaces(np.zeros((0, 0)), None, np.zeros(0), np.zeros(0), np.zeros(0, bool), np.zeros(0, int)),
        case_box=np.array([face for face, _ in cases]),
        rows=HalfSpaces(rows.outputs[which], None, none, none.copy(), np.ones(len(which), bool), owner),
        polynomials=(),
    )  # fmt: skip


def _outputs(rows: Floats, m: int) -> Floats:
    """Coefficients (R, 3 m) of (f, g, f - g) that say the same as `rows` (R, 2 m) of (f, g) (step 1)."""
    a, b = rows[:, :m], rows[:, m:]
    t = np.where(a * b < 0, np.sign(a) * np.minimum(np.abs(a), np.abs(b)), 0.0)
    t = np.where(_exact(a, -t) & _exact(b, t), t, 0.0)
    return np.concatenate([a - t, b + t, t], axis=1)


def _inputs(rows: Floats | None, n: int) -> Floats | str | None:
    """Coefficients (R, 2 n) of (x_f, d) that say the same as `rows` (R, 2 n) of (x_f, x_g) (step 1); a word where
    float64 does not hold the sums.
    """
    if rows is None or rows.shape[1] == 0:
        return rows
    p, q = rows[:, :n], rows[:, n:]
    if not _exact(p, q).all():
        return "rounded"
    return np.concatenate([p + q, -q], axis=1)


def _substituted(one: Polynomial, n: int) -> Polynomial:
    """A constraint with products of (x_f, x_g) as one of (x_f, d): x_g = x_f - d, multiplied out (step 1)."""
    found: dict[tuple[int, ...], Fraction] = {}
    for a, inputs in one.terms:
        for choice in itertools.product(*([(j, 1)] if j < n else [(j - n, 1), (j, -1)] for j in inputs)):
            columns = tuple(sorted(j for j, _ in choice))
            found[columns] = found.get(columns, Fraction(0)) + a * math.prod(sign for _, sign in choice)
    return replace(one, terms=tuple((a, columns) for columns, a in found.items() if a))


def _exact(x: Floats, y: Floats) -> Flags:
    """Whether x + y is computed without error (Knuth's TwoSum)."""
    total = x + y
    part = total - x
    exact: Flags = ((x - (total - part)) + (y - part)) == 0
    return exact


def _sets(boxes: Boxes, constraints: HalfSpaces, rows: Floats | None, n: int) -> tuple[Boxes, HalfSpaces] | None:
    """The boxes of (x_f, d), and the constraints that these do not say (steps 2 and 3); None where a box has nothing in
    it.
    """
    x = [side[:, :n].copy() for side in (boxes.lower, boxes.upper, boxes.inner_lower, boxes.inner_upper)]
    y = [side[:, n:] for side in (boxes.lower, boxes.upper, boxes.inner_lower, boxes.inner_upper)]
    lower, upper = (_rounded(x[i], -y[1 - i], end) for i, end in ((0, -np.inf), (1, np.inf)))
    d = [lower, upper, lower.copy(), upper.copy()]
    rows = np.zeros((0, 2 * n)) if rows is None or rows.shape[1] == 0 else rows
    of_one = (np.count_nonzero(rows, axis=1) == 1) & (np.abs(rows[:, n:]).sum(1) == 1)
    for r in np.flatnonzero(of_one).tolist():
        box, j = int(constraints.owner[r]), int(np.flatnonzero(rows[r, n:])[0])
        bound, inner = float(constraints.bound[r]), float(constraints.inner_bound[r])
        if constraints.strict[r]:
            inner = float(np.nextafter(inner, -np.inf))
        if rows[r, n + j] > 0:
            d[1][box, j], d[3][box, j] = min(d[1][box, j], bound), min(d[3][box, j], inner)
        else:
            d[0][box, j], d[2][box, j] = max(d[0][box, j], -bound + 0.0), max(d[2][box, j], -inner + 0.0)
    same = (d[0] == 0) & (d[1] == 0) & (d[2] == 0) & (d[3] == 0)
    for i, meet in enumerate((np.maximum, np.minimum, np.maximum, np.minimum)):
        x[i] = np.where(same, meet(x[i], y[i]), x[i])
    if (x[0] > x[1]).any() or (d[0] > d[1]).any():
        return None
    owner, column = np.nonzero(~same)
    kept = ~of_one
    parts = [(rows[kept], constraints.bound[kept], constraints.inner_bound[kept], constraints.strict[kept],
              constraints.owner[kept])]  # fmt: skip
    for sign, outer, inner_side in ((1.0, y[1], y[3]), (-1.0, y[0], y[2])):  # x - d <= u, d - x <= -l
        coefficients, place = np.zeros((len(column), 2 * n)), np.arange(len(column))
        coefficients[place, column], coefficients[place, n + column] = sign, -sign
        parts.append(
            (
                coefficients,
                sign * outer[owner, column],
                sign * inner_side[owner, column],
                np.zeros(len(column), bool),
                owner,
            )
        )
    values, ends, inner_ends, strict, owners = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(owners, kind="stable")
    made = HalfSpaces(
        np.zeros((len(order), 0)), values[order], ends[order], np.minimum(ends, inner_ends)[order], strict[order],
        owners[order],
    )  # fmt: skip
    return Boxes(*(np.concatenate(pair, axis=1) for pair in zip(x, d, strict=True))), made


def _narrower(boxes: Boxes, made: Boxes, n: int) -> tuple[Floats, Floats]:
    """The range of x_g over all boxes, infinite where x_f - d has none that is wider."""
    lower, upper = boxes.lower[:, n:].min(0), boxes.upper[:, n:].max(0)
    same = ~(made.lower[:, n:].any(0) | made.upper[:, n:].any(0))
    low = np.where(same, made.lower[:, :n], made.lower[:, :n] - made.upper[:, n:]).min(0)
    high = np.where(same, made.upper[:, :n], made.upper[:, :n] - made.lower[:, n:]).max(0)
    return np.where(low < lower, lower, -np.inf), np.where(high > upper, upper, np.inf)


def _rounded(x: Floats, y: Floats, towards: float) -> Floats:
    """x + y, moved one float further where it was rounded."""
    return np.where(_exact(x, y), x + y, np.nextafter(x + y, towards)) + 0.0


def pairs_near(asked: Differences, points: Floats) -> list[Floats]:
    """Pairs (x_f, x_g) in T near each point (x_f, d) of (P, 2 n), arrays (2 n,) in order of points.

    Numbers are rounded to the model's float32, or to float64 and, as differences of those are rarely exact, to float32;
    x_g is tried on the side of x_f first, where |d| is no larger than asked, and then on the other. Where the box of
    x_f is a point, that number is kept as it is.
    """
    property, n = asked.property, points.shape[1] // 2
    kinds = {variable.element_type for variable in asked.model.network.signature.inputs}
    types: tuple[type[np.floating], ...] = (np.float64, np.float32)  # the second: exact differences
    types = types[1:] if kinds == {"float32"} else types
    boxes = property.boxes
    found = []
    for point, kind in itertools.product(points, types):
        for box in np.unique(property.case_box).tolist():
            low, high = boxes.inner_lower[box], boxes.inner_upper[box]
            x = _near(np.clip(point[:n], low[:n], np.maximum(low[:n], high[:n])), low[:n], high[:n], kind)
            goal = np.where(point[n:] == 0, x, x - point[n:])
            rounded = ~_exact(x, -point[n:])
            for towards in (x, 2 * goal - x):
                goal = np.where(rounded, np.nextafter(goal, towards), goal)
                y = goal.astype(kind).astype(np.float64)
                beyond = np.where(towards >= goal, y < goal, y > goal)
                y = np.where(beyond, np.nextafter(y.astype(kind), towards.astype(kind)).astype(np.float64), y)
                y = np.where(point[n:] == 0, x, _near(np.clip(y, low[n:], np.maximum(low[n:], high[n:])),
                                                      low[n:], high[n:], kind))  # fmt: skip
                pair = np.concatenate([x, y])
                if input_feasible(property, pair, box):
                    found.append(pair)
                    break
            else:
                continue
            break
    return found


def _near(x: Floats, low: Floats, high: Floats, kind: type[np.floating]) -> Floats:
    """A number of that type in [low, high] next to x, where there is one."""
    short = x.astype(kind)
    short = np.where(short.astype(np.float64) < low, np.nextafter(short, kind(np.inf)), short)
    short = np.where(short.astype(np.float64) > high, np.nextafter(short, kind(-np.inf)), short)
    rounded = short.astype(np.float64)
    return np.where((rounded >= low) & (rounded <= high), rounded, x)


def in_inner(pair: Floats) -> Floats | None:
    """The point (x_f, d) of a pair, or None where float64 does not hold the difference."""
    n = len(pair) // 2
    x, y = pair[:n], pair[n:]
    return np.concatenate([x, x - y]) if _exact(x, -y).all() else None
