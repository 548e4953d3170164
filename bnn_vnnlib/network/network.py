"""A network (what the ONNX graph computes) and a posterior over its weights.

Every Gaussian here is w = mean + (a linear map of independent standard normal numbers), the mean being
`Network.tensors[name]` (in a mixture: the component's own); where weights depend on each other, it is given by a square
root of their covariance. Tensors that are not listed are deterministic. A class checks itself when it is made; whether
it fits a network is the business of `families.check_posterior`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats as Floats
from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.network.nodes import Node
from bnn_vnnlib.signature import Likelihood, Signature


@dataclass(frozen=True, eq=False)
class Network:
    """A directed acyclic graph of nodes in topological order.

    Attributes
    ----------
    signature : inputs and outputs with concrete shapes and element types, in the model's order
    nodes : topologically ordered; `Node.inputs` are positions in this tuple
    outputs : positions of the nodes that compute the outputs, in the model's order
    tensors : source tensors by name, float64 (float16/32 weights are held exactly)
    softmax_axis : the axis of a Softmax that ends the (single-output) graph, else None. The Softmax itself is not in
        `nodes`: `outputs` then names the logits.
    """

    signature: Signature
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    tensors: Mapping[str, Floats]
    softmax_axis: int | None = None


@dataclass(frozen=True, eq=False)
class GaussianDiagonal:
    """Independent Gaussian weights: mean `Network.tensors[name]`, variance `variances[name]` (same shape, >= 0).

    Tensors that are not listed are deterministic.
    """

    variances: Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class WeightSamples:
    """S weighted samples: `stored[name]` has shape (S, *shape), `probabilities` (S,) sum to 1.

    Tensors that are not listed are the same in every sample. Samples are most of what a run holds: they keep the type
    of the file, and whoever computes with them takes some of them in float64, which holds them exactly.
    """

    stored: Mapping[str, NDArray[Any]]
    probabilities: Floats

    @property
    def samples(self) -> dict[str, Floats]:
        """All samples in float64: a copy, unless that is their type."""
        return {name: np.asarray(values, np.float64) for name, values in self.stored.items()}

    def drawn(self, which: slice | NDArray[np.int64]) -> dict[str, Floats]:
        """Some of the samples, by position, in float64."""
        return {name: np.asarray(values[which], np.float64) for name, values in self.stored.items()}


@dataclass(frozen=True, eq=False)
class GaussianLowRank:
    """w = mean + sum_r z_r factors[.][r] + sqrt(variances) e, with z (k,) common to all tensors and e independent.

    The covariance of the flattened tensors is F' F + diag(variances), with F (k, n) the factors side by side. SWAG,
    AutoLowRankMultivariateNormal.

    Attributes
    ----------
    factors : name -> (k, *shape), the same k for all
    variances : the same names -> (*shape), >= 0
    """

    factors: Mapping[str, Floats]
    variances: Mapping[str, Floats]

    def __post_init__(self) -> None:
        _check_factors(self.factors)
        if set(self.factors) != set(self.variances):
            odd = ", ".join(sorted(set(self.factors) ^ set(self.variances)))
            raise PosteriorError(f"every tensor needs a factor and variances (zeros will do); one is missing for {odd}")
        for name, variance in self.variances.items():
            _check_variances(name, variance)
            if np.shape(variance) != np.shape(self.factors[name])[1:]:
                shapes = f"{np.shape(self.factors[name])}, variances {np.shape(variance)}"
                raise PosteriorError(f"factor has shape {shapes}; expected (k, *shape) and (*shape)", node=name)

    @property
    def rank(self) -> int:
        """k, the number of latent variables."""
        return len(next(iter(self.factors.values())))


@dataclass(frozen=True, eq=False)
class GaussianFull:
    """w = mean + sum_r z_r factors[.][r], z (k,) common to all tensors: any covariance F' F.

    AutoMultivariateNormal, Laplace with a full Hessian (of the network or of its last layer). With F' lower triangular
    in the order of the layers, bounds are tighter; `families.from_covariance` gives that.

    Attributes
    ----------
    factors : name -> (k, *shape), the same k for all
    """

    factors: Mapping[str, Floats]

    def __post_init__(self) -> None:
        _check_factors(self.factors)

    @property
    def rank(self) -> int:
        """k, the number of latent variables."""
        return len(next(iter(self.factors.values())))


@dataclass(frozen=True, eq=False)
class KronLayer:
    """M = mean + left (sqrt(spectrum) * Z) right', Z (a, b) standard normal: Cov M_ij M_kl is
    sum_ab left_ia left_ka spectrum_ab right_jb right_lb.

    M is the weight as a matrix (first axis, all other axes); with a joint bias it has one more row or column, the
    bias, on the side whose factor has one row more. A Kronecker product A (x) B has a spectrum that is an outer product
    of eigenvalues; a general one also holds (A (x) B + prior I)^-1 exactly, which is no Kronecker product.

    Attributes
    ----------
    weight : name of the tensor; a bias on its own is a layer, too
    left : (p, a); right : (q, b); spectrum : (a, b), >= 0
    bias : name of the tensor that is the last row (bias_axis 0) or column (1) of M, or None
    """

    weight: str
    left: Floats
    right: Floats
    spectrum: Floats
    bias: str | None = None
    bias_axis: int = 1

    def __post_init__(self) -> None:
        for what, array in (("left", self.left), ("right", self.right)):
            if np.ndim(array) != 2 or not np.size(array):
                raise PosteriorError(f"{what} has shape {np.shape(array)}, expected a matrix", node=self.weight)
            _check_finite(self.weight, what, array)
        expected = (self.left.shape[1], self.right.shape[1])
        if np.shape(self.spectrum) != expected:
            raise PosteriorError(f"spectrum has shape {np.shape(self.spectrum)}, expected {expected}", node=self.weight)
        _check_variances(self.weight, self.spectrum, "spectrum")
        if self.bias == self.weight:
            raise PosteriorError("a tensor cannot be the bias of itself", node=self.weight)
        if self.bias_axis not in (0, 1):
            raise PosteriorError(f"bias_axis is {self.bias_axis!r}, expected 0 or 1", node=self.weight)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of the layer."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def split(self, matrix: Any) -> dict[str, Any]:
        """Entries of M (.., p, q), array or tensor: (.., rows, columns) of the weight, (.., entries) of the bias."""
        if self.bias is None:
            return {self.weight: matrix}
        if self.bias_axis:
            return {self.weight: matrix[..., :-1], self.bias: matrix[..., -1]}
        return {self.weight: matrix[..., :-1, :], self.bias: matrix[..., -1, :]}

    def marginal(self, name: str) -> KronLayer:
        """The layer of one of its two tensors alone."""
        if self.bias is None:
            return self
        if name == self.weight:
            left, right = (self.left, self.right[:-1]) if self.bias_axis else (self.left[:-1], self.right)
            return KronLayer(name, left, right, self.spectrum)
        if self.bias_axis:
            return KronLayer(name, self.left, self.right[-1:], self.spectrum)
        return KronLayer(name, self.right, self.left[-1:], self.spectrum.T)


@dataclass(frozen=True, eq=False)
class GaussianKron:
    """Layers that are independent of each other, each with a covariance that factors (see `KronLayer`)."""

    layers: tuple[KronLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise PosteriorError("the posterior names no tensor")
        names = [name for layer in self.layers for name in layer.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PosteriorError("belongs to two layers of the Kronecker-factored posterior", node=twice[0])


def _check_factors(factors: Mapping[str, Floats]) -> None:
    if not factors:
        raise PosteriorError("the posterior names no tensor")
    first, rank = next(iter(factors)), None
    for name, factor in factors.items():
        if np.ndim(factor) < 1 or len(factor) == 0:
            raise PosteriorError(f"factor has shape {np.shape(factor)}, expected (k, *shape), k > 0", node=name)
        rank = rank or len(factor)
        if len(factor) != rank:
            message = f"factor has {len(factor)} columns of the covariance's root, that of {first!r} has {rank}"
            raise PosteriorError(f"{message}; they must agree", node=name)
        _check_finite(name, "factor", factor)


def _check_variances(name: str, variances: Floats, what: str = "variances") -> None:
    _check_finite(name, what, variances)
    if (np.asarray(variances) < 0).any():
        raise PosteriorError(f"{what} hold negative entries: the covariance is not positive semi-definite", node=name)


def _check_finite(name: str, what: str, array: Floats) -> None:
    if not np.isfinite(array).all():
        raise PosteriorError(f"{what} holds NaN or infinite entries", node=name)


Correlated = GaussianLowRank | GaussianFull | GaussianKron
"""Gaussians whose weights depend on each other."""

Gaussian = GaussianDiagonal | Correlated


@dataclass(frozen=True, eq=False)
class Component:
    """One part of a mixture: a Gaussian around means of its own.

    means : name -> (*shape), for every tensor of the mixture; posterior : over some of these tensors
    """

    means: Mapping[str, Floats]
    posterior: Gaussian

    def __post_init__(self) -> None:
        for name, mean in self.means.items():
            if not np.isfinite(mean).all():
                raise PosteriorError("the mean of a component holds NaN or infinite entries", node=name)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Component i with probability `probabilities[i]`; the components' means cover the same tensors.

    `Network.tensors` holds the weighted mean, whose network is none of the mixture.
    """

    components: tuple[Component, ...]
    probabilities: Floats

    def __post_init__(self) -> None:
        if not self.components:
            raise PosteriorError("a mixture needs at least one component")
        names = set(self.components[0].means)
        for index, component in enumerate(self.components):
            if set(component.means) != names:
                odd = ", ".join(sorted(names ^ set(component.means)))
                raise PosteriorError(f"the components' means must cover the same tensors; not all have {odd}")
            for name, mean in component.means.items():
                expected = np.shape(self.components[0].means[name])
                if np.shape(mean) != expected:
                    message = f"the mean of component {index} has shape {np.shape(mean)}, expected {expected}"
                    raise PosteriorError(message, node=name)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Any posterior that a function can draw from: flows, masks of dropout, horseshoe priors, ...

    The law is that of the numbers that it returns. Answers with a stated confidence alone serve it.

    Attributes
    ----------
    draw : (count, generator) -> {tensor: (count, *shape)}, always for the same tensors. The rows have to be
        independent and of one law, which nobody can check: no Sobol or antithetic points, no states of one Markov
        chain. All that is random comes from the generator
    names : the tensors
    what : the posterior in words, for messages
    """

    draw: Callable[[int, np.random.Generator], Mapping[str, Any]]
    names: tuple[str, ...]
    what: str = "a function that draws networks"

    def only(self, names: Collection[str]) -> Sampler:
        """The marginal law of some of its tensors."""
        kept = tuple(name for name in self.names if name in names)

        def draw(count: int, rng: np.random.Generator) -> Mapping[str, Any]:
            """Draw all tensors, and keep those that are wanted."""
            found = self.draw(count, rng)
            return {name: found[name] for name in kept}

        return replace(self, draw=draw, names=kept)


@dataclass(frozen=True, eq=False)
class DropoutMasks:
    """Masks of dropout, one for each network: every entry is 0 with probability `ratios[name]`, else 1 / (1 - ratio).

    A mask is a tensor of the network, with mean 1, that multiplies activations; its entries are independent. Answers
    with a stated confidence alone serve it.
    """

    ratios: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, ratio in self.ratios.items():
            if not 0 <= ratio < 1:
                raise PosteriorError(f"the ratio of dropout is {ratio}, expected 0 <= ratio < 1", node=name)


Drawable = Sampler | DropoutMasks
"""Posteriors that networks are drawn from, and that no certain bound serves."""

Posterior = Gaussian | WeightSamples | Mixture | Drawable


@dataclass(frozen=True, eq=False)
class ModelPair:
    """Two models whose inputs and outputs a joint one has side by side.

    coupling : of their draws: same (the second is the first), independent, shared or noise (see `pairs`)
    """

    first: Model
    second: Model
    coupling: str


@dataclass(frozen=True, eq=False)
class Model:
    """What `read_model` returns.

    Attributes
    ----------
    network : the graph; `network.tensors` holds the posterior means (plain weights if there is no posterior)
    posterior : None for a deterministic network
    likelihood : None if the file does not say
    path : where it was read from; None if it was built in memory
    onnx_bytes : the serialised graph, for replay in onnxruntime (external data inlined)
    notes : remarks for the user (posterior accepted by name, unused initializers, ...)
    complete : the network with all outputs, where `network` leaves out those that depend on no input; else None
    pair : the two models that this one joins (`pairs`), or None
    """

    network: Network
    posterior: Posterior | None
    likelihood: Likelihood | None
    path: Path | None
    onnx_bytes: bytes = field(repr=False)
    notes: tuple[str, ...] = ()
    complete: Network | None = None
    pair: ModelPair | None = None

    def drawn_by(self, draw: Callable[[int, np.random.Generator], Mapping[str, Any]]) -> Model:
        """The model with a posterior that a function draws from (`Sampler`), in the place of any other.

        Parameters
        ----------
        draw : (count, generator) -> {name of one of `network.tensors`: (count, *shape)}

        Raises
        ------
        PosteriorError : a tensor that the network does not have, or of another shape
        """
        found = {name: np.shape(values) for name, values in draw(2, np.random.default_rng(0)).items()}
        have = {name: np.shape(tensor) for name, tensor in self.network.tensors.items()}
        for name, shape in found.items():
            if name not in have:
                raise PosteriorError(f"the model has no weight {name!r}; it has {', '.join(have)}", path=self.path)
            if shape != (2, *have[name]):
                raise PosteriorError(f"2 draws have shape {shape}, expected {(2, *have[name])}", node=name)
        if not found:
            raise PosteriorError("the posterior names no tensor", path=self.path)
        return replace(self, posterior=Sampler(draw, tuple(found)))

    def with_outputs_of(self, declared: Signature) -> Model:
        """The model with the outputs that a property declares: all, if it declares as many, constant ones included."""
        if self.complete is None or len(declared.outputs) != len(self.complete.signature.outputs):
            return self
        return replace(self, network=self.complete, complete=None)
