"""A torch network whose layers draw their weights (torchbnn, bayesian-torch, BLiTZ, torch-uncertainty, fastbnns).

1. How the libraries keep a Gaussian posterior in their layers: one table, and the layers of its means. Deviations are
   computed in float64. A library that computes log1p(exp(rho)) or softplus(rho) in float32 gets the same numbers up to
   rounding.
2. `from_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnn_vnnlib.adapters.adapted import DRAWS, Adapted, adapt, array, drawn_outputs
from bnn_vnnlib.adapters.export import copied, evaluating, exported, first, refuse_changed
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError, names_arguments
from bnn_vnnlib.model import from_standard_deviations
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import Tensor, nn


# 1. Layouts

_DeviationTransform = Literal["exp", "softplus", "identity"]
_TRANSFORMS: dict[str, Callable[[Floats], Floats]] = {
    "exp": np.exp,
    "softplus": partial(np.logaddexp, 0.0),
    "identity": np.asarray,
}


@dataclass(frozen=True)
class Layout:
    """Where the layers of a library keep mean and scale of a parameter.

    Attributes
    ----------
    module : package or module that defines the layers' classes, e.g. "torchbnn.modules"
    mean, scale : attributes of a layer, with {} for the parameter's role: "{}_mu", "mu_{}", "{}_sampler.mu"
    deviation : what makes a standard deviation of the scale
    roles : the parameters of a layer, by the name that the library has for them, to torch's name
    frozen : attribute that, if true (or a tensor), says that the layer does not draw its weights
    inner : attribute that holds the plain torch layer, if there is one
    """

    module: str
    mean: str
    scale: str
    deviation: _DeviationTransform
    roles: tuple[tuple[str, str], ...] = (("weight", "weight"), ("bias", "bias"))
    frozen: str | None = None
    inner: str | None = None

    def __post_init__(self) -> None:
        if self.deviation not in _TRANSFORMS:
            raise OptionError(f"deviation {self.deviation!r} is unknown; expected one of {', '.join(_TRANSFORMS)}")
        if "{}" not in self.mean or "{}" not in self.scale:
            raise OptionError("mean and scale need {} where the parameter's role stands, e.g. '{}_mu' and '{}_rho'")

    def describes(self, layer: nn.Module) -> bool:
        """Whether the class of the layer, or one that it is derived from, comes from this module."""
        return any(f"{base.__module__}.".startswith(f"{self.module}.") for base in type(layer).__mro__)


_LAYOUTS = (
    Layout("torchbnn.modules", "{}_mu", "{}_log_sigma", "exp", frozen="weight_eps"),
    Layout(
        "bayesian_torch.layers",
        "mu_{}",
        "rho_{}",
        "softplus",
        roles=(("weight", "weight"), ("kernel", "weight"), ("bias", "bias")),
        frozen="quant_prepare",
    ),
    # weight_mu beside the sampler is a second parameter; what is drawn is the sampler's
    Layout("blitz.modules", "{}_sampler.mu", "{}_sampler.rho", "softplus", frozen="freeze"),
    # its "sigma" is what others call rho
    Layout("torch_uncertainty.layers.bayesian", "{}_mu", "{}_sigma", "softplus", frozen="frozen"),
    # the weights of _module are not what is drawn
    Layout("fastbnns.bnn", "_module_params.{}_mean", "_module_params.{}_rho", "softplus", inner="_module"),
)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A layer that draws its weights.

    Attributes
    ----------
    name : of the layer in its network; "" if it is the network
    means, deviations : by torch's name ("weight", "bias"), of equal shapes; a mean without deviation is deterministic
    """

    name: str
    layer: nn.Module
    layout: Layout
    means: dict[str, Tensor]
    deviations: dict[str, Floats]

    def of_network(self, parameter: str) -> str:
        """The parameter's name in the network."""
        return f"{self.name}.{parameter}" if self.name else parameter


def _drawn_layers(module: nn.Module, own: tuple[Layout, ...] = ()) -> list[_Drawn]:
    """The layers that draw their weights, in the network's order.

    Raises
    ------
    UnsupportedError : a layer of a known library that has no mean and scale by its layout; names it
    PosteriorError : a frozen layer, a scale that is missing or has another shape; names it
    """
    found: list[_Drawn] = []
    inside: set[int] = set()
    for name, layer in module.named_modules():
        layout = next((row for row in (*own, *_LAYOUTS) if row.describes(layer)), None)
        if layout is None or id(layer) in inside:
            continue
        drawn = _drawn(name, layer, layout)
        if drawn is not None:
            found.append(drawn)
            inside.update(id(part) for part in layer.modules())
        elif next(layer.parameters(recurse=False), None) is not None:
            raise UnsupportedError(
                f"layers of class {_class(layer)} are not known; those of {layout.module} are linear, convolution and "
                "batch normalisation layers",
                node=name,
            )
    return found


