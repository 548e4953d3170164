"""Rows of a network with Gaussian noise: rule `tails/1` of docs/certificates.md, whose steps are named here.

A leaf claims ranges [l, u] of z_k, and optionally v_k, how far z_k(x) may be from z_k(x0) anywhere in the box, x0 its
middle. Each claim of an element is an event; its probability of failing is computed here from the claim and from the
claims of layers in front of it. Nothing else of the certificate counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flint import arb, arb_mat

from bnn_vnnlib_check.balls import (
    FOLD,
    ZERO,
    Floats,
    at_most_one,
    column,
    entrywise,
    matrix,
    normal_below,
    root,
    surely_less,
)
from bnn_vnnlib_check.bounds import Box, Chain, Noise, Ranges, squares, steepest
from bnn_vnnlib_check.errors import RejectedError


@dataclass(frozen=True, eq=False)
class Claim:
    """Of one layer: the range of z, and v or None."""

    range: Box
    near: Floats | None


class Gaussian:
    """A chain with its noise as matrices of balls: variances, standard deviations, |W|."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        layers = chain.layers
        self.variances = [None if x.weight_variance is None else matrix(x.weight_variance) for x in layers]
        self.deviations = [None if v is None else entrywise(_deviation, v) for v in self.variances]
        self.biases = [None if x.bias_variance is None else column(x.bias_variance.tolist()) for x in layers]


def _deviation(variance: arb) -> arb:
    return variance.sqrt()


@dataclass(eq=False)
class Known:
    """What the claims so far say of h_k: its range; near: rho', a bound of |h_k(x) - h_k(x0)|, or None."""

    range: Box
    near: list[arb] | None

    @cached_property
    def squares(self) -> arb_mat:
        """(n, 1): (|hc| + rho)^2 = (max |h|)^2."""
        return entrywise(lambda h: h * h, self.range.largest)


@dataclass(eq=False)
class Charged(Noise):
    """Step 3: sums over all layers that a walk passes, (R, 1) each: L^2, sum rho s, sum rho' s."""

    gaussian: Gaussian
    known: list[Known]
    square: arb_mat | None = None
    folded: arb_mat | None = None
    near: arb_mat | None = None
    centred: bool = True

    def charge(self, k: int, rows: Floats) -> None:
        """The noise of layer k, of which these are the rows over z_k."""
        variance, bias = self.gaussian.variances[k], self.gaussian.biases[k]
        if variance is None and bias is None:
            return
        squared, known = squares(rows), self.known[k]
        if bias is not None:
            self.square = _sum(self.square, squared * bias)
        if variance is not None:
            spread = squared * variance  # s_j^2, a row each
            self.square = _sum(self.square, spread * known.squares)
            deviation = entrywise(root, spread)
            self.folded = _sum(self.folded, deviation * known.range.radius)
            if known.near is None:
                self.centred = False
            else:
                self.near = _sum(self.near, deviation * column(known.near))


def _sum(one: arb_mat | None, other: arb_mat) -> arb_mat:
    return other if one is None else one + other


class Leaf:
    """One box with its claims. q : the probability that some event fails, at most."""

    def __init__(self, gaussian: Gaussian, box: Box, claims: list[Claim], hints: dict[int, Floats]) -> None:
        self._gaussian, self._chain = gaussian, gaussian.chain
        self._ranges = Ranges(self._chain, box, hints)
        self._known = [Known(box, box.radius.entries())]
        self.q, waiting = ZERO, list(claims)
        for k in range(len(self._chain) - 1):
            if not self._chain.random(k):
                z = self._ranges.next()
                if not z.finite:
                    raise RejectedError(f"the range of layer {k} is not finite")
                near = self._known[k].near
                self._pass(k, z, None if near is None else self._chain.size(k, column(near)).entries())
                continue
            claim = waiting.pop(0)
            if not (claim.range.lower <= claim.range.upper).all():
                raise RejectedError(f"the range that is claimed for layer {k} is empty")
            self.q = self.q + self._events(k, claim)
            self._pass(k, claim.range, None if claim.near is None else list(map(arb, claim.near.tolist())))

    def failures(self, rows: Floats, thresholds: list[arb], inputs: Floats | None) -> list[arb]:
        """Upper bounds of P(row(x) <= threshold for some x, and all events hold), rows over the last z."""
        return self._failing(len(self._chain) - 1, rows, thresholds, inputs)

    def _pass(self, k: int, z: Box, near: list[arb] | None) -> None:
        """On to h_(k+1), which is nowhere farther from h(x0) than its range is wide."""
        self._ranges.add(z)
        h = self._ranges.h[-1]
        widths = [(arb(high) - arb(low)).upper() for low, high in zip(h.lower.tolist(), h.upper.tolist(), strict=True)]
        if near is not None:
            slopes = steepest(self._chain.layers[k], z)
            varied = [(v * slope).upper() for v, slope in zip(near, slopes, strict=True)]
            widths = [v if surely_less(v, width) else width for v, width in zip(varied, widths, strict=True)]
        self._known.append(Known(h, None if near is None else widths))

    def _events(self, k: int, claim: Claim) -> arb:
        """Steps 2 and 4: all events of layer k."""
        z, size = claim.range, len(claim.range.lower)
        units = np.concatenate([np.eye(size), -np.eye(size)])
        ends = [arb(v) for v in [*z.lower.tolist(), *(-z.upper).tolist()]]
        total = sum(self._failing(k, units, ends, None), ZERO)
        if claim.near is not None:
            total = total + self._varying(k, claim)
        return total

    def _varying(self, k: int, claim: Claim) -> arb:
        """Step 4: |z_i(x) - z_i(x0)| <= sum_j (|W_ij| + |noise_ij|) rho'_j."""
        near, z = self._known[k].near, claim.range
        if near is None or claim.near is None:
            raise RejectedError(f"layer {k} claims a variation, and a layer in front of it does not")
        reach = column(near)
        mean, square = self._chain.size(k, reach), column([ZERO] * len(z.lower))
        variance, deviation = self._gaussian.variances[k], self._gaussian.deviations[k]
        if variance is not None and deviation is not None:
            mean = mean + FOLD * (deviation * reach)
            square = variance * entrywise(lambda v: v * v, reach)
        total = ZERO
        for i, (v, low, high) in enumerate(zip(claim.near.tolist(), z.lower.tolist(), z.upper.tolist(), strict=True)):
            if surely_less(arb(v), arb(high) - arb(low)):  # else the range says it already
                total = total + normal_below(arb(v) - mean[i, 0], root(square[i, 0]).upper())
        return total

    def _failing(self, k: int, rows: Floats, thresholds: list[arb], inputs: Floats | None) -> list[arb]:
        """Step 3, bounds 1 and 2: rows over z_k, on the events of the layers in front of it."""
        noise = Charged(self._gaussian, self._known)
        level = self._ranges.walk(k, rows, inputs, noise)
        found = []
        for r, (least, threshold) in enumerate(zip(level, thresholds, strict=True)):
            spread = ZERO if noise.square is None else root(noise.square[r, 0]).upper()
            folded = ZERO if noise.folded is None else FOLD * noise.folded[r, 0]
            q = normal_below(least - folded - threshold, spread)
            if noise.centred:
                near = ZERO if noise.near is None else FOLD * noise.near[r, 0]
                other = 2 * normal_below(least - near - threshold, spread)
                q = other if surely_less(other, q) else q
            found.append(at_most_one(q))
        return found
