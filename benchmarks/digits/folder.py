"""The folder of a benchmark: its models, properties and tables, and what its networks predict."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime
import torch
from networks import Architecture
from numpy.typing import NDArray
from properties import Spec
from splits import Split
from torch import Tensor
from training import Gaussians

from bnn_vnnlib import read_model
from bnn_vnnlib.network.network import WeightSamples

Outputs = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # (N, d) -> (N, m)


class Entry(Protocol):
    """A property for a model, with its time limit in seconds."""

    @property
    def architecture(self) -> Architecture: ...

    @property
    def spec(self) -> Spec: ...

    @property
    def timeout(self) -> int: ...


@dataclass(frozen=True)
class Folder:
    """A benchmark in the competition's layout; `packed` files are compressed, and named without .gz in the tables."""

    root: Path
    versions: tuple[str, ...] = ("1.0", "2.0")
    packed: bool = False

    def model_path(self, name: str) -> Path:
        """Where a model lies."""
        return self.root / "onnx" / f"{name}.onnx{'.gz' * self.packed}"

    def write_model(self, name: str, proto: onnx.ModelProto) -> None:
        """Write a model."""
        path = self.model_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(path, proto.SerializeToString(deterministic=True))

    def write_properties(self, entries: Iterable[Entry]) -> None:
        """Every property in each version, in place of those that were there, and an instances file a version."""
        entries = list(entries)
        for version in self.versions:
            folder = self.root / "vnnlib" / version
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob("*.vnnlib*"):
                stale.unlink()
            for entry in entries:
                text = entry.spec.v1() if version == "1.0" else entry.spec.v2()
                self._write(folder / f"{entry.spec.name}.vnnlib{'.gz' * self.packed}", text.encode("ascii"))
            target = self.root / ("instances.csv" if version == "1.0" else f"instances_{version}.csv")
            with target.open("w", newline="") as stream:
                csv.writer(stream, lineterminator="\n").writerows(
                    (f"onnx/{e.architecture.name}.onnx", f"vnnlib/{version}/{e.spec.name}.vnnlib", e.timeout)
                    for e in entries
                )

    def write_figures(self, rows: list[list[str]]) -> None:
        """Replace the table between the marks of README.md."""
        table = [
            "| model | weights | posterior | predictive, test part | mean network, test part |",
            "|---|---|---|---|---|",
            *("| " + " | ".join(row) + " |" for row in rows),
        ]
        readme = self.root / "README.md"
        marked = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
        text, count = marked.subn(lambda _: "\n".join(table) + "\n", readme.read_text())
        if count != 1:
            raise ValueError(f"expected one place for the figures in {readme}, found {count}")
        readme.write_text(text)

    def _write(self, path: Path, content: bytes) -> None:
        # no name and no time in the header, so that the same content gives the same file
        path.write_bytes(gzip.compress(content, 9, mtime=0) if self.packed else content)


def predict(
    architecture: Architecture, networks: list[dict[str, Tensor]], x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean over the networks of the class probabilities, or of the output."""
    outputs = torch.stack([architecture.forward(weights, torch.as_tensor(x).float()) for weights in networks])
    if architecture.likelihood == "categorical":
        outputs = outputs.softmax(dim=-1)
    return outputs.mean(dim=0).double().numpy()


def score(architecture: Architecture, split: Split, outputs: NDArray[np.float64]) -> str:
    """Accuracy on the test part, or root mean squared error."""
    if architecture.likelihood == "categorical":
        return f"accuracy {np.mean(outputs.argmax(axis=1) == split.test_y):.4f}"
    return f"RMSE {np.sqrt(np.mean((outputs[:, 0] - split.test_y) ** 2)):.4f}"


def spread_of(fitted: Gaussians) -> str:
    """How wide the posterior is, over all weights and biases."""
    sd = np.concatenate([tensor.numpy().ravel() for tensor in fitted.sd.values()])
    mean = np.concatenate([tensor.numpy().ravel() for tensor in fitted.mean.values()])
    norms = np.linalg.norm(sd) / np.linalg.norm(mean)
    return (
        f"median sd {np.median(sd):.4f}; median sd / abs(mean) {np.median(sd / np.abs(mean)):.3f}; of norms {norms:.4f}"
    )


def mean_network(path: Path, architecture: Architecture) -> Outputs:
    """The file's graph in onnxruntime, one input at a time as the shapes say."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of initializers that no node uses: the posterior
    options.intra_op_num_threads = 1
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(x: NDArray[np.float64]) -> NDArray[np.float64]:
        images = x.astype(np.float32).reshape(-1, *architecture.input_shape)
        return np.concatenate([session.run(None, {"X": image})[0] for image in images]).astype(np.float64)

    return run


def predictive(path: Path, architecture: Architecture) -> Outputs:
    """The predictive distribution of a file with weight samples, whose mean network means nothing."""
    posterior = read_model(path).posterior
    if not isinstance(posterior, WeightSamples):
        raise TypeError(f"{architecture.name} holds no weight samples")
    samples = {name: torch.as_tensor(values).float() for name, values in posterior.samples.items()}
    networks = [{name: tensor[i] for name, tensor in samples.items()} for i in range(len(posterior.probabilities))]
    return lambda x: predict(architecture, networks, x)
