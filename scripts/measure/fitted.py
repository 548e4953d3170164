"""A posterior fitted by `convert --fit` beside a plain run of the same library on the torch network.

Needs laplace-torch and ivon-opt: python scripts/measure/fitted.py
"""

from __future__ import annotations

import tempfile
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from bnn_vnnlib.model import GaussianDiagonal, Model, read_model, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.posteriors.convert import FittedOn, convert_file

DRAWS, SPLIT = 2000, 1200


def trained(x: torch.Tensor, y: torch.Tensor, epochs: int = 100) -> nn.Sequential:
    """A network of one hidden layer, with a small weight decay."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net


def show(what: str, probabilities: torch.Tensor, y: torch.Tensor) -> None:
    """Mean log-likelihood of the points, and its standard error over them."""
    terms = probabilities[torch.arange(len(y)), y].log()
    error = float(terms.std()) / len(y) ** 0.5
    print(f"{what:32} log-likelihood {float(terms.mean()):.4f} (standard error over the points {error:.4f})")


def predictive(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Expected softmax, an estimate from DRAWS networks."""
    if model.posterior is None:
        return torch.softmax(evaluate(model.network, x.double()), -1)
    weights = sample(model.network, model.posterior, DRAWS, torch.Generator().manual_seed(1))
    return torch.softmax(evaluate(model.network, x.double(), weights), -1).mean(0)


def plain_laplace(net: nn.Sequential, x: torch.Tensor, y: torch.Tensor, test: torch.Tensor) -> tuple:
    """laplace-torch on the torch network itself: its variances and its own sampled predictive."""
    laplace, curvature = import_module("laplace"), import_module("laplace.curvature")
    approximation = laplace.DiagLaplace(net, "classification", backend=curvature.CurvlinopsGGN)
    approximation.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=128))
    approximation.optimize_prior_precision(method="marglik")
    torch.manual_seed(2)
    probabilities = approximation(test, pred_type="nn", link_approx="mc", n_samples=DRAWS)
    return approximation.posterior_variance.detach().numpy(), probabilities


def main() -> None:
    """Print the table of docs/measurements.md."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = torch.tensor(digits.data[order] / 16, dtype=torch.float32), torch.tensor(digits.target[order])
    net = trained(x[:SPLIT], y[:SPLIT])
    test, labels = x[SPLIT:], y[SPLIT:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.onnx.export(net, (x[:1],), str(folder / "net.onnx"), dynamo=False)
        np.savez(folder / "data.npz", x=x[:SPLIT].numpy(), y=y[:SPLIT].numpy())
        show("network", predictive(read_model(folder / "net.onnx"), test), labels)
        for method in ("laplace", "ivon"):
            recipe = FittedOn(method, folder / "data.npz")
            print(*convert_file(folder / "net.onnx", folder / f"{method}.onnx", recipe, "categorical")[:-1])
            model = read_model(folder / f"{method}.onnx")
            show(f"convert --fit {method}", predictive(model, test), labels)
            if method == "laplace":
                variances, probabilities = plain_laplace(net, x[:SPLIT], y[:SPLIT], test)
                show("laplace-torch by itself", probabilities, labels)
                compare(model, variances)


def compare(model: Model, variances: np.ndarray) -> None:
    """Compare the variances in the file with those of the plain run (the same order of parameters)."""
    if not isinstance(model.posterior, GaussianDiagonal):
        raise TypeError("the file carries no Gaussian")
    parts = [f"{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
    ours = np.concatenate([model.posterior.variances[part].ravel() for part in parts])
    print(f"{'variances, largest relative difference':32} {np.abs(ours / variances - 1).max():.1e}")


if __name__ == "__main__":
    main()
