"""`bnn-vnnlib sweep`: many boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.long_jobs import Chunk, Out, Threads, Workers, read_source, read_sources, slots, tell_cost
from bnn_vnnlib.cli.options import Debug, Scheduler, with_options
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.jobs.progress import shown
from bnn_vnnlib.printable import printable, say
from bnn_vnnlib.question.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.sweeps import Pair
    from bnn_vnnlib.sweeps.summary import Summary

MAX_LINES = 20
"""Lines of the summary on the terminal; the file has all."""


@with_options(without=("coupling", "outputs", "timeout"))
def sweep(
    pairs: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL TABLE ...",
            help="An ONNX model and a table of boxes (.npz or .parquet); any number of pairs. A folder stands for the "
            "models that the table names.",
        ),
    ],
    out: Out,
    chunk: Chunk = None,
    points: Annotated[bool, typer.Option("--points", help="Keep the attacked point of each row.")] = False,
    certificates: Annotated[
        str | None,
        typer.Option(metavar="ROW,..", help="Rows to prove again, with certificates in OUT/certificates."),
    ] = None,
    workers: Workers = None,
    threads: Threads = None,
    scheduler: Scheduler = None,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Bound every box of one or several tables, up to millions of them, on one or many networks.

    OUT gets bounds.parquet, a row for each row of the tables, and summary.csv: safe, unsafe and undecided by network
    and label. Needs the extra `parquet`.
    """
    console = stderr_console()
    with guard(console, debug):
        strict, how = options.pop("strict"), Options(**options)
        if len(pairs) % 2:
            raise OptionError(f"models and tables come in pairs, found {len(pairs)} paths")
        read = [_pair(model, table, strict) for model, table in zip(pairs[::2], pairs[1::2], strict=True)]
        from bnn_vnnlib.files.vnncomp import make_writable_folder
        from bnn_vnnlib.sweeps import sweep as swept
        from bnn_vnnlib.sweeps.certificates import chosen, write_certificates

        rows = [] if certificates is None else chosen(certificates, read, how)
        with shown(console, "boxes") as watch:
            found = swept(
                read, how, out=out, chunk=chunk, points=points, **slots(workers, threads, scheduler), watch=watch,
            )  # fmt: skip
        _summary(console, found.summary)
        tell_cost(console, found.spent, "boxes", out)
        if rows:
            make_writable_folder(out / "certificates")
        for row, result in write_certificates(rows, how, out / "certificates"):
            say(console, f"row {row}: {result.verdict.value}; {result.notes[-1]}")


def _pair(model: Path, table: Path, strict: bool) -> Pair:
    from bnn_vnnlib.sweeps import Pair, read_table

    read = read_table(table)
    if strict:
        read.asked.refuse_vacuous(table)
    if not model.is_dir():
        return Pair(read_source(model), read)
    return Pair(read_sources(model, set() if read.network is None else set(read.network.tolist())), read)


def _summary(console: Console, lines: Summary) -> None:
    from rich.table import Table

    shown_ = lines if len(lines) <= MAX_LINES else [line for line in lines if line.network == "all"][-MAX_LINES:]
    table = Table("network", "group", "rows", "safe %", "unsafe %", "open %", "lower", "upper")
    for line in shown_:
        names = printable(line.network), printable(line.group)
        shares = (_share(part, line.rows) for part in (line.safe, line.unsafe, line.undecided))
        table.add_row(*names, str(line.rows), *shares, f"{line.lower:.4f}", f"{line.upper:.4f}")
    console.print(table)


def _share(count: int, rows: int) -> str:
    return f"{100 * count / rows:.2f}" if rows else "-"
