"""Deterministic networks into BNNs: by stated standard deviations, by a fit on data, or as an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onnx import ModelProto

from bnn_vnnlib.errors import InputError, PosteriorError
from bnn_vnnlib.model import GaussianDiagonal, Network, attach, model_from_proto
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.model.recovery import is_stochastic
from bnn_vnnlib.posteriors.ensemble import ensemble_posterior
from bnn_vnnlib.posteriors.fit import Data, Method, fit
from bnn_vnnlib.posteriors.parts import with_values
from bnn_vnnlib.posteriors.stated import (
    Spread,
    computed_weights,
    refuse_without_weights,
    stated_posterior,
    weight_names,
)
from bnn_vnnlib.signature import Likelihood
from bnn_vnnlib.system.environment import plain_state

Converted = tuple[ModelProto, tuple[str, ...]]


class Recipe(Protocol):
    """How a plain network becomes a BNN."""

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        """The network with a posterior, and remarks."""
        ...


@dataclass(frozen=True)
class Stated:
    """Independent Gaussians with stated standard deviations."""

    spreads: tuple[Spread, ...]

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        names = weight_names(network, proto)
        refuse_without_weights(names)
        posterior = stated_posterior(network, names, self.spreads)
        counts = f"{len(posterior.variances)} of {len(names)} weight tensors"
        notes = (f"stated standard deviations for {counts}", *computed_weights(network, proto))
        return attach(proto, posterior, likelihood=likelihood), notes


@dataclass(frozen=True)
class FittedOn:
    """A posterior fitted on data: an archive, or a folder with an archive <network's name>.npz for each network."""

    method: Method
    data: Path
    epochs: int = 20
    rate: float = 1e-3
    seed: int = 0
    progress: Callable[[int], None] | None = None

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        names = weight_names(network, proto)
        refuse_without_weights(names)
        stem = source.name.removesuffix(".gz").removesuffix(".onnx")
        path = self.data / f"{stem}.npz" if self.data.is_dir() else self.data
        data = Data.read(path, network, likelihood)
        found = fit(
            self.method, network, names, data, likelihood,
            epochs=self.epochs, rate=self.rate, seed=self.seed, progress=self.progress,
        )  # fmt: skip
        moved = with_values(proto, found.means)
        notes = (*found.notes, *computed_weights(network, proto))
        return attach(moved, GaussianDiagonal(found.variances), likelihood=likelihood), notes


@dataclass(frozen=True)
class Ensemble:
    """The network and others of its architecture, as weight samples."""

    members: tuple[Path, ...]

    def __call__(self, proto: ModelProto, network: Network, likelihood: Likelihood, source: Path) -> Converted:
        posterior = ensemble_posterior(proto, self.members)
        note = f"{len(posterior.probabilities)} networks as samples of {len(posterior.stored)} weight tensors"
        return attach(proto, posterior, likelihood=likelihood), (note,)


@plain_state()
def convert(source: Path, recipe: Recipe, likelihood: Likelihood) -> Converted:
    """A plain network file as a BNN, checked by reading it again.

    Raises
    ------
    PosteriorError : the file has a posterior already, or one that has to be recovered
    InputError : whatever the recipe or the reader refuses
    """
    proto, found = read_proto(source)
    try:
        if is_stochastic(proto):
            raise PosteriorError("draws its weights itself: use `bnn-vnnlib recover`")
        plain = model_from_proto(proto)
        if plain.posterior is not None:
            raise PosteriorError("carries a posterior already")
        converted, notes = recipe(proto, plain.network, likelihood, found)
        model_from_proto(converted)
    except InputError as error:
        error.path = error.path or found
        raise
    return converted, notes


def convert_file(source: Path, target: Path, recipe: Recipe, likelihood: Likelihood) -> Sequence[str]:
    """`convert` from file to file; returns the remarks."""
    proto, notes = convert(source, recipe, likelihood)
    return (*notes, f"wrote {write_readable(proto, target)}")
