"""What an adapter hands back: the network, its posterior, and how well both were checked.

1. Does the network with its posterior predict what the library predicts? A check by sampling, with a stated level.
Two samples are compared: outputs (S, N, m) that the library drew, one set of weights for each of the S rows, and as
many outputs that this package draws from the posterior in the file. For each input n and output k the means of three
functions are compared: y_k, (y_k - c_k)^2, and (y_k - c_k)(y_{k+1} - c_{k+1}) (cyclic), c the mean of both samples.
The difference of two means, in standard errors, is close to standard normal where both posteriors are the same; all of
them together stay below the quantile of level / (2 * number of quantities) with probability of at least 1 - level
(Bonferroni). So a wrong row of the table, a scale that is taken for another or a transposed matrix is found as soon
as it moves a mean or a covariance of the outputs by a few standard errors. The check is statistical: that it passes is
evidence, no proof.

2. `Adapted`, and `adapt`, which makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError, PosteriorError, names_arguments
from bnn_vnnlib.model import Model, Posterior, WeightSamples, attach, model_from_proto, sample
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.network.families import checked_likelihood
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from torch import Tensor


# 1. Agreement

DRAWS = 1000
"""How often an adapter lets the library draw, unless it is told otherwise."""

_LEVEL = 1e-4
"""Probability at most that `check_predictive` refuses a posterior that is right (normal approximation)."""

_ROUNDING = 2e-6
"""Allowed beside the statistical error, relative to the largest output: the library computes in float32."""

_ENTRIES = 2**22  # outputs and weights of one batch of draws

Link = Literal["identity", "softmax"]


@dataclass(frozen=True)
class Agreement:
    """How closely the library's predictions were met.

    Attributes
    ----------
    draws : sets of weights on each side
    quantities : how many means were compared
    errors : the largest difference of two means, in standard errors; None if the same weights were compared one by one
    allowed : the largest such difference that passes, the same
    difference : the largest difference of two mean outputs; of two outputs where weights were compared one by one
    """

    draws: int
    quantities: int
    errors: float | None
    allowed: float | None
    difference: float

    def __str__(self) -> str:
        if self.errors is None:
            return f"{self.draws} networks agree, largest difference of an output {self.difference:.1e}"
        return (
            f"{self.quantities} means over {self.draws} draws agree, largest difference {self.errors:.1f} standard "
            f"errors (allowed {self.allowed:.1f})"
        )


@names_arguments
@plain_state()
def check_predictive(
    model: Model, outputs: ArrayLike, x: ArrayLike, *, link: Link = "identity", level: float = _LEVEL, seed: int = 0
) -> Agreement:
    """Compare the library's own predictive with ours, both by sampling.

    Parameters
    ----------
    outputs : (S, N, m) or (S, N, ...): the library's outputs for S >= 100 independent draws of all weights
    x : (N, ...) inputs, best such that were not trained on
    link : "softmax" if the outputs are probabilities and the network ends in logits
    level : probability that a right posterior is refused

    Returns
    -------
    Agreement

    Raises
    ------
    PosteriorError : they differ; names the quantity that differs most
    OptionError : shapes that do not fit, too few draws
    """
    inputs, theirs = _arrays(model, x, outputs)
    if len(theirs) < 100:
        raise OptionError(f"{len(theirs)} draws say too little about a distribution; expected 100 or more")
    ours = np.concatenate([_linked(batch, link) for batch in _drawn(model, inputs, len(theirs), seed)])
    quantities = list(_differences(theirs, ours))
    count = sum(errors.size for _, errors, _ in quantities)
    allowed = NormalDist().inv_cdf(1 - level / (2 * count))
    what, errors, means = max(quantities, key=lambda quantity: float(np.max(quantity[1])))
    worst = float(errors.max())
    if not worst <= allowed:
        n, k = np.unravel_index(int(errors.argmax()), errors.shape)
        library, here = (float(mean[n, k]) for mean in means)
        raise PosteriorError(
            f"the library's predictive is another one: {what} of output {k} at input {n} is {library:.6g} there and "
            f"{here:.6g} here, which is {worst:.1f} standard errors ({allowed:.1f} allowed). The layers draw their "
            "weights in a way that this adapter does not know, or names or layouts are mixed up"
        )
    difference = float(np.abs(theirs.mean(0) - ours.mean(0)).max())
    return Agreement(len(theirs), count, worst, allowed, difference)


@names_arguments
@plain_state()
def check_samples(
    model: Model, outputs: ArrayLike, x: ArrayLike, *, link: Link = "identity", tolerance: float = 1e-4
) -> Agreement:
    """Compare the outputs of every weight sample with the library's, one by one.

    Parameters
    ----------
    outputs : (S, N, m) or (S, N, ...): the library's outputs for each of the model's S weight samples, in their order
    x : (N, ...) inputs
    link : "softmax" if the outputs are probabilities and the network ends in logits
    tolerance : largest difference, relative to the largest output

    Raises
    ------
    PosteriorError : an output differs by more, or the posterior is not made of samples; names the sample
    """
    import torch

    from bnn_vnnlib.network.evaluate import evaluate

    if not isinstance(model.posterior, WeightSamples):
        raise PosteriorError("outputs of weight samples belong to a posterior of weight samples")
    inputs, theirs = _arrays(model, x, outputs)
    if len(theirs) != len(model.posterior.probabilities):
        expected = len(model.posterior.probabilities)
        raise OptionError(
            f"outputs of {len(theirs)} networks, expected those of the {expected} samples, in their order"
        )
    weights = {name: torch.tensor(values) for name, values in model.posterior.samples.items()}
    with torch.no_grad():
        ours = _linked(evaluate(model.network, torch.tensor(inputs), weights, softmax=True), link)
    apart = np.abs(ours - theirs)
    if not apart.max() <= tolerance * max(1.0, float(np.abs(theirs).max())):
        s, n, k = np.unravel_index(int(apart.argmax()), apart.shape)
        raise PosteriorError(
            f"sample {s} computes another function: output {k} at input {n} is {theirs[s, n, k]:.6g} in the library "
            f"and {ours[s, n, k]:.6g} here; names or layouts are mixed up, or the network is another one"
        )
    return Agreement(len(theirs), theirs.size, None, None, float(apart.max()))


def _arrays(model: Model, x: ArrayLike, outputs: ArrayLike) -> tuple[Floats, Floats]:
    """Inputs (N, n) and outputs (S, N, m), flattened as the network has them."""
    inputs, theirs = array(x), array(outputs)
    n, m = model.network.signature.input_size, model.network.signature.output_size
    if not len(inputs) or inputs.size != len(inputs) * n:
        raise OptionError(f"x has shape {inputs.shape}, expected (N, {n}) or (N, ...) of that size")
    draws = len(theirs) if theirs.ndim else 0
    if theirs.size != draws * len(inputs) * m or not _in_order(theirs.shape, len(inputs)):
        raise OptionError(f"the outputs have shape {theirs.shape}, expected (draws, {len(inputs)}, {m})")
    if not np.isfinite(theirs).all():
        raise OptionError("the library's outputs hold NaN or infinite entries")
    return inputs.reshape(len(inputs), n), theirs.reshape(len(theirs), len(inputs), m)


def _in_order(shape: tuple[int, ...], count: int) -> bool:
    """Whether the inputs are the second axis, axes of length 1 aside: Pyro puts such axes where plates could be."""
    return count == 1 or next((length for length in shape[1:] if length != 1), 1) == count


def array(values: ArrayLike) -> Floats:
    """Numbers of NumPy, torch, JAX or TensorFlow as float64."""
    detached = values.detach().cpu() if hasattr(values, "detach") else values
    found: Floats = np.asarray(detached).astype(np.float64)
    return found


def drawn_outputs(forward: Callable[[], ArrayLike], draws: int) -> Floats:
    """Outputs (draws, N, ...) of a network that draws its weights whenever it is called."""
    return np.stack([array(forward()) for _ in range(draws)])


def _drawn(model: Model, inputs: Floats, count: int, seed: int) -> Iterator[Tensor]:
    """Outputs (K, N, m) of `count` sets of weights, in batches."""
    import torch

    from bnn_vnnlib.network.evaluate import evaluate

    if model.posterior is None:
        raise PosteriorError("the model carries no posterior, so there is nothing to draw from")
    network = model.network
    widest = max(np.prod(node.shape, dtype=int) for node in network.nodes)
    entries = len(inputs) * int(widest) + sum(tensor.size for tensor in network.tensors.values())
    batch = max(1, _ENTRIES // entries)
    generator = torch.Generator().manual_seed(seed)
    points = torch.tensor(inputs)
    with torch.no_grad():
        for start in range(0, count, batch):
            weights = sample(network, model.posterior, min(batch, count - start), generator)
            yield evaluate(network, points, weights, softmax=True)


def _linked(outputs: Tensor, link: Link) -> NDArray:
    if link == "softmax":
        outputs = outputs.softmax(-1)
    drawn: NDArray = outputs.numpy()
    return drawn


def _differences(theirs: Floats, ours: Floats) -> Iterator[tuple[str, Floats, tuple[Floats, Floats]]]:
    """What is compared, the differences of its means (N, m) in standard errors, and both means."""
    centre = (theirs.mean(0) + ours.mean(0)) / 2
    spread = np.sqrt(((theirs - centre) ** 2).mean(0) + ((ours - centre) ** 2).mean(0))  # of both together
    rounding = _ROUNDING * max(1.0, float(np.abs(centre).max()))
    a, b = theirs - centre, ours - centre
    mean, errors = (theirs.mean(0), ours.mean(0)), _errors(a, b, np.full_like(spread, rounding))
    yield "the mean", errors, mean
    yield "the variance", *_compared(a * a, b * b, 2 * rounding * spread + rounding**2)
    if theirs.shape[-1] > 1:
        others = spread + np.roll(spread, -1, -1)
        ab, bb = (values * np.roll(values, -1, -1) for values in (a, b))
        yield "the covariance with the next output", *_compared(ab, bb, rounding * others + rounding**2)


def _compared(a: Floats, b: Floats, slack: Floats) -> tuple[Floats, tuple[Floats, Floats]]:
    return _errors(a, b, slack), (a.mean(0), b.mean(0))


def _errors(a: Floats, b: Floats, slack: Floats) -> Floats:
    """|mean a - mean b|, less what rounding explains, in standard errors; 0 / 0 is agreement."""
    apart = np.maximum(np.abs(a.mean(0) - b.mean(0)) - slack, 0)
    error = np.sqrt(a.var(0, ddof=1) / len(a) + b.var(0, ddof=1) / len(b))
    ratio: Floats = np.divide(apart, error, out=np.where(apart > 0, np.inf, 0.0), where=error > 0)
    return ratio


# 2. Adapted


@dataclass(frozen=True, eq=False)
class Adapted:
    """A Bayesian network out of another library.

    Attributes
    ----------
    proto : the ONNX model with its posterior
    model : the same, read and checked: what `verify` takes
    agreement : how closely the library's own predictions were met; None if they were not compared
    notes : remarks on what was taken over, and how
    """

    proto: ModelProto
    model: Model
    agreement: Agreement | None
    notes: tuple[str, ...]

    def write(self, path: str | Path) -> Path:
        """Write the model with its posterior; the name may end in .gz."""
        return write_readable(self.proto, path)

    def compared(
        self, outputs: Callable[[int], ArrayLike], x: ArrayLike, draws: int, *, link: Link = "identity", seed: int = 0
    ) -> Adapted:
        """Compared (`check_predictive`) with the library's outputs (draws, N, m) at x (N, ...); for 0 draws, not."""
        if not draws:
            return self.noted("not compared with the library's own outputs, as asked for")
        return replace(self, agreement=check_predictive(self.model, outputs(draws), x, link=link, seed=seed + 1))

    def against(
        self, check: Callable[[Model, ArrayLike, ArrayLike], Agreement], x: ArrayLike | None, outputs: ArrayLike | None
    ) -> Adapted:
        """Checked with outputs (S, N, m) of the library at x, where they are given."""
        if outputs is None:
            return self.noted(
                "not compared with the library's own outputs: give x and outputs, or call check_predictive"
            )
        if x is None:
            raise OptionError("outputs need the inputs x at which they were computed")
        return replace(self, agreement=check(self.model, outputs, x))

    def noted(self, *notes: str) -> Adapted:
        """This network with more remarks."""
        return replace(self, notes=(*self.notes, *notes))


def adapt(proto: ModelProto, posterior: Posterior, likelihood: str | None, notes: tuple[str, ...] = ()) -> Adapted:
    """Attach the posterior to the network of its means, and read the result as a file is read.

    Raises
    ------
    InputError : what `attach` and `read_model` refuse
    """
    whole = attach(proto, posterior, likelihood=checked_likelihood(likelihood))
    model = model_from_proto(whole)
    return Adapted(whole, model, None, (*notes, *model.notes))
