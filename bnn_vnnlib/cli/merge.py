"""`bnn-vnnlib merge`: the posterior predictive as one plain network, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood, Seed


def merge(
    model: Annotated[Path, typer.Argument(help="The ONNX model with weight samples.")],
    target: Annotated[Path, typer.Argument(help="The plain ONNX model to write.")],
    average: Annotated[
        Literal["auto", "outputs", "probabilities"],
        typer.Option(help="What is averaged over the samples; auto: what the decision query asks for."),
    ] = "auto",
    form: Annotated[
        Literal["auto", "blocks", "copies"],
        typer.Option(help="One chain of wide layers, or a copy of the graph for every sample."),
    ] = "auto",
    likelihood: Likelihood = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="How many networks to draw from a Gaussian posterior.")
    ] = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Write the average of all weight samples as ONE plain network.

    A deterministic verifier that is given this network answers the decision query.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_notes
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.model.reading import write_readable
        from bnn_vnnlib.posteriors.merge import merge as merged
        from bnn_vnnlib.posteriors.parts import read_parts

        keep_inputs(target, model)
        parts = read_parts(model, likelihood=likelihood)
        proto, notes = merged(parts, average=average, form=form, draws=n, seed=seed)
        show_notes(console, (*parts.notes, *notes, f"wrote {write_readable(proto, target)}"))
