"""Two networks as one: the product network, and the same in differences.

The product of f and g has the inputs (x_f, x_g) and the outputs (f(x_f), g(x_g)). What it means for weights is the
coupling of the two draws:

- "same": g is f (`equal-to`); both copies read the same random tensors, so that one draw serves both.
- "independent": each has its own random tensors.
- "shared": all random tensors agree in name, shape and law; they are drawn once.
- "noise": tensors of equal name and shape use the same standard normal z, w_f = m_f + s_f z and w_g = m_g + s_g z. The
  weights of the product are the means, and z a source of its own with mean 0 and variance 1, which nodes read with the
  factors s_f and s_g. These are rounded; whoever bounds a network takes them as magnitudes that are rounded up
  (`bounds.weights`), and no bound becomes tighter by a larger one.

In differences the inputs are (x_f, d) with d = x_f - x_g, and every node is there three times, with the values h_f, h_g
and h_f - h_g. The third one follows from what its inputs are:

    linear maps    W_f h_f - W_g h_g = W_g (h_f - h_g) + (W_f - W_g) h_f, where equal weights leave W (h_f - h_g)
    biases         b_f - b_g, so that equal ones drop out
    activations    `Gap`: f(z_f) - f(z_g) lies between the least and the largest slope times the difference
    products       x_f y_f - x_g y_g = (x_f - x_g) y_f + x_g (y_f - y_g)
    all other      what moves elements moves differences alike; else h_f - h_g itself

These are identities over the reals, for all weights: bounds of the graph are bounds of both networks and of their
differences. W_f - W_g is computed in float64 and its rounding error is the slack of the parameter; a random W is its
mean and a random tensor of mean 0, so that what is common to both means is subtracted once. The outputs are f, g and
f - g; the inputs x_g = x_f - d are kept in the range that the property gives them (`Known`).

Where all maps of differences are linear (two copies of one network), (f - g) / t is the same graph with d / t in the
place of d, for any t > 0, and slopes of activations anywhere between z_f and z_g. These are the quotients: what is
bounded for all d / t on the faces of a box and all t in (0, 1] is bounded for all d in the box but 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
import torch

from bnn_vnnlib.arrays import Flags, Floats
from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import entries_of, family_of, gaussian_of, names_of, stated, tensors_of
from bnn_vnnlib.network.network import (
    Component,
    DropoutMasks,
    Gaussian,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    Mixture,
    Model,
    ModelPair,
    Network,
    Posterior,
    Sampler,
    WeightSamples,
)
from bnn_vnnlib.network.nodes import (
    GAPS,
    Activation,
    Broadcast,
    Concat,
    Constant,
    Conv,
    Gap,
    Input,
    Known,
    Linear,
    Node,
    Param,
    Product,
    Reshape,
    Scale,
    Select,
    Shift,
    Sum,
    Transpose,
    WeightedMap,
    params_of,
)
from bnn_vnnlib.signature import Signature, joined

MAX_JOINT = 2**26
"""Numbers of all pairs of weight samples, at most."""

_MAX_CLASSES = 64
"""Classes of a Softmax that is written out in nodes, at most."""

_UNIT = 2.0**-53


# 1. Posteriors of both


def _joint(first: Posterior | None, second: Posterior | None, tensors: Mapping[str, Floats]) -> Posterior | None:
    """The posterior of two independent draws; their tensors have different names.

    Raises
    ------
    UnsupportedError : families that have no joint one here, by name
    """
    if first is None or second is None:
        return first or second
    match first, second:
        case GaussianDiagonal(), GaussianDiagonal():
            return GaussianDiagonal({**first.variances, **second.variances})
        case GaussianKron(), GaussianKron():
            return GaussianKron((*first.layers, *second.layers))
        case WeightSamples(), WeightSamples():
            return _all_pairs(first, second)
        case (Mixture(), _) | (_, Mixture()) if not any(isinstance(part, WeightSamples) for part in (first, second)):
            return _mixed(_as_mixture(first, tensors), _as_mixture(second, tensors), tensors)
        case GaussianFull(), GaussianFull():
            return GaussianFull(_blocks(first.factors, second.factors))
        case (
            GaussianDiagonal() | GaussianLowRank() | GaussianFull(),
            GaussianDiagonal() | GaussianLowRank() | GaussianFull(),
        ):
            one, other = _low_rank(first), _low_rank(second)
            return GaussianLowRank(_blocks(one.factors, other.factors), {**one.variances, **other.variances})
    names = " and ".join(family_of(part) for part in (first, second))
    raise UnsupportedError(
        f"two independent draws from posteriors of the families {names} are not supported: two of one family are"
    )


def _all_pairs(first: WeightSamples, second: WeightSamples) -> WeightSamples:
    """The joint samples of two independent networks: every sample of one with every sample of the other, probabilities
    p_i p_j.
    """
    counts = len(first.probabilities), len(second.probabilities)
    size = sum(values[0].size for part in (first, second) for values in part.stored.values())
    if math.prod(counts) * size > MAX_JOINT:
        raise UnsupportedError(
            f"two independent draws from {counts[0]} and {counts[1]} weight samples are {math.prod(counts)} pairs, "
            f"more than are kept ({MAX_JOINT:,} numbers): thin them, or say --coupling shared where one draw is meant"
        )
    stored = {name: np.repeat(values, counts[1], axis=0) for name, values in first.stored.items()}
    stored |= {name: np.concatenate([values] * counts[0]) for name, values in second.stored.items()}
    return WeightSamples(stored, np.outer(first.probabilities, second.probabilities).reshape(-1))


def _as_mixture(posterior: Posterior, tensors: Mapping[str, Floats]) -> Mixture:
    if isinstance(posterior, Mixture):
        return posterior
    means = {name: tensors[name] for name in names_of(posterior)}
    return Mixture((Component(means, cast("Gaussian", posterior)),), np.ones(1))


def _mixed(first: Mixture, second: Mixture, tensors: Mapping[str, Floats]) -> Mixture:
    parts = []
    for one, other in itertools.product(first.components, second.components):
        both = _joint(one.posterior, other.posterior, tensors)
        parts.append(Component({**one.means, **other.means}, cast("Gaussian", both)))
    return Mixture(tuple(parts), np.outer(first.probabilities, second.probabilities).reshape(-1))


def _low_rank(posterior: Gaussian) -> GaussianLowRank:
    match posterior:
        case GaussianLowRank():
            return posterior
        case GaussianDiagonal(variances=variances):
            return GaussianLowRank({name: np.zeros((1, *np.shape(v))) for name, v in variances.items()}, variances)
        case GaussianFull(factors=factors):
            return GaussianLowRank(factors, {name: np.zeros(np.shape(f)[1:]) for name, f in factors.items()})
    raise UnsupportedError(f"a posterior of family {family_of(posterior)} has no low rank")


def _blocks(first: Mapping[str, Floats], second: Mapping[str, Floats]) -> dict[str, Floats]:
    """Factors over the latents of both, one after the other."""
    ranks = len(next(iter(first.values()))), len(next(iter(second.values())))
    found = {name: np.concatenate([f, np.zeros((ranks[1], *f.shape[1:]))]) for name, f in first.items()}
    return found | {name: np.concatenate([np.zeros((ranks[0], *f.shape[1:])), f]) for name, f in second.items()}


def _renamed(posterior: Posterior | None, names: Mapping[str, str]) -> Posterior | None:
    """The posterior with other names of its tensors: old name -> new name."""
    match posterior:
        case None:
            return None
        case WeightSamples(stored=stored, probabilities=weights):
            return WeightSamples({names[name]: values for name, values in stored.items()}, weights)
        case Mixture(components=components, probabilities=weights):
            parts = [
                Component({names[name]: mean for name, mean in part.means.items()},
                          cast("Gaussian", _renamed(part.posterior, names)))
                for part in components
            ]  # fmt: skip
            return Mixture(tuple(parts), weights)
        case Sampler() | DropoutMasks():
            return stated(posterior)
        case _:
            entries = {
                names[name]: replace(entry, bias=None if entry.bias is None else names[entry.bias])
                for name, entry in entries_of(posterior).items()
            }
            return gaussian_of(family_of(posterior), entries)


# 2. Weights of both


@dataclass(frozen=True, eq=False)
class _Weights:
    """What the parameters of f and of g are in the joint network.

    Attributes
    ----------
    tensors : of the joint network
    posterior : of the joint network
    names : of f, of g: their source -> that of the joint network
    noises : of f, of g: source -> the source of mean 0 and the factor of what is added to it, where weights are taken
        apart into mean and noise
    """

    tensors: dict[str, Floats]
    posterior: Posterior | None
    names: tuple[dict[str, str], dict[str, str]]
    noises: tuple[dict[str, tuple[str, Floats]], dict[str, tuple[str, Floats]]]

    def terms(self, param: Param, side: int) -> list[Param]:
        """Parameters of the joint network that add up to one of f (side 0) or g (side 1): the mean first."""
        found = [replace(param, source=self.names[side][param.source])]
        if param.source in self.noises[side]:
            source, factor = self.noises[side][param.source]
            found.append(Param(source, param.index, param.factor * factor.reshape(-1)[param.index]))
        return found


def _weights(first: Model, second: Model, coupling: str, *, apart: bool) -> _Weights:
    """apart : random tensors that are not common to both become a mean and a noise of mean 0, where their law allows"""
    f, g = first.network, second.network
    random = set(names_of(first.posterior)), set(names_of(second.posterior))
    own = {name: _free(name, f.tensors) for name in g.tensors}
    match coupling:
        case "same":
            names = {name: name for name in f.tensors}
            return _Weights(dict(f.tensors), first.posterior, (names, names), ({}, {}))
        case "shared":
            _check_shared(first, second)
            own |= {name: name for name in random[0]}
        case "noise":
            _check_noise(first, second)
    tensors = {**f.tensors, **{own[name]: value for name, value in g.tensors.items()}}
    names = {name: name for name in f.tensors}
    if coupling == "shared":
        return _Weights(tensors, first.posterior, (names, own), ({}, {}))
    if coupling == "noise":
        return _common_noise(first, second, tensors, (names, own))
    other = _renamed(second.posterior, {name: own[name] for name in random[1]})
    if not apart or not all(part is None or isinstance(part, Gaussian) for part in (first.posterior, other)):
        return _Weights(tensors, _joint(first.posterior, other, tensors), (names, own), ({}, {}))
    noises: list[dict[str, tuple[str, Floats]]] = [{}, {}]
    parts: list[Posterior | None] = []
    for side, (model, law, mine) in enumerate(((first, first.posterior, names), (second, other, own))):
        known = names_of(law)
        fresh = {name: _free(f"{name} noise", tensors) for name in known}
        for name in names_of(model.posterior):
            source = fresh[mine[name]]
            tensors[source] = np.zeros_like(model.network.tensors[name])
            noises[side][name] = source, np.ones_like(tensors[source])
        parts.append(_renamed(law, fresh))
    return _Weights(tensors, _joint(parts[0], parts[1], tensors), (names, own), (noises[0], noises[1]))


def _common_noise(
    first: Model, second: Model, tensors: dict[str, Floats], names: tuple[dict[str, str], dict[str, str]]
) -> _Weights:
    """The weights of two networks as means plus common standard normal noise, of which each has its own factor."""
    laws = tuple(cast("GaussianDiagonal", model.posterior).variances if model.posterior else {} for model in
                 (first, second))  # fmt: skip
    noises: tuple[dict[str, tuple[str, Floats]], dict[str, tuple[str, Floats]]] = ({}, {})
    variances = {}
    for name in {**laws[0], **laws[1]}:
        shape = next(law[name].shape for law in laws if name in law)
        source = _free(f"{name} noise", tensors)
        tensors[source], variances[source] = np.zeros(shape), np.ones(shape)
        for side, law in enumerate(laws):
            if name in law:
                noises[side][name] = source, np.sqrt(law[name])
    return _Weights(tensors, GaussianDiagonal(variances) if variances else None, names, noises)


def _free(name: str, taken: Mapping[str, Floats]) -> str:
    """The name of a tensor that no other has."""
    while name in taken:
        name = f"{name}'"
    return name


def why_not_equal(first: Model, second: Model) -> str | None:
    """What tells two models apart, in words; None where graphs, weights and posteriors are the same."""
    if first is second:
        return None
    return "their graphs differ" if first.onnx_bytes != second.onnx_bytes else _other_law(first, second)


def _other_law(first: Model, second: Model) -> str | None:
    """In what two posteriors differ, in words; None where all random tensors agree in name, shape and law."""
    laws = [{} if model.posterior is None else tensors_of(model.posterior) for model in (first, second)]
    for model, law in zip((first, second), laws, strict=True):
        law.update({f"{name} mean": model.network.tensors[name] for name in names_of(model.posterior)})
    families = {None if model.posterior is None else family_of(model.posterior) for model in (first, second)}
    if len(families) > 1:
        return "the families of their posteriors differ"
    if odd := sorted(set(laws[0]) ^ set(laws[1])):
        return f"{odd[0]} belongs to one of them"
    return next((f"{name} differs" for name, law in laws[0].items() if not np.array_equal(law, laws[1][name])), None)


def _check_shared(first: Model, second: Model) -> None:
    """Refuse unless all random tensors agree in name, shape and law."""
    if what := _other_law(first, second):
        raise OptionError(
            f"coupling shared: one draw serves two networks whose random tensors agree in name, shape and law; {what}. "
            "Say --coupling independent, or noise for common standard normal numbers"
        )


def _check_noise(first: Model, second: Model) -> None:
    """Refuse unless both have independent Gaussian weights, of the same shape where they have the same name."""
    for model in (first, second):
        if not isinstance(model.posterior, GaussianDiagonal | None):
            family = family_of(model.posterior)
            message = f"coupling noise needs independent Gaussian weights, not a posterior of family {family}"
            raise UnsupportedError(message, path=model.path)
    for name in set(names_of(first.posterior)) & set(names_of(second.posterior)):
        shapes = [list(model.network.tensors[name].shape) for model in (first, second)]
        if shapes[0] != shapes[1]:
            raise OptionError(f"coupling noise: {name} has shape {shapes[0]} in one network, {shapes[1]} in the other")


# 3. The product


def side_by_side(first: Model, second: Model, coupling: str, *, same: bool = False, label: str = "second") -> Model:
    """Both networks side by side.

    Parameters
    ----------
    same : the second is the first (`equal-to`), with one draw
    label : of the second network, in front of the names of its nodes

    Raises
    ------
    OptionError, UnsupportedError : a coupling that the posteriors do not allow; a Softmax over too many classes
    """
    coupling = "same" if same else coupling
    weights = _weights(first, second, coupling, apart=False)
    graph = _Graph(weights)
    outputs: list[int] = []
    for side, model in enumerate((first, second)):
        places: list[int] = []
        shift = first.network.signature.input_size if side else 0
        for node in model.network.nodes:
            named = replace(node, name=f"{label}: {node.name}") if side else node
            places.append(graph.copied(named, [places[i] for i in node.inputs], side, shift))
        outputs += [places[position] for position in graph.with_softmax(model.network, places)]
    signature = joined(first.network.signature, second.network.signature)
    network = Network(signature, tuple(graph.nodes), tuple(outputs), weights.tensors)
    likelihood = first.likelihood if first.likelihood == second.likelihood else None
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    return Model(
        network, weights.posterior, likelihood, first.path, b"", notes, pair=ModelPair(first, second, coupling)
    )


def with_probabilities(joined: Model) -> Model:
    """The product with a Softmax, written out, behind the logits of each network that does not end in one.

    Raises
    ------
    UnsupportedError : a network with several outputs, or too many classes
    """
    if joined.pair is None:
        raise TypeError("a model of one network is no pair")
    sides = []
    for side in (joined.pair.first, joined.pair.second):
        network = side.network
        if len(network.outputs) > 1:
            raise UnsupportedError("class probabilities of a network with several outputs", path=side.path)
        if network.softmax_axis is None:
            axis = len(network.signature.outputs[0].shape) - 1
            side = replace(side, network=replace(network, softmax_axis=axis))
        sides.append(side)
    coupling = joined.pair.coupling
    return replace(side_by_side(sides[0], sides[1], coupling, same=coupling == "same"), likelihood=joined.likelihood)


@dataclass(eq=False)
class _Graph:
    """Nodes of the joint network as they are made."""

    weights: _Weights
    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> int:
        """Append a node, and its position."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def copied(self, node: Node, sources: Sequence[int], side: int, shift: int = 0) -> int:
        """A node of f or g over other inputs; random parameters that are taken apart give several nodes."""
        node = replace(node, inputs=tuple(sources))
        if isinstance(node, Input):
            return self.add(replace(node, start=node.start + shift))
        params = params_of(node)
        if not params:
            return self.add(node)
        return self.mapped(node, [(param, sources) for param in self.weights.terms(params[0], side)])

    def mapped(self, node: Node, terms: Sequence[tuple[Param, Sequence[int]]]) -> int:
        """The sum of a node with each of several parameters, over the inputs of each; biases follow each other."""
        if isinstance(node, Shift):
            (place,) = terms[0][1]
            for param, _ in terms:
                place = self.add(replace(node, bias=param, inputs=(place,)))
            return place
        places = []
        for param, inputs in terms:
            match node:
                case Constant():
                    places.append(self.add(replace(node, value=param)))
                case Linear() | Conv() | Scale():
                    places.append(self.add(replace(node, weight=param, inputs=tuple(inputs))))
                case _:
                    raise TypeError(f"{type(node).__name__} has no parameter")
        return self.summed(node, places, [1] * len(places))

    def summed(self, node: Node, places: Sequence[int], signs: Sequence[int]) -> int:
        """+- the nodes at these places, which have the shape of a node."""
        if len(places) == 1 and signs[0] > 0:
            return places[0]
        return self.add(Sum(node.name, tuple(places), node.shape, tuple(signs)))

    def with_softmax(self, network: Network, places: list[int]) -> list[int]:
        """Positions in `places` of a network's outputs, a final Softmax written out: p_i = 1 / sum_j exp(z_j - z_i).

        Rows that compare outputs of two networks do not mean the same before it.
        """
        if network.softmax_axis is None:
            return list(network.outputs)
        (last,) = network.outputs
        node = network.nodes[last]
        m = math.prod(node.shape)
        if m > _MAX_CLASSES:
            message = f"a Softmax over {m} classes in a pair of networks; at most {_MAX_CLASSES} are supported"
            raise UnsupportedError(message)
        place = places[last]
        unit = np.eye(m)
        pairs = self.constant((unit[None] - unit[:, None]).reshape(m * m, m), "softmax pairs")
        sums = self.constant(np.repeat(unit, m, axis=1), "softmax sums")
        name = f"{node.name} (Softmax)"
        flat = self.add(Reshape(name, (place,), (m,)))
        apart = self.add(Linear(name, (flat,), (m * m,), pairs, 0))
        raised = self.add(Activation(name, (apart,), (m * m,), "exp"))
        total = self.add(Linear(name, (raised,), (m,), sums, 0))
        share = self.add(Activation(name, (total,), (m,), "reciprocal"))
        places.append(self.add(Reshape(name, (share,), node.shape)))
        return [len(places) - 1]

    def constant(self, value: Floats, name: str) -> Param:
        """A parameter with these values."""
        tensors = self.weights.tensors
        if name not in tensors or not np.array_equal(tensors[name], value):
            name = _free(name, tensors)
            tensors[name] = value
        return Param(name, np.arange(value.size).reshape(value.shape), np.ones(()))


