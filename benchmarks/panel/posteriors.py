"""The panel's posteriors: ordinary Bayesian networks as their libraries train them, none tuned for certification.

Every trainer takes a library's default settings, or those that its documentation shows, and says where it departs from
them. Needs the group `libraries` of pyproject.toml.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import data as sets
import numpy as np
import torch
from data import Data
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from bnn_vnnlib import adapters
from bnn_vnnlib.adapters import Adapted

BATCH = 128
NOISE = 0.3
"""Standard deviation of the noise of standardised targets, where a trainer has to be told one."""


# Architectures: a function that makes a fresh network, with dropout between its layers where a rate is given.


def dense(*sizes: int, activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0) -> nn.Sequential:
    """Dense layers."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(before, after), activation(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:]))


def small_cnn(dropout: float = 0.0) -> nn.Sequential:
    """Two convolutions and a dense layer, for images of 28 x 28 pixels that come as one row."""
    extra = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
        nn.Flatten(), *extra, nn.Linear(256, 10),
    )  # fmt: skip


# Trainers: (make, data) -> what the verifier reads.

Make = Callable[..., nn.Sequential]


def loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of a batch, up to a constant."""
    out = net(x)
    out = out[0] if isinstance(out, tuple) else out
    return F.cross_entropy(out, y) if y.dtype == torch.int64 else F.mse_loss(out[:, 0], y) / (2 * NOISE**2)


def batches(data: Data, epochs: int, seed: int = 0) -> Any:
    """Shuffled batches of so many epochs."""
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            yield x[rows], y[rows]


def fitted(make: Make, data: Data, seed: int = 0, epochs: int = 60, **options: float) -> nn.Sequential:
    """A maximum a posteriori network: Adam, weight decay 1e-4."""
    torch.manual_seed(seed)
    net = make(**options)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-4)
    for x, y in batches(data, epochs, seed):
        optimizer.zero_grad()
        loss(net, x, y).backward()
        optimizer.step()
    return net.eval()


def likelihood(data: Data) -> str:
    """As the file names it."""
    return "gaussian" if data.classes is None else "categorical"


def some(data: Data) -> torch.Tensor:
    """Inputs at which an adapter compares predictions."""
    return torch.from_numpy(data.test_x[:5])


def torchbnn_vi(make: Make, data: Data) -> Adapted:
    """Mean-field variational inference by torchbnn: prior N(0, 0.1^2), divergence times 0.01, as in its examples."""
    library = import_module("torchbnn")
    torch.manual_seed(0)
    net = nn.Sequential(*(_torchbnn_layer(library, layer) for layer in make()))
    optimizer, divergence = torch.optim.Adam(net.parameters(), 1e-2), library.BKLLoss(reduction="mean")
    for x, y in batches(data, 100):
        optimizer.zero_grad()
        (loss(net, x, y) + 0.01 * divergence(net)).backward()
        optimizer.step()
    return adapters.from_torch(net, some(data), likelihood=likelihood(data))


def _torchbnn_layer(library: Any, layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return library.BayesLinear(0, 0.1, layer.in_features, layer.out_features)
    return layer


def bayesian_torch_vi(make: Make, data: Data) -> Adapted:
    """Mean-field variational inference by bayesian-torch: `dnn_to_bnn` with the settings of its README."""
    models = import_module("bayesian_torch.models.dnn_to_bnn")
    torch.manual_seed(0)
    net = make()
    settings = {
        "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
        "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5,
    }  # fmt: skip
    models.dnn_to_bnn(net, settings)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for x, y in batches(data, 100):
        optimizer.zero_grad()
        (loss(net, x, y) + models.get_kl_loss(net) / len(data.x)).backward()
        optimizer.step()
    return adapters.from_torch(net, some(data), likelihood=likelihood(data))


def ivon(make: Make, data: Data) -> Adapted:
    """IVON with its defaults; the effective sample size is the number of training inputs, as its README says."""
    library = import_module("ivon")
    torch.manual_seed(0)
    net = make()
    optimizer = library.IVON(net.parameters(), lr=0.1, ess=len(data.x))
    for x, y in batches(data, 60):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            loss(net, x, y).backward()
        optimizer.step()
    return adapters.from_ivon(optimizer, net, some(data), likelihood=likelihood(data))


def laplace_of(weights: str, structure: str) -> Callable[[Make, Data], Adapted]:
    """Laplace by laplace-torch around a fitted network; prior precision (and noise) by the marginal likelihood."""

    def train(make: Make, data: Data) -> Adapted:
        library = import_module("laplace")
        net = fitted(make, data)
        kind = "regression" if data.classes is None else "classification"
        la = library.Laplace(net, kind, subset_of_weights=weights, hessian_structure=structure)
        y = torch.from_numpy(data.y)
        y = y[:, None] if data.classes is None else y
        la.fit(DataLoader(TensorDataset(torch.from_numpy(data.x), y), batch_size=BATCH))
        la.optimize_prior_precision(method="marglik")
        return adapters.from_laplace(la, some(data))

    return train


def swag(make: Make, data: Data) -> Adapted:
    """SWAG by swa_gaussian: rank 20, scale 0.5, collected once an epoch of SGD with momentum, as in the paper."""
    library = import_module("swag.posteriors.swag")
    net = fitted(make, data).train()
    collector = library.SWAG(make, no_cov_mat=False, max_num_models=20)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    steps = -(-len(data.x) // BATCH)
    for step, (x, y) in enumerate(batches(data, 30), 1):
        optimizer.zero_grad()
        loss(net, x, y).backward()
        optimizer.step()
        if step % steps == 0:
            collector.collect_model(net)
    return adapters.from_swag(collector, net, some(data), scale=0.5, cov=True, likelihood=likelihood(data))


def ensemble(make: Make, data: Data) -> Adapted:
    """A deep ensemble of ten networks."""
    return adapters.from_ensemble(
        [fitted(make, data, seed) for seed in range(10)], some(data), likelihood=likelihood(data)
    )


def nuts(make: Make, data: Data) -> Adapted:
    """NUTS by NumPyro: 100 samples of weights under the prior N(0, 1) after 100 steps of adaptation."""
    jax, numpyro = import_module("jax"), import_module("numpyro")
    distributions, infer = import_module("numpyro.distributions"), import_module("numpyro.infer")
    net = make()
    shapes = {name: tuple(part.shape) for name, part in net.named_parameters()}
    activation = jax.numpy.tanh if any(isinstance(layer, nn.Tanh) for layer in net) else jax.nn.relu
    names = list(shapes)

    def model(x: Any, y: Any = None) -> None:
        part = {
            name: numpyro.sample(name.replace(".", "_"), distributions.Normal(0, 1).expand(shape).to_event(len(shape)))
            for name, shape in shapes.items()
        }
        for weight, bias in zip(names[::2], names[1::2], strict=True):
            x = x @ part[weight].T + part[bias]
            x = x if weight == names[-2] else activation(x)
        with numpyro.plate("data", len(x)):
            outcome = (
                distributions.Normal(x[:, 0], NOISE) if data.classes is None else distributions.Categorical(logits=x)
            )
            numpyro.sample("y", outcome, obs=y)

    start = {name.replace(".", "_"): part.detach().numpy() for name, part in fitted(make, data).named_parameters()}
    kernel = infer.NUTS(model, max_tree_depth=7, init_strategy=infer.init_to_value(values=start))
    chain = infer.MCMC(kernel, num_warmup=100, num_samples=100, progress_bar=False)
    chain.run(jax.random.PRNGKey(0), data.x, data.y)
    samples = {name: np.asarray(chain.get_samples()[name.replace(".", "_")]) for name in names}
    return adapters.from_samples(net, samples, likelihood=likelihood(data), transposed=False, x=some(data))


DROPOUT = 0.2


@dataclass(frozen=True, eq=False)
class Dropout:
    """A network with dropout, which stays active when it predicts (MC dropout)."""

    net: nn.Sequential

    def write(self, path: Path) -> None:
        """The export with its Dropout nodes in training mode."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example = torch.zeros(1, 784 if isinstance(self.net[0], nn.Unflatten) else self.net[0].in_features)
            torch.onnx.export(
                self.net.train(), (example,), str(path), dynamo=False, opset_version=17,
                training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            )  # fmt: skip


