"""What people see, on standard error. Bounds are rounded outward here too: no digit claims more than was proved."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bnn_vnnlib.printable import printable
from bnn_vnnlib.result import Bounds, DecisionBounds, Query, Result, Statistics, Verdict
from bnn_vnnlib.signature import Variable

if TYPE_CHECKING:
    from pathlib import Path

    from bnn_vnnlib.estimate import Estimate, Found
    from bnn_vnnlib.model import Description
    from bnn_vnnlib.model.recovery import Recovery
    from bnn_vnnlib.posteriors.origin import Origin

_STYLES = {
    Verdict.UNSAT: "bold green",
    Verdict.SAT: "bold red",
    Verdict.UNKNOWN: "bold yellow",
    Verdict.TIMEOUT: "bold yellow",
    Verdict.ERROR: "bold red",
}
_MEANINGS = {
    (Query.PROBABILISTIC, Verdict.UNSAT): "proved: P_safe >= {safe:g}",
    (Query.PROBABILISTIC, Verdict.SAT): "proved: P_safe < {unsafe:g}",
    (Query.DECISION, Verdict.UNSAT): "proved: the decision never violates the property",
    (Query.DECISION, Verdict.SAT): "proved: the decision violates the property at the witness",
    (Query.DETERMINISTIC, Verdict.UNSAT): "proved: the network never violates the property",
    (Query.DETERMINISTIC, Verdict.SAT): "the network violates the property at the witness (replayed)",
}
_UNDECIDED = {
    Verdict.UNKNOWN: "the bounds are valid but do not decide",
    Verdict.TIMEOUT: "the time limit ended the run; the bounds so far are valid",
}
_BETWEEN = "proved: {unsafe:g} <= P_safe < {safe:g}, between the thresholds: neither verdict applies"
_MAX_ROWS = 10


def digits(value: float, *, down: bool, places: int = 6) -> str:
    """Six significant digits, rounded down or up.

    >>> digits(0.98999999, down=True), digits(0.98999999, down=False), digits(1.0, down=True)
    ('0.989999', '0.99', '1')
    """
    if not isfinite(value):
        return "inf" if value > 0 else "-inf"
    context = Context(prec=places, rounding=ROUND_FLOOR if down else ROUND_CEILING)
    return format(float(context.create_decimal(repr(value))), f".{places}g")


def interval(bounds: Bounds) -> str:
    """`[lower, upper]` for the eye."""
    return f"[{digits(bounds.lower, down=True)}, {digits(bounds.upper, down=False)}]"


def meaning(result: Result) -> str:
    """One line on what the verdict says."""
    if result.between:
        text = _BETWEEN
    else:
        text = _MEANINGS.get((result.query, result.verdict), _UNDECIDED.get(result.verdict, ""))
    if result.statistics is not None:
        text = text.replace("proved:", f"with confidence {result.statistics.confidence!r} over the draws, no proof:")
        text = text.replace("valid", "valid with that confidence")
    return text.format(safe=result.tau_safe, unsafe=result.tau_unsafe)


def show_result(console: Console, result: Result) -> None:
    """Print the verdict, what was asked, both bounds, the method, the time, all notes and the diagnosis.

    First of all that the property is vacuous, where it is: an unsat then looks like a proof and is none.
    """
    facts = _facts()
    if result.asked is not None:
        facts.add_row("violation", _line(result.asked.violation))
        facts.add_row("so unsat means", _line(result.asked.unsat_means))
        if result.asked.vacuous is not None:
            warning = f"WARNING: nothing can violate this property, whatever the network: {result.asked.vacuous}"
            console.print(Text(warning, style="bold red"), soft_wrap=True)
    facts.add_row("query", result.query.value)
    if result.rule is not None and (result.rule.level is not None or result.rule.event is not None):
        facts.add_row("rule", result.rule)
    if result.statistics is not None:
        _add_statistics(facts, result.statistics)
    if result.p_safe is not None:
        facts.add_row("P_safe", interval(result.p_safe))
    if result.decision is not None:
        _add_decision(facts, result.decision)
    facts.add_row("method", _line(result.method))
    facts.add_row("time", f"{result.time_s:.2f} s")
    for note in result.notes:
        facts.add_row("note", _line(note))
    console.print(Text.assemble((result.verdict.value, _STYLES[result.verdict]), "  ", meaning(result)), facts)
    if result.diagnosis is not None:
        show_notes(console, result.diagnosis.lines)


def show_estimate(console: Console, found: Estimate) -> None:
    """Print figures that are none of a proof, and say so first."""
    facts = _facts()
    facts.add_row("broken", f"{found.broken:.4g} of {found.networks} drawn networks (standard error {found.error:.2g})")
    facts.add_row("at one point", f"{found.at_point:.4g} of them; X in the JSON file")
    for index, (low, high, spread) in enumerate(zip(found.lower, found.upper, found.spread, strict=True)):
        if index == _MAX_ROWS:
            facts.add_row("", f"... and {len(found.lower) - _MAX_ROWS} more outputs")
            break
        facts.add_row(f"mean output {index}", f"{low:.6g} to {high:.6g} found; networks differ by {spread:.3g} (sd)")
    facts.add_row("time", f"{found.seconds:.2f} s")
    console.print(Text("estimates, no bounds: an attack may miss what is there"), facts)


def show_found(console: Console, found: Found) -> None:
    """Print what is known of the strongest violation that an attack found: the check first, then estimates."""
    facts = _facts()
    facts.add_row("query", found.query.value)
    for reason in found.check.reasons:
        facts.add_row("check", _line(reason))
    if found.share is not None:
        told = f"{found.share:.4g} of {found.fresh} networks drawn anew (standard error {found.error:.2g})"
        facts.add_row("violate at X", told)
    unit = "{:.4g} of them" if found.query is Query.PROBABILISTIC else "by {:.4g}"
    for case, figure in found.fails[:_MAX_ROWS]:
        facts.add_row("fails", _line(f"{case} ({unit.format(figure)})"))
    if not found.fails:
        facts.add_row("fails", "nothing: no violation was found")
    values = zip(found.decision[:_MAX_ROWS], found.spread, found.witness.y, strict=False)
    for index, (value, spread, y) in enumerate(values):
        means = f"{value:.6g}, networks differ by {spread:.3g} (sd); " if found.fresh > 1 else ""
        facts.add_row(f"output {index} at X", f"{means}the {'mean ' if found.fresh > 1 else ''}network gives {y:.6g}")
    facts.add_row("time", f"{found.seconds:.2f} s")
    console.print(Text(f"{found.check.judgement}: all but the check are estimates, no bounds"), facts)


def show_model(console: Console, model: Description, origin: Origin, missing: Iterable[str]) -> None:
    """Print what a model holds: signature, network, posterior, how uncertain each tensor is, and what is missing."""
    facts = _facts()
    for what, text in origin_lines(origin):
        facts.add_row(what, _line(text))
    for role, variables in (("input", model.signature.inputs), ("output", model.signature.outputs)):
        for variable in variables:
            facts.add_row(role, _variable(variable))
    facts.add_row("network", model.layers)
    facts.add_row("ends in", "probabilities (Softmax)" if model.softmax else "plain outputs, without a Softmax")
    family = "none: a deterministic network" if model.family == "deterministic" else model.family
    facts.add_row("posterior", f"{family}, {model.samples} samples" if model.samples else family)
    facts.add_row("likelihood", model.likelihood or "not stated")
    facts.add_row("weights", f"{model.weights:,}, of which {model.uncertain_weights:,} are uncertain")
    for note in model.notes:
        facts.add_row("note", _line(note))
    for text in missing:
        facts.add_row("missing", _line(text))
    tensors = Table("tensor", "shape", "sd / |mean|: 10 %", "median", "90 %")
    for tensor in model.tensors:
        spread = ("-",) * 3 if tensor.relative_sd is None else [f"{value:.3g}" for value in tensor.relative_sd]
        tensors.add_row(_line(tensor.name), "x".join(map(str, tensor.shape)) or "scalar", *spread)
    console.print(facts, tensors)


def show_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print (what, text) side by side; what is said again is left out."""
    table, before = _facts(), ""
    for what, text in facts:
        table.add_row("" if what == before else what, _line(text))
        before = what
    console.print(table)


