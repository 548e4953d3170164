"""Which of a library's arrays belongs to which tensor of the network, and how its axes lie there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from numpy.typing import NDArray

from bnn_vnnlib.errors import PosteriorError

Shape = tuple[int, ...]
# input first, as JAX, TensorFlow and most hand-written models have it, to torch's and ONNX's output first
_INPUT_FIRST = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}


@dataclass(frozen=True)
class Place:
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
) -> dict[str, Place]:
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
    found: dict[str, Place] = {}
    for array, shape in arrays.items():
        tensor = names.get(array, array)
        if tensor not in tensors:
            here = ", ".join(f"{name} {tensors[name]}" for name in tensors)
            raise PosteriorError(
                f"belongs to no tensor of the network, which has {here}. Give names={{{array!r}: tensor}}, or ignore "
                f"it with ignore=[{array!r}]",
                node=array,
            )
        twin = next((other for other, place in found.items() if place.tensor == tensor), None)
        if twin is not None:
            raise PosteriorError(f"and {twin} both belong to {tensor}", node=array)
        wanted = transposed if transposed is None or isinstance(transposed, bool) else array in transposed
        found[array] = _place(array, shape, tensor, tensors[tensor], wanted)
    return found


def _place(array: str, shape: Shape, tensor: str, target: Shape, transposed: bool | None) -> Place:
    lengths = [tuple(length for length in sizes if length != 1) for sizes in (shape, target)]
    if len(lengths[0]) < 2 and lengths[0] == lengths[1]:  # a vector, however many axes of length 1 it has
        return Place(tensor, target, ())
    order = _INPUT_FIRST.get(len(shape), ())
    turned = tuple(shape[axis] for axis in order)
    if transposed is None and shape == turned == target:
        raise PosteriorError(
            f"has shape {shape}, which fits {tensor} with its input axis first and with its output axis first: say "
            f"transposed=[{array!r}] (input first, as in x @ W) or transposed=False (output first, as torch has it)",
            node=array,
        )
    if order and turned == target and transposed is not False:
        return Place(tensor, target, order)
    if shape == target and not transposed:
        return Place(tensor, target, tuple(range(len(shape))))
    way = {None: "", True: " with its input axis first", False: " as it is"}[transposed]
    raise PosteriorError(f"has shape {shape}, which does not fit {tensor} of shape {target}{way}", node=array)


def _refuse_unknown(what: str, given: Collection[str], arrays: Collection[str]) -> None:
    for name in given:
        if name not in arrays:
            raise PosteriorError(f"{what} speaks of {name!r}, which is not among {', '.join(arrays)}")
