"""One call: a network, its posterior, labelled inputs and a radius in; bounds and verdicts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.batch import BatchResult, verify_batch
from bnn_vnnlib.errors import InputError, OptionError, PosteriorError, did_you_mean
from bnn_vnnlib.question.options import OptionFields, takes_options
from bnn_vnnlib.result import Query
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn

    from bnn_vnnlib.adapters import Adapted
    from bnn_vnnlib.network.network import Model, Posterior
    from bnn_vnnlib.signature import Likelihood


@plain_state()
@takes_options(without=("outputs", "strict"))
def certify(
    net: Model | Adapted | nn.Module | ModelProto | str | Path,
    x: ArrayLike,
    y: ArrayLike | None = None,
    eps: ArrayLike = 0.0,
    *,
    posterior: Mapping[str, ArrayLike] | Sequence[nn.Module] | Posterior | None = None,
    delta: ArrayLike | None = None,
    clip: tuple[ArrayLike, ArrayLike] | None = None,
    query: Query | str | None = None,
    **options: Unpack[OptionFields],
) -> BatchResult:
    """Does the network do what it should for all inputs near each of x? `.summary()`, `.to_dataframe()`, `.plot()`.

    Parameters
    ----------
    net : an ONNX file or model, a torch module, a `Model`, or what an adapter of another library returns
    x : (N, ...) inputs
    y : (N,) classes: the class must stay the largest output. With `delta`, (N,) or (N, m) values: every output must
        stay within `delta` of them. None: the mean network's own
    eps : how far each number of an input may change: one number, or one for each number
    posterior : of a module or an ONNX model without one. {parameter: standard deviations, in its shape},
        {parameter: (S, *shape) samples}, further modules (the members of an ensemble, with `net` the first), or a
        posterior of `bnn_vnnlib.model`. Parameters that it leaves out stay certain
    delta : regression: one number, or (m,)
    clip : (low, high), the range of values that inputs may have; each one number, or one for each number of an input
    query : what is asked, as in `verify`
    {options}

    Raises
    ------
    InputError : what does not fit, by name, before any work
    """
    from bnn_vnnlib.batch import _array
    from bnn_vnnlib.sweeps.inputs import make_balls, make_target

    model = _as_model(net, x, posterior, options.get("likelihood"), regression=delta is not None)
    size = model.network.signature.input_size
    inputs = np.asarray(_array(x), np.float64)
    shape = [side for variable in model.network.signature.inputs for side in variable.shape if side > 1]
    if inputs.ndim < 2 or inputs.size != len(inputs) * size:
        raise InputError(f"x must hold N inputs of {size} numbers, found shape {inputs.shape}")
    if inputs.ndim > 2 and [side for side in inputs.shape[1:] if side > 1] != shape and len(shape) > 1:
        raise InputError(
            f"x has shape {inputs.shape}, the network takes {tuple(shape)} for each input: bring it into that order"
        )
    flat = inputs.reshape(len(inputs), size)
    width = np.asarray(_array(eps), np.float64)
    width = width.ravel() if width.size == size else width
    if width.size not in (1, size) or not (np.isfinite(width) & (width >= 0)).all():
        raise OptionError(f"eps must be one number, or {size} of them, finite and not negative; found {eps!r}")
    low, high = (None, None) if clip is None else (np.asarray(_array(end), np.float64) for end in clip)
    low, high = (end if end is None or end.size == 1 else end.ravel() for end in (low, high))
    balls = make_balls(flat, np.broadcast_to(width, (size,)), low, high)
    target = make_target(
        model, len(flat), None if y is None or delta is not None else _classes(_array(y)),
        None if y is None or delta is None else _array(y), None if delta is None else _array(delta),
    )  # fmt: skip
    lower, upper = balls.boxes(np.arange(len(flat)), np.ones(len(flat)))
    asked = target.asked(model, flat).arguments(model.network.signature.output_size)
    return verify_batch(model, lower, upper, **asked, query=query, **options)


def _classes(y: NDArray) -> NDArray:
    """Whole numbers, of whatever type."""
    if y.dtype.kind == "f" and (y == np.round(y)).all():
        return y.astype(np.int64)
    return y


def _as_model(net: Any, x: ArrayLike, posterior: Any, likelihood: Likelihood | None, *, regression: bool) -> Model:
    """The model behind whatever was given, with its posterior."""
    from bnn_vnnlib.adapters.adapted import Adapted, adapt
    from bnn_vnnlib.adapters.samples import from_ensemble, network_of, shapes_of
    from bnn_vnnlib.model import Model, model_from_proto, read_model

    if isinstance(net, Adapted | Model):
        if posterior is not None:
            raise OptionError("the network has its posterior already: leave out posterior")
        return net.model if isinstance(net, Adapted) else net
    likelihood = likelihood or ("gaussian" if regression else None)
    is_module = hasattr(net, "named_parameters")
    if posterior is None:
        if is_module:
            return model_from_proto(network_of(net, x), likelihood=likelihood or "categorical")
        read = read_model if isinstance(net, str | Path) else model_from_proto
        return read(net, likelihood=likelihood)
    if isinstance(posterior, list | tuple):
        if not is_module:
            raise OptionError("an ensemble is made of torch modules; give weight samples {name: (S, *shape)} instead")
        return from_ensemble([net, *posterior], _tensor(net, x), likelihood=likelihood or "categorical").model
    proto = network_of(net, x)
    likelihood = likelihood or ("categorical" if is_module else None)
    if not isinstance(posterior, Mapping):
        return adapt(proto, posterior, likelihood).model
    return adapt(proto, _posterior_of(posterior, shapes_of(proto)), likelihood).model


def _posterior_of(given: Mapping[str, ArrayLike], shapes: Mapping[str, tuple[int, ...]]) -> Posterior:
    """The posterior of parameters for which standard deviations are given, or samples."""
    from bnn_vnnlib.model import GaussianDiagonal, WeightSamples

    values = {name: _float(part) for name, part in given.items()}
    for name, part in values.items():
        if name not in shapes:
            raise PosteriorError(f"the network has no parameter {name!r}{did_you_mean(name, shapes)}")
        if part.shape != shapes[name] and part.shape[1:] != shapes[name]:
            wanted = f"{shapes[name]} for standard deviations, or (S, *{shapes[name]}) for samples"
            raise PosteriorError(f"has shape {part.shape}, expected {wanted}", node=name)
    if all(part.shape == shapes[name] for name, part in values.items()):
        for name, part in values.items():
            if not (np.isfinite(part) & (part >= 0)).all():
                raise PosteriorError("standard deviations must be finite and not negative", node=name)
        return GaussianDiagonal({name: part**2 for name, part in values.items()})
    counts = {len(part) for name, part in values.items() if part.shape != shapes[name]}
    if len(counts) > 1 or any(part.shape == shapes[name] for name, part in values.items()):
        raise PosteriorError("every parameter needs the same number of samples, along its first axis")
    count = counts.pop()
    return WeightSamples(values, np.full(count, 1 / count))


def _float(values: Any) -> NDArray[np.float64]:
    from bnn_vnnlib.adapters.adapted import array

    return array(values)


def _tensor(net: Any, x: ArrayLike) -> Any:
    import torch

    parameter = next(net.parameters(), None)
    return torch.tensor(_float(x), dtype=torch.get_default_dtype() if parameter is None else parameter.dtype)
