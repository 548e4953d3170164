"""Networks drawn from a posterior."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from bnn_vnnlib.model import Model

LEVEL = 1e-6
"""Of the tests: the probability at most that a bound which holds is reported as violated, for each of them."""


def networks(model: Model, count: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Sets of weights (K, ..) and their probabilities (K,): all samples, or so many that are drawn."""
    import torch

    from bnn_vnnlib.model import WeightSamples
    from bnn_vnnlib.network.families import sample

    posterior = model.posterior
    if isinstance(posterior, WeightSamples):
        params = {name: torch.as_tensor(values) for name, values in posterior.samples.items()}
        return params, torch.as_tensor(posterior.probabilities)
    if posterior is None:
        raise TypeError("the model carries no posterior")
    params = sample(model.network, posterior, count, torch.Generator().manual_seed(seed))
    return params, torch.full((count,), 1 / count, dtype=torch.float64)
