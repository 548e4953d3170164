"""Small dense networks of every family whose P_safe and decision are known: in closed form, or network by network.

At most one input varies, or there is no hidden layer. Then the least margin of a sampled network over the box is exact:
it lies at an end, at a kink, or where two rows cross. In some cases P_safe or the decision itself is known:

- a sum of weights is Gaussian, its variance a rational number: no hidden layer at a point, and the same behind a layer
  without noise;
- v relu(z) + c compares with a threshold like z itself, if v and c are numbers;
- between two ends of a box a linear function is safe if it is so at both: two Gaussians, by Owen's function;
- E[v relu(z)] = E[v] (m Phi(m / s) + s phi(m / s)) + Cov(v, z) Phi(m / s) for jointly Gaussian v and z ~ N(m, s^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats

from bnn_vnnlib import BatchResult, Model, Verdict, verify_batch
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model import Network, Posterior, WeightSamples, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.network.nodes import Activation, Linear
from fuzz.ladder import LAST, TINY
from fuzz.outcomes import asked, processor_time
from fuzz.posterior_families import CORRELATED, FAMILIES, drawn, latents, parts_of
from fuzz.tally import Tally, kind, of_probability
from support import exact
from support.networks import Builder

Array = NDArray[np.float64]
Case = tuple[Array, Array, NDArray[np.bool_]]
"""A (R, m), b (R,), strict (R,): A y <= b is a violation."""

CLEAR = 1e-9
"""Relative distance from a threshold that rounding does not bridge."""

ERROR = 1e-12
"""Of Owen's function and of what is added up here."""

DIGITS = 40
MEANS = ((4096, 0.02), (65_536, 1e-4), (262_144, LAST))
"""Networks and level of one-sided tests of a mean."""

AT_ONCE = 2**14
"""Networks of one chunk."""


