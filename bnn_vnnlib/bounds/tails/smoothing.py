"""Lines for bound 4: a kink that is smoothed by the noise of its own input is nearly straight.

In front of an activation let zeta = z(x0), z claimed, which is N(m, s^2) given the weights of the stages before its own
(see `tail`; not of the nodes before it, as a map of a skip connection may come before other claims), and z(x) = zeta +
d with |d| <= rho'. The lines of the other bounds must hold on the whole range of z, which noise makes wide. But only
two things have to be served: all d, for which a slope c is fixed, and the *mean* over zeta, which is a function of m
alone.

For f = relu and 0 <= c <= 1, over |d| <= rho,
    f(zeta + d) - c d >= lower(zeta) := -c rho + c relu(zeta + rho) + (1 - c) relu(zeta - rho),
    f(zeta + d) - c d <= upper(zeta) :=  c rho + relu(zeta - (2 c - 1) rho)
(on the left is a convex function of d: its least value is at d = -zeta, cut off at +-rho, its largest at an end). With
R(m, s) = E relu(N(m, s^2)) = m Phi(m / s) + s phi(m / s), convex in m and increasing in s,
    E lower = -c rho + c R(m + rho, s) + (1 - c) R(m - rho, s) >= c m + below for all m,
    E upper =  c rho + R(m - (2 c - 1) rho, s) <= c m + above for m in its claimed range,
the first by a tangent at the least s, the second at the ends of the range and the largest s. So for a coefficient a
    a f(z(x)) >= c a (m + d) + intercept + noise,  noise = a lower(zeta) - E[..] (or upper, for a < 0),
and c a (m + d) goes on through the mean weights: m + d is the mean map of h(x), plus Delta (h(x) - h(x0)), which is
folded like all the rest. The noise is a function of what z's stage adds, given the earlier ones. It has mean zero then,
and slopes between 0 and a where c a would have a known one: in L^2 the |A| of all nodes of that stage grow by the
larger distance, the `amplitude`. (m is clipped to its claimed range, and zeta moved with it; on G that changes
nothing.) Bound 2 asks no more: its proof nowhere needs that F is concave.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds.curves import Lines
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.variation import Moments
from bnn_vnnlib.gaussian.normal import ABSOLUTE, LEAST, cdf, ratio
from bnn_vnnlib.gaussian.relu import relu_mean, relu_square
from bnn_vnnlib.network.nodes import Activation, Node
from bnn_vnnlib.rounding import TINY, UNIT


@dataclass(frozen=True, eq=False)
class Smooth:
    """Lines in the sense of bound 4 and, below and above, how far the slope of the function may be from theirs."""

    lines: Lines
    below: Tensor
    above: Tensor


@dataclass(frozen=True, eq=False)
class InputLaw:
    """What is known of the input of an activation on G, (K or 1, M, *shape) each.

    z : its range; middle : the range of m; least, most : bounds of s^2; near : rho'
    """

    z: Interval
    middle: Interval
    least: Tensor
    most: Tensor
    near: Tensor


def smoothed(node: Activation, law: InputLaw, lines: Lines, choice: Tensor | None = None) -> Smooth | None:
    """Relu, and LeakyRelu with a slope of at most 1; None for others.

    Where the plain lines are the better ones at the middle of the range of m, they are kept.
    choice (2, K, M, *shape) in [0, 1] moves c below and above, by nothing at 1/2; any c is sound.
    """
    leak = _leak(node)
    if leak is None:
        return None
    center, radius = law.middle.center_radius
    unstable = (law.z.lower < 0) & (law.z.upper > 0)
    c, low = _below(center, radius, _root(law.least) * (1 - 4 * UNIT), law.near, None if choice is None else choice[0])
    slope, intercept, far = _leaking(leak, c, low, law, -1)
    keep = ~unstable | ~(slope * center + intercept > lines.lower_slope * center + lines.lower_intercept)
    lower = (torch.where(keep, lines.lower_slope, slope), torch.where(keep, lines.lower_intercept, intercept))
    below = torch.where(keep, 0.0, far)
    c, high = _above(law.middle, _root(law.most) * (1 + 4 * UNIT), law.near, None if choice is None else choice[1])
    slope, intercept, far = _leaking(leak, c, high, law, 1)
    keep = ~unstable | ~(slope * center + intercept < lines.upper_slope * center + lines.upper_intercept)
    upper = (torch.where(keep, lines.upper_slope, slope), torch.where(keep, lines.upper_intercept, intercept))
    return Smooth(Lines(*lower, *upper), below, torch.where(keep, 0.0, far))


def smoothable(node: Node) -> bool:
    """Whether `smoothed` serves the node."""
    return isinstance(node, Activation) and _leak(node) is not None


def moments_of(node: Activation, law: InputLaw, near: Tensor, independent: bool) -> Moments | None:
    """Relu and LeakyRelu: E(|f| + rho')^2 grows with s, and for m it is largest at an end of its range, by convexity.

    near : rho' of the output
    """
    leak = _leak(node)
    if leak is None:
        return None
    s = _root(law.most) * (1 + 4 * UNIT)
    squares = []
    for m in (law.middle.lower, law.middle.upper):
        first = relu_mean(m, s) + leak * relu_mean(-m, s) + 2 * _slack(m, s)
        second = relu_square(m, s) + leak**2 * relu_square(-m, s)
        squares.append(second + 2 * near * first + near**2)
    scale = (law.middle.magnitude + s + near) ** 2
    return Moments(torch.maximum(*squares) + 8 * ABSOLUTE * scale + TINY, s, independent)


def _leak(node: Activation) -> float | None:
    """alpha of Relu and LeakyRelu, if it is at most 1."""
    match node.kind:
        case "relu":
            return 0.0
        case "leaky_relu" if isinstance(node.alpha, float) and 0 <= node.alpha <= 1:
            return node.alpha
        case _:
            return None


def _leaking(leak: float, c: Tensor, intercept: Tensor, law: InputLaw, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    """From relu to leak z + (1 - leak) relu(z): slope, intercept moved by sign, distance of slopes.

    The slope is rounded, which is paid for at m + d.
    """
    far = torch.maximum(c, 1 - c) * (1 - leak) * (1 + 8 * UNIT)
    value = (1 - leak) * intercept
    paid = 4 * UNIT * (value.abs() + law.middle.magnitude + law.near) + TINY
    return leak + (1 - leak) * c, value + sign * paid, far


def _below(m: Tensor, radius: Tensor, s: Tensor, near: Tensor, choice: Tensor | None) -> tuple[Tensor, Tensor]:
    """c and the intercept of the tangent at m, which has the slope c: c = c Phi+ + (1 - c) Phi-."""
    minus, plus = cdf(ratio(m - near, s)), cdf(ratio(m + near, s))
    c = ((minus + LEAST) / (1 - plus + minus + 2 * LEAST)).clamp(0, 1)
    c = _moved(c, choice)
    left, right = (torch.maximum(relu_mean(z, s) - _slack(z, s), z.clamp(min=0)) for z in (m - near, m + near))
    turn = (c * plus + (1 - c) * minus - c).abs() + 4 * ABSOLUTE
    value = -c * near + c * right + (1 - c) * left - c * m - turn * radius
    return c, value - ABSOLUTE * (m.abs() + radius + near + s)


def _above(middle: Interval, s: Tensor, near: Tensor, choice: Tensor | None) -> tuple[Tensor, Tensor]:
    """c and the intercept; c is about the slope of the chord of R over the range of m."""
    width = middle.upper - middle.lower
    chord = (relu_mean(middle.upper, s) - relu_mean(middle.lower, s)) / width.clamp(min=LEAST)
    point = cdf(ratio((middle.lower + middle.upper) / 2, s))
    narrow = width <= 1e-6 * (s + middle.magnitude)
    c = torch.where(narrow, point, chord).nan_to_num(0.5, 0.5, 0.5).clamp(0, 1)
    c = _moved(c, choice)
    ends = []
    for m in (middle.lower, middle.upper):
        z = m - (2 * c - 1) * near
        ends.append(c * near + relu_mean(z, s) + _slack(z, s) - c * m)
    return c, torch.maximum(*ends) + ABSOLUTE * (middle.magnitude + near + s)


def _moved(c: Tensor, choice: Tensor | None) -> Tensor:
    return c if choice is None else (c + choice - 0.5).clamp(0, 1)


def _slack(m: Tensor, s: Tensor) -> Tensor:
    return ABSOLUTE * (m.abs() + s) + LEAST


def _root(variance: Tensor) -> Tensor:
    """s; never 0, where it has no derivative, by an error that `_slack` covers."""
    return torch.sqrt(variance.clamp(min=LEAST**3))
