"""Rows of a network with Gaussian noise: rule `tails/1` of docs/certificates.md, whose steps are named here.

A leaf claims ranges [l, u] of z_k, and optionally v_k, how far z_k(x) may be from z_k(x0) anywhere in the box, x0 its
middle. Each claim of an element is an event; its probability of failing is computed here from the claim and from the
claims of layers in front of it. Nothing else of the certificate counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flint import arb, arb_mat

from bnn_vnnlib_check.balls import (
    FOLD,
    ZERO,
    Floats,
    column,
    entrywise,
    matrix,
    normal_below,
    root,
    square,
    surely_at_least,
    surely_less,
)
from bnn_vnnlib_check.bounds import Box, Chain, Part, Ranges, steepest
from bnn_vnnlib_check.errors import RejectedError
from bnn_vnnlib_check.model import Layer

Claim = tuple[Box, Floats | None]
"""What is claimed of one layer: the range of z, and v, how far z may vary over the box, or None."""


class Gaussian:
    """A chain with its noise as matrices of balls: variances, standard deviations, |W|."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        layers = chain.layers
        self.variances = [None if x.weight_variance is None else matrix(x.weight_variance) for x in layers]
        self.deviations = [None if v is None else entrywise(lambda x: x.sqrt(), v) for v in self.variances]
        self.shared = [None if x.shared is None else matrix(x.shared) for x in layers]


class Charged:
    """The noise that a walk of so many rows passes (step 3): sums over all its layers, (R, 1) each.

    h, within : the ranges of h_k, and rho', a bound of |h_k(x) - h_k(x0)|, or None
    square : L^2; folded, near : sum of rho s, of rho' s; centred : rho' is known of all of them
    """

    def __init__(self, gaussian: Gaussian, h: list[Box], within: list[list[arb] | None], count: int) -> None:
        self._gaussian, self._h, self._within, self.centred = gaussian, h, within, True
        self.square = self.folded = self.near = column([ZERO] * count)

    def charge(self, k: int, rows: arb_mat, part: Part) -> None:
        """Add the noise of a part of layer k to the sums; `rows` are those over its z_k."""
        layer, shared, within = self._gaussian.chain.layers[k], self._gaussian.shared[k], self._within[k]
        if not layer.variances:
            return
        squared, (variance, bias) = entrywise(square, rows), part.variances
        if shared is not None:
            self.square = self.square + self._convolved(layer, shared, rows, self._h[k])
        elif bias is not None:
            self.square = self.square + squared * bias
        if variance is not None:
            spread = squared * variance  # s_j^2, a row each
            self.square = self.square if shared is not None else self.square + spread * part.h.squares
            deviation = entrywise(root, spread)
            self.folded = self.folded + deviation * part.h.radius
            self.centred = self.centred and within is not None
            if within is not None:
                self.near = self.near + deviation * column(within[j] for j in part.live.tolist())

    def _convolved(self, layer: Layer, shared: arb_mat, rows: arb_mat, h: Box) -> arb_mat:
        """(R, 1): sum over the numbers p of kernel and, last, bias: their variance times (|c_p(hc)| + r_p)^2."""
        patches = [] if layer.patches is None else layer.patches.tolist()
        read = [[*part.entries(), ZERO] for part in (h.middle, h.radius)]  # padding is 0
        centre, radius = (
            arb_mat([[part[i] for i in place] + [last] for place in patches])
            for part, last in zip(read, (arb(1), ZERO), strict=True)
        )
        total = []
        for row in rows.tolist():
            a = arb_mat(shared.nrows(), len(patches), row)
            reach = entrywise(abs, a * centre) + entrywise(abs, a) * radius
            total.append(sum((v * square(c) for v, c in zip(shared.entries(), reach.entries(), strict=True)), ZERO))
        return column(total)