def _gauss() -> tuple[Array, Array]:
    """Nodes and weights of E[f(N)] for smooth f: Gauss's rule on 96 pieces of [-12, 12]."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    ends = np.linspace(-12, 12, 97)
    z = (ends[:-1, None] + ends[1:, None] + (ends[1:] - ends[:-1])[:, None] * nodes).ravel() / 2
    return z, np.tile(weights, 96) / 8 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


GAUSS = _gauss()


@dataclass(frozen=True, eq=False)
class Known:
    """A network, a box and a property.

    place : the input that varies, or -1 for a point; several may vary where there is no hidden layer (place -2)
    """

    seed: int
    family: str
    network: Network
    posterior: Posterior
    lower: Array
    upper: Array
    cases: tuple[Case, ...]
    place: int

    @property
    def model(self) -> Model:
        """As if it had been read."""
        return Model(self.network, self.posterior, "gaussian", None, b"")

    @cached_property
    def layers(self) -> list[Linear]:
        """The matrices, in order; a bias follows each."""
        return [node for node in self.network.nodes if isinstance(node, Linear)]

    @property
    def leak(self) -> float:
        """Slope of the activations on the left."""
        return next((float(n.alpha or 0.0) for n in self.network.nodes if isinstance(n, Activation)), 0.0)

    def params(self, count: int, seed: int) -> dict[str, Array]:
        """Drawn tensors (count, *shape), the others (1, *shape)."""
        generator = torch.Generator().manual_seed(10**6 * self.seed % 2**40 + seed)
        found = {name: tensor[None] for name, tensor in self.network.tensors.items()}
        if isinstance(self.posterior, WeightSamples):
            return found | dict(self.posterior.samples)
        drawn_ = sample(self.network, self.posterior, count, generator)
        return found | {name: values.numpy() for name, values in drawn_.items()}

    def least(self, params: dict[str, Array]) -> Array:
        """(K,) margins of the worst x and case, of its rows a.y - b the largest; exact but for rounding."""
        if self.place == -2:
            return self._least_linear(params)
        steps = np.array([[0.0, 1.0]]) if self.place >= 0 else np.zeros((1, 1))
        names = list(self.network.tensors)
        for layer in range(len(self.layers) - 1):
            steps = _crossings(steps, self._layer(params, names, steps, layer))
        y = self._layer(params, names, steps, len(self.layers) - 1)
        found = []
        for a, b, _ in self.cases:
            rows = y @ a.T - b
            if len(b) > 1 and self.place >= 0:
                pairs = np.triu_indices(len(b), 1)
                both = _crossings(np.broadcast_to(steps, rows.shape[:2]), rows[..., pairs[0]] - rows[..., pairs[1]])
                rows = self._layer(params, names, both, len(self.layers) - 1) @ a.T - b
            found.append(rows.max(-1).min(-1))
        return np.min(found, 0)

    def _layer(self, params: dict[str, Array], names: list[str], steps: Array, layer: int) -> Array:
        """Sums of a layer (K, P, width) at points along the box (K or 1, P)."""
        h = self.lower + steps[..., None] * (self.upper - self.lower)
        for index in range(layer + 1):
            weight, bias = params[names[2 * index]], params[names[2 * index + 1]]
            z = h @ weight.swapaxes(-1, -2) + bias[:, None]
            h = np.where(z > 0, z, self.leak * z)
        return z

    def _least_linear(self, params: dict[str, Array]) -> Array:
        """Without a hidden layer, and one row in each case: the corner is known."""
        weight, bias = params.values()
        center, radius = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        found = []
        for a, b, _ in self.cases:
            rows = a[0] @ weight  # (K, n)
            found.append(rows @ center - np.abs(rows) @ radius + bias @ a[0] - b[0])
        return np.min(found, 0)

    @property
    def scale(self) -> float:
        """Size of the numbers that a margin is made of."""
        a, b, _ = self.cases[0]
        return float(np.abs(b).max() + np.abs(a).max() * 10)

    def broken(self, count: int, seed: int) -> int:
        """How many of so many networks clearly violate."""
        return self._count(count, seed, lambda least: least < -CLEAR * self.scale)

    def nearly(self, count: int, seed: int) -> int:
        """How many violate, or nearly."""
        return self._count(count, seed, lambda least: least <= CLEAR * self.scale)

    def _count(self, count: int, seed: int, holds: Callable[[Array], Array]) -> int:
        parts = range(0, count, AT_ONCE)
        chunks = (self.params(min(AT_ONCE, count - part), 10**5 * (seed + 1) + part) for part in parts)
        return sum(int(holds(self.least(chunk)).sum()) for chunk in chunks)

    @cached_property
    def truth(self) -> Any:
        """P_safe, with an error of ERROR at most; None if it is not known in closed form."""
        if isinstance(self.posterior, WeightSamples):
            least, share = self.least(self.params(0, 0)), self.posterior.probabilities
            if (np.abs(least) <= CLEAR * self.scale).any():
                return None
            least = np.broadcast_to(least, share.shape)
            return float(share[least > 0].sum() / share.sum())
        if len(self.cases) > 1 or len(self.cases[0][1]) > 1:
            return None
        total = mpmath.mpf(0)
        with mpmath.workdps(DIGITS):
            for share, tensors, gaussian in parts_of(self.network, self.posterior):
                found = self._safe(tensors, gaussian)
                if found is None:
                    return None
                total += mpmath.mpf(share.numerator) / share.denominator * found
        return total

    def _safe(self, tensors: Any, gaussian: Gaussian | None) -> Any:
        """P_safe of one component, where a threshold on one Gaussian, or on two, decides."""
        a, bound = exact.fractions(self.cases[0][0][0]), Fraction(float(self.cases[0][1][0]))
        sums = _Sums(tensors, gaussian)
        ends = [self.lower] if self.place == -1 else [self.lower, self.upper]
        if len(self.layers) == 1 and self.place != -2:
            return _both_above([sums.linear(0, a, exact.fractions(x)) for x in ends], bound)
        if len(self.layers) != 2:
            return None
        first, last = (sums.random(0), sums.random(1))
        if self.place == -1 and not first:
            return _both_above([sums.linear(1, a, self._hidden(sums, self.lower))], bound)
        if last or len(sums.bias(0)) > 1 or self.leak:
            return None
        slope, offset = (a @ sums.weight(1))[0], bound - a @ sums.bias(1)  # slope relu(z) <= offset is a violation
        if slope == 0:
            return None
        level = offset / slope
        if level <= 0:
            return None
        one = np.array([Fraction(1)], dtype=object)
        zs = [sums.linear(0, one, exact.fractions(x)) for x in ends]
        return _both_above(zs, level) if slope > 0 else _both_above([z.negated() for z in zs], -level)

    def _hidden(self, sums: _Sums, x: Array) -> exact.Exact:
        z = sums.weight(0) @ exact.fractions(x) + sums.bias(0)
        leak = Fraction(self.leak)
        return np.array([v if v > 0 else leak * v for v in z], dtype=object)

    def means(self, x: Array, count: int, seed: int, classes: bool) -> tuple[Array, Array]:
        """Means and standard deviations over sampled networks of the outputs, or of their softmax, at points (P, n)."""
        params = self.params(count, seed)
        sources = {name: torch.tensor(values) for name, values in params.items() if len(values) > 1}
        y = evaluate(self.network, torch.as_tensor(x)[None], sources).reshape(-1, len(x), 2).numpy()
        y = special.softmax(y, -1) if classes else y
        if not isinstance(self.posterior, WeightSamples) or len(y) == 1:
            return y.mean(0), y.std(0)
        share = self.posterior.probabilities / self.posterior.probabilities.sum()
        mean = np.tensordot(share, y, 1)
        return mean, np.sqrt(np.tensordot(share, (y - mean) ** 2, 1))

    def probability(self, x: Array, a: Array) -> float | None:
        """E[softmax_0] or E[softmax_1] (by `a`) without a hidden layer: a sigmoid of a Gaussian, by quadrature."""
        if len(self.layers) > 1:
            return None
        other, total = exact.fractions(a - a[::-1]), 0.0
        for share, tensors, gaussian in parts_of(self.network, self.posterior):
            z = _Sums(tensors, gaussian).linear(0, other, exact.fractions(x))
            mean, deviation = float(z.mean), math.sqrt(z.covariance(z))
            total += float(share) * float(GAUSS[1] @ special.expit(mean + deviation * GAUSS[0]))
        return total

    def decision(self, x: Array, a: Array) -> Any:
        """E[a . f(x)] where there is one hidden layer of relu, or none; else None."""
        if len(self.layers) > 2 or self.leak:
            return None
        row, total = exact.fractions(a), mpmath.mpf(0)
        with mpmath.workdps(DIGITS):
            for share, tensors, gaussian in parts_of(self.network, self.posterior):
                sums = _Sums(tensors, gaussian)
                value = _mpf(sums.expected(row, exact.fractions(x)) if len(self.layers) == 2 else
                             sums.linear(0, row, exact.fractions(x)).mean)  # fmt: skip
                total += _mpf(share) * value
        return total


def _mpf(value: Any) -> Any:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mpmath.mpf(value)


def _crossings(steps: Array, z: Array) -> Array:
    """Steps (K, P) in order, and where lines between the values (K, P, H) there cross zero."""
    steps = np.broadcast_to(steps, z.shape[:2])
    left, right = z[:, :-1], z[:, 1:]
    with np.errstate(all="ignore"):
        share = np.where(left * right < 0, left / (left - right), 0.0)
    crossing = steps[:, :-1, None] + (steps[:, 1:] - steps[:, :-1])[..., None] * share
    return np.sort(np.concatenate([steps, crossing.reshape(len(z), -1)], 1), 1)


@dataclass(frozen=True, eq=False)
class _Sum:
    """A Gaussian: its mean, and its values in independent latents of known variances."""

    mean: Fraction
    values: exact.Exact
    variances: exact.Exact

    def negated(self) -> _Sum:
        return _Sum(-self.mean, -self.values, self.variances)

    def covariance(self, other: _Sum) -> Fraction:
        return Fraction(np.sum(self.variances * self.values * other.values)) if len(self.values) else Fraction(0)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Weighted sums of the weights of one component, which are w0, b0, w1, b1, ... in the network's order."""

    tensors: Any
    gaussian: Gaussian | None

    def weight(self, layer: int) -> exact.Exact:
        return exact.fractions(list(self.tensors.values())[2 * layer])

    def bias(self, layer: int) -> exact.Exact:
        return exact.fractions(list(self.tensors.values())[2 * layer + 1])

    def random(self, layer: int) -> bool:
        """Whether one of its weights varies."""
        weight, bias = self.weight(layer), self.bias(layer)
        for place in [*np.ndindex(*weight.shape)]:
            if self._sum({2 * layer: _unit(weight, place)}).values.any():
                return True
        return any(self._sum({2 * layer + 1: _unit(bias, (k,))}).values.any() for k in range(len(bias)))

    def linear(self, layer: int, a: exact.Exact, h: exact.Exact) -> _Sum:
        """a . (W h + b)."""
        return self._sum({2 * layer: np.outer(a, h), 2 * layer + 1: a})

    def expected(self, a: exact.Exact, x: exact.Exact) -> Any:
        """E[a . (W1 relu(W0 x + b0) + b1)]."""
        weight, total = self.weight(1), self._sum({3: a}).mean
        found = _mpf(total)
        for j in range(weight.shape[1]):
            unit = np.array([Fraction(int(i == j)) for i in range(weight.shape[1])], dtype=object)
            z, v = self.linear(0, unit, x), self._sum({2: np.outer(a, unit)})
            mean, variance = _mpf(z.mean), _mpf(z.covariance(z))
            if variance == 0:
                found += _mpf(v.mean) * max(mean, mpmath.mpf(0))
                continue
            s = mpmath.sqrt(variance)
            phi, density = mpmath.ncdf(mean / s), mpmath.npdf(mean / s)
            found += _mpf(v.mean) * (mean * phi + s * density) + _mpf(z.covariance(v)) * phi
        return found

    def _sum(self, coefficients: dict[int, exact.Exact]) -> _Sum:
        names = list(self.tensors)
        every = {name: np.zeros(np.shape(t), dtype=object) + Fraction(0) for name, t in self.tensors.items()}
        every |= {names[place]: values for place, values in coefficients.items()}
        mean = sum((np.sum(exact.fractions(self.tensors[names[p]]) * v) for p, v in coefficients.items()), Fraction(0))
        variances, values = latents(self.gaussian, every)
        return _Sum(Fraction(mean), values, variances)


