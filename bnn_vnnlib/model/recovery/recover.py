"""A stochastic export in, the posterior-mean network with its posterior out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import PosteriorError, naming
from bnn_vnnlib.model.attachment import attach
from bnn_vnnlib.model.attributes import array_of, holders, inlined, raw_attribute
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.folding import MOVES
from bnn_vnnlib.model.operators import FROZEN_NOISE
from bnn_vnnlib.model.recovery.draws import GraphDraws
from bnn_vnnlib.model.recovery.graph import (
    Flow,
    NotRecoverable,
    frozen,
    is_random,
    prune,
    refuse_activation_noise,
    refuse_unrecoverable,
)
from bnn_vnnlib.model.recovery.local import LocalNoise, correlated, local_noises, marginals, some_input
from bnn_vnnlib.model.stored import KEY, stored_posterior
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.system.environment import plain_state

_FOLLOWED = (*MOVES, "Identity", "Cast")


@dataclass(frozen=True, eq=False)
class Recovery:
    """What was recovered.

    Attributes
    ----------
    proto : the posterior-mean network with the posterior attached
    deviations : standard deviation by weight; the weight has the name of the value that was drawn
    notes : remarks for the user
    """

    proto: ModelProto
    deviations: dict[str, Floats]
    notes: tuple[str, ...]


def is_stochastic(proto: ModelProto) -> bool:
    """The graph draws random numbers (or holds those of one run), and carries no posterior beside it."""
    if any(entry.key == KEY for entry in proto.metadata_props):
        return False
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    buffers = any(tensor.name.endswith(FROZEN_NOISE) for tensor in proto.graph.initializer)
    if not buffers and not any(is_random(node) for node in nodes):
        return False  # nearly every file; the rest looks closer
    flow = Flow(inlined(proto))
    return bool(frozen(flow)) or any(is_random(node) for node in flow.nodes)


def recover_file(
    source: str | Path, target: str | Path, *, likelihood: str | None = None, frozen_noise: bool = False
) -> Recovery:
    """`recover` from file to file; `target` may end in .gz."""
    from bnn_vnnlib.model.reading import write_readable

    proto, found = read_proto(source)
    with naming(found):
        recovery = recover(proto, likelihood=likelihood, frozen_noise=frozen_noise)
    write_readable(recovery.proto, target)
    return recovery


@plain_state()
def recover(proto: ModelProto, *, likelihood: str | None = None, frozen_noise: bool = False) -> Recovery:
    """Read the posterior out of a graph that draws its weights.

    Where drawn values meet the input, they are evaluated as functions of the noise: each entry must be mean + sd * z
    with a z of its own (`local.marginals`). They become weights of the mean network. Local reparameterisation is
    undone first (`local.local_noises`). Both in float64; means are then kept in the file's own type.

    Parameters
    ----------
    likelihood : written into the file
    frozen_noise : take the noise buffers that BLiTZ left in the file for the standard normal noise that they hold

    Raises
    ------
    NotRecoverable : `kind` names what the export is instead; the message says what to do
    PosteriorError : the file carries a posterior already
    """
    if any(entry.key == KEY for entry in proto.metadata_props):
        raise PosteriorError("the model carries a posterior already; there is nothing to recover")
    if stored_posterior(proto)[0] is not None:
        message = "the graph draws weights, and beside it lie variances or samples of others (by name)"
        raise PosteriorError(f"{message}: one of the two would be lost; rename or remove those tensors")
    copy = ModelProto()
    copy.CopyFrom(inlined(proto))
    proto, notes = copy, without_random_outputs(copy)  # changed in place below
    flow = Flow(proto)
    if frozen_noise:
        notes += _released(proto, frozen(flow))
        flow = Flow(proto)
    refuse_unrecoverable(flow)
    if any(raw_attribute(node, "seed") is not None for node in flow.nodes if is_random(node)):
        notes.append("the random nodes have seeds, which say nothing about the posterior: taken as independent draws")
    variances = _without_local(proto, list(local_noises(flow)), notes)
    flow = Flow(proto)
    refuse_activation_noise(flow)
    variances |= _drawn(proto, flow)
    prune(proto.graph)
    uncertain = {name: variance for name, variance in variances.items() if variance.any()}
    if not uncertain:
        raise NotRecoverable("mean only", "the noise in the graph has no effect on any weight")
    attached = attach(proto, GaussianDiagonal(uncertain), likelihood=likelihood)
    deviations = {name: np.sqrt(variance) for name, variance in uncertain.items()}
    first = (
        f"the posterior was recovered from a stochastic export: {len(uncertain)} weight tensors, independent Gaussians"
    )
    return Recovery(attached, deviations, (first, *notes))


def without_random_outputs(proto: ModelProto) -> list[str]:
    """Drop, in place, outputs that are drawn without looking at the input (a divergence of sampled weights, say)."""
    flow = Flow(proto)
    kept = [info for info in proto.graph.output if info.name not in flow.drawn]
    if not kept:
        return []
    dropped = [info.name for info in proto.graph.output if info.name in flow.drawn]
    copies = [ValueInfoProto.FromString(info.SerializeToString()) for info in kept]
    del proto.graph.output[:]
    proto.graph.output.extend(copies)
    return [f"output {name} is random and depends on no input: left out" for name in dropped]


# drawn weights -------------------------------------------------------------------------------------------------------


def _drawn(proto: ModelProto, flow: Flow) -> dict[str, Floats]:
    """Turn drawn weights into initializers with their means, in place; returns their variances."""
    names = flow.frontier()
    if not names:
        return {}
    if set(names).intersection(flow.outputs):
        message = "an output of the network is random by itself, without any input"
        raise NotRecoverable("not evaluated", message, node=names[0])
    draws = GraphDraws(flow, names)
    found = marginals(draws)
    if found.shared.any():  # one noise behind several weights: perhaps they are copies or parts of one drawn tensor
        names = _roots(flow, names)
        draws = GraphDraws(flow, names)
        found = marginals(draws)
    if found.shared.any():
        raise correlated(", ".join(names), int(found.shared.sum()), len(found.mean))
    own_type = GraphDraws(flow, names, double=False).at_zero
    variances, start = {}, 0
    for name, mean, like in zip(names, draws.at_zero, own_type, strict=True):
        make_initializer(proto, name, np.asarray(mean).astype(like.dtype))
        slope = found.slope[start : start + mean.size].reshape(mean.shape)
        start += mean.size
        if like.dtype.kind == "f":
            variances[name] = slope**2
        elif slope.any():
            raise NotRecoverable("not gaussian", "a drawn value that is no floating-point number", node=name)
    return variances


def _roots(flow: Flow, names: Sequence[str]) -> list[str]:
    """The drawn values behind transpositions, slices, copies, ...: what moves entries can follow a posterior."""
    roots = []
    for name in names:
        node = flow.producer[name]
        while node.op_type in _FOLLOWED and node.input[0] in flow.drawn and not flow.drawn.intersection(node.input[1:]):
            name = node.input[0]
            node = flow.producer[name]
        roots.append(name)
    return list(dict.fromkeys(roots))


def make_initializer(proto: ModelProto, name: str, values: np.ndarray) -> None:
    """Replace the node that computes a value by the value."""
    for node in proto.graph.node:
        if name in node.output:
            node.output[list(node.output).index(name)] = ""
    kept = [node for node in proto.graph.node if any(node.output)]
    if len(kept) < len(proto.graph.node):
        copies = [NodeProto.FromString(node.SerializeToString()) for node in kept]
        del proto.graph.node[:]
        proto.graph.node.extend(copies)
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(values, order="C"), name))


# local reparameterisation --------------------------------------------------------------------------------------------


def _without_local(proto: ModelProto, layers: Sequence[LocalNoise], notes: list[str]) -> dict[str, Floats]:
    """Take the noise off the pre-activations, in place; returns the variances of weights and biases."""
    flow = Flow(proto)
    variances: dict[str, Floats] = {}
    for layer in layers:
        if layer.weight not in holders(proto):
            value = GraphDraws(flow, [layer.weight], double=False).at_zero[0]
            make_initializer(proto, layer.weight, value)
        variances[layer.weight] = layer.variance
        _without_noise(proto, layer, variances)
        if layer.stabiliser:
            notes.append(f"{layer.stabiliser:g} under the root of {layer.mean} is taken as a guard against sqrt(0)")
    if layers:
        notes.append(f"local reparameterisation was undone in {len(layers)} layers")
    return variances


def _without_noise(proto: ModelProto, layer: LocalNoise, variances: dict[str, Floats]) -> None:
    """The sum of mean and noise becomes the mean, plus a bias of mean 0 where one is random."""
    total = next(node for node in proto.graph.node if node.output[:1] == layer.total.output[:1])
    del total.input[:], total.attribute[:]
    total.input.append(layer.mean)
    if layer.bias_variance is None and not layer.axes:
        total.op_type = "Identity"
        return
    spread = np.zeros(()) if layer.bias_variance is None else layer.bias_variance
    mean = GraphDraws(Flow(proto), [layer.mean], feeds=some_input(Flow(proto))).at_zero[0]
    spread = spread.reshape((1,) * (mean.ndim + layer.axes - spread.ndim) + spread.shape)
    bias = f"{total.output[0]}.bias"
    element = array_of(holders(proto)[layer.weight]).dtype
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(spread.shape, element), bias))
    total.input.append(bias)
    total.op_type = "Add"
    if layer.bias_variance is not None:
        variances[bias] = spread


# frozen noise --------------------------------------------------------------------------------------------------------


def _released(proto: ModelProto, names: Sequence[str]) -> list[str]:
    """Put a random node in front of every frozen buffer, in place."""
    fresh = {name: f"{name}.drawn" for name in names}
    for node in proto.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = fresh.get(name, name)
    nodes = [helper.make_node("RandomNormalLike", [name], [drawn]) for name, drawn in fresh.items()]
    nodes += [NodeProto.FromString(node.SerializeToString()) for node in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return [f"{', '.join(names)}: frozen noise, taken for standard normal as asked"] if names else []
