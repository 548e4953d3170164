"""Training: mean-field variational inference (Bayes by backprop) and a deep ensemble, with one loss.

With N training points, a temperature T, a prior p(w) = N(0, s0^2 I) and a factorised Gaussian q, both minimise

    E_q[ (1 - a) nll(w) + a worst(w) ] + T / N KL(q || p)        (the ensemble: q is a point, KL becomes -log p).

`nll` is the mean negative log-likelihood of the training points; `worst` is the same for the worst outputs in the
interval bounds over an eps-box around each input, at these weights. T < 1 makes it a cold posterior: the likelihood
counts 1/T times. Irrelevant weights fall back to the prior, so s0 caps every standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from networks import Architecture, Weights
from splits import Split
from torch import Tensor

BATCH = 128


@dataclass(frozen=True)
class Settings:
    """Hyperparameters; the symbols are those of the module's text. `box` clips the eps-boxes to the input domain.

    The search for the standard deviations starts at `start_sd`, or at those of the prior.
    """

    temperature: float = 4e-5
    prior_sd: float = 4e-3
    share: float = 0.5
    eps: float = 0.03
    box: tuple[float, float] = (0.0, 1.0)
    noise_sd: float = 0.7
    steps: int = 2000
    mean_rate: float = 2e-3
    scale_rate: float = 1e-2
    start_sd: float | None = None


@dataclass(frozen=True)
class Gaussians:
    """A factorised Gaussian over named tensors."""

    mean: dict[str, Tensor]
    sd: dict[str, Tensor]

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One network."""
        return {
            name: mean + self.sd[name] * torch.randn(mean.shape, generator=generator)
            for name, mean in self.mean.items()
        }


def fit_variational(architecture: Architecture, split: Split, settings: Settings, seed: int) -> Gaussians:
    """Fit q by reparameterised gradients; deterministic for one seed and one thread."""
    generator = torch.Generator().manual_seed(seed)
    mean = {name: tensor.requires_grad_() for name, tensor in architecture.initial(generator).items()}
    start = math.log(settings.start_sd or settings.prior_sd)
    log_sd = {name: torch.full_like(tensor, start).requires_grad_() for name, tensor in mean.items()}

    def objective(x: Tensor, y: Tensor, eps: float) -> Tensor:
        noise = {
            name: log_sd[name].exp() * torch.randn(tensor.shape, generator=generator) for name, tensor in mean.items()
        }
        # w and its mirror image: their first-order terms cancel, which is most of the gradient noise of log_sd
        pair = [{name: tensor + sign * noise[name] for name, tensor in mean.items()} for sign in (1, -1)]
        losses = [robust_nll(architecture, weights, x, y, eps, settings) for weights in pair]
        penalty = sum(divergence(mean[name], log_sd[name], settings.prior_sd) for name in mean)
        return (losses[0] + losses[1]) / 2 + settings.temperature * penalty / len(split.train_y)

    groups = [
        {"params": list(mean.values()), "lr": settings.mean_rate},
        {"params": list(log_sd.values()), "lr": settings.scale_rate},
    ]
    minimise(objective, groups, split, settings, generator)
    return Gaussians(
        {name: tensor.detach() for name, tensor in mean.items()},
        {name: tensor.detach().exp() for name, tensor in log_sd.items()},
    )


def fit_ensemble(
    architecture: Architecture, split: Split, settings: Settings, seed: int, members: int
) -> dict[str, Tensor]:
    """MAP estimates from different random starts: {name: (members, *shape)}."""
    fitted = [_fit_member(architecture, split, settings, 1000 * (seed + 1) + member) for member in range(members)]
    return {name: torch.stack([weights[name] for weights in fitted]) for name in fitted[0]}


def _fit_member(architecture: Architecture, split: Split, settings: Settings, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: tensor.requires_grad_() for name, tensor in architecture.initial(generator).items()}

    def objective(x: Tensor, y: Tensor, eps: float) -> Tensor:
        penalty = sum((tensor**2).sum() for tensor in weights.values()) / (2 * settings.prior_sd**2)
        scaled = settings.temperature * penalty / len(split.train_y)
        return robust_nll(architecture, weights, x, y, eps, settings) + scaled

    groups = [{"params": list(weights.values()), "lr": settings.mean_rate}]
    minimise(objective, groups, split, settings, generator)
    return {name: tensor.detach() for name, tensor in weights.items()}


def minimise(
    objective: Callable[[Tensor, Tensor, float], Tensor],
    groups: list[dict[str, object]],
    split: Split,
    settings: Settings,
    generator: torch.Generator,
) -> None:
    """Adam with a cosine schedule; eps grows from 0 during the first half."""
    x = torch.as_tensor(split.train_x, dtype=torch.float32)
    y = torch.as_tensor(split.train_y)
    optimiser = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for step in range(settings.steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimiser.zero_grad()
        objective(x[rows], y[rows], settings.eps * min(1.0, 2 * step / settings.steps)).backward()
        optimiser.step()
        schedule.step()


def robust_nll(
    architecture: Architecture, weights: Weights, x: Tensor, y: Tensor, eps: float, settings: Settings
) -> Tensor:
    """(1 - a) nll + a worst, for a batch."""
    low, high = settings.box
    nominal = architecture.forward(weights, x)
    lower, upper = architecture.interval(weights, (x - eps).clamp(low, high), (x + eps).clamp(low, high))
    if architecture.likelihood == "categorical":
        label = F.one_hot(y, architecture.outputs).bool()
        parts = [F.cross_entropy(nominal, y), F.cross_entropy(torch.where(label, lower, upper), y)]
    else:
        target = y.float().unsqueeze(1)
        errors = [nominal - target, torch.maximum((lower - target).abs(), (upper - target).abs())]
        parts = [(error**2).mean() / (2 * settings.noise_sd**2) for error in errors]
    return (1 - settings.share) * parts[0] + settings.share * parts[1]


def divergence(mean: Tensor, log_sd: Tensor, prior_sd: float) -> Tensor:
    """KL(N(mean, exp(log_sd)^2) || N(0, prior_sd^2)), summed."""
    ratio = ((2 * log_sd).exp() + mean**2) / prior_sd**2
    return ((ratio - 1) / 2 - log_sd + math.log(prior_sd)).sum()
