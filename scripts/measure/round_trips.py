"""What becomes of an attached posterior when other tools rewrite the file.

    python scripts/measure/round_trips.py MODEL...

For each model and tool: the tool on the file as it is, on the file with an embedded posterior, and `simplify --tool`.
Tools that are not installed are marked so. "kept" means: read with the same set of variances (or samples).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import typer
from onnx import ModelProto
from rich.console import Console
from rich.table import Table

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.model import GaussianDiagonal, WeightSamples, attach, model_from_proto
from bnn_vnnlib.network.network import Floats, Posterior
from bnn_vnnlib.posteriors.parts import FileParts, read_parts
from bnn_vnnlib.posteriors.simplify import Simplifier, cleaned_up, simplified


def entries(posterior: Posterior) -> Floats:
    """All variances (or samples), sorted."""
    if not isinstance(posterior, GaussianDiagonal | WeightSamples):
        raise TypeError("correlated posteriors are not compared here")
    tensors = posterior.variances if isinstance(posterior, GaussianDiagonal) else posterior.samples
    return np.sort(np.concatenate([tensor.reshape(-1) for tensor in tensors.values()]))


def outcome(parts: FileParts, proto: ModelProto) -> str:
    """What our reader makes of a file."""
    try:
        model = model_from_proto(proto)
    except InputError as error:
        return f"refused: {str(error)[:150]}"
    if model.posterior is None or parts.posterior is None:
        return "SILENTLY LOST"
    return "kept" if np.array_equal(entries(model.posterior), entries(parts.posterior)) else "CHANGED"


def cells(parts: FileParts, tool: Simplifier) -> list[str]:
    """The three ways of one tool."""
    found = []
    for embed in (False, True):
        if parts.posterior is None:
            raise typer.BadParameter("the model carries no posterior")
        full = attach(parts.plain, parts.posterior, likelihood=parts.likelihood, embed=embed)
        try:
            found.append(outcome(parts, cleaned_up(tool, full, True)))
        except InputError as error:
            found.append(f"the tool fails: {str(error)[:100]}")
    try:
        proto, notes = simplified(parts, tool)
        found.append(outcome(parts, proto) + (" (without fusions)" if notes else ""))
    except InputError as error:
        found.append(f"refused: {str(error)[:150]}")
    return found


def main(models: Annotated[list[Path], typer.Argument()]) -> None:
    """Print a table."""
    table = Table("model", "tool", "file as it is", "embedded", "simplify --tool")
    for path in models:
        parts = read_parts(path)
        for tool in get_args(Simplifier):
            try:
                label = f"{tool} {version(tool)}"
            except PackageNotFoundError:
                table.add_row(path.stem, tool, "not installed", "", "")
                continue
            table.add_row(path.stem, label, *cells(parts, tool))
    Console(width=220).print(table)


if __name__ == "__main__":
    typer.run(main)
