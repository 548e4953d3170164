"""Where the network of a job comes from, and the hashes of arrays and models by which a job knows it again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError

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


@dataclass(frozen=True, eq=False)
class Source:
    """A network by its file, read where the work is done, or in memory."""

    path: Path | None = None
    memory: Model | None = None

    @property
    def model(self) -> Model:
        """The model; the last ones that were read stay in memory."""
        if self.memory is not None:
            return self.memory
        if self.path is None:
            raise InputError("a network needs a file or a model in memory")
        return _read(self.path)


@lru_cache(maxsize=2)
def _read(path: Path) -> Model:
    from bnn_vnnlib.model.reading import read_model

    return read_model(path)
