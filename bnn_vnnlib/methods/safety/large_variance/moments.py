"""Failure probabilities of rows at fixed inputs for dense networks of any depth, by exponential moments.

1. Rows of networks of any depth.

For a row a and M = a . f(x) - bound, Markov's inequality on the event G of `bounds.dense.exponents` (all ranges
hold):
    P(M <= 0) <= delta + e^{lam bound} E[e^{-lam a . f(x)} 1_G].
Lemma. Given the last hidden layer h, M is Gaussian with some mean and variance s^2 >= S. Then
    P(M <= 0 | h) <= kap(lam s) E[e^{-lam M} | h],    kap(eta) = sup over u of Phi(-u) e^{eta u - eta^2 / 2}.
Proof: with u = E[M | h] / s the left side is Phi(-u), and E[e^{-lam M} | h] = e^{-lam s u + (lam s)^2 / 2}.
kap falls: at the best u, d log kap / d eta = u - eta, and there phi(u) / Phi(-u) = eta, a hazard that exceeds u. Hence
    P(M <= 0) <= delta + P(s^2 < S, G) + kap(lam sqrt S) e^{lam bound} E[e^{-lam a . f(x)} 1_G],
    P(s^2 < S, G) <= e^{rho (S - noise)} E[e^{-rho sum_j (a^2 sig^2)_j h_j^2} 1_G],
which spends SPARE_SHARE of delta once more for each row.
log Phi(-u) + eta u is concave in u, so that its maximum is at most its value at u0 plus |slope at u0| times the
distance to the maximum, which is below 1 where the slopes at u0 - 1 and u0 + 1 differ in sign.

2. Parabolas above logarithms of exponential moments, as functions of the mean and the variance in front of a ReLU.

log E[e^{f(relu(N(m, s^2)))}] <= constant + slope (m - center) + bend (m - center)^2 / 2 + square s^2 on a rectangle
of (m, s), bend >= 0. A plane above a convex function on a range is far above it in the middle; a parabola is not.

S(m, s) is convex in (m, s) (the three cases of `gaussian.relu`). Take nodes of distances d, e over the
ranges of m and s. In a cell of nodes S is below the mean of its values at the four corners, weighted as (m, s) is by
the corners (first in m, then in s); the parabola is at most bend d^2 / 8 + square^+ e^2 / 4 below that of its own
values. So that sum, with the largest value of S less the parabola at a node, is a constant that does.

The third case is split: E e^f = P + alpha G, P convex, G = E relu above its tangents Phi(tau) m + phi(tau) s, and s
>= (s^2 + l u) / (l + u) on [l, u]; log g <= l0 + g e^{-l0} - 1.

3. Exponential moments of both layers, to second order in what the first one does to the second.

`bounds.dense.exponents` bounds log E[e^{u . f} | h], h the first layer's outputs, by planes in the means m_i and
the variances v_i of the second layer's inputs. Here it is bounded by the parabolas of 2,

    log E[e^{u . f} | h] <= sum_i (k_i + r_i (m_i - c_i) + q_i (m_i - c_i)^2 / 2 + t_i v_i)   on their ranges, q_i >= 0,

m_i = mu_i . h + b_i, v_i = sig_i^2 . h^2 + noise. About any numbers e_k, with a = h - e, this is C + alpha . h +
beta . h^2 + a' K a / 2, K = mu' diag(q) mu. The h_k are independent and their moments L_k = log E e^{alpha h_k +
beta h_k^2} are known (`first_layer.UnitLaw`). With d_k the tilted mean of h_k less e_k, and g standard Gaussian,
K = F F',
    e^{a' K a / 2} = E_g e^{g . F' a}    (Hubbard and Stratonovich).
Let J be the event that |(K a)_k| <= b_k for all k. On J, under the law of g shifted by F' a, y = F g leaves |y_k| <=
Y_k = b_k + z root K_kk for some k with probability at most e = 2 H Phi(-z). So e^{a' K a / 2} (1 - e) <= E_g[e^{y .
a}; all |y_k| <= Y_k] on J. For these y the tilted law has E e^{y (h_k - its mean)} <= e^{u_k y^2 / 2}, hence
    log E[e^{..}; J] <= C + sum_k L_k + log E_g e^{d . y + y' U y / 2} - log(1 - e)
                     <= C + sum_k L_k - log det(I - F' U F) / 2 + d' K d / (2 (1 - largest eigenvalue)) - log(1 - e).
P(not J) <= `spent`: by e^{u y^2 / 2} without a tilt, for |lam K_jk| <= y_k, where u_k = s_k^2 will do for every y
(h_k is a function of a Gaussian variable of Lipschitz constant s_k),
    P((K (h - E h))_j > x) <= e^{-lam x + lam^2 S_j / 2}, S_j = sum_k K_jk^2 u_k, and b_j adds |(K (E h - e))_j|.
Without bends, K = 0 and nothing is spent.

4. Rows of networks with two hidden layers, with sharper exponents.

With M = a . f(x) - bound, G the event that all (m_i, s_i) of the second layer stay in their ranges, and J of 3,
    P(M <= 0) <= P(not G) + P(not J) + P(s^2 < S, G) + kap(lam root S) e^{lam bound} E[e^{-lam a . f}; G, J]
as in 1: given both hidden layers M is Gaussian, and G, J, s^2 are known.

Ranges. m_i and v_i are sums over k of functions of the independent h_k: Chernoff's bound with exact moments, four
sides a neuron. Where `bounds.dense.exponents` replaces -h^2 by a tangent, -h^2 is kept: its moments are known as
well. s^2 = noise + sum_j (a^2 sig^2)_j relu_j^2 is bounded in two ways, `log_squares` and `log_coupled`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import DenseRanges, Exponents, Typical, typical
from bnn_vnnlib.bounds.dense.hidden import CentredForm, hidden
from bnn_vnnlib.gaussian.normal import LEAST, cdf, density
from bnn_vnnlib.gaussian.relu import Rectangle, Surface, log_moment, log_moment_active, relu_mean
from bnn_vnnlib.methods.safety.large_variance.chaos import eigenvalues
from bnn_vnnlib.methods.safety.large_variance.first_layer import UnitLaw, law_of
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.rounding import gamma
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

# Two hidden layers

_NODES, _LEVELS = 17, 7
"""Numbers of nodes over a range of m, and over one of s."""

BENDS = (0.0, 0.4, 1.0)
"""Bends that are tried, relative to the one that makes the parabola touch at the centre."""

_PAID = 1e-11
"""Relative error allowed to sums of products here, 40 times what a thousand terms need."""


@dataclass(frozen=True, eq=False)
class Parabola:
    """f <= constant + slope (m - center) + bend (m - center)^2 / 2 + square s^2 on a rectangle; bend >= 0."""

    constant: Tensor
    slope: Tensor
    bend: Tensor
    square: Tensor
    center: Tensor

    def worth(self, at: Rectangle, spread: Tensor) -> Tensor:
        """Mean of the parabola at the typical s, if m has this deviation; infinite where it is not known."""
        gap = at.m - self.center
        value = self.constant + self.slope * gap + self.bend * (gap**2 + spread**2) / 2 + self.square * at.s**2
        return value.nan_to_num(torch.inf, torch.inf, torch.inf)


def _better(old: Parabola, new: Parabola, at: Rectangle, spread: Tensor, where: Tensor | None = None) -> Parabola:
    better = new.worth(at, spread) < old.worth(at, spread)
    better = better if where is None else better & where
    return Parabola(*(torch.where(better, a, b) for a, b in zip(vars(new).values(), vars(old).values(), strict=True)))


def parabolas(
    alpha: Tensor, beta: Tensor, at: Rectangle, spread: Tensor, bends: Sequence[Sequence[float]]
) -> list[Parabola]:
    """Above log E exp(alpha z + beta z^2), z = relu(N(m, s^2)), beta >= 0: the best one for each choice of bends."""
    at = at.expand(alpha.shape)
    a, b, falls = alpha[..., None, None], beta[..., None, None], alpha < 0
    rising = _above_convex(lambda m, s: log_moment(a, b, m, s), at, spread, bends)
    active = _above_convex(lambda m, s: log_moment_active(a, b, m, s), at, spread, bends)
    small = _by_tangents(alpha, beta, at, spread, bends)
    found = []
    for up, first, second in zip(rising, active, small, strict=True):
        best = _better(first, second, at, spread)
        parts = zip(vars(best).values(), vars(up).values(), strict=True)
        found.append(Parabola(*(torch.where(falls, new, old) for new, old in parts)))
    return found


def _above_convex(surface: Surface, at: Rectangle, spread: Tensor, bends: Sequence[Sequence[float]]) -> list[Parabola]:
    """Parabolas above a convex surface, one for each choice of bends: of several slopes and bends the best at the
    typical point.
    """

    def nodes(low: Tensor, high: Tensor, count: int) -> Tensor:
        part = torch.linspace(0.0, 1.0, count, dtype=low.dtype, device=low.device)
        return torch.cat([low[..., None] + (high - low)[..., None] * part[:-1], high[..., None]], -1)

    m, s = nodes(at.low, at.high, _NODES), nodes(at.least, at.most, _LEVELS)
    value = surface(m[..., :, None], s[..., None, :])
    size = value.abs().amax((-2, -1))
    wide, tall = (at.high - at.low).clamp(min=1e-300), (at.most - at.least).clamp(min=1e-300)
    step, lift = wide / (_NODES - 1), tall / (_LEVELS - 1)
    near = [surface((at.m + sign * step / 2)[..., None, None], at.s[..., None, None])[..., 0, 0] for sign in (-1, 0, 1)]
    over = [surface(at.m[..., None, None], (at.s * part)[..., None, None])[..., 0, 0] for part in (0.98, 1.02)]
    slopes = (near[2] - near[0]) / step, (value[..., -1, _LEVELS // 2] - value[..., 0, _LEVELS // 2]) / wide
    squares = (
        (over[1] - over[0]) / (at.s**2 * (1.02**2 - 0.98**2)),
        (value[..., _NODES // 2, -1] - value[..., _NODES // 2, 0]) / (tall * (at.most + at.least)),
    )
    gap = m - at.m[..., None]
    middle = surface(m[..., :, None], at.s[..., None, None])[..., 0]
    best: list[Parabola | None] = [None] * len(bends)
    for rise in (part.nan_to_num(0.0, 0.0, 0.0) for part in slopes):
        above = middle - near[1][..., None] - rise[..., None] * gap
        full = torch.where(gap.abs() > step[..., None] / 2, 2 * above / gap**2, 0.0).amax(-1)
        full = full.nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
        for square in (part.nan_to_num(0.0, 0.0, 0.0) for part in squares):
            rest = (value - square[..., None, None] * s[..., None, :] ** 2).amax(-1)
            for place, shares in enumerate(bends):
                for share in shares:
                    bend = share * full
                    top = (rest - rise[..., None] * gap - bend[..., None] * gap**2 / 2).amax(-1)
                    top = top + bend * step**2 / 8 + square.clamp(min=0.0) * lift**2 / 4
                    paid = size + rise.abs() * wide + bend * wide**2 + square.abs() * at.most**2 + 1e-3
                    new, old = Parabola(top + _PAID * paid, rise, bend, square, at.m), best[place]
                    best[place] = new if old is None else _better(old, new, at, spread)
    return [found for found in best if found is not None]


def _by_tangents(
    alpha: Tensor, beta: Tensor, at: Rectangle, spread: Tensor, bends: Sequence[Sequence[float]]
) -> list[Parabola]:
    """The third case of `gaussian.relu`: exp f - alpha z is convex and alpha E z is below its tangents."""
    level = log_moment(alpha, beta, at.m, at.s)
    share = alpha.abs() * torch.exp(-level)

    def convex(m: Tensor, s: Tensor) -> Tensor:
        log = log_moment(alpha[..., None, None], beta[..., None, None], m, s)
        grown, slope = torch.exp(log - level[..., None, None]), share[..., None, None]
        return grown + slope * relu_mean(m, s) + _PAID * (grown * (1 + log.abs()) + slope * (m.abs() + s))

    tau = (at.m / at.s).clamp(-40.0, 40.0)
    ends = at.least + at.most
    lift, slope = share * density(tau) / ends, share * cdf(tau)
    usable = (level > -25.0) & (alpha < 0)
    found = []
    for above in _above_convex(convex, at, spread, bends):
        paid = _PAID * (1 + level.abs() + above.constant.abs() + share * at.size) + LEAST
        constant = level - 1 + above.constant - lift * at.least * at.most - slope * above.center + paid
        constant = torch.where(usable, constant, torch.inf)
        found.append(Parabola(constant, above.slope - slope, above.bend, above.square - lift, above.center))
    return found


PRODUCT_DEVIATIONS = 3.5
"""z: each y_j escapes its reach Y_j with a probability of at most 2 Phi(-z), which is paid for."""

_STEPS = 3
"""Number of steps towards the tilted mean in the search for the point e of expansion."""

_MAX_EIGENVALUE = 0.98
"""Largest eigenvalue of the quadratic form that is served: beyond, its Gaussian mean is next to infinite."""


def first_moments(dense: DenseLayer, law: UnitLaw, found: Parabola, spent: float, *, bent: bool) -> Tensor:
    """(P, R): log E exp of sums of parabolas (P, R, H2) but for their constants, on J; infinite where there is none.

    Parameters
    ----------
    dense : the second layer
    bent : whether the parabolas have bends; without, nothing is spent
    """
    square = found.square
    beta = square @ dense.variance + _PAID * (square.abs() @ dense.variance) + LEAST
    center = law.plain()[0].expand(beta.shape)
    for _ in range(_STEPS if bent else 1):
        center = law.tilted_mean(_about(dense, found, center)[2], beta)
    value, slope, alpha = _about(dense, found, center)
    size = slope.abs() @ dense.mean.abs()
    total = value + square @ dense.bias_variance - (alpha * center).sum(-1)
    alpha = alpha + _PAID * size  # h is never negative
    logs = law.above(alpha, beta)
    scale = slope.abs() @ dense.bias.abs() + square.abs() @ dense.bias_variance
    scale = scale + ((slope * found.center).abs() + (found.slope * found.center).abs()).sum(-1) + value.abs()
    scale = scale + (size * center + logs.abs()).sum(-1)
    largest = center @ dense.mean.abs().mT + dense.bias.abs() + found.center.abs()
    scale = scale + (found.bend * largest**2).sum(-1)
    total = total + logs.sum(-1) + 2 * _PAID * (1 + scale)
    if bent:
        total = total + _second(dense, law, found, (alpha, beta, center), spent)
    return total.nan_to_num(torch.inf, torch.inf)


def _about(dense: DenseLayer, found: Parabola, center: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The parabolas about m at h = center: their values' sum (P, R), slopes (P, R, H2), and alpha (P, R, H1)."""
    gap = center @ dense.mean.mT + dense.bias - found.center
    slope = found.slope + found.bend * gap
    return (found.slope * gap + found.bend * gap**2 / 2).sum(-1), slope, slope @ dense.mean


