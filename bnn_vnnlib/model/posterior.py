"""Posteriors: validation against a model's weights, ways to make one, and sampling."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.model.network import Floats, GaussianDiagonal, Likelihood, Network, Posterior, WeightSamples

if TYPE_CHECKING:
    import torch

PROBABILITIES = "posterior_probabilities"
VARIANCE, SAMPLES, DEVIATION = "_variance", "_samples", "_std"
RESERVED_FAMILIES = ("gaussian_lowrank", "gaussian_kron", "gaussian_full", "mixture", "dropout")
Shapes = Mapping[str, tuple[int, ...]]


def from_standard_deviations(deviations: Mapping[str, ArrayLike]) -> GaussianDiagonal:
    """Gaussian posterior from {initializer name: standard deviations}.

    Raises
    ------
    PosteriorError : negative or not finite; the message names the tensor
    """
    variances: dict[str, Floats] = {}
    for name, given in deviations.items():
        deviation = np.asarray(given, np.float64)
        _refuse_bad(name, "standard deviation", deviation)
        variances[name] = deviation**2
    return GaussianDiagonal(variances)


def checked_likelihood(likelihood: str | None) -> Likelihood | None:
    """One of the known likelihoods, or None."""
    known: tuple[Likelihood, ...] = get_args(Likelihood)
    for name in known:
        if name == likelihood:
            return name
    if likelihood is None:
        return None
    raise OptionError(f"likelihood {likelihood!r} is unknown; expected one of {', '.join(known)}")


def check_posterior(posterior: Posterior, shapes: Shapes) -> None:
    """Raise PosteriorError unless the posterior fits tensors of these shapes; names the tensor."""
    match posterior:
        case GaussianDiagonal(variances=tensors):
            for name, variance in tensors.items():
                _check_shape(name, "variance", np.shape(variance), _shape(name, shapes))
                _refuse_bad(name, "variance", variance)
        case WeightSamples(samples=tensors, probabilities=weights):
            _check_probabilities(weights)
            for name, values in tensors.items():
                _check_shape(name, "samples", np.shape(values), (len(weights), *_shape(name, shapes)))
                if not np.isfinite(values).all():
                    raise PosteriorError("samples hold NaN or infinite entries", node=name)
    if not tensors:
        raise PosteriorError("the posterior names no tensor")


def weighted_mean(samples: NDArray, probabilities: Floats) -> Floats:
    """Mean (*shape) of samples (S, *shape)."""
    mean: Floats = np.tensordot(probabilities, np.asarray(samples, np.float64), axes=1)
    return mean


def only(posterior: Posterior, names: Collection[str]) -> Posterior | None:
    """The posterior of some of its tensors; None if it has none of them."""
    match posterior:
        case GaussianDiagonal(variances=tensors):
            kept = {name: tensor for name, tensor in tensors.items() if name in names}
            return GaussianDiagonal(kept) if kept else None
        case WeightSamples(samples=tensors, probabilities=weights):
            kept = {name: tensor for name, tensor in tensors.items() if name in names}
            return WeightSamples(kept, weights) if kept else None


def names_of(posterior: Posterior | None) -> tuple[str, ...]:
    """The tensors that carry the posterior."""
    if posterior is None:
        return ()
    return tuple(posterior.variances if isinstance(posterior, GaussianDiagonal) else posterior.samples)


def posterior_from_npz(path: str | Path, shapes: Shapes) -> Posterior:
    """Posterior from a NumPy archive.

    Keys: `<initializer>_variance`, or `<initializer>_std` (a standard deviation) for a Gaussian; or
    `<initializer>_samples` of shape (S, *shape), with `posterior_probabilities` (S,) unless all are 1/S.

    Parameters
    ----------
    shapes : shapes of the model's float tensors by name

    Raises
    ------
    PosteriorError : unreadable file, a key that names no tensor (lists the tensors), wrong shape or values
    """
    arrays = _archive(Path(path))
    weights = arrays.pop(PROBABILITIES, None)
    families: dict[str, dict[str, Floats]] = {VARIANCE: {}, DEVIATION: {}, SAMPLES: {}}
    for key, array in arrays.items():
        suffix = next((suffix for suffix in families if key.endswith(suffix)), None)
        if suffix is None:
            expected = ", ".join(f"<initializer>{suffix}" for suffix in families)
            raise PosteriorError(f"key {key!r} is unknown; expected {expected} or {PROBABILITIES}", path=path)
        families[suffix][key.removesuffix(suffix)] = _floats(key, array, Path(path))
    variances = {**families[VARIANCE], **from_standard_deviations(families[DEVIATION]).variances}
    samples = families[SAMPLES]
    if len(variances) < len(families[VARIANCE]) + len(families[DEVIATION]) or (samples and variances):
        raise PosteriorError("the archive mixes variances, standard deviations or samples of a tensor", path=path)
    posterior: Posterior = GaussianDiagonal(variances)
    if samples:
        count = len(next(iter(samples.values())))
        uniform = np.full(count, 1 / max(count, 1))
        posterior = WeightSamples(samples, uniform if weights is None else _floats(PROBABILITIES, weights, Path(path)))
    elif weights is not None:
        raise PosteriorError(f"{PROBABILITIES} without any <initializer>{SAMPLES}", path=path)
    check_posterior(posterior, shapes)
    return posterior


def sample(
    network: Network, posterior: Posterior, count: int, generator: torch.Generator | None = None
) -> dict[str, torch.Tensor]:
    """Draw weights.

    Returns
    -------
    {source: (count, *shape)} float64, for the uncertain tensors only; one draw of all tensors per row
    """
    import torch

    match posterior:
        case GaussianDiagonal(variances=variances):
            drawn = {}
            for name, variance in variances.items():
                mean, deviation = (
                    torch.tensor(a, dtype=torch.float64) for a in (network.tensors[name], np.sqrt(variance))
                )
                noise = torch.randn((count, *mean.shape), dtype=torch.float64, generator=generator)
                drawn[name] = mean + deviation * noise
            return drawn
        case WeightSamples(samples=samples, probabilities=weights):
            rows = torch.multinomial(torch.tensor(weights), count, replacement=True, generator=generator)
            return {name: torch.tensor(values, dtype=torch.float64)[rows] for name, values in samples.items()}


def refuse_family(family: str) -> None:
    """Raise unless the family is one of the two that this version reads."""
    if family in RESERVED_FAMILIES:
        raise UnsupportedError(f"posterior family {family!r} is not supported yet; supported: gaussian_diag, samples")
    if family not in ("gaussian_diag", "samples"):
        raise PosteriorError(f"posterior family {family!r} is unknown; supported: gaussian_diag, samples")


def _shape(name: str, shapes: Shapes) -> tuple[int, ...]:
    if name not in shapes:
        raise PosteriorError(f"the model has no weight {name!r}; it has {', '.join(shapes) or 'none'}")
    return shapes[name]


def _check_shape(name: str, what: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise PosteriorError(f"{what} has shape {shape}, expected {expected}", node=name)


def _refuse_bad(name: str, what: str, array: NDArray[np.float64]) -> None:
    if not np.isfinite(array).all():
        raise PosteriorError(f"{what} holds NaN or infinite entries", node=name)
    if (np.asarray(array) < 0).any():
        raise PosteriorError(f"{what} holds negative entries", node=name)


def _check_probabilities(weights: Floats) -> None:
    if np.ndim(weights) != 1 or not np.isfinite(weights).all() or (weights < 0).any():
        raise PosteriorError("must be a vector of finite numbers >= 0", node=PROBABILITIES)
    if abs(float(np.sum(weights)) - 1) > 1e-6:
        raise PosteriorError(f"must sum to 1, but sum to {float(np.sum(weights))}", node=PROBABILITIES)


def _archive(path: Path) -> dict[str, NDArray]:
    import zipfile

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except FileNotFoundError as error:
        raise PosteriorError("no such file", path=path) from error
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise PosteriorError("not a NumPy archive (.npz) of plain arrays", path=path) from error


def _floats(key: str, array: NDArray, path: Path) -> Floats:
    if array.dtype.kind not in "fiu":
        raise PosteriorError(f"{key!r} is of type {array.dtype}, expected numbers", path=path)
    return array.astype(np.float64)
