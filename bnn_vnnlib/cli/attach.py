"""`bnn-vnnlib attach`: a posterior into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood


def attach(
    model: Annotated[Path, typer.Argument(help="The ONNX model of the posterior means; simplify it before.")],
    posterior: Annotated[Path, typer.Argument(help="NumPy archive (.npz) with the posterior.")],
    target: Annotated[Path, typer.Argument(help="The ONNX model to write (.onnx or .onnx.gz).")],
    likelihood: Likelihood = None,
    embed: Annotated[bool, typer.Option("--embed", help="Keep the posterior in the metadata too.")] = False,
    debug: Debug = False,
) -> None:
    """Write a posterior into an ONNX model.

    The archive holds, per weight W of the model, W_variance or W_std, or else W_samples of shape (S, shape of W), with
    posterior_probabilities (S) unless all are equal.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.model import attach_file, read_posterior_npz

        written = attach_file(model, read_posterior_npz(posterior, model), target, likelihood=likelihood, embed=embed)
        console.print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)
