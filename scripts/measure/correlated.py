"""P_safe of correlated posteriors and mixtures on scikit-learn's digits: bounds beside sampled and attacked networks.

    python scripts/measure/correlated.py [--count 4] [--seconds 30]

Needs laplace-torch (full Hessian of the last layer and of a small network, Kronecker-factored). SWAG (Maddox et al.,
2019: low rank + diagonal) and the variational posteriors are trained here. The estimate is the share of 200 sampled
networks that projected gradient descent does not break: an estimate of an upper bound on P_safe.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bnn_vnnlib import attack, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianKron,
    KronLayer,
    Mixture,
    Model,
    Posterior,
    from_covariance,
    from_low_rank,
    sample,
)
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import marginal_variances
from bnn_vnnlib.problem.problem import from_labels
from dense import dense_network

SPLIT, NETWORKS, SNAPSHOTS = 1200, 200, 20
RADII = (0.0, 0.01, 0.03)
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Digits:
    """Training and test points, shuffled once."""

    x: Tensor
    y: Tensor
    test: Tensor
    labels: Tensor


def digits() -> Digits:
    """Pixels in [0, 1]."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = torch.tensor(data.data[order] / 16, dtype=torch.float32), torch.tensor(data.target[order])
    return Digits(x[:SPLIT], y[:SPLIT], x[SPLIT:], y[SPLIT:])


def mlp(hidden: int) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def trained(data: Digits, hidden: int, epochs: int = 100) -> nn.Sequential:
    """By Adam, with a small weight decay."""
    torch.manual_seed(0)
    net = mlp(hidden)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for rows in torch.randperm(SPLIT).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
    return net


def model_of(tensors: dict[str, Floats], posterior: Posterior) -> Model:
    """The network with these means."""
    network = dense_network([(tensors["W0"], tensors["b0"]), (tensors["W1"], tensors["b1"])])
    return Model(network, posterior, "categorical", None, b"")


def means_of(net: nn.Sequential) -> dict[str, Floats]:
    """Weights by the names of `dense_network`, in the order of the parameters."""
    return {
        name: p.detach().double().numpy() for name, p in zip(("W0", "b0", "W1", "b1"), net.parameters(), strict=True)
    }


def laplace(data: Digits, hidden: int, structure: str, subset: str, prior: float | None = None) -> Model:
    """Fitted, the prior precision given or by marginal likelihood; nothing of the covariance is left out."""
    net = trained(data, hidden)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.x, data.y), batch_size=200)
    torch.manual_seed(0)
    found = import_module("laplace").Laplace(
        net, "classification", subset_of_weights=subset, hessian_structure=structure
    )
    found.fit(loader)
    if prior is None:
        found.optimize_prior_precision(method="marglik")
    else:
        found.prior_precision = prior
    means = means_of(net)
    names = list(means) if subset == "all" else ["W1", "b1"]
    if structure == "full":
        covariance = found.posterior_covariance.detach().double().numpy()
        return model_of(means, from_covariance(covariance, {name: means[name].shape for name in names}))
    return model_of(means, kronecker(found.posterior_precision, names))


def kronecker(precision: object, names: list[str]) -> GaussianKron:
    """(Q_out x Q_in) 1 / (l_out x l_in + prior) (..)' for every block, which is no product once the prior is added."""
    layers = []
    blocks = zip(names, precision.eigenvectors, precision.eigenvalues, precision.deltas, strict=True)  # type: ignore[attr-defined]
    for name, vectors, values, prior in blocks:
        q = [part.detach().double().numpy() for part in vectors]
        left, *rest = (part.detach().double().numpy() for part in values)
        across = rest[0] if rest else np.ones(1)
        spectrum = 1 / (np.outer(left, across) + float(prior))
        layers.append(KronLayer(name, q[0], q[1] if len(q) > 1 else np.ones((1, 1)), spectrum))
    return GaussianKron(tuple(layers))


def swag(data: Digits, rate: float) -> Model:
    """SGD at a constant rate from the trained network: half of the spread diagonal, half from the last snapshots."""
    net = trained(data, 32)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=1e-4)
    seen = []
    for _ in range(2 * SNAPSHOTS):
        for rows in torch.randperm(SPLIT).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
        seen.append(nn.utils.parameters_to_vector(net.parameters()).detach().double())
    history = torch.stack(seen)
    mean, variance = history.mean(0), history.var(0, unbiased=False)
    deviations = (history[-SNAPSHOTS:] - mean).T / np.sqrt(2 * (SNAPSHOTS - 1))
    nn.utils.vector_to_parameters(mean.float(), net.parameters())
    means = means_of(net)
    shapes = {name: value.shape for name, value in means.items()}
    return model_of(means, from_low_rank(deviations.numpy(), (variance / 2).numpy(), shapes))


