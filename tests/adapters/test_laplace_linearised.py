"""The linearised predictive of laplace-torch: accepted where the network is linear in the weights, else refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bnn_vnnlib import verify_batch
from bnn_vnnlib.adapters import from_laplace
from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.evaluate import evaluate


class DiagLaplace:
    """As far as the refusals ask."""


def test_of_all_weights_it_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="last_layer"):
        from_laplace(DiagLaplace(), torch.zeros(1, 2), pred_type="glm")


def test_another_predictive_is_refused() -> None:
    with pytest.raises(OptionError, match="'nn' or 'glm'"):
        from_laplace(DiagLaplace(), torch.zeros(1, 2), pred_type="probit")  # type: ignore[arg-type]


class LLLaplace:
    """As the library names its classes."""


class DiagLLLaplace(LLLaplace, DiagLaplace):
    """What is read of a fitted approximation of the last layer."""

    H, n_data, likelihood, _device = 1, 8, "regression", "cpu"

    def __init__(self, network: nn.Module, last: nn.Linear) -> None:
        self.model = SimpleNamespace(model=network, last_layer=last)
        self.mean = torch.cat([part.detach().reshape(-1) for part in last.parameters()])
        self.posterior_variance = torch.full_like(self.mean, 0.1)


class Ending(nn.Module):
    """Something behind the last layer."""

    def __init__(self, ending) -> None:
        super().__init__()
        self.first, self.last, self.ending = nn.Linear(2, 3), nn.Linear(3, 1), ending

    def forward(self, x):
        return self.ending(self.last(torch.tanh(self.first(x))))


@pytest.mark.parametrize("ending", [torch.nn.functional.softplus, lambda y: 3 * y + 1])
def test_a_network_that_goes_on_behind_its_last_layer_is_no_linearised_one(ending) -> None:
    """The library's Jacobian is that of the last layer; its predictive is not the law of this network."""
    network, x = Ending(ending), torch.randn(4, 2)
    la = DiagLLLaplace(network, network.last)
    with pytest.raises(UnsupportedError, match="does not end in its last layer"):
        from_laplace(la, x, pred_type="glm", draws=0)
    assert "its default predictive" in " ".join(from_laplace(la, x, draws=0).notes)
    network.ending = nn.Flatten()
    assert "linear in the weights of its last layer" in " ".join(from_laplace(la, x, pred_type="glm", draws=0).notes)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the library's own dependencies
@pytest.mark.parametrize("structure", ["diag", "full", "kron"])
def test_of_the_last_layer_it_is_the_law_of_the_network(structure: str) -> None:
    """Mean and variance of the library's linearised predictive, at points; bounds on its mean over a box."""
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    torch.manual_seed(0)
    x, net = torch.randn(64, 2), nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
    la = laplace.Laplace(net, "regression", subset_of_weights="last_layer", hessian_structure=structure)
    la.fit(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=64))
    test = torch.randn(5, 2)
    adapted = from_laplace(la, test, pred_type="glm")
    assert "linear in the weights of its last layer" in " ".join(adapted.notes)
    mean, variance = (part.detach().double().numpy().reshape(-1) for part in la(test, pred_type="glm"))
    drawn = sample(adapted.model.network, adapted.model.posterior, 40000, torch.Generator().manual_seed(1))
    y = evaluate(adapted.model.network, test.double(), drawn)[..., 0].numpy()
    noise = float(la.sigma_noise) ** 2 if np.allclose(variance, y.var(0) + float(la.sigma_noise) ** 2, rtol=0.05) else 0
    assert y.mean(0) == pytest.approx(mean, abs=5 * np.sqrt(variance.max() / 40000))
    assert y.var(0) + noise == pytest.approx(variance, rel=0.05)
    points = test.double().numpy()
    found = verify_batch(adapted.model, points, points + 0.05, query="decision", timeout=5)
    assert (found.lower[:, 0] <= mean + 1e-5).all()
    assert (found.upper[:, 0] >= mean - 1e-5).all()
    assert (found.upper[:, 0] - found.lower[:, 0] <= 0.2).all()
