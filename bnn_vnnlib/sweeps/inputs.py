"""The inputs of `radius` and `uncertainty`: centres, the balls around them, and what the network is meant to do there.

1. `Balls`: boxes that surely hold the balls, and the radius of the ball that surely holds a box.
B(r) = {x' : |x'_j - x_j| <= r scale_j for all j} inside the valid range. r <= r' implies B(r) within B(r'), so P_safe
falls with r: what is safe on B(r') is safe on B(r), and what is violated on B(r) is violated on B(r').
2. `Target`: keep the class, or keep the output near a value.
3. `Inputs`: both, as they are given or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import InputError, OptionError, names_arguments
from bnn_vnnlib.files.arrays import integers, number, read_arrays, refuse_unknown
from bnn_vnnlib.network.network import Floats, Model
from bnn_vnnlib.sweeps.questions import AskedRows
from bnn_vnnlib.sweeps.source import digest
from bnn_vnnlib.system.environment import plain_state


@dataclass(frozen=True, eq=False)
class Balls:
    """N centres and the scale of the radius.

    Attributes
    ----------
    x : (N, n) centres
    scale : (n,) >= 0: a radius r allows r scale_j in input j; 0 keeps the input fixed
    low, high : (n,) the valid range, which holds every centre; infinite where there is none
    """

    x: Floats
    scale: Floats
    low: Floats
    high: Floats

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or any(part.shape != self.x.shape[1:] for part in (self.scale, self.low, self.high)):
            found = ", ".join(str(part.shape) for part in (self.x, self.scale, self.low, self.high))
            raise InputError(f"x must be (N, n); scale and the valid range (n,); found {found}")
        if not np.isfinite(self.x).all():
            raise InputError("x must be finite")
        if not (np.isfinite(self.scale) & (self.scale >= 0)).all():
            raise InputError("scale must be finite and not negative")
        outside = np.argwhere(~((self.low <= self.x) & (self.x <= self.high)))
        if len(outside):
            row, column = (int(i) for i in outside[0])
            ends = f"[{self.low[column]}, {self.high[column]}]"
            raise InputError(f"input {column} of row {row} is {self.x[row, column]}, outside of the valid range {ends}")

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: NDArray[np.int64] | slice) -> Balls:
        """The balls around some of the inputs."""
        return Balls(self.x[index], self.scale, self.low, self.high)

    def boxes(self, index: NDArray[np.int64], radius: Floats) -> tuple[Floats, Floats]:
        """Boxes (K, n) around the balls of rows `index` (K,) with radii (K,), rounded outward.

        Proof of the rounding: r scale_j is rounded to nearest, so the next float above is not less than the product;
        the same for the sums. A product that is 0 exactly moves nothing.
        """
        x, size = self.x[index], radius[:, None] * self.scale
        size = np.where((radius[:, None] > 0) & (self.scale > 0), np.nextafter(size, np.inf), 0.0)
        moved = size > 0
        lower = np.where(moved, np.nextafter(x - size, -np.inf), x)
        upper = np.where(moved, np.nextafter(x + size, np.inf), x)
        return np.maximum(lower, self.low), np.minimum(upper, self.high)

    def reach(self, index: NDArray[np.int64], lower: Floats, upper: Floats) -> Floats:
        """(K,) radii whose balls surely hold the boxes (K, n): each difference and each quotient is rounded up."""
        x = self.x[index]
        distance = np.maximum(upper - x, x - lower)
        distance = np.where(distance > 0, np.nextafter(distance, np.inf), 0.0)
        scale = np.where(self.scale > 0, self.scale, np.inf)  # these inputs are not moved
        with np.errstate(over="ignore"):  # a scale that is next to nothing: an infinite radius holds any box
            share = np.where(distance > 0, np.nextafter(distance / scale, np.inf), 0.0)
        return share.max(1, initial=0.0)


def make_balls(
    x: Floats, scale: Floats | float | None = None, low: Floats | float | None = None,
    high: Floats | float | None = None,
) -> Balls:  # fmt: skip
    """Fill in what was not given: scale 1, no valid range."""
    size = np.asarray(x).shape[-1:]

    def full(value: Floats | float | None, default: float) -> Floats:
        return np.broadcast_to(np.asarray(default if value is None else value, np.float64), size)

    return Balls(np.asarray(x, np.float64), full(scale, 1.0), full(low, -np.inf), full(high, np.inf))


def mean_output(model: Model, x: Floats) -> Floats:
    """(N, m): outputs of the mean network (for weight samples, of the network of mean weights) at x (N, n)."""
    import torch

    from bnn_vnnlib.network.evaluate import evaluate

    with torch.no_grad():
        return np.asarray(evaluate(model.network, torch.as_tensor(x)).numpy(), np.float64)


@dataclass(frozen=True, eq=False)
class Target:
    """labels : (N,) int, or center : (N, m) and delta : (m,); what of these is None is the mean network's own.

    Attributes
    ----------
    delta : regression: the output must stay within delta of the centre; None: classification
    """

    labels: NDArray[np.int64] | None = None
    center: Floats | None = None
    delta: Floats | None = None

    def rows(self, index: NDArray[np.int64]) -> Target:
        """The targets of some of the inputs."""
        labels = None if self.labels is None else self.labels[index]
        return Target(labels, None if self.center is None else self.center[index], self.delta)

    def asked(self, model: Model, x: Floats) -> AskedRows:
        """What counts as a violation around each input: another label, or an output that is farther than delta away."""
        if self.delta is None:
            return AskedRows(labels=mean_output(model, x).argmax(-1) if self.labels is None else self.labels)
        center = mean_output(model, x) if self.center is None else self.center
        # Any range is a fair question; the rounding of its ends moves it by less than 1e-15 of their size.
        return AskedRows(lower=center - self.delta, upper=center + self.delta)


def make_target(
    model: Model, count: int, labels: ArrayLike | None = None, center: ArrayLike | None = None,
    delta: ArrayLike | None = None,
) -> Target:  # fmt: skip
    """Check that these fit N inputs and the model's outputs.

    Raises
    ------
    OptionError, InputError : both kinds at once, shapes, labels out of range, delta not positive
    """
    outputs = model.network.signature.output_size
    if labels is not None and (center is not None or delta is not None):
        raise OptionError("labels are for classification, delta and y for regression: give one of them")
    if delta is None:
        if center is not None:
            raise OptionError("a value to stay near needs delta, how near")
        if outputs < 2:
            raise OptionError("a network with one output has no classes to keep: give delta, as for a regression")
        return Target(None if labels is None else _labels(labels, count, outputs))
    width = np.asarray(delta, np.float64)
    if width.ndim > 1 or width.shape not in ((), (outputs,)) or not (np.isfinite(width) & (width > 0)).all():
        raise OptionError(f"delta must be one positive number, or {outputs} of them, found {width.tolist()}")
    if center is None:
        return Target(delta=np.broadcast_to(width, (outputs,)))
    middle = np.asarray(center, np.float64)
    middle = middle[:, None] if middle.ndim == 1 and outputs == 1 else middle
    if middle.shape != (count, outputs) or not np.isfinite(middle).all():
        raise InputError(f"y must be finite, of shape ({count}, {outputs}), found {middle.shape}")
    return Target(center=middle, delta=np.broadcast_to(width, (outputs,)))


def _labels(labels: ArrayLike, count: int, outputs: int) -> NDArray[np.int64]:
    found = np.asarray(labels)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InputError(f"label must hold {count} integers, found {found.dtype} of shape {found.shape}")
    bad = np.flatnonzero((found < 0) | (found >= outputs))
    if len(bad):
        raise InputError(f"labels must lie in 0 .. {outputs - 1}; row {bad[0]} has {found[bad[0]]}")
    return found.astype(np.int64)


_NAMES = ("x", "label", "y", "scale", "valid_lower", "valid_upper")


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


@names_arguments
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
    return make_inputs(read_arrays(path, _NAMES), clip, path)


@names_arguments
@plain_state()
def make_inputs(
    arrays: Mapping[str, ArrayLike], clip: tuple[float, float] | None = None, path: Path | None = None
) -> Inputs:
    """Inputs from arrays in memory, named as in a file."""
    named = {name: np.asarray(values) for name, values in arrays.items()}
    refuse_unknown(named, _NAMES, path)
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
