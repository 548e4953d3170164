"""Hashes of arrays and models, by which a job knows that it is the same one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model


def digest(values: NDArray) -> str:
    """Hash of an array's contents, type and shape."""
    values = np.ascontiguousarray(values)
    return hashlib.sha256(f"{values.dtype.str}{values.shape}".encode() + values.tobytes()).hexdigest()[:16]


def model_digest(model: Model) -> str:
    """Hash of a network and its posterior."""
    from bnn_vnnlib.network.families import family_of, tensors_of

    parts = [hashlib.sha256(model.onnx_bytes).hexdigest()]
    tensors = dict(model.network.tensors)
    if model.posterior is not None:
        parts.append(family_of(model.posterior))
        tensors |= {f"posterior.{name}": value for name, value in tensors_of(model.posterior).items()}
    parts += [f"{name}:{digest(np.asarray(value))}" for name, value in sorted(tensors.items())]
    return hashlib.sha256("\n".join([*parts, str(model.likelihood)]).encode()).hexdigest()[:16]
