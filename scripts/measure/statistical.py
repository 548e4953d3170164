"""What a statistical guarantee costs: draws used beside the best fixed number, and intervals of a trained network.

    python scripts/measure/statistical.py draws [--runs 400]
    python scripts/measure/statistical.py contradictions [--networks 500]
    python scripts/measure/statistical.py coverage [--truth P_SAFE ...] [--runs 2000]
    python scripts/measure/statistical.py network MODEL.onnx POINTS.npz [--eps 0.01] [--draws 20000] [--points 10]

`draws` is simulated: verified networks are 0 or 1 with a known probability. Beside the median number of draws until a
threshold is passed stands the smallest fixed number whose exact binomial test has power one half: it has to be known
beforehand. `coverage` repeats whole runs with fresh seeds, as they really end: at a threshold, when all draws are
counted, when time is up in the middle of a batch, killed and resumed with the same seed; with draws that are slow or
stay open, unsafe ones more often than others. Every interval that a run ever reported counts as a miss if it does not
hold the truth, at delta = 0.05. `network` asks for the interval of P_safe (no threshold) of l-infinity balls around the
points X, y of the archive, clipped to [0, 1], and prints draws, processor seconds and draws a second of one thread.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import binom, norm

from bnn_vnnlib import read_model, verify_batch
from bnn_vnnlib.martingale import exceeds, failing
from bnn_vnnlib.methods import deterministic
from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask, unsafe_items
from bnn_vnnlib.methods.statistical import safety, sampling
from bnn_vnnlib.methods.statistical.sampling import Sampling
from bnn_vnnlib.model import GaussianDiagonal, Model, attach
from bnn_vnnlib.model.reading import model_from_proto
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.setting import settle_run
from bnn_vnnlib.system.clock import Deadline

CONFIDENCE = 0.999999

SHOWN = ((1.0, 0.9), (1.0, 0.95), (1.0, 0.99), (0.97, 0.95), (0.98, 0.95), (0.99, 0.95), (0.999, 0.99))
"""(true P_safe, threshold to show from below)."""

REFUTED = ((0.0, 0.95), (0.5, 0.95), (0.9, 0.95))
"""(true P_safe, threshold to show from above)."""

app = typer.Typer(add_completion=False)


def used(share: float, threshold: float, runs: int, most: int = 12_000) -> np.ndarray:
    """Draws until a share of ones is proved to exceed the threshold; looked at after every tenth."""
    rng, delta = np.random.default_rng(0), failing(CONFIDENCE, 2)
    step = 1 if share in (0.0, 1.0) else 10
    n = np.arange(step, most + 1, step)
    ones = (rng.random((runs, most)) < share).cumsum(1)[:, n - 1]
    found = np.full(runs, np.inf)
    for run, hits in enumerate(ones):
        shown = exceeds(np.stack([n - hits, hits], 1), threshold, delta)
        if shown.any():
            found[run] = n[shown.argmax()]
    return found


def fixed(share: float, threshold: float) -> int:
    """The least n whose binomial test at this level shows the threshold in half of all cases."""
    delta = failing(CONFIDENCE, 2)
    for n in range(1, 20_000):
        least = int(binom.isf(delta, n, threshold)) + 1
        if least <= n and binom.sf(least - 1, n, share) >= 0.5:
            return n
    return 20_000


@app.command()
def draws(runs: int = 400) -> None:
    """A line for each pair of a true probability and a threshold."""
    print("true P_safe, threshold: fixed number, median, 90 % quantile of draws")
    for share, threshold in SHOWN:
        took = used(share, threshold, runs if share < 1 else 1)
        print(f"{share} >= {threshold}: {fixed(share, threshold)}, {np.median(took):g}, {np.quantile(took, 0.9):g}")
    for share, threshold in REFUTED:
        took = used(1 - share, 1 - threshold, runs if share else 1)
        print(f"{share} < {threshold}: {fixed(1 - share, 1 - threshold)}, {np.median(took):g}, "
              f"{np.quantile(took, 0.9):g}")  # fmt: skip


class _Clock:
    """Time is up after so many looks at the clock, for whoever has a limit."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def passed(self, deadline: Deadline) -> bool:
        """In the place of `Deadline.passed`."""
        self.left -= 1
        return deadline.at is not None and self.left < 0


