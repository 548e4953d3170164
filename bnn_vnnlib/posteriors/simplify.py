"""Clean-ups by other tools, under which the posterior stays with its weights.

1. The tools; each is imported when it is asked for.
2. Where do weights go when a tool rewrites the graph? Every entry is replaced by a number that occurs once, and the
   tool runs on the marked network; each entry that it only moved (transposed, cut, joined, renamed) is found again by
   its number, bit for bit.
3. The posterior in the layout of the tensors to which its entries have moved.
4. `simplified`: all of it, checked in onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import InputError, ModelError, OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    Mixture,
    Posterior,
    WeightSamples,
    attach,
    model_from_proto,
)
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.files import serialised
from bnn_vnnlib.model.replay import session_of
from bnn_vnnlib.network.families import names_of, stated
from bnn_vnnlib.network.network import Gaussian
from bnn_vnnlib.posteriors.parts import RawParts, with_values
from bnn_vnnlib.system.environment import plain_state

# 1. Tools

Simplifier = Literal["onnxruntime", "onnxsim", "onnxslim", "onnxoptimizer"]
_FUSIONS = ["ConvBNFusion", "ConvMulFusion", "ConvAddFusion", "GemmSumFusion", "MatMulBNFusion", "PadFusion"]
"""onnxruntime's rewrites that compute with weights."""


def cleaned_up(tool: Simplifier, proto: ModelProto, fuse: bool) -> ModelProto:
    """The network after the tool's clean-up, `fuse` or not its fusions of layers.

    Raises
    ------
    OptionError : the tool is not installed
    ModelError : the tool fails
    """
    try:
        return _TOOLS[tool](proto, fuse)
    except ImportError as error:
        raise OptionError(f"{tool} is not installed: pip install {tool}, or use another --tool") from error
    except InputError:
        raise
    except Exception as error:  # whatever the tool raises
        raise ModelError(f"{tool} does not accept the model: {error}") from error


def _onnxruntime(proto: ModelProto, fuse: bool) -> ModelProto:
    """The model as onnxruntime optimises it, without rewrites that compute with weights unless `fuse`."""
    import tempfile

    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        skipped = [] if fuse else _FUSIONS
        ort.InferenceSession(serialised(proto), options, ["CPUExecutionProvider"], disabled_optimizers=skipped)
        return onnx.load(path)


def _onnxsim(proto: ModelProto, fuse: bool) -> ModelProto:
    onnxoptimizer, onnxsim = import_module("onnxoptimizer"), import_module("onnxsim")
    skipped = [] if fuse else [name for name in onnxoptimizer.get_available_passes() if name.startswith("fuse_")]
    simple, _ = onnxsim.simplify(proto, skipped_optimizers=skipped)
    return simple


def _onnxslim(proto: ModelProto, fuse: bool) -> ModelProto:
    onnxslim = import_module("onnxslim")
    copy = ModelProto()
    copy.CopyFrom(proto)
    return onnxslim.slim(copy, skip_optimizations=None if fuse else ["graph_fusion"])


def _onnxoptimizer(proto: ModelProto, fuse: bool) -> ModelProto:
    onnxoptimizer = import_module("onnxoptimizer")
    passes = [name for name in onnxoptimizer.get_fuse_and_elimination_passes() if fuse or not name.startswith("fuse_")]
    return onnxoptimizer.optimize(proto, passes)


_TOOLS: dict[Simplifier, Callable[[ModelProto, bool], ModelProto]] = {
    "onnxruntime": _onnxruntime,
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxoptimizer": _onnxoptimizer,
}


# 2. Marks

Places = NDArray[np.int64]
"""The mark that each entry of an array is, by its number; -1 for none."""

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


# 3. The posterior moved


