"""A torch network whose layers draw their weights (torchbnn, bayesian-torch, BLiTZ, torch-uncertainty, fastbnns)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bnn_vnnlib.adapters.adapted import Adapted, adapt
from bnn_vnnlib.adapters.agreement import DRAWS, check_predictive, drawn_outputs
from bnn_vnnlib.adapters.export import copied, evaluating, exported, first, refuse_other
from bnn_vnnlib.adapters.layouts import Drawn, Layout, drawn_layers, mean_layer
from bnn_vnnlib.errors import OptionError, PosteriorError
from bnn_vnnlib.model import from_standard_deviations
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import Tensor, nn


@plain_state(device=False)
def from_torch(
    module: nn.Module,
    x: Tensor,
    *,
    likelihood: str | None,
    draws: int = DRAWS,
    layouts: Sequence[Layout] = (),
    seed: int = 0,
) -> Adapted:
    """The posterior of a network with layers of torchbnn, bayesian-torch, BLiTZ, torch-uncertainty or fastbnns.

    The layers that draw their weights are replaced by layers of their means in a copy, which torch.onnx.export writes;
    all else stays deterministic. The posterior is attached, and the library's own outputs at `x`, in evaluation mode,
    are compared with those drawn from it (`check_predictive`). The module itself is left as it is.

    Parameters
    ----------
    x : (N, ...) inputs, best such that were not trained on; the first one serves as example of a shape
    likelihood : "categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"; None = unknown
    draws : how often the library draws for the comparison; 0 = no comparison
    layouts : of layers of your own

    Raises
    ------
    PosteriorError : no layer that draws, a frozen one, one that runs more than once; the comparison fails
    UnsupportedError : a layer or an operator that is not known, by name
    ModelError : torch.onnx.export fails
    """
    import torch

    layers = drawn_layers(module, tuple(layouts))
    uncertain = [drawn for drawn in layers if drawn.deviations]
    if not uncertain:
        raise PosteriorError(
            "no layer of the module draws its weights: it has none of torchbnn, bayesian-torch, BLiTZ, "
            "torch-uncertainty or fastbnns, and none that a layout of your own describes"
        )
    with evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ranks = _ranks(module, uncertain, x)
        used = [drawn for drawn in uncertain if drawn.name in ranks]
        proto = exported(_of_means(module, layers), x.cpu())
        posterior = {d.of_network(role): sd for d in used for role, sd in d.deviations.items()}
        means = {d.of_network(role): d.means[role].detach().cpu().numpy() for d in used for role in d.deviations}
        refuse_other(proto, means)
        adapted = adapt(proto, from_standard_deviations(posterior), likelihood, _notes(layers, used))
        flipped = [drawn.name for drawn in used if _many_signs(drawn, ranks[drawn.name])]
        if flipped:
            return adapted.noted(
                f"{', '.join(flipped)}: Flipout as bayesian-torch has it flips a sign for every pixel or position, "
                "which no draw of weights does: its own outputs are not those of the posterior and were not compared"
            )
        if not draws:
            return adapted.noted("not compared with the library's own outputs, as asked for")
        outputs = drawn_outputs(lambda: first(module(x)), draws)
    return adapted.checked(check_predictive(adapted.model, outputs, x, seed=seed + 1))


def _of_means(module: nn.Module, layers: list[Drawn]) -> nn.Module:
    """A copy in which the layers that draw are replaced by layers of their means."""
    # a copy of a drawing layer would fail: some keep their last draw, which is part of a graph of gradients
    return copied(module, {id(drawn.layer): mean_layer(drawn) for drawn in layers})


def _ranks(module: nn.Module, layers: list[Drawn], x: Tensor) -> dict[str, int]:
    """Dimensions of the input of every layer that runs.

    Raises
    ------
    PosteriorError : a layer runs twice, or two share a parameter: one weight, but two draws; names the layer
    """
    ranks: dict[str, int] = {}
    remedy = "a weight has one value, but the library draws anew each time. Use a layer of its own for each place"

    def recorded(name: str) -> Callable[..., None]:
        def record(_: object, arguments: tuple[Tensor, ...], __: object) -> None:
            if name in ranks:
                raise PosteriorError(f"runs more than once for one input: {remedy}", node=name)
            ranks[name] = arguments[0].dim()

        return record

    hooks = [drawn.layer.register_forward_hook(recorded(drawn.name)) for drawn in layers]
    try:
        module(x[:1])
    except (RuntimeError, TypeError, IndexError) as error:
        raise OptionError(f"the module cannot be run on x of shape {tuple(x.shape)}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    owners: dict[int, str] = {}
    for drawn in layers:
        for mean in drawn.means.values():
            owner = owners.setdefault(mean.data_ptr(), drawn.name)
            if owner != drawn.name:
                raise PosteriorError(f"shares a parameter with {owner}: {remedy}", node=drawn.name)
    if not ranks:
        raise PosteriorError("none of the layers that draw their weights runs on this input")
    return ranks


def _many_signs(drawn: Drawn, rank: int) -> bool:
    """Whether a Flipout layer perturbs one weight with several signs for one input."""
    name = type(drawn.layer).__name__
    return drawn.layout.module == "bayesian_torch.layers" and "Flipout" in name and (rank > 2)


def _notes(layers: list[Drawn], used: list[Drawn]) -> tuple[str, ...]:
    idle = [drawn.name for drawn in layers if drawn.deviations and drawn not in used]
    fixed = [drawn.name for drawn in layers if drawn.means and not drawn.deviations]
    stale = [drawn.name for drawn in used if _stale(drawn)]
    notes = [f"{name} does not run on this input; its posterior is left out" for name in idle]
    notes += [f"{name} has no scale and stays deterministic" for name in fixed]
    notes += [
        f"{name}: the plain layer inside holds other weights than the posterior's means, which count" for name in stale
    ]
    return tuple(notes)


def _stale(drawn: Drawn) -> bool:
    """Whether the plain layer inside, which the library does not compute with, holds other weights."""
    import torch

    inner = getattr(drawn.layer, drawn.layout.inner) if drawn.layout.inner else None
    return inner is not None and any(not torch.equal(getattr(inner, role), mean) for role, mean in drawn.means.items())
