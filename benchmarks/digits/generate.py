"""Makes the benchmark: trains the models and writes onnx/, vnnlib/, instances.csv and the figures in README.md.

    python benchmarks/digits/generate.py [--seed SEED] [--properties-only]

Same seed, same machine and same package versions: same files. Needs scikit-learn and this package.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from catalogue import Instance, Outputs, diabetes_instances, digits_instances
from networks import CONV, DIABETES, ENSEMBLE, MLP, Architecture, onnx_model
from numpy.typing import NDArray
from splits import Split, diabetes, digits
from torch import Tensor
from training import Gaussians, Settings, fit_ensemble, fit_variational

from bnn_vnnlib import attach, read_model
from bnn_vnnlib.model.network import GaussianDiagonal, Posterior, WeightSamples

HERE = Path(__file__).resolve().parent
SETTINGS = Settings()
DIABETES_SETTINGS = replace(SETTINGS, eps=0.1, box=(-10.0, 10.0), share=0.3)
MEMBERS, DRAWS = 16, 100
DIGITS_MODELS = (MLP, CONV, ENSEMBLE)


def main() -> None:
    """Train unless told not to, then write the properties."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of training and of the choice of test points (default 0)")
    parser.add_argument("--properties-only", action="store_true", help="keep the models, write the properties anew")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    splits = {**dict.fromkeys(DIGITS_MODELS, digits()), DIABETES: diabetes()}
    if not arguments.properties_only:
        rows = [train(architecture, split, arguments.seed) for architecture, split in splits.items()]
        write_figures(rows)
    outputs = {MLP.name: mean_network(MLP), CONV.name: mean_network(CONV), ENSEMBLE.name: predictive(ENSEMBLE)}
    instances = [
        *digits_instances(splits[MLP], outputs, arguments.seed),
        *diabetes_instances(splits[DIABETES], mean_network(DIABETES), arguments.seed),
    ]
    write_properties(instances)
    print(f"{len(instances)} properties")


def model_path(architecture: Architecture) -> Path:
    """Where a model lies."""
    return HERE / "onnx" / f"{architecture.name}.onnx"


def train(architecture: Architecture, split: Split, seed: int) -> list[str]:
    """Train a model, write it with its posterior, and return its row of figures."""
    started = time.monotonic()
    settings = DIABETES_SETTINGS if architecture is DIABETES else SETTINGS
    if architecture is ENSEMBLE:
        samples = fit_ensemble(architecture, split, replace(settings, steps=800), seed, MEMBERS)
        posterior: Posterior = WeightSamples(_arrays(samples), np.full(MEMBERS, 1 / MEMBERS))
        mean = {name: tensor.mean(dim=0) for name, tensor in samples.items()}
        networks = [{name: tensor[i] for name, tensor in samples.items()} for i in range(MEMBERS)]
        spread = f"{MEMBERS} samples"
    else:
        fitted = fit_variational(architecture, split, settings, seed)
        posterior = GaussianDiagonal({name: sd**2 for name, sd in _arrays(fitted.sd).items()})
        mean = fitted.mean
        generator = torch.Generator().manual_seed(seed)
        networks = [fitted.draw(generator) for _ in range(DRAWS)]
        spread = spread_of(fitted)
    proto = attach(onnx_model(architecture, _arrays(mean)), posterior, likelihood=architecture.likelihood)
    model_path(architecture).parent.mkdir(exist_ok=True)
    onnx.save(proto, model_path(architecture))
    seconds = time.monotonic() - started
    count = str(sum(tensor.numel() for tensor in mean.values()))
    predictive = score(architecture, split, predict(architecture, networks, split.test_x))
    row = [
        architecture.name,
        count,
        spread,
        predictive,
        score(architecture, split, mean_network(architecture)(split.test_x)),
    ]
    print(*row, f"{seconds:.0f} s", sep=" | ", flush=True)
    return row


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
    sd = np.concatenate([tensor.ravel() for tensor in _arrays(fitted.sd).values()])
    mean = np.concatenate([tensor.ravel() for tensor in _arrays(fitted.mean).values()])
    norms = np.linalg.norm(sd) / np.linalg.norm(mean)
    return (
        f"median sd {np.median(sd):.4f}; median sd / abs(mean) {np.median(sd / np.abs(mean)):.3f}; of norms {norms:.4f}"
    )


def mean_network(architecture: Architecture) -> Outputs:
    """The file's graph in onnxruntime, one input at a time as the shapes say."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of initializers that no node uses: the posterior
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model_path(architecture), options, providers=["CPUExecutionProvider"])

    def run(x: NDArray[np.float64]) -> NDArray[np.float64]:
        images = x.astype(np.float32).reshape(-1, *architecture.input_shape)
        return np.concatenate([session.run(None, {"X": image})[0] for image in images]).astype(np.float64)

    return run


def predictive(architecture: Architecture) -> Outputs:
    """The predictive distribution of a file with weight samples, whose mean network means nothing."""
    posterior = read_model(model_path(architecture)).posterior
    if not isinstance(posterior, WeightSamples):
        raise TypeError(f"{architecture.name} holds no weight samples")
    samples = {name: torch.as_tensor(values).float() for name, values in posterior.samples.items()}
    networks = [{name: tensor[i] for name, tensor in samples.items()} for i in range(len(posterior.probabilities))]
    return lambda x: predict(architecture, networks, x)


def write_properties(instances: list[Instance]) -> None:
    """Both versions of every property, and an instances file for each version."""
    for version in ("1.0", "2.0"):
        folder = HERE / "vnnlib" / version
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.vnnlib"):
            stale.unlink()
        for instance in instances:
            text = instance.spec.v1() if version == "1.0" else instance.spec.v2()
            (folder / f"{instance.spec.name}.vnnlib").write_text(text, encoding="ascii", newline="\n")
        target = HERE / ("instances.csv" if version == "1.0" else "instances_2.0.csv")
        with target.open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(
                (f"onnx/{i.architecture.name}.onnx", f"vnnlib/{version}/{i.spec.name}.vnnlib", i.timeout)
                for i in instances
            )


def write_figures(rows: list[list[str]]) -> None:
    """Replace the table between the marks of README.md."""
    table = [
        "| model | weights | posterior | predictive, test part | mean network, test part |",
        "|---|---|---|---|---|",
    ]
    table += ["| " + " | ".join(row) + " |" for row in rows]
    readme = HERE / "README.md"
    marks = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)
    text = readme.read_text(encoding="utf-8")
    readme.write_text(marks.sub(lambda found: found[1] + "\n".join(table) + "\n" + found[2], text), encoding="utf-8")


def _arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main()
