"""Linear upper bounds of log E exp(u . f(x)) for rows u over the outputs of a ReLU network of any depth.

1. `typical`: what the neurons of a random network typically do. Guesses that steer the bounds and that no bound rests
on.

2. `Exponents`. Everything here is about one fixed x at a time, of which a box is served at once: D(x) is an
expectation, so that no event has to hold for all x together.

Backwards. Let h be the outputs of a hidden layer. Given them, the next pre-activations are independent, of means
m = mu h + b and variances v = sig^2 h^2 + sig_b^2. So
    E[exp sum_k (alpha_k z_k + beta_k z_k^2) | h] = prod_k E exp(alpha_k z_k + beta_k z_k^2),    z_k the next outputs,
each factor at most exp of a plane in (m_k, v_k) where (m_k, s_k) lies in its rectangle (`gaussian.relu`), and that is
the same kind of row over h. The last layer starts it exactly: E exp(u . f | h) has alpha = u W, beta = u^2 sig^2 / 2.
At the first layer h = x: m is linear, v is quadratic, and x_j^2 lies below its chord or above its tangent.
A negative beta is removed first: beta z^2 <= beta (2 c z - c^2) for every c.

Events. Let G be the event that all rectangles from the second layer on hold at x. Each of their sides fails with
probability at most p by Chernoff's bound, itself by such rows: P(earlier sides hold, m > t) <= exp(-tau t) E[exp(tau
m); earlier sides hold]. Hence P(not G) <= delta = p times the number of sides, and what comes out bounds
    log E[exp(u . f(x)) 1_G].
The events of a layer only involve earlier weights, so that conditioning on these leaves the factors above alone.

Rounding. The coefficients that are computed replace the exact ones: for outputs in [0, inf) they are rounded up, else
(|h| <= 1) the difference is added to the constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.hidden import CentredForm, HiddenRanges, hidden
from bnn_vnnlib.gaussian.normal import LEAST
from bnn_vnnlib.gaussian.relu import Rectangle, relu_planes
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.system.clock import Deadline

# 1. What neurons typically do

_FADED = 0.02**2
"""Share of the variance in front of an activation that is left behind it, at least: dead neurons may wake."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


@dataclass(frozen=True, eq=False)
class Typical:
    """One layer at points (P, n), (P, H) each, as if everything were Gaussian and independent.

    Given the earlier weights a pre-activation has a mean and a variance; m, m_spread : mean and deviation of the
    former, v, v_spread : of the latter; output, output_variance : of the activation
    """

    m: Tensor
    m_spread: Tensor
    v: Tensor
    v_spread: Tensor
    output: Tensor
    output_variance: Tensor


def typical(chain: DenseChain, x: Tensor) -> list[Typical]:
    """Typical values of every layer at points x (P, n); the output of the last layer is not activated."""
    nodes, weights = (x.new_tensor(part) for part in (_NODES, _WEIGHTS / _WEIGHTS.sum()))
    found = []
    h, noise = x, torch.zeros_like(x)
    for place, layer in enumerate(chain.layers):
        m, spread = h @ layer.mean.mT + layer.bias, noise @ (layer.mean**2).mT
        v = (h * h + noise) @ layer.variance.mT + layer.bias_variance
        shaken = (4 * h * h * noise + 2 * noise * noise) @ (layer.variance**2).mT
        h, noise = m, v + spread
        if place + 1 < len(chain.layers):
            values = torch.relu(m[..., None] + torch.sqrt(noise)[..., None] * nodes)
            h = values @ weights
            noise = ((values - h[..., None]) ** 2) @ weights + _FADED * noise
        found.append(Typical(m, torch.sqrt(spread), v, torch.sqrt(shaken), h, noise))
    return found


# 2. Exponential moments

_FLOOR = 1e-6
"""Relative deviation that a side is expected to have at least."""

_ROOM = 0.2
"""beta s^2 of the rows that bound variances, at most."""


@dataclass(frozen=True, eq=False)
class QuadraticRow:
    """constant + alpha . z + beta . z^2 over the outputs z of a layer: (P, R), (P, R, H)."""

    constant: Tensor
    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True, eq=False)
class DenseRanges:
    """What is known of P boxes: the first layer, typical values of all layers, rectangles of the hidden ones."""

    first: HiddenRanges
    typical: list[Typical]
    rectangles: list[Rectangle]


