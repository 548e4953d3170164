"""Write docs/reference: the command line and the files' columns, from the code alone.

    python scripts/reference.py            # write
    python scripts/reference.py --check    # exit code 1 if a page is stale, write nothing

The commands' texts stand in bnn_vnnlib/cli, the columns' in bnn_vnnlib/files/sidecar.py (RECORD),
bnn_vnnlib/runs/tables.py (RESULTS, COLUMNS) and bnn_vnnlib/runs/compare.py (TABLES).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py from the code; change it there. -->"
PLAIN = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


def pages() -> dict[str, str]:
    """The text of each page, by file name."""
    return {"command-line.md": command_line(), "files.md": files()}


def command_line() -> str:
    """Every command with its arguments and options."""
    from bnn_vnnlib.cli.commands import COMMANDS, root

    commands: Sequence[Callable[..., Any]] = COMMANDS
    names = [function.__name__.replace("_", "-") for function in commands]
    lines = [MADE, "# The command line", "", "`bnn-vnnlib COMMAND --help` shows the same. Exit codes are in"]
    lines += ["[semantics.md](../semantics.md)."]
    lines += ["", " | ".join(f"[{name}](#bnn-vnnlib-{name})" for name in names), "", "## bnn-vnnlib", ""]
    lines += _table(("option", "", "default"), _options(root))
    for name, function in zip(names, commands, strict=True):
        lines += ["", f"## bnn-vnnlib {name}", "", *_text(function), "", f"    {_usage(name, function)}", ""]
        rows = [*_arguments(function), *_options(function)]
        lines += _table(("argument or option", "", "default"), rows)
    return "\n".join(lines) + "\n"


def files() -> str:
    """The JSON record and the tables."""
    from bnn_vnnlib.files.sidecar import RECORD, RECORD_FORMAT
    from bnn_vnnlib.runs.compare import TABLES
    from bnn_vnnlib.runs.tables import COLUMNS, RESULTS

    first = ("results_file", "text", "the results file, relative to the run's folder")
    lines = [
        MADE, "# Files: the JSON record and the tables", "",
        "The words are defined in [semantics.md](../semantics.md). The columns of sweeps, radii and uncertainty are in",
        "[sweeps.md](../sweeps.md).", "",
        "## RESULTS_FILE.json", "",
        f'The record of one instance, strict JSON, format {RECORD_FORMAT}. "Infinity" and "-Infinity" are strings, an '
        "absent",
        "value is null. A dot leads into an object; `[i]` says that the value is a list.", "",
        *_table(("key", "meaning"), RECORD.items()), "",
        "## results.csv of `run`", "", "The competition's table; it has no header.", "",
        *_table(("column", "meaning"), RESULTS.items()), "",
        "## table.csv and table.parquet of `run`", "",
        "A list is JSON in CSV, and a list of numbers in Parquet. A number that is not known is empty.", "",
        *_table(("column", "type", "meaning"), [first, *((c.name, c.kind, c.meaning) for c in COLUMNS)]),
    ]  # fmt: skip
    for name, columns in TABLES.items():
        lines += ["", f"## {name} of `compare`", "", *_table(("column", "meaning"), columns.items())]
    return "\n".join(lines) + "\n"


def _text(function: Callable[..., Any]) -> list[str]:
    lines = (inspect.getdoc(function) or "").splitlines()
    return [f"    {line}" if line.startswith("bnn-vnnlib ") else line for line in lines]


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any, ArgumentInfo | OptionInfo, Any]]:
    """Name, type, typer's description and default of every parameter of the command line."""
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if get_origin(parameter.annotation) is Annotated:
            kind, info = get_args(parameter.annotation)[:2]
            yield name, kind, info, parameter.default


def _usage(name: str, function: Callable[..., Any]) -> str:
    required = [
        f"{_names(key, kind, info)[0]} {_value(kind, info)}"
        for key, kind, info, default in _parameters(function)
        if isinstance(info, OptionInfo) and default is inspect.Parameter.empty
    ]
    arguments = [row[0].strip("`") for row in _arguments(function)]
    return " ".join([f"bnn-vnnlib {name}", *arguments, *required, "[OPTIONS]"])


def _arguments(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    for name, kind, info, default in _parameters(function):
        if isinstance(info, ArgumentInfo):
            several = "..." if get_origin(_one(kind)) is list else ""
            yield f"`{info.metavar or name.upper()}{several}`", _help(info), _default(info, default)


def _options(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    for name, kind, info, default in _parameters(function):
        if isinstance(info, OptionInfo):
            spelt = ", ".join(f"`{spelling}`" for spelling in _names(name, kind, info))
            value = _value(kind, info)
            variable = f" Environment: `{info.envvar}`." if info.envvar else ""
            yield f"{spelt} {value and f'`{value}`'}".strip(), _help(info) + variable, _default(info, default)


def _names(name: str, kind: Any, info: ArgumentInfo | OptionInfo) -> list[str]:
    # Inside Annotated, typer keeps the first spelling where its default would be.
    spelt = [decl for decl in (info.default, *(info.param_decls or ())) if isinstance(decl, str)]
    if spelt:
        return [spelling for decl in spelt for spelling in decl.split("/")]
    long = f"--{name.replace('_', '-')}"
    return [long, f"--no-{long[2:]}"] if _one(kind) is bool else [long]


def _one(kind: Any) -> Any:
    """The type without None."""
    if get_origin(kind) in (Union, UnionType):
        return next(part for part in get_args(kind) if part is not NoneType)
    return kind


def _value(kind: Any, info: ArgumentInfo | OptionInfo) -> str:
    kind = _one(kind)
    if kind is bool:
        return ""
    several = get_origin(kind) is list
    kind = get_args(kind)[0] if several else kind
    if info.metavar:
        shown = info.metavar
    elif get_origin(kind) is Literal:
        shown = "|".join(map(str, get_args(kind)))
    else:
        shown = PLAIN[kind]
    return f"{shown} (repeatable)" if several else shown


def _help(info: ArgumentInfo | OptionInfo) -> str:
    return " ".join((info.help or "").split())


def _default(info: ArgumentInfo | OptionInfo, default: Any) -> str:
    if isinstance(info.show_default, str):
        return info.show_default
    if default is inspect.Parameter.empty:
        return "required"
    return "" if default is None or default is False else f"`{default}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if a page is stale.")] = False,
) -> None:
    """Write the pages, or say which of them are stale."""
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'stale' if check else 'written'}: {', '.join(stale)}", file=sys.stderr)
    raise typer.Exit(int(check and bool(stale)))


if __name__ == "__main__":
    typer.run(main)
