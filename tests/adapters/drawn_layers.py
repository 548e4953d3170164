"""Bayesian layers as libraries write them, for tests without the libraries."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bnn_vnnlib.adapters import Layout

OWN = Layout("drawn_layers", "{}_mu", "{}_rho", "softplus", frozen="frozen")


class DrawnLinear(nn.Module):
    """Weights mu + softplus(rho) * noise, drawn in every forward pass."""

    def __init__(self, inputs: int, outputs: int, rho: float = -1.0, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features, self.frozen = inputs, outputs, False
        self.weight_mu = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.weight_rho = nn.Parameter(torch.full((outputs, inputs), rho))
        if bias:
            self.bias_mu = nn.Parameter(torch.zeros(outputs))
            self.bias_rho = nn.Parameter(torch.full((outputs,), rho))

    def deviation(self, rho: torch.Tensor) -> torch.Tensor:
        return F.softplus(rho)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight = self.weight_mu + self.deviation(self.weight_rho) * torch.randn_like(self.weight_mu)
        bias = None
        if hasattr(self, "bias_mu"):
            bias = self.bias_mu + self.deviation(self.bias_rho) * torch.randn_like(self.bias_mu)
        return F.linear(x, self.weight, bias)


class OtherLinear(DrawnLinear):
    """The same names, another meaning: the deviation is exp(rho)."""

    def deviation(self, rho: torch.Tensor) -> torch.Tensor:
        return rho.exp()


class DrawnConv(nn.Module):
    """A convolution whose kernel is drawn; neither bias nor padding."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.out_channels, self.stride, self.padding, self.dilation, self.groups = outputs, 1, 0, 1, 1
        self.weight_mu = nn.Parameter(torch.randn(outputs, inputs, size, size) / size)
        self.weight_rho = nn.Parameter(torch.full((outputs, inputs, size, size), -1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.weight_mu + F.softplus(self.weight_rho) * torch.randn_like(self.weight_mu))


class DrawnRecurrent(nn.Module):
    """Weights without a place in the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_ih_mu = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight_ih_mu


class Noisy(nn.Module):
    """Draws without parameters of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class WithKl(nn.Module):
    """A network that returns a KL term beside its outputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs: torch.Tensor = self.net(x)
        return outputs, outputs.new_zeros(())