def _unit(like: exact.Exact, place: tuple[int, ...]) -> exact.Exact:
    found = np.zeros(like.shape, dtype=object) + Fraction(0)
    found[place] = Fraction(1)
    return found


def _both_above(sums: list[_Sum], bound: Fraction) -> Any:
    """P(all of one or two Gaussians exceed the bound); None at a tie that decides."""
    gaps = [z.mean - bound for z in sums]
    variances = [z.covariance(z) for z in sums]
    if any(gap == 0 and variance == 0 for gap, variance in zip(gaps, variances, strict=True)):
        return None
    if any(gap < 0 and variance == 0 for gap, variance in zip(gaps, variances, strict=True)):
        return mpmath.mpf(0)
    uncertain = [k for k, variance in enumerate(variances) if variance > 0]
    scores = [_mpf(gaps[k]) / mpmath.sqrt(_mpf(variances[k])) for k in uncertain]
    if not scores:
        return mpmath.mpf(1)
    if len(scores) == 1:
        return mpmath.ncdf(scores[0])
    correlation = float(_mpf(sums[0].covariance(sums[1])) / mpmath.sqrt(_mpf(variances[0] * variances[1])))
    return _orthant(float(scores[0]), float(scores[1]), correlation)


def _orthant(h: float, k: float, correlation: float) -> float | None:
    """P(N1 <= h, N2 <= k), by Owen's function; None where it loses digits."""
    if abs(correlation) > 1 - 1e-9 or min(abs(h), abs(k)) < 1e-6:
        return None
    root = math.sqrt((1 - correlation) * (1 + correlation))
    first, second = (k / h - correlation) / root, (h / k - correlation) / root
    value = special.ndtr(h) / 2 + special.ndtr(k) / 2 - special.owens_t(h, first) - special.owens_t(k, second)
    return float(value - (0.5 if h * k < 0 else 0.0))