def mc_dropout(make: Make, data: Data) -> Dropout:
    """MC dropout at rate 0.2."""
    torch.manual_seed(0)
    net = make(dropout=DROPOUT)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-4)
    for x, y in batches(data, 100):
        optimizer.zero_grad()
        loss(net, x, y).backward()
        optimizer.step()
    return Dropout(net)


@dataclass(frozen=True)
class Member:
    """A posterior of the panel.

    Attributes
    ----------
    architecture, method : the rows of the tables
    read : its data
    make : a fresh network
    train : a trainer
    """

    architecture: str
    method: str
    read: Callable[[Path], Data]
    make: Make
    train: Callable[[Make, Data], Adapted | Dropout]

    @property
    def name(self) -> str:
        """As a file's name."""
        return f"{self.architecture}_{self.method}".replace(" ", "-")


def _members() -> list[Member]:
    vi = {"torchbnn VI": torchbnn_vi, "bayesian-torch VI": bayesian_torch_vi, "IVON": ivon}
    last = {"Laplace last layer": laplace_of("last_layer", "kron")}
    whole = {"Laplace all layers": laplace_of("all", "kron")}
    others = {"SWAG": swag, "ensemble": ensemble, "NUTS": nuts, "MC dropout": mc_dropout}
    trainers = {**vi, **last, **whole, **others}

    def members(architecture: str, read: Callable[[Path], Data], make: Make, *methods: str) -> list[Member]:
        return [Member(architecture, method, read, make, trainers[method]) for method in methods]

    def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> Make:
        return lambda dropout=0.0: dense(*sizes, activation=activation, dropout=dropout)

    return [
        *members("digits 64-64-10", lambda _: sets.digits(), mlp(64, 64, 10), "torchbnn VI", "IVON",
                 "Laplace last layer", "Laplace all layers", "SWAG", "ensemble", "NUTS", "MC dropout"),
        *members("digits 64-64-64-10", lambda _: sets.digits(), mlp(64, 64, 64, 10), "bayesian-torch VI", "IVON",
                 "Laplace last layer", "Laplace all layers", "SWAG", "ensemble"),
        *members("MNIST 784-128-10", sets.mnist, mlp(784, 128, 10), "bayesian-torch VI", "IVON", "Laplace last layer"),
        *members("MNIST CNN", sets.mnist, small_cnn, "IVON", "Laplace last layer", "MC dropout"),
        *members("concrete 8-50-1", sets.concrete, mlp(8, 50, 1), "torchbnn VI"),
        *members("diabetes 10-50-1", lambda _: sets.diabetes(), mlp(10, 50, 1), "Laplace all layers"),
        *members("breast cancer 30-16-2", lambda _: sets.breast_cancer(), mlp(30, 16, 2), "NUTS"),
        *members("control 6-32-32-32-1", lambda _: sets.control(), mlp(6, 32, 32, 32, 1, activation=nn.Tanh),
                 "bayesian-torch VI", "Laplace last layer"),
    ]  # fmt: skip


@cache
def members() -> tuple[Member, ...]:
    """All of them, in the order of the tables."""
    return tuple(_members())