@app.command()
def coverage(truth: list[float] | None = None, runs: int = 2000, delta: float = 0.05) -> None:
    """A line for each true probability: runs that ever reported an interval without the truth, against delta."""
    torch.set_num_threads(1)
    begun = time.process_time()
    for true in truth or (0.5, 0.9, 0.99, 1.0):
        missed = looks = counted = ends = 0
        task = _line(true)
        for run in range(runs):
            rng = np.random.default_rng([run, round(1000 * true)])
            slow, share = bool(rng.random() < 0.5), float(rng.choice([0.0, 0.1, 0.5]))

            def branched(bounds: Any, weights: Any, problem: Any, found: Any, how: Any,
                         slow: bool = slow) -> Any:  # fmt: skip
                return found if slow else deterministic.branched(bounds, weights, problem, found, how)

            def unsafe(bounds: Any, weights: Any, problem: Any, points: Any, usable: Any, rng: Any = rng,
                       share: float = share) -> Any:  # fmt: skip
                found = unsafe_items(bounds, weights, problem, points, usable)
                return found & torch.as_tensor(rng.random(found.shape) >= share)  # some violations are not proved

            unsafe_below, safe_from = sorted(rng.choice([0.3, 0.6, 0.85, 0.95, 0.98], 2))
            goal = Goal(safe_from, unsafe_below, 0.3 if run % 3 == 0 else None)
            most, seed = int(rng.integers(20, 120)), int(rng.integers(2**40))
            stops = [int(rng.integers(1, 25)), int(rng.integers(20, 200))] if run % 2 else [0]  # killed, then resumed
            wrong = False
            for stop in stops:
                clock = _Clock(stop)
                with ExitStack() as patched:
                    for where, name, value in ((safety, "branched", branched), (safety, "unsafe_items", unsafe),
                                               (Deadline, "passed", property(clock.passed)),
                                               (sampling, "_FIRST", int(rng.integers(1, 40)))):  # fmt: skip
                        patched.enter_context(mock.patch.object(where, name, value))
                    limit = Deadline(1e18) if run % 2 else Deadline()
                    engine = replace(task.bounds.engine, deadline=limit)
                    asked = replace(task, goal=goal, deadline=limit, bounds=replace(task.bounds, engine=engine))
                    found = safety.safety_bounds(asked, Sampling(1 - delta, most, seed))
                wrong |= not float(found.lower[0]) <= true <= float(found.upper[0])
                counts = found.draws
                if counts is not None:
                    counted, ends = counted + int(counts.counted[0]), ends + int(counts.open[0])
                looks += 1
            missed += wrong
        allowed = delta + 3 * np.sqrt(delta * (1 - delta) / runs)
        print(f"P_safe {true}: {missed} of {runs} runs missed, {missed / runs:.4f} (allowed {allowed:.4f}); {looks} "
              f"intervals, {counted / looks:.0f} draws each, {ends / max(1, counted):.3f} of them open; "
              f"{time.process_time() - begun:.0f} processor s so far", flush=True)  # fmt: skip


def _line(truth: float) -> SafetyTask:
    """y = x + N(0, 1) on [0, 1], violated from a threshold on that the probability `truth` stays below."""
    zero = np.zeros((1, 1))
    plain = helper.make_model(helper.make_graph(
        [helper.make_node("Gemm", ["x", "W", "b"], ["y"], transB=1)], "line",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 1])],
        [numpy_helper.from_array(zero + 1, "W"), numpy_helper.from_array(np.zeros(1), "b")],
    ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)  # fmt: skip
    net = model_from_proto(attach(plain, GaussianDiagonal({"b": np.ones(1)})))
    end = 1 + (norm.ppf(truth) if truth < 1 else 40.0)
    box = torch.zeros(1, 1, dtype=torch.float64)
    problem = from_cases(box, box + 1, [[(np.array([[-1.0]]), np.array([-end]), np.array([False]))]], 1)
    setting = settle_run(net, Options("probabilistic", guarantee="statistical", seed=0))
    return setting.safety_task(problem, setting.attack(steps=2, restarts=1, pool=1))


