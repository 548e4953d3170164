"""Clean-ups by other tools, under which the posterior stays with its weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.errors import ModelError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import Model, Posterior, attach, model_from_proto, replay
from bnn_vnnlib.model.posterior import names_of
from bnn_vnnlib.model.tensors import array_of, holders
from bnn_vnnlib.posteriors.fingerprints import Fingerprints, Places
from bnn_vnnlib.posteriors.moving import Moves, moved
from bnn_vnnlib.posteriors.parts import Parts
from bnn_vnnlib.posteriors.tools import Tool, run_tool

_POINTS, _TOLERANCE = 8, 1e-4


def simplified(parts: Parts, tool: Tool = "onnxruntime") -> tuple[ModelProto, tuple[str, ...]]:
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
    """
    if parts.posterior is None:
        return run_tool(tool, parts.plain, True), ("the model carries no posterior",)
    try:
        return _cleaned(parts, parts.posterior, tool, True), ()
    except (PosteriorError, UnsupportedError):
        note = f"{tool} fuses layers into weights that carry the posterior: run without fusions"
        return _cleaned(parts, parts.posterior, tool, False), (note,)


def _cleaned(parts: Parts, posterior: Posterior, tool: Tool, fuse: bool) -> ModelProto:
    tensors = names_of(posterior)
    marks = Fingerprints(parts.plain, tensors)
    found, proto = _followed(marks, tool, fuse)
    means = marks.joined({name: parts.model.network.tensors[name] for name in tensors})
    for name, places in found.items():
        _put(proto, name, places, means)
    own = {name: array_of(holders(proto)[name]).astype(np.float64) for name in found}
    result = attach(proto, moved(posterior, Moves(marks, found, own)), likelihood=parts.likelihood)
    _check(parts.model, model_from_proto(result), tool)
    return result


def _check(before: Model, after: Model, tool: Tool) -> None:
    """Both mean networks in onnxruntime at some points: a guard against a tool that breaks the graph."""
    x = np.random.default_rng(0).uniform(-1, 1, (_POINTS, before.network.signature.input_size))
    old, new = replay(before, x), replay(after, x)
    if old.shape != new.shape or not (np.abs(old - new) <= _TOLERANCE * (1 + np.abs(old).max())).all():
        raise ModelError(f"{tool} changed what the network computes; use another --tool")


def _followed(marks: Fingerprints, tool: Tool, fuse: bool) -> tuple[dict[str, Places], ModelProto]:
    """Where the marks are after the tool has run: tensor -> which mark each of its entries is (-1: none)."""
    proto = run_tool(tool, marks.marked, fuse)
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
    """The posterior means in place of the marks."""
    holder = holders(proto)[name]
    array = array_of(holder).copy()
    array[places >= 0] = means[places[places >= 0]]
    holder.CopyFrom(numpy_helper.from_array(array, holder.name))