@dataclass(frozen=True, eq=False)
class Exponents:
    """One network; budget : delta, which is spent if there is a second hidden layer; deadline : looked at between
    layers, where OutOfTime is raised."""

    chain: DenseChain
    budget: float
    deadline: Deadline = Deadline()

    @property
    def delta(self) -> float:
        """Bound on P(not G) at any x."""
        return self.budget if self.sides else 0.0

    @property
    def sides(self) -> int:
        """Number of events at one x that G consists of."""
        return 4 * sum(layer.outputs for layer in self.chain.layers[1:-1])

    @property
    def size(self) -> int:
        """Numbers that the ranges of one box take."""
        widths = [layer.outputs for layer in self.chain.layers[:-1]]
        below = [self.chain.layers[0].mean.shape[1], *widths]
        return max([4 * widths[k] * max(below[: k + 1]) for k in range(1, len(widths))], default=sum(below))

    def ranges(self, lower: Tensor, upper: Tensor) -> DenseRanges:
        """Ranges of the layers over boxes (P, n), with typical values at their centres."""
        first = hidden(self.chain.layers[0], lower, upper)
        expected = typical(self.chain, first.center)
        found = DenseRanges(first, expected, [_rectangle(first.low, first.high, first.least, first.most, expected[0])])
        for place in range(1, len(self.chain.layers) - 1):
            found.rectangles.append(self._claimed(place, found))
        return found

    def lines(self, ranges: DenseRanges, outputs: Tensor) -> CentredForm:
        """Lines below -log E[exp(u . f) 1_G], u = outputs (P or 1, R, m), each entry rounded once at most."""
        last = self.chain.layers[-1]
        outputs = outputs.expand(len(ranges.first.center), -1, -1)
        square = outputs * outputs
        g = 2 * gamma(2 * last.outputs + 8)
        shift = (outputs * last.bias).sum(-1) + (square * last.bias_variance).sum(-1) / 2
        size = (outputs * last.bias).abs().sum(-1) + (square * last.bias_variance).sum(-1)
        row = self._row(
            shift + g * size + TINY, outputs @ last.mean, g * (outputs.abs() @ last.mean.abs()) + TINY,
            (square @ last.variance) / 2 * (1 + g) + TINY,
        )  # fmt: skip
        return self._back(len(self.chain.layers) - 2, row, ranges)

    def squares(self, ranges: DenseRanges, weights: Tensor) -> CentredForm:
        """Lines below -log E[exp(sum_j weights_j h_j^2) 1_G], h the last hidden layer's outputs, weights (P, R, H)
        exact."""
        zero = torch.zeros_like(weights)
        row = self._row(zero[..., 0], zero, zero, weights + 2 * UNIT * weights.abs() + TINY)
        return self._back(len(self.chain.layers) - 2, row, ranges)

    def _claimed(self, place: int, ranges: DenseRanges) -> Rectangle:
        """Four sides of every neuron of a layer, each missed with probability exp(-level) at most."""
        layer, guess = self.chain.layers[place], ranges.typical[place]
        level = math.log(self.sides / self.budget) * (1 + 1e-12)
        reach = math.sqrt(2 * level)
        below = ranges.rectangles[place - 1].most[:, None]
        tau = reach / (guess.m_spread + _FLOOR * (1 + guess.m.abs()))
        rho = reach / (guess.v_spread + _FLOOR * (guess.v + _FLOOR * layer.variance.sum(-1)) + LEAST)
        least = torch.minimum(rho, _ROOM / (layer.variance * below * below + LEAST).amax(-1))
        scales = (tau, -tau, least, -rho)
        bound = []
        for scale, mean in zip(scales, (True, True, False, False), strict=True):
            row = self._multiple(scale, layer.mean if mean else layer.variance, mean)
            line = self._back(place - 1, row, ranges)
            top = -line.minimum(ranges.first.radius)
            paid = 8 * UNIT * (top.abs() + level)
            step = (top + level + paid) / scale.abs() * (1 + 4 * UNIT * (top + level).sign())
            shift = layer.bias if mean else layer.bias_variance
            value = step + scale.sign() * shift
            bound.append((value + 2 * UNIT * (step.abs() + shift.abs()) + TINY).nan_to_num(torch.inf, torch.inf))
        high, low, most, least = bound
        root = torch.maximum((-least).clamp(min=0.0), layer.bias_variance)
        return _rectangle(
            -low, high, torch.sqrt(root) * (1 - 4 * UNIT), torch.sqrt(most) * (1 + 4 * UNIT) + LEAST, guess
        )

    def _multiple(self, scale: Tensor, weights: Tensor, linear: bool) -> QuadraticRow:
        """scale_i sum_j weights_ij h_j (or h_j^2) for every i: scale (P, H)."""
        product = scale[..., None] * weights
        paid = 2 * UNIT * product.abs() + TINY
        zero = torch.zeros_like(product)
        if linear:
            return self._row(torch.zeros_like(scale), product, paid, zero)
        return self._row(torch.zeros_like(scale), zero, zero, product + paid)

    def _row(self, constant: Tensor, alpha: Tensor, error: Tensor, beta: Tensor) -> QuadraticRow:
        """alpha is known up to the error, beta is an upper bound; relu is never negative, so that larger ones do."""
        return QuadraticRow(constant, alpha + error * (1 + 2 * UNIT) + 2 * UNIT * alpha.abs(), beta)

    def _back(self, place: int, row: QuadraticRow, ranges: DenseRanges) -> CentredForm:
        """A row over the outputs of a hidden layer, taken to the input."""
        while True:
            self.deadline.check()
            layer, constant, plane = self._crossed(place, row, ranges)
            if place == 0:
                return _over_inputs(layer, constant, plane, ranges.first)
            g = 2 * gamma(2 * layer.outputs + 16)
            mean, square = plane
            size = mean.abs() @ layer.bias.abs() + square.abs() @ layer.bias_variance
            shift = mean @ layer.bias + square @ layer.bias_variance
            spent = square @ layer.variance + g * (square.abs() @ layer.variance) + TINY
            row = self._row(
                constant + shift + g * size + 4 * UNIT * (constant.abs() + shift.abs()) + TINY,
                mean @ layer.mean, g * (mean.abs() @ layer.mean.abs()) + TINY, spent,
            )  # fmt: skip
            place -= 1

    def _crossed(
        self, place: int, row: QuadraticRow, ranges: DenseRanges
    ) -> tuple[DenseLayer, Tensor, tuple[Tensor, Tensor]]:
        """A row taken from an activation's outputs to its inputs: the layer in front, the constant, and coefficients of
        (m, v).
        """
        middle = ranges.typical[place].output[:, None]
        negative = row.beta.clamp(max=0.0)
        moved = 2 * negative * middle
        lost = (negative * middle * middle).abs()
        row = self._row(
            row.constant + lost.sum(-1) * (1 + gamma(2 * lost.shape[-1] + 8)), row.alpha + moved,
            4 * UNIT * (row.alpha.abs() + moved.abs()) + TINY, row.beta.clamp(min=0.0),
        )  # fmt: skip
        box = ranges.rectangles[place]
        plane = relu_planes(row.alpha, row.beta, Rectangle(*(side[:, None] for side in vars(box).values())))
        total = row.constant + plane.constant.sum(-1)
        error = gamma(2 * lost.shape[-1] + 16) * (row.constant.abs() + plane.constant.abs().sum(-1))
        return self.chain.layers[place], total + error, (plane.mean, plane.square)