class Leaf:
    """One box with its claims. q : the probability that some event fails, at most."""

    def __init__(self, gaussian: Gaussian, box: Box, claims: list[Claim], hints: dict[int, Floats]) -> None:
        self._gaussian, self._chain = gaussian, gaussian.chain
        self._ranges = Ranges(self._chain, box, hints)
        self._within: list[list[arb] | None] = [box.radius.entries()]
        self.q, waiting = ZERO, list(claims)
        for k in range(len(self._chain) - 1):
            if not self._chain.random(k):
                near = self._within[k]
                moved = None if near is None else self._chain.size(k, column(near)).entries()
                self._pass(k, self._ranges.next(), moved)
                continue
            z, claimed = waiting.pop(0)
            if not (z.lower <= z.upper).all():
                raise RejectedError(f"the range that is claimed for layer {k} is empty")
            self.q = self.q + self._events(k, z, claimed)
            self._pass(k, z, None if claimed is None else list(map(arb, claimed.tolist())))

    def failures(
        self, rows: Floats, thresholds: list[arb], inputs: arb_mat | None, strict: Sequence[bool]
    ) -> list[arb]:  # fmt: skip
        """Upper bounds of P(row(x) <= threshold for some x, and all events hold), rows over the last z."""
        return self._failing(len(self._chain) - 1, rows, thresholds, inputs)

    def _pass(self, k: int, z: Box, near: list[arb] | None) -> None:
        """Go on to h_(k+1), which is nowhere farther from h(x0) than its range is wide."""
        self._ranges.add(z)
        h = self._ranges.h[-1]
        widths = [(arb(high) - arb(low)).upper() for low, high in zip(h.lower.tolist(), h.upper.tolist(), strict=True)]
        if near is not None:
            slopes = steepest(self._chain.layers[k], z)
            varied = [(v * slope).upper() for v, slope in zip(near, slopes, strict=True)]
            widths = [v if surely_less(v, width) else width for v, width in zip(varied, widths, strict=True)]
        self._within.append(None if near is None else widths)

    def _events(self, k: int, z: Box, claimed: Floats | None) -> arb:
        """Upper bound on the probability that an event of layer k fails: its ranges, its variations (steps 2 and 4)."""
        units = np.eye(len(z.lower))
        ends = [arb(v) for v in [*z.lower.tolist(), *(-z.upper).tolist()]]
        total = sum(self._failing(k, np.concatenate([units, -units]), ends, None), ZERO)
        return total if claimed is None else total + self._varying(k, z, claimed)

    def _varying(self, k: int, z: Box, claimed: Floats) -> arb:
        """Step 4: the probability that v_k fails, as |z_i(x) - z_i(x0)| <= sum_j (|W_ij| + |noise_ij|) rho'_j."""
        near = self._within[k]
        if near is None:
            raise RejectedError(f"layer {k} claims a variation, and a layer in front of it does not")
        reach = column(near)
        mean, spread = self._chain.size(k, reach), column([ZERO] * len(z.lower))
        variance, deviation = self._gaussian.variances[k], self._gaussian.deviations[k]
        if variance is not None and deviation is not None:
            mean = mean + FOLD * (deviation * reach)
            spread = variance * entrywise(square, reach)
        total = ZERO
        for i, (v, low, high) in enumerate(zip(claimed.tolist(), z.lower.tolist(), z.upper.tolist(), strict=True)):
            if not surely_at_least(arb(v), arb(high) - arb(low)):  # else the range says it already
                total = total + normal_below(arb(v) - mean[i, 0], root(spread[i, 0]).upper())
        return total

    def _failing(self, k: int, rows: Floats, thresholds: list[arb], inputs: arb_mat | None) -> list[arb]:
        """Upper bounds, one a row over z_k, of P(row(x) <= threshold for some x) on the events in front of it (step 3,
        bounds 1 and 2); by walks to the input and to h_k.
        """
        found = [arb(1)] * len(rows)
        for folded in (False, True)[: 1 + min(k, 1)]:
            noise = Charged(self._gaussian, self._ranges.h, self._within, len(rows))
            level = self._ranges.walk(k, rows, inputs, noise.charge, folded=folded)
            for r, (least, threshold) in enumerate(zip(level, thresholds, strict=True)):
                spread, gap = root(noise.square[r, 0]).upper(), least - threshold
                either = [normal_below(gap - FOLD * noise.folded[r, 0], spread)]
                either += [2 * normal_below(gap - FOLD * noise.near[r, 0], spread)] if noise.centred else []
                for q in either:
                    found[r] = q.upper() if surely_less(q, found[r]) else found[r]
        return found
