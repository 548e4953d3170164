"""What is asked of drawn networks, and drawn networks as weight boxes for the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.arrays import Ints
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.martingale import failing
from bnn_vnnlib.network.draws import Draws
from bnn_vnnlib.network.network import Posterior

_FIRST, _MOST, _GROWTH = 32, 2**10, 4
"""Draws of a batch: at least, at most, and one in so many of those before it: so many are drawn in vain at most."""

_SECONDS = 0.2
"""Seconds that a batch of draws takes under a time limit, about."""


@dataclass(frozen=True)
class Sampling:
    """How drawn networks are counted.

    Attributes
    ----------
    confidence : of each bound, lower and upper together
    draws : at most
    seed : of the draws that are counted
    layers : random layers that are drawn, of every network, the rest being bounded (`conditional`); None: all
    pilot : where no number is given, a long run may find out whether fewer than all serve better
    """

    confidence: float
    draws: int
    seed: int
    layers: int | None = None
    pilot: bool = False

    @property
    def side(self) -> float:
        """delta that one side of an interval may fail with."""
        return failing(self.confidence, 2)


@dataclass(frozen=True, eq=False)
class DrawnNetworks:
    """Draws of a posterior, on the device of the run; those of stream 0 are counted (`Draws`)."""

    engine: Engine
    posterior: Posterior
    sampling: Sampling
    device: torch.device
    stream: int = 0

    @cached_property
    def _draws(self) -> Draws:
        return Draws(self.engine.network, self.posterior, self.sampling.seed, self.stream)

    def batches(self, rows: int, most: int = _MOST) -> Iterator[Ints]:
        """The numbers of all draws in their order, as many at a time as memory allows for an item with so many rows.

        Under a time limit a batch takes `_SECONDS` or so, by what those before it took, and none is begun for which no
        time is left: what is cut off would not count.
        """
        start, deadline, room = 0, self.engine.deadline, max(1, min(most, self.engine.chunk(1, rows)))
        most = room if deadline.at is None else 1
        while start < self.sampling.draws and not deadline.passed:
            stop = min(start + min(max(_FIRST, start // _GROWTH), most), self.sampling.draws)
            begun = time.monotonic()
            yield np.arange(start, stop)
            if deadline.at is not None:
                pace = (time.monotonic() - begun) / (stop - start)
                most = max(1, min(4 * most, room, int(_SECONDS / max(pace, 1e-9))))
                if time.monotonic() + pace > deadline.at:
                    return
            start = stop

    def take(self, index: Ints) -> tuple[WeightBoxes, Tensor]:
        """Boxes of weights that hold draws by their numbers (K,), and which of the draws are known (K,)."""
        drawn = self._draws.take(index)
        centers = {
            name: torch.tensor(values, dtype=torch.float64, device=self.device)[None]
            for name, values in self.engine.network.tensors.items()
            if name not in drawn.centers
        }
        centers |= {name: values.to(self.device) for name, values in drawn.centers.items()}
        radius = {name: values.to(self.device) for name, values in drawn.radius.items() if bool(values.any())}
        scale = torch.ones(1, 1, dtype=torch.float64, device=self.device)
        return WeightBoxes(centers, radius, scale), drawn.known.to(self.device)
