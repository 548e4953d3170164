"""The input parts of the cases: boxes and further constraints, each distinct one once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.property import Boxes
from bnn_vnnlib.vnnlib.dnf import Conjunction
from bnn_vnnlib.vnnlib.linear import Bound, Row
from bnn_vnnlib.vnnlib.literals import read_literal

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class InputSets:
    """K input sets: the common constraints and those of one key each. Arrays (K, n); unbounded is infinite.

    `empty` (K,) tells exactly whether a box holds no real point; the further constraints are not looked at.
    """

    def __init__(self, table: list[Bound | Row], common: list[int], keys: list[Conjunction], n: int) -> None:
        self.keys = keys
        self._bounds = {i: part for i, part in enumerate(table) if isinstance(part, Bound)}
        self._common = common
        everywhere = self._intersect([common], n)
        here = self._intersect(keys, n)
        combine = (np.maximum, np.minimum, np.maximum, np.minimum)
        self.lower, self.upper, self.inner_lower, self.inner_upper = (
            function(one, two) for function, one, two in zip(combine, everywhere, here, strict=True)
        )
        self.empty: NDArray[np.bool_] = np.any(np.greater(self.lower, self.upper), axis=1)
        self._decide_close()

    def share(self, case_key: Ints) -> tuple[Ints, Ints]:
        """The keys that stand for the distinct input sets of the cases, by first use; each case's position in them."""
        numbers: dict[Conjunction, int] = {}
        further = [tuple(i for i in key if i not in self._bounds) for key in self.keys]
        numbered = np.array([numbers.setdefault(rows, len(numbers)) for rows in further], float)
        arrays = (self.lower, self.upper, self.inner_lower, self.inner_upper, numbered[:, None])
        merged = np.ascontiguousarray(np.concatenate(arrays, axis=1))
        as_bytes = merged.view(np.dtype((np.void, merged.shape[1] * merged.itemsize))).ravel()
        _, group = np.unique(as_bytes, return_inverse=True)
        _, first, position = np.unique(group[case_key], return_index=True, return_inverse=True)
        order = np.argsort(first)
        return case_key[first[order]], np.argsort(order)[position]

    def rows(self, key: int) -> list[int]:
        """The constraints of a key (common ones too) that are no bounds."""
        return [i for i in chain(self._common, self.keys[key]) if i not in self._bounds]

    def boxes(self, used: Ints) -> Boxes:
        """The boxes of these keys."""
        return Boxes(self.lower[used], self.upper[used], self.inner_lower[used], self.inner_upper[used])

    def _intersect(self, groups: Sequence[Sequence[int]], n: int) -> tuple[Floats, ...]:
        """Outer lower and upper, inner lower and upper bounds (len(groups), n) of the boxes of the groups."""
        owned = [(number, self._bounds[i]) for number, group in enumerate(groups) for i in group if i in self._bounds]
        group = np.array([number for number, _ in owned], np.int64)
        column = np.array([bound.column for _, bound in owned], np.int64)
        is_upper = np.array([bound.upper for _, bound in owned], np.bool_)
        strict = np.array([bound.strict for _, bound in owned], np.bool_)
        down = np.array([bound.down for _, bound in owned], np.float64)
        up = np.array([bound.up for _, bound in owned], np.float64)
        # A strict bound that float64 holds excludes itself; the next number satisfies it.
        step = strict & (down == up)
        above = np.where(step, np.nextafter(up, np.inf), up)
        below = np.where(step, np.nextafter(down, -np.inf), down)
        result = []
        for select, values, tighter, start in (
            (~is_upper, down, np.maximum, -np.inf),
            (is_upper, up, np.minimum, np.inf),
            (~is_upper, above, np.maximum, -np.inf),
            (is_upper, below, np.minimum, np.inf),
        ):
            array = np.full((len(groups), n), start)
            tighter.at(array, (group[select], column[select]), values[select])
            result.append(array + 0.0)  # -0.0 becomes 0.0
        return tuple(result)

    def _decide_close(self) -> None:
        """Decide with exact numbers where rounding or strictness hides whether a box is empty."""
        close = np.greater(self.inner_lower, self.inner_upper) & ~self.empty[:, None]
        if not close.any():
            return
        common = self._by_column(self._common)
        known: dict[tuple[int, ...], bool] = {}
        for k in np.flatnonzero(close.any(axis=1)).tolist():
            own = self._by_column(self.keys[k])
            for column in np.flatnonzero(close[k]).tolist():
                bounds = (*common.get(column, ()), *own.get(column, ()))
                if bounds not in known:
                    known[bounds] = _is_empty([self._bounds[i] for i in bounds])
                self.empty[k] |= known[bounds]

    def _by_column(self, parts: Iterable[int]) -> dict[int, list[int]]:
        grouped: dict[int, list[int]] = {}
        for i in parts:
            if i in self._bounds:
                grouped.setdefault(self._bounds[i].column, []).append(i)
        return grouped


def _is_empty(bounds: list[Bound]) -> bool:
    """Whether no real number satisfies all the bounds; exact."""
    if len(bounds) == 2 and bounds[0].exact == bounds[1].exact and bounds[0].upper != bounds[1].upper:
        return bounds[0].strict or bounds[1].strict  # the common case of a point, without fractions
    lowers = [(_exact(bound), bound.strict) for bound in bounds if not bound.upper]
    uppers = [(_exact(bound), bound.strict) for bound in bounds if bound.upper]
    low, high = max(value for value, _ in lowers), min(value for value, _ in uppers)
    strict = (low, True) in lowers or (high, True) in uppers
    return low > high or (low == high and strict)


def _exact(bound: Bound) -> Fraction:
    return bound.exact if isinstance(bound.exact, Fraction) else read_literal(bound.exact)