def variational(data: Digits, seed: int, tempered: float, epochs: int = 150) -> Component:
    """Mean-field, prior N(0, 1), the divergence times `tempered`."""
    torch.manual_seed(seed)
    means = [p.detach().clone().requires_grad_() for p in mlp(32).parameters()]
    logs = [torch.full_like(p, -4.0).requires_grad_() for p in means]
    optimizer = torch.optim.Adam([*means, *logs], 5e-3)
    for _ in range(epochs):
        for rows in torch.randperm(SPLIT).split(128):
            w0, b0, w1, b1 = (m + s.exp() * torch.randn_like(m) for m, s in zip(means, logs, strict=True))
            logits = torch.relu(data.x[rows] @ w0.T + b0) @ w1.T + b1
            pairs = zip(means, logs, strict=True)
            divergence = sum(((m**2 + (2 * s).exp()) / 2 - s - 0.5).sum() for m, s in pairs)
            loss = nn.functional.cross_entropy(logits, data.y[rows]) + tempered * divergence / SPLIT
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    names = ("W0", "b0", "W1", "b1")
    values = {name: m.detach().double().numpy() for name, m in zip(names, means, strict=True)}
    spreads = {name: (2 * s).exp().detach().double().numpy() for name, s in zip(names, logs, strict=True)}
    return Component(values, GaussianDiagonal(spreads))


def mixture(data: Digits, tempered: float) -> Model:
    """Two variational posteriors of different seeds, with equal probabilities."""
    parts = (variational(data, 0, tempered), variational(data, 1, tempered))
    mean = {name: (parts[0].means[name] + parts[1].means[name]) / 2 for name in parts[0].means}
    return model_of(mean, Mixture(parts, np.array([0.5, 0.5])))


def posteriors() -> Iterator[tuple[str, Callable[[Digits], Model]]]:
    """What is measured."""
    yield "Laplace, last layer, full", partial(laplace, hidden=32, structure="full", subset="last_layer")
    yield "Laplace, last layer, Kronecker", partial(laplace, hidden=32, structure="kron", subset="last_layer")
    for prior in (None, 100.0, 1000.0):
        title = "" if prior is None else f", prior precision {prior:g}"
        kron = partial(laplace, hidden=32, structure="kron", subset="all", prior=prior)
        yield f"Laplace, all layers, Kronecker{title}", kron
        full = partial(laplace, hidden=8, structure="full", subset="all", prior=prior)
        yield f"Laplace, all layers (64-8-10), full{title}", full
    for rate in (0.01, 0.05):
        yield f"SWAG, rate {rate}", partial(swag, rate=rate)
    for tempered in (0.01, 1.0):
        yield f"two variational, divergence x {tempered:g}", partial(mixture, tempered=tempered)


def estimate(model: Model, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """(N,) shares of sampled networks that the attack does not break."""
    problem = from_labels(lower, upper, labels, 10)
    if model.posterior is None:
        raise TypeError("a model without a posterior")
    params = sample(model.network, model.posterior, NETWORKS, torch.Generator().manual_seed(7))
    _, values = attack.run(model.network, problem, params, Attack(steps=20, restarts=2))
    return (values > 0).double().mean(0)


def spread(model: Model) -> float:
    """The median over the uncertain weights of standard deviation / |mean|, which is that of the mean network."""
    if model.posterior is None:
        raise TypeError("a model without a posterior")
    ratios = [
        np.sqrt(variance.ravel()) / np.maximum(np.abs(model.network.tensors[name].ravel()), 1e-12)
        for name, variance in marginal_variances(model.posterior).items()
    ]
    return float(np.median(np.concatenate(ratios)))


def main(
    count: Annotated[int, typer.Option(help="Test points.")] = 4,
    seconds: Annotated[float, typer.Option(help="Time limit of a posterior and a radius, all points together.")] = 30.0,
    only: Annotated[str, typer.Option(help="Posteriors whose name contains this.")] = "",
) -> None:
    """Print the table of docs/measurements.md."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = digits()
    print("| posterior | sd / abs(mean) | radius | P_safe, a point each: lower bounds | upper bounds | estimate | s |")
    print("|---|---|---|---|---|---|---|")
    for name, make in posteriors():
        if only not in name:
            continue
        model = make(data)
        draws = sample(model.network, model.posterior, 32, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        predicted = torch.softmax(evaluate(model.network, data.test.double(), draws), -1).mean(0).argmax(-1)
        x = data.test[predicted == data.labels][:count].double()
        y = data.labels[predicted == data.labels][:count]
        accuracy = float((predicted == data.labels).double().mean())
        for radius in RADII:
            lower, upper = (x - radius).clamp(0, 1), (x + radius).clamp(0, 1)
            begun = time.perf_counter()
            found = verify_batch(model, lower.numpy(), upper.numpy(), y.numpy(), query="probabilistic", timeout=seconds)
            taken = time.perf_counter() - begun
            shown = (", ".join(f"{v:.3f}" for v in side) for side in (found.lower, found.upper))
            share = ", ".join(f"{v:.3f}" for v in estimate(model, lower, upper, y).tolist())
            title = f"{name} (accuracy {accuracy:.3f}) | {spread(model):.2f}" if radius == RADII[0] else " | "
            print(f"| {title} | {radius} | {' | '.join(shown)} | {share} | {taken:.0f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