def _second(
    dense: DenseLayer, law: UnitLaw, found: Parabola, at: tuple[Tensor, Tensor, Tensor], spent: float
) -> Tensor:
    """(P, R): what the quadratic form adds to the logarithm."""
    alpha, beta, center = at
    form = torch.einsum("pri,ik,il->prkl", found.bend, dense.mean, dense.mean)
    reach = _reach(form, center, law, spent)
    local = law.proxy(alpha, beta, reach)
    root = torch.sqrt(local)
    matrix = root[..., None] * form * root[..., None, :]
    usable = matrix.abs().amax((-2, -1)) < 1e3  # neither nan nor infinite
    matrix = torch.where(usable[..., None, None], matrix, 0.0)
    values, trace = eigenvalues(matrix), matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    largest = values.amax(-1)
    gap = law.tilted_mean(alpha, beta) - center
    pulled = torch.einsum("prk,prkl,prl->pr", gap, form, gap).clamp(min=0.0) * (1 + 1e-6) + 1e-9 * trace
    second = -torch.log1p(-values.clamp(max=_MAX_EIGENVALUE)).sum(-1) / 2 + pulled / (
        2 * (1 - largest.clamp(max=_MAX_EIGENVALUE))
    )
    escaped = 2 * form.shape[-1] * float(cdf(torch.tensor(-PRODUCT_DEVIATIONS, dtype=torch.float64))) * (1 + 1e-9)
    rounded = 1e-9 * (reach * law.s).sum(-1)  # y times what the tilted means are off by
    total = second * (1 + 1e-9) - math.log1p(-escaped) + rounded
    return torch.where(usable & (largest < _MAX_EIGENVALUE), total, torch.inf)


