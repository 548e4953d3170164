"""Many small questions, each bounded and then attacked with drawn networks: is any bound contradicted?

python scripts/measure/attacked.py [NETWORKS] [SEED] ; processor seconds, one thread. Every network is one of the
contract zoo or of `support.blocks` with independent Gaussian weights, and gets 3 questions about each of 200 boxes:
P_safe of a row, expected outputs, expected probabilities. A bound on P_safe is contradicted if more of 1,000 networks
violate somewhere than it allows, or fewer at its point than it demands, at level 1e-12; a bound on an expectation if
the mean of the drawn networks at a point of the box is beyond it by 8 standard errors.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

sys.path.insert(0, "tests")
time.monotonic = time.process_time

from bnn_vnnlib import verify_batch  # noqa: E402
from bnn_vnnlib.network.evaluate import evaluate  # noqa: E402
from bnn_vnnlib.network.families import sample  # noqa: E402
from bnn_vnnlib.network.network import GaussianDiagonal, Model  # noqa: E402
from contract import zoo  # type: ignore[import-not-found]  # noqa: E402
from support.blocks import BLOCKS, TRAINED, random  # type: ignore[import-not-found]  # noqa: E402

Array = NDArray[np.float64]

ITEMS, DRAWN, SECONDS = 200, 1000, 0.7

LEVEL, ERRORS = 1e-12, 8.0


def attacked(model: Model, lower: Array, upper: Array, row: Array, rng: np.random.Generator) -> Array:
    """Points (P, N, n) of the boxes: centres, a random one, and the corners that the mean network's row points to."""
    center = torch.tensor((lower + upper) / 2, requires_grad=True)
    value = (evaluate(model.network, center) @ torch.tensor(row)).sum()
    (slope,) = torch.autograd.grad(value, center)
    worst, best = np.where(slope.numpy() > 0, lower, upper), np.where(slope.numpy() > 0, upper, lower)
    return np.stack([center.detach().numpy(), rng.uniform(lower, upper), worst, best])


def contradictions(model: Model, rng: np.random.Generator) -> tuple[Counter[str], list[str]]:
    """How many questions were asked, how many of them have a bound that says something, and what speaks against it."""
    n, m = model.network.signature.input_size, model.network.signature.output_size
    center = rng.normal(size=(ITEMS, n))
    radius = rng.choice([0.0, 0.003, 0.03, 0.2], size=(ITEMS, 1))
    lower, upper = center - radius, center + radius
    row = rng.normal(size=m)
    x = attacked(model, lower, upper, row, rng)
    posterior = model.posterior or GaussianDiagonal({})
    drawn = sample(model.network, posterior, DRAWN, torch.Generator().manual_seed(int(rng.integers(2**31))))
    with torch.no_grad():
        y = np.stack([evaluate(model.network, torch.tensor(points), drawn).numpy() for points in x], 1)  # (S, P, N, m)
    values = y @ row
    bound = np.array([np.quantile(values[:, 0, i], rng.choice([0.001, 0.02, 0.3])) for i in range(ITEMS)])
    questions = [[(row[None], bound[i : i + 1], np.array([False]))] for i in range(ITEMS)]
    evidence = []
    limits: dict[str, Any] = {"timeout": SECONDS}
    found = verify_batch(model, lower, upper, properties=questions, query="probabilistic", **limits)
    told = int(((found.lower > 0) | (found.upper < 1)).sum())
    broken = (values <= bound).any(1).sum(0)
    for i in np.flatnonzero(binom.sf(broken - 1, DRAWN, 1 - found.lower) < LEVEL):
        evidence.append(f"item {i}: P_safe >= {found.lower[i]}, and {broken[i]} of {DRAWN} networks violate")
    with torch.no_grad():
        at = (evaluate(model.network, torch.tensor(found.points), drawn).numpy() @ row <= bound).sum(0)
    for i in np.flatnonzero((found.upper < 1) & (binom.cdf(at, DRAWN, 1 - found.upper) < LEVEL)):
        evidence.append(f"item {i}: P_safe <= {found.upper[i]}, and {at[i]} of {DRAWN} networks violate at its point")
    for likelihood in ("gaussian", "categorical") if m > 1 else ("gaussian",):
        asked = replace(model, likelihood=likelihood)
        found = verify_batch(asked, lower, upper, query="decision", **limits)
        value = y if likelihood == "gaussian" else zoo.transformed(y, "softmax")
        narrow = np.minimum(found.upper, 1e300) - np.maximum(found.lower, -1e300) < np.ptp(value, axis=(0, 1))
        told += int(narrow.any(1).sum())
        mean, error = value.mean(0), ERRORS * value.std(0) / np.sqrt(DRAWN) + 1e-9
        wrong = (found.lower > mean + error) | (found.upper < mean - error)
        evidence += [f"item {i}, {likelihood}: output {j}" for _, i, j in np.argwhere(wrong)]
    return Counter(questions=ITEMS * (3 if m > 1 else 2), told=told, contradictions=len(evidence)), evidence


def main(networks: int, seed: int) -> None:
    """Count, and print what is found."""
    torch.set_num_threads(1)
    names, asked = [*zoo.GRAPHS, *BLOCKS], Counter[str]()
    for number in range(seed, seed + networks):
        rng = np.random.default_rng(number)
        name, size = names[number % len(names)], str(rng.choice(list(zoo.DEVIATIONS)))
        if name in BLOCKS:
            model = random(BLOCKS[name](), float(rng.choice([0.003, 0.02, 0.1])), *TRAINED)
        else:
            model = zoo.model_of(name, "gaussian", size)
        count, evidence = contradictions(model, rng)
        asked += count
        for what in evidence:
            print(f"network {number} ({name}): {what}")
        print(f"{number}: {dict(asked)}, {time.process_time():.0f} s", flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in (sys.argv[1:] + ["10", "0"][len(sys.argv) - 1 :])))
