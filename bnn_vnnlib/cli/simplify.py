"""`bnn-vnnlib simplify`: a clean-up that keeps the posterior."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood


def simplify(
    model: Annotated[Path, typer.Argument(help="The ONNX model, with its posterior or without.")],
    target: Annotated[Path, typer.Argument(help="The ONNX model to write.")],
    posterior: Annotated[
        Path | None, typer.Option(help="NumPy archive (.npz) with the posterior, by MODEL's weight names.")
    ] = None,
    tool: Annotated[
        Literal["onnxruntime", "onnxsim", "onnxslim", "onnxoptimizer"], typer.Option(help="What cleans the graph up.")
    ] = "onnxruntime",
    likelihood: Likelihood = None,
    debug: Debug = False,
) -> None:
    """Clean a graph up with another tool, and keep the posterior with its weights even if the tool renames them.

    A tool on its own would drop the posterior, or leave it behind when it changes the weights.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_notes
        from bnn_vnnlib.model import read_posterior_npz
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.model.reading import write_readable
        from bnn_vnnlib.posteriors.parts import read_raw_parts, with_posterior
        from bnn_vnnlib.posteriors.simplify import simplified

        keep_inputs(target, model, posterior)
        source, remarks = read_raw_parts(model, likelihood=likelihood)
        if posterior is not None:
            source = with_posterior(source, read_posterior_npz(posterior, source.plain))
        proto, notes = simplified(source, tool)
        show_notes(console, (*remarks, *notes, f"wrote {write_readable(proto, target)}"))
