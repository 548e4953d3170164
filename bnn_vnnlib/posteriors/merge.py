"""A sample posterior as ONE deterministic network: its output is the posterior predictive."""

from __future__ import annotations

from typing import Literal

import numpy as np
from onnx import ModelProto

from bnn_vnnlib.errors import OptionError, PosteriorError, SoundnessError
from bnn_vnnlib.model import Model, Posterior, WeightSamples, model_from_proto, replay, sample
from bnn_vnnlib.network.families import family_of
from bnn_vnnlib.posteriors.blocks import End, merged_blocks
from bnn_vnnlib.posteriors.copies import merged_copies
from bnn_vnnlib.posteriors.layers import layers
from bnn_vnnlib.posteriors.parts import Parts
from bnn_vnnlib.posteriors.plain import drawn
from bnn_vnnlib.signature import Floats, Likelihood
from bnn_vnnlib.system.environment import plain_state

Form = Literal["auto", "blocks", "copies"]
Average = Literal["auto", "outputs", "probabilities"]
_POINTS, _TOLERANCE = 8, 1e-3


@plain_state()
def merge(
    parts: Parts, *, average: Average = "auto", form: Form = "auto", draws: int | None = None, seed: int = 0
) -> tuple[ModelProto, tuple[str, ...]]:
    """One plain network that computes the average over the samples.

    Parameters
    ----------
    average : what is averaged: "outputs" as the graph gives them, or "probabilities" (softmax for a categorical,
        sigmoid for a bernoulli likelihood); "auto" = what the decision query asks for
    form : "blocks" (a chain of wide layers), "copies" (any graph); "auto" = blocks where the network is a chain
    draws : for a Gaussian posterior, how many networks are drawn: the merged network is then an estimate

    Returns
    -------
    the network, and remarks; it was compared with the average of the single networks in onnxruntime at some points

    Raises
    ------
    PosteriorError : no posterior
    OptionError : a Gaussian without `draws`; `average` cannot be settled; blocks of a network that is no chain
    """
    posterior, notes = _samples(parts, draws, seed)
    end = _end(parts, average)
    chain = layers(parts.model.network, posterior) if form != "copies" else None
    signature = parts.model.network.signature
    shaped = len(signature.inputs) == len(signature.outputs) == 1
    inside = parts.model.network.softmax_axis is not None
    proto = None
    if chain is not None and shaped and (not inside or signature.outputs[0].shape == (1, signature.output_size)):
        proto = merged_blocks(chain, posterior, signature, "softmax" if inside else end)
    if proto is None and form == "blocks":
        raise OptionError("the network is no chain of layers with known activations; use --form copies")
    if proto is None:
        proto = merged_copies(_asked_about(parts), posterior, end, len(signature.outputs[0].shape) - 1)
    worst = _difference(parts, posterior, proto, end)
    return proto, (*notes, f"onnxruntime's output differs from the average of the networks by at most {worst:.1e}")


def _asked_about(parts: Parts) -> ModelProto:
    """The plain network without the outputs that the reader leaves out."""
    names = {variable.name for variable in parts.model.network.signature.outputs}
    proto = ModelProto()
    proto.CopyFrom(parts.plain)
    del proto.graph.output[:]
    proto.graph.output.extend(info for info in parts.plain.graph.output if info.name in names)
    return proto


def _samples(parts: Parts, draws: int | None, seed: int) -> tuple[WeightSamples, tuple[str, ...]]:
    posterior: Posterior | None = parts.posterior
    if posterior is None:
        raise PosteriorError("the model carries no posterior, so there is nothing to merge", path=parts.model.path)
    if isinstance(posterior, WeightSamples):
        if draws is not None:
            raise OptionError("the posterior is made of samples, all of which are merged: leave --n out")
        return posterior, ()
    if draws is None:
        message = f"the posterior is of family {family_of(posterior)}: say how many networks to draw (--n)"
        raise OptionError(f"{message}; the result is an estimate")
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = sample(parts.model.network, posterior, draws, generator)
    tensors = {name: values.numpy() for name, values in weights.items()}
    family = family_of(posterior)
    note = f"{draws} networks were drawn from a {family} posterior: the merged network is an estimate of the predictive"
    return WeightSamples(tensors, np.full(draws, 1 / draws)), (note,)


def _end(parts: Parts, average: Average) -> End:
    likelihood: Likelihood | None = parts.likelihood
    if average == "outputs" or parts.model.network.softmax_axis is not None:
        return "outputs"
    if likelihood is None:
        raise OptionError("the model does not say how its outputs are read: add --likelihood, or --average outputs")
    squashed: dict[str, End] = {"categorical": "softmax", "bernoulli": "sigmoid"}
    if likelihood not in squashed and average == "probabilities":
        raise OptionError(f"outputs of a {likelihood} likelihood are no logits; use --average outputs")
    return squashed.get(likelihood, "outputs")


def _difference(parts: Parts, posterior: WeightSamples, proto: ModelProto, end: End) -> float:
    """Largest difference to the average of the single networks, relative to max(1, |y|)."""
    x = np.random.default_rng(0).uniform(0, 1, (_POINTS, parts.model.network.signature.input_size))
    single = Parts(parts.plain, posterior, parts.likelihood, parts.model)
    expected = np.zeros(())
    for network, share in drawn(single, None):
        expected = expected + share * _squashed(replay(model_from_proto(network), x), end)
    found = replay(_readable(proto, parts.model), x)
    worst = float((np.abs(found - expected) / np.maximum(1, np.abs(expected))).max())
    if not worst <= _TOLERANCE:
        raise SoundnessError(f"the merged network differs from the average of the networks by {worst}")
    return worst


def _readable(proto: ModelProto, like: Model) -> Model:
    """The merged graph with the signature of the original (a Softmax inside is not for our reader)."""
    return Model(like.network, None, None, None, proto.SerializeToString())


def _squashed(y: Floats, end: End) -> Floats:
    from scipy.special import expit, softmax

    if end == "softmax":
        return np.asarray(softmax(y, axis=-1))
    return np.asarray(expit(y)) if end == "sigmoid" else y
