"""What the care for rounding costs: `Engine.rows` against the same walk with every payment left out.

    python scripts/measure/rounding.py

The careless walk keeps the tables, the chunks and the order of the work; it replaces the rules of the dense nodes and
of Relu by what they would be in exact arithmetic (no magnitudes, no gammas, no steps outward, no underflow). Both run
in turn in one process, one thread; the ratio is the median over the pairs of neighbouring runs. It is here to measure,
never to bound.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds import interval, linear, walk
from bnn_vnnlib.bounds.block import Block, adjoint
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import Walk
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import maps, nodes
from dense import dense_network

CASES = (((784, 128, 10), 64), ((784, 50, 50, 10), 64), ((64, 64, 10), 64), ((3, 125, 5), 1024), ((64, 64, 10), 1))
REPEATS = 25


def _weighted(walk: Walk, node: Any, position: int, a: Block) -> None:
    (source,) = node.inputs
    box, shape = walk.weights.param(node.weight), walk.network.nodes[source].shape

    carried = adjoint(node, box.center, a, shape)
    if walk.rough and isinstance(walk.network.nodes[source], nodes.Input) and math.prod(shape) > linear.MANY_INPUTS:
        noise = interval.noise(node, box, walk.weights.scale, walk.ranges.values[source].magnitude)
        if noise is not None:
            walk.constant = walk.constant - a.abs().dot(noise)
    elif box.spread is not None:
        slope, offset = walk.ranges.values[source].chord
        factor = walk.weights.scale.reshape(*walk.weights.scale.shape, *(1,) * len(shape))
        rows = adjoint(node, box.spread, a.abs(), shape)
        carried = carried.holding(torch.addcmul(carried.values, rows.values, rows.see(factor * slope), value=-1.0))
        if offset is not None:
            walk.constant = walk.constant - rows.dot(factor * offset)
    walk.give(source, carried)


def _shift(walk: Walk, node: Any, position: int, a: Block) -> None:
    b = walk.weights.addend(node.bias, len(node.shape))
    tied = a.over(b.center.shape[2:])
    walk.constant = walk.constant + tied.dot(b.center)
    if b.radius is not None:
        walk.constant = walk.constant - tied.abs().dot(b.radius)
    walk.give(node.inputs[0], a)


def _activation(walk: Walk, node: Any, position: int, a: Block) -> None:
    middle, half = walk.ranges.lines[position].middle, walk.ranges.lines[position].half
    absolute = a.abs()
    walk.constant = walk.constant + (a.dot(middle.level) - absolute.dot(half.level))
    carried = (a.values * a.see(middle.slope)).addcmul_(absolute.values, a.see(half.slope), value=-1.0)
    walk.give(node.inputs[0], a.holding(carried))


def _interval(node: Any, weights: WeightBoxes, x: Interval) -> interval._Ranged:
    box = weights.param(node.weight)
    xc, xr = (x.lower + x.upper) / 2, (x.upper - x.lower) / 2
    radius = maps.apply(node, box.size, xr)
    noise = interval.noise(node, box, weights.scale, xc.abs() + xr)
    if noise is not None:
        radius = radius + noise
    center = maps.apply(node, box.center, xc)
    return Interval(center - radius, center + radius), center  # nothing reads the magnitude


def _least(rows: Block | None, offset: Tensor, box: Interval) -> Tensor:
    if rows is None:
        return offset
    center, radius = box.center_radius
    return rows.dot(center) - rows.abs().dot(radius) + offset


@contextmanager
def careless() -> Iterator[None]:
    """The engine without any payment."""
    rules: dict[Any, Any] = dict.fromkeys((nodes.Linear, nodes.Conv, nodes.Scale), _weighted) | {nodes.Shift: _shift}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(linear.LINEAR, rules | {nodes.Activation: _activation}))
        stack.enter_context(mock.patch.dict(linear.INTERVAL, rules))
        stack.enter_context(mock.patch.dict(interval.RULES, dict.fromkeys(rules.keys() - {nodes.Shift}, _interval)))
        stack.enter_context(mock.patch.object(interval, "down", lambda x: x))
        stack.enter_context(mock.patch.object(interval, "up", lambda x: x))
        stack.enter_context(mock.patch.object(Walk, "underflow", return_value=None))
        stack.enter_context(mock.patch.object(Walk, "rate", return_value=0.0))
        stack.enter_context(mock.patch.object(walk, "least_of_rows", _least))
        yield


def measure(sizes: tuple[int, ...], batch: int) -> tuple[float, float, float, float]:
    """Median seconds with care and without, ratio, and the largest difference of the bounds relative to their size."""
    rng = np.random.default_rng(0)
    network = dense_network([
        (rng.normal(size=(after, before)) * np.sqrt(2 / before), 0.1 * rng.normal(size=after))
        for before, after in itertools.pairwise(sizes)
    ])  # fmt: skip
    centers = {name: torch.as_tensor(tensor)[None] for name, tensor in network.tensors.items()}
    spreads = {name: torch.as_tensor(0.01 * np.abs(tensor)) for name, tensor in network.tensors.items()}
    weights = WeightBoxes(centers, spreads, torch.ones(1, 1, dtype=torch.float64))
    x = torch.as_tensor(rng.random((batch, sizes[0])))
    m = sizes[-1]
    rows = (torch.eye(m, dtype=torch.float64)[:1] - torch.eye(m, dtype=torch.float64)[1:])[None]

    def once() -> tuple[float, Tensor]:
        start = time.perf_counter()
        found = Engine(network).rows(weights, x - 0.01, x + 0.01, rows).lower
        return time.perf_counter() - start, found

    careful, plain = [], []
    for _ in range(REPEATS):
        careful.append(once())
        with careless():
            plain.append(once())
    difference = ((plain[-1][1] - careful[-1][1]).abs() / plain[-1][1].abs()).max()
    with_care, without = ([t for t, _ in runs[1:]] for runs in (careful, plain))  # the first run warms up
    ratio = statistics.median(a / b for a, b in zip(with_care, without, strict=True))
    return statistics.median(with_care), statistics.median(without), ratio, float(difference)


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("network, batch: ms with care, ms without, ratio; largest relative difference of the bounds")
    for sizes, batch in CASES:
        with_care, without, ratio, difference = measure(sizes, batch)
        name = "-".join(map(str, sizes))
        print(f"{name}, {batch}: {1e3 * with_care:.2f}, {1e3 * without:.2f}, {ratio:.2f}; {difference:.1e}")


if __name__ == "__main__":
    main()