def random_known(seed: int) -> Known:
    """A case; equal seeds give equal cases.

    Two kinds are there for what seldom decides elsewhere: `folds`, where noise alone turns the worst corner about, so
    that the mean of |noise| decides; and `unit`, one neuron that has to leave its range, so that events decide.
    """
    rng = np.random.default_rng([seed, 23])

    def one(values: Any, shares: Any = None) -> Any:
        return values[rng.choice(len(values), p=shares)]

    special_ = one(("", "folds", "unit"), (0.76, 0.1, 0.14))
    family, depth = one(FAMILIES, (0.24, 0.16, 0.16, 0.18, 0.18, 0.08)), one((0, 1, 2, 3), (0.4, 0.45, 0.1, 0.05))
    depth = {"folds": 0, "unit": 1}.get(special_, depth)
    many = special_ == "folds" or (depth == 0 and rng.random() < 0.3)
    widths = (1,) if special_ == "unit" else (1, 2, 4)
    network = _network(rng, depth, widths, one((8, 32, 64) if many else (1, 2, 4)), seed)
    inputs = network.signature.input_size
    radius = one((1e-3, 0.03, 0.2, 1.0), (0.35, 0.4, 0.18, 0.07))
    share = one((-1, 0.003, 0.02, 0.1, 0.3, 0.5, 0.8), (0.06, 0.14, 0.25, 0.25, 0.15, 0.1, 0.05))
    center, size = rng.normal(size=inputs), float(10 ** rng.uniform(-2, -0.3))
    which = one(("all", "first", "last", "one"), (0.45, 0.25, 0.2, 0.1))
    if special_ == "folds":
        network = replace(network, tensors={name: 0.02 * tensor for name, tensor in network.tensors.items()})
        center, radius, share, size = center * one((0.0, 0.1)), 1.0, one((0.05, 0.2, 0.35, 0.45, 0.55)), 1.0
    if special_ == "unit":
        share, which, size = -1, "first", one((0.3, 1.0))
    deviations = _deviations(network, rng, which, size)
    means = {name: network.tensors[name] for name in deviations}
    parts = int(rng.integers(2, 9) if family == "samples" else one((1, 2, 3)))
    posterior = drawn(family, means, deviations, rng, parts)
    place = -2 if many else one((-1, int(rng.integers(inputs))), (0.55, 0.45))
    reach = radius * (np.full(inputs, float(many)) if place < 0 else np.eye(inputs)[place])
    shapes = ((1, 1), (1, 2), (2, 1))
    cases, rows = one(shapes[::2], (0.8, 0.2)) if many else one(shapes, (0.75, 0.1, 0.15))
    violation = tuple((rng.normal(size=(rows, 2)), np.zeros(rows), rng.random(rows) < 0.5) for _ in range(cases))
    found = Known(seed, family, network, posterior, center - reach, center + reach, violation, place)
    return _with_bounds(found, float(share), rng)


