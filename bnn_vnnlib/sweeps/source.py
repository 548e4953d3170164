"""Where the network of a job comes from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bnn_vnnlib.errors import InputError

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model


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