def _mean_layer(drawn: _Drawn) -> nn.Module:
    """A deterministic layer of torch that computes with the means.

    Raises
    ------
    UnsupportedError : a layer that is not linear, a convolution or a batch normalisation; names it
    """
    import torch
    from torch import nn

    layer = drawn.layer
    twin: nn.Module
    if drawn.layout.inner is not None:
        twin = deepcopy(getattr(layer, drawn.layout.inner))
    else:
        _refuse_unlike(drawn)
        weight, bias = drawn.means["weight"], "bias" in drawn.means
        if hasattr(layer, "running_mean"):
            twin = _batch_norm(layer)
        elif weight.dim() == 2 and hasattr(layer, "out_features"):
            twin = nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
        elif weight.dim() in (3, 4, 5) and hasattr(layer, "out_channels"):
            kind: Any = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[weight.dim()]
            shared = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
            channels = (weight.shape[1] * shared["groups"], weight.shape[0])
            twin = kind(*channels, tuple(weight.shape[2:]), bias=bias, **shared)
        else:
            raise UnsupportedError(f"layers of class {_class(layer)} are not known", node=drawn.name)
    with torch.no_grad():
        for role, mean in drawn.means.items():
            # a tensor of its own: the inner layer may share its storage with the library's
            setattr(twin, role, nn.Parameter(mean.detach().clone().contiguous()))
    if hasattr(layer, "dnn_to_bnn_flag"):
        twin.forward = partial(_with_kl, twin.forward, layer)
    return twin.to(next(iter(drawn.means.values())).dtype) if drawn.means else twin


def _with_kl(forward: Any, layer: Any, x: Tensor, return_kl: bool = True) -> Tensor | tuple[Tensor, Tensor]:
    """bayesian-torch's layers return a KL term beside their output, unless they are told not to."""
    output = forward(x)
    return output if layer.dnn_to_bnn_flag or not return_kl else (output, output.new_zeros(()))


def _drawn(name: str, layer: nn.Module, layout: Layout) -> _Drawn | None:
    """Means and deviations of a layer; None if it has nothing at the layout's places."""
    import torch

    means: dict[str, Tensor] = {}
    deviations: dict[str, Floats] = {}
    for role, target in _roles(layer, layout):
        mean, scale = _at(layer, layout.mean.format(role)), _at(layer, layout.scale.format(role))
        if mean is None or (role == "bias" and getattr(layer, "bias", None) is False):
            continue
        if mean.dtype not in (torch.float16, torch.float32, torch.float64):
            raise UnsupportedError(f"{target} is of type {mean.dtype}; convert the module with .float()", node=name)
        means[target] = mean
        if getattr(layer, "_samplers", {role: True}).get(role) is None:
            continue  # fastbnns: no sampler, the mean counts
        if scale is not None:
            if scale.shape != mean.shape:
                message = f"{layout.scale.format(role)} has shape {tuple(scale.shape)}, expected {tuple(mean.shape)}"
                raise PosteriorError(message, node=name)
            deviations[target] = _TRANSFORMS[layout.deviation](array(scale))
        elif layout.inner is None:
            raise PosteriorError(f"has {layout.mean.format(role)} but no {layout.scale.format(role)}", node=name)
    if not means and (layout.inner is None or not hasattr(layer, layout.inner)):
        return None
    _refuse_frozen(name, layer, layout)
    return _Drawn(name, layer, layout, means, deviations)


def _roles(layer: nn.Module, layout: Layout) -> Iterator[tuple[str, str]]:
    """The layout's roles; a layer around a plain one has the plain one's parameters."""
    if layout.inner is None:
        yield from layout.roles
    elif hasattr(layer, layout.inner):
        yield from ((name, name) for name, _ in getattr(layer, layout.inner).named_parameters() if "." not in name)


def _at(layer: nn.Module, path: str) -> Tensor | None:
    """The tensor at a path of attributes, modules or entries of a ParameterDict; None if there is none."""
    import torch

    value: Any = layer
    for part in path.split("."):
        try:
            value = value[part] if hasattr(value, "keys") else getattr(value, part)
        except (AttributeError, KeyError):
            return None
    return value if isinstance(value, torch.Tensor) else None