def _reach(form: Tensor, center: Tensor, law: UnitLaw, spent: float) -> Tensor:
    """(P, R, H): the reaches Y that the y_j keep to, but for what `PRODUCT_DEVIATIONS` says; not finite: none."""
    exponent = math.log(2 * form.shape[-1] / spent)
    mean, _, spread = law.plain()
    variance = ((form * spread[:, :, None]) ** 2).sum(-1)  # products first: squares of a small K underflow
    rate = math.sqrt(2 * exponent) / torch.sqrt(variance + 1e-200)
    near = (rate[..., None] * form.abs()).amax(-2) * (1 + 1e-9)
    zero = torch.zeros_like(near)
    local = torch.minimum(law.proxy(zero, zero, near), law.s**2 * (1 + _PAID))
    size = ((form * torch.sqrt(local)[..., None, :]) ** 2).sum(-1)
    bound = (rate * size / 2 + exponent / rate) * (1 + 1e-9)
    shift = torch.einsum("prkl,prl->prk", form, mean - center).abs()
    paid = _PAID * torch.einsum("prkl,prl->prk", form.abs(), mean + center + law.s)
    diagonal = form.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    return (bound + shift + paid + PRODUCT_DEVIATIONS * torch.sqrt(diagonal)) * (1 + 1e-9)


