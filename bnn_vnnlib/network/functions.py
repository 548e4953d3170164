"""The activations of `nodes.Activation`: f(alpha, z) of each kind, elementwise, differentiable, in the type of z."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn_vnnlib.network.nodes import Kind

Function = Callable[[Any, Tensor], Tensor]


def like(alpha: Any, z: Tensor) -> Tensor:
    """alpha as a tensor of the type and device of z."""
    return torch.as_tensor(alpha, dtype=z.dtype, device=z.device)


def limits(alpha: Any) -> tuple[float, float]:
    """Low and high of a clip. ONNX takes the maximum first: with low > high the result is high."""
    low, high = (float(side) for side in alpha)
    return min(low, high), high


def softplus(z: Tensor) -> Tensor:
    """log(1 + exp z) without overflow; torch's own returns z from z = 20 on."""
    return z.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))


CUBIC, ROOT = 0.044715, math.sqrt(2 / math.pi)
"""gelu_tanh(z) = z sigmoid(2 ROOT (z + CUBIC z^3)) = z/2 (1 + tanh(ROOT (z + CUBIC z^3)))."""


def gelu_tanh(z: Tensor) -> Tensor:
    """GELU by its usual approximation with tanh."""
    return z * torch.sigmoid(2 * ROOT * (z + CUBIC * z**3))


FUNCTIONS: dict[Kind, Function] = {
    "abs": lambda alpha, z: z.abs(),
    "atan": lambda alpha, z: torch.atan(z),
    "clip": lambda alpha, z: z.clamp(*limits(alpha)),
    "cos": lambda alpha, z: torch.cos(z),
    "elu": lambda alpha, z: torch.where(z > 0, z, alpha * torch.expm1(z.clamp(max=0))),
    "erf": lambda alpha, z: torch.special.erf(z),
    "exp": lambda alpha, z: torch.exp(z),
    "gelu": lambda alpha, z: z / 2 * torch.special.erfc(-alpha * z),
    "gelu_tanh": lambda alpha, z: gelu_tanh(z),
    "hard_swish": lambda alpha, z: z * ((z + 3).clamp(0, 6) / 6),
    "leaky_relu": lambda alpha, z: torch.relu(z) if alpha == 0 else F.leaky_relu(z, alpha),
    "log": lambda alpha, z: torch.log(z),
    "power": lambda alpha, z: z ** int(alpha),
    "prelu": lambda alpha, z: torch.where(z < 0, like(alpha, z) * z, z),
    "reciprocal": lambda alpha, z: 1 / z,
    "relu": lambda alpha, z: torch.relu(z),
    "sigmoid": lambda alpha, z: torch.sigmoid(z),
    "sign": lambda alpha, z: torch.sign(z),
    "silu": lambda alpha, z: z * torch.sigmoid(z),
    "sin": lambda alpha, z: torch.sin(z),
    "softplus": lambda alpha, z: softplus(z),
    "softsign": lambda alpha, z: z / (1 + z.abs()),
    "sqrt": lambda alpha, z: torch.sqrt(z),
    "tanh": lambda alpha, z: torch.tanh(z),
}
"""For alpha see `nodes.Activation`."""
