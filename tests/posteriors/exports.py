"""Tiny stochastic exports, made on the spot."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import ModelProto
from torch import nn
from torch.nn import functional as F

Reading = Callable[[torch.Tensor], torch.Tensor]


class DrawnLinear(nn.Module):
    """A Bayesian layer whose weights are drawn in every forward pass; `spelling` says how."""

    def __init__(self, inputs: int, outputs: int, spelling: str) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.randn(outputs, inputs))
        self.rho = nn.Parameter(torch.randn(outputs, inputs) - 2)
        self.bias = nn.Parameter(torch.randn(outputs))
        self.spelling = spelling

    @property
    def deviation(self) -> torch.Tensor:
        match self.spelling:
            case "exp" | "flat":
                return torch.exp(self.rho)
            case "log_variance":
                return torch.exp(0.5 * self.rho)
            case "log1p":
                return torch.log1p(torch.exp(self.rho))
        return F.softplus(self.rho)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spelling == "local":
            spread = torch.sqrt(F.linear(x * x, self.deviation**2) + 1e-8)
            mean = F.linear(x, self.mu, self.bias)
            return mean + spread * torch.randn_like(mean)
        if self.spelling == "normal":
            return F.linear(x, torch.normal(self.mu, self.deviation), self.bias)
        if self.spelling == "flat":  # one vector of noise, cut and turned
            noise = torch.randn(self.mu.numel() + 3)[3:].reshape(self.mu.shape[::-1]).T
            return F.linear(x, self.mu - self.deviation * noise, self.bias)
        return F.linear(x, self.mu + self.deviation * torch.randn_like(self.mu), self.bias)


class DrawnNet(nn.Module):
    def __init__(self, spelling: str, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = DrawnLinear(4, 5, spelling), DrawnLinear(5, 3, spelling)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.relu(self.first(x))
        out: torch.Tensor = self.second(hidden)
        return out

    def layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and standard deviation of each weight matrix (out, in)."""
        pairs = [(layer.mu, layer.deviation) for layer in (self.first, self.second)]
        return [(mean.detach().numpy(), sd.detach().numpy()) for mean, sd in pairs]


def exported(module: nn.Module, folder: Path, inputs: int = 4, *, fold: bool = True) -> ModelProto:
    """The module through the exporter that traces (the other one needs a package more)."""
    path = folder / "export.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = (torch.zeros(1, inputs),)
        torch.onnx.export(
            module.train(),
            arguments,
            str(path),
            dynamo=False,
            do_constant_folding=fold,
            training=torch.onnx.TrainingMode.TRAINING,
        )
    return onnx.load(path)
