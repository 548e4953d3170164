"""Decision rules as violations: what `verify_batch(properties=..., query="decision")` is to prove of every input.

Each function returns one output DNF (`OutputCases`) over Y, the decision: the expected probabilities of a classifier,
or the expected outputs or medians of a regression. Give one for all boxes, or a list of them, one a box.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import OptionError, names_arguments

Cases = list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]]


@names_arguments
def most_likely(classes: int, label: int) -> Cases:
    """0-1 loss: Y_label > Y_j for every other class j; the same as `labels`. Ties are violations."""
    return least_cost(np.ones(classes), label)


@names_arguments
def least_cost(costs: ArrayLike, label: int) -> Cases:
    """K-0 loss: deciding i costs K_i where i is wrong, so its expected cost is K_i (1 - Y_i); `label` costs least.

    For two classes that is Y_label > K_label / (K_0 + K_1). For more, a threshold K_i / sum K would not be the decision
    of least cost. Ties are violations.

    Parameters
    ----------
    costs : (m,) positive; rounded to single precision, so that their differences are exact
    """
    k = np.asarray(costs, dtype=np.float32).astype(np.float64)
    _check(len(k) if k.ndim == 1 else 0, label)
    if not (np.isfinite(k) & (k > 0)).all():
        raise OptionError(f"costs must be positive and finite, found {k.tolist()}")
    others = [j for j in range(len(k)) if j != label]
    if any(Fraction(k[label]) - Fraction(k[j]) != Fraction(k[label] - k[j]) for j in others):
        raise OptionError("costs differ too much in size: their differences are not exact")
    return [_row({label: k[label], j: -k[j]}, len(k), float(k[label] - k[j]), strict=False) for j in others]


@names_arguments
def confident(classes: int, label: int, tau: float) -> Cases:
    """Certified confident: Y_label >= tau."""
    _check(classes, label, tau)
    return [_row({label: 1.0}, classes, tau, strict=True)]


@names_arguments
def uncertain(classes: int, tau: float) -> Cases:
    """Certified uncertain: no class above tau, Y_i <= tau for every i."""
    _check(classes, 0, tau)
    return [_row({i: -1.0}, classes, -tau, strict=True) for i in range(classes)]


@names_arguments
def within(lower: ArrayLike, upper: ArrayLike) -> Cases:
    """Regression: lower_j <= Y_j <= upper_j for every output j; infinite ends ask nothing."""
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    if low.ndim != 1 or low.shape != high.shape or len(low) == 0 or not (low <= high).all():
        raise OptionError("an interval for each output is needed: lower (m,) <= upper (m,)")
    below = [_row({j: 1.0}, len(low), v, strict=True) for j, v in enumerate(low.tolist()) if np.isfinite(v)]
    above = [_row({j: -1.0}, len(low), -v, strict=True) for j, v in enumerate(high.tolist()) if np.isfinite(v)]
    return [*below, *above]


def never(outputs: int) -> Cases:
    """A violation that no output commits, 0 <= -1: what is left of a decision are the bounds on it."""
    return [(np.zeros((1, outputs)), np.array([-1.0]), np.array([False]))]


def _check(classes: int, label: int, tau: float | None = None) -> None:
    if classes < 2:
        raise OptionError("a rule of a classifier needs at least two classes")
    if not 0 <= label < classes:
        raise OptionError(f"the label must lie in 0 .. {classes - 1}, found {label}")
    if tau is not None and not 0 <= tau <= 1:
        raise OptionError(f"tau is a probability, between 0 and 1; found {tau}")


def _row(
    coefficients: dict[int, float], size: int, bound: float, *, strict: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """The case a.Y <= bound (or <)."""
    a = np.zeros((1, size))
    for index, value in coefficients.items():
        a[0, index] = value
    return a, np.array([bound]), np.array([strict])
