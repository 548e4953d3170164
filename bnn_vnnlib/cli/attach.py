"""`bnn-vnnlib attach`: a posterior into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood
from bnn_vnnlib.errors import PosteriorError

_SHOWN = 5
"""Names of tensors that a message lists."""


def attach(
    model: Annotated[Path, typer.Argument(help="The ONNX model of the posterior means; simplify it before.")],
    posterior: Annotated[Path, typer.Argument(help="NumPy archive (.npz) with the posterior.")],
    target: Annotated[Path, typer.Argument(help="The ONNX model to write (.onnx or .onnx.gz).")],
    likelihood: Likelihood = None,
    require_all: Annotated[
        bool, typer.Option("--require-all", help="Refuse an archive that leaves out a tensor of the model.")
    ] = False,
    embed: Annotated[bool, typer.Option("--embed", help="Also keep the posterior in the metadata.")] = False,
    debug: Debug = False,
) -> None:
    """Write a posterior into an ONNX model.

    The archive holds, for each weight W of the model, W_variance or W_std, or else W_samples of shape (S, shape of W),
    with posterior_probabilities (S) unless all are equal.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_notes
        from bnn_vnnlib.model import attach_file, read_posterior_npz
        from bnn_vnnlib.model.attachment import attach as with_posterior
        from bnn_vnnlib.model.attachment import uncertain_names
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.model.reading import model_from_proto
        from bnn_vnnlib.network.families import names_of

        keep_inputs(target, model, posterior)
        found = read_posterior_npz(posterior, model)
        # Read as it will be written: without a posterior, the reader folds a weight into its products.
        tensors = list(model_from_proto(with_posterior(model, found), path=model).network.tensors)
        unsaid = [name for name in tensors if name not in names_of(found)]
        if require_all and unsaid:
            raise PosteriorError(f"says nothing about {_listed(unsaid)}, and --require-all was given", path=posterior)
        written = attach_file(model, found, target, likelihood=likelihood, embed=embed)
        certain = [name for name in tensors if name not in uncertain_names(found)]
        note = f"{len(tensors) - len(certain)} of {len(tensors)} tensors are uncertain"
        show_notes(console, (f"{note}; not {_listed(certain)}" if certain else note, f"wrote {written}"))


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
