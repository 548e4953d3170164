"""From a posterior to sets of weights that the engine can bound a network over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network import nodes
from bnn_vnnlib.network.network import GaussianDiagonal, Network, Posterior, WeightSamples
from bnn_vnnlib.network.nodes import Param
from bnn_vnnlib.network.posterior import names_of
from bnn_vnnlib.problem.mass import BoxUnion, CentredUnion, centred_mass, margin_of, scattered_union
from bnn_vnnlib.rounding import UNIT

_Device = torch.device | str


@dataclass(frozen=True, eq=False)
class BoxFamily:
    """K weight boxes and the masses of their unions."""

    weights: WeightBoxes
    union: BoxUnion


def params_of(network: Network) -> list[Param]:
    """All parameters, node by node."""
    return [param for node in network.nodes for param in nodes.params_of(node)]


def random_sources(network: Network, posterior: GaussianDiagonal) -> list[str]:
    """Sources with a variance that some node uses; weights that nothing uses are marginalised away."""
    used = {param.source for param in params_of(network)}
    return [name for name, variance in posterior.variances.items() if name in used and (variance > 0).any()]


def random_names(network: Network, posterior: Posterior) -> list[str]:
    """Sources that a draw from any posterior may change."""
    return random_sources(network, posterior) if isinstance(posterior, GaussianDiagonal) else list(names_of(posterior))


def random_count(network: Network, posterior: GaussianDiagonal) -> int:
    """n: number of independent random weights that the network's output depends on, at most."""
    names = random_sources(network, posterior)
    return int(sum(np.count_nonzero(posterior.variances[name] > 0) for name in names))


def mean_weights(network: Network, device: _Device = "cpu") -> WeightBoxes:
    """One box: the mean network itself."""
    centers = {
        name: torch.tensor(value, dtype=torch.float64, device=device)[None] for name, value in network.tensors.items()
    }
    return WeightBoxes(centers, {}, torch.zeros(1, 1, dtype=torch.float64, device=device))


def centred(network: Network, posterior: GaussianDiagonal, device: _Device = "cpu") -> WeightBoxes:
    """One box at the mean; its scale is the margin in standard deviations.

    The standard deviations are rounded up, so that the box contains |w - mu| <= margin * s exactly.
    """
    spreads = {
        name: torch.tensor(np.sqrt(posterior.variances[name]) * (1 + 4 * UNIT), dtype=torch.float64, device=device)
        for name in random_sources(network, posterior)
    }
    weights = mean_weights(network, device)
    return WeightBoxes(weights.centers, spreads, weights.scale)


def centred_family(
    network: Network, posterior: GaussianDiagonal, masses: np.ndarray, device: _Device = "cpu", *, margin: float | None
) -> BoxFamily:
    """Nested boxes at the mean with about the given masses, or one box with the given margin."""
    count = random_count(network, posterior)
    margins = margin_of(masses, count) if margin is None else np.array([margin])
    lower, upper = (torch.as_tensor(side, device=device) for side in centred_mass(margins, count))
    boxes = centred(network, posterior, device)
    return BoxFamily(boxes.scaled(torch.as_tensor(margins, device=device)[:, None]), CentredUnion(lower, upper))


def scattered_family(
    network: Network, posterior: GaussianDiagonal, count: int, margin: float, seed: int, device: _Device = "cpu"
) -> BoxFamily:
    """Boxes around sampled weights (the method of Wicker et al.), for fidelity: their mass is tiny for many weights."""
    generator = np.random.default_rng(seed)
    boxes = centred(network, posterior, device)
    centers, standardised = dict(boxes.centers), []
    for name in random_sources(network, posterior):
        mean, deviation = network.tensors[name], np.sqrt(posterior.variances[name])
        drawn = mean + deviation * generator.standard_normal((count, *mean.shape))
        centers[name] = torch.as_tensor(drawn, device=device)
        random = deviation > 0
        standardised.append((drawn[:, random] - mean[random]) / deviation[random])
    z = np.concatenate(standardised, axis=1) if standardised else np.zeros((count, 0))
    union = scattered_union(z, margin)
    scale = torch.full((count, 1), float(margin), dtype=torch.float64, device=device)
    return BoxFamily(WeightBoxes(centers, boxes.spreads, scale), union.to(device))


def sample_weights(network: Network, posterior: WeightSamples, device: _Device = "cpu") -> tuple[WeightBoxes, Tensor]:
    """The samples as K exact weight settings, and their probabilities (K,), normalised to sum 1."""
    weights = mean_weights(network, device)
    drawn = {name: torch.tensor(v, dtype=torch.float64, device=device) for name, v in posterior.samples.items()}
    count = len(posterior.probabilities)
    scale = torch.zeros(count, 1, dtype=torch.float64, device=device)
    probabilities = torch.tensor(posterior.probabilities, dtype=torch.float64, device=device)
    return WeightBoxes({**weights.centers, **drawn}, {}, scale), probabilities / probabilities.sum()