def may_change(joined: Model, inputs: Flags) -> Flags:
    """(m,) outputs of the first network that a path of weights other than 0 may connect with these inputs (n,).

    The paths are counted: by the same graph with weights 1 where the entry is not 0 or is random, and with sums in the
    place of everything that combines numbers. All is nonnegative, so that 0 means that there is none.
    """
    if joined.pair is None:
        raise TypeError("a model of one network is no pair")
    model = joined.pair.first
    network, law = model.network, model.posterior
    drawn = law.variances if isinstance(law, GaussianDiagonal) else dict.fromkeys(names_of(law), np.ones(()))
    none = np.zeros(())
    tensors = {name: 1.0 * ((value != 0) | (drawn.get(name, none) != 0)) for name, value in network.tensors.items()}
    nodes: list[Node] = []
    for node in network.nodes:
        ones = [replace(p, factor=np.ones(()), slack=None, index=p.index) for p in params_of(node)]
        sure = [tensors[p.source].reshape(-1)[p.index].all() or p.slack is None for p in params_of(node)]
        match node:
            case Linear() | Conv() | Scale() if all(sure):
                nodes.append(replace(node, weight=ones[0]))
            case Activation():
                nodes.append(replace(node, kind="leaky_relu", alpha=1.0))
            case Shift():
                nodes.append(Scale(node.name, node.inputs, node.shape, Param("one", np.zeros((), int), np.ones(()))))
            case Product() | Sum():
                nodes.append(Sum(node.name, node.inputs, node.shape, (1,) * len(node.inputs)))
            case Input() | Reshape() | Transpose() | Broadcast() | Concat() | Select():
                nodes.append(node)
            case _:
                return np.ones(network.signature.output_size, np.bool_)
    counting = replace(network, nodes=tuple(nodes), tensors=tensors | {"one": np.ones(1)}, softmax_axis=None)
    paths = evaluate(counting, torch.as_tensor(inputs[None].astype(np.float64)))[0].numpy()
    found: Flags = paths != 0
    return found if network.softmax_axis is None else np.full(len(found), found.any())


