"""A posterior fitted on the user's data, around (or near) the weights of a deterministic network.

The network is evaluated by `bnn_vnnlib.network.evaluate`, as a torch module whose parameters are the file's tensors. So
the posterior comes out in their names and layouts, a weight that is used twice is one parameter, and batches of any
size run through a graph with one fixed size. The module of `to_torch` has none of the three: onnx2torch copies a shared
weight, keeps operands of MatMul as buffers, which nothing trains, and keeps shapes that the graph fixes to one input.

Laplace approximations are those of laplace-torch, variational ones those of ivon-opt; both are imported when they are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import InputError, OptionError, UnsupportedError
from bnn_vnnlib.model import Network
from bnn_vnnlib.readers import read_npz
from bnn_vnnlib.signature import Likelihood
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    import torch

FitMethod = Literal["laplace", "ivon"]
_JACOBIAN = 2**25
"""Entries of one batch of Jacobians: 256 MB."""


@dataclass(frozen=True, eq=False)
class Data:
    """Training data: x (N, n) flattened as the network reads it; y (N,) classes or (N, m) numbers."""

    x: Floats
    y: NDArray

    @classmethod
    def read(cls, path: Path, network: Network, likelihood: Likelihood) -> Data:
        """Arrays `x` and `y` of a NumPy archive.

        Raises
        ------
        InputError : not an archive, an array missing, shapes or values that do not fit the network
        """
        arrays = read_npz(path)
        if missing := [key for key in ("x", "y") if key not in arrays]:
            raise InputError(f"has no array {missing[0]!r}; expected x and y", path=path)
        n, m = network.signature.input_size, network.signature.output_size
        x, y = arrays["x"], arrays["y"]
        if x.dtype.kind not in "fiu" or not len(x) or x.size != len(x) * n or not np.isfinite(x).all():
            raise InputError(f"x has shape {x.shape}, expected finite numbers (N, {n}) or (N, ...)", path=path)
        if len(y) != len(x):
            raise InputError(f"y has {len(y)} rows, expected {len(x)}", path=path)
        if likelihood == "categorical":
            if y.ndim != 1 or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= m:
                raise InputError(f"y must hold classes, integers from 0 to {m - 1}", path=path)
            return cls(x.reshape(len(x), n).astype(np.float64), y.astype(np.int64))
        if y.dtype.kind not in "fiu" or y.size != len(y) * m or not np.isfinite(y).all():
            raise InputError(f"y has shape {y.shape}, expected finite numbers (N, {m})", path=path)
        return cls(x.reshape(len(x), n).astype(np.float64), y.reshape(len(y), m).astype(np.float64))


_Fitted = tuple[dict[str, Floats], dict[str, Floats], tuple[str, ...]]
"""Means and variances by tensor; notes on how they came about."""


@plain_state()
def fit(
    method: FitMethod,
    network: Network,
    names: Sequence[str],
    data: Data,
    likelihood: Likelihood,
    *,
    epochs: int = 20,
    rate: float = 1e-3,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> _Fitted:
    """Fit a diagonal Gaussian posterior over some tensors: means, variances and notes.

    Parameters
    ----------
    method : "laplace" keeps the means; "ivon" trains on from them, for `epochs` passes over the data at rate `rate`
    progress : called with the number of finished epochs

    Raises
    ------
    UnsupportedError : a likelihood other than categorical and gaussian
    OptionError : the library is not installed
    """
    import torch

    if likelihood not in ("categorical", "gaussian"):
        raise UnsupportedError(f"a posterior is fitted for the likelihoods categorical and gaussian, not {likelihood}")
    with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
        torch.manual_seed(seed)
        module = as_module(network, names)
        noise = _residual(module, data) if likelihood == "gaussian" else 1.0
        if method == "laplace":
            return _laplace(module, names, data, likelihood, noise)
        return _ivon(module, names, data, likelihood, noise, epochs, rate, progress)


def as_module(network: Network, names: Sequence[str]) -> torch.nn.Module:
    """The network as a torch module with these tensors as parameters; x (N, n) -> logits or outputs (N, m), float64."""
    import torch

    from bnn_vnnlib.network.evaluate import evaluate

    class NetworkModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tensors = [torch.nn.Parameter(torch.tensor(network.tensors[name])) for name in names]
            self.weights = torch.nn.ParameterList(tensors)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return evaluate(network, x, dict(zip(names, self.weights, strict=True)))

    return NetworkModule()


def _library(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(f"{package} is not installed: pip install {package} ({error})") from error


def _tensors(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    return torch.tensor(data.x), torch.tensor(data.y)


def _residual(module: torch.nn.Module, data: Data) -> float:
    """Root mean square of the residuals: the noise of a gaussian likelihood."""
    import torch

    x, y = _tensors(data)
    with torch.no_grad():
        square = float(((module(x) - y) ** 2).mean())
    if not square > 0:
        raise OptionError("the network fits the data exactly, which leaves no noise for a gaussian likelihood")
    return float(np.sqrt(square))


def _laplace(
    module: torch.nn.Module, names: Sequence[str], data: Data, likelihood: Likelihood, noise: float
) -> _Fitted:
    """Diagonal Laplace approximation; the prior's precision maximises the marginal likelihood."""
    import torch

    laplace = _library("laplace", "laplace-torch")
    curvature = _library("laplace.curvature", "laplace-torch")
    x, y = _tensors(data)
    with torch.no_grad():
        outputs = module(x[:1]).shape[-1]
    size = sum(parameter.numel() for parameter in module.parameters())
    rows = max(1, min(len(x), _JACOBIAN // (outputs * size)))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=rows)
    kind = "classification" if likelihood == "categorical" else "regression"
    extra = {} if kind == "classification" else {"sigma_noise": noise}
    approximation = laplace.DiagLaplace(module, kind, backend=curvature.CurvlinopsGGN, **extra)
    approximation.fit(loader)
    approximation.optimize_prior_precision(method="marglik")
    variance = approximation.posterior_variance.detach().numpy().astype(np.float64)
    precision = float(np.ravel(approximation.prior_precision.detach().numpy())[0])
    note = f"diagonal Laplace approximation by laplace-torch, prior precision {precision:.4g} by marginal likelihood"
    return *_split(module, names, variance), (note, *_noise_note(kind, noise))


def _ivon(
    module: torch.nn.Module,
    names: Sequence[str],
    data: Data,
    likelihood: Likelihood,
    noise: float,
    epochs: int,
    rate: float,
    progress: Callable[[int], None] | None,
) -> _Fitted:
    """Variational training on from the weights; variance 1 / (N (h + weight decay))."""
    import torch

    ivon = _library("ivon", "ivon-opt")
    x, y = _tensors(data)
    optimizer = ivon.IVON(module.parameters(), lr=rate, ess=len(x), hess_init=1.0, beta2=1 - 1e-3, weight_decay=1e-4)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=min(128, len(x)), shuffle=True
    )
    for epoch in range(epochs):
        for inputs, targets in loader:
            with optimizer.sampled_params(train=True):
                optimizer.zero_grad()
                outputs = module(inputs)
                if likelihood == "categorical":
                    loss = torch.nn.functional.cross_entropy(outputs, targets)
                else:
                    loss = ((outputs - targets) ** 2).sum(-1).mean() / (2 * noise**2)
                loss.backward()
            optimizer.step()
        if progress is not None:
            progress(epoch + 1)
    group = optimizer.param_groups[0]
    variance = 1 / (group["ess"] * (group["hess"].detach().numpy() + group["weight_decay"]))
    note = f"variational posterior by ivon-opt, {epochs} epochs from the network's weights on (the means moved)"
    return *_split(module, names, variance), (note, *_noise_note(likelihood, noise))


def _noise_note(kind: str, noise: float) -> tuple[str, ...]:
    regression = kind in ("regression", "gaussian")
    return (f"noise of the outputs: sd {noise:.4g}, from the residuals (not part of the file)",) if regression else ()


def _split(
    module: torch.nn.Module, names: Sequence[str], variance: Floats
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Means and variances by tensor; the flat variance is in parameter order."""
    means, variances, start = {}, {}, 0
    for name, parameter in zip(names, module.parameters(), strict=True):
        size, shape = parameter.numel(), tuple(parameter.shape)
        means[name] = parameter.detach().numpy().astype(np.float64)
        variances[name] = np.asarray(variance[start : start + size], np.float64).reshape(shape)
        start += size
    return means, variances
