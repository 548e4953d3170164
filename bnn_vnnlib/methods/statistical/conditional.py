"""Draw some layers, bound the rest: P(safe | the drawn layers) takes the place of 'safe or not'.

The first K random layers of a network are drawn, the other ones are independent of them (`network.layers`). Let
Y_i = P(safe on all of T | layers of draw i), so that the Y_i are independent with mean P_safe.

1. The drawn layers lie in a box of weights (`network.draws`). For all of that box and all x of an item the engine
   bounds the frontier, h in [l, u]. Given the drawn layers, the outputs are rest(h), and the other layers have their
   own law: `TailBounds.lower` of the rest over the box [l, u] bounds P(rest is safe for all h in [l, u]) <= Y_i from
   below.
2. At one point x of an item the frontier is in a box around its value there. `TailBounds.unsafe` bounds the
   probability that one case holds for every h of that box, so that it does for the true one; it is at most 1 - Y_i.
   Every draw may have a point of its own.
3. A draw that is not known, or whose frontier has no bounds, has 0 on both sides.
4. Which K serves best is chosen by draws of other streams, which are not counted. It may be chosen while counted draws
   are looked at: each y_i is at most a Y_i whose mean, given all that was drawn before, is P_safe, which is all that
   the martingale needs. Never is the best of several K taken for one draw.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.arrays import Ints
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.methods.safety.safety import SafetyTask
from bnn_vnnlib.methods.safety.tails import SETTLED, TailBounds, why_no_tails
from bnn_vnnlib.methods.statistical.sampling import DrawnNetworks, Sampling
from bnn_vnnlib.network.families import only
from bnn_vnnlib.network.layers import NetworkSplit, random_layers, split_layers
from bnn_vnnlib.network.network import Gaussian, Network
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible, point_box

PILOT = 16
"""Draws of a pilot, for each number of layers."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """Draws of the first `count` random layers of a task's network; `pilot`: those that choose, and are not counted."""

    task: SafetyTask
    sampling: Sampling
    count: int
    pilot: bool = False

    def __post_init__(self) -> None:
        """Raise UnsupportedError where the rest is not served."""
        if self.task.problem.rows.inputs is not None:
            raise UnsupportedError("drawn_layers serves properties whose rows are over the outputs alone")
        reason = why_no_tails(self._rest_bounds, self._rest_posterior, self.task.problem)
        if reason is not None:
            raise UnsupportedError(f"drawn_layers {self.count} is not served: {reason}")

    @cached_property
    def networks(self) -> DrawnNetworks:
        """The drawn layers; a stream of their own for every number of them, and another one for the pilot."""
        engine = self._bounds_of(self._split.first).engine
        posterior, stream = self._posterior(self._split.first), 2 * self.count + 2 + self.pilot
        return DrawnNetworks(engine, posterior, self.sampling, self._device, stream)

    def proved(self, index: Ints, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For draws (K,), lower bounds (K, I) on Y_i and on 1 - Y_i, by some items, and the points (K, N', n) that were
        attacked.
        """
        part, (weights, known) = self.task.problem.items(items), self.networks.take(index)
        low, high = self._frontier(weights, part.lower, part.upper)
        known = known & (torch.isfinite(low) & torch.isfinite(high)).all(-1).all(-1)
        rest = self._over(part, low, high, known)
        safe = torch.where(known[:, None], self._tails.lower(rest).reshape(len(index), -1), 0.0)
        points = self._attacked(weights, part)
        left = (safe < SETTLED)[:, part.instance] & known[:, None]
        left &= torch.stack([feasible(part, x) for x in points])
        unsafe = torch.zeros_like(safe)
        if bool(left.any()):
            at = point_box(part, points)
            low, high = self._frontier(weights, *at)
            first = self._bounds_of(self._split.first)
            left &= first.defined(weights, *at) & (torch.isfinite(low) & torch.isfinite(high)).all(-1)
            here = self._over(part, low, high, left.any(-1))
            mass = self._tails.unsafe(here, here.lower, here.upper).reshape(len(index), -1)
            instance = part.instance.expand(len(index), -1)
            unsafe = unsafe.scatter_reduce(1, instance, torch.where(left, mass, 0.0), "amax")
        return safe, unsafe, points

    @cached_property
    def _split(self) -> NetworkSplit:
        network = self.task.bounds.engine.network
        return split_layers(network, random_layers(network, self.task.posterior), self.count)

    @property
    def _device(self) -> torch.device:
        return self.task.problem.lower.device

    def _bounds_of(self, network: Network) -> OutputBounds:
        transform = self.task.bounds.transform if network is self._split.rest else "identity"
        return OutputBounds(replace(self.task.bounds.engine, network=network), transform)

    def _posterior(self, network: Network) -> Gaussian:
        return cast("Gaussian", only(self.task.posterior, network.tensors))

    @cached_property
    def _rest_bounds(self) -> OutputBounds:
        return self._bounds_of(self._split.rest)

    @cached_property
    def _rest_posterior(self) -> Gaussian:
        return self._posterior(self._split.rest)

    @cached_property
    def _tails(self) -> TailBounds:
        task = self.task
        return TailBounds(self._split.rest, self._rest_posterior, self._device, task.deadline, task.attack.precision)

    def _frontier(self, weights: WeightBoxes, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(K, N, F) both ends of the frontier over boxes (N, n) or (K, N, n) (step 1)."""
        engine, device = self.networks.engine, self._device
        unit = torch.eye(engine.network.signature.output_size, dtype=torch.float64, device=device)
        found = engine.rows(weights, lower, upper, torch.cat([unit, -unit])[None]).lower
        found = found.expand(weights.count, -1, -1)
        return found[..., : len(unit)], -found[..., len(unit) :]

    def _over(self, part: Problem, low: Tensor, high: Tensor, known: Tensor) -> Problem:
        """The question about the rest: an instance for each draw and instance; 0 where nothing is known."""
        count, items = low.shape[:2]
        every = part.items(torch.arange(items, device=low.device).repeat(count))
        low, high = (torch.where(known[:, None, None], side, 0.0).flatten(0, 1) for side in (low, high))
        draw = torch.arange(count, device=low.device).repeat_interleave(items)
        return replace(
            every, lower=low, upper=high, inner_lower=low, inner_upper=high, constraints=None,
            instance=draw * part.instances + every.instance, instances=count * part.instances,
        )  # fmt: skip

    def _attacked(self, weights: WeightBoxes, part: Problem) -> Tensor:
        """(K, N', n): points at which the networks of the drawn layers and the means of the rest are worst."""
        task = self.task
        params = {name: center for name, center in weights.centers.items() if len(center) == weights.count}
        settings = replace(task.attack, restarts=min(task.attack.restarts, 4), pool=1)
        return attack.run(task.bounds.engine.network, part, params, settings, task.bounds.transform)[0]


@dataclass(frozen=True)
class Prospect:
    """What is expected of a number of drawn layers: what stays open of a draw, the variance of the rest, seconds."""

    open: float
    variance: float
    seconds: float

    def width(self, draws: float, delta: float) -> float:
        """Width of the interval after so many draws, about (Bernstein): an estimate, on which no bound rests."""
        level = math.log(1 / delta)
        return self.open + 2 * math.sqrt(2 * self.variance * level / draws) + 2 * level / (3 * draws)


def prospect(source: Conditional, whole: Prospect) -> Prospect:
    """What is expected of drawing these layers for the only instance: by the pilot's draws, given what is known of
    whole networks.

    Var Z = Var Y + E Y (1 - Y): a few draws say little of a variance that rare ones make, but do not overrate the
    second term by much.
    """
    begun, items = time.monotonic(), torch.arange(len(source.task.problem))
    safe, unsafe, _ = source.proved(np.arange(PILOT), items)
    variance = max(0.0, whole.variance - float((safe * unsafe).mean()))
    return Prospect(float((1 - safe - unsafe).mean()), variance, (time.monotonic() - begun) / PILOT)
