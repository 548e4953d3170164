"""Laplace approximations of laplace-torch: diagonal, full and Kronecker-factored, of all weights or the last layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnn_vnnlib.adapters.adapted import DRAWS, Adapted, Link, adapt, array
from bnn_vnnlib.adapters.export import evaluating, plain_export
from bnn_vnnlib.adapters.gaussians import FlatGaussian, successive
from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError, names_arguments
from bnn_vnnlib.model import Posterior
from bnn_vnnlib.network.network import GaussianKron, KronLayer
from bnn_vnnlib.posteriors.parts import with_values
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import Tensor, nn

_LINEARISED = (
    "the posterior is over the weights of the network itself, as in laplace-torch's pred_type='nn'; its default "
    "predictive (pred_type='glm') is that of a linearised network"
)
_EXACT = (
    "the network is linear in the weights of its last layer, so that the linearised predictive of laplace-torch "
    "(pred_type='glm') is that of the network itself; class probabilities are expected ones, which its link_approx "
    "approximates"
)


@names_arguments
@plain_state(device=False)
def from_laplace(
    la: Any, x: Tensor, *, pred_type: Literal["nn", "glm"] = "nn", draws: int = DRAWS, seed: int = 0
) -> Adapted:
    """The posterior of a fitted Laplace approximation.

    Means are `la.mean`; the rest of the network is as it is in `la.model`. The library's own outputs at `x`
    (`predictive_samples` with that `pred_type`) are compared with those drawn here (`check_predictive`).

    Proof for "glm" of the last layer: f(x; W, b) = W h(x) + b is its own linearisation in (W, b), so that
    f(x; mean) + J (w - mean) = f(x; w) for all w, and both predictives are the law of f(x; w), w from the posterior.
    The library takes h(x) for the Jacobian J whatever the network does behind its last layer; so nothing may be there,
    which is seen at `x`.

    Parameters
    ----------
    la : Diag-, Full- or KronLaplace, Diag-, Full- or KronLLLaplace, after fit
    x : (N, ...) inputs, best such that were not trained on
    pred_type : the library's name for a predictive: "nn" draws weights of the network; "glm" those of its
        linearisation in the weights, Gaussian outputs with the Jacobian's covariance, which is accepted where the
        approximation is of the last layer alone
    draws : how often the library draws for the comparison; 0 = no comparison

    Raises
    ------
    UnsupportedError : another class (low rank, subnetwork, functional): draw with la.sample and use from_samples;
        pred_type "glm" of an approximation of more than the last layer, or of a network that goes on behind it
    OptionError : another pred_type
    PosteriorError : not fitted; the comparison fails
    """
    import torch

    family = next((kind for kind in ("Diag", "Full", "Kron") if _is(la, f"{kind}Laplace")), None)
    if family is None or "Subnet" in type(la).__name__:
        message = (
            f"{type(la).__name__} is not known; known: Diag-, Full- and KronLaplace, of all weights or the last layer"
        )
        raise UnsupportedError(f"{message}. Draw weights with la.sample and use from_samples")
    last = _is(la, "LLLaplace")
    if pred_type not in ("nn", "glm"):
        raise OptionError(f"pred_type is {pred_type!r}, expected 'nn' or 'glm'")
    if pred_type == "glm" and not last:
        raise UnsupportedError(
            f"pred_type 'glm' of {type(la).__name__} is the predictive of the network linearised in all its weights, "
            "which is another network at every x and has no ONNX graph here: fit subset_of_weights='last_layer', where "
            "the linearisation is the network itself, or take pred_type 'nn'"
        )
    if getattr(la, "H", None) is None or not getattr(la, "n_data", 0):
        raise PosteriorError("the Laplace approximation is not fitted: call la.fit(train_loader) first")
    module, shapes = _parameters(la)
    ends = last and _ends_in(module, la.model.last_layer, x)
    if pred_type == "glm" and not ends:
        raise UnsupportedError(
            "the network does not end in its last layer (something scales, moves or activates that layer's outputs), "
            "and the linearised predictive (pred_type 'glm') leaves out what comes behind: end the network there, or "
            "take pred_type 'nn'"
        )
    mean, positions = array(la.mean), successive(shapes)
    if mean.shape != (sum(part.size for part in positions.values()),):
        raise PosteriorError(f"la.mean has shape {mean.shape}, which does not belong to the module's parameters")
    match family:
        case "Diag":
            posterior = FlatGaussian(mean, np.sqrt(array(la.posterior_variance)), None, positions).over(positions)
        case "Full":
            posterior = FlatGaussian(mean, None, array(la.posterior_scale), positions).over(positions)
        case _:
            posterior = _kronecker(la.posterior_precision, shapes)
    proto = with_values(plain_export(module, x), {name: mean[part] for name, part in positions.items()})
    kind = str(getattr(la.likelihood, "value", la.likelihood))
    likelihood = {"classification": "categorical", "regression": "gaussian"}.get(kind)
    link: Link = "softmax" if likelihood == "categorical" else "identity"

    def outputs(draws: int) -> Any:
        with evaluating(la.model), torch.no_grad():
            generator = torch.Generator(device=la._device).manual_seed(seed)
            return la.predictive_samples(x, pred_type=pred_type, n_samples=draws, generator=generator)

    note = _EXACT if ends else _LINEARISED
    return adapt(proto, posterior, likelihood, (note,)).compared(outputs, x, draws, link=link, seed=seed)


def _is(la: Any, name: str) -> bool:
    return any(base.__name__ == name for base in type(la).__mro__)


def _parameters(la: Any) -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    """The network, and the shapes of the parameters of the approximation by name, in its order."""
    if not _is(la, "LLLaplace"):
        parts = [(name, part) for name, part in la.model.named_parameters() if part.requires_grad]
        return la.model, {name: tuple(part.shape) for name, part in parts}
    network, last = la.model.model, la.model.last_layer
    prefix = next(name for name, part in network.named_modules() if part is last)
    dot = f"{prefix}." if prefix else ""
    return network, {f"{dot}{name}": tuple(part.shape) for name, part in last.named_parameters()}


def _ends_in(module: nn.Module, last: nn.Module, x: Tensor) -> bool:
    """Whether the network's outputs at x are those of this layer, up to their shape."""
    import torch

    made: list[Tensor] = []
    hook = last.register_forward_hook(lambda _, __, found: made.append(found))
    try:
        with evaluating(module), torch.no_grad():
            y = module(x)
    finally:
        hook.remove()
    return len(made) == 1 and torch.equal(made[0].reshape(-1), y.reshape(-1))


