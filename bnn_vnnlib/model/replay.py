"""The model in onnxruntime: the oracle against which a witness is run again, independent of our own reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import ModelError, PropertyError
from bnn_vnnlib.network.network import Model
from bnn_vnnlib.signature import Hidden, Signature, Variable, joined
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    import onnxruntime as ort

    from bnn_vnnlib.question.property import Property

_NAMED = 5  # nodes that a message names
FULL_PRECISION = ("session.qdq_matmulnbits_accuracy_level", "1")
"""Session option without which onnxruntime rounds the other factor of a dequantized weight to 8 bits."""


class Replayer:
    """An onnxruntime session of the model's graph with the weights in the file (the posterior means).

    Raises
    ------
    ModelError : onnxruntime does not accept the model
    """

    def __init__(self, model: Model) -> None:
        self._parts = () if model.pair is None else (Replayer(model.pair.first), Replayer(model.pair.second))
        self._signature = model.network.signature
        if self._parts:
            self._signature = joined(*(part._signature for part in self._parts))
        else:
            self._session = session_of(model.onnx_bytes, model.path)

    def __call__(self, x: ArrayLike) -> NDArray[np.float64]:
        """Run the graph, its final Softmax included.

        Parameters
        ----------
        x : (N, n), inputs flattened and joined in the model's order; rounded to the model's types

        Returns
        -------
        (N, m) outputs flattened and joined in the model's order
        """
        points = np.asarray(x, np.float64)
        if points.ndim != 2 or points.shape[1] != self._signature.input_size:
            raise ValueError(f"x has shape {points.shape}, expected (N, {self._signature.input_size})")
        rows = [self._one(point) for point in points]  # the file fixes the batch size, usually to 1
        return np.array(rows).reshape(len(points), self._signature.output_size)

    def _one(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._parts:
            pieces = np.split(point, [self._parts[0]._signature.input_size])
            return np.concatenate([part._one(piece) for part, piece in zip(self._parts, pieces, strict=True)])
        names = [variable.name for variable in self._signature.outputs]
        outputs = self._session.run(names, _feeds(self._signature, point))
        return np.concatenate([np.asarray(output, np.float64).reshape(-1) for output in outputs])


def hidden_nodes(model: Model, property: Property) -> Callable[[NDArray[np.float64]], tuple[NDArray, ...]]:
    """What evaluates the hidden nodes that a property declares, of one network or of both; see `_HiddenNodes`."""
    if model.pair is None or property.second is None:
        return _HiddenNodes(model, property.hidden)
    split, size = len(property.hidden) - property.second.hidden, model.pair.first.network.signature.input_size
    first = _HiddenNodes(model.pair.first, property.hidden[:split])
    second = _HiddenNodes(model.pair.second, property.hidden[split:])
    return lambda x: first(x[:size]) + second(x[size:])


class _HiddenNodes:
    """The hidden nodes that a property declares, as onnxruntime computes them with the weights in the file.

    Parameters
    ----------
    model : whose graph has the nodes
    hidden : as declared

    Raises
    ------
    PropertyError : the graph computes no tensor of that name
    ModelError : onnxruntime does not accept the model
    """

    def __init__(self, model: Model, hidden: tuple[Hidden, ...]) -> None:
        import onnx

        graph = onnx.load_model_from_string(model.onnx_bytes)
        computed = {name for node in graph.graph.node for name in node.output if name}
        for one in hidden:
            if one.node not in computed:
                where = "the model" if model.path is None else f"{model.path}"
                names = ", ".join(map(repr, sorted(computed)[:_NAMED])) + (" ..." if len(computed) > _NAMED else "")
                message = f"hidden node {one.name}: no node of {where} computes {one.node!r}; they compute {names}"
                raise PropertyError(message)
        known = {output.name for output in graph.graph.output}
        graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in {one.node for one in hidden} - known)
        self._hidden, self._signature = hidden, model.network.signature
        self._session = session_of(graph.SerializeToString(), model.path)

    def __call__(self, x: ArrayLike) -> tuple[NDArray, ...]:
        """Values at one point (n,), each in the declared shape and the model's own type.

        Raises
        ------
        PropertyError : the model's tensor has another type or shape than is declared (shapes may differ as those of
            inputs may, see `vnnlib.groups.match`), or a value that no file can hold
        """
        point = np.asarray(x, np.float64)
        found = self._session.run([one.node for one in self._hidden], _feeds(self._signature, point))
        return tuple(_as_declared(one, value) for one, value in zip(self._hidden, found, strict=True))


def _as_declared(hidden: Hidden, value: Any) -> NDArray:
    from bnn_vnnlib.vnnlib.groups import match_tensor

    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise PropertyError(f"hidden node {hidden.name}: {hidden.node!r} is no tensor of numbers")
    match_tensor("hidden node", hidden, Variable(hidden.node, str(value.dtype), value.shape), None)
    if not np.isfinite(value).all():
        raise PropertyError(f"hidden node {hidden.name}: {hidden.node!r} has an infinite value, which no file can hold")
    return value.reshape(hidden.shape)


def session_of(graph: bytes, path: Path | None = None) -> ort.InferenceSession:
    """onnxruntime on one thread, in the precision of the file, for a serialised model (from `path`, for the message).

    Raises
    ------
    ModelError : onnxruntime does not accept the model
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3  # silent about posterior tensors that no node uses
    options.intra_op_num_threads = 1
    options.add_session_config_entry(*FULL_PRECISION)
    try:
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common root of their own
        raise ModelError(f"onnxruntime does not accept the model: {error}", path=path) from error


def _feeds(signature: Signature, point: NDArray[np.float64]) -> dict[str, NDArray]:
    feeds, start = {}, 0
    for variable in signature.inputs:
        piece = point[start : start + variable.size]
        feeds[variable.name] = piece.reshape(variable.shape).astype(variable.element_type)
        start += variable.size
    return feeds


@plain_state()
def replay(model: Model, x: ArrayLike) -> NDArray[np.float64]:
    """Outputs (N, m) of onnxruntime at the points x (N, n); see `Replayer`."""
    return Replayer(model)(x)