# 4. In differences


DifferenceForm = Literal["gaps", "copies", "quotients"]
"""How two networks in differences are built: with differences all the way (`gaps`), as copies that are subtracted at
the ends (`copies`), or as quotients of the differences (`quotients`).
"""


def in_differences(
    joined: Model, ranges: tuple[Floats, Floats], *, form: DifferenceForm = "gaps", label: str = "second"
) -> Model | None:
    """The networks of a product model in differences; None where their inputs or outputs have other sizes.

    Parameters
    ----------
    ranges : of the inputs x_g, arrays (n,); infinite ends say nothing
    form : `copies` takes the differences of the outputs alone, so that independent draws enter at one node each;
        `quotients` has a third input e: x_g = x_f - e with e = t d for a t in (0, 1], and differences divided by t. Its
        outputs are f, g and (f - g) / t. None where these are not linear in d, as of networks with other weights.
    """
    if joined.pair is None:
        raise TypeError("a model of one network has no differences")
    first, second = joined.pair.first, joined.pair.second
    f, g = first.network, second.network
    shapes = [[variable.shape for variable in (*net.signature.inputs, *net.signature.outputs)] for net in (f, g)]
    if shapes[0] != shapes[1]:
        return None
    weights = _weights(first, second, joined.pair.coupling, apart=form == "gaps")
    made = _Differences(_Graph(weights), f, g, label, ranges, form)
    outputs = made.outputs()
    if outputs is None:
        return None
    parts = ("difference", "part of the difference")[: 2 if form == "quotients" else 1]
    added = (replace(one, name=f"{one.name} {part}") for part in parts for one in f.signature.inputs)
    inputs = (*f.signature.inputs, *added)
    differences = tuple(replace(one, name=f"{one.name} difference") for one in f.signature.outputs)
    signature = Signature(inputs, (*f.signature.outputs, *g.signature.outputs, *differences))
    network = Network(signature, *_needed(made.graph.nodes, outputs), weights.tensors)
    return replace(joined, network=network, posterior=weights.posterior)


