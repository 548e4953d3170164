"""All that the bounds know about rounding, in one place.

Semantics: real arithmetic on the stored numbers. Everything is computed in float64 with round to nearest; errors are
bounded a priori (Higham, Accuracy and Stability of Numerical Algorithms, ch. 3): a sum of n products has an error of
at most gamma(n) times the sum of the absolute products, for any order of summation. That covers blocked, threaded and
fused kernels; it does not cover Winograd, FFT or Strassen schemes, which the CPU libraries do not use in float64 and
`devices` keeps away from CUDA. Underflow adds at most half a subnormal spacing a product, covered by TINY for up to
2**50 products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

UNIT = 2.0**-53
"""Unit roundoff u of float64."""

TINY = 2.0**-1022
"""Absolute term that covers underflow in every sum."""

SMALL = 2.0**-900
"""Covers underflow in an entry of a vector that is multiplied again: its products, unlike those of TINY, are seldom
subnormal numbers, with which processors are slow."""

LEAST, ANY = -1074, 2**12
"""Exponent of the least positive number; in the place of that of 0, which is a multiple of every power of two."""

LOST = 1e-290
"""Squares below this may have lost digits."""

ELEMENTARY = 64 * UNIT
"""Relative error allowed to one call of exp, tanh, sigmoid or the like in torch (documented errors are a few ulp)."""

SPECIAL = 1e-13
"""Relative error allowed to erfc (tests/gaussian and those of the masses hold it against mpmath)."""

PAID = 1e-12
"""Relative amount by which short sums and products are rounded to the safe side: 2^13 units, for sums of up to about a
thousand terms.
"""

UP, DOWN = 1 + PAID, 1 - PAID


def gamma(n: int) -> float:
    """Upper bound on gamma_n = n u / (1 - n u), with room for the roundings of its own use.

    The doubled, shifted count also absorbs the conversion of a computed sum of nonnegative terms into a bound on the
    exact one, which costs a factor 1 / (1 - gamma_n) <= 1 + 2 gamma_n.
    """
    return 2.0 * (n + 8) * UNIT / (1.0 - 2.0 * (n + 8) * UNIT)


class _Next(torch.autograd.Function):
    """nextafter with the derivative of the identity, so that bounds can be descended on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, towards: float) -> Tensor:
        return torch.nextafter(x, _end(towards, x.dtype, x.device))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def down(x: Tensor) -> Tensor:
    """Largest float64 below x: a lower bound on the exact result of the operation that was rounded to x."""
    return _next(x, -torch.inf)


def up(x: Tensor) -> Tensor:
    """Smallest float64 above x: an upper bound on the exact result of the operation that was rounded to x."""
    return _next(x, torch.inf)


def squared(x: Tensor) -> Tensor:
    """x^2, moved up by min(|x|, TINY) for the digits that it may lose to underflow; exactly 0 for 0.

    Of |x| >= TINY the square loses less than TINY, of others it is less than |x|.
    """
    return torch.addcmul(x.abs().clamp(max=TINY), x, x)


def squared_down(x: Tensor) -> Tensor:
    """x^2, or 0 where it may have lost digits to underflow."""
    return torch.nn.functional.threshold(x * x, LOST, 0.0)


def exponent(x: Tensor) -> Tensor:
    """The largest e for which x is a multiple of 2^e; ANY for 0 and what is not finite."""
    digits, power = torch.frexp(torch.where(torch.isfinite(x), x, 0.0))
    whole = (digits * 2.0**53).to(torch.int64)
    last = torch.frexp((whole & -whole).to(x)).exponent - 1
    return torch.where(whole == 0, ANY, power - 53 + last)


def finest(x: Tensor, lead: int = 1) -> Tensor:
    """The least `exponent` of all that follows the leading axes."""
    return exponent(x).reshape(*x.shape[:lead], -1).amin(-1)


def _next(x: Tensor, towards: float) -> Tensor:
    if x.requires_grad:
        return _Next.apply(x, towards)
    return torch.nextafter(x, _end(towards, x.dtype, x.device))


@cache
def _end(towards: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(towards, dtype=dtype, device=device)