def _kronecker(precision: Any, shapes: dict[str, tuple[int, ...]]) -> Posterior:
    """Parameter after parameter: (Q1 (x) Q2) diag(1 / (l1 l2' + delta)) (Q1 (x) Q2)', without Q2 for a bias."""
    deltas = np.broadcast_to(array(precision.deltas).ravel(), (len(precision.eigenvalues),))
    groups = zip(precision.eigenvalues, precision.eigenvectors, deltas, strict=True)
    layers = []
    if len(shapes) != len(precision.eigenvalues):
        raise UnsupportedError(
            f"{len(precision.eigenvalues)} Kronecker blocks for {len(shapes)} parameters: weights and biases that "
            "share their factors are not known. Use another backend of laplace-torch, or la.sample and from_samples"
        )
    for (name, shape), (values, vectors, delta) in zip(shapes.items(), groups, strict=True):
        l1, q1 = array(values[0]), array(vectors[0])
        l2, q2 = (array(values[1]), array(vectors[1])) if len(values) == 2 else (np.ones(1), np.ones((1, 1)))
        if (len(q1), len(q1) * len(q2)) != (shape[0], int(np.prod(shape))):
            raise UnsupportedError(f"Kronecker factors of {len(q1)} and {len(q2)} rows for shape {shape}", node=name)
        if precision.damping and len(values) == 2:
            spectrum = 1 / np.outer(l1 + np.sqrt(delta), l2 + np.sqrt(delta))
        else:
            spectrum = 1 / (np.outer(l1, l2) + delta)
        layers.append(KronLayer(name, q1, q2, spectrum))
    return GaussianKron(tuple(layers))
