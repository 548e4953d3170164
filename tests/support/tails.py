"""Tails of small networks, and the function F behind bound 1, evaluated by its definition."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bnn_vnnlib.bounds.tails import TailEngine, claimed, engine, run
from bnn_vnnlib.bounds.tails.noise import Noise
from bnn_vnnlib.bounds.tails.tail import Normal, Tail
from bnn_vnnlib.model import GaussianDiagonal, Network
from bnn_vnnlib.network import evaluate, maps, nodes
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.weight_sets import all_params
from support.networks import Array
from support.zoo import GRAPHS

ROUNDING = 1e-9
"""Room for the roundings of the tests' own float64 computations."""


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, np.float64))


def seed_of(text: str) -> int:
    return zlib.crc32(text.encode())


def random_sources(network: Network) -> list[str]:
    """Sources that may carry a variance: no branch of its own, no rounded factor (the importer refuses both)."""
    fixed = {node.value.source for node in network.nodes if isinstance(node, nodes.Constant)}
    fixed |= {param.source for param in all_params(network) if param.slack is not None}
    return sorted({param.source for param in all_params(network)} - fixed)


def random_deviations(network: Network, rng: np.random.Generator, size: float) -> dict[str, Array]:
    """Standard deviations, some of them 0."""
    found = {}
    for name in random_sources(network):
        shape = network.tensors[name].shape
        found[name] = size * rng.uniform(0.3, 1.0, shape) * (rng.random(shape) < 0.9)
    return found


INSIDE = [name for name in GRAPHS if not name.endswith("_alone") and name not in ("identity", "only_constant")]
SMOOTH = [name for name in INSIDE if random_sources(GRAPHS[name]())]


def failures(
    network: Network, deviations: dict[str, Array], box: tuple[Any, Any], rows: Any, bound: Any,
    budgets: tuple[float, ...] = (1e-7,), inputs: Any = None, thorough: bool = False,
) -> Tensor:  # fmt: skip
    """(K, N, R) for boxes (N, n), rows (R, m) or (N, R, m) and bounds (R,) or (N, R)."""
    posterior = GaussianDiagonal({name: np.asarray(sd, np.float64) ** 2 for name, sd in deviations.items()})
    lower, upper = (torch.atleast_2d(tensor(side)) for side in box)
    outputs, sides = tensor(rows), torch.atleast_2d(tensor(bound))
    slopes = None if inputs is None else tensor(inputs)
    return TailEngine(network).failures(
        weight_sets.mean_weights(network), weight_sets.centred(network, posterior), (lower, upper),
        outputs if outputs.dim() == 3 else outputs[None],
        slopes if slopes is None or slopes.dim() == 3 else slopes[None], sides, tensor(budgets), thorough=thorough,
    )  # fmt: skip


@dataclass(eq=False)
class Piece:
    """What one use of a parameter contributed to F: hc . delta - rho . |delta|, or a bias."""

    node: nodes.Node
    a: Tensor
    center: Tensor | None
    radius: Tensor | None


@dataclass(eq=False)
class Recorder(Noise):
    """The noise of a walk, with its pieces kept, so that F can be evaluated by its definition."""

    pieces: list[Piece] = field(default_factory=list)

    def weighted(self, walk: Any, node: Any, position: int, a: Any) -> None:
        z = walk.ranges.values[node.inputs[0]]
        center = (z.lower + z.upper) / 2
        self.pieces.append(Piece(node, a.whole, center, torch.maximum(z.upper - center, center - z.lower)))
        super().weighted(walk, node, position, a)

    def shift(self, walk: Any, node: Any, position: int, a: Any) -> None:
        self.pieces.append(Piece(node, a.whole, None, None))
        super().shift(walk, node, position, a)


@dataclass(eq=False)
class Case:
    """One item of one network, with its tails and the recorded F; everything at K = M = 1."""

    network: Network
    deviations: dict[str, Array]
    budget: float
    run: run.TailRun
    tail: Tail
    noise: Recorder

    @property
    def normal(self) -> Normal:
        """Bound 1."""
        (found,) = (bound for bound in self.tail.bounds if isinstance(bound, Normal))
        return found

    @property
    def constant(self) -> Tensor:
        """m0 (R,)."""
        return (self.normal.mean + math.sqrt(2 / math.pi) * self.noise.folded)[0, 0]

    def value(self, drawn: dict[str, Tensor]) -> Tensor:
        """F - m0 by its definition for noises {source: (S, *shape)} in standard deviations -> (S, R)."""
        total = torch.zeros(1, dtype=torch.float64)
        for piece in self.noise.pieces:
            param = piece.node.bias if isinstance(piece.node, nodes.Shift) else piece.node.weight  # type: ignore[attr-defined]
            if param.source not in self.deviations:
                continue
            delta = self._delta(param, drawn[param.source])
            a = piece.a[0, 0][None]  # (1, R, *shape)
            if isinstance(piece.node, nodes.Shift):
                rank = len(piece.node.shape)
                spread = delta.reshape(len(delta), 1, *(1,) * (rank - delta.dim() + 1), *delta.shape[1:])
                product = a * spread
                total = total + product.reshape(*product.shape[:2], -1).sum(-1)
                continue
            shape = self.network.nodes[piece.node.inputs[0]].shape
            moved = maps.adjoint(piece.node, delta, a, shape)  # type: ignore[arg-type]
            moved = moved.reshape(*moved.shape[:2], -1)
            center, radius = (side.reshape(-1) for side in (piece.center, piece.radius))  # type: ignore[union-attr]
            total = total + moved @ center - moved.abs() @ radius
        return total

    def _delta(self, param: Param, drawn: Tensor) -> Tensor:
        noise = drawn * tensor(self.deviations[param.source])
        entries = noise.reshape(len(noise), -1)[:, torch.as_tensor(param.index).reshape(-1)]
        return entries.reshape(len(noise), *param.shape) * tensor(param.factor)

    def draw(self, generator: torch.Generator, count: int) -> dict[str, Tensor]:
        return {
            name: torch.randn(count, *sd.shape, dtype=torch.float64, generator=generator)
            for name, sd in self.deviations.items()
        }

    def weights(self, drawn: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor(self.network.tensors[name]) + noise * tensor(self.deviations[name])
            for name, noise in drawn.items()
        }


