"""The model in onnxruntime: the oracle against which a witness is run again, independent of our own reading."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import ModelError
from bnn_vnnlib.model.network import Model


class Replayer:
    """An onnxruntime session of the model's graph with the weights in the file (the posterior means).

    Raises
    ------
    ModelError : onnxruntime does not accept the model
    """

    def __init__(self, model: Model) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3  # silent about posterior tensors that no node uses
        options.intra_op_num_threads = 1
        try:
            self._session = ort.InferenceSession(model.onnx_bytes, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions have no common root of their own
            raise ModelError(f"onnxruntime does not accept the model: {error}", path=model.path) from error
        self._signature = model.network.signature

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
        feeds, start = {}, 0
        for variable in self._signature.inputs:
            piece = point[start : start + math.prod(variable.shape)]
            feeds[variable.name] = piece.reshape(variable.shape).astype(variable.element_type)
            start += variable.size
        outputs = self._session.run([variable.name for variable in self._signature.outputs], feeds)
        return np.concatenate([np.asarray(output, np.float64).reshape(-1) for output in outputs])


def replay(model: Model, x: ArrayLike) -> NDArray[np.float64]:
    """Outputs (N, m) of onnxruntime at the points x (N, n); see `Replayer`."""
    return Replayer(model)(x)
