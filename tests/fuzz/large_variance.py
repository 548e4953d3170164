"""Bounds of posteriors of large variance against exact infima of very many sampled networks.

    PYTHONPATH=tests python -m fuzz.large_variance [--nets 2] [--samples 1000000] [--seed 0] [--hidden 1 2 3]

One and two hidden layers over boxes and at points of two inputs, three at points: failures of a row are counted by
exact infima (enumeration of kinks) and compared with the bound, by a binomial test at 1e-9. The first network of each
seed is plain; the others may have neurons that are doubled, layers or biases or weights that are not random, units of
neurons and rows far from 1, and boxes without a width in one input. Exits with 1 if one is violated. `make fuzz` gives
a part of its time to it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats

from bnn_vnnlib.methods.safety.large_variance import moments, one_layer, two_layers
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import dense, least_margins, least_margins_deep, margins_at

EACH = 20_000
"""Networks at once."""

SPREADS = {1: (0.05, 0.5), 2: (0.02, 0.08), 3: (0.01, 0.04)}
"""Deviations about means of size 1, by hidden layers: more of them leave a bound of 1 for so few neurons."""

RADIUS = 0.02


@dataclass(frozen=True, eq=False)
class Case:
    """Is row . f(x) - bound <= 0 for some x of [low, high]."""

    net: DenseChain
    row: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bound: float

    def least(self, count: int, seed: int) -> np.ndarray:
        """(count,) exact infima over the box."""
        parts = self.row, self.bound, self.low, self.high, count, seed
        if len(self.net.layers) == 2:
            return least_margins(self.net, *parts)
        if len(self.net.layers) == 3:
            return least_margins_deep(self.net, *parts)
        return margins_at(self.net, self.row, self.bound, self.low, count, seed)

    def failure(self) -> float:
        """The probability from above."""
        if len(self.net.layers) > 2 and (self.low == self.high).all():
            point = torch.tensor(self.low)[None]
            asked = RowsAtPoints(point, point, torch.tensor(self.row)[None, None], torch.tensor([[self.bound]]))
            ways = moments.failures_by_budget(self.net, asked, Deadline())
            return min(1.0, *(delta + float(values[0, 0]) for delta, values in ways))
        low, high, row = (torch.tensor(part)[None] for part in (self.low, self.high, self.row))
        question = RowsAtBoxes(low, high, row, torch.tensor([self.bound], dtype=torch.float64), torch.tensor([0]))
        if len(self.net.layers) == 2:
            return float(one_layer.failures(self.net, question, Deadline())[0])
        return float(two_layers.failures(self.net, question, Deadline())[0])


def drawn(seed: int, place: int, hidden: int, *, box: bool) -> Case:
    """A network with two inputs, three or four neurons a layer and two outputs, and a bound that seldom fails."""
    rng = np.random.default_rng((seed, place, hidden))
    widths = (2, *([int(rng.integers(3, 5))] * hidden), 2)
    spread = float(rng.uniform(*SPREADS[hidden]))
    layers = [dense(rng, out, into, spread=spread) for into, out in itertools.pairwise(widths)]
    x0, row, radius = rng.normal(size=2), np.array([1.0, -1.0]), np.full(2, RADIUS if box else 0.0)
    if place:
        layers = _odd(rng, layers)
        row = row * float(2.0 ** rng.integers(-20, 20))
        radius = radius * rng.choice([0.0, 1.0], 2, p=[0.3, 0.7])
    case = Case(DenseChain.relu(*layers), row, x0 - radius, x0 + radius, 0.0)
    share = float(rng.choice([0.001, 0.01, 0.1])) if place else 0.002
    return replace(case, bound=float(np.quantile(case.least(EACH, 1), share)))


def _odd(rng: np.random.Generator, layers: list[DenseLayer]) -> list[DenseLayer]:
    """Some of what the docstring of this module names."""
    if rng.random() < 0.3:  # one neuron twice, in law
        place = torch.tensor([0, 0, *range(2, layers[0].outputs)])
        layers[0] = DenseLayer(**{name: part[place] for name, part in vars(layers[0]).items()})
    for k, layer in enumerate(layers):
        if rng.random() < 0.3:
            layer = replace(layer, bias_variance=torch.zeros_like(layer.bias))
        if 0 < k < len(layers) - 1 and rng.random() < 0.3:
            layer = replace(layer, variance=torch.zeros_like(layer.variance))
        if k == 0 and rng.random() < 0.3:  # one input by weights that are known
            layer = replace(layer, variance=layer.variance * torch.tensor([0.0, 1.0], dtype=torch.float64))
        layers[k] = layer
    for k in range(len(layers) - 1):
        unit = torch.tensor(2.0 ** rng.integers(-15, 15, layers[k].outputs))
        mean, bias, variance, noise, *_ = vars(layers[k]).values()
        layers[k] = DenseLayer.exact(mean * unit[:, None], bias * unit, variance * unit[:, None] ** 2, noise * unit**2)
        after = layers[k + 1]
        layers[k + 1] = replace(after, mean=after.mean / unit, variance=after.variance / unit**2)
    return layers


def cases(seed: int, nets: int, hidden: list[int]) -> Iterator[tuple[str, Case]]:
    """Names and cases."""
    kinds = [(layers, box) for layers in hidden for box in (False, True) if layers < 3 or not box]
    for place in range(nets):
        for layers, box in kinds:
            case = drawn(seed, place, layers, box=box)
            kind = "box" if box else "point"
            yield f"seed {seed}, net {place}, {layers} hidden of {case.net.layers[0].outputs}, {kind}", case


def judge(case: Case, samples: int) -> tuple[str, bool]:
    """A line, and whether the bound is violated."""
    start, found = time.process_time(), case.failure()
    failed = sum(int((case.least(EACH, 2 + part) <= 0).sum()) for part in range(0, samples, EACH))
    chance = float(stats.binom.sf(failed - 1, samples, min(found, 1.0)))
    seconds = time.process_time() - start
    return f"failed {failed / samples:.6f} bound {found:.6f} cpu {seconds:.0f} s", chance < 1e-9


def main() -> int:
    """One line a case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nets", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    violated = 0
    for name, case in cases(options.seed, options.nets, options.hidden):
        line, wrong = judge(case, options.samples)
        violated += wrong
        sys.stdout.write(f"{name}: {line}{' VIOLATED' if wrong else ''}\n")
        sys.stdout.flush()
    sys.stdout.write(f"violations: {violated}\n")
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
