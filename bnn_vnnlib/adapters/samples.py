"""Weight samples from anywhere: MCMC (Pyro, NumPyro, BlackJAX), ensembles, SWAG, draws of a Laplace approximation.

1. Which of a library's arrays belongs to which tensor of the network, and how its axes lie there.
2. `from_samples`, `from_ensemble`, and what other adapters need of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from bnn_vnnlib.adapters.adapted import Adapted, adapt, array, check_samples
from bnn_vnnlib.adapters.export import evaluating, first, plain_export
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, PosteriorError, names_arguments
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.model.attributes import holders
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.stored import float_shapes
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import Tensor, nn


# 1. Places

Shape = tuple[int, ...]
# input first, as JAX, TensorFlow and most hand-written models have it, to torch's and ONNX's output first
_INPUT_FIRST = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}


@dataclass(frozen=True)
class _Place:
    """A tensor of the network, and how an array comes to lie in it.

    Attributes
    ----------
    tensor, shape : the tensor's name and shape
    axes : the array's axes in the tensor's order; () where the order says nothing (vectors)
    """

    tensor: str
    shape: Shape
    axes: Shape

    def put(self, values: NDArray, lead: int = 0) -> NDArray:
        """Values (*lead, *shape of the array) in the tensor's layout (*lead, *shape)."""
        front = values.shape[:lead]
        if self.axes:
            values = values.transpose(*range(lead), *(lead + axis for axis in self.axes))
        return values.reshape(*front, *self.shape)


def places(
    tensors: Mapping[str, Shape],
    arrays: Mapping[str, Shape],
    names: Mapping[str, str] | None,
    transposed: bool | Collection[str] | None,
) -> dict[str, _Place]:
    """The place of every array.

    Parameters
    ----------
    tensors, arrays : shapes by name: the network's, the library's
    names : array -> tensor; arrays that are left out have the tensor's own name
    transposed : whether arrays have their input axis first, (in, out) or (height, width, in, out): True, False, or the
        names of those that have; None = told from the shapes

    Raises
    ------
    PosteriorError : a name that is not there, two arrays for one tensor, a shape that does not fit, or one that fits
        both ways (a square matrix); says what to give
    """
    names = names or {}
    _refuse_unknown("names", names, arrays)
    if not isinstance(transposed, bool) and transposed is not None:
        _refuse_unknown("transposed", transposed, arrays)
    found: dict[str, _Place] = {}
    for name, shape in arrays.items():
        tensor = names.get(name, name)
        if tensor not in tensors:
            here = ", ".join(f"{one} {size}" for one, size in tensors.items())
            raise PosteriorError(
                f"belongs to no tensor of the network, which has {here}. Give names={{{name!r}: tensor}}, or ignore "
                f"it with ignore=[{name!r}]",
                node=name,
            )
        twin = next((other for other, place in found.items() if place.tensor == tensor), None)
        if twin is not None:
            raise PosteriorError(f"and {twin} both belong to {tensor}", node=name)
        wanted = transposed if transposed is None or isinstance(transposed, bool) else name in transposed
        found[name] = _place(name, shape, tensor, tensors[tensor], wanted)
    return found


def _place(array: str, shape: Shape, tensor: str, target: Shape, transposed: bool | None) -> _Place:
    """Which tensor an array of samples belongs to, and the order of its axes there; PosteriorError where they do not
    fit.
    """
    lengths = [tuple(length for length in sizes if length != 1) for sizes in (shape, target)]
    if len(lengths[0]) < 2 and lengths[0] == lengths[1]:  # a vector, however many axes of length 1 it has
        return _Place(tensor, target, ())
    order = _INPUT_FIRST.get(len(shape), ())
    turned = tuple(shape[axis] for axis in order)
    if transposed is None and shape == turned == target:
        raise PosteriorError(
            f"has shape {shape}, which fits {tensor} with its input axis first and with its output axis first: say "
            f"transposed=[{array!r}] (input first, as in x @ W) or transposed=False (output first, as torch has it)",
            node=array,
        )
    if order and turned == target and transposed is not False:
        return _Place(tensor, target, order)
    if shape == target and not transposed:
        return _Place(tensor, target, tuple(range(len(shape))))
    way = {None: "", True: " with its input axis first", False: " as it is"}[transposed]
    raise PosteriorError(f"has shape {shape}, which does not fit {tensor} of shape {target}{way}", node=array)


def _refuse_unknown(what: str, given: Collection[str], arrays: Collection[str]) -> None:
    for name in given:
        if name not in arrays:
            raise PosteriorError(f"{what} speaks of {name!r}, which is not among {', '.join(arrays)}")


# 2. Samples


