"""Where a file seems to come from, what of a posterior is in it, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto

from bnn_vnnlib.model import Mixture, Model, WeightSamples
from bnn_vnnlib.model.recovery import is_stochastic
from bnn_vnnlib.model.stored import KEY
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.posteriors.convert import weight_names

_LIBRARIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torchbnn", (r"weight_mu$", r"weight_log_sigma$")),
    ("torch-uncertainty", (r"weight_mu$", r"weight_sigma$")),
    ("BLiTZ", (r"_sampler\.mu$", r"_sampler\.rho$")),
    ("bayesian-torch", (r"\brho_(weight|kernel)$",)),
    ("fastbnns", (r"_module_params\.weight_(mean|rho)$",)),
    ("Pyro", (r"(^|\.)locs?(\.|$)", r"(^|\.)scales?(_unconstrained|\.|$)")),
    ("TensorFlow Probability (DenseFlipout)", (r"dense_flipout",)),
    ("TensorFlow Probability (DenseLocalReparameterization)", (r"dense_local_reparameterization",)),
    ("TensorFlow Probability (DenseReparameterization)", (r"dense_reparameterization",)),
)
"""Names that a library gives its tensors; all patterns of a row must be found."""


@dataclass(frozen=True)
class Origin:
    """What the names in a file tell.

    Attributes
    ----------
    exporter : the program that wrote the file, as it says; "" if it does not
    library : whose layers these seem to be; "" for nobody's in particular. A guess from names.
    carries : what of a posterior is in the file, in a sentence
    """

    exporter: str
    library: str
    carries: str


def origin(proto: ModelProto) -> Origin:
    """Look at the names of a file; nothing is evaluated."""
    exporter = f"{proto.producer_name} {proto.producer_version}".strip()
    return Origin(exporter, _library(_names(proto)), _carries(proto))


def missing(model: Model, proto: ModelProto) -> tuple[str, ...]:
    """What a query could ask for and the model does not have, with the remedy."""
    found = []
    if model.posterior is None:
        found.append(
            "a posterior: this is one network (the posterior mean, or a sample; the file cannot tell). "
            "probabilistic and decision need one: attach it, or convert the network"
        )
    else:
        certain = [name for name in weight_names(model.network, proto) if name not in names_of(model.posterior)]
        if certain:
            found.append(f"uncertainty of the weights {', '.join(certain)}, which are deterministic")
    if isinstance(model.posterior, WeightSamples):
        found.append("a meaningful mean: deterministic asks about the mean of the samples, which is no member of them")
    if isinstance(model.posterior, Mixture):
        found.append(
            "a meaningful mean: deterministic asks about the weighted mean, which is no component of the mixture"
        )
    if model.posterior is not None and model.likelihood is None:
        found.append("the likelihood: decision needs --likelihood")
    return tuple(found)


def _names(proto: ModelProto) -> list[str]:
    names = [tensor.name for tensor in proto.graph.initializer]
    return [*names, *(name for node in proto.graph.node for name in node.output)]


def _library(names: Iterable[str]) -> str:
    known = list(names)
    for library, patterns in _LIBRARIES:
        if all(any(re.search(pattern, name) for name in known) for pattern in patterns):
            return library
    return ""


def _carries(proto: ModelProto) -> str:
    if any(entry.key == KEY for entry in proto.metadata_props):
        return "a posterior beside the weights (format 1)"
    if is_stochastic(proto):
        return "a stochastic export: the weights are drawn by the graph"
    if any(tensor.name.endswith(("_variance", "_samples")) for tensor in proto.graph.initializer):
        return "tensors named like a posterior, without a manifest"
    return "no posterior"
