"""Balls around inputs: boxes that surely hold them, and the radius of the ball that surely holds a box.

B(r) = {x' : |x'_j - x_j| <= r scale_j for all j} inside the valid range. r <= r' implies B(r) within B(r'), so P_safe
falls with r: what is safe on B(r') is safe on B(r), and what is violated on B(r) is violated on B(r').
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.network.network import Floats


@dataclass(frozen=True, eq=False)
class Balls:
    """N centres and the scale of the radius.

    Attributes
    ----------
    x : (N, n) centres
    scale : (n,) >= 0: a radius r allows r scale_j in input j; 0 keeps the input fixed
    low, high : (n,) the valid range, which holds every centre; infinite where there is none
    """

    x: Floats
    scale: Floats
    low: Floats
    high: Floats

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or any(part.shape != self.x.shape[1:] for part in (self.scale, self.low, self.high)):
            found = ", ".join(str(part.shape) for part in (self.x, self.scale, self.low, self.high))
            raise InputError(f"x must be (N, n); scale and the valid range (n,); found {found}")
        if not np.isfinite(self.x).all():
            raise InputError("x must be finite")
        if not (np.isfinite(self.scale) & (self.scale >= 0)).all():
            raise InputError("scale must be finite and not negative")
        outside = np.argwhere(~((self.low <= self.x) & (self.x <= self.high)))
        if len(outside):
            row, column = (int(i) for i in outside[0])
            ends = f"[{self.low[column]}, {self.high[column]}]"
            raise InputError(f"input {column} of row {row} is {self.x[row, column]}, outside of the valid range {ends}")

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: NDArray[np.int64] | slice) -> Balls:
        """Some balls."""
        return Balls(self.x[index], self.scale, self.low, self.high)

    def boxes(self, index: NDArray[np.int64], radius: Floats) -> tuple[Floats, Floats]:
        """Boxes (K, n) around the balls of rows `index` (K,) with radii (K,), rounded outward.

        Proof of the rounding: r scale_j is rounded to nearest, so the next float above is not less than the product;
        the same for the sums. A product that is 0 exactly moves nothing.
        """
        x, size = self.x[index], radius[:, None] * self.scale
        size = np.where((radius[:, None] > 0) & (self.scale > 0), np.nextafter(size, np.inf), 0.0)
        moved = size > 0
        lower = np.where(moved, np.nextafter(x - size, -np.inf), x)
        upper = np.where(moved, np.nextafter(x + size, np.inf), x)
        return np.maximum(lower, self.low), np.minimum(upper, self.high)

    def reach(self, index: NDArray[np.int64], lower: Floats, upper: Floats) -> Floats:
        """(K,) radii whose balls surely hold the boxes (K, n): each difference and each quotient is rounded up."""
        x = self.x[index]
        distance = np.maximum(upper - x, x - lower)
        distance = np.where(distance > 0, np.nextafter(distance, np.inf), 0.0)
        scale = np.where(self.scale > 0, self.scale, np.inf)  # these inputs are not moved
        with np.errstate(over="ignore"):  # a scale that is next to nothing: an infinite radius holds any box
            share = np.where(distance > 0, np.nextafter(distance / scale, np.inf), 0.0)
        return share.max(1, initial=0.0)


def make_balls(
    x: Floats, scale: Floats | float | None = None, low: Floats | float | None = None,
    high: Floats | float | None = None,
) -> Balls:  # fmt: skip
    """Fill in what was not given: scale 1, no valid range."""
    size = np.asarray(x).shape[-1:]

    def full(value: Floats | float | None, default: float) -> Floats:
        return np.broadcast_to(np.asarray(default if value is None else value, np.float64), size)

    return Balls(np.asarray(x, np.float64), full(scale, 1.0), full(low, -np.inf), full(high, np.inf))
