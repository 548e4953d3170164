"""Makes the benchmark: trains the models and writes onnx/, vnnlib/, instances.csv and the figures in README.md.

    python benchmarks/digits/generate.py [--seed SEED] [--properties-only]

Same seed, same machine and same package versions: same files. Needs scikit-learn and this package.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import folder
import numpy as np
import torch
from catalogue import diabetes_instances, digits_instances
from folder import Folder, Outputs, predict, score, spread_of
from networks import CONV, DIABETES, ENSEMBLE, MLP, Architecture, onnx_model
from numpy.typing import NDArray
from splits import Split, diabetes, digits
from torch import Tensor
from training import Settings, fit_ensemble, fit_variational

from bnn_vnnlib import attach
from bnn_vnnlib.network.network import GaussianDiagonal, Posterior, WeightSamples

HERE = Folder(Path(__file__).resolve().parent)
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
        HERE.write_figures(rows)
    outputs = {MLP.name: mean_network(MLP), CONV.name: mean_network(CONV), ENSEMBLE.name: predictive(ENSEMBLE)}
    instances = [
        *digits_instances(splits[MLP], outputs, arguments.seed),
        *diabetes_instances(splits[DIABETES], mean_network(DIABETES), arguments.seed),
    ]
    HERE.write_properties(instances)
    print(f"{len(instances)} properties")


def mean_network(architecture: Architecture) -> Outputs:
    """The graph of a written model; see `folder.mean_network`."""
    return folder.mean_network(HERE.model_path(architecture.name), architecture)


def predictive(architecture: Architecture) -> Outputs:
    """The predictive distribution of a written model; see `folder.predictive`."""
    return folder.predictive(HERE.model_path(architecture.name), architecture)


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
    HERE.write_model(architecture.name, proto)
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


def _arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main()
