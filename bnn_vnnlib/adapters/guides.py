"""Guides of Pyro and NumPyro: AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from onnx import ModelProto

from bnn_vnnlib.adapters.adapted import Adapted, array
from bnn_vnnlib.adapters.gaussians import FlatGaussian, placed, successive
from bnn_vnnlib.errors import PosteriorError, UnsupportedError, names_arguments
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import nn

_KNOWN = ("AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal")


@names_arguments
@plain_state(device=False)
def from_pyro_guide(
    guide: Any,
    net: str | Path | ModelProto | nn.Module,
    *,
    likelihood: str | None,
    names: Mapping[str, str] | None = None,
    transposed: bool | Collection[str] | None = None,
    ignore: Collection[str] = (),
    x: ArrayLike | None = None,
    outputs: ArrayLike | None = None,
) -> Adapted:
    """The posterior of a trained guide of Pyro.

    Parameters
    ----------
    guide : AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal or AutoLowRankMultivariateNormal, after training
    net, likelihood, names, transposed, ignore, x : as in `from_samples`; names and shapes are those of the sites
    outputs : (S, N, m), the library's own outputs at x, each drawn independently (pyro.infer.Predictive)

    Raises
    ------
    UnsupportedError : another guide
    PosteriorError : not trained, a site whose values are transformed, names or shapes that do not fit;
        the outputs differ
    """
    kind = _kind(guide)
    trace = getattr(guide, "prototype_trace", None)
    if trace is None:
        raise PosteriorError("the guide has not seen its model yet: train it (SVI.step), or call it once with data")
    sites = dict(trace.iter_stochastic_nodes())
    if kind == "AutoNormal":
        locs = {name: array(_deep(guide.locs, name)) for name in sites}
        scales = {name: array(_deep(guide.scales, name)) for name in sites}
        gaussian = _of_sites(locs, scales)
    else:
        posterior = guide.get_posterior()
        shapes = {name: tuple(shape) for name, shape in guide._unconstrained_shapes.items()}
        gaussian = _of_vector(kind, posterior, successive(shapes))
    for name, site in sites.items():
        if name not in ignore:
            _refuse_transformed(name, gaussian, _pyro_value(site, gaussian.mean[gaussian.positions[name]]))
    options = {"names": names, "transposed": transposed, "ignore": ignore, "x": x, "outputs": outputs}
    return placed(net, gaussian, likelihood=likelihood, **options)  # type: ignore[arg-type]


@names_arguments
@plain_state(device=False)
def from_numpyro_guide(
    guide: Any,
    params: Mapping[str, Any],
    net: str | Path | ModelProto | nn.Module,
    *,
    likelihood: str | None,
    names: Mapping[str, str] | None = None,
    transposed: bool | Collection[str] | None = None,
    ignore: Collection[str] = (),
    x: ArrayLike | None = None,
    outputs: ArrayLike | None = None,
) -> Adapted:
    """The posterior of a trained guide of NumPyro.

    Parameters
    ----------
    guide : AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal or AutoLowRankMultivariateNormal
    params : what training found: `SVIRunResult.params` or `SVI.get_params(state)`
    net, likelihood, names, transposed, ignore, x, outputs : as in `from_pyro_guide`

    Raises
    ------
    UnsupportedError, PosteriorError : as in `from_pyro_guide`
    """
    kind = _kind(guide)
    if getattr(guide, "prototype_trace", None) is None:
        raise PosteriorError("the guide has not seen its model yet: train it (SVI.run), or call it once with data")
    sites = [n for n, site in guide.prototype_trace.items() if site["type"] == "sample" and not site["is_observed"]]
    medians = {name: value for name, value in guide.median(params).items() if name in sites}
    if kind == "AutoNormal":
        locs = {name: array(params[f"{name}_{guide.prefix}_loc"]) for name in medians}
        scales = {name: array(params[f"{name}_{guide.prefix}_scale"]) for name in medians}
        gaussian = _of_sites(locs, scales)
    else:
        posterior = guide.get_posterior(params)
        # positions through the library's own unpacking: float32 holds them exactly up to 2^24
        unpacked = guide._unpack_latent(np.arange(len(array(posterior.mean)), dtype=np.float32))
        positions = {name: array(part).astype(np.int64) for name, part in unpacked.items()}
        gaussian = _of_vector(kind, posterior, positions)
    for name, value in medians.items():
        if name not in ignore:
            _refuse_transformed(name, gaussian, array(value))
    options = {"names": names, "transposed": transposed, "ignore": ignore, "x": x, "outputs": outputs}
    return placed(net, gaussian, likelihood=likelihood, **options)  # type: ignore[arg-type]


def _kind(guide: Any) -> str:
    kind = type(guide).__name__
    if kind not in _KNOWN:
        raise UnsupportedError(
            f"guide {kind} is not known; known: {', '.join(_KNOWN)}. Draw weights from it and use from_samples"
        )
    return kind


def _deep(module: Any, name: str) -> Any:
    """Pyro keeps the parameters of site fc1.weight at guide.locs.fc1.weight."""
    return reduce(getattr, name.split("."), module)


def _of_sites(locs: Mapping[str, Any], scales: Mapping[str, Any]) -> FlatGaussian:
    mean = np.concatenate([loc.ravel() for loc in locs.values()])
    deviation = np.concatenate([np.broadcast_to(scales[name], loc.shape).ravel() for name, loc in locs.items()])
    return FlatGaussian(mean, deviation, None, successive({name: loc.shape for name, loc in locs.items()}))


def _of_vector(kind: str, posterior: Any, positions: Mapping[str, Any]) -> FlatGaussian:
    mean = array(posterior.mean)
    if kind == "AutoDiagonalNormal":
        return FlatGaussian(
            mean, array(posterior.stddev if hasattr(posterior, "stddev") else posterior.scale), None, positions
        )
    if kind == "AutoMultivariateNormal":
        return FlatGaussian(mean, None, array(posterior.scale_tril), positions)
    return FlatGaussian(mean, np.sqrt(array(posterior.cov_diag)), array(posterior.cov_factor), positions)


def _pyro_value(site: Any, unconstrained: Any) -> Any:
    """The site's value in the model for a value of the guide's Gaussian."""
    import torch

    return array(torch.distributions.biject_to(site["fn"].support)(torch.tensor(unconstrained)))


def _refuse_transformed(name: str, gaussian: FlatGaussian, value: Any) -> None:
    """A site on a part of the reals is Gaussian before its transform only."""
    loc = gaussian.mean[gaussian.positions[name]]
    if value.shape != loc.shape or not np.allclose(value, loc, rtol=1e-6, atol=1e-7):
        raise PosteriorError(
            "does not range over all reals, so that the guide transforms it and its posterior is no Gaussian. Leave it "
            f"out (ignore=[{name!r}]) if it is no weight; otherwise draw weights and use from_samples",
            node=name,
        )