def _over_inputs(layer: DenseLayer, constant: Tensor, plane: tuple[Tensor, Tensor], first: HiddenRanges) -> CentredForm:
    """constant + mean . m(x) + square . v(x), as lines below its negative."""
    mean, square = plane
    x, r = first.center[:, None], first.radius[:, None]
    reach = first.center.abs() + first.radius
    size = reach @ layer.mean.abs().mT + layer.bias.abs(), (reach * reach) @ layer.variance.mT + layer.bias_variance
    linear, bent = mean @ layer.mean, square @ layer.variance
    value = (linear * x).sum(-1) + (bent * x * x).sum(-1) + (bent.clamp(min=0.0) * r * r).sum(-1)
    value = value + constant + mean @ layer.bias + square @ layer.bias_variance
    error = (mean.abs() @ size[0][..., None])[..., 0] + 4 * (square.abs() @ size[1][..., None])[..., 0]
    error = 4 * gamma(4 * sum(layer.mean.shape) + 64) * (error + constant.abs()) + LEAST
    error = error + 4 * TINY * (square.abs() @ layer.variance.sum(-1))  # squares that underflow
    return CentredForm(-(value + error).nan_to_num(torch.inf, torch.inf), -(linear + 2 * bent * x))


def _rectangle(low: Tensor, high: Tensor, least: Tensor, most: Tensor, guess: Typical) -> Rectangle:
    least = least.clamp(min=LEAST)
    most = torch.maximum(most, least)
    high = torch.maximum(high, low)
    return Rectangle(low, high, least, most, guess.m.clamp(low, high), torch.sqrt(guess.v).clamp(least, most))