def _network(rng: np.random.Generator, depth: int, widths: tuple[int, ...], inputs: int, seed: int) -> Network:
    """Hidden layers of relu or of leaky relu, and two outputs."""
    b, leaky = Builder(seed), bool(rng.random() < 0.12)
    x = b.input(1, inputs)
    for _ in range(depth):
        width = int(rng.choice(widths) if depth == 1 else rng.integers(2, 4))
        x = b.dense(x, width, "leaky_relu" if leaky else "relu", 0.1 if leaky else 0.0)
    b.dense(x, 2)
    return b.network()


def _deviations(network: Network, rng: np.random.Generator, which: str, size: float) -> dict[str, Array]:
    """Standard deviations of some tensors, about that size; one in twenty is 0."""
    names = list(network.tensors)
    chosen = {"all": names, "first": names[:2], "last": names[-2:], "one": [names[rng.integers(len(names))]]}[which]
    shapes = {name: network.tensors[name].shape for name in chosen}
    return {n: size * rng.uniform(0.3, 1.0, shape) * (rng.random(shape) < 0.95) for n, shape in shapes.items()}


def _with_bounds(known: Known, share: float, rng: np.random.Generator) -> Known:
    """Thresholds of the cases, each of which about this share of networks violates; between samples.

    share -1: so few that they are sought where all noise is twice as large.
    """
    params, cases = known.params(4096, 7), []
    if share < 0:
        tensors = known.network.tensors
        params, share = (
            {n: tensors[n] + 2 * (values - tensors[n]) for n, values in params.items()},
            rng.uniform(0.005, 0.05),
        )
    for a, b, strict in known.cases:
        least = replace(known, cases=((a, b, strict),)).least(params)
        step = float(np.quantile(least, share))
        if known.family == "samples":
            step = float(np.sort(least)[int(rng.integers(len(least) - 1)) :][:2].mean()) if len(least) > 1 else step
        cases.append((a, b + step, strict))
    return replace(known, cases=tuple(cases))


WAYS: dict[str, tuple[dict[str, Any], ...]] = {
    "gaussian": ({}, {"method": "tails"}, {"method": "linear"}, {"boxes": "sampled", "num_boxes": 4, "margin": 1.5}),
    "samples": ({},),
}
"""How a family is bounded; correlated families and mixtures: by default and by tails."""


