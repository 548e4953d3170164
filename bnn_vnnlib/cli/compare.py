"""`bnn-vnnlib compare`: other verifiers beside us."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bnn_vnnlib.cli.guard import FAULT, check_positive, guard, stderr_console
from bnn_vnnlib.cli.long_jobs import follow
from bnn_vnnlib.cli.options import Debug, Only, OwnLimit, Rerun, Scheduler, Seed, Threads, Workers
from bnn_vnnlib.errors import OptionError, did_you_mean
from bnn_vnnlib.printable import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bnn_vnnlib.question.options import Guarantee
    from bnn_vnnlib.runs.compare import Line, ToolAnswer, VariantKind


def _recipes(asked: bool) -> None:
    if asked:
        from bnn_vnnlib.runs.tools import RECIPES

        for recipe in RECIPES:
            typer.echo(f"{recipe.name}: {recipe.command}\n    {recipe.note}")
        raise typer.Exit


def compare(
    benchmarks: Annotated[list[Path], typer.Argument(help="As for run.")],
    out: Annotated[Path, typer.Option(help="Folder for all results; an interrupted comparison resumes from it.")],
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help="RECIPE, NAME=FOLDER with the competition's scripts, or NAME=COMMAND with {onnx} {vnnlib} ..."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="Which plain network of a BNN other tools get: mean, sampled or merged; may be given several times.",
            show_default="mean",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many networks to draw (sampled, merged).")] = 10,
    query: Annotated[
        list[str] | None, typer.Option(help="Also our own bounds on the BNN itself: probabilistic, decision.")
    ] = None,
    guarantee: Annotated[
        str, typer.Option(help="Of our bounds on the BNN itself: certain, or statistical (with --confidence).")
    ] = "certain",
    confidence: Annotated[
        float | None, typer.Option(help="With guarantee statistical: the probability with which a bound holds.")
    ] = None,
    timeout: OwnLimit = None,
    only: Only = None,
    rerun: Rerun = "never",
    workers: Workers = None,
    threads: Threads = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="Write a certificate beside each answer of ours that has one.")
    ] = False,
    recipes: Annotated[
        bool,
        typer.Option("--recipes", is_eager=True, callback=_recipes, help="List the built-in recipes, and run nothing."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Run other verifiers and ours on the same instances, and compare the answers.

    OUT gets a run for each tool, comparison.csv (every verdict), agreement.csv, contradictions.csv, disagreements.csv
    (where one of two holds with a confidence only) and solved.csv.
    Every sat is checked by replaying its witness in onnxruntime. Exit code: 0, or 1 if every answer is an error.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.files.benchmarks import read_benchmarks
        from bnn_vnnlib.jobs.pool import Slots
        from bnn_vnnlib.runs.compare import ComparisonPlan
        from bnn_vnnlib.runs.compare import compare as compared
        from bnn_vnnlib.runs.run import selected
        from bnn_vnnlib.runs.tools import tool as tool_of

        check_positive("--timeout", timeout)
        kinds = _known("--network", network or ["mean"], ("mean", "sampled", "merged"))
        queries = _known("--query", query or [], ("probabilistic", "decision"))
        plan = ComparisonPlan(
            tuple(map(tool_of, tool or [])), cast("tuple[VariantKind, ...]", kinds), samples, seed, queries, timeout,
            certificates, cast("Guarantee", guarantee), confidence,
        )  # fmt: skip
        instances = selected(read_benchmarks(benchmarks), only or [])
        if not instances:
            raise OptionError("no instance is left to compare" if only else "the tables hold no instances")
        where = Slots.shared(workers, threads, scheduler)

        lines = compared(instances, plan, out, where, rerun, partial(follow, console))
        _show(console, lines)
        say(console, f"next: bnn-vnnlib report {out}")
        _errors(console, lines)


def _known(option: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    for word in given:
        if word not in known:
            raise OptionError(f"{option} {word}: expected {' or '.join(known)}{did_you_mean(word, known)}")
    return tuple(dict.fromkeys(given))


def _show(console: Console, lines: Sequence[Line]) -> None:
    """Print the comparison, contradictions first."""
    from rich.table import Table

    from bnn_vnnlib.result import Verdict
    from bnn_vnnlib.runs.compare import AGREEMENT, SAYS, agreement, contradictions, solved

    tools = list(dict.fromkeys(tool for line in lines for tool in line.answers))
    every = list(contradictions(lines))
    statistical = [one for one in every if one.statistical]
    console.print(f"contradictions: {len(every) - len(statistical)}")
    if statistical:
        console.print(f"statistical disagreements: {len(statistical)}")
    for one in sorted(every, key=lambda one: one.statistical):
        names = f"{one.line.onnx} ({one.line.label}) {one.line.vnnlib}"
        say(console, f"  {names}: {one.sat} says sat, {one.unsat} unsat; {one.finding}")
    matrix = Table("first", "second", *AGREEMENT)
    for pair, count in agreement(lines, tools).items():
        matrix.add_row(*pair, *(str(count[word]) for word in AGREEMENT))
    totals = Table("tool", *(word.value for word in Verdict), "s")
    for tool in tools:
        verdicts, seconds = solved(lines, tool)
        totals.add_row(tool, *(str(verdicts[word]) for word in Verdict), f"{seconds:.0f}")
    console.print(matrix, totals)
    console.print(SAYS.replace("\n", " "), markup=False, highlight=False)


def _errors(console: Console, lines: Sequence[Line]) -> None:
    """Why a tool that has nothing but errors has them; exit code 1 if that is all of them."""
    from bnn_vnnlib.result import Verdict
    from bnn_vnnlib.runs.tables import first_reasons

    answers: dict[str, list[ToolAnswer]] = {}
    for line in lines:
        for tool, answer in line.answers.items():
            answers.setdefault(tool, []).append(answer)
    failing = {tool: found for tool, found in answers.items()
               if all(answer.verdict is Verdict.ERROR for answer in found)}  # fmt: skip
    for tool, found in failing.items():
        reasons = first_reasons(answer.reason for answer in found)
        say(console, f"every answer of {tool} is an error:", *(f"  {reason}" for reason in reasons))
    if failing.keys() == answers.keys():
        raise typer.Exit(FAULT)
