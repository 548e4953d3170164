"""The inputs of `radius` and `uncertainty`: centres, what they are meant to be, and the shape of the balls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.arrays import integers, number, read_arrays, refuse_unknown
from bnn_vnnlib.network.network import Floats, Model
from bnn_vnnlib.sweeps.balls import Balls, make_balls
from bnn_vnnlib.sweeps.source import digest
from bnn_vnnlib.system.environment import plain_state

NAMES = ("x", "label", "y", "scale", "valid_lower", "valid_upper")


@dataclass(frozen=True, eq=False)
class Inputs:
    """N inputs.

    Attributes
    ----------
    balls : centres, scale of the radius, valid range
    labels : (N,) or None
    y : (N, m) or (N,) values to stay near, or None
    path : for messages
    """

    balls: Balls
    labels: NDArray[np.int64] | None = None
    y: Floats | None = None
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.balls)

    def fit(self, model: Model) -> None:
        """Raise InputError where the model has another number of inputs."""
        have, want = self.balls.x.shape[1], model.network.signature.input_size
        if have != want:
            raise InputError(f"inputs have {have} numbers, the network takes {want}", path=self.path)

    @property
    def digests(self) -> dict[str, str]:
        """{array: hash of its contents}."""
        balls = self.balls
        arrays = {
            "x": balls.x, "scale": balls.scale, "valid_lower": balls.low, "valid_upper": balls.high,
            "label": self.labels, "y": self.y,
        }  # fmt: skip
        return {f"array {name}": digest(values) for name, values in arrays.items() if values is not None}


def read_inputs(path: str | Path, clip: tuple[float, float] | None = None) -> Inputs:
    """Read an npz or Parquet file: x (N, n); label (N,) and y (N,) or (N, m) if wanted; scale, valid_lower and
    valid_upper, each (n,) or, in Parquet, the same list in each row.

    Parameters
    ----------
    clip : valid range of every input, in place of arrays

    Raises
    ------
    InputError : the file, or an array of it, by name
    """
    path = Path(path)
    return make_inputs(read_arrays(path, NAMES), clip, path)


@plain_state()
def make_inputs(
    arrays: Mapping[str, ArrayLike], clip: tuple[float, float] | None = None, path: Path | None = None
) -> Inputs:
    """Inputs from arrays in memory, named as in a file."""
    named = {name: np.asarray(values) for name, values in arrays.items()}
    refuse_unknown(named, NAMES, path)
    x = number(named, "x", path, dims=2)
    if len(x) == 0:
        raise InputError("the file holds no inputs", path=path)
    shape = {name: _of_features(named, name, path, x) for name in ("scale", "valid_lower", "valid_upper")}
    low, high = shape["valid_lower"], shape["valid_upper"]
    if clip is not None:
        if low is not None or high is not None:
            raise InputError("a valid range is in the file and among the options; give one", path=path)
        if not clip[0] <= clip[1]:
            raise InputError(f"the valid range [{clip[0]}, {clip[1]}] is empty")
        low, high = (np.full(x.shape[1], end) for end in clip)
    labels = integers(named, "label", path, len(x)) if "label" in named else None
    y = number(named, "y", path, dims=named["y"].ndim) if "y" in named else None
    if y is not None and (len(y) != len(x) or y.ndim > 2):
        raise InputError(f"array 'y' must have a row for each of {len(x)} inputs, found {y.shape}", path=path)
    try:
        return Inputs(make_balls(x, shape["scale"], low, high), labels, y, path)
    except InputError as error:
        raise InputError(error.message, path=path) from None


def _of_features(named: Mapping[str, NDArray], name: str, path: Path | None, x: Floats) -> Floats | None:
    """(n,) numbers; one row for each input must hold the same ones."""
    if name not in named:
        return None
    values = named[name]
    if values.ndim == 2 and len(values) and (values == values[:1]).all():
        values = values[0]
    found = number({name: values}, name, path, dims=1, finite=name == "scale")
    if len(found) != x.shape[1]:
        raise InputError(f"array {name!r} must hold {x.shape[1]} numbers, found {len(found)}", path=path)
    return found