def record(
    monkeypatch: pytest.MonkeyPatch, network: Network, deviations: dict[str, Array], box: tuple[Any, Any],
    rows: Tensor, budget: float, thorough: bool = False,
) -> Case:  # fmt: skip
    """The tails of rows (R, m) over one box (n,)."""
    kept: list[Recorder] = []
    runs: list[run.TailRun] = []

    def recorder(*args: Any, **named: Any) -> Recorder:
        kept.append(Recorder(*args, **named))
        return kept[-1]

    def running(*args: Any, real: Any = run.TailRun) -> run.TailRun:
        runs.append(real(*args))
        return runs[-1]

    with monkeypatch.context() as patch:
        patch.setattr(run, "Noise", recorder)
        patch.setattr(engine, "TailRun", running)
        failures(network, deviations, box, rows, torch.zeros(len(rows)), (budget,), thorough=thorough)
        kept.clear()
        tail = runs[-1].tail(rows[None], None)
    return Case(network, deviations, budget, runs[-1], tail, kept[0])


def setup(
    monkeypatch: pytest.MonkeyPatch, name: str, size: float, width: float, budget: float,
    network: Network | None = None, thorough: bool = False,
) -> tuple[Case, Tensor, Tensor]:  # fmt: skip
    """A case of the zoo, its rows (R, m), and a grid of inputs (G, n): the centre, corners, points between."""
    network = GRAPHS[name]() if network is None else network
    rng = np.random.default_rng(seed_of(f"{name}{size}{width}"))
    n, m = network.signature.input_size, network.signature.output_size
    center, reach = rng.normal(size=n), width * rng.random(n)
    rows = tensor(np.concatenate([rng.normal(size=(1, m)), np.eye(m)[:1]]))
    box = (center - reach, center + reach)
    case = record(monkeypatch, network, random_deviations(network, rng, size), box, rows, budget, thorough)
    corner = np.sign(rng.normal(size=(1, n)))
    signs = np.concatenate([rng.uniform(-1, 1, size=(1, n)), corner, -corner])
    grid = np.clip(center + signs * reach, *box)
    return case, rows, tensor(np.concatenate([(box[0] + box[1])[None] / 2, grid]))


def node_values(network: Network, grid: Tensor, weights: dict[str, Tensor]) -> list[Tensor]:
    """Value (S, G, *shape) of every node."""
    return evaluate.node_values(network, grid[None], weights)


def left_claims(case: Case, values: list[Tensor]) -> Tensor:
    """(S,): some claimed range is left at some input of the grid, or something varies more than is claimed."""
    left = torch.zeros(1, dtype=torch.bool)
    for position in claimed(case.network):
        z, value = case.run.ranges.values[position], values[position]
        room = ROUNDING * (1 + value.abs())
        outside = (value < z.lower[0] - room) | (value > z.upper[0] + room)
        if case.run.variation is not None:
            near = case.run.variation.known[position][0]
            outside = outside | ((value - value[:, :1]).abs() > near + room)
        left = left | outside.reshape(len(value), -1).any(-1)
    return left


def rows_of(network: Network, values: list[Tensor], rows: Tensor) -> Tensor:
    """(S, G, R)."""
    count = max(len(value) for value in values)
    wide = max(value.shape[1] for value in values)
    outputs = [values[i].reshape(*values[i].shape[:2], -1).expand(count, wide, -1) for i in network.outputs]
    return torch.cat(outputs, -1) @ rows.mT


def surprising(count: Tensor, total: int, probability: Tensor) -> Tensor:
    """The counts that a binomial variable of at most this probability reaches with probability below 1e-9."""
    return tensor(stats.binom.sf(count.numpy() - 1, total, probability.clamp(0, 1).numpy())) < 1e-9
