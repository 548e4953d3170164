"""A model taken apart: the plain network and its posterior; and plain networks for deterministic tools.

1. `read_parts`, and back: `with_posterior`, `with_values`.
2. `write_mean`, `write_drawn`: the network of the means, draws, or every sample.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.errors import InputError, OptionError, PosteriorError, naming
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.model import Likelihood, Model, Posterior, WeightSamples, attach, model_from_proto, sample
from bnn_vnnlib.model.attributes import array_of, holders, inlined, label, reads
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.folding import MOVES
from bnn_vnnlib.model.reading import prepared, read_prepared, write_readable
from bnn_vnnlib.model.recovery import is_stochastic, recover
from bnn_vnnlib.model.recovery.graph import Flow, alone
from bnn_vnnlib.model.stored import stored_posterior, without_posterior
from bnn_vnnlib.network.families import checked_likelihood, family_of, names_of
from bnn_vnnlib.system.environment import plain_state

# 1. Apart, and together again


@dataclass(frozen=True, eq=False)
class RawParts:
    """A file taken apart, its graph not read.

    Attributes
    ----------
    plain : the network alone, with the posterior means
    posterior : None for a deterministic network
    """

    plain: ModelProto
    posterior: Posterior | None
    likelihood: Likelihood | None


@dataclass(frozen=True, eq=False)
class FileParts(RawParts):
    """A file taken apart; `model` is the same, read and checked."""

    model: Model

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks of the reader."""
        return self.model.notes


@plain_state()
def read_parts(path: str | Path, *, likelihood: str | None = None) -> FileParts:
    """Read a file and take it apart; a stochastic export is recovered first.

    Raises
    ------
    InputError : whatever `read_model` refuses
    """
    chosen = checked_likelihood(likelihood)
    proto, found = read_proto(path)
    with naming(found):
        ready = prepared(proto)
        model = read_prepared(ready, likelihood=chosen, path=found)
    stored = None if ready.drawn is not None else model.posterior
    return FileParts(without_posterior(ready.proto, stored), model.posterior, model.likelihood, model)


def read_raw_parts(path: str | Path, *, likelihood: str | None = None) -> tuple[RawParts, tuple[str, ...]]:
    """`read_parts` also for a graph that this program cannot read (yet), with remarks.

    The posterior of such a graph may only be on weights that meet the input as they are, up to moves: what changes a
    weight before it is used would change its posterior, which the reader alone can follow.

    Raises
    ------
    InputError : whatever `read_model` refuses of a posterior
    """
    try:
        parts = read_parts(path, likelihood=likelihood)
    except InputError as reason:
        proto, found = read_proto(path)
        with naming(found):
            proto = recover(proto).proto if is_stochastic(proto) else proto
            posterior, declared, remarks = stored_posterior(proto)
            _refuse_changed(Flow(inlined(proto)), names_of(posterior))
        plain = without_posterior(proto, posterior)
        remarks += (f"as it is, the model cannot be read: {reason}",)
        return RawParts(plain, posterior, checked_likelihood(likelihood) or declared), remarks
    return parts, parts.notes


def _refuse_changed(flow: Flow, names: Collection[str]) -> None:
    """Raise if a node without input changes a weight that carries a posterior."""
    random = set(names)
    for node in flow.nodes:
        if not alone(node) and not random.isdisjoint(reads(node)):
            message = "takes a weight that carries a posterior into a graph of its own, where nothing follows it"
            raise PosteriorError(message, node=label(node))
        if flow.data.isdisjoint(reads(node)) and not random.isdisjoint(reads(node)):
            if node.op_type not in (*MOVES, "Identity"):
                message = "changes a weight that carries a posterior, before the weight meets the input"
                raise PosteriorError(f"{message}; attach the posterior to the tensor that is used", node=label(node))
            random.update(node.output)


