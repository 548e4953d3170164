"""`bnn-vnnlib recover`: the posterior out of a stochastic export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood


def recover(
    export: Annotated[Path, typer.Argument(help="An ONNX model that draws its weights when it runs.")],
    target: Annotated[Path, typer.Argument(help="The ONNX model to write (.onnx or .onnx.gz).")],
    likelihood: Likelihood = None,
    frozen_noise: Annotated[
        bool, typer.Option("--frozen-noise", help="Take the noise that BLiTZ stores in the file for standard normal.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Recover the posterior from a plain stochastic export.

    TARGET is the network of the posterior means, with the posterior attached. Where there is none to be had, the
    message names what the export is and what to do.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_recovery
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.model.recovery import recover_file

        keep_inputs(target, export)
        recovery = recover_file(export, target, likelihood=likelihood, frozen_noise=frozen_noise)
        show_recovery(console, recovery, target)
