"""`bnn-vnnlib inspect`: what a model holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood


def inspect(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    likelihood: Likelihood = None,
    debug: Debug = False,
) -> None:
    """Show what a model holds: network, posterior, how uncertain its weights are; or what of it is not supported."""
    with guard(stderr_console(), debug):
        from rich.console import Console

        from bnn_vnnlib.display import show_model
        from bnn_vnnlib.model import describe, read_model

        show_model(Console(file=sys.stdout), describe(read_model(model, likelihood=likelihood)))