_WIDEST = 256
"""Largest number of neurons of the first layer that is served."""

_TIMES = (0.6, 0.8, 1.0, 1.25)
"""Rates that are tried for ranges, relative to the best one for a Gaussian law."""

_LARGEST_BETA = 0.4
"""beta s^2 of the rows that bound variances, at most."""


def sharpened(chain: DenseChain) -> bool:
    """Whether the chain has two hidden layers, not too wide for a matrix a row."""
    return len(chain.layers) == 3 and chain.layers[0].outputs <= _WIDEST


@dataclass(frozen=True, eq=False)
class AtPoints:
    """What is known of P points at a budget: the first layer's law, typical values, ranges (P, 1, H2)."""

    chain: DenseChain
    law: UnitLaw
    typical: list[Typical]
    ranges: Rectangle

    @property
    def spread(self) -> Tensor:
        """(P, 1, H2): deviations of the m_i, about."""
        return self.typical[1].m_spread[:, None]

    def rates_at_once(self, rows: int) -> int:
        """How many rates of that many rows to look at in one go."""
        return at_once(2 * len(self.law.blur) * rows * self.chain.layers[1].outputs * _NODES * _LEVELS)

    def log_moments(self, u: Tensor, spent: float) -> Tensor:
        """(2, P, R): upper bounds on log E[e^{u . f}; G] and on log E[e^{u . f}; G, J] for u (P, R, m),
        each entry rounded once at most."""
        last, square = self.chain.layers[2], u * u
        alpha, size = u @ last.mean, u.abs() @ last.mean.abs()
        beta = square @ last.variance / 2 * (1 + _PAID)
        known, paid = u @ last.bias + square @ last.bias_variance / 2, u.abs() @ last.bias.abs()
        known = known + _PAID * (paid + square @ last.bias_variance)
        flat, bent = self._parabolas(alpha + _PAID * size, beta, ((0.0,), BENDS))
        found = [self._first(part, spent, bent=part is bent) for part in (flat, bent)]
        return torch.stack(found) + known

    def log_squares(self, weights: Tensor) -> Tensor:
        """(P, R): upper bounds on log E[exp(-sum_j weights_j relu_j^2); G], relu_j the second layer's outputs, weights
        (P, R, H2): -z^2 <= c^2 - 2 c z.
        """
        middle = self.typical[1].output[:, None]
        lost = weights * middle**2
        alpha = -2 * weights * middle
        found = self._parabolas(alpha + _PAID * alpha.abs(), torch.zeros_like(alpha), ((0.0,),))[0]
        return (lost * (1 + _PAID)).sum(-1) * (1 + _PAID) + self._first(found, 0.0, bent=False)

    def _parabolas(self, alpha: Tensor, beta: Tensor, bends: Sequence[Sequence[float]]) -> list[Parabola]:
        return parabolas(alpha, beta, self.ranges, self.spread.expand(alpha.shape), bends)

    def _first(self, found: Parabola, spent: float, *, bent: bool) -> Tensor:
        total = found.constant.sum(-1) + _PAID * found.constant.abs().sum(-1)
        return total + first_moments(self.chain.layers[1], self.law, found, spent, bent=bent)

    def log_coupled(self, weights: Tensor) -> Tensor:
        """Like `log_squares`, from the ends of the ranges: relu(m + s N) is at least relu(low + least N) for N > 0, and
        relu(low + most N) for N < 0, so that with independent N_j the sum is at least one of independent terms.
        """
        low, least, most = self.ranges.low, self.ranges.least, self.ranges.most
        above, below = (_half_square(weights, low, s, sign) for s, sign in ((least, 1.0), (most, -1.0)))
        return (torch.log(above + below) + 1e-11).sum(-1)


