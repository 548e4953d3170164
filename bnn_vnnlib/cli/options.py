"""Options that several commands have; those of `verify` come from `question.options`, texts and all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args

import typer

from bnn_vnnlib import signature
from bnn_vnnlib.question.options import OPTIONS, parameters, signature_with

Command = TypeVar("Command", bound=Callable[..., None])


def with_options(*names: str, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Decorator of a command with `**options: Any`: it gets the options of these names (none: all) as keywords."""

    def decorate(command: Command) -> Command:
        added = [_on_command_line(one) for one in parameters(without) if not names or one.name in names]
        command.__signature__ = signature_with(  # type: ignore[attr-defined]  # where typer looks
            inspect.signature(command, eval_str=True), added
        )
        return command

    return decorate


def _on_command_line(one: inspect.Parameter) -> inspect.Parameter:
    """The parameter as typer reads it. What a value may be is checked by `Options`, which says more than a type."""
    option = OPTIONS[one.name]
    listed = option.words and option.reads is None
    kind: Any = Literal[tuple(map(str, option.words))] if listed else _without_none(one.annotation)
    spelt = [f"--{one.name.replace('_', '-')}"] if kind is bool else []  # and no --no-...
    described = typer.Option(
        *spelt, help=option.help, metavar=("|".join(option.words) or "NAME") if kind is str else None,
        show_default=True if option.unset is None else option.unset,
    )  # fmt: skip
    return one.replace(annotation=Annotated[kind if one.default is not None else kind | None, described])


def _without_none(kind: Any) -> Any:
    return next((part for part in get_args(kind) if part is not NoneType), kind)


Debug = Annotated[bool, typer.Option("--debug", envvar="BNN_VNNLIB_DEBUG", help="Show tracebacks.")]
Likelihood = Annotated[
    signature.Likelihood | None,
    typer.Option(help=OPTIONS["likelihood"].help, show_default=OPTIONS["likelihood"].unset or True),
]
Seed = Annotated[int, typer.Option(min=0, help=OPTIONS["seed"].help)]
Mixed = Annotated[
    bool,
    typer.Option(
        "--mixed", help="Ignore options that do not apply to this instance, with a note; for runs over many instances."
    ),
]
Shrink = Annotated[
    float | None,
    typer.Option(
        help="Ask about smaller boxes around the same inputs: this share, 0 to 1, of each interval's width.",
        show_default=False,
    ),
]
Serialise = Annotated[
    Path | None,
    typer.Option(
        "--serialise-assignments", "--assignments", metavar="FOLDER", help="For a sat: VARIABLE.pb for each variable."
    ),
]
OwnLimit = Annotated[float | None, typer.Option(help="Seconds, in place of every instance's own limit.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Only instances whose CATEGORY/ONNX/VNNLIB contains this pattern (* and ?)."),
]
Rerun = Annotated[
    Literal["never", "failed", "unknown", "all"],
    typer.Option(help="Finished instances to run again: errors; these, unknown and timeout; or all."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Instances at a time.", show_default="cores / threads")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of each instance.", show_default="OMP_NUM_THREADS, else 1")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Address of a Dask scheduler to run on; 'local' starts a cluster on this machine."
    ),
]
