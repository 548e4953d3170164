"""Natural-gradient variational inference by IVON (Shen et al., Variational Learning is Effective for Large Deep Nets).

The same objective as `training.fit_variational`, minimised by the optimiser of the package ivon-opt, which estimates
the curvature h of every weight as it goes; the standard deviations are 1 / sqrt(N / T * h + 1 / s0^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from networks import Architecture
from splits import Split
from training import BATCH, Gaussians, Settings, robust_nll


@dataclass(frozen=True)
class Natural:
    """What IVON wants beside `Settings`: `curvature` is its first estimate of h."""

    rate: float = 0.1
    curvature: float = 0.1
    memory: float = 0.9995
    clip: float = 1e-1


def fit_natural(
    architecture: Architecture, split: Split, settings: Settings, seed: int, natural: Natural | None = None
) -> Gaussians:
    """Fit q; deterministic for one seed and one thread. Needs ivon-opt."""
    import ivon

    natural = natural or Natural()
    torch.manual_seed(seed)  # IVON draws from torch's own generator
    generator = torch.Generator().manual_seed(seed)
    mean = {name: tensor.requires_grad_() for name, tensor in architecture.initial(generator).items()}
    x = torch.as_tensor(split.train_x, dtype=torch.float32)
    y = torch.as_tensor(split.train_y)
    data = len(x) / settings.temperature
    optimiser = ivon.IVON(
        list(mean.values()),
        lr=natural.rate,
        ess=data,
        weight_decay=1 / (data * settings.prior_sd**2),
        hess_init=natural.curvature,
        beta2=natural.memory,
        clip_radius=natural.clip,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for step in range(settings.steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        eps = settings.eps * min(1.0, 2 * step / settings.steps)
        with optimiser.sampled_params(train=True):
            optimiser.zero_grad()
            robust_nll(architecture, mean, x[rows], y[rows], eps, settings).backward()
        optimiser.step()
        schedule.step()
    return Gaussians({name: tensor.detach() for name, tensor in mean.items()}, _deviations(optimiser, mean))


def _deviations(optimiser: torch.optim.Optimizer, mean: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The standard deviations, cut out of the flat vector of curvatures."""
    group = optimiser.param_groups[0]
    flat = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
    sizes = [tensor.numel() for tensor in mean.values()]
    parts = zip(mean.items(), flat.split(sizes), strict=True)
    return {name: part.reshape(tensor.shape).clone() for (name, tensor), part in parts}
