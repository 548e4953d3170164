"""`bnn-vnnlib recover`: the posterior out of a stochastic export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood, Seed


def recover(
    export: Annotated[Path, typer.Argument(help="An ONNX model that draws its weights when it runs.")],
    target: Annotated[Path, typer.Argument(help="The ONNX model to write (.onnx or .onnx.gz).")],
    likelihood: Likelihood = None,
    frozen_noise: Annotated[
        bool, typer.Option("--frozen-noise", help="Treat the noise that BLiTZ stores in the file as standard normal.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Write so many weighted samples of it instead: of any export that draws networks.",
                     show_default=False),
    ] = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Recover the posterior from a plain stochastic export.

    TARGET is the network of the posterior means, with the posterior attached. If there is none to recover, the message
    says what the export is and what to do. With --samples, TARGET gets that many networks drawn from the export as its
    posterior, whatever it draws (MC dropout, too), for other tools and for certain bounds on these samples.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_notes, show_recovery
        from bnn_vnnlib.errors import OptionError
        from bnn_vnnlib.model import read_model
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.model.recovery import recover_file
        from bnn_vnnlib.posteriors.parts import write_samples

        keep_inputs(target, export)
        if samples is not None:
            if frozen_noise:
                raise OptionError("--frozen-noise is about a Gaussian posterior: leave out --samples")
            model = read_model(export, likelihood=likelihood)
            write_samples(model, target, samples, seed)
            show_notes(console, (*model.notes, f"wrote {samples} weighted samples into {target}"))
            return
        recovery = recover_file(export, target, likelihood=likelihood, frozen_noise=frozen_noise)
        show_recovery(console, recovery, target)
