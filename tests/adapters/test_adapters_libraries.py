"""from_torch on layers of the libraries themselves, where they are installed: convolutions, and what each refuses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bnn_vnnlib import PosteriorError, UnsupportedError
from bnn_vnnlib.adapters import Adapted, check_predictive, from_torch
from bnn_vnnlib.adapters.adapted import drawn_outputs


@pytest.fixture(autouse=True)
def images() -> Iterator[torch.Tensor]:
    """Three images; the libraries' own warnings are not ours."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield torch.randn(3, 1, 5, 5)


def library(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} not installed; `make test-libraries` does it")


class Images(nn.Module):
    """A convolution and a linear layer, which may return a KL term beside their output."""

    def __init__(self, convolution: nn.Module, linear: nn.Module) -> None:
        super().__init__()
        self.convolution, self.linear = convolution, linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        x = x[0] if isinstance(x, tuple) else x
        x = self.linear(torch.relu(x).flatten(1))
        return x[0] if isinstance(x, tuple) else x


def taken_over(net: nn.Module, x: torch.Tensor) -> Adapted:
    result = from_torch(net, x, likelihood="categorical")
    assert result.agreement is not None
    return result


def test_torchbnn(images):
    layers = library("torchbnn")
    net = nn.Sequential(
        layers.BayesConv2d(0, 0.3, 1, 2, 3, padding=1, stride=2),
        layers.BayesBatchNorm2d(0, 0.1, 2),
        nn.ReLU(),
        nn.Flatten(),
        layers.BayesLinear(0, 0.1, 18, 3, bias=False),
    )
    net(images)  # running statistics
    result = taken_over(net, images)
    assert set(result.model.posterior.variances) == {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight"}
    net[4].freeze()
    with pytest.raises(PosteriorError, match=r"4: is frozen \(weight_eps is set\)"):
        from_torch(net, images, likelihood=None)


def test_bayesian_torch(images):
    layers = library("bayesian_torch.layers")
    net = Images(layers.Conv2dReparameterization(1, 2, 3), layers.LinearReparameterization(18, 3, bias=False))
    taken_over(net, images)
    lstm = layers.LSTMReparameterization(4, 3)
    with pytest.raises((UnsupportedError, PosteriorError)):
        from_torch(lstm, torch.randn(2, 3, 4), likelihood=None)


def test_convolutions_with_flipout_have_the_posterior_of_drawn_kernels(images):
    """The library's own outputs are others (a sign for each pixel); those of its drawn kernels are not."""
    layers = library("bayesian_torch.layers")
    flipped = Images(layers.Conv2dFlipout(1, 2, 3), layers.LinearFlipout(18, 3))
    result = from_torch(flipped, images, likelihood="categorical")
    assert result.agreement is None
    assert "flips a sign for every pixel" in result.notes[0]
    drawn = Images(layers.Conv2dReparameterization(1, 2, 3), layers.LinearReparameterization(18, 3))
    drawn.load_state_dict(flipped.state_dict())
    with torch.no_grad():
        outputs = drawn_outputs(lambda: drawn(images), 1000)
    agreement = check_predictive(result.model, outputs, images)
    assert agreement.errors <= agreement.allowed


def test_blitz(images):
    layers = library("blitz.modules")
    wide = {"posterior_rho_init": -2.0}
    net = Images(layers.BayesianConv2d(1, 2, (3, 3), **wide), layers.BayesianLinear(18, 3, bias=False, **wide))
    result = taken_over(net, images)
    # a layer without bias keeps parameters of one, which it does not use
    assert set(result.model.posterior.variances) == {"convolution.weight", "convolution.bias", "linear.weight"}
    net.linear.freeze = True
    with pytest.raises(PosteriorError, match=r"linear: is frozen \(freeze is set\)"):
        from_torch(net, images, likelihood=None)
    with pytest.raises(UnsupportedError, match="BayesianLSTM"):
        from_torch(layers.BayesianLSTM(4, 3), torch.randn(2, 3, 4), likelihood=None)


def test_torch_uncertainty(images):
    library("lightning")
    layers = library("torch_uncertainty.layers.bayesian")
    net = Images(layers.BayesConv2d(1, 2, 3, sigma_init=-2.0), layers.BayesLinear(18, 3, sigma_init=-2.0))
    result = taken_over(net, images)
    sd = np.log1p(np.exp(net.linear.weight_sigma.detach().numpy()))  # "sigma" is rho
    np.testing.assert_allclose(result.model.posterior.variances["linear.weight"], sd**2, rtol=1e-5)
    net.linear.freeze()
    with pytest.raises(PosteriorError, match="linear: is frozen"):
        from_torch(net, images, likelihood=None)


def test_fastbnns_and_its_stale_weights(images):
    base = library("fastbnns.bnn.base")
    net = base.BNN(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)))
    net.bnn[3]._module.weight = nn.Parameter(torch.zeros(3, 18))
    result = taken_over(net, images)
    assert any("bnn.3" in note and "other weights" in note for note in result.notes)
    means = net.bnn[3]._module_params["weight_mean"].detach().numpy()
    np.testing.assert_array_equal(result.model.network.tensors["bnn.3.weight"], means)