def _needed(nodes: Sequence[Node], outputs: Sequence[int]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """The nodes without those that no output needs, and the outputs among these."""
    used, stack = set[int](), list(outputs)
    while stack:
        place = stack.pop()
        if place not in used:
            used.add(place)
            stack.extend(nodes[place].inputs)
    number = {place: i for i, place in enumerate(sorted(used))}
    kept = tuple(replace(nodes[place], inputs=tuple(number[i] for i in nodes[place].inputs)) for place in number)
    return kept, tuple(number[place] for place in outputs)


@dataclass(eq=False)
class _Differences:
    """Walks both graphs at once; places (h_f, h_g, h_f - h_g) of the nodes that correspond to each other."""

    graph: _Graph
    f: Network
    g: Network
    label: str
    ranges: tuple[Floats, Floats]
    form: DifferenceForm
    linear: bool = True

    def outputs(self) -> list[int] | None:
        """Positions of the outputs of f, of g, and of their differences; None where there are no quotients."""
        alike = [_alike(*pair) for pair in itertools.zip_longest(self.f.nodes, self.g.nodes)]
        unlike = not all(alike) or self.f.outputs != self.g.outputs or self.f.softmax_axis != self.g.softmax_axis
        if self.form == "quotients" and (unlike or self.f.softmax_axis is not None):
            return None
        if unlike or self.form == "copies":
            return self._side_by_side()
        places: list[tuple[int, int, int]] = []
        for ours, theirs in zip(self.f.nodes, self.g.nodes, strict=True):
            places.append(self._node(ours, theirs, [places[i] for i in ours.inputs]))
        triples = [places[i] for i in self.f.outputs]
        if self.form == "quotients" and not self.linear:
            return None
        if self.f.softmax_axis is not None:
            one, other = ([triple[side] for triple in places] for side in (0, 1))
            (x,), (y,) = self.graph.with_softmax(self.f, one), self.graph.with_softmax(self.g, other)
            triples = [self._apart(self.graph.nodes[one[x]], one[x], other[y])]
        return [triple[k] for k in range(3) for triple in triples]

    def _side_by_side(self) -> list[int]:
        """Graphs that do not correspond: both copies, and the differences of their outputs."""
        ends: list[list[int]] = []
        inputs = {node.start: self._input(node) for node in self.f.nodes if isinstance(node, Input)}
        for side, network in enumerate((self.f, self.g)):
            places: list[int] = []
            for node in network.nodes:
                own = replace(node, name=f"{self.label}: {node.name}") if side else node
                if isinstance(node, Input):
                    places.append(inputs[node.start][side])
                else:
                    places.append(self.graph.copied(own, [places[i] for i in node.inputs], side))
            ends.append([places[position] for position in self.graph.with_softmax(network, places)])
        triples = [self._apart(self.graph.nodes[x], x, y) for x, y in zip(*ends, strict=True)]
        return [triple[k] for k in range(3) for triple in triples]

    def _input(self, node: Input) -> tuple[int, int, int]:
        size, n = math.prod(node.shape), self.f.signature.input_size
        x = self.graph.add(node)
        d = self.graph.add(replace(node, start=node.start + n))
        part = d if self.form != "quotients" else self.graph.add(replace(node, start=node.start + 2 * n))
        below = self.graph.summed(node, [x, part], [1, -1])
        lower, upper = (end[node.start : node.start + size].reshape(node.shape) for end in self.ranges)
        if np.isfinite(lower).any() or np.isfinite(upper).any():
            below = self.graph.add(Known(f"{self.label}: {node.name}", (below,), node.shape, lower, upper))
        return x, below, d

    def _apart(self, node: Node, x: int, y: int) -> tuple[int, int, int]:
        """Positions of both copies and of their difference, which is made by subtracting them."""
        self.linear = False
        return x, y, self.graph.summed(node, [x, y], [1, -1])

    def _node(self, ours: Node, theirs: Node, sources: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
        """Positions of a node in both copies and of their difference."""
        if isinstance(ours, Input):
            return self._input(ours)
        named = replace(theirs, name=f"{self.label}: {theirs.name}")
        x = self.graph.copied(ours, [source[0] for source in sources], 0)
        y = self.graph.copied(named, [source[1] for source in sources], 1)
        gaps = [source[2] for source in sources]
        match ours:
            case Linear() | Conv() | Scale():
                return x, y, self._mapped(ours, theirs, sources[0])
            case Shift():
                return x, y, self._shifted(ours, theirs, gaps[0])
            case Activation() if ours.kind in GAPS:
                quotient = self.form == "quotients"
                inputs = sources[0] if quotient else (*sources[0], x, y)
                return x, y, self.graph.add(Gap(ours.name, inputs, ours.shape, ours.kind, ours.alpha, quotient))
            case Product():
                (_, one, da), (other, _, db) = sources
                parts = [self.graph.add(replace(ours, inputs=pair)) for pair in ((da, other), (one, db))]
                return x, y, self.graph.summed(ours, parts, [1, 1])
            case Sum() | Reshape() | Transpose() | Broadcast() | Concat() | Select():
                return x, y, self.graph.add(replace(ours, inputs=tuple(gaps)))
            case Constant() if self._equal(ours, theirs):
                zero = self.graph.constant(np.zeros(ours.shape), "zero")
                return x, y, self.graph.add(replace(ours, value=zero))
            case _:
                return self._apart(ours, x, y)

    def _mapped(self, ours: WeightedMap, theirs: Node, source: tuple[int, int, int]) -> int:
        """W_g d + (W_f - W_g) h_f, with the noise of both where weights are taken apart."""
        mine, other = self._terms(ours, theirs)
        x, y, d = source
        if self._equal(ours, theirs):
            return self.graph.mapped(ours, [(mine[0], [d])])
        self.linear = False
        if not self._apart_from_means(mine, other):
            nodes = [self.graph.mapped(ours, [(mine[0], [x])]), self.graph.mapped(ours, [(other[0], [y])])]
            return self.graph.summed(ours, nodes, [1, -1])
        terms = [(other[0], [d])]
        mean = self._minus(mine[0], other[0])
        terms += [] if mean is None else [(mean, [x])]
        common = [one for one in mine[1:] if any(one.source == two.source for two in other[1:])]
        if common:  # one z with two factors
            terms += [(other[1], [d])]
            noise = self._less(mine[1], other[1])
            terms += [] if noise is None else [(noise, [x])]
        else:
            terms += [(one, [x]) for one in mine[1:]] + [(_negative(two), [y]) for two in other[1:]]
        return self.graph.mapped(ours, terms)

    def _shifted(self, ours: Shift, theirs: Node, d: int) -> int:
        """Position of the difference of two biases added to a difference at position d."""
        mine, other = self._terms(ours, theirs)
        if self._equal(ours, theirs):
            return d
        self.linear = False
        if not self._apart_from_means(mine, other):
            return self.graph.mapped(ours, [(mine[0], [d]), (_negative(other[0]), [d])])
        mean = self._minus(mine[0], other[0])
        terms = [] if mean is None else [(mean, [d])]
        common = [one for one in mine[1:] if any(one.source == two.source for two in other[1:])]
        if common:
            noise = self._less(mine[1], other[1])
            terms += [] if noise is None else [(noise, [d])]
        else:
            terms += [(one, [d]) for one in (*mine[1:], *map(_negative, other[1:]))]
        return self.graph.mapped(ours, terms) if terms else d

    def _terms(self, ours: Node, theirs: Node) -> tuple[list[Param], list[Param]]:
        """What the parameters of two nodes consist of."""
        return self.graph.weights.terms(params_of(ours)[0], 0), self.graph.weights.terms(params_of(theirs)[0], 1)

    def _equal(self, ours: Node, theirs: Node) -> bool:
        """Whether the parameters of two nodes are one and the same."""
        mine, other = self._terms(ours, theirs)
        return len(mine) == len(other) == 1 and _same(mine[0], other[0])

    def _apart_from_means(self, mine: Sequence[Param], other: Sequence[Param]) -> bool:
        """The first terms are deterministic, so that they may be subtracted from each other."""
        random = names_of(self.graph.weights.posterior)
        return mine[0].source not in random and other[0].source not in random

    def _minus(self, one: Param, other: Param) -> Param | None:
        """The difference of two deterministic parameters; None where it is exactly 0.

        The values are products of an entry and a factor, each rounded once unless the factor is a sign, and the
        difference is rounded once more; what that may cost is the slack.
        """
        tensors = self.graph.weights.tensors
        values, slack = [], np.zeros(one.shape)
        for param in (one, other):
            value = tensors[param.source].reshape(-1)[param.index] * param.factor
            rounded = 0.0 if np.all(np.abs(param.factor) == 1) else _UNIT * np.abs(value) + np.finfo(np.float64).tiny
            slack = slack + rounded + (0.0 if param.slack is None else param.slack)
            values.append(value)
        found = values[0] - values[1]
        back = found - values[0]
        slack = slack + np.abs((values[0] - (found - back)) - (values[1] + back))  # exactly what was lost (Knuth)
        if not found.any() and not slack.any():
            return None
        name = _free("difference", tensors)
        tensors[name] = found
        index = np.arange(found.size).reshape(found.shape)
        return Param(name, index, np.ones(()), slack * (1 + 8 * _UNIT) if slack.any() else None)

    def _less(self, one: Param, other: Param) -> Param | None:
        """A common z with the difference of two factors, its magnitude rounded up; None where both are equal."""
        factors = [np.broadcast_to(param.factor, param.shape) for param in (one, other)]
        found = factors[0] - factors[1]
        if not found.any():
            return None
        paid = 4 * _UNIT * (np.abs(factors[0]) + np.abs(factors[1]))
        return Param(one.source, one.index, found + np.where(found < 0, -paid, paid))


def _same(one: Param, other: Param) -> bool:
    """Whether both are the same entries of the same tensor with the same factors: one number, even where it is known up
    to a slack.
    """
    alike = one.source == other.source and np.array_equal(one.index, other.index)
    slacks = [np.zeros(()) if param.slack is None else param.slack for param in (one, other)]
    return alike and np.array_equal(one.factor, other.factor) and np.array_equal(slacks[0], slacks[1])


def _negative(param: Param) -> Param:
    return replace(param, factor=-param.factor)


def _alike(one: Node | None, other: Node | None) -> bool:
    """Whether two nodes do the same to inputs at the same positions, whatever their weights."""
    if one is None or other is None or type(one) is not type(other):
        return False
    ours, theirs = vars(one), vars(other)
    return all(
        ours[key].shape == theirs[key].shape if isinstance(ours[key], Param) else np.array_equal(ours[key], theirs[key])
        for key in ours
        if key != "name" and key in theirs and not key.startswith("_") and key not in ("whole", "copies")
    )
