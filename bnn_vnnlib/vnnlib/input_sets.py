"""The input parts of the cases: boxes and further constraints, each distinct one once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.question.property import Boxes
from bnn_vnnlib.vnnlib.check import Table
from bnn_vnnlib.vnnlib.groups import Groups

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class InputSets:
    """K input sets. Arrays (K, n); unbounded is infinite.

    `empty` (K,) tells exactly whether a box holds no real point; the further constraints are not looked at.

    Parameters
    ----------
    table : all constraints
    on_inputs : which of them concern nothing but inputs
    common : those on inputs that hold in every set
    own : for each set, its own constraints on inputs
    n : number of inputs
    """

    def __init__(self, table: Table, on_inputs: Flags, common: Ints, own: Groups, n: int) -> None:
        self._table, self._common, self._own = table, Groups.one(common), own
        self._is_bound = (table.columns.lengths == 1) & on_inputs
        everywhere = self._tightened([np.full((1, n), start) for start in (-np.inf, np.inf) * 2], self._common)
        self.lower, self.upper, self.inner_lower, self.inner_upper = self._tightened(
            [side.repeat(len(own), axis=0) for side in everywhere], own
        )
        self.empty: Flags = np.any(np.greater(self.lower, self.upper), axis=1)
        self._decide_close()

    def share(self) -> tuple[Ints, Ints]:
        """Of the sets that are not empty, the first of each distinct kind; for every set its kind, -1 if empty."""
        further = self._own.where(~self._is_bound[self._own.items]).numbered().tolist()
        sides = np.concatenate((self.lower, self.upper, self.inner_lower, self.inner_upper), axis=1)
        kind = np.full(len(sides), -1)
        first: list[int] = []
        numbers: dict[tuple[int, bytes], int] = {}
        for k in np.flatnonzero(~self.empty).tolist():
            kind[k] = number = numbers.setdefault((further[k], sides[k].tobytes()), len(first))
            if number == len(first):
                first.append(k)
        return np.array(first, np.int64), kind

    def rows(self, used: Ints) -> Groups:
        """The constraints of these sets (common ones too) that are no bounds."""
        rows = self._common.copies(len(used)).beside(self._own.take(used))
        return rows.where(~self._is_bound[rows.items])

    def boxes(self, used: Ints) -> Boxes:
        """The boxes of these sets."""
        return Boxes(self.lower[used], self.upper[used], self.inner_lower[used], self.inner_upper[used])

    def _tightened(self, sides: list[Floats], groups: Groups) -> list[Floats]:
        """Lower, upper, inner lower and inner upper bounds after the bounds of the groups; changes the arrays."""
        table = self._table
        group, column, bound = self._entries(groups)
        upper = table.values[table.columns.starts[bound]] > 0
        strict, down, up = table.strict[bound], table.down[bound], table.up[bound]
        # A strict bound that float64 holds excludes itself; the next number satisfies it.
        inside = np.where(strict & (down == up), np.nextafter(down, -np.inf), down)
        place = group * sides[0].shape[1] + column  # in the arrays as one row: numpy is much faster on that
        for k, (side, select, values) in enumerate(
            zip(sides, (~upper, upper) * 2, (0.0 - up, up, 0.0 - inside, inside), strict=True)
        ):
            (np.minimum if k % 2 else np.maximum).at(side.reshape(-1), place[select], values[select])
            side += 0.0  # -0.0 becomes 0.0
        return sides

    def _entries(self, groups: Groups) -> tuple[Ints, Ints, Ints]:
        """Group, column and constraint of all bounds in the groups."""
        bounds = groups.where(self._is_bound[groups.items])
        return bounds.owner, self._table.columns.items[self._table.columns.starts[bounds.items]], bounds.items

    def _decide_close(self) -> None:
        """Decide exactly where rounding or strictness hides whether a box is empty."""
        close = (self.inner_lower > self.inner_upper) & ~self.empty[:, None]
        if not close.any():
            return
        places = np.flatnonzero(close)  # of the flattened (K, n)
        bounds = self._bounds_at(places, close.shape)
        self.empty[places[self._hold_nothing(bounds)] // close.shape[1]] = True

    def _bounds_at(self, places: Ints, shape: tuple[int, ...]) -> Groups:
        """For each place (a set and a column) the bounds on that column in that set."""
        n = shape[1]
        _, column, bound = self._entries(self._common)
        order = np.argsort(column, kind="stable")
        common = Groups.of_lengths(np.bincount(column, minlength=n), bound[order]).take(places % n)
        group, column, bound = self._entries(self._own)
        where = np.searchsorted(places, group * n + column)
        found = where < len(places)
        found[found] = places[where[found]] == (group * n + column)[found]
        where, bound = where[found], bound[found]
        own = Groups.of_lengths(np.bincount(where, minlength=len(places)), bound[np.argsort(where, kind="stable")])
        return common.beside(own)

    def _hold_nothing(self, bounds: Groups) -> Flags:
        """Whether no real number satisfies all the bounds of a list, exactly; lists with bounds of both kinds."""
        table = self._table
        # One literal in all bounds is the common case of a point, without fractions: empty if a bound is strict.
        starts = bounds.starts[:-1]
        sides = table.sides[bounds.items]
        same = (np.minimum.reduceat(sides, starts) == np.maximum.reduceat(sides, starts)) & (sides[starts] >= 0)
        empty = same & np.maximum.reduceat(table.strict[bounds.items], starts)
        known: dict[bytes, bool] = {}
        for k in np.flatnonzero(~same).tolist():
            items = bounds.items[bounds.starts[k] : bounds.starts[k + 1]]
            key = items.tobytes()
            if key not in known:
                known[key] = self._holds_nothing(items.tolist())
            empty[k] = known[key]
        return empty

    def _holds_nothing(self, bounds: list[int]) -> bool:
        table = self._table
        upper = {i: bool(table.values[table.columns.starts[i]] > 0) for i in bounds}
        high = min((table.right_side(i), not table.strict[i]) for i in bounds if upper[i])
        low = max((-table.right_side(i), bool(table.strict[i])) for i in bounds if not upper[i])
        return low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1]))
