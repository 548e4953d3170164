"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Debug = Annotated[bool, typer.Option("--debug", envvar="BNN_VNNLIB_DEBUG", help="Show tracebacks.")]
Likelihood = Annotated[
    Literal["categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"] | None,
    typer.Option(help="How the outputs are to be read, where the model does not say."),
]
