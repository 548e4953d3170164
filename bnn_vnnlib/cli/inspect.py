"""`bnn-vnnlib inspect`: what a model holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import FAULT, guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood


def inspect(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    likelihood: Likelihood = None,
    cross_check: Annotated[
        bool,
        typer.Option(
            "--cross-check",
            help="Have onnx2torch read the graph, too, and compare both readings at random inputs; exit code 1 where "
            "they differ. Needs the extra `torch-tools`.",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Show what a model holds, where it seems to come from, what is missing, or why it is refused."""
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import origin_lines, show_model, show_notes
        from bnn_vnnlib.errors import InputError
        from bnn_vnnlib.model import describe, read_model
        from bnn_vnnlib.model.files import read_proto
        from bnn_vnnlib.posteriors.origin import missing, origin
        from bnn_vnnlib.system.terminal import Terminal

        proto, _ = read_proto(model)
        try:
            read = read_model(model, likelihood=likelihood)
        except InputError:
            show_notes(console, (f"{what}: {text}" for what, text in origin_lines(origin(proto))))
            raise
        show_model(Terminal(sys.stdout), describe(read), origin(proto), missing(read, proto))
        if cross_check:
            from bnn_vnnlib.posteriors import torch_module

            found = torch_module.cross_check(read)
            said = f"two readings of the graph {'agree' if found.agrees else 'DIFFER'}"
            size = (
                f"by at most {found.difference:.2g} at {found.inputs} random inputs (largest output {found.scale:.3g})"
            )
            show_notes(console, (f"{said}: this program's and onnx2torch's are apart {size}",))
            if not found.agrees:
                raise typer.Exit(FAULT)
