"""The application: the root's options and the table of commands."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.models import OptionInfo

from bnn_vnnlib import __version__
from bnn_vnnlib.cli.attach import attach
from bnn_vnnlib.cli.attack import attack
from bnn_vnnlib.cli.check_certificates import check_certificates
from bnn_vnnlib.cli.check_witness import check_witness
from bnn_vnnlib.cli.compare import compare
from bnn_vnnlib.cli.convert import convert
from bnn_vnnlib.cli.estimate import estimate
from bnn_vnnlib.cli.explain import explain
from bnn_vnnlib.cli.guard import NAME, in_plain_words, silent
from bnn_vnnlib.cli.inspect import inspect as inspect_
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


_ASKED, _BOUNDED, _PLACES, _FILES = "What is asked", "How it is bounded", "Time, memory, machines", "Files"
GROUPS = {
    **dict.fromkeys(
        ("query", "tau_safe", "tau_unsafe", "likelihood", "rule", "outputs", "strict", "mixed", "shrink", "threshold",
         "delta", "predicted", "clip", "tau", "epistemic", "largest", "tolerance", "first", "radius", "coupling",
         "goal", "gap", "guarantee", "confidence", "draws", "drawn_layers"), _ASKED,
    ),
    **dict.fromkeys(("method", "boxes", "num_boxes", "margin", "restarts", "search", "quick"), _BOUNDED),
    **dict.fromkeys(
        ("timeout", "memory", "device", "seed", "workers", "threads", "scheduler", "chunk", "fresh"), _PLACES
    ),
    **dict.fromkeys(("results_file", "json_file", "serialise_assignments", "certificate", "out", "posterior"), _FILES),
}  # fmt: skip
"""Option -> the group in which the help shows it, unless its command says another; the rest stand by themselves."""

EXAMPLES = {
    "property": (
        "property robust --center x.npy --radius 0.02 --clip 0 1 --network net.onnx -o p.vnnlib",
        "property within --lower 10,0.2 --upper 12,0.3 --least 0 --outputs 1 -o p.vnnlib",
        "property robust --center test.csv --radius 0.1 --network net.onnx --benchmark bench",
        "property fair --sensitive 0 --eps 0.05 --delta 0.3 --lower 0 --upper 1 --network net.onnx -o p.vnnlib",
    ),
    "explain": ("explain p.vnnlib --network net.onnx",),
    "verify": (
        "verify p.vnnlib --network net.onnx --timeout 60",
        "verify p.vnnlib --network net.onnx --query decision --results-file out.txt",
    ),
    "estimate": ("estimate p.vnnlib --network net.onnx --n 500",),
    "attack": (
        "attack p.vnnlib --network net.onnx -o witness.txt",
        "attack p.vnnlib --network net.onnx --query decision --outputs probabilities",
    ),
    "run": (
        "run benchmark --out results --workers 4",
        "run benchmark --out results --query decision --only '*robust*'",
    ),
    "sweep": ("sweep net.onnx boxes.npz --out results",),
    "radius": ("radius net.onnx inputs.npz --out results --threshold 0.9 --clip 0 1",),
    "uncertainty": ("uncertainty net.onnx inputs.npz --out results -r 0.01 -r 0.05",),
    "compare": ("compare benchmark --out results --tool abcrown=/opt/abcrown/vnncomp_scripts",),
    "report": ("report results", "report results --against older-results --out page.html"),
    "check_witness": ("check-witness net.onnx p.vnnlib out.txt",),
    "check_certificates": ("check-certificates results",),
    "inspect": ("inspect net.onnx", "inspect net.onnx --cross-check"),
    "attach": ("attach mean.onnx posterior.npz net.onnx --likelihood categorical",),
    "recover": ("recover export.onnx net.onnx --likelihood categorical",),
    "convert": (
        "convert net.onnx bnn.onnx --likelihood categorical --relative-sd 0.01",
        "convert net.onnx bnn.onnx --likelihood gaussian --fit laplace --data train.npz",
    ),
    "simplify": ("simplify net.onnx small.onnx --tool onnxruntime",),
    "merge": ("merge ensemble.onnx plain.onnx",),
    "mean": ("mean net.onnx plain.onnx",),
    "sample": ("sample net.onnx folder --n 20",),
    "supports": ("supports --vnnlib-versions",),
}
"""What the help of each command shows, without the program's name."""

_QUIET = inspect.Parameter(
    "quiet", inspect.Parameter.KEYWORD_ONLY, default=False,
    annotation=Annotated[bool, typer.Option("--quiet", help="Print nothing but errors on standard error.")],
)  # fmt: skip


def presented(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--quiet`, its options in groups, words of a choice in the help, and examples."""
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def called(*args: Any, quiet: bool = False, **given: Any) -> None:
        with silent(quiet):
            command(*args, **given)

    shown = [_shown(one) for one in signature.parameters.values()]
    called.__signature__ = signature.replace(parameters=[*shown, _QUIET])  # type: ignore[attr-defined]
    examples = [f"{NAME} {line}" for line in EXAMPLES[command.__name__]]
    called.__doc__ = "\n\n".join([inspect.getdoc(command) or "", "Examples:", *examples])
    return called


def _shown(one: inspect.Parameter) -> inspect.Parameter:
    """A parameter in its group; of a choice, the words stand in the text, where they are not cut at a column's end."""
    if get_origin(one.annotation) is not Annotated:
        return one
    kind, info = get_args(one.annotation)[:2]
    changed = copy(info)
    choice = next((part for part in (kind, *get_args(kind)) if get_origin(part) is Literal), None)
    if choice is not None:
        changed.metavar = info.metavar or ("WORD" if isinstance(info, OptionInfo) else one.name.upper())
        words = list(map(str, get_args(choice)))
        if not set(words) <= set(re.findall(r"[\w.]*\w", info.help or "")):
            changed.help = f"{info.help} One of {', '.join(words)}."
    if isinstance(info, OptionInfo):
        changed.rich_help_panel = info.rich_help_panel or GROUPS.get(one.name)
    return one.replace(annotation=Annotated[kind, changed])


_PLAIN: tuple[Callable[..., None], ...] = (
    property,
    explain,
    verify,
    estimate,
    attack,
    run,
    sweep,
    radius,
    uncertainty,
    compare,
    report,
    check_witness,
    check_certificates,
    inspect_,
    attach,
    recover,
    convert,
    simplify,
    merge,
    mean,
    sample,
    supports,
)
COMMANDS = tuple(map(presented, _PLAIN))
"""The commands, in the order in which the help lists them."""

for command in COMMANDS:
    app.command()(command)
