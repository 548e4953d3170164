"""Posteriors in NumPy archives (.npz)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.network.families import (
    PROBABILITIES,
    STORED,
    Entry,
    Shapes,
    check_posterior,
    from_standard_deviations,
    gaussian_of,
)
from bnn_vnnlib.network.network import Component, Floats, Gaussian, Mixture, Posterior, WeightSamples
from bnn_vnnlib.readers import kinds, read_npz

DEVIATION, BIAS, MEAN = "std", "bias", "mean"
_SUFFIXES = ("variance", DEVIATION, "samples", "factor", "diagonal", "left", "right", "spectrum", BIAS)
_COMPONENT = re.compile(r"component(0|[1-9][0-9]{0,8})/(.+)")

Arrays = Mapping[str, NDArray[Any]]


def posterior_from_npz(path: str | Path, shapes: Shapes) -> Posterior:
    """Posterior from a NumPy archive.

    Keys: `<initializer>_<what>` with the tensors of one family: `variance` or `std` (a standard deviation);
    `samples` (S, *shape), with `posterior_probabilities` (S,) unless all are 1/S; `factor` (k, *shape) and `diagonal`
    (*shape); `factor` alone; `left`, `right`, `spectrum` and, for a joint bias, its name as `bias`. Of a mixture
    the same behind `component0/`, `component1/`, .., with `<initializer>_mean`, and `posterior_probabilities`.

    Parameters
    ----------
    shapes : shapes of the model's float tensors by name

    Raises
    ------
    PosteriorError : unreadable file, a key that names no tensor (lists the tensors), wrong shape or values
    """
    kinds.expect(path, kinds.ARCHIVE, PosteriorError)
    arrays = read_npz(Path(path), PosteriorError)
    try:
        weights = arrays.pop(PROBABILITIES, None)
        probabilities = None if weights is None else _floats(PROBABILITIES, weights)
        parted = any(_COMPONENT.fullmatch(key) for key in arrays)
        posterior = _mixture(arrays, probabilities, shapes) if parted else _single(arrays, probabilities, shapes)
        check_posterior(posterior, shapes)
    except PosteriorError as error:
        error.path = error.path or Path(path)
        raise
    return posterior


def _single(arrays: Arrays, probabilities: Floats | None, shapes: Shapes) -> Posterior:
    found = _by_what(arrays, _SUFFIXES)
    if "samples" not in found:
        if probabilities is not None:
            raise PosteriorError(f"{PROBABILITIES} without any <initializer>_samples")
        return _gaussian(found, shapes)
    if len(found) > 1:
        raise _mixed(found)
    samples = found["samples"]
    count = len(next(iter(samples.values())))
    return WeightSamples(samples, np.full(count, 1 / max(count, 1)) if probabilities is None else probabilities)


def _mixture(arrays: Arrays, probabilities: Floats | None, shapes: Shapes) -> Mixture:
    parts: dict[int, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        match = _COMPONENT.fullmatch(key)
        if match is None:
            raise PosteriorError(f"key {key!r} belongs to no component; in a mixture all but {PROBABILITIES} do")
        parts.setdefault(int(match[1]), {})[match[2]] = array
    if sorted(parts) != list(range(len(parts))):
        raise PosteriorError(f"components {sorted(parts)} are there; expected 0, 1, .. without a gap")
    if probabilities is None:
        raise PosteriorError(f"a mixture needs {PROBABILITIES}")
    components = []
    for index in range(len(parts)):
        found = _by_what(parts[index], (*_SUFFIXES, MEAN))
        means = found.pop(MEAN, {})
        if "samples" in found:
            raise PosteriorError(f"component {index} is made of samples; a component of a mixture is a Gaussian")
        components.append(Component(means, _gaussian(found, shapes)))
    return Mixture(tuple(components), probabilities)


def _gaussian(found: dict[str, dict[str, Any]], shapes: Shapes) -> Gaussian:
    biases = found.pop(BIAS, {})
    variances = {**found.pop("variance", {}), **found.pop(DEVIATION, {})}
    if variances or not found:
        if found or biases:
            raise _mixed({"variance": variances, **found})
        return gaussian_of("gaussian_diag", {name: Entry({"variance": value}) for name, value in variances.items()})
    family = next((family for family, whats in STORED.items() if set(whats) == set(found)), None)
    if family is None or (biases and family != "gaussian_kron"):
        raise _mixed(found)
    names = list(dict.fromkeys(name for tensors in found.values() for name in tensors))
    entries = {}
    for name in names:
        missing = [what for what in STORED[family] if name not in found[what]]
        if missing:
            raise PosteriorError(f"{family} needs <initializer>_{missing[0]}, which is missing", node=name)
        entries[name] = Entry({what: found[what][name] for what in STORED[family]}, *_bias(name, biases, found, shapes))
    if set(biases) - set(names):
        raise PosteriorError("has a joint bias, but no factors of its own", node=sorted(set(biases) - set(names))[0])
    return gaussian_of(family, entries)


def _bias(name: str, biases: Mapping[str, str], found: Mapping[str, Arrays], shapes: Shapes) -> tuple[str | None, int]:
    """The joint bias of a weight and its side, which is that of the factor with one row more."""
    if name not in biases:
        return None, 1
    rows = shapes[name][0] if shapes.get(name) else 0
    return biases[name], 0 if len(found["left"][name]) == rows + 1 else 1


def _by_what(arrays: Arrays, suffixes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """what -> initializer -> array, standard deviations squared and biases as text."""
    found: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        what = next((suffix for suffix in suffixes if key.endswith(f"_{suffix}")), None)
        if what is None:
            expected = ", ".join(f"<initializer>_{suffix}" for suffix in suffixes)
            raise PosteriorError(f"key {key!r} is unknown; expected {expected} or {PROBABILITIES}")
        name = key.removesuffix(f"_{what}")
        if what == BIAS:
            if array.dtype.kind != "U" or array.size != 1:
                raise PosteriorError(f"{key!r} is of type {array.dtype}, expected the name of an initializer")
            found.setdefault(what, {})[name] = str(array.reshape(-1)[0])
            continue
        found.setdefault(what, {})[name] = _floats(key, array)
    if twice := set(found.get("variance", {})) & set(found.get(DEVIATION, {})):
        raise PosteriorError("the archive mixes variances and standard deviations", node=sorted(twice)[0])
    if DEVIATION in found:
        found[DEVIATION] = dict(from_standard_deviations(found[DEVIATION]).variances)
    return found


def _mixed(found: Mapping[str, Any]) -> PosteriorError:
    known = "; ".join(f"{family}: {', '.join(whats)}" for family, whats in STORED.items())
    return PosteriorError(f"the archive mixes {', '.join(found)}, which is no family ({known})")


def _floats(key: str, array: NDArray[Any]) -> Floats:
    if array.dtype.kind not in "fiu":
        raise PosteriorError(f"{key!r} is of type {array.dtype}, expected numbers")
    return array.astype(np.float64)
