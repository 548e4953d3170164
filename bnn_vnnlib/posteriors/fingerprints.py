"""Where do weights go when another tool rewrites the graph? Found by marking them.

Every entry of the weights is replaced by a number that occurs once. The tool runs on the marked network; each entry
that it only moved (transposed, cut, joined, renamed) is found again by its number, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.posteriors.parts import with_values
from bnn_vnnlib.signature import Floats

Places = NDArray[np.int64]

_LOW, _HIGH = 2.0**-6, 2.0**6
"""Marks lie between: far from 0, 1 (exactly) and overflow, of either sign."""


class Fingerprints:
    """Marks for some tensors of a model.

    Parameters
    ----------
    names : the tensors to mark

    Attributes
    ----------
    marked : the model with marks for weights
    spans : name -> (start, shape): the entries of a tensor are `start`, `start` + 1, ... among all marks

    Raises
    ------
    UnsupportedError : too many entries for the tensors' type (float16 has few numbers)
    """

    def __init__(self, proto: ModelProto, names: Sequence[str], seed: int = 0) -> None:
        tensors = {name: array_of(tensor) for name, tensor in holders(proto).items()}
        self.spans: dict[str, tuple[int, tuple[int, ...]]] = {}
        start = 0
        for name in names:
            self.spans[name] = (start, tensors[name].shape)
            start += tensors[name].size
        half = any(tensors[name].dtype == np.float16 for name in names)
        taken = [np.unique(a.astype(np.float64)) for a in tensors.values() if a.dtype.kind == "f"]
        marks = _marks(start, np.dtype(np.float16 if half else np.float32), seed, np.concatenate([np.zeros(1), *taken]))
        self._order = np.argsort(marks)
        self._sorted = marks[self._order]
        self.size = start
        self.marked = with_values(proto, self.cut(marks))

    def cut(self, vector: Floats) -> dict[str, Floats]:
        """One entry for every mark (size,), as tensors by name."""
        return {
            name: vector[start : start + math.prod(shape)].reshape(shape) for name, (start, shape) in self.spans.items()
        }

    def joined(self, tensors: Mapping[str, NDArray]) -> Floats:
        """The opposite of `cut`; tensors that are not marked are left out."""
        return np.concatenate(
            [np.zeros(0), *(np.asarray(tensors[name], np.float64).reshape(-1) for name in self.spans)]
        )

    def locate(self, array: NDArray) -> Places:
        """Which mark every entry of an array is; -1 for none."""
        values = np.asarray(array, np.float64)
        if not self.size:
            return np.full(values.shape, -1, np.int64)
        near = np.minimum(np.searchsorted(self._sorted, values), self.size - 1)
        found: Places = np.where(self._sorted[near] == values, self._order[near], -1)
        return found


def _marks(count: int, element: np.dtype, seed: int, taken: Floats) -> Floats:
    """Distinct numbers of a type, none of which is taken already."""
    unsigned = np.dtype(f"u{element.itemsize}")
    low, high = (int(np.array(end, element).view(unsigned)) for end in (_LOW, _HIGH))
    step = (high - low) // max(2 * count, 1)
    if step < 2:
        raise UnsupportedError(f"{count} weights are more than {element} can tell apart; store the network in float32")
    generator = np.random.default_rng(seed)
    slots = generator.permutation(2 * count) * step + low  # twice as many as needed: taken ones are left out
    values = (slots + generator.integers(1, step, slots.size)).astype(unsigned).view(element).astype(np.float64)
    values *= generator.choice([-1.0, 1.0], values.size)
    free = values[~np.isin(values, taken)]
    return free[:count]