@dataclass(frozen=True, eq=False)
class Moves:
    """Where a tool moved the entries of a model's tensors.

    Attributes
    ----------
    marks : of the old tensors
    found : new tensor -> which mark each of its entries is, -1 for entries that are deterministic
    own : new tensor -> its numbers
    """

    marks: Fingerprints
    found: Mapping[str, Places]
    own: Mapping[str, Floats]

    def tensors(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        """Numbers that are 0 for what is deterministic or not listed."""
        joined = np.append(self.marks.joined(self._filled(old)), 0.0)  # -1 is the last
        return {name: joined[places] for name, places in self.found.items()}

    def rows(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        """`tensors` of each of S samples: arrays (S, *shape)."""
        count = len(next(iter(old.values())))
        each = [self.tensors({name: values[i] for name, values in old.items()}) for i in range(count)]
        return {name: np.array([tensors[name] for tensors in each]) for name in self.found}

    def means(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        """Values of weights (.., *shape): what is deterministic keeps its own."""
        found = self.tensors(old)
        return {name: np.where(places >= 0, found[name], self.own[name]) for name, places in self.found.items()}

    @property
    def unchanged(self) -> bool:
        """Whether every tensor is where and as it was."""
        return set(self.found) == set(self.marks.spans) and all(
            places.shape == shape and np.array_equal(places.reshape(-1), start + np.arange(places.size))
            for name, places in self.found.items()
            for start, shape in [self.marks.spans[name]]
        )

    def _filled(self, old: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: old[name] if name in old else np.zeros(shape) for name, (_, shape) in self.marks.spans.items()}


def moved_posterior(posterior: Posterior, moves: Moves) -> Posterior:
    """The posterior in the new layout; entries that were not marked are deterministic.

    Raises
    ------
    UnsupportedError : Kronecker factors, unless nothing moved: they are tied to rows and columns
    """
    match posterior := stated(posterior):
        case WeightSamples(probabilities=weights):
            each = [
                moves.means({name: values[0] for name, values in posterior.drawn(slice(i, i + 1)).items()})
                for i in range(len(weights))
            ]
            return WeightSamples({name: np.array([tensors[name] for tensors in each]) for name in moves.found}, weights)
        case Mixture(components=components, probabilities=weights):
            parts = (Component(moves.means(part.means), _gaussian(part.posterior, moves)) for part in components)
            return Mixture(tuple(parts), weights)
        case _:
            return _gaussian(posterior, moves)


def _gaussian(posterior: Gaussian, moves: Moves) -> Gaussian:
    """The Gaussian whose entries follow the moves; Kronecker factors only where nothing moved."""
    match posterior:
        case GaussianDiagonal(variances=variances):
            return GaussianDiagonal(moves.tensors(variances))
        case GaussianLowRank(factors=factors, variances=variances):
            return GaussianLowRank(moves.rows(factors), moves.tensors(variances))
        case GaussianFull(factors=factors):
            return GaussianFull(moves.rows(factors))
        case GaussianKron():
            if moves.unchanged:
                return posterior
            message = "the tool moves entries of weights, and their Kronecker factors cannot follow"
            raise UnsupportedError(f"{message}: simplify the plain network first, attach the posterior after")
    raise PosteriorError("a family that cannot be moved")


# 4. All of it

_POINTS, _TOLERANCE = 8, 1e-4
_TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(double)": np.float64}


@plain_state()
def simplified(source: RawParts, tool: Simplifier = "onnxruntime") -> tuple[ModelProto, tuple[str, ...]]:
    """The model after a clean-up by another tool, its posterior attached again.

    The tool runs on the network with marks for weights (`Fingerprints`), so that every entry of the posterior is found
    where its weight went. A tool that computes with a weight (fuses a normalisation into it, say) is asked again
    without fusions.

    Returns
    -------
    the model, and remarks

    Raises
    ------
    OptionError : the tool is not installed
    PosteriorError : the tool changes weights that carry the posterior, or copies them
    ModelError : the tool changes what the network computes
    """
    if source.posterior is None:
        proto = cleaned_up(tool, source.plain, True)
        _check(source.plain, proto, tool)
        return proto, ("the model carries no posterior",)
    try:
        return _cleaned(source, source.posterior, tool, True), ()
    except (PosteriorError, UnsupportedError):
        note = f"{tool} fuses layers into weights that carry the posterior: run without fusions"
        return _cleaned(source, source.posterior, tool, False), (note,)


def _cleaned(source: RawParts, posterior: Posterior, tool: Simplifier, fuse: bool) -> ModelProto:
    """The simplified model with its posterior attached to the tensors that it has now."""
    tensors = names_of(posterior)
    marks = Fingerprints(source.plain, tensors)
    found, proto = _followed(marks, tool, fuse)
    held = holders(source.plain)
    means = marks.joined({name: array_of(held[name]) for name in tensors})
    for name, places in found.items():
        _put(proto, name, places, means)
    _check(source.plain, proto, tool)
    own = {name: array_of(holders(proto)[name]).astype(np.float64) for name in found}
    result = attach(proto, moved_posterior(posterior, Moves(marks, found, own)), likelihood=source.likelihood)
    model_from_proto(result)  # refuses what it cannot follow
    return result


def _check(before: ModelProto, after: ModelProto, tool: Simplifier) -> None:
    """Compare both mean networks in onnxruntime at some points: a guard against a tool that breaks the graph."""
    old, new = ([value for value in outputs if value.dtype.kind == "f"] for outputs in map(_outputs, (before, after)))
    same = len(old) == len(new) and all(
        a.shape == b.shape and (np.abs(a - b) <= _TOLERANCE * (1 + np.abs(a).max(initial=0))).all()
        for a, b in zip(old, new, strict=True)
    )
    if not same:
        raise ModelError(f"{tool} changed what the network computes; use another --tool")


def _outputs(proto: ModelProto) -> list[NDArray]:
    """What onnxruntime computes at random inputs, the same for networks with the same inputs; maps are left out."""
    session, rng = session_of(serialised(proto)), np.random.default_rng(0)
    found: list[NDArray] = []
    for _ in range(_POINTS):
        feeds = {}
        for entry in session.get_inputs():
            shape = [size if isinstance(size, int) and size > 0 else 1 for size in entry.shape]
            kind = _TYPES.get(entry.type)
            if kind is None:
                raise ModelError(f"the input {entry.name} is {entry.type}, not a tensor of floating-point numbers")
            feeds[entry.name] = rng.uniform(-1, 1, shape).astype(kind)
        found += (value for value in session.run(None, feeds) if isinstance(value, np.ndarray))
    return found


def _followed(marks: Fingerprints, tool: Simplifier, fuse: bool) -> tuple[dict[str, Places], ModelProto]:
    """Run the tool and find the marks in what it made: tensor -> which mark each of its entries is (-1: none); the
    model.
    """
    proto = cleaned_up(tool, marks.marked, fuse)
    arrays = {name: array_of(tensor) for name, tensor in holders(proto).items()}
    located = {name: marks.locate(array) for name, array in arrays.items() if array.dtype.kind == "f"}
    found = {name: where for name, where in located.items() if (where >= 0).any()}
    counts = np.bincount(
        np.concatenate([np.zeros(0, np.int64), *(p[p >= 0] for p in found.values())]), minlength=marks.size
    )
    for name, count in marks.cut(counts.astype(np.float64)).items():
        if (count > 1).any():
            raise PosteriorError(f"{tool} copies this weight, and the copies would no longer be one number", node=name)
        if (count == 0).any():
            message = f"{tool} computes with this weight (fuses or folds it), and its posterior cannot follow"
            raise PosteriorError(f"{message}; use another --tool", node=name)
    return found, proto


def _put(proto: ModelProto, name: str, places: Places, means: NDArray) -> None:
    """Put the posterior means in the place of the marks."""
    holder = holders(proto)[name]
    array = array_of(holder).copy()
    array[places >= 0] = means[places[places >= 0]]
    holder.CopyFrom(numpy_helper.from_array(array, holder.name))
