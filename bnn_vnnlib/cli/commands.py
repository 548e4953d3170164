"""The application: the root's options and the table of commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bnn_vnnlib import __version__
from bnn_vnnlib.cli.attach import attach
from bnn_vnnlib.cli.check_witness import check_witness
from bnn_vnnlib.cli.compare import compare
from bnn_vnnlib.cli.convert import convert
from bnn_vnnlib.cli.explain import explain
from bnn_vnnlib.cli.guard import NAME, in_plain_words
from bnn_vnnlib.cli.inspect import inspect
from bnn_vnnlib.cli.mean import mean
from bnn_vnnlib.cli.merge import merge
from bnn_vnnlib.cli.property import property
from bnn_vnnlib.cli.radius import radius
from bnn_vnnlib.cli.recover import recover
from bnn_vnnlib.cli.report import report
from bnn_vnnlib.cli.run import run
from bnn_vnnlib.cli.sample import sample
from bnn_vnnlib.cli.simplify import simplify
from bnn_vnnlib.cli.supports import supports
from bnn_vnnlib.cli.sweep import sweep
from bnn_vnnlib.cli.uncertainty import uncertainty
from bnn_vnnlib.cli.verify import verify
from bnn_vnnlib.system.heap import keep_freed_memory
from bnn_vnnlib.system.isolation import forget_current_folder


class Commands(TyperGroup):
    """The commands; what the parser of options has to say is said in words of ours."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # click's context, under its other name
        """Run a command, with its errors as exit codes."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = in_plain_words(error.message)
            raise


app = typer.Typer(
    cls=Commands,
    name=NAME,
    help="Sound verification of Bayesian neural networks: ONNX and VNN-LIB in, guaranteed bounds out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script."""
    forget_current_folder()
    keep_freed_memory()
    # The CPU time spent so far stands for the interpreter's start, which the time limit counts too.
    app(args, obj=time.monotonic() - time.process_time())


def _say(text: str) -> Callable[[bool], None]:
    def callback(asked: bool) -> None:
        if asked:
            typer.echo(text)
            raise typer.Exit

    return callback


@app.callback()
def root(
    name: Annotated[bool, typer.Option("--name", is_eager=True, callback=_say(NAME), help="Print the name.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say(__version__), help="Print the version.")
    ] = False,
) -> None:
    """Sound verification of Bayesian neural networks: ONNX and VNN-LIB in, guaranteed bounds out."""


COMMANDS = (
    property,
    explain,
    verify,
    run,
    sweep,
    radius,
    uncertainty,
    compare,
    report,
    check_witness,
    inspect,
    attach,
    recover,
    convert,
    simplify,
    merge,
    mean,
    sample,
    supports,
)
"""In the order in which the help lists them."""

for command in COMMANDS:
    app.command()(command)
