"""What a network is meant to do around an input: keep the class, or keep the output near a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.network.network import Floats, Model
from bnn_vnnlib.sweeps.questions import Asked


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
        """Some inputs."""
        labels = None if self.labels is None else self.labels[index]
        return Target(labels, None if self.center is None else self.center[index], self.delta)

    def asked(self, model: Model, x: Floats) -> Asked:
        """The violation around each input."""
        if self.delta is None:
            return Asked(labels=mean_output(model, x).argmax(-1) if self.labels is None else self.labels)
        center = mean_output(model, x) if self.center is None else self.center
        # Any range is a fair question; the rounding of its ends moves it by less than 1e-15 of their size.
        return Asked(lower=center - self.delta, upper=center + self.delta)


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
