"""The normal form of a property: the set V of violating pairs (x, y), as arrays.

V is a union of cases. A case is a box of inputs, further linear constraints on the inputs, and a conjunction of
rows over the outputs (and, where the file says so, the inputs). Everything is stored as arrays over all cases,
because real files hold up to ten thousand of them.

Numbers are read exactly and rounded twice: *outward* (the set grows: what a proof of safety must cover) and
*inward* (the set shrinks: what a witness must satisfy). For a number that float64 holds exactly the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, SoundnessError
from bnn_vnnlib.signature import Hidden, Signature


def _frozen(array: NDArray) -> NDArray:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Boxes:
    """B boxes of inputs; n = number of scalar inputs. All bounds are finite.

    Attributes
    ----------
    lower, upper : (B, n) rounded outward; lower <= upper; a strict bound is closed here
    inner_lower, inner_upper : (B, n) the smallest and largest float64 that satisfy the file's bounds exactly
        (strict ones strictly). inner_lower > inner_upper where no float64 does, as in x == 0.1.
    """

    lower: Floats
    upper: Floats
    inner_lower: Floats
    inner_upper: Floats

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "inner_lower", "inner_upper"):
            _frozen(getattr(self, name))
        if not (np.isfinite(self.lower).all() and np.isfinite(self.upper).all()):
            raise SoundnessError("an input box must be finite")
        if not (self.lower <= self.upper).all():
            raise SoundnessError("an input box must not be empty")

    def __len__(self) -> int:
        return len(self.lower)


@dataclass(frozen=True, eq=False)
class HalfSpaces:
    """R rows a.y + g.x <= b (or < b). Coefficients are exact in float64.

    Where the file's coefficients are not, the whole row is multiplied by the common denominator; what then remains
    inexact is a coefficient of an input, and its error over the whole box is in the bounds.

    Attributes
    ----------
    outputs : (R, m) the a's
    inputs : (R, n) the g's, or None if no row involves an input
    bound, inner_bound : (R,) b rounded up (outward) and down (inward)
    strict : (R,) True for <
    owner : (R,) index of the case (for rows) or of the box (for constraints on inputs), nondecreasing
    """

    outputs: Floats
    inputs: Floats | None
    bound: Floats
    inner_bound: Floats
    strict: NDArray[np.bool_]
    owner: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("outputs", "bound", "inner_bound", "strict", "owner"):
            _frozen(getattr(self, name))
        if self.inputs is not None:
            _frozen(self.inputs)
        if not (self.inner_bound <= self.bound).all():
            raise SoundnessError("a row's inner bound must not exceed its outer bound")
        if (np.diff(self.owner) < 0).any():
            raise SoundnessError("rows must be grouped by their owner")

    def __len__(self) -> int:
        return len(self.bound)


@dataclass(frozen=True)
class Polynomial:
    """A constraint with products of inputs: sum of coefficient * product <= bound (or < bound), in exact numbers.

    Attributes
    ----------
    terms : (coefficient, inputs) each; an input stands there as often as it is a factor
    """

    terms: tuple[tuple[Fraction, tuple[int, ...]], ...]
    bound: Fraction
    strict: bool

    def most(self, lower: Sequence[Fraction], upper: Sequence[Fraction]) -> Fraction:
        """What the left side is at most for inputs between (n,) and (n,): its value where these are one point."""
        return sum((span(c, inputs, lower, upper)[1] for c, inputs in self.terms), Fraction(0))

    def holds(self, lower: Sequence[Fraction], upper: Sequence[Fraction], tolerance: float = 0.0) -> bool:
        """Whether the constraint is proved for all inputs between these ends."""
        return bool(row_true(self.most(lower, upper), self.bound + Fraction(tolerance), self.strict))


def span(
    coefficient: Fraction, inputs: Iterable[int], lower: Sequence[Fraction], upper: Sequence[Fraction]
) -> tuple[Fraction, Fraction]:
    """Least and largest value of coefficient * product of inputs, each factor by itself between (n,) and (n,)."""
    low = high = coefficient
    for j in inputs:
        ends = [side * end for side in (low, high) for end in (lower[j], upper[j])]
        low, high = min(ends), max(ends)
    return low, high


@dataclass(frozen=True)
class Second:
    """The second network of a property about two: its variables follow those of the first, kind by kind.

    Attributes
    ----------
    name : as declared
    relation : to the first: "equal-to" (the same file), "isomorphic-to" (the same graph), or None
    inputs, hidden, outputs : how many variables of each kind are its own
    """

    name: str
    relation: str | None
    inputs: int
    hidden: int
    outputs: int


@dataclass(frozen=True, eq=False)
class Property:
    """A property: V = union over cases c of {(x, y): x in box[case_box[c]], constraints of that box, rows of c}.

    Attributes
    ----------
    version : VNN-LIB version of the file, (1, 0) or (2, minor)
    network : name declared for the (first) network (2.x), else None
    signature : the declared variables, of two networks the inputs of the first, then those of the second, and the
        outputs alike; in a 1.0 file one input "X" of shape (n,) and one output "Y" of shape (m,), both "real"
    boxes : (B,) distinct input sets; two cases with the same box and the same constraints share one
    constraints : further linear constraints on x; `owner` is a box, `outputs` has shape (Q, 0)
    case_box : (C,) the box of each case
    rows : `owner` is a case. A case without rows is violated wherever its x is feasible.
    options : from comment lines `; bnn-vnnlib: key=value ...`
    notes : remarks for the user, e.g. cases dropped because their input set is empty
    hidden : hidden nodes that a 2.x file declares; no constraint is about them, but a witness lists their values
    width : of the boxes, as a share of those of the file (`shrunk`)
    second : the second network, if the property is about two
    polynomials : of each box, constraints with products of inputs; () where there are none at all
    """

    version: tuple[int, int]
    network: str | None
    signature: Signature
    boxes: Boxes
    constraints: HalfSpaces
    case_box: NDArray[np.int64]
    rows: HalfSpaces
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hidden: tuple[Hidden, ...] = ()
    width: float = 1.0
    second: Second | None = None
    polynomials: tuple[tuple[Polynomial, ...], ...] = ()

    def __post_init__(self) -> None:
        _frozen(self.case_box)
        if self.polynomials and len(self.polynomials) != len(self.boxes):
            raise SoundnessError("constraints with products belong to boxes")
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    @property
    def declared(self) -> tuple[tuple[str, int], ...]:
        """The variables in the order of the file: (kind, index) with kind "input", "hidden" or "output"."""
        every = {"input": len(self.signature.inputs), "hidden": len(self.hidden), "output": len(self.signature.outputs)}
        starts = dict(every)
        if self.second is not None:
            own = {"input": self.second.inputs, "hidden": self.second.hidden, "output": self.second.outputs}
            starts = {kind: count - own[kind] for kind, count in every.items()}
        first = [(kind, i) for kind in every for i in range(starts[kind])]
        return (*first, *((kind, i) for kind, count in every.items() for i in range(starts[kind], count)))

    @property
    def num_cases(self) -> int:
        """C: number of cases; 0 means that V is empty for every network."""
        return len(self.case_box)

    def shrunk(self, width: float) -> Property:
        """These violations over boxes around the same centres, whose sides are `width` times as long, in [0, 1].

        The new ends are floats, so the boxes mean what they say: they lie in the old ones, and where an interval holds
        no float64 it stays as it is. Constraints stay.

        Raises
        ------
        OptionError : a width outside of [0, 1]
        """
        if not 0 <= width <= 1:
            raise OptionError(f"boxes are shrunk to a share of their widths in [0, 1], not {width}")
        old = self.boxes
        low, high = old.inner_lower, old.inner_upper
        middle = np.clip(low / 2 + high / 2, low, np.maximum(low, high))  # without overflow or underflow
        lower = np.clip(middle - width * (middle - low), low, middle)
        upper = np.clip(middle + width * (high - middle), middle, high)
        none = low > high
        ends = [np.where(none, end, new) for end, new in (
            (old.lower, lower), (old.upper, upper), (low, lower), (high, upper)
        )]  # fmt: skip
        note = f"the input intervals are shrunk to {width:g} of their widths: the file asks for more"
        return replace(self, boxes=Boxes(*ends), width=width * self.width, notes=(*self.notes, note))


def row_false(least: Any, bound: Any, strict: Any) -> Any:
    """Whether no value from `least` on satisfies the row `value <= bound`, or `value < bound` where strict.

    The one place where ties count: a value at the bound satisfies the row unless it is strict. For numbers of one kind:
    tensors, arrays or fractions. Comparisons of floats are exact, so rounding is paid for before: where `least` is
    rounded down and `bound` outward (up), then value >= least > bound (or = bound, and the row is strict) holds for
    the real numbers, too. NaN shows nothing, here and in `row_true`.
    """
    return (least > bound) | ((least == bound) & strict)


def row_true(most: Any, bound: Any, strict: Any) -> Any:
    """Whether every value up to `most` satisfies the row.

    That is value <= most < bound, or most = bound and the row is not strict: `row_false` with its sides and its ties
    exchanged. `most` is to be rounded up, and `bound` inward (down).
    """
    return row_false(bound, most, strict ^ True)


def input_feasible(property: Property, x: Floats, box: int, *, tolerance: float = 0.0) -> bool:
    """Whether the input x (n,) lies in a box and satisfies its constraints, exactly.

    Method: float comparisons with the inner bounds, rational arithmetic for the constraints. Where no float64
    satisfies the file's bounds (x == 0.1), the nearest ones do.
    Guarantee: with `tolerance` 0, True means that the real point x satisfies the file's constraints (nearest: see
    above). Otherwise every bound may be missed by `tolerance`.
    """
    x = np.asarray(x, np.float64)
    inside = _in_boxes(property.boxes, x, slice(box, box + 1), tolerance)
    return bool(inside[0]) and _constrained(property, x, box, tolerance)


def violated_case(property: Property, x: Floats, y: Floats, *, tolerance: float = 0.0) -> int | None:
    """Index of a case that holds at the input x (n,) and the output y (m,), or None: whether (x, y) is in V, exactly.

    Guarantee: as `input_feasible`; `tolerance` concerns the conditions on inputs alone, rows always hold exactly,
    with their inner bounds and strictly where the file says so.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if not np.isfinite(y).all():
        return None
    boxes = np.flatnonzero(_in_boxes(property.boxes, x, slice(None), tolerance))
    feasible = [box for box in boxes.tolist() if _constrained(property, x, box, tolerance)]
    for case in np.flatnonzero(np.isin(property.case_box, feasible)).tolist():
        if _hold(property.rows, case, x, y, 0.0):
            return case
    return None