def _refuse_frozen(name: str, layer: nn.Module, layout: Layout) -> None:
    """Refuse a layer that does not draw its weights, or draws them from another law than Normal."""
    state = getattr(layer, layout.frozen, None) if layout.frozen else None
    if state is not None and state is not False:
        raise PosteriorError(
            f"is frozen ({layout.frozen} is set): the library computes with fixed weights there. Unfreeze the layer, "
            "or replace it by a plain one if that is meant",
            node=name,
        )
    samplers = getattr(layer, "_samplers", {})
    other = [role for role, kind in samplers.items() if kind is not None and kind.__name__ != "Normal"]
    if other:
        message = f"draws {other[0]} from {samplers[other[0]].__name__}; only Normal is known"
        raise UnsupportedError(f"{message}. Draw networks and use from_samples", node=name)


def _refuse_unlike(drawn: _Drawn) -> None:
    layer = drawn.layer
    if "weight" not in drawn.means:
        raise UnsupportedError(f"layers of class {_class(layer)} are not known: no weight", node=drawn.name)
    if getattr(layer, "transposed", False) or "Transpose" in type(layer).__name__:
        raise UnsupportedError("transposed convolutions are not known", node=drawn.name)
    if "Quantized" in type(layer).__name__:
        raise UnsupportedError("quantised layers are not known; take the network before quantisation", node=drawn.name)
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        raise UnsupportedError(f"padding mode {layer.padding_mode!r}; supported: 'zeros'", node=drawn.name)


def _batch_norm(layer: Any) -> nn.Module:
    """Batch normalisation over a layer's running statistics."""
    from torch import nn

    if layer.running_mean is None:
        raise UnsupportedError("batch normalisation without running statistics depends on the batch")
    kinds = {"1": nn.BatchNorm1d, "2": nn.BatchNorm2d, "3": nn.BatchNorm3d}
    kind = next((kinds[d] for d in kinds if type(layer).__name__.endswith(f"{d}d")), nn.BatchNorm2d)
    twin: nn.Module = kind(layer.num_features, eps=layer.eps)
    for name in ("running_mean", "running_var"):
        twin.register_buffer(name, getattr(layer, name).detach().clone())
    return twin


def _class(layer: nn.Module) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


# 2. Networks


@names_arguments
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

    layers = _drawn_layers(module, tuple(layouts))
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
        refuse_changed(proto, means)
        adapted = adapt(proto, from_standard_deviations(posterior), likelihood, _notes(layers, used))
        flipped = [drawn.name for drawn in used if _many_signs(drawn, ranks[drawn.name])]
        if flipped:
            return adapted.noted(
                f"{', '.join(flipped)}: Flipout as bayesian-torch has it flips a sign for every pixel or position, "
                "which no draw of weights does: its own outputs are not those of the posterior and were not compared"
            )
        return adapted.compared(lambda draws: drawn_outputs(lambda: first(module(x)), draws), x, draws, seed=seed)


def _of_means(module: nn.Module, layers: list[_Drawn]) -> nn.Module:
    """A copy in which the layers that draw are replaced by layers of their means."""
    # a copy of a drawing layer would fail: some keep their last draw, which is part of a graph of gradients
    return copied(module, {id(drawn.layer): _mean_layer(drawn) for drawn in layers})


def _ranks(module: nn.Module, layers: list[_Drawn], x: Tensor) -> dict[str, int]:
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


def _many_signs(drawn: _Drawn, rank: int) -> bool:
    """Whether a Flipout layer perturbs one weight with several signs for one input."""
    name = type(drawn.layer).__name__
    return drawn.layout.module == "bayesian_torch.layers" and "Flipout" in name and (rank > 2)


def _notes(layers: list[_Drawn], used: list[_Drawn]) -> tuple[str, ...]:
    idle = [drawn.name for drawn in layers if drawn.deviations and drawn not in used]
    fixed = [drawn.name for drawn in layers if drawn.means and not drawn.deviations]
    stale = [drawn.name for drawn in used if _stale(drawn)]
    notes = [f"{name} does not run on this input; its posterior is left out" for name in idle]
    notes += [f"{name} has no scale and stays deterministic" for name in fixed]
    notes += [
        f"{name}: the plain layer inside holds other weights than the posterior's means, which count" for name in stale
    ]
    return tuple(notes)


def _stale(drawn: _Drawn) -> bool:
    """Whether the plain layer inside, which the library does not compute with, holds other weights."""
    import torch

    inner = getattr(drawn.layer, drawn.layout.inner) if drawn.layout.inner else None
    return inner is not None and any(not torch.equal(getattr(inner, role), mean) for role, mean in drawn.means.items())
