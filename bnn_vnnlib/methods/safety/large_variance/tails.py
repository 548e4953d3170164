"""What is left of Y far below its mean, and of its characteristic function at large waves. See `transforms` for X_j.

Far: for lam > 0, on D in (a, b] of one sign with |D| <= far = max(|a|, |b|), near = min(|a|, |b|),
    D > 0: E e^{-lam X} <= e^{lam (max(l a, l b) + k far^2)} E[e^{-lam near (1 - rho) z}; z > 0] + P(z <= 0),
    D < 0: E e^{-lam X} <= e^{lam (|l| far + k far^2)} (E[e^{lam far (1 + rho) z}; z > 0] + P(z <= 0)
                            + P(|z| < reach) e^{lam far (1 + rho) reach} ((1 - p) e^{lam far c} + p e^{lam far C} - 1)),
p the probability of the last level, c = (1/2 + rho) R~, C = c + reach - R~; summed over cells of D with their
probabilities, on the event that all D_j lie within CUT deviations.

Waves: given D > 0, the part of X on z > 0 is linear in z with slope D (1 - rho), and a density that rises and falls has
|integral of e^{i c z} f| <= 2 sup f / |c|; likewise for D < 0 on z > R~, but for the last level. So for all w' >= w
    |E e^{i w' X}| <= 1 - P(D > 0) P(z > 0) - (1 - p) P(D < 0) P(z > R~)
        + sum over cells of D > 0 of P(cell) min(P(z > 0), 2 phi(0) / (s w near (1 - rho)))
        + (1 - p) (the same for D < 0),
which falls with w. Terms of `output_layer.Sides` are independent of these, and left out. The bias S = B - |B| share,
B ~ N(m, d^2), is (1 - share) B where B > 0 and (1 + share) B elsewhere,
hence |E e^{i w' S}| <= e^{-(w (1 - share) d)^2 / 2} + 2 Phi(-|m| / d), without the last term if share = 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnn_vnnlib.gaussian.half_line import UP, Floats, log_half_line
from bnn_vnnlib.methods.safety.large_variance.lines import SHARES
from bnn_vnnlib.methods.safety.large_variance.transforms import CUT, Terms

CELLS = 28
"""Cells of D within CUT deviations; 0 is another edge."""

RATES = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0])
"""lam, over one by the standard deviation of Y."""


def _cells(terms: Terms) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Ends low < high of one sign, (A, H, C), their probabilities, and whether D > 0."""
    mean, dev = (part[..., None] for part in (terms.weights.mean, terms.weights.dev))
    edges = mean + dev * np.linspace(-CUT, CUT, CELLS + 1)
    edges = np.sort(np.concatenate([edges, np.clip(0.0, edges[..., :1], edges[..., -1:])], -1), -1)
    low, high = edges[..., :-1], edges[..., 1:]
    left, right = (low - mean) / dev, (high - mean) / dev
    flip = left > 0
    mass = special.ndtr(np.where(flip, -left, right)) - special.ndtr(np.where(flip, -right, left))
    return low, high, np.maximum(mass, 0.0) * UP + 1e-300, low >= 0


def far_below(terms: Terms, target: Floats, spread: Floats) -> Floats:
    """(A,): bounds on P(Y <= target) for targets far below the mean."""
    layer, lines = terms.layer, terms.lines
    low, high, mass, positive = _cells(terms)
    far, near = np.maximum(np.abs(low), np.abs(high)), np.minimum(np.abs(low), np.abs(high))
    m, s, rho, reach = (part[..., None] for part in (layer.m, layer.s, layer.rho, layer.reach))
    tilt, k = (np.abs(lines.tilt) + lines.tilt_error)[..., None], terms.k[..., None]
    signed = lines.tilt[..., None]
    drift = np.where(positive, np.maximum(signed * low, signed * high) + lines.tilt_error[..., None] * far, tilt * far)
    off = special.log_ndtr(-m / s)
    strip = special.ndtr((reach - m) / s) - special.ndtr((-reach - m) / s) + 1e-15
    ramp = layer.ramp[..., None]
    usual = (0.5 + rho) * ramp
    last = usual + reach - ramp
    best = np.zeros_like(target)
    for rate in RATES:
        lam = (rate / spread)[:, None, None]
        over = np.where(positive, -lam * near * (1 - rho), lam * far * (1 + rho))
        swing = np.logaddexp(log_half_line(over, m, s, 0.0), off)
        pull = np.minimum(lam * far, 600.0 / (usual + last + 2 * reach))
        more = strip * np.exp(pull * (1 + rho) * reach)
        more = more * ((1 - SHARES[-1]) * np.expm1(pull * usual) + SHARES[-1] * np.expm1(pull * last))
        swing = np.where(positive, swing, np.logaddexp(swing, np.log(np.maximum(more, 1e-300))))
        swing = np.where(~positive & (pull < lam * far), np.inf, swing)
        each = swing + np.maximum(lam * (drift + k * far**2), 0.0) + np.log(mass)
        total = special.logsumexp(each, -1).sum(1) + _log_bias_moment(terms, -rate / spread)
        total = total + terms.more.log_moment(rate / spread)
        total = total + rate / spread * (lines.constant + target) + 1e-9 * (1 + np.abs(total))
        best = np.minimum(best, total)
    return np.exp(best) * UP


def _log_bias_moment(terms: Terms, rate: Floats) -> Floats:
    """log E e^{rate (B - |B| share)} from above: |B| share only scales B by 1 +- share."""
    mean, dev, share = terms.weights.bias, terms.weights.bias_dev, terms.layer.share
    ends = [rate * side * mean + (rate * side * dev) ** 2 / 2 for side in (1 - share, 1 + share)]
    return np.logaddexp(*ends)


def envelope(terms: Terms, waves: Floats) -> Floats:
    """(A, W): bounds on |E e^{i w' Y}| for all w' >= w."""
    layer = terms.layer
    low, high, mass, positive = _cells(terms)
    near = np.minimum(np.abs(low), np.abs(high))[..., None]
    last = SHARES[-1]
    above = special.ndtr(layer.m / layer.s)
    beyond = special.ndtr((layer.m - layer.ramp) / layer.s)
    share = np.where(positive, 1.0, 1 - last)[..., None]
    part = np.where(positive, above[..., None], beyond[..., None])[..., None]
    slope = (waves[:, None] * (layer.s * (1 - layer.rho))[..., None])[:, :, None]
    wave = np.minimum(part, 0.79789 / np.maximum(slope * near, 1e-300))
    controlled = (mass[..., None] * share * wave).sum(2)
    off = 1 - terms.sides[0].mass * above - (1 - last) * terms.sides[1].mass * beyond
    hidden = np.minimum(controlled + np.maximum(off, 0.0)[..., None] + 1e-12, 1.0).prod(1)
    return hidden * _bias_envelope(terms, waves) * (1 + 1e-9)


def _bias_envelope(terms: Terms, waves: Floats) -> Floats:
    """(A, W): bounds on |E e^{i w' (B - |B| share)}| for all w' >= w."""
    mean, dev, share = (part[:, None] for part in (terms.weights.bias, terms.weights.bias_dev, terms.layer.share))
    other = np.where(share > 0, 2 * special.ndtr(-np.abs(mean) / np.maximum(dev, 1e-100)), 0.0)
    return np.minimum(np.exp(-((waves * (1 - share) * dev) ** 2) / 2) + other + 1e-15, 1.0)
