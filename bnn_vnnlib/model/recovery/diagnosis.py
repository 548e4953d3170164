"""What an export is from which no posterior can be read, by name, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from onnx import NodeProto

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.attributes import label
from bnn_vnnlib.model.recovery.graph import NORMAL, Flow, is_random

Kind = Literal[
    "activation noise", "correlated", "flipout", "frozen noise", "mc dropout", "mean only", "not evaluated",
    "not gaussian", "other noise",
]  # fmt: skip
FROZEN_NOISE = ("_sampler.eps_w", "_sampler.eps_b")
"""How BLiTZ names the buffers that hold the noise of its last forward pass."""

_ATTACH = "write the mean network with torch.onnx.export (or its like) and attach mean and standard deviation to it"


class NotRecoverable(UnsupportedError):
    """No posterior can be read from this export; `kind` is the diagnosis in a word or two."""

    def __init__(self, kind: Kind, message: str, *, node: str | None = None) -> None:
        super().__init__(message, node=node)
        self.kind = kind


def diagnose(flow: Flow) -> None:
    """Raise for every kind of export that is known to hold no posterior in a form that can be recovered."""
    _refuse_frozen(flow)
    random = [node for node in flow.nodes if is_random(node)]
    others = [node for node in random if node.op_type not in NORMAL]
    flipout = _signs(flow, others) or [node for node in others if "flipout" in " ".join(node.output).lower()]
    if flipout:
        raise NotRecoverable("flipout", _FLIPOUT, node=label(flipout[0]))
    dropout = [node for node in flow.nodes if node.op_type == "Dropout" and flow.trains(node)]
    if dropout:
        raise NotRecoverable("mc dropout", _DROPOUT, node=label(dropout[0]))
    if others:
        raise NotRecoverable("other noise", _OTHER, node=label(others[0]))
    if not random:
        raise NotRecoverable("mean only", _MEAN_ONLY)


def refuse_activation_noise(flow: Flow) -> None:
    """Raise if noise is left whose shape depends on the input: it is drawn for activations, not for weights."""
    for node in flow.nodes:
        if is_random(node) and node.output[0] in flow.data:
            raise NotRecoverable("activation noise", _ACTIVATION, node=label(node))


def frozen(flow: Flow) -> list[str]:
    """Initializers that hold the noise of one forward pass (BLiTZ)."""
    used = {name for node in flow.nodes if not is_random(node) for name in node.input}
    return sorted(name for name in flow.stored if name.endswith(FROZEN_NOISE) and name in used)


def _refuse_frozen(flow: Flow) -> None:
    names = frozen(flow)
    if names:
        raise NotRecoverable("frozen noise", _FROZEN.format(names=", ".join(names)))


def _signs(flow: Flow, others: Iterable[NodeProto]) -> list[NodeProto]:
    """Noise other than Gaussian that a Sign turns into random signs."""
    signed = [node.input[0] for node in flow.nodes if node.op_type == "Sign"]
    behind = {name for value in signed for name in flow.ancestors([value])}
    return [node for node in others if behind.intersection(node.output)]


_FLIPOUT = (
    "this is a Flipout export: it draws random signs for every input, and its weight noise is a perturbation kernel, "
    "not the posterior. Take mean and standard deviation from the layers themselves (bayesian-torch: mu_*, rho_*; "
    f"TFP: kernel_posterior_loc, kernel_posterior_untransformed_scale): {_ATTACH}"
)
_DROPOUT = (
    "this is an MC-dropout export (Dropout in training mode): the family `dropout` is not supported, and a runtime "
    "would silently drop the noise. Export in eval mode for the one network of the weights, or draw S networks "
    "yourself and attach them as samples"
)
_OTHER = (
    "this is a stochastic export that draws random numbers which are not Gaussian: no Gaussian posterior can be read "
    f"from it. If you have one, {_ATTACH}"
)
_MEAN_ONLY = (
    "the graph draws no random numbers, so there is nothing to recover: it is one network, either the posterior mean "
    "or one frozen sample (a graph cannot tell which; IVON and most optimisers export this). The posterior is in your "
    "training program: attach it with `bnn-vnnlib attach`, or fit one with `bnn-vnnlib convert`"
)
_FROZEN = (
    "the noise of one forward pass is stored in {names} (a BLiTZ layer keeps it in a buffer): the file computes one "
    "sample of the weights, not their posterior. `bnn-vnnlib recover EXPORT OUT --frozen-noise` takes these tensors "
    "for the standard normal noise as which they were drawn"
)
_ACTIVATION = (
    "this stochastic export adds noise to activations, and not by a local reparameterisation that this version knows "
    "(mean + sqrt(x^2 S) * noise with the same x): no posterior over weights can be read from it. "
    f"{_ATTACH.capitalize()}"
)
