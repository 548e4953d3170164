"""Gaussian integrals of this package, with the errors that they are allowed.

For z ~ N(m, s^2), t = (m - b) / s and u = t + kappa s,
    J(kappa, b) = E[e^{kappa z}; z > b] = e^{kappa m + kappa^2 s^2 / 2} Phi(u).
With Phi(u) = e^{-u^2/2} w(-i u / sqrt 2) / 2, w the Faddeeva function, the exponents combine to
    J = e^{kappa b - t^2/2} w(-i u / sqrt 2) / 2            where t <= 0,
    J = e^{kappa m + kappa^2 s^2/2} - e^{kappa b - t^2/2} w(i u / sqrt 2) / 2     else;
for kappa = i alpha the argument of w lies in the upper half plane, where |w| <= 1, so that |J| <= 1 is computed
without overflow. w of scipy is accurate to 1e-13, and ndtr to `rounding.SPECIAL`; both are tested against
mpmath. Together with phases of at most 1e5, J is computed to TERM absolutely.

e(g, q) = E |N(g, q)|. Lemma: e(g, q)^2 <= g^2 + 2 q / pi.
Proof: let q = 1 and g > 0. At g = 0 both sides are 2/pi, so that e e' <= g for g > 0 is enough, e' = T = 2 Phi(g) - 1.
As e = g T + 2 phi, this says 2 phi T <= g (1 - T^2), or T <= 2 g Phi(g) r with r = Phi(-g) / phi(g). By Birnbaum's
inequality r >= 2 / (g + sqrt(g^2 + 4)), so that T (g + sqrt(g^2 + 4)) <= 4 g Phi(g) = 2 g + 2 g T is enough, that is
T (sqrt(g^2 + 4) - g) <= 2 g. The bracket is at most 2, and T <= 2 phi(0) g < g.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

TERM = 1e-12
"""Absolute error allowed to one value of J at an imaginary argument."""

PAID = 1e-12
"""Relative amount by which short sums and products are rounded to the safe side: 2^12 units, for sums of up to about a
thousand terms.
"""

UP, DOWN = 1 + PAID, 1 - PAID

_ROOT = np.sqrt(2 * np.pi)


def density(t: Floats) -> Floats:
    """phi(t), the standard normal density, in numpy."""
    return np.exp(-(t**2) / 2) / _ROOT


def half_line(alpha: Floats, m: Floats, s: Floats, b: Floats | float) -> Complexes:
    """J(i alpha, b), absolute error TERM; the arrays broadcast, s > 0."""
    t = (m - b) / s
    positive = t > 0
    u = t + 1j * alpha * s
    side = special.wofz(np.where(positive, 1j, -1j) * u / np.sqrt(2)) * (0.5 * np.exp(1j * alpha * b - t**2 / 2))
    whole = np.exp(1j * alpha * m - (alpha * s) ** 2 / 2)
    return np.where(positive, whole - side, side)


def log_half_line(kappa: Floats, m: Floats, s: Floats, b: Floats | float) -> Floats:
    """log J(kappa, b) for real kappa."""
    return kappa * m + (kappa * s) ** 2 / 2 + special.log_ndtr((m - b) / s + kappa * s)


def mean_abs(g: Floats, q: Floats) -> Floats:
    """e(g, q), relative error PAID / 4."""
    s = np.sqrt(np.maximum(q, 1e-300))
    u = np.abs(g) / s
    return np.abs(g) * special.erf(u / np.sqrt(2)) + 2 * s * density(u)


def mean_relu(m: Floats, s: Floats) -> Floats:
    """E relu(N(m, s^2)), absolute error below 1e-15 (|m| + s)."""
    return np.maximum(m * special.ndtr(m / s) + s * density(m / s), 0.0)
