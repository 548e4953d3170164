"""The command line. Only what a command needs is imported, when it needs it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from bnn_vnnlib.outlet import Outlet

NAME = "bnn-vnnlib"
FAULT, REFUSED, INTERRUPTED = 1, 2, 130
# The engine keeps the limit itself; a run that has not come back this many seconds later is ended. Short limits are
# mostly start-up, so they get more.
GRACE, SHORT, SHORT_GRACE = 1.5, 10.0, 5.0

app = typer.Typer(
    name=NAME,
    help="Sound verification of Bayesian neural networks: ONNX and VNN-LIB in, guaranteed bounds out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", envvar="BNN_VNNLIB_DEBUG", help="Show tracebacks.")]
Likelihood = Annotated[
    Literal["categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"] | None,
    typer.Option(help="How the outputs are to be read, where the model does not say."),
]


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script."""
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


@app.command()
def verify(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The property, or the property and the model in any order.")
    ],
    network: Annotated[list[str] | None, typer.Option(metavar="[NAME=]MODEL", help="The ONNX model.")] = None,
    query: Annotated[
        Literal["probabilistic", "decision", "deterministic"] | None,
        typer.Option(help="What is asked; by default probabilistic if the model carries a posterior."),
    ] = None,
    tau_safe: Annotated[float | None, typer.Option(help="unsat if P_safe >= this.", show_default="0.95")] = None,
    tau_unsafe: Annotated[float | None, typer.Option(help="sat if P_safe < this.", show_default="0.95")] = None,
    likelihood: Likelihood = None,
    outputs: Annotated[
        Literal["auto", "probabilities"], typer.Option(help="What Y means under --query decision.")
    ] = "auto",
    method: Annotated[
        Literal["auto", "interval", "linear", "tails"], typer.Option(help="How networks are bounded.")
    ] = "auto",
    boxes: Annotated[Literal["mean", "sampled"], typer.Option(help="Where weight boxes are centred.")] = "mean",
    num_boxes: Annotated[int | None, typer.Option(min=1, help="How many weight boxes.")] = None,
    margin: Annotated[float | None, typer.Option(help="Half-width of a weight box in standard deviations.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds, counted from process start.")] = None,
    results_file: Annotated[Path | None, typer.Option(help="VNN-COMP results file to write.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="JSON record to write.", show_default="RESULTS_FILE.json")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    debug: Debug = False,
) -> None:
    """Decide one property of one model.

    Standard output holds the verdict word and, for sat, the witness; everything else goes to standard error.
    Exit code: 0 any verdict, 2 refused input, 1 a fault of this program.
    """
    started = context.obj if isinstance(context.obj, float) else time.monotonic()
    console = _console()
    with _guard(console, debug):
        from bnn_vnnlib.outlet import Outlet

        _check_positive("--timeout", timeout)
        _check_positive("--margin", margin)
        outlet = Outlet(results_file, json_file, seed, timeout, started)
    with _guard(console, debug, outlet), _in_time(console, outlet) as disarm:
        from bnn_vnnlib.instance import find_files
        from bnn_vnnlib.options import settle
        from bnn_vnnlib.vnnlib import match, read_property

        found = find_files(files, network or [])
        outlet.files = found.by_role
        prop = outlet.prop = read_property(found.prop)
        found.check_name(prop)
        question = settle(prop.options, query, tau_safe, tau_unsafe, path=found.prop)
        outlet.query = question.query

        import bnn_vnnlib

        model = bnn_vnnlib.read_model(found.model, likelihood=likelihood)
        prop = match(prop, model.network.signature, found.prop)
        result = bnn_vnnlib.verify(
            model,
            prop,
            query=question.query,
            tau_safe=question.tau_safe,
            tau_unsafe=question.tau_unsafe,
            likelihood=likelihood,
            outputs=outputs,
            method=method,
            boxes=boxes,
            num_boxes=num_boxes,
            margin=margin,
            timeout=timeout,
            started=started,
            seed=seed,
        )
        disarm()
        outlet.finish(result, prop)
        from bnn_vnnlib.display import show_result

        show_result(console, result)


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    likelihood: Likelihood = None,
    debug: Debug = False,
) -> None:
    """Show what a model holds: network, posterior, how uncertain its weights are; or what of it is not supported."""
    with _guard(_console(), debug):
        from rich.console import Console

        from bnn_vnnlib.display import show_model
        from bnn_vnnlib.model import describe, read_model

        show_model(Console(file=sys.stdout), describe(read_model(model, likelihood=likelihood)))


@app.command()
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
    console = _console()
    with _guard(console, debug):
        from bnn_vnnlib.model import attach_file, read_posterior_npz

        written = attach_file(model, read_posterior_npz(posterior, model), target, likelihood=likelihood, embed=embed)
        console.print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _in_time(console: Console, outlet: Outlet) -> Iterator[Callable[[], None]]:
    """Run the block under a backstop for the time limit; yields what disarms it. Errors disarm it as well."""
    if outlet.timeout is None:
        yield lambda: None
        return
    from bnn_vnnlib.backstop import Backstop

    def last_words() -> None:
        outlet.expire()
        console.print("the time limit ended the run before there were any bounds", soft_wrap=True)

    grace = GRACE if outlet.timeout >= SHORT else SHORT_GRACE
    backstop = Backstop(outlet.started + outlet.timeout + grace - time.monotonic(), last_words)
    try:
        yield backstop.disarm
    finally:
        backstop.disarm()


@contextmanager
def _guard(console: Console, debug: bool, outlet: Outlet | None = None) -> Iterator[None]:
    """Turn every exception into one message and the right exit code, and leave `error` in the results file."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        refused = isinstance(error, InputError)
        reason = str(error) if refused else f"{type(error).__name__}: {error}"
        if debug:
            console.print_exception()
        _complain(console, reason, refused)
        if outlet is not None:
            _record_failure(console, outlet, reason)
        raise typer.Exit(REFUSED if refused else FAULT) from None


def _record_failure(console: Console, outlet: Outlet, reason: str) -> None:
    try:
        outlet.fail(reason)
    except InputError as error:
        _complain(console, str(error), refused=True)


def _complain(console: Console, reason: str, refused: bool) -> None:
    if refused:
        console.print(f"error: {reason}", markup=False, highlight=False, soft_wrap=True)
        return
    console.print(f"internal fault: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"This is a bug in {NAME} {__version__}, not in your input. Please report it with both input files and the "
        "traceback that --debug shows.",
        highlight=False,
        soft_wrap=True,
    )


def _check_positive(option: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise OptionError(f"{option} must be a positive number, found {value}")


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr)