def _half_square(weights: Tensor, low: Tensor, s: Tensor, sign: float) -> Tensor:
    """E[exp(-w relu(low + s N)^2); sign N > 0], rounded up: absolute error 1e-12. With c = 1 + 2 w s^2 the square is
    completed, and N has mean -2 w low s / c and variance 1 / c; where low + s N < 0 the integrand is 1.
    """
    c = 1 + 2 * weights * s**2
    middle, root = -2 * weights * low * s / c, torch.sqrt(c)
    scale = torch.exp(-weights * low**2 / c) / root
    kink = -low / s
    if sign > 0:
        start = kink.clamp(min=0.0)
        return scale * cdf((middle - start) * root) + (cdf(start) - 0.5).clamp(min=0.0) + 1e-12
    start = kink.clamp(max=0.0)
    return scale * (cdf(-middle * root) - cdf((start - middle) * root)).clamp(min=0.0) + cdf(start) + 1e-12


def laws_at_points(chain: DenseChain, lower: Tensor, upper: Tensor, budget: float) -> AtPoints:
    """The law, the typical values and the ranges at boxes (P, n) of size nearly zero; P(not G) <= budget."""
    first = hidden(chain.layers[0], lower, upper)
    law, expected = law_of(first), typical(chain, first.center)
    return AtPoints(chain, law, expected, _ranges(chain.layers[1], law, expected[1], budget))


