"""Tiny networks of ill-conditioned numbers against exact rational arithmetic, and Phi with 80 digits: no tolerance.

A bound may be infinite (it claims nothing); a finite one that is wrong by one unit in the last place is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib import Model, verify_batch
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.model import GaussianDiagonal, Network, Posterior, WeightSamples
from bnn_vnnlib.network.network import Correlated
from bnn_vnnlib.problem.weight_sets import scattered_union
from fuzz.outcomes import processor_time
from fuzz.posterior_families import GAUSSIAN, gaussian, latents
from support import exact
from support.networks import Builder

DIGITS = 80
REGIMES: dict[str, tuple[float, ...]] = {
    "ties": (0.0, 1.0, 1.0, 2.0, 0.5),
    "cancel": (1.0, 1e16, 1e16 + 2, 2.0**53 + 2, 1 / 3, 0.1, 1.0 + 2**-52, 2.0**-53),
    "far": (1e-150, 1e150, 1e-300, 1e300, 1e30, 1e-30, 1.0, 1 / 3, 0.0),
    "small": (5e-324, 1.5e-323, 1e-310, 2.3e-308, 1e-300, 1.0, 1e300, 1e-160, 0.0),
}


def numbers(rng: np.random.Generator, regime: str, *shape: int) -> np.ndarray:
    """Numbers of either sign."""
    if regime == "plain":
        return rng.normal(size=shape)
    return rng.choice(REGIMES[regime], size=shape) * rng.choice([-1.0, 1.0], size=shape)


def judge_tiny(seed: int) -> list[str]:
    """All violations of the tiny cases of one seed: rows, probabilities at a point, over a box, samples and unions."""
    rng = np.random.default_rng([seed, 7])
    regime = str(rng.choice([*REGIMES, "plain"]))
    with np.errstate(all="ignore"):
        found = list(_rows(rng, regime))
        kind = seed % 4
        if kind == 0:
            found += _at_a_point(rng, regime)
        elif kind == 1:
            found += _over_a_box(rng, regime)
        elif kind == 2:
            found += _samples(rng, regime)
        else:
            found += _unions(rng)
    return [f"{regime}: {text}" for text in found]


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def tiny_network(rng: np.random.Generator, regime: str) -> Network:
    """Dense, residual or tied, one or two hidden layers of Relu or LeakyRelu."""
    b, n, w = Builder(), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    kind = str(rng.choice(["relu", "leaky_relu"]))
    alpha = float(rng.choice([0.0, 0.1, 1.0])) if kind == "leaky_relu" else 0.0
    shape = str(rng.choice(["dense", "residual", "tied"]))

    def draw(*size: int) -> np.ndarray:
        return numbers(rng, regime, *size)

    x = b.input(1, n)
    x = b.activation(b.shift(b.linear(x, draw(w, n)), draw(w)), kind, alpha)
    if shape == "residual":
        y = b.activation(b.shift(b.linear(x, draw(w, w)), draw(w)), kind, alpha)
        x = b.sum(x, y, signs=(1, int(rng.choice([-1, 1]))))
    if shape == "tied":
        weight = b.param(draw(w, w))
        x = b.sum(b.linear(x, weight), b.linear(b.activation(x, kind, alpha), weight), signs=(1, -1))
    b.shift(b.linear(x, draw(2, w)), draw(2))
    return b.network()


def _rows(rng: np.random.Generator, regime: str) -> Iterator[str]:
    """Bounds of rows, the linear functions below them, and the enclosures of all nodes, at corners of the boxes."""
    network = tiny_network(rng, regime)
    n = network.signature.input_size
    lower = numbers(rng, regime, n)
    upper = np.maximum(lower, lower + np.abs(numbers(rng, regime, n)) * rng.integers(0, 2, size=n))
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        return
    spreads = {
        k: _tensor(np.abs(numbers(rng, regime, *v.shape))) for k, v in network.tensors.items() if rng.random() < 0.5
    }
    scale = float(rng.choice([0.0, 1.0, 0.3, 1e-17, 4.0, 1e-150]))
    centers = {name: _tensor(tensor)[None] for name, tensor in network.tensors.items()}
    weights = WeightBoxes(centers, spreads, torch.full((1, 1), scale, dtype=torch.float64))
    low, high = _tensor(lower)[None], _tensor(upper)[None]
    C, G = _tensor(numbers(rng, regime, 1, 2, 2)), _tensor(numbers(rng, regime, 1, 2, n))
    everything = replace(network, outputs=tuple(range(len(network.nodes))))
    points = [_corner(rng, weights, lower, upper) for _ in range(4)]
    values = [exact.evaluate(everything, x, sources) for x, sources in points]
    for method in ("interval", "linear"):
        engine = Engine(network, method)
        found = engine.rows(weights, low, high, C, G, forms=True)
        ranges = engine.ranges(weights, Interval(low[None], high[None]))
        for (x, _), value in zip(points, values, strict=True):
            yield from _outside(network, ranges, value)
            y = value[-2:]
            for row in range(2):
                truth = exact.fractions(C[0, row]) @ y + exact.fractions(G[0, row]) @ x
                below = float(found.lower[0, 0, row])
                if below > -np.inf and (np.isinf(below) or Fraction(below) > truth):
                    yield f"{method}: row bound {below!r} above {float(truth)!r}"
                if found.form is None:
                    continue
                slope, offset = found.form.slope[0, 0, row], float(found.form.offset[0, 0, row])
                claims = np.isfinite(offset) and bool(torch.isfinite(slope).all())
                if claims and exact.fractions(slope) @ x + Fraction(offset) > truth:
                    yield f"{method}: linear function above {float(truth)!r}"


def _corner(rng: np.random.Generator, weights: WeightBoxes, lower: np.ndarray, upper: np.ndarray) -> tuple[Any, Any]:
    x = exact.fractions(np.where(rng.random(len(lower)) < 0.5, lower, upper))
    sources = {}
    for name, center in weights.centers.items():
        sources[name] = exact.fractions(center[0])
        if name in weights.spreads:
            signs = exact.fractions(rng.choice([-1.0, 1.0], size=center.shape[1:]))
            step = Fraction(float(weights.scale)) * exact.fractions(weights.spreads[name])
            sources[name] = sources[name] + signs * step
    return x, sources


def _outside(network: Network, ranges: Any, values: Any) -> Iterator[str]:
    start = 0
    for position, node in enumerate(network.nodes):
        size = int(np.prod(node.shape))
        z = ranges.values[position]
        for value, low, high in zip(
            values[start : start + size], z.lower.flatten().tolist(), z.upper.flatten().tolist(), strict=True
        ):
            if low > value or high < value:  # an undefined end claims nothing
                yield f"node {node.name}: {float(value)!r} outside [{low!r}, {high!r}]"
        start += size


def _model(network: Network, posterior: Posterior) -> Model:
    return Model(network, posterior, "gaussian", None, b"")


def phi(z: Any) -> Any:
    """Phi(z) with 80 digits."""
    if abs(z) < 10**4:
        return mpmath.erfc(-z / mpmath.sqrt(2)) / 2
    tail = mpmath.exp(-z * z / 2) / abs(z)  # far below the smallest float64
    return tail if z < 0 else 1 - tail


def _asked(model: Model, lower: np.ndarray, upper: np.ndarray, bound: float, strict: bool) -> Iterator[tuple[str, Any]]:
    """All ways to bound P(Y_0 > bound)."""
    cases = [(np.array([[1.0, 0.0]]), np.array([bound]), np.array([strict]))]
    for options in ({"method": "tails"}, {"method": "linear"}, {"boxes": "sampled", "num_boxes": 4, "margin": 1.5}):
        if isinstance(model.posterior, WeightSamples) and options != {"method": "linear"}:
            continue
        if isinstance(model.posterior, Correlated) and options != {"method": "tails"}:
            continue
        settings: dict[str, Any] = {"timeout": 0.2, "restarts": 1, **options}
        with processor_time():
            found = verify_batch(model, [lower], [upper], properties=[cases], **settings)
        yield str(options), found


def _compared(name: str, found: Any, truth: Any) -> Iterator[str]:
    with mpmath.workdps(DIGITS):
        low, high = mpmath.mpf(float(found.lower[0])), mpmath.mpf(float(found.upper[0]))
        if not low <= truth <= high:
            yield f"{name}: [{found.lower[0]!r}, {found.upper[0]!r}] without {mpmath.nstr(truth, 25)}"


def _threshold(rng: np.random.Generator, mean: Fraction, variance: Fraction) -> float:
    """At a tie, or some deviations away from the mean."""
    try:
        with mpmath.workdps(DIGITS):
            deviation = Fraction(float(mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)))
        return float(mean + Fraction(float(rng.choice([0.0, -0.5, 1.0, -3.0, -6.0, 8.0, -30.0]))) * deviation)
    except OverflowError:
        return 0.0


def _gaussian(mean: Fraction, variance: Fraction, bound: float, strict: bool) -> Any:
    """P(y is safe) for y ~ N(mean, variance): y > bound, or y >= bound where the violation is strict."""
    gap = mean - Fraction(bound)
    if variance == 0:
        return mpmath.mpf(1 if gap > 0 or (strict and gap == 0) else 0)
    with mpmath.workdps(DIGITS):
        ratio = mpmath.mpf(gap.numerator) / gap.denominator
        return phi(ratio / mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator))


def _variances(rng: np.random.Generator, regime: str, *shape: int) -> np.ndarray:
    spread = np.abs(numbers(rng, regime, *shape)) * rng.choice([0.0, 1e-3, 1.0], size=shape)
    return np.minimum(spread**2, 1e308)


def _at_a_point(rng: np.random.Generator, regime: str) -> Iterator[str]:
    """Only the last layer is random: at a point the output is Gaussian of rational mean and variance, in any family."""
    network = tiny_network(rng, regime)
    x = numbers(rng, regime, network.signature.input_size)
    last, bias = list(network.tensors)[-2:]
    deviations = {name: np.sqrt(_variances(rng, regime, *network.tensors[name].shape)) for name in (last, bias)}
    family = str(rng.choice(GAUSSIAN))
    try:
        posterior = gaussian(family, deviations, rng)
    except PosteriorError:  # a covariance that overflows
        return
    hidden = replace(network, outputs=(network.nodes[-2].inputs[0],))
    sources = {name: exact.fractions(tensor) for name, tensor in network.tensors.items()}
    z = exact.evaluate(hidden, exact.fractions(x), sources)
    mean = sources[last][0] @ z + sources[bias][0]
    row = exact.fractions([1.0, 0.0])
    squares, values = latents(posterior, {last: np.outer(row, z), bias: row})
    variance = Fraction(np.sum(squares * values * values))
    bound, strict = _threshold(rng, mean, variance), bool(rng.random() < 0.5)
    truth = _gaussian(mean, variance, bound, strict)
    for name, found in _asked(_model(network, posterior), x, x, bound, strict):
        yield from _compared(f"point {family} {name}", found, truth)


def _over_a_box(rng: np.random.Generator, regime: str) -> Iterator[str]:
    """w x + b with a random bias alone: the worst x of the box does not depend on it."""
    b, n = Builder(), int(rng.integers(1, 4))
    b.shift(b.linear(b.input(1, n), numbers(rng, regime, 2, n)), numbers(rng, regime, 2))
    network = b.network()
    matrix, offset = network.tensors.values()
    lower = numbers(rng, regime, n)
    upper = np.maximum(lower, lower + np.abs(numbers(rng, regime, n)))
    if not np.isfinite(upper).all():
        return
    variances = {list(network.tensors)[1]: _variances(rng, regime, 2)}
    worst = exact.fractions(np.where(matrix[0] > 0, lower, upper))
    mean = exact.fractions(matrix[0]) @ worst + Fraction(float(offset[0]))
    variance = Fraction(float(next(iter(variances.values()))[0]))
    bound, strict = _threshold(rng, mean, variance), bool(rng.random() < 0.5)
    truth = _gaussian(mean, variance, bound, strict)
    for name, found in _asked(_model(network, GaussianDiagonal(variances)), lower, upper, bound, strict):
        yield from _compared(f"box {name}", found, truth)


def _samples(rng: np.random.Generator, regime: str) -> Iterator[str]:
    """At a point every sample is exactly safe or not, and the probabilities are rational."""
    network = tiny_network(rng, regime)
    count = int(rng.integers(1, 12))
    x = numbers(rng, regime, network.signature.input_size)
    drawn = {name: numbers(rng, regime, count, *tensor.shape) for name, tensor in network.tensors.items()}
    share = rng.uniform(0, 1, size=count) ** 4 + 1e-9
    share = share / share.sum()
    y = []
    for k in range(count):
        sources = {name: exact.fractions(values[k]) for name, values in drawn.items()}
        y.append(exact.evaluate(network, exact.fractions(x), sources)[0])
    try:
        bound = float(y[rng.integers(count)])
    except OverflowError:
        return
    strict = bool(rng.random() < 0.5)
    limit = Fraction(bound)
    safe = sum(
        (Fraction(p) for p, v in zip(share, y, strict=True) if v > limit or (strict and v == limit)), Fraction(0)
    )
    truth = safe / sum(map(Fraction, share), Fraction(0))
    for name, found in _asked(_model(network, WeightSamples(drawn, share)), x, x, bound, strict):
        with mpmath.workdps(DIGITS):
            yield from _compared(f"samples {name}", found, mpmath.mpf(truth.numerator) / truth.denominator)


def _unions(rng: np.random.Generator) -> Iterator[str]:
    """Masses of unions of boxes by inclusion-exclusion with 80 digits."""
    count, size, margin = (
        int(rng.integers(1, 5)),
        int(rng.integers(1, 5)),
        float(rng.choice([1e-8, 0.1, 1.0, 3.0, 9.0])),
    )
    centers = rng.normal(size=(count, size)) * float(rng.choice([0.1, 1.0, 6.0]))
    union = scattered_union(torch.as_tensor(centers), margin)
    member = torch.as_tensor(rng.random(count) < 0.7)
    chosen = np.flatnonzero(member.numpy())
    with mpmath.workdps(DIGITS):
        truth = mpmath.mpf(0)
        for mask in range(1, 2 ** len(chosen)):
            some = chosen[[i for i in range(len(chosen)) if mask >> i & 1]]
            product = mpmath.mpf(1)
            for j in range(size):
                low = max(mpmath.mpf(float(centers[k, j])) - margin for k in some)
                high = min(mpmath.mpf(float(centers[k, j])) + margin for k in some)
                product *= max(phi(high) - phi(low), mpmath.mpf(0))
            truth += product if len(some) % 2 else -product
        low, high = float(union.union_lower(member)), float(union.union_upper(member))
        if not mpmath.mpf(low) <= truth <= mpmath.mpf(high):
            yield f"union [{low!r}, {high!r}] without {mpmath.nstr(truth, 25)}"