def _constrained(property: Property, x: Floats, box: int, tolerance: float) -> bool:
    """Whether x (n,) satisfies all further constraints of a box, in rational arithmetic."""
    if not _hold(property.constraints, box, x, x[:0], tolerance):
        return False
    point = [Fraction(value) for value in x.tolist()] if property.polynomials else []
    return all(one.holds(point, point, tolerance) for one in (property.polynomials or {box: ()})[box])


def _in_boxes(boxes: Boxes, x: Floats, which: slice, tolerance: float) -> NDArray[np.bool_]:
    lower, upper = boxes.inner_lower[which], boxes.inner_upper[which]
    no_float = lower > upper
    lower = np.where(no_float, boxes.lower[which], lower)
    upper = np.where(no_float, boxes.upper[which], upper)
    above, below = np.less_equal(lower - tolerance, x), np.less_equal(x, upper + tolerance)  # False for NaN
    inside: NDArray[np.bool_] = np.all(above & below, axis=1)
    return inside


def _hold(rows: HalfSpaces, owner: int, x: Floats, y: Floats, tolerance: float) -> bool:
    """Whether all rows of one owner hold at (x, y), in rational arithmetic."""
    first, last = np.searchsorted(rows.owner, (owner, owner + 1))
    for r in range(first, last):
        total = _dot(rows.outputs[r], y)
        if rows.inputs is not None:
            total += _dot(rows.inputs[r], x)
        bound = Fraction(float(rows.inner_bound[r])) + Fraction(tolerance)
        if not row_true(total, bound, bool(rows.strict[r])):
            return False
    return True


def _dot(a: Floats, v: Floats) -> Fraction:
    (used,) = np.nonzero(a)
    terms = zip(a[used].tolist(), v[used].tolist(), strict=True)
    return sum((Fraction(one) * Fraction(other) for one, other in terms), Fraction(0))
