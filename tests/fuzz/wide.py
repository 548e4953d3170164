"""Bounds of wide posteriors against exact infima of very many sampled networks.

    PYTHONPATH=tests python -m fuzz.wide [--nets 2] [--samples 1000000] [--seed 0] [--hidden 1 2]

For one and for two hidden layers, over boxes and at points of two inputs: failures of a row are counted by exact infima
(enumeration of kinks) and compared with the bound, by a binomial test at 1e-9. Exits with 1 if one is violated.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

import numpy as np
import torch
from scipy import stats

from bnn_vnnlib.clock import Deadline
from bnn_vnnlib.robustness.classification.layers import OneLayer, Stack
from bnn_vnnlib.robustness.wide import moments, one_layer, two_layers
from bnn_vnnlib.robustness.wide.moments import RowsAtPoints
from bnn_vnnlib.robustness.wide.one_layer import RowsAtBoxes
from robustness.wide_builders import dense, least_margins, least_margins_deep

ROW = np.array([1.0, -1.0])

EACH = 20_000
"""Networks at once."""


def stack(rng: np.random.Generator, hidden: int) -> Stack:
    """2-H-2 or 2-H-H-2, deviations of .05 to .5 about means of size 1; two hidden layers with less, as bounds are 1 for
    so few neurons.
    """
    widths = (2, *([int(rng.integers(3, 5))] * hidden), 2)
    spread = float(rng.uniform(0.05, 0.5) if hidden == 1 else rng.uniform(0.02, 0.08))
    return Stack(tuple(dense(rng, out, into, spread=spread) for into, out in itertools.pairwise(widths)), "relu")


def least(net: Stack, bound: float, low: np.ndarray, high: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(S,) exact infima over the box."""
    if len(net.layers) == 2:
        return least_margins(OneLayer(*net.layers), ROW, bound, low, high, count, seed)
    return least_margins_deep(net, ROW, bound, low, high, count, seed)


def bounded(net: Stack, bound: float, low: np.ndarray, high: np.ndarray) -> float:
    """The failure probability of the row, from above."""
    if len(net.layers) == 3 and (low == high).all():
        point = torch.tensor(low)[None]
        asked = RowsAtPoints(point, point, torch.tensor(ROW)[None, None], torch.tensor([[bound]]))
        return min(delta + float(values[0, 0]) for delta, values in moments.failures(net, asked, Deadline()))
    question = RowsAtBoxes(low[None], high[None], ROW[None], np.array([bound]), np.array([0]))
    if len(net.layers) == 2:
        return float(one_layer.failures(OneLayer(*net.layers), question, Deadline())[0])
    return float(two_layers.failures(net, question, Deadline())[0])


def main() -> int:
    """One line a network."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nets", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    violated = 0
    for place, hidden, eps in itertools.product(range(options.nets), options.hidden, (0.0, 0.02)):
        rng, start = np.random.default_rng((options.seed, place, hidden)), time.process_time()
        net, x0 = stack(rng, hidden), rng.normal(size=2)
        low, high = x0 - eps, x0 + eps
        bound = float(np.quantile(least(net, 0.0, low, high, EACH, 1), 0.002))
        found = min(bounded(net, bound, low, high), 1.0)
        failed = 0
        for part in range(0, options.samples, EACH):
            failed += int((least(net, bound, low, high, EACH, 2 + part) <= 0).sum())
        chance = float(stats.binom.sf(failed - 1, options.samples, found))
        violated += chance < 1e-9
        shape = f"{hidden} hidden of {net.layers[0].outputs}, eps {eps:g}"
        seconds = time.process_time() - start
        sys.stdout.write(f"{shape}: failed {failed / options.samples:.6f} bound {found:.6f} cpu {seconds:.0f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"violations: {violated}\n")
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
