"""Clean-ups by other tools, under which the posterior stays with its weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.errors import ModelError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import Posterior, attach, model_from_proto
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.files import serialised
from bnn_vnnlib.model.replay import session_of
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.posteriors.fingerprints import Fingerprints, Places
from bnn_vnnlib.posteriors.moving import Moves, moved
from bnn_vnnlib.posteriors.parts import Source
from bnn_vnnlib.posteriors.tools import Tool, run_tool
from bnn_vnnlib.system.environment import plain_state

_POINTS, _TOLERANCE = 8, 1e-4
_TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(double)": np.float64}


@plain_state()
def simplified(source: Source, tool: Tool = "onnxruntime") -> tuple[ModelProto, tuple[str, ...]]:
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
        proto = run_tool(tool, source.plain, True)
        _check(source.plain, proto, tool)
        return proto, ("the model carries no posterior",)
    try:
        return _cleaned(source, source.posterior, tool, True), ()
    except (PosteriorError, UnsupportedError):
        note = f"{tool} fuses layers into weights that carry the posterior: run without fusions"
        return _cleaned(source, source.posterior, tool, False), (note,)


def _cleaned(source: Source, posterior: Posterior, tool: Tool, fuse: bool) -> ModelProto:
    tensors = names_of(posterior)
    marks = Fingerprints(source.plain, tensors)
    found, proto = _followed(marks, tool, fuse)
    held = holders(source.plain)
    means = marks.joined({name: array_of(held[name]) for name in tensors})
    for name, places in found.items():
        _put(proto, name, places, means)
    _check(source.plain, proto, tool)
    own = {name: array_of(holders(proto)[name]).astype(np.float64) for name in found}
    result = attach(proto, moved(posterior, Moves(marks, found, own)), likelihood=source.likelihood)
    model_from_proto(result)  # refuses what it cannot follow
    return result


def _check(before: ModelProto, after: ModelProto, tool: Tool) -> None:
    """Both mean networks in onnxruntime at some points: a guard against a tool that breaks the graph."""
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
