"""A merged sample posterior: against the posterior predictive, and in the readers of other verifiers.

    python scripts/measure/merged.py MODEL [--likelihood categorical]

Readers that are not installed (maraboupy; auto_LiRPA with onnx2torch) are marked so.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnxruntime as ort
import torch
import typer

from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.model.files import write_model
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Floats
from bnn_vnnlib.posteriors.merge import merge
from bnn_vnnlib.posteriors.parts import FileParts, read_parts

POINTS = 100


def predictive(parts: FileParts, x: Floats, softmax: bool) -> Floats:
    """The average over the samples in float64, by the package's own evaluation of the original network."""
    if not isinstance(parts.posterior, WeightSamples):
        raise typer.BadParameter("needs a model with weight samples")
    weights = {name: torch.tensor(values) for name, values in parts.posterior.samples.items()}
    each = evaluate(parts.model.network, torch.tensor(x), weights)
    each = torch.softmax(each, -1) if softmax else each
    return np.tensordot(parts.posterior.probabilities, each.numpy(), 1)


def onnxruntime_outputs(path: Path, x: Floats) -> Floats:
    """One row for each point."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0]
    rows = [row.reshape(source.shape).astype(np.float32) for row in x]
    return np.array([session.run(None, {source.name: row})[0].reshape(-1) for row in rows], np.float64)


def marabou(path: Path, x: Floats, expected: Floats) -> str:
    """Largest difference in Marabou's own evaluation of the network that it read."""
    network = import_module("maraboupy.Marabou").read_onnx(str(path))
    shape = network.inputVars[0].shape
    outputs = [np.ravel(network.evaluateWithMarabou([row.reshape(shape)])[0]) for row in x[:10]]
    return f"read; its outputs at 10 points differ by at most {np.abs(np.array(outputs) - expected[:10]).max():.1e}"


def lirpa(path: Path, x: Floats, expected: Floats) -> str:
    """The expected outputs lie in auto_LiRPA's bounds over a small box around each point."""
    onnx: Any = import_module("onnx")
    auto: Any = import_module("auto_LiRPA")
    module = import_module("onnx2torch").convert(onnx.load(path))
    points = torch.tensor(x[:10], dtype=torch.float32)
    bounded = auto.BoundedModule(module, points)
    box = auto.BoundedTensor(points, auto.PerturbationLpNorm(norm=np.inf, eps=1e-3))
    lower, upper = bounded.compute_bounds(x=(box,), method="CROWN")
    inside = (lower.detach().numpy() <= expected[:10] + 1e-4) & (expected[:10] - 1e-4 <= upper.detach().numpy())
    return f"read; CROWN bounds at 10 points hold the predictive: {bool(inside.all())}"


def main(model: Path, likelihood: Annotated[str, typer.Option()] = "categorical") -> None:
    """Print what was found."""
    torch.set_num_threads(1)
    parts = read_parts(model, likelihood=likelihood)
    x = np.random.default_rng(0).uniform(-1, 1, (POINTS, parts.model.network.signature.input_size))
    with tempfile.TemporaryDirectory() as name:
        forms: tuple[Literal["blocks", "copies"], ...] = ("blocks", "copies")
        averages: tuple[Literal["probabilities", "outputs"], ...] = ("probabilities", "outputs")
        for form in forms:
            for average in averages:
                path = Path(name) / f"{form}_{average}.onnx"
                write_model(merge(parts, average=average, form=form)[0], path)
                expected = predictive(parts, x, average == "probabilities")
                worst = np.abs(onnxruntime_outputs(path, x) - expected).max()
                print(f"{form}, {average}: {path.stat().st_size:,} bytes, onnxruntime differs by at most {worst:.1e}")
                # Marabou reads copies that end in many Softmaxes, but its evaluation ends the process
                for reader in (lirpa,) if (form, average) == ("copies", "probabilities") else (lirpa, marabou):
                    try:
                        print(f"  {reader.__name__}: {reader(path, x, expected)}")
                    except ImportError as error:
                        print(f"  {reader.__name__}: not run ({error})")
                    except Exception as error:  # a table of what other programs do
                        print(f"  {reader.__name__}: fails: {type(error).__name__} {str(error)[:100]}")


if __name__ == "__main__":
    typer.run(main)
