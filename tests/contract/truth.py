"""What is known of the truth behind a case: exactly where there is a formula, else by sampled networks at points.

Every statement about sampled networks is a test of level `LEVEL` for each number, so that a right bound is called wrong
once in a billion.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import integrate, special, stats

from bnn_vnnlib.model import GaussianDiagonal, WeightSamples
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Correlated
from bnn_vnnlib.network.nodes import Activation
from bnn_vnnlib.result import Rule
from bnn_vnnlib.rules import Cases
from contract.zoo import Array, Case, networks, transformed
from fuzz.posterior_families import latents
from support import exact

LEVEL = 1e-9
"""Of each statistical test."""

NETWORKS = 2**13
"""Networks that are sampled."""

POINTS = 12
"""Random points of a box, half of them drawn to the border; its corners are added where they are few."""

ROUNDING = 1e-9
"""Relative error of what is computed here without sampling."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Facts about the N items of a case."""

    case: Case

    @cached_property
    def points(self) -> list[Array]:
        """(G, n) points of each of the N items."""
        rng, n = np.random.default_rng(3), self.case.lower.shape[1]
        share = rng.random((POINTS, n))
        share[::2] = np.clip(3 * share[::2] - 1, 0, 1)
        if n <= 3:
            share = np.concatenate([share, list(itertools.product((0.0, 1.0), repeat=n)), np.full((1, n), 0.5)])
        boxes = zip(self.case.lower, self.case.upper, strict=True)
        return [np.unique(np.clip(low + (high - low) * share, low, high), axis=0) for low, high in boxes]

    @cached_property
    def shares(self) -> Array:
        """(S,) of the networks."""
        posterior = self.case.posterior
        if isinstance(posterior, WeightSamples):
            return np.asarray(posterior.probabilities / posterior.probabilities.sum())
        return np.full(NETWORKS, 1 / NETWORKS)

    @cached_property
    def known(self) -> bool:
        """All networks of the posterior are looked at, not some that were drawn."""
        return isinstance(self.case.posterior, WeightSamples)

    @cached_property
    def _params(self) -> dict[str, torch.Tensor]:
        return networks(self.case.model, NETWORKS, seed=11)

    def outputs(self, x: Array) -> Array:
        """(S, P, m) at points (P, n)."""
        return np.asarray(evaluate(self.case.model.network, torch.as_tensor(x), self._params).numpy())

    # P_safe

    @cached_property
    def _violated(self) -> NDArray[np.bool_]:
        """(S, N): at some of the points."""
        return np.stack(
            [violated(self.outputs(x), self.case.properties[i]).any(1) for i, x in enumerate(self.points)], 1
        )

    def safety_evidence(self, lower: Array, upper: Array, point: Array) -> list[str]:
        """What speaks against bounds (N,) on P_safe; point (N, n): at which P_safe is claimed to be that small."""
        found = []
        for i, (low, high) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True)):
            violations = self._violated[:, i]
            if np.isfinite(point[i]).all():
                violations = violations | violated(self.outputs(point[i : i + 1]), self.case.properties[i])[:, 0]
            known = self._exact[i]
            if known is not None:
                wrong = low > known + ROUNDING, high < known - ROUNDING
            elif self.known:
                safe = 1 - float(self.shares @ violations)
                wrong = low > safe + ROUNDING, high < safe - ROUNDING
            else:
                count = int(violations.sum())
                wrong = (
                    bool(stats.binom.sf(count - 1, NETWORKS, min(1.0, 1 - low)) < LEVEL),
                    bool(stats.binom.cdf(count, NETWORKS, min(1.0, 1 - high)) < LEVEL),
                )
            sides = [side for side, is_wrong in zip(("lower", "upper"), wrong, strict=True) if is_wrong]
            found += [f"item {i}: P_safe in [{low}, {high}] is wrong, {side}" for side in sides]
        return found

    @cached_property
    def safe(self) -> Array:
        """(N,): about P_safe, at most."""
        estimate = 1 - self.shares @ self._violated
        return np.array([e if k is None else k for e, k in zip(estimate, self._exact, strict=True)])

    @cached_property
    def _exact(self) -> list[float | None]:
        return [self.exact_safe(i) for i in range(len(self.case.lower))]

    def exact_safe(self, item: int) -> float | None:
        """P_safe of one row at a point where it is Gaussian, or over a box where only the last bias is random."""
        law, cases = self._linear, self.case.properties[item]
        if law is None or len(cases) != 1 or len(cases[0][0]) != 1:
            return None
        (a,), (b,), _ = cases[0]
        low, high = self.case.lower[item], self.case.upper[item]
        if (low < high).any() and not law.bias_only:
            return None
        x = np.where(a @ law.matrix > 0, low, high)
        mean, variance = law.of(a, x)
        return float(special.ndtr((mean - b) / np.sqrt(variance)))

    # the decision

    @cached_property
    def _rows(self) -> list[tuple[Array, Array]]:
        """Of row 0, then of the outputs: mean or quantile (G, 1 + m), and its error by sampling or rounding."""
        return [self._decision(i, x) for i, x in enumerate(self.points)]

    def _decision(self, item: int, x: Array) -> tuple[Array, Array]:
        (row,) = self.case.properties[item][0][0]
        y = transformed(self.outputs(x), self.case.transform)
        if self._level is not None:
            value, error = self._quantiles(y, row, self._level)
        else:
            values = np.concatenate([y @ row[:, None], y], -1)
            value = np.tensordot(self.shares, values, 1)
            away = -float(special.ndtri(LEVEL)) * values.std(0) / np.sqrt(NETWORKS)
            error = (0 if self.known else 1) * away + ROUNDING * (1 + np.abs(values).max())
        known = self._exact_means(x)
        if known is not None:
            value = np.concatenate([known @ row[:, None], known], -1)
            error = np.full_like(value, ROUNDING * (1 + np.abs(value).max()))
        return value, error

    @property
    def _level(self) -> float | None:
        return Rule(self.case.options.get("rule", "mean")).level

    def _quantiles(self, y: Array, row: Array, level: float) -> tuple[Array, Array]:
        """Where the quantile of the posterior surely lies, by order statistics; a row combines those of the outputs."""
        order = np.argsort(y, 0)
        below = np.cumsum(self.shares[order], 0)
        margin = 1e-12 if self.known else -float(special.ndtri(LEVEL)) / (2 * np.sqrt(NETWORKS))
        ordered = np.take_along_axis(y, order, 0)

        def at(level: float) -> Array:
            place = (below < level).sum(0, keepdims=True).clip(max=len(y) - 1)
            return np.asarray(np.take_along_axis(ordered, place, 0)[0])

        low, high = at(level - margin), at(level + margin)
        value, error = (low + high) / 2, (high - low) / 2 + ROUNDING
        return np.concatenate([value @ row[:, None], value], -1), np.concatenate([error @ abs(row)[:, None], error], -1)

    def decision_evidence(self, lower: Array, upper: Array) -> list[str]:
        """What speaks against bounds (N, 1 + m) on row 0 and the outputs."""
        above = np.array([(value + error).min(0) for value, error in self._rows])
        below = np.array([(value - error).max(0) for value, error in self._rows])
        found = [f"item {i}: lower bound {lower[i, j]} of {j} is wrong" for i, j in np.argwhere(lower > above).tolist()]
        return found + [f"item {i}: upper bound {upper[i, j]} of {j} is wrong" for i, j in np.argwhere(upper < below)]

    def decided(self, item: int, x: Array) -> tuple[float, float]:
        """The row's excess over its bound at a point (n,), and the error of that."""
        value, error = self._decision(item, x[None])
        return float(value[0, 0] - self.case.properties[item][0][1][0]), float(error[0, 0])

    def gaps(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """(N,) twice: distances of the bounds on row 0 from the truth, in standard deviations of the row."""
        values = [value[:, 0] for value, _ in self._rows]
        deviation = self._deviations
        least, most = (np.array([f(value) for value in values]) for f in (np.min, np.max))
        return (least - lower[:, 0]) / deviation, (upper[:, 0] - most) / deviation

    @cached_property
    def _deviations(self) -> Array:
        """(N,) standard deviations of row 0 over the networks and the points."""
        return np.array([
            (transformed(self.outputs(x), self.case.transform) @ self.case.properties[i][0][0][0]).std()
            for i, x in enumerate(self.points)
        ])  # fmt: skip

    # formulas

    @cached_property
    def _linear(self) -> _Linear | None:
        """The law of a network without activations."""
        network, posterior = self.case.model.network, self.case.posterior
        if any(isinstance(node, Activation) for node in network.nodes) or len(network.tensors) != 2:
            return None
        if not isinstance(posterior, GaussianDiagonal | Correlated):
            return None
        return _Linear(*network.tensors.values(), posterior, tuple(network.tensors))

    def _exact_means(self, x: Array) -> Array | None:
        """(G, m): the decision of a network without activations, or of a regression with one layer of ReLU."""
        law, tensors = self._linear, list(self.case.model.network.tensors.values())
        if law is not None and self.case.transform == "identity" and self._level in (None, 0.5):
            return np.asarray(x @ law.matrix.T + law.bias)
        if law is not None and self.case.transform == "softmax" and len(law.bias) == 2:
            moments = [law.of(np.array([1.0, -1.0]), point) for point in x]
            first = np.array([_logistic_normal(mean, np.sqrt(variance)) for mean, variance in moments])
            return np.stack([first, 1 - first], -1)
        posterior = self.case.posterior
        kinds = [node.kind for node in self.case.model.network.nodes if isinstance(node, Activation)]
        one_layer = kinds == ["relu"] and len(tensors) == 4 and isinstance(posterior, GaussianDiagonal)
        if not one_layer or self.case.transform != "identity" or self._level is not None:
            return None
        variances = list(posterior.variances.values())  # type: ignore[union-attr]
        mean, deviation = x @ tensors[0].T + tensors[1], np.sqrt(x**2 @ variances[0].T + variances[1])
        t = mean / deviation
        hidden = mean * special.ndtr(t) + deviation * np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
        return np.asarray(hidden @ tensors[2].T + tensors[3])


@dataclass(frozen=True, eq=False)
class _Linear:
    """W x + b with Gaussian W (m, n), b (m,), of these names."""

    matrix: Array
    bias: Array
    posterior: GaussianDiagonal | Correlated
    names: tuple[str, str]

    @property
    def bias_only(self) -> bool:
        """Nothing else is random."""
        return isinstance(self.posterior, GaussianDiagonal) and set(self.posterior.variances) == {self.names[1]}

    def of(self, a: Array, x: Array) -> tuple[float, float]:
        """Mean and variance of a . (W x + b)."""
        weights = {self.names[0]: exact.fractions(np.outer(a, x)), self.names[1]: exact.fractions(a)}
        squares, values = latents(self.posterior, weights)
        return float(a @ (self.matrix @ x + self.bias)), float(np.sum(squares * values * values))


def _logistic_normal(mean: float, deviation: float) -> float:
    """E sigmoid(N(mean, deviation^2))."""
    return float(
        integrate.quad(lambda t: special.expit(mean + deviation * t) * stats.norm.pdf(t), -12, 12, epsabs=1e-12)[0]
    )


def violated(y: Array, cases: Cases) -> NDArray[np.bool_]:
    """(S, P): outputs (S, P, m) for which all rows of some case hold."""
    found = np.zeros(y.shape[:2], bool)
    for a, b, strict in cases:
        left = y @ a.T
        found |= np.where(strict, left < b, left <= b).all(-1)
    return found