def judge_known(seed: int, tally: Tally | None = None, seconds: float = 0.3) -> list[str]:
    """All violations of one case, by all ways to bound it."""
    known, tally = random_known(seed), tally or Tally()
    rng, found = np.random.default_rng([seed, 29]), []
    ways = WAYS.get(known.family, WAYS["gaussian"][:2])
    chosen = [*ways[:2], *(way for way in ways[2:] if rng.random() < 0.15)]
    tau = float(rng.choice([0.95, 0.999999]))
    for options in chosen:
        bounds = _bounded(known, tau_safe=tau, tau_unsafe=tau, timeout=seconds, **options)
        name = asked(options)
        if bounds is None:
            tally.add(known.family, "probabilistic", name, [("both", "vacuous")])
            continue
        found += _judged(known, bounds, name, tally)
    if rng.random() < 0.4:
        classes = known.family in CORRELATED or rng.random() < 0.5  # a correlated regression is refused
        bounds = _bounded(known, query="decision", likelihood="categorical" if classes else "gaussian", timeout=seconds)
        if bounds is None:
            tally.add(known.family, "decision", "auto", [("both", "vacuous")])
        else:
            found += _decision(known, bounds, classes, tally)
    return [f"{known.family}: {text}" for text in found]


def _bounded(known: Known, **options: Any) -> BatchResult | None:
    try:
        with processor_time():
            box = known.lower[None], known.upper[None]
            return verify_batch(known.model, *box, properties=[list(known.cases)], **options)
    except UnsupportedError:
        return None


def _judged(known: Known, bounds: BatchResult, name: str, tally: Tally) -> Iterator[str]:
    lower, upper, truth = float(bounds.lower[0]), float(bounds.upper[0]), known.truth
    expected = {Verdict.UNSAT: lower >= 0.95, Verdict.SAT: upper < 0.999999}
    if not expected.get(bounds.verdicts[0], True):
        yield f"{name}: {bounds.verdicts[0]} with [{lower}, {upper}]"
    if truth is not None:
        tally.add(known.family, "probabilistic", name, of_probability(lower, upper, float(truth)))
        if not lower - ERROR <= truth <= upper + ERROR:
            yield f"{name}: [{lower!r}, {upper!r}], P_safe = {mpmath.nstr(mpmath.mpf(truth), 17)}"
        return
    share = known.broken(4096, 0) / 4096
    tally.add(known.family, "probabilistic", name, of_probability(lower, upper, 1 - share))
    for side, found in (
        ("lower", TINY.contradicts(known.broken, 1 - lower, more=True)),
        ("upper", TINY.contradicts(known.nearly, 1 - upper, more=False)),
    ):
        if found is not None:
            yield f"{name}: [{lower!r}, {upper!r}], {side} bound: {found[0]} of {found[1]} networks violate"


def _decision(known: Known, bounds: BatchResult, classes: bool, tally: Tally) -> Iterator[str]:
    """Bounds on the outputs of D at points of the box: against closed forms, or against means of sampled networks."""
    points = np.array([known.lower + share * (known.upper - known.lower) for share in (0.0, 0.3, 1.0)])
    mean, spread = known.means(points, 4096, 12, classes)
    for output in range(2):
        low, high = float(bounds.lower[0, output]), float(bounds.upper[0, output])
        exactly = known.probability if classes else known.decision
        truths = [exactly(x, np.eye(2)[output]) for x in points]
        if any(truth is None for truth in truths):
            truths = mean[:, output].tolist()
            text = _contradicted(known, points, classes, output, low, high)
            wrong = [] if text is None else [text]
        else:
            room = [ERROR * (1 + abs(truth)) for truth in truths]
            outside = [not low - r <= truth <= high + r for truth, r in zip(truths, room, strict=True)]
            wrong = [mpmath.nstr(truth, 17) for truth, out in zip(truths, outside, strict=True) if out]
        for text in wrong:
            yield f"decision: [{low!r}, {high!r}] without {text}"
        scale = 1.0 if classes else float(spread[:, output].max())
        gaps = float(min(truths)) - low, high - float(max(truths))
        for side, gap, bound, trivial in zip(("lower", "upper"), gaps, (low, high), (0.0, 1.0), strict=True):
            vacuous = not math.isfinite(bound) or (classes and bound == trivial)
            found = kind(gap / (scale or 1.0), vacuous=vacuous, stake=scale > 0)
            tally.add(known.family, "decision", "auto", [(side, found)])


def _contradicted(known: Known, points: Array, classes: bool, output: int, low: float, high: float) -> str | None:
    """A mean of sampled networks that lies outside, by one-sided tests by Student's t."""
    for seed, (count, level) in enumerate(MEANS):
        mean, spread = (part[:, output] for part in known.means(points, count, 20 + seed, classes))
        slack = stats.t.isf(level, count - 1) * spread / math.sqrt(count) + ERROR * (1 + np.abs(mean))
        wrong = (low > mean + slack) | (high < mean - slack)
        if not wrong.any():
            return None
    return f"{mean[wrong][0]!r} +- {slack[wrong][0]!r}"