@app.command()
def network(model: Path, archive: Path, eps: float = 0.01, draws: int = 20_000, points: int = 10) -> None:
    """A line for each point."""
    torch.set_num_threads(1)
    net, data = read_model(model), np.load(archive)
    for i in range(points):
        x, label = data["X"][i : i + 1].astype(np.float64), data["y"][i : i + 1].astype(int)
        low, high = np.clip(x - eps, 0, 1), np.clip(x + eps, 0, 1)
        begun = time.process_time()
        found = verify_batch(net, low, high, labels=label, query="probabilistic", guarantee="statistical", draws=draws,
                             goal="bounds", seed=i)  # fmt: skip
        took = time.process_time() - begun
        if found.draws is None:
            raise SystemExit("no draws were counted")
        counted, safe, violating, open_ = found.draws[0].astype(int).tolist()
        width = found.upper[0] - found.lower[0]
        print(f"{i}: [{found.lower[0]:.4f}, {found.upper[0]:.4f}], width {width:.4f}; {counted} draws: {safe} safe, "
              f"{violating} violating, {open_} open; {took:.0f} processor s, {counted / took:.0f} a second",
              flush=True)  # fmt: skip


@app.command()
def contradictions(networks: int = 500, limit: float = 0.3) -> None:
    """Certain and statistical bounds of random small networks, which may not exclude each other."""
    torch.set_num_threads(1)
    excluding, narrower, spent, widths = 0, 0, [0.0, 0.0], np.zeros((networks, 2))
    for seed in range(networks):
        net, x, radius = small(seed)
        sides = []
        hows: tuple[dict[str, Any], ...] = (
            {"timeout": limit},
            {"guarantee": "statistical", "draws": 500, "seed": seed},
        )
        for place, how in enumerate(hows):
            begun = time.process_time()
            found = verify_batch(net, x - radius, x + radius, labels=[0], query="probabilistic", goal="bounds", **how)
            spent[place] += time.process_time() - begun
            sides.append((found.lower[0], found.upper[0]))
            widths[seed, place] = found.upper[0] - found.lower[0]
        (low, high), (below, above) = sides
        excluding += bool(low > above or high < below)
        narrower += bool(widths[seed, 1] < widths[seed, 0])
    print(f"{networks} networks: {excluding} contradictions; statistical narrower for {narrower}; mean width "
          f"{widths[:, 0].mean():.3f} certain, {widths[:, 1].mean():.3f} statistical; processor s a network "
          f"{spent[0] / networks:.2f}, {spent[1] / networks:.2f}")  # fmt: skip


def small(seed: int) -> tuple[Model, np.ndarray, float]:
    """A random ReLU network with one or two hidden layers and independent Gaussian weights, a point and a radius."""
    rng = np.random.default_rng(seed)
    sizes = [int(rng.integers(2, 5)), *rng.integers(3, 9, rng.integers(1, 3)).tolist(), int(rng.integers(2, 4))]
    spread = float(rng.choice([0.03, 0.1, 0.3, 0.6]))
    nodes, tensors, value = [], {}, "x"
    for place, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = place == len(sizes) - 2
        tensors[f"W{place}"] = rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)
        tensors[f"b{place}"] = 0.3 * rng.standard_normal(outputs)
        nodes.append(helper.make_node("Gemm", [value, f"W{place}", f"b{place}"], ["y" if last else f"z{place}"],
                                      transB=1))  # fmt: skip
        if not last:
            nodes.append(helper.make_node("Relu", [f"z{place}"], [f"h{place}"]))
            value = f"h{place}"
    shapes = (("x", sizes[0]), ("y", sizes[-1]))
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, size]) for name, size in shapes]
    stored = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], stored)
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    posterior = GaussianDiagonal({name: np.full(tensor.shape, (spread / np.sqrt(tensor.shape[-1])) ** 2)
                                  for name, tensor in tensors.items()})  # fmt: skip
    return model_from_proto(attach(plain, posterior)), rng.standard_normal((1, sizes[0])), float(rng.choice([0.0, 0.1]))


if __name__ == "__main__":
    app()