def with_posterior(source: RawParts, posterior: Posterior) -> RawParts:
    """The plain network with a posterior from elsewhere.

    Raises
    ------
    PosteriorError : the model has one already, or it does not fit
    """
    if source.posterior is not None:
        raise PosteriorError("the model carries a posterior already; leave the other one out")
    proto = attach(source.plain, posterior, likelihood=source.likelihood)
    if not isinstance(source, FileParts):
        stored = stored_posterior(proto)[0]
        _refuse_changed(Flow(inlined(proto)), names_of(stored))
        return RawParts(without_posterior(proto, stored), stored, source.likelihood)
    model = model_from_proto(proto, path=source.model.path)
    return FileParts(without_posterior(proto, model.posterior), model.posterior, model.likelihood, model)


def with_values(proto: ModelProto, values: Mapping[str, NDArray]) -> ModelProto:
    """A copy with other numbers in some tensors, rounded to the tensors' types."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    tensors = holders(copy)
    for name, array in values.items():
        old = array_of(tensors[name])
        new = np.asarray(array, np.float64).reshape(old.shape).astype(old.dtype)
        tensors[name].CopyFrom(numpy_helper.from_array(np.asarray(new, order="C"), tensors[name].name))
    return copy


# 2. Plain networks

INDEX = "networks.csv"


@plain_state()
def write_mean(parts: FileParts, target: str | Path) -> Path:
    """Write the network of the posterior means."""
    return write_readable(parts.plain, target)


def drawn(parts: FileParts, count: int | None, seed: int = 0) -> Iterator[tuple[ModelProto, float]]:
    """Networks of the posterior, each with its probability.

    Parameters
    ----------
    count : how many are drawn (probability 1 / count each); None = every weight sample once, with its own probability

    Raises
    ------
    PosteriorError : the model has no posterior
    OptionError : every sample of a posterior that is not made of samples
    """
    posterior = parts.posterior
    if posterior is None:
        raise PosteriorError("the model carries no posterior, so there is nothing to draw from", path=parts.model.path)
    if count is None:
        if not isinstance(posterior, WeightSamples):
            family = family_of(posterior)
            raise OptionError(f"a posterior of family {family} has no samples of its own: say how many to draw (--n)")
        for index, probability in enumerate(posterior.probabilities):
            yield (
                with_values(parts.plain, {name: values[index] for name, values in posterior.stored.items()}),
                float(probability),
            )
        return
    import torch

    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        weights = sample(parts.model.network, posterior, 1, generator)
        yield with_values(parts.plain, {name: values[0].numpy() for name, values in weights.items()}), 1 / count


@plain_state()
def write_drawn(parts: FileParts, folder: str | Path, count: int | None, seed: int = 0) -> list[Path]:
    """Write networks of the posterior into a folder, and networks.csv with their probabilities."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = "draw" if count is not None else "sample"
    written, table = [], io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for index, (proto, probability) in enumerate(drawn(parts, count, seed)):
        written.append(write_readable(proto, folder / f"{stem}_{index:04d}.onnx"))
        rows.writerow([written[-1].name, repr(probability)])
    write_text(folder / INDEX, table.getvalue())
    return written


@plain_state()
def write_samples(model: Model, target: str | Path, count: int, seed: int = 0) -> Path:
    """Write the network with so many draws of its posterior as weighted samples, 1 / count each.

    What certain bounds then say is about these networks: of the posterior they are an estimate.

    Raises
    ------
    PosteriorError : the model has no posterior
    """
    import torch

    if model.posterior is None:
        raise PosteriorError("the model carries no posterior, so there is nothing to draw from", path=model.path)
    drawn = sample(model.network, model.posterior, count, torch.Generator().manual_seed(seed))
    samples = WeightSamples({name: values.numpy() for name, values in drawn.items()}, np.full(count, 1 / count))
    proto = attach(ModelProto.FromString(model.onnx_bytes), samples, likelihood=model.likelihood)
    return write_readable(proto, target)
