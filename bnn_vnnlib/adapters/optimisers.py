"""Posteriors that an optimiser keeps beside plain weights: IVON (ivon-opt), and SWAG (swa_gaussian)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_vnnlib.adapters.adapted import DRAWS, Adapted, adapt, array, drawn_outputs
from bnn_vnnlib.adapters.export import evaluating, first, plain_export
from bnn_vnnlib.adapters.gaussians import FlatGaussian, successive
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import PosteriorError, names_arguments
from bnn_vnnlib.posteriors.parts import with_values
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import Tensor, nn


@names_arguments
@plain_state(device=False)
def from_ivon(
    optimizer: Any, module: nn.Module, x: Tensor, *, likelihood: str | None, draws: int = DRAWS, seed: int = 0
) -> Adapted:
    """The posterior of a network trained with IVON: means are its weights, variances 1 / (ess (hess + weight decay)).

    The library's own outputs at `x` (`optimizer.sampled_params()`) are compared with those drawn here.

    Parameters
    ----------
    optimizer : the ivon.IVON that trained `module`; its state is what a saved module lacks
    x : (N, ...) inputs, best such that were not trained on
    draws : how often the library draws for the comparison; 0 = no comparison

    Raises
    ------
    PosteriorError : no Hessian, or one that never saw data; parameters that are not the module's; the comparison fails
    """
    names = {id(part): name for name, part in module.named_parameters()}
    deviations: dict[str, Floats] = {}
    for group in optimizer.param_groups:
        _refuse_untrained(group)
        parts = [part for part in group["params"] if part is not None]
        if any(id(part) not in names for part in parts):
            raise PosteriorError(
                "the optimizer trains parameters that are not the module's: give the two that belong together"
            )
        variance = 1 / (group["ess"] * (array(group["hess"]) + group["weight_decay"]))
        positions = successive({names[id(part)]: tuple(part.shape) for part in parts})
        deviations |= {name: np.sqrt(variance[part]) for name, part in positions.items()}
    fixed = [name for name in names.values() if name not in deviations]
    notes = (f"{', '.join(fixed)}: not trained by the optimizer, without posterior",) if fixed else ()
    flat = _flat({name: array(module.get_parameter(name)) for name in deviations}, deviations)

    def forward() -> Tensor:
        with optimizer.sampled_params():
            return first(module(x))

    adapted = adapt(plain_export(module, x), flat.over(flat.positions), likelihood, notes)
    return adapted.compared(_outputs(module, forward, seed), x, draws, seed=seed)


@names_arguments
@plain_state(device=False)
def from_swag(
    swag: Any,
    module: nn.Module,
    x: Tensor,
    *,
    scale: float,
    cov: bool,
    likelihood: str | None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Adapted:
    """The posterior of a SWAG model of swa_gaussian: scale (diag(sq_mean - mean^2) + D D' / (K - 1)).

    Parameters
    ----------
    swag : swag.posteriors.swag.SWAG, after collect_model
    module : a plain module of the same architecture; its normalisation statistics count
    scale, cov : as they are given to swag.sample: the posterior depends on them
    x, draws : as in `from_ivon`

    Raises
    ------
    PosteriorError : no models collected, no low-rank part; the comparison fails
    """
    if not int(swag.n_models):
        raise PosteriorError("the SWAG model has collected no weights: call collect_model while training")
    means: dict[str, Floats] = {}
    deviations: dict[str, Floats] = {}
    roots = []
    for part, name, full_name in swag.params:
        mean, square = array(getattr(part, f"{name}_mean")), getattr(part, f"{name}_sq_mean", None)
        means[full_name] = mean
        if square is None:
            raise PosteriorError("has no second moment (variance estimation is off); leave it out", node=full_name)
        deviations[full_name] = np.sqrt(scale * np.maximum(array(square) - mean**2, swag.var_clamp))
        if cov:
            if not hasattr(part, f"{name}_cov_mat_sqrt"):
                raise PosteriorError("cov=True, but the model keeps no covariance (no_cov_mat=True)")
            rows = array(getattr(part, f"{name}_cov_mat_sqrt"))
            roots.append(np.sqrt(scale / (swag.max_num_models - 1)) * rows.T)
    flat = _flat(means, deviations, np.concatenate(roots) if cov else None)
    proto = with_values(plain_export(module, x), means)

    def forward() -> Tensor:
        swag.sample(scale=scale, cov=cov)
        return first(swag(x))

    adapted = adapt(proto, flat.over(flat.positions), likelihood)
    return adapted.compared(_outputs(swag, forward, seed), x, draws, seed=seed)


def _outputs(module: nn.Module, forward: Callable[[], Tensor], seed: int) -> Callable[[int], Floats]:
    """The module's outputs for so many draws (draws, N, m), in evaluation mode, from a seed of their own."""
    import torch

    def outputs(draws: int) -> Floats:
        with evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return drawn_outputs(forward, draws)

    return outputs


def _flat(means: dict[str, Floats], deviations: dict[str, Floats], root: Floats | None = None) -> FlatGaussian:
    positions = successive({name: mean.shape for name, mean in means.items()})
    mean, deviation = (np.concatenate([part[name].ravel() for name in means]) for part in (means, deviations))
    return FlatGaussian(mean, deviation, root, positions)


def _refuse_untrained(group: dict[str, Any]) -> None:
    hess = group.get("hess")
    if hess is None:
        raise PosteriorError(
            "the optimizer keeps no Hessian ('hess' in its parameter groups): it is no IVON, or its state was not "
            "loaded"
        )
    if bool((array(hess) == group.get("hess_init")).all()):
        raise PosteriorError(
            "every entry of the Hessian still has its initial value: the optimizer never stepped, or only the module "
            "was loaded. Load the optimizer's state_dict, too"
        )
