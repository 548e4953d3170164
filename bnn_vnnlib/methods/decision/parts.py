"""The expected softmax under correlated weights and under mixtures: the weighted sum over the components.

Guarantee: sound with probability 1, rounding included; not complete.
Method: at every x the decision is sum_i p_i E_i s(f(x)), so that a row's least value over a box is at least the
weighted sum of those of the components. A component of independent weights is bounded by everything that serves it
(`portfolio`), one of correlated weights by its tails (`classification.by_tails`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.attack import Aim
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.methods.components import Component, components_of, weighted_sum
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.decision.method import Criterion, Method
from bnn_vnnlib.methods.decision.portfolio import Expectation, expectation
from bnn_vnnlib.methods.decision.softmax.by_tails import SoftmaxTails
from bnn_vnnlib.network.network import Correlated, GaussianDiagonal, Mixture
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds


@dataclass(frozen=True, eq=False)
class PartsExpectation:
    """E_w of rows over the transformed outputs; for `decide`, as `portfolio.Expectation`.

    Parameters
    ----------
    posterior : correlated, or a mixture
    boxes, number, margin, seed : for components of independent weights
    """

    bounds: OutputBounds
    posterior: Correlated | Mixture
    device: torch.device
    boxes: str = "mean"
    number: int = 5
    margin: float | None = None
    seed: int = 0

    aim: Aim = "mean"
    quick: tuple[Method, ...] = ()
    thorough: tuple[Method, ...] = ()
    tails: tuple[Method, ...] = ()
    criteria: tuple[Criterion, ...] = ()

    @cached_property
    def _parts(self) -> tuple[tuple[float, Expectation | SoftmaxTails], ...]:
        return tuple((part.share, self._method(part)) for part in components_of(self.bounds, self.posterior))

    def _method(self, part: Component) -> Expectation | SoftmaxTails:
        if isinstance(part.posterior, GaussianDiagonal):
            return expectation(
                part.bounds, part.posterior, self.device, boxes=self.boxes, number=self.number, margin=self.margin,
                seed=self.seed,
            )  # fmt: skip
        engine = TailEngine(
            part.network,
            part.bounds.engine.deadline,
            correlation=correlation(part.network, part.posterior, self.device),
        )
        noise = weight_sets.centred(part.network, independent(part.posterior), self.device)
        return SoftmaxTails(engine, weight_sets.mean_weights(part.network, self.device), noise)

    @property
    def name(self) -> str:
        """What the components are bounded by."""
        return "components of a mixture" if isinstance(self.posterior, Mixture) else "tails"

    @property
    def by_weights(self) -> Method:
        """All there is."""
        return self

    @property
    def methods(self) -> Iterator[Method]:
        """All there is."""
        yield self

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Lower bounds (N, R) on c.D(x) + g.x over boxes (N, n); outputs (N or 1, R, m), inputs alike or None."""
        values = torch.stack([method.lower(lower, upper, outputs, inputs) for _, method in self._parts])
        return weighted_sum(lower.new_tensor([share for share, _ in self._parts]), values)

    def upper(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Upper bounds (N, R), by the lower bounds of the negated rows."""
        return -self.lower(lower, upper, -outputs, None if inputs is None else -inputs)
