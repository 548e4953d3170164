"""Networks drawn from a posterior."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bnn_vnnlib.network.network import (
    Component,
    Floats,
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    Mixture,
    Network,
    Posterior,
    WeightSamples,
)
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    import torch

    Drawn = dict[str, torch.Tensor]


@plain_state()
def sample(
    network: Network, posterior: Posterior, count: int, generator: torch.Generator | None = None
) -> dict[str, torch.Tensor]:
    """Draw weights.

    Returns
    -------
    {source: (count, *shape)} float64, for the uncertain tensors only; one draw of all tensors per row
    """
    import torch

    match posterior:
        case WeightSamples(samples=samples, probabilities=weights):
            rows = torch.multinomial(torch.tensor(weights), count, replacement=True, generator=generator)
            return {name: torch.tensor(values, dtype=torch.float64)[rows] for name, values in samples.items()}
        case Mixture(components=components, probabilities=weights):
            rows = torch.multinomial(torch.tensor(weights), count, replacement=True, generator=generator)
            return _mixed(components, rows, generator)
        case _:
            noise = _noise(posterior, count, generator)
            return {name: _added(network.tensors[name], part) for name, part in noise.items()}


def _mixed(components: tuple[Component, ...], rows: torch.Tensor, generator: torch.Generator | None) -> Drawn:
    """Row after row from the components that `rows` (count,) names."""
    drawn = {name: _tensor(mean).expand(len(rows), *mean.shape).clone() for name, mean in components[0].means.items()}
    for index, component in enumerate(components):
        (places,) = (rows == index).nonzero(as_tuple=True)
        noise = _noise(component.posterior, len(places), generator)
        for name, values in drawn.items():
            mean = component.means[name]
            values[places] = _added(mean, noise[name]) if name in noise else _tensor(mean)
    return drawn


def _noise(posterior: Gaussian, count: int, generator: torch.Generator | None) -> Drawn:
    """{source: (count, ..)} with mean zero, a Kronecker-factored weight as a matrix."""
    import torch

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn((count, *shape), dtype=torch.float64, generator=generator)

    match posterior:
        case GaussianDiagonal(variances=variances):
            return {name: _tensor(np.sqrt(variance)) * normal(*variance.shape) for name, variance in variances.items()}
        case GaussianFull(factors=factors):
            z = normal(posterior.rank)
            return {name: torch.tensordot(z, _tensor(factor), 1) for name, factor in factors.items()}
        case GaussianLowRank(factors=factors, variances=variances):
            z = normal(posterior.rank)
            return {
                name: torch.tensordot(z, _tensor(factor), 1)
                + _tensor(np.sqrt(variances[name])) * normal(*factor.shape[1:])
                for name, factor in factors.items()
            }
        case GaussianKron(layers=layers):
            found: Drawn = {}
            for layer in layers:
                root = _tensor(np.sqrt(layer.spectrum))
                matrix = _tensor(layer.left) @ (root * normal(*root.shape)) @ _tensor(layer.right).T
                found |= layer.split(matrix)
            return found


def _added(mean: Floats, noise: torch.Tensor) -> torch.Tensor:
    return _tensor(mean) + noise.reshape(-1, *mean.shape)


def _tensor(array: Floats) -> torch.Tensor:
    import torch

    return torch.tensor(array, dtype=torch.float64)