def _ranges(dense: DenseLayer, law: UnitLaw, guess: Typical, budget: float) -> Rectangle:
    """Ranges of the (m, s) of the second layer that fail with probability `budget` at most, by Chernoff's bound."""
    level = math.log(4 * dense.outputs / budget) * (1 + 1e-12)
    reach = math.sqrt(2 * level)
    mean, square, _ = law.plain()
    spread = torch.sqrt((square - mean**2).clamp(min=0.0) @ (dense.mean**2).mT)[:, 0] + 1e-9 * (1 + guess.m.abs())
    shaken = guess.v_spread + 1e-6 * guess.v + LEAST
    most = _LARGEST_BETA / ((dense.variance * law.s**2).amax(-1) + LEAST)
    sides = []
    for linear, sign in ((True, 1.0), (True, -1.0), (False, 1.0), (False, -1.0)):
        best = torch.full_like(spread, torch.inf)
        for times in _TIMES:
            rate = times * reach / (spread if linear else shaken)
            rate = torch.minimum(rate, most) if not linear and sign > 0 else rate
            row = sign * rate[..., None] * (dense.mean if linear else dense.variance)
            zero = torch.zeros_like(row)
            logs = law.above(row + _PAID * row.abs(), zero) if linear else law.above(zero, row + _PAID * row.abs())
            total = logs.sum(-1) + _PAID * logs.abs().sum(-1) + level
            best = torch.minimum(best, (total / rate + _PAID * (total / rate).abs()).nan_to_num(torch.inf, torch.inf))
        shift = dense.bias if linear else dense.bias_variance
        sides.append(best + sign * shift + _PAID * shift.abs())
    high, low, most_v, least_v = sides
    least = torch.sqrt(torch.maximum((-least_v).clamp(min=0.0), dense.bias_variance)) * (1 - _PAID)
    least = least.clamp(min=LEAST)
    above = torch.maximum(torch.sqrt(most_v) * (1 + _PAID), least)
    high = torch.maximum(high, -low)
    middle, dev = guess.m.clamp(-low, high), torch.sqrt(guess.v).clamp(least, above)
    return Rectangle(*(side[:, None] for side in (-low, high, least, above, middle, dev)))


# Rows

_BUDGETS = (1e-1, 3e-2, 1e-2, 1e-3, 1e-5)
"""Probabilities delta that the ranges may fail with; the best one is taken for each row."""