@names_arguments
@plain_state(device=False)
def from_samples(
    net: str | Path | ModelProto | nn.Module,
    samples: Mapping[str, ArrayLike],
    probabilities: ArrayLike | None = None,
    *,
    likelihood: str | None,
    names: Mapping[str, str] | None = None,
    transposed: bool | Collection[str] | None = None,
    ignore: Collection[str] = (),
    x: ArrayLike | None = None,
    outputs: ArrayLike | None = None,
) -> Adapted:
    """A network with a posterior of weight samples.

    Parameters
    ----------
    net : the architecture: an ONNX file or model, or a torch module (then `x` is needed). Its weights do not matter,
        but those that `samples` leaves out stay as they are
    samples : {name: (S, *shape)}, S draws of each array; NumPy, torch or JAX. Chains are joined first: (C, S, ...) is
        refused, because it fits no tensor
    probabilities : (S,), sum 1; None = all 1/S
    names : {name in samples: tensor of the network} where they differ
    transposed : which arrays have their input axis first, as in x @ W: True, False, their names, or None: told from the
        shapes, and refused where both fit
    ignore : arrays that are no weights, such as the noise of a regression
    x, outputs : inputs (N, ...) and the library's own outputs (S, N, m) there, which are compared (`check_samples`)

    Raises
    ------
    PosteriorError : names, shapes or probabilities do not fit; the outputs differ
    OptionError : a torch module without x, outputs without x
    """
    proto = network_of(net, x)
    kept = without(samples, ignore)
    count = _count(kept)
    placed = places(shapes_of(proto), {name: values.shape[1:] for name, values in kept.items()}, names, transposed)
    stacks = {place.tensor: place.put(kept[name], 1) for name, place in placed.items()}
    weights = np.full(count, 1 / count) if probabilities is None else array(probabilities)
    notes = untouched(proto, stacks)
    return adapt(proto, WeightSamples(stacks, weights), likelihood, notes).against(check_samples, x, outputs)


@names_arguments
@plain_state(device=False)
def from_ensemble(
    modules: Sequence[nn.Module], x: Tensor, probabilities: ArrayLike | None = None, *, likelihood: str | None
) -> Adapted:
    """Torch modules of one architecture (a deep ensemble) as a posterior of weight samples.

    Each module's outputs at `x` (N, ...), in evaluation mode, are compared with those of its sample.

    Raises
    ------
    PosteriorError : fewer than two modules, other parameters, running statistics that differ; names the member
    """
    import torch

    if len(modules) < 2:
        raise PosteriorError("an ensemble needs two modules or more")
    parts = [dict(module.named_parameters()) for module in modules]
    for index, (module, part) in enumerate(zip(modules, parts, strict=True)):
        if {name: p.shape for name, p in part.items()} != {name: p.shape for name, p in parts[0].items()}:
            raise PosteriorError(f"member {index} has other parameters than member 0")
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point() and not torch.equal(buffer, modules[0].get_buffer(name)):
                raise PosteriorError(
                    f"differs between member 0 and member {index}, but a statistic carries no posterior: fold the "
                    "normalisation into the layer before it (torch.nn.utils.fuse_conv_bn_eval)",
                    node=name,
                )
    outputs = []
    for module in modules:
        with evaluating(module), torch.no_grad():
            outputs.append(array(first(module(x))))
    samples = {name: np.stack([array(part[name]) for part in parts]) for name in parts[0]}
    different = {name: stack for name, stack in samples.items() if (stack != stack[0]).any()}
    if not different:
        raise PosteriorError("the modules have the same weights")
    return from_samples(
        modules[0], different, probabilities, likelihood=likelihood, transposed=False, x=x, outputs=np.stack(outputs)
    )


def network_of(net: str | Path | ModelProto | nn.Module, x: ArrayLike | None) -> ModelProto:
    """The architecture as an ONNX model; a torch module is exported for the shape of `x`."""
    if isinstance(net, ModelProto):
        return net
    if isinstance(net, str | Path):
        return read_proto(net)[0]
    if x is None:
        raise OptionError("a torch module is exported for an example: give inputs x of shape (N, ...)")
    import torch

    parameter = next(net.parameters(), None)
    element = torch.get_default_dtype() if parameter is None else parameter.dtype
    return plain_export(net, torch.tensor(array(x), dtype=element))


def shapes_of(proto: ModelProto) -> dict[str, Shape]:
    """Shapes of the tensors that could carry a posterior."""
    return float_shapes(holders(proto))


def without(arrays: Mapping[str, ArrayLike], ignore: Collection[str]) -> dict[str, Floats]:
    """The arrays that are weights, in float64.

    Raises
    ------
    PosteriorError : a name to ignore that is not there, or none left
    """
    for name in ignore:
        if name not in arrays:
            raise PosteriorError(f"ignore speaks of {name!r}, which is not among {', '.join(arrays)}")
    kept = {name: array(values) for name, values in arrays.items() if name not in ignore}
    if not kept:
        raise PosteriorError("no array is left that could belong to a weight")
    return kept


def untouched(proto: ModelProto, carried: Collection[str]) -> tuple[str, ...]:
    """A remark on the weights that stay as they are in the network."""
    fixed = [name for name in shapes_of(proto) if name not in carried]
    return (f"{', '.join(fixed)}: as in the network, without posterior",) if fixed else ()


def _count(samples: Mapping[str, Floats]) -> int:
    counts = {name: values.shape[0] if values.ndim else 0 for name, values in samples.items()}
    if len(set(counts.values())) != 1 or not next(iter(counts.values())):
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise PosteriorError(f"every array needs the same number of samples, along its first axis; found {listed}")
    return next(iter(counts.values()))
