"""The constraints of a property, each distinct one once, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.vnnlib.groups import Groups
from bnn_vnnlib.vnnlib.literals import read_literal

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Row:
    """sum of values * variables <= exact (or < exact); down <= exact <= up.

    The only coefficient of a bound on one input is 1 or -1. `errors` holds, for input columns whose coefficient
    float64 cannot hold, how far the value is off at most.
    """

    columns: tuple[int, ...]
    values: tuple[float, ...]
    strict: bool
    down: float
    up: float
    exact: Fraction
    errors: tuple[tuple[int, Fraction], ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """N constraints: values . variables <= b (or < b), down <= b <= up.

    Attributes
    ----------
    columns : the variables of each constraint
    values : of the length of `columns.items`
    strict, down, up : (N,)
    sides : b as written: the number of a literal where it is the constraint's whole right side, else -1; (N,)
    literals : the literals
    exact : b of the constraints without a literal
    errors : as in `Row`, of the constraints that have some
    """

    columns: Groups
    values: Floats
    strict: Flags
    down: Floats
    up: Floats
    sides: Ints
    literals: Sequence[str]
    exact: Mapping[int, Fraction]
    errors: Mapping[int, tuple[tuple[int, Fraction], ...]]

    def __len__(self) -> int:
        return len(self.strict)

    def with_rows(self, rows: Sequence[Row]) -> Table:
        """The table and these further constraints."""
        if not rows:
            return self
        first = len(self)
        return Table(
            Groups.chain([self.columns, Groups.of([row.columns for row in rows])]),
            np.concatenate([self.values, np.array([value for row in rows for value in row.values], np.float64)]),
            np.concatenate([self.strict, np.array([row.strict for row in rows], np.bool_)]),
            np.concatenate([self.down, np.array([row.down for row in rows], np.float64)]),
            np.concatenate([self.up, np.array([row.up for row in rows], np.float64)]),
            np.concatenate([self.sides, np.full(len(rows), -1)]),
            self.literals,
            {first + i: row.exact for i, row in enumerate(rows)},
            {first + i: row.errors for i, row in enumerate(rows) if row.errors},
        )

    def on_inputs(self, n: int) -> Flags:
        """Whether a constraint concerns nothing but the columns 0, ..., n - 1 (N,)."""
        return self.columns.count(self.columns.items >= n) == 0

    def right_side(self, i: int) -> Fraction:
        """b of a bound, exactly."""
        if self.sides[i] < 0:
            return self.exact[i]
        value = read_literal(self.literals[self.sides[i]])
        return value if self.values[self.columns.starts[i]] > 0 else -value
