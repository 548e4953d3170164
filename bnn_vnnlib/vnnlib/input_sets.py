"""The input parts of the cases: boxes and further constraints, each distinct one once."""

from __future__ import annotations

from collections.abc import Iterable
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
        self._table = table
        self._common = [i for i in common if isinstance(table[i], Bound)]
        self._common_rows = [i for i in common if isinstance(table[i], Row)]
        everywhere = _intersect(table, [self._common], n)
        own = [[i for i in key if isinstance(table[i], Bound)] for key in keys]
        here = _intersect(table, own, n)
        combine = (np.maximum, np.minimum, np.maximum, np.minimum)
        self.lower, self.upper, self.inner_lower, self.inner_upper = (
            function(one, two) for function, one, two in zip(combine, everywhere, here, strict=True)
        )
        self.empty = (self.lower > self.upper).any(axis=1)
        self._decide_close(own)

    def share(self, case_key: Ints) -> tuple[Ints, Ints]:
        """The keys that stand for the distinct input sets of the cases, by first use; each case's position in them."""
        numbers: dict[Conjunction, int] = {}
        further = [tuple(i for i in key if isinstance(self._table[i], Row)) for key in self.keys]
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
        return [i for i in chain(self._common_rows, self.keys[key]) if isinstance(self._table[i], Row)]

    def boxes(self, used: Ints) -> Boxes:
        """The boxes of these keys."""
        return Boxes(self.lower[used], self.upper[used], self.inner_lower[used], self.inner_upper[used])

    def _decide_close(self, own: list[list[int]]) -> None:
        """Decide with exact numbers where rounding or strictness hides whether lower <= upper."""
        close = (self.lower <= self.upper) & (self.inner_lower > self.inner_upper) & ~self.empty[:, None]
        if not close.any():
            return
        common = _by_column(self._table, self._common)
        known: dict[tuple[int, ...], bool] = {}
        for k in np.flatnonzero(close.any(axis=1)):
            mine = _by_column(self._table, own[k])
            for column in np.flatnonzero(close[k]).tolist():
                bounds = (*common.get(column, ()), *mine.get(column, ()))
                if bounds not in known:
                    known[bounds] = _is_empty([self._table[i] for i in bounds])
                self.empty[k] |= known[bounds]


def _intersect(table: list[Bound | Row], groups: list[list[int]], n: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Outer lower and upper, inner lower and upper bounds (len(groups), n) of the boxes of the groups."""
    flat = [table[i] for group in groups for i in group]
    group = np.repeat(np.arange(len(groups)), [len(each) for each in groups])
    column = np.array([bound.column for bound in flat], np.int64)  # type: ignore[union-attr]
    is_upper = np.array([bound.upper for bound in flat], bool)  # type: ignore[union-attr]
    strict = np.array([bound.strict for bound in flat], bool)
    down = np.array([bound.down for bound in flat])
    up = np.array([bound.up for bound in flat])
    # A strict bound that float64 holds excludes itself; the next number satisfies it.
    step = strict & (down == up)
    above = np.where(step, np.nextafter(up, np.inf), up)
    below = np.where(step, np.nextafter(down, -np.inf), down)
    shape = (len(groups), n)
    result = []
    for select, values, function, start in (
        (~is_upper, down, np.maximum, -np.inf),
        (is_upper, up, np.minimum, np.inf),
        (~is_upper, above, np.maximum, -np.inf),
        (is_upper, below, np.minimum, np.inf),
    ):
        array = np.full(shape, start)
        function.at(array, (group[select], column[select]), values[select])
        result.append(array + 0.0)  # -0.0 becomes 0.0
    return tuple(result)  # type: ignore[return-value]


def _by_column(table: list[Bound | Row], bounds: Iterable[int]) -> dict[int, list[int]]:
    grouped: dict[int, list[int]] = {}
    for i in bounds:
        grouped.setdefault(table[i].column, []).append(i)  # type: ignore[union-attr]
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
