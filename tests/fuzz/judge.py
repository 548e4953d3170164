"""What contradicts a bound: sampled networks under attack, exact binomial tests, exact arithmetic.

Nothing here uses the bounds, the refutations or the reading of thresholds that it judges: whether a pair (x, y) lies in
V is computed again from the question's own numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import mpmath
import numpy as np
import onnxruntime
import torch
from torch import Tensor

from bnn_vnnlib import Model, attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.model import Posterior, WeightSamples, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.problem import from_property
from fuzz.ladder import LARGER, LAST, TINY, Ladder, chance
from fuzz.questions import Array, Part, Question, Row, transformed
from support import exact

AT_ONCE = 4096
"""Networks that are attacked together."""

FEW = 512
"""Networks behind a strong attack."""

CLEAR = 1e-9
"""Relative distance from a threshold that float64 cannot be wrong about, outside of cancellation (see `confirmed`)."""


@dataclass(frozen=True, eq=False)
class Court:
    """Judges claims about one model and question.

    transform : what Y is as a function of the outputs without their Softmax
    """

    model: Model
    question: Question
    transform: str
    seed: int

    def draw(self, count: int, seed: int) -> dict[str, Tensor]:
        """Weights (count, *shape) by name."""
        generator = torch.Generator().manual_seed(10**6 * self.seed % 2**40 + seed)
        return sample(self.model.network, self.posterior, count, generator)

    @property
    def posterior(self) -> Posterior:
        """Every model of the fuzzer has one."""
        if self.model.posterior is None:
            raise ValueError("no posterior")
        return self.model.posterior

    def outputs(self, x: Tensor, params: Mapping[str, Tensor] | None) -> Array:
        """y (K, N, m) for x (K or 1, N, n)."""
        y = evaluate(self.model.network, x, params)
        return transformed((y if y.dim() == 3 else y.expand(1, *y.shape[-2:])).numpy(), self.transform)

    def replayed(self, x: Array) -> Array:
        """y (m,) of the file as onnxruntime computes it, in its own types: what a deterministic sat speaks of."""
        session = onnxruntime.InferenceSession(self.model.onnx_bytes, providers=["CPUExecutionProvider"])
        feed, start = {}, 0
        for entry in session.get_inputs():
            size = int(np.prod(entry.shape))
            kind = np.float64 if "double" in entry.type else np.float32
            feed[entry.name] = x[start : start + size].reshape(entry.shape).astype(kind)
            start += size
        return np.concatenate([np.ravel(y) for y in session.run(None, feed)]).astype(np.float64)

    def attacked(self, params: Mapping[str, Tensor], strength: int = 1, seed: int = 0) -> tuple[Tensor, Array]:
        """Points x (K, P, n) in T, found against each network, and its outputs there (K, P, m)."""
        count = max((len(p) for p in params.values()), default=1)
        rng = np.random.default_rng(seed)
        tried = [torch.as_tensor(points).expand(count, -1, -1) for points in self.points(rng, 8 * strength)]
        property = self.question.read(self.model.network.signature)
        if property.num_cases > 0:  # else nothing can be violated, says the reader: random points will tell
            settings = Attack(steps=15 * strength, restarts=4 * strength, seed=seed)
            problem = from_property(property)
            tried.append(attack.run(self.model.network, problem, dict(params), settings, self.transform)[0])
        x = torch.cat(tried, 1)
        return x, self.outputs(x, params)

    def points(self, rng: np.random.Generator, count: int) -> Iterator[Array]:
        """Corners, ends and inner points of every part."""
        for part in self.question.parts:
            share = rng.random((count, len(part.lower)))
            share[::2] = share[::2].round()
            yield np.clip(part.lower + (part.upper - part.lower) * share, part.lower, part.upper)

    def distance(self, x: Array, y: Array) -> Array:
        """(...) for x (.., n), y (.., m): < 0 where (x, y) is in V; relative to the sizes of the sums."""
        found = np.full(np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            for part in self.question.parts:
                inside = np.broadcast_to(_inside(part, x), found.shape)
                for case in part.cases:
                    worst = np.full(found.shape, -np.inf)
                    for row in case:
                        worst = np.maximum(worst, _relative(row, x, y))
                    found = np.where(inside, np.minimum(found, worst), found)
        return np.nan_to_num(found, nan=np.inf, posinf=np.inf, neginf=-np.inf)

    @cached_property
    def ladder(self) -> Ladder:
        """How many networks are drawn: more of them if they are small."""
        size = sum(math.prod(node.shape) for node in self.model.network.nodes) * self.model.network.signature.input_size
        return TINY if size <= 600 else LARGER

    @cached_property
    def estimate(self) -> float:
        """About P_safe, from above: the share of networks that an attack does not break (exact for the attack's part
        on weight samples).
        """
        if isinstance(self.posterior, WeightSamples):
            params = {name: torch.tensor(values) for name, values in self.posterior.samples.items()}
            x, y = self.attacked(params)
            broken = self.distance(x.numpy(), y).min(-1) < -CLEAR
            return 1 - float(self.posterior.probabilities[broken].sum())
        return 1 - float((self._attacked[0].min(-1) < -CLEAR).mean())

    @cached_property
    def _attacked(self) -> tuple[Array, dict[str, Tensor], Tensor, Array]:
        """Distances (K, P) of the first draw under attack, its weights, points and outputs."""
        params = self.draw(self.ladder.rounds[0][0], 1)
        x, y = self.attacked(params, seed=1)
        return self.distance(x.numpy(), y), params, x, y

    def refuted_lower(self, lower: float) -> str | None:
        """Evidence that P_safe < lower."""
        if lower <= 0:
            return None
        if isinstance(self.posterior, WeightSamples):
            return self._samples_below(self.posterior, lower)

        def broken(count: int, seed: int) -> int:
            if seed == 0:
                return int((self._attacked[0] < -CLEAR).any(-1).sum())
            found = 0
            for part in range(0, count, AT_ONCE):
                x, y = self.attacked(self.draw(min(AT_ONCE, count - part), 10**4 * seed + part), seed=seed)
                found += int((self.distance(x.numpy(), y) < -CLEAR).any(-1).sum())
            return found

        found = self.ladder.contradicts(broken, 1 - lower, more=True)
        _, params, x, y = self._attacked
        if found is None or self.confirmed(params, x, y) < 1:
            return None
        return f"P_safe >= {lower!r}, but {found[0]} of {found[1]} sampled networks violate under attack"

    def refuted_upper(self, upper: float, point: Array) -> str | None:
        """Evidence that the networks that violate at the point have less than probability 1 - upper."""
        if upper >= 1:
            return None
        if not any(_inside(part, point) for part in self.question.parts):
            return f"P_safe <= {upper!r} at a point outside T: {point.tolist()}"
        if isinstance(self.posterior, WeightSamples):
            return None
        x = torch.as_tensor(point).reshape(1, 1, -1)

        def near(count: int, seed: int) -> int:
            y = self.outputs(x, self.draw(count, 10**4 * seed + 3))
            return int((self.distance(x.numpy(), y)[:, 0] <= CLEAR).sum())

        found = self.ladder.contradicts(near, 1 - upper, more=False)
        if found is None:
            return None
        return f"P_safe <= {upper!r}, but only {found[0]} of {found[1]} sampled networks violate at {point.tolist()}"

    def suspect_upper(self, upper: float) -> str | None:
        """Evidence that P_safe > upper where no point is named: a strong attack breaks far too few networks.

        An attack proves nothing, so whatever it leaves near a threshold counts as broken.
        """
        if upper >= 1 or isinstance(self.posterior, WeightSamples):
            return None
        away = self._attacked[0].min(-1)
        if chance(int((away <= CLEAR).sum()), len(away), 1 - upper, False) >= self.ladder.rounds[0][1]:
            return None
        params = self.draw(FEW, 6)
        x, y = self.attacked(params, strength=3, seed=3)
        broken = int((self.distance(x.numpy(), y).min(-1) <= 1e-3).sum())
        if chance(broken, FEW, 1 - upper, False) >= LAST:
            return None
        return f"P_safe <= {upper!r}, but a strong attack breaks only {broken} of {FEW} sampled networks"

    def feasible(self, index: int, x: Array) -> Array:
        """Which points lie in a part, its constraints included."""
        return _inside(self.question.parts[index], x)

    def distance_of_mean(self, x: Array, mean: Array, slack: Array) -> float:
        """Distance from V, as in `distance`, of the nearest output within `slack` of the mean, row by row."""
        best = np.inf
        for part in self.question.parts:
            if not _inside(part, x):
                continue
            for case in part.cases:
                best = min(best, max(float(_relative(r, x, mean) - _reach(r, x, mean, slack)) for r in case))
        return best

    def _samples_below(self, posterior: WeightSamples, lower: float) -> str | None:
        """The mass of the samples that are broken, exactly confirmed."""
        params = {name: torch.tensor(values) for name, values in posterior.samples.items()}
        x, y = self.attacked(params, strength=2)
        away = self.distance(x.numpy(), y)
        broken = away.min(-1) < -CLEAR
        share = posterior.probabilities / posterior.probabilities.sum()
        if 1 - share[broken].sum() >= lower - 1e-12 or self.confirmed(params, x, y) < 1:
            return None
        return f"P_safe >= {lower!r}, but samples {np.flatnonzero(broken).tolist()} of {share.tolist()} violate"

    def samples_above(self, violating: list[int]) -> str | None:
        """Samples that are said to violate, and that a strong attack finds far from violating.

        An attack proves nothing, so only a clear distance counts, and only a strong attack.
        """
        if not violating or not isinstance(self.posterior, WeightSamples):
            return None
        params = {name: torch.as_tensor(values[violating]) for name, values in self.posterior.samples.items()}
        for strength in (1, 6):
            x, y = self.attacked(params, strength=strength)
            safe = self.distance(x.numpy(), y).min(-1) > 1e-3
            if not safe.any():
                return None
        return f"samples {np.array(violating)[safe].tolist()} are said to violate, and no attack finds it"

    def confirmed(self, params: Mapping[str, Tensor], x: Tensor, y: Array, most: int = 3) -> float:
        """Share of the found violations that hold in exact arithmetic (of a few; 1 if there is a transform)."""
        if self.transform != "identity":
            return 1.0
        away = self.distance(x.numpy(), y)
        broken = np.flatnonzero(away.min(-1) < -CLEAR)[:most]
        held = [self.violates_exactly(x[k, away[k].argmin()].numpy(), params, int(k)) for k in broken]
        return float(np.mean(held)) if held else 1.0

    def violates_exactly(self, x: Array, params: Mapping[str, Tensor], k: int) -> bool:
        """Whether (x, f(x)) is in V for weights k, in real arithmetic."""
        sources = {
            name: exact.fractions(params[name][k] if name in params else tensor)
            for name, tensor in self.model.network.tensors.items()
        }
        point = exact.fractions(x)
        y = exact.evaluate(self.model.network, point, sources)
        with mpmath.workprec(exact.BITS):
            return any(
                all(_holds(row, point, y) for row in case)
                for part in self.question.parts
                if _inside(part, x)
                for case in part.cases
            )


def _holds(row: Row, x: exact.Exact, y: exact.Exact) -> bool:
    total = exact.fractions(row.a) @ y + exact.fractions(row.g) @ x
    limit = Fraction(row.b)
    return bool(exact.at_most(total, limit) and not (row.strict and exact.at_most(limit, total)))


def _inside(part: Part, x: Array) -> Array:
    """x (.., n) in the box and the constraints; exactly in the box, clearly in the constraints."""
    inside = ((part.lower <= x) & (x <= part.upper)).all(-1)
    for g, b in part.constraints:
        size = np.abs(x) @ np.abs(g) + abs(b)
        inside = inside & (x @ g - b <= 1e-15 * size)
    return np.asarray(inside)


def _reach(row: Row, x: Array, y: Array, slack: Array) -> Array:
    """What `slack` in the outputs makes in `_relative`."""
    size = np.abs(y) @ np.abs(row.a) + np.abs(x) @ np.abs(row.g) + abs(row.b)
    return np.asarray(np.abs(row.a) @ slack / np.where(size > 0, size, 1.0))


def _relative(row: Row, x: Array, y: Array) -> Array:
    value = y @ row.a + x @ row.g - row.b
    size = np.abs(y) @ np.abs(row.a) + np.abs(x) @ np.abs(row.g) + abs(row.b)
    return np.asarray(value / np.where(size > 0, size, 1.0))