SHARPER = (3e-2, 5e-3, 3e-4, 1e-5)
"""Probabilities delta behind two hidden layers, whose ranges cost more."""

SPARE_SHARE = 0.02
"""Share of delta spent on s^2 >= S."""

_MOMENT_RATES = (0.3, 0.5, 0.75, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 5.5, 8.0)
"""lam times the standard deviation of M, about; rho times that of s^2 alike."""

_NEWTON = 40
"""Number of steps towards the maximum of kap, from a start within 1 of it."""


@dataclass(frozen=True, eq=False)
class RowsAtPoints:
    """Is outputs . f(x) <= bound: boxes (P, n) of size nearly zero, one fixed x in each.

    outputs (P, R, m), bound (P, R).
    """

    lower: Tensor
    upper: Tensor
    outputs: Tensor
    bound: Tensor


def failures_by_budget(chain: DenseChain, question: RowsAtPoints, deadline: Deadline) -> list[tuple[float, Tensor]]:
    """Pairs of a budget delta and bounds (P, R), at most 1, on the probability that the row holds at x while G does; as
    many budgets as time suffices for.

    G is the same for all rows at a point, so that its delta is paid once for them all.
    """
    sharper = sharpened(chain)

    def tried(budget: float) -> tuple[float, Tensor]:
        exponents = Exponents(chain, budget)
        values = _sharper(chain, budget, question, deadline) if sharper else _with(exponents, question)
        return exponents.delta, values.nan_to_num(1.0).clamp(max=1.0)

    budgets = SHARPER if sharper else _BUDGETS
    return deadline.reached(budgets if Exponents(chain, budgets[0]).sides else budgets[:1], tried)


def _rates(guess: Typical, a: Tensor) -> Tensor:
    """Values of lam to be tried (L, P, R)."""
    spread = torch.sqrt((a * a * (guess.v + guess.m_spread**2)[:, None]).sum(-1)) + 1e-100
    return a.new_tensor(_MOMENT_RATES)[:, None, None] / spread


def _best(logs: Tensor, factor: Tensor, spent: float) -> Tensor:
    """(P, R): of all rates the best, with the lemma and without."""
    plain, sharp = (torch.exp(part.clamp(max=0.0)).amin(0) for part in (logs, logs + factor))
    return torch.minimum(plain, sharp + spent)


def _with(exponents: Exponents, question: RowsAtPoints) -> Tensor:
    last, a = exponents.chain.layers[-1], question.outputs
    ranges = exponents.ranges(question.lower, question.upper)
    lam = _rates(ranges.typical[-1], a)
    logs = _at_rates(lam[..., None] * -a, lambda rows: _above(exponents.lines(ranges, rows), ranges))
    shift = lam * question.bound
    logs = logs + shift + 1e-12 * (1 + logs.abs() + shift.abs())
    spent = SPARE_SHARE * exponents.budget
    noise = (a * a) @ last.bias_variance
    least = _least_variance(exponents, ranges, (a * a) @ last.variance, noise, spent)
    return _best(logs, log_kappa(lam * torch.sqrt(least)), spent) * (1 + 1e-12)


def _sharper(chain: DenseChain, budget: float, question: RowsAtPoints, deadline: Deadline) -> Tensor:
    """Bounds (P, R) on the probability that a row holds at x while G does, for two hidden layers, with the exponents of
    4.
    """
    last, a = chain.layers[-1], question.outputs
    at = laws_at_points(chain, question.lower, question.upper, budget)
    lam = _rates(at.typical[-1], a)
    shift, spent = lam * question.bound, SPARE_SHARE * budget
    variance, noise = (a * a) @ last.variance, (a * a) @ last.bias_variance
    least = least_variance(at, variance, noise, noise.new_tensor(_MOMENT_RATES), spent, deadline)
    factor = log_kappa(lam * torch.sqrt(least))
    parts = []
    for rate in lam.split(at.rates_at_once(a.shape[1])):
        deadline.check()
        rows, points, height = (rate[..., None] * -a).transpose(0, 1), a.shape[0], a.shape[1]
        logs = at.log_moments(rows.reshape(points, -1, a.shape[2]), spent)
        parts.append(logs.reshape(2, points, len(rate), height).transpose(1, 2))
    found = torch.ones_like(question.bound)
    for paid, logs in zip((0.0, spent), torch.cat(parts, 1), strict=True):
        logs = logs + shift + 1e-12 * (1 + logs.abs() + shift.abs())
        found = torch.minimum(found, (_best(logs, factor, spent) + paid).nan_to_num(1.0))
    return (found + at.law.blur[:, None]) * (1 + 1e-12)


