"""`bnn-vnnlib mean`: the network of the posterior means, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug


def mean(
    model: Annotated[Path, typer.Argument(help="The ONNX model with a posterior (or a stochastic export).")],
    target: Annotated[Path, typer.Argument(help="The plain ONNX model to write.")],
    debug: Debug = False,
) -> None:
    """Write the plain network of the posterior means."""
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_notes
        from bnn_vnnlib.model import Mixture, WeightSamples
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.posteriors.parts import read_parts, write_mean

        keep_inputs(target, model)
        parts = read_parts(model)
        written = write_mean(parts, target)
        notes = list(parts.notes)
        if isinstance(parts.posterior, WeightSamples):
            notes.append("the mean of weight samples is not the predictive mean, and may mean little: see merge")
        if isinstance(parts.posterior, Mixture):
            notes.append("the mean of a mixture is none of its components, and may mean little: see merge")
        show_notes(console, (*notes, f"wrote {written}"))
