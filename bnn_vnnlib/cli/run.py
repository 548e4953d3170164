"""`bnn-vnnlib run`: many instances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.cli.guard import FAULT, check_positive, guard, stderr_console
from bnn_vnnlib.cli.long_jobs import follow
from bnn_vnnlib.cli.options import Debug, Only, OwnLimit, Rerun, Scheduler, Threads, Workers, with_options
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.printable import printable, say
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.result import Query

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rich.console import Console

    from bnn_vnnlib.jobs.pool import Slots
    from bnn_vnnlib.runs.run import How, Run


@with_options(without=("restarts",))
def run(
    benchmarks: Annotated[
        list[Path],
        typer.Argument(help="Benchmark folders, folders of benchmarks or of version folders, or instances.csv files."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for all results; an interrupted run resumes from it.")],
    query: Annotated[
        list[str] | None,
        typer.Option(help="What is asked of every instance; may be given several times.", show_default="as verify"),
    ] = None,
    timeout: OwnLimit = None,
    only: Only = None,
    rerun: Rerun = "never",
    check: Annotated[bool, typer.Option("--check", help="Check the witness of every sat (check-witness).")] = False,
    certificates: Annotated[
        bool,
        typer.Option("--certificates", help="Write a certificate beside each answer that has one (bnn-vnnlib-check)."),
    ] = False,
    workers: Workers = None,
    threads: Threads = None,
    memory: Annotated[
        float | None, typer.Option(help="GiB of data that an instance may allocate; work is done in portions that fit.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="A new process for every instance.")] = False,
    scheduler: Scheduler = None,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Decide all instances of VNN-COMP benchmarks.

    OUT gets the competition's results.csv and a table with all bounds (table.csv, and table.parquet if pyarrow is
    installed), and under instances/ a results file and a JSON record of each instance; with --certificates also its
    certificate. An instance that crashes or runs out of memory is an error; the run continues. Exit code: 0, or 1 if
    every instance ended in an error.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.jobs.pool import Slots
        from bnn_vnnlib.runs.run import How

        for option, value in (("--timeout", timeout), ("--memory", memory)):
            check_positive(option, value)
        settled = _with_seed(Options(**options), out, rerun)
        how = How(
            queries=_queries(query, options), arguments=("--mixed", *_arguments(settled)),
            seed=settled.seed or 0, timeout=timeout, memory=None if memory is None else memory * 2**30, fresh=fresh,
            check=check, certificates=certificates,
        )  # fmt: skip
        where = Slots.shared(workers, threads, scheduler)
        with _opened(benchmarks, only or [], how, where, out, rerun) as prepared:
            follow(console, prepared, prepared.go(where))
            _summary(prepared, console)


def _with_seed(options: Options, out: Path, rerun: Rerun) -> Options:
    """Counted draws keep the seed of a run that goes on: what was killed or failed is drawn again as it was."""
    from bnn_vnnlib.runs.records import Records

    if options.guarantee == "statistical" and options.seed is None:
        arguments = (Records(out, rerun).settings or {}).get("arguments")
        words = (str(word).partition("=") for word in (arguments if isinstance(arguments, list) else ()))
        earlier = next((value for name, _, value in words if name == "--seed"), "")
        if earlier.isdecimal():
            return replace(options, seed=int(earlier))
    return options.seeded


def _queries(asked: list[str] | None, options: dict[str, Any]) -> tuple[str | None, ...]:
    """The queries that are asked for; refuses what no instance could be run with, and options that belong to none of
    them.
    """
    from bnn_vnnlib.question.options import idle_options, refuse_idle

    queries: tuple[str | None, ...] = tuple(asked) if asked else (None,)
    settled = [Options(query, **options).question().query for query in queries]
    given = Options(**options).given
    idle = [idle_options(query, given) for query in settled if query is not None]
    nowhere = set.intersection(*map(set, idle)) if len(idle) == len(queries) else set()
    refuse_idle(settled[0] or Query.DETERMINISTIC, {name: given[name] for name in nowhere})
    return queries


def _opened(
    benchmarks: list[Path], only: list[str], how: How, where: Slots, out: Path, rerun: Rerun
) -> AbstractContextManager[Run]:
    """The run over the instances that are left."""
    from bnn_vnnlib.files.benchmarks import read_benchmarks
    from bnn_vnnlib.runs.records import Records
    from bnn_vnnlib.runs.run import Run, selected

    instances = selected(read_benchmarks(benchmarks), only)
    if not instances:
        raise OptionError("no instance is left to run" if only else "the tables hold no instances")
    return Run.opened(how.tasks(instances, where.threads), Records(out, rerun), how.settings)


def _arguments(options: Options) -> tuple[str, ...]:
    spelt = {f"--{name.replace('_', '-')}": value for name, value in options.given.items()}
    return tuple(name if value is True else f"{name}={value}" for name, value in spelt.items())


def _summary(prepared: Run, console: Console) -> None:
    """A table, the reasons of errors; exit code 1 if there is nothing but errors."""
    from rich.table import Table

    from bnn_vnnlib.result import Verdict
    from bnn_vnnlib.runs.tables import by_category, causes, first_reasons

    entries = prepared.tables()
    done = [entry.record for entry in entries if entry.verdict is not Verdict.ERROR]
    for name in set.intersection(*(set(record.get("details", {}).get("left_out", [])) for record in done or [{}])):
        console.print(f"{name} applies to none of the instances: the notes in their records say why", soft_wrap=True)
    table = Table("benchmark", *(verdict.value for verdict in Verdict), "s")
    for category, counts, seconds in by_category(entries):
        table.add_row(printable(category), *(str(counts[verdict]) for verdict in Verdict), f"{seconds:.0f}")
    console.print(table)
    if (undecided := causes(entries)) is not None:
        say(console, undecided)
    say(console, f"written to {prepared.records.path}", f"next: bnn-vnnlib report {prepared.records.path}")
    errors = [entry.reason for entry in entries if entry.verdict is Verdict.ERROR]
    if errors:
        head = "every instance ended in an error" if len(errors) == len(entries) else f"{len(errors)} errors"
        say(console, f"{head}:", *(f"  {reason}" for reason in first_reasons(errors)))
    lost = len(prepared.tasks) - len(entries)
    if lost:
        console.print(f"{lost} instances are not in the tables, because their files changed meanwhile: run again")
    if errors and len(errors) == len(entries):
        raise typer.Exit(FAULT)
