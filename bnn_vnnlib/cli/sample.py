"""`bnn-vnnlib sample`: networks drawn from the posterior, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Seed


def sample(
    model: Annotated[Path, typer.Argument(help="The ONNX model with a posterior (or a stochastic export).")],
    folder: Annotated[Path, typer.Argument(help="The folder to write the networks into.")],
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="How many to draw.", show_default="every weight sample once")
    ] = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Write plain networks drawn from the posterior, and networks.csv with the probability of each."""
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_notes
        from bnn_vnnlib.posteriors.parts import INDEX, read_parts, write_drawn

        parts = read_parts(model)
        written = write_drawn(parts, folder, n, seed)
        show_notes(console, (*parts.notes, f"wrote {len(written)} networks and {INDEX} into {folder}"))