def _at_rates(rows: Tensor, above: Callable[[Tensor], Tensor]) -> Tensor:
    """(L, P, R) for rows (L, P, R, m) from bounds (P, R) on logarithms for rows (P, R, m)."""
    rates, points, height = rows.shape[:3]
    flat = rows.transpose(0, 1).reshape(points, rates * height, -1)
    return above(flat).reshape(points, rates, height).transpose(0, 1)


def _at_least(logs: Tensor, rho: Tensor, spent: float) -> Tensor:
    """(P, R): S with P(sum_j variance_j h_j^2 < S, G) <= spent from log E[e^{-rho sum}; G] <= logs (L, P, R)."""
    found = ((math.log(spent) - logs) / rho * (1 + 1e-12)).nan_to_num(0.0, 0.0, 0.0)
    return found.amax(0).clamp(min=0.0)


def _with_noise(least: Tensor, noise: Tensor, width: int) -> Tensor:
    return (least + noise) * (1 - gamma(2 * width + 16) - 1e-9)


def least_variance(
    at: AtPoints, variance: Tensor, noise: Tensor, rates: Tensor, spent: float, deadline: Deadline
) -> Tensor:
    """(P, R): S with P(s^2 < S, G) <= spent, s^2 = noise + sum_j variance_j relu_j^2; variance (P, R, H2)."""
    guess = at.typical[1]
    second = (guess.output_variance + guess.output**2)[:, None]
    spread = torch.sqrt(((variance * second) ** 2).sum(-1)) + 1e-100
    best = torch.zeros_like(noise)
    for rate in rates.split(at.rates_at_once(noise.shape[1])):
        rho = rate[:, None, None] / spread
        for logs in (at.log_squares, at.log_coupled):
            deadline.check()
            best = torch.maximum(best, _at_least(_at_rates(rho[..., None] * variance, logs), rho, spent))
    return _with_noise(best, noise, variance.shape[-1])


def _least_variance(exponents: Exponents, ranges: DenseRanges, variance: Tensor, noise: Tensor, spent: float) -> Tensor:
    """(P, R): S with P(s^2 < S, G) <= spent, s^2 = noise + sum_j variance_j h_j^2; variance (P, R, H)."""
    guess = ranges.typical[-2].output[:, None]
    spread = torch.sqrt(((variance * guess * guess) ** 2).sum(-1)) + 1e-100
    rho = noise.new_tensor(_MOMENT_RATES)[:, None, None] / spread
    logs = _at_rates(-rho[..., None] * variance, lambda rows: _above(exponents.squares(ranges, rows), ranges))
    return _with_noise(_at_least(logs, rho, spent), noise, variance.shape[-1])


def _above(below: CentredForm, ranges: DenseRanges) -> Tensor:
    """(P, R): bounds on logarithms whose negatives lie above these lines."""
    return -below.minimum(ranges.first.radius)


def log_kappa(eta: Tensor) -> Tensor:
    """log kap(eta), rounded up; at most 0."""
    eta = eta.clamp(min=0.0)
    low, high = torch.full_like(eta, -40.0), eta + 1.0
    for _ in range(_NEWTON):  # bisection: the slope falls in u
        middle = (low + high) / 2
        rising = _slope(middle, eta) > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    value = torch.special.log_ndtr(-low) + eta * low - eta**2 / 2
    inside = (_slope(low - 1, eta) > 0) & (_slope(low + 1, eta) < 0)
    bound = value + _slope(low, eta).abs() + 1e-10 * (1 + (eta * low).abs() + eta**2)
    return torch.where(inside, bound.clamp(max=0.0), 0.0)


def _slope(u: Tensor, eta: Tensor) -> Tensor:
    """Slope of log Phi(-u) + eta u in u: eta - phi(u) / Phi(-u)."""
    return eta - torch.exp(-(u**2) / 2 - torch.special.log_ndtr(-u)) / math.sqrt(2 * math.pi)
