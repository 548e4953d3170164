"""The comparison of predictives: it passes what is right, and each kind of difference is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bnn_vnnlib import PosteriorError
from bnn_vnnlib.adapters import check_predictive, check_samples, from_samples
from bnn_vnnlib.adapters.adapted import adapt
from bnn_vnnlib.adapters.export import plain_export
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.model import GaussianDiagonal

X = torch.tensor([[0.5, -1.0], [2.0, 0.3]])
SPREAD = {"weight": np.full((2, 2), 0.09), "bias": np.full(2, 0.04)}


@pytest.fixture(scope="module")
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


@pytest.fixture(scope="module")
def model(layer):
    return adapt(plain_export(layer, X), GaussianDiagonal(SPREAD), None).model


def outputs(layer: nn.Linear, draws: int, seed: int, factor: float = 1.0, shared: bool = False, shift: float = 0.0):
    """Outputs (draws, 2, 2) of the layer with drawn weights; `shared`: both outputs get the same noise."""
    random = np.random.default_rng(seed)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    noise = random.normal(size=(draws, 2, 2)), random.normal(size=(draws, 2))
    if shared:
        noise = np.repeat(noise[0][:, :1], 2, 1), np.repeat(noise[1][:, :1], 2, 1)
    weights = weight + factor * 0.3 * noise[0]
    biases = bias + shift + factor * 0.2 * noise[1]
    return X.numpy() @ weights.transpose(0, 2, 1) + biases[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_right_passes(layer, model, seed):
    agreement = check_predictive(model, outputs(layer, 2000, seed), X)
    assert agreement.quantities == 12
    assert agreement.errors <= agreement.allowed
    assert agreement.difference < 0.1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"factor": 1.2}, "the variance"),
        ({"factor": 0.8}, "the variance"),
        ({"factor": 0.0}, "the variance"),
        ({"shift": 0.1}, "the mean"),
        ({"shared": True}, "the covariance"),
    ],
)
def test_each_difference_is_found(layer, model, change, what):
    with pytest.raises(PosteriorError, match=f"{what}.* of output . at input"):
        check_predictive(model, outputs(layer, 2000, 0, **change), X)


def test_probabilities_are_compared_with_probabilities(layer, model):
    logits = torch.tensor(outputs(layer, 2000, 1))
    assert check_predictive(model, logits.softmax(-1), X, link="softmax").draws == 2000
    with pytest.raises(PosteriorError):
        check_predictive(model, logits.softmax(-1), X)


@pytest.mark.parametrize(
    ("given", "x", "says"),
    [
        (np.zeros((50, 2, 2)), X, "50 draws"),
        (np.zeros((200, 3, 2)), X, r"the outputs have shape \(200, 3, 2\), expected \(draws, 2, 2\)"),
        (np.zeros((200, 2, 2)), X[:, :1], r"x has shape \(2, 1\)"),
        (np.full((200, 2, 2), np.nan), X, "NaN"),
    ],
)
def test_shapes_are_checked(model, given, x, says):
    with pytest.raises(OptionError, match=says):
        check_predictive(model, given, x)


def test_samples_are_compared_one_by_one(layer, model):
    stack = np.random.default_rng(0).normal(size=(3, 2, 2))
    net = from_samples(layer, {"weight": stack}, likelihood=None, transposed=False, x=X)
    right = X.numpy() @ stack.transpose(0, 2, 1) + layer.bias.detach().numpy()
    assert check_samples(net.model, right, X).difference < 1e-6
    with pytest.raises(PosteriorError, match="sample 1 computes another function"):
        check_samples(net.model, right + np.array([0, 1, 0])[:, None, None] * 1e-3, X)
    with pytest.raises(OptionError, match="2 networks, expected those of the 3 samples"):
        check_samples(net.model, right[:2], X)
    with pytest.raises(PosteriorError, match="belong to a posterior of weight samples"):
        check_samples(model, right, X)
