"""Plain networks out of a posterior, for deterministic tools: the mean, draws, every sample."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from onnx import ModelProto

from bnn_vnnlib.errors import OptionError, PosteriorError
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.model import WeightSamples, sample
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.network.families import family_of
from bnn_vnnlib.posteriors.parts import Parts, with_values
from bnn_vnnlib.system.environment import plain_state

INDEX = "networks.csv"


@plain_state()
def write_mean(parts: Parts, target: str | Path) -> Path:
    """Write the network of the posterior means."""
    return write_readable(parts.plain, target)


def drawn(parts: Parts, count: int | None, seed: int = 0) -> Iterator[tuple[ModelProto, float]]:
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
def write_drawn(parts: Parts, folder: str | Path, count: int | None, seed: int = 0) -> list[Path]:
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
