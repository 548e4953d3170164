"""A Gaussian over all weights as one long vector, as guides and Laplace approximations keep it, put into a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from bnn_vnnlib.adapters.adapted import Adapted, adapt, check_predictive
from bnn_vnnlib.adapters.samples import network_of, places, shapes_of, untouched, without
from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.model import GaussianDiagonal, Posterior
from bnn_vnnlib.network.families import from_covariance, from_low_rank
from bnn_vnnlib.posteriors.parts import with_values

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class FlatGaussian:
    """A Gaussian vector w with covariance root root' + diag(deviation^2), and where the library's arrays lie in it.

    Attributes
    ----------
    mean : (n,)
    deviation : (n,) >= 0, or None: zero
    root : (n, k), or None: none, all entries are independent
    positions : array's name -> positions in w, in the array's shape
    """

    mean: Floats
    deviation: Floats | None
    root: Floats | None
    positions: Mapping[str, NDArray[np.int64]]

    def __post_init__(self) -> None:
        sizes = [len(part) for part in (self.deviation, self.root) if part is not None]
        if not sizes or any(size != len(self.mean) for size in sizes):
            raise PosteriorError(f"scales of sizes {sizes} do not belong to a mean of size {len(self.mean)}")

    def over(self, positions: Mapping[str, NDArray[np.int64]]) -> Posterior:
        """The marginal of some entries, {tensor: positions in the tensor's shape}, in this order."""
        shapes = {name: part.shape for name, part in positions.items()}
        rows = np.concatenate([part.ravel() for part in positions.values()])
        if self.root is None and self.deviation is not None:
            return GaussianDiagonal({name: self.deviation[part] ** 2 for name, part in positions.items()})
        root = self.root[rows] if self.root is not None else np.zeros((len(rows), 0))
        if self.deviation is not None:
            return from_low_rank(root, self.deviation[rows] ** 2, shapes)
        return from_covariance(root @ root.T, shapes)


def successive(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.int64]]:
    """Positions of arrays that lie one after the other, row-major."""
    found, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = np.arange(start, start + size).reshape(shape)
        start += size
    return found


def placed(
    net: str | Path | ModelProto | nn.Module,
    gaussian: FlatGaussian,
    *,
    likelihood: str | None,
    names: Mapping[str, str] | None,
    transposed: bool | Collection[str] | None,
    ignore: Collection[str],
    x: ArrayLike | None,
    outputs: ArrayLike | None,
) -> Adapted:
    """The network with the Gaussian's means and the Gaussian attached, compared with the library's outputs if given.

    The parameters are those of `from_samples`; `outputs` (S, N, m) are drawn independently (`check_predictive`).
    """
    proto = network_of(net, x)
    kept = without(gaussian.positions, ignore)
    shapes = shapes_of(proto)
    found = places(shapes, {name: np.shape(part) for name, part in kept.items()}, names, transposed)
    positions = {place.tensor: place.put(gaussian.positions[name]) for name, place in found.items()}
    positions = {name: positions[name] for name in shapes if name in positions}  # in the order of the layers
    moved = with_values(proto, {name: gaussian.mean[part] for name, part in positions.items()})
    adapted = adapt(moved, gaussian.over(positions), likelihood, untouched(proto, positions))
    return adapted.against(check_predictive, x, outputs)
