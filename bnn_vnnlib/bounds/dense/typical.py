"""What the neurons of a random ReLU network typically do: guesses that steer the bounds and that no bound rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.network.dense_chain import DenseChain

FADED = 0.02**2
"""Share of the variance in front of an activation that is left behind it, at least: dead neurons may wake."""

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


@dataclass(frozen=True, eq=False)
class Typical:
    """One layer at points (P, n), (P, H) each, as if everything were Gaussian and independent.

    Given the earlier weights a pre-activation has a mean and a variance; m, m_spread : mean and deviation of the
    former, v, v_spread : of the latter; output, output_variance : of the activation
    """

    m: Tensor
    m_spread: Tensor
    v: Tensor
    v_spread: Tensor
    output: Tensor
    output_variance: Tensor


def typical(chain: DenseChain, x: Tensor) -> list[Typical]:
    """Of every layer; the output of the last one is not activated."""
    nodes, weights = (x.new_tensor(part) for part in (NODES, WEIGHTS / WEIGHTS.sum()))
    found = []
    h, noise = x, torch.zeros_like(x)
    for place, layer in enumerate(chain.layers):
        m, spread = h @ layer.mean.mT + layer.bias, noise @ (layer.mean**2).mT
        v = (h * h + noise) @ layer.variance.mT + layer.bias_variance
        shaken = (4 * h * h * noise + 2 * noise * noise) @ (layer.variance**2).mT
        h, noise = m, v + spread
        if place + 1 < len(chain.layers):
            values = torch.relu(m[..., None] + torch.sqrt(noise)[..., None] * nodes)
            h = values @ weights
            noise = ((values - h[..., None]) ** 2) @ weights + FADED * noise
        found.append(Typical(m, torch.sqrt(spread), v, torch.sqrt(shaken), h, noise))
    return found