def origin_lines(origin: Origin) -> list[tuple[str, str]]:
    """Lines (what, text) that say where a file seems to come from and what it carries."""
    lines = [("written by", origin.exporter), ("layers like", origin.library), ("carries", origin.carries)]
    return [(what, text) for what, text in lines if text]


def show_recovery(console: Console, recovery: Recovery, target: Path) -> None:
    """Print which weights got which standard deviations."""
    weights = Table("weight", "shape", "sd: smallest", "largest")
    for name, deviation in recovery.deviations.items():
        ends = (f"{deviation.min():.3g}", f"{deviation.max():.3g}")
        weights.add_row(_line(name), "x".join(map(str, deviation.shape)) or "scalar", *ends)
    console.print(weights)
    show_notes(console, (*recovery.notes, f"wrote {target}"))


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print remarks, one a line."""
    for note in notes:
        console.print(_line(note), soft_wrap=True)


def _line(text: str) -> Text:
    """Text of a file, or with names of a file in it, which stays on its line."""
    return Text(printable(text))


def _facts() -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    return facts


def _variable(variable: Variable) -> Text:
    return _line(f"{variable.name} {variable.element_type} {list(variable.shape)}")


def _add_statistics(facts: Table, statistics: Statistics) -> None:
    facts.add_row("guarantee", f"statistical, confidence {statistics.confidence!r} over the draws of each interval")
    parts = [f"{statistics.counted:,} counted"]
    if statistics.safe is not None:
        parts += [f"{statistics.safe:,.10g} proved safe", f"{statistics.violating:,.10g} proved to violate"]
    facts.add_row("draws", ", ".join([*parts, f"{statistics.open:,.10g} open (seed {statistics.seed})"]))


def _add_decision(facts: Table, decision: DecisionBounds) -> None:
    shown = list(zip(decision.lower.tolist(), decision.upper.tolist(), strict=True))
    for index, (lower, upper) in enumerate(shown[:_MAX_ROWS]):
        facts.add_row(f"decision[{index}]", interval(Bounds(lower, upper)))
    if len(shown) > _MAX_ROWS:
        facts.add_row("", f"... and {len(shown) - _MAX_ROWS} more outputs (all of them in the JSON record)")
