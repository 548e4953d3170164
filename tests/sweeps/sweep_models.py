"""Small models on disk, and calls of the command line, for the tests of long jobs."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib.model import GaussianDiagonal, WeightSamples, attach
from support.command import call


def write_net(
    path: Path, widths: Sequence[int], seed: int = 0, spread: float = 0.05, likelihood: str = "categorical",
    samples: int = 0,
) -> Path:  # fmt: skip
    """A random dense ReLU network with a Gaussian posterior, or with samples."""
    rng = np.random.default_rng(seed)
    tensors, nodes, value = {}, [], "x"
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        tensors[f"W{k}"] = rng.normal(size=(after, before)) / np.sqrt(before)
        tensors[f"b{k}"] = 0.3 * rng.normal(size=after)
        last = k == len(widths) - 2
        nodes.append(helper.make_node("Gemm", [value, f"W{k}", f"b{k}"], ["y" if last else f"z{k}"], transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [f"z{k}"], [f"a{k}"]))
            value = f"a{k}"
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, widths[-1]])],
        [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if samples:
        drawn = {n: t + spread * rng.normal(size=(samples, *t.shape)) for n, t in tensors.items()}
        posterior = WeightSamples(drawn, np.full(samples, 1 / samples))
    else:
        posterior = GaussianDiagonal(
            {n: np.full(t.shape, (spread / np.sqrt(t.shape[-1])) ** 2) for n, t in tensors.items()}
        )
    onnx.save(attach(proto, posterior, likelihood=likelihood), path)
    return path


def told(*arguments: object, code: int = 0) -> str:
    """What the command line says on standard error; standard output stays empty."""
    outcome = call(*arguments, code=code)
    assert outcome.stdout == ""
    return " ".join(outcome.stderr.split())


def documented(columns: Iterable[str]) -> bool:
    """Whether docs/sweeps.md names every column."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    return all(f"`{name}`" in text for name in columns)


def boxes(count: int, inputs: int, classes: int, seed: int = 0, radius: float = 0.05) -> dict[str, np.ndarray]:
    """A table with labels at random, some of them -1."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(count, inputs))
    return {"lower": middle - radius, "upper": middle + radius, "label": rng.integers(-1, classes, count)}


@dataclass(frozen=True)
class Killing:
    """A job of four rows, and the task of one of them: row 2 kills its process so many times."""

    folder: Path
    times: int
    row: int = 0

    @property
    def settings(self) -> dict[str, str]:
        return {"job": "killing"}

    def __len__(self) -> int:
        return 4

    def size(self, chunk: int) -> int:
        return 1

    def task(self, chunk: int) -> Killing:
        return Killing(self.folder, self.times, chunk)

    def run(self, earlier: object) -> dict[str, np.ndarray]:
        for number in range(self.times if self.row == 2 else 0):
            if not (place := self.folder / str(number)).exists():
                place.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"row": np.array([self.row])}
