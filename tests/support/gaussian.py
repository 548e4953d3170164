"""Closed forms of Gaussian laws in high precision; call them within `mpmath.workdps`."""

from __future__ import annotations

from typing import Any

import mpmath


def exact_log_moment(alpha: Any, beta: Any, m: Any, s: Any) -> mpmath.mpf:
    """log E exp(alpha z + beta z^2), z = relu(N(m, s^2)), 2 beta s^2 < 1: the two pieces of the integral."""
    alpha, beta, m, s = (mpmath.mpf(v) for v in (alpha, beta, m, s))
    c, v = 1 - 2 * beta * s * s, s * s
    exponent = (beta * m * m + alpha * m + alpha * alpha * v / 2) / c
    y = (m + alpha * v) / (s * mpmath.sqrt(c))
    return mpmath.log(mpmath.ncdf(-m / s) + mpmath.exp(exponent) * mpmath.ncdf(y) / mpmath.sqrt(c))


def exact_relu_moment(power: int, m: Any, s: Any) -> mpmath.mpf:
    """E relu(N(m, s^2))^power, power 1, 2 or 4; s may be 0."""
    m, s = mpmath.mpf(m), mpmath.mpf(s)
    if s == 0 or abs(m / s) > 1e6:
        return max(m, mpmath.mpf(0)) ** power
    t = m / s
    p, d = mpmath.ncdf(t), mpmath.npdf(t)
    return {
        1: m * p + s * d,
        2: (m**2 + s**2) * p + m * s * d,
        4: (m**4 + 6 * m**2 * s**2 + 3 * s**4) * p + m * s * (m**2 + 5 * s**2) * d,
    }[power]
