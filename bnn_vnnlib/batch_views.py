"""A batch of answers for people: table, summary, picture. Bounds are rounded outward wherever they are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import fsum, nextafter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.display import digits
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.result import Query, Verdict

if TYPE_CHECKING:
    from bnn_vnnlib.batch import BatchResult

_SHOWN = 10
"""Rows of a table in a notebook, at most."""

COLOURS = {
    Verdict.UNSAT: ("#1b7837", "proved to hold"), Verdict.SAT: ("#b2182b", "proved to fail"),
    Verdict.UNKNOWN: ("#8c8c8c", "open"), Verdict.TIMEOUT: ("#8c8c8c", "open"),
}  # fmt: skip


def columns(result: BatchResult) -> dict[str, NDArray]:
    """Named columns with N entries: label, verdict, bounds and the methods behind them.

    Bounds are `lower` and `upper`; under `decision` there is a pair for each output, `lower_0`, `upper_0`, ...
    """
    found: dict[str, NDArray] = {} if result.labels is None else {"label": result.labels}
    found["verdict"] = np.array([verdict.value for verdict in result.verdicts], dtype=object)
    if result.lower.ndim == 1:
        found |= {"lower": result.lower, "upper": result.upper}
    else:
        for j in range(result.lower.shape[1]):
            found |= {f"lower_{j}": result.lower[:, j], f"upper_{j}": result.upper[:, j]}
    if result.confidence is not None and result.draws is not None:
        found["confidence"] = np.full(len(result.verdicts), result.confidence)
        names = ("draws_counted", "draws_safe", "draws_violating", "draws_open")
        found |= dict(zip(names, result.draws.T, strict=True))
    by = {"lower_by": result.lower_by, "upper_by": result.upper_by}
    return found | {name: values for name, values in by.items() if values is not None}


def dataframe(result: BatchResult) -> Any:
    """The columns as a pandas DataFrame."""
    try:
        import pandas as pd
    except ImportError:
        raise OptionError("pandas is not installed: pip install 'bnn-vnnlib[notebook]'") from None
    return pd.DataFrame(columns(result), index=pd.RangeIndex(len(result.verdicts), name="input"))


def facts(result: BatchResult) -> list[tuple[str, str, str]]:
    """What the summary says: what, how many, and what that means."""
    skipped = np.isnan(result.lower).any(axis=-1) if result.lower.ndim > 1 else np.isnan(result.lower)
    verdicts, count = result.verdicts[~skipped], int((~skipped).sum())
    proved, refuted = (int((verdicts == verdict).sum()) for verdict in (Verdict.UNSAT, Verdict.SAT))
    safe, unsafe = _meaning(result)
    how = "proved" if result.confidence is None else "with the confidence"
    lines = [
        ("inputs", f"{count}", f"{skipped.sum()} more were skipped" if skipped.any() else ""),
        ("unsat", f"{proved}", f"{how}: {safe}"),
        ("sat", f"{refuted}", f"{how}: {unsafe}"),
        ("open", f"{count - proved - refuted}", "unknown or timeout: the bounds are valid, but do not decide"),
    ]
    if result.confidence is not None:  # what is said of all inputs together would have another one
        told = f"statistical: each input by itself, with confidence {result.confidence!r} over the draws"
        lines.append(("guarantee", "", told))
    elif count:
        low, high = 100 * proved / count, 100 * (count - refuted) / count
        share = f"{digits(low, down=True, places=4)} to {digits(high, down=False, places=4)} %"
        lines.append(("certified share", share, "of the inputs for which the requirement holds"))
        if result.query is Query.PROBABILISTIC:
            low, high = (fsum(side[~skipped].tolist()) / count for side in (result.lower, result.upper))
            low, high = max(nextafter(low, 0.0), 0.0), min(nextafter(high, 2.0), 1.0)  # each was rounded to nearest
            shown = f"{digits(low, down=True, places=4)} to {digits(high, down=False, places=4)}"
            lines.append(("mean P_safe", shown, "average of the bounds over the inputs"))
    return [*lines, ("seconds", f"{result.seconds:.2f}", "of the whole call")]


def text(result: BatchResult) -> str:
    """The summary as lines."""
    lines = facts(result)
    wide = [max(len(line[k]) for line in lines) for k in (0, 1)]
    return "\n".join(f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c}".rstrip() for a, b, c in lines)


def latex(result: BatchResult) -> str:
    """The summary as a LaTeX table; it needs the package booktabs."""
    rows = [" & ".join(map(_tex, line)) + r" \\" for line in facts(result)]
    return "\n".join([r"\begin{tabular}{lrl}", r"\toprule", *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(cell: str) -> str:
    for plain, written in (("P_safe", r"$P_{\mathrm{safe}}$"), (">=", r"$\geq$"), ("<", "$<$"), ("%", r"\%")):
        cell = cell.replace(plain, written)
    return cell


def html(result: BatchResult) -> str:
    """The summary and the first rows, as notebooks show them."""
    found = columns(result)
    count = len(result.verdicts)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("input", *found))
    body = [
        "".join(f"<td>{escape(_cell(name, values[i]))}</td>" for name, values in found.items())
        for i in range(min(count, _SHOWN))
    ]
    rows = "".join(f"<tr><td>{i}</td>{cells}</tr>" for i, cells in enumerate(body))
    more = f"<p>and {count - _SHOWN} more inputs: to_dataframe() has all of them</p>" if count > _SHOWN else ""
    said = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in facts(result))
    return f"<table>{said}</table><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else digits(float(value), down=name.startswith("lower"))
    return "" if value is None else str(value)


def plot(result: BatchResult, ax: Any = None) -> Any:
    """Both bounds of every input as a line, sorted, in the colour of the verdict; the matplotlib axes.

    What is shown: P_safe; under `decision`, by how much the expected probability of the label leads, or, of a network
    with one output, the decision.

    Parameters
    ----------
    ax : axes to draw on; None: those of a new figure

    Raises
    ------
    OptionError : matplotlib is not installed, or the bounds are on several outputs without a label
    """
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        raise OptionError("matplotlib is not installed: pip install 'bnn-vnnlib[notebook]'") from None
    lower, upper, name = _shown(result)
    if ax is None:
        ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]
    shown = np.flatnonzero(~np.isnan(lower))
    order = shown[np.lexsort((lower[shown], upper[shown]))]
    pad = 0.004 * max(float(np.ptp(np.concatenate([lower[order], upper[order]]))) if len(order) else 0.0, 1e-9)
    drawn: dict[str, Any] = {}
    verdicts = result.verdicts[order]
    certain = result.confidence is None
    for verdict, (colour, label) in COLOURS.items():
        at = np.flatnonzero(verdicts == verdict)
        if len(at):
            ends = lower[order[at]], upper[order[at]]
            told = label if certain else f"{label.replace('proved to ', '')}, confidence {result.confidence!r}"
            known = (
                None
                if label in drawn
                else f"{told} ({sum(verdicts == v for v, (_, s) in COLOURS.items() if s == label).sum()})"
            )
            width = float(np.clip(300 / len(order), 0.6, 8))
            drawn[label] = ax.vlines(
                at,
                ends[0] - pad,
                ends[1] + pad,
                colors=colour,
                linewidth=width,
                label=known,
                linestyles="solid" if certain else "dotted",
            )
    for level, style in _levels(result):
        ax.axhline(level, color="black", linewidth=0.8, linestyle=style)
    ax.set_xlabel("inputs, sorted by their bounds")
    ax.set_ylabel(name)
    ax.xaxis.get_major_locator().set_params(integer=True)
    if drawn:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(drawn), frameon=False, borderaxespad=0.2)
    return ax


def _shown(result: BatchResult) -> tuple[NDArray, NDArray, str]:
    if result.lower.ndim == 1:
        name = "P_safe" if result.query is Query.PROBABILISTIC else "safe (1) or not (0)"
        return result.lower, result.upper, f"{name}: lower to upper bound"
    if result.labels is not None and result.row_lower is not None and result.row_upper is not None:
        return result.row_lower.min(axis=1), result.row_upper.min(axis=1), "lead of the label: lower to upper bound"
    if result.lower.shape[1] == 1:
        return result.lower[:, 0], result.upper[:, 0], "decision: lower to upper bound"
    raise OptionError("bounds on several outputs have no single number to plot: give labels, or use to_dataframe()")


def _levels(result: BatchResult) -> Sequence[tuple[float, str]]:
    if result.query is Query.PROBABILISTIC:
        levels = {level for level in (result.tau_safe, result.tau_unsafe) if level is not None}
        return [(level, "--") for level in sorted(levels)]
    return [(0.0, "--")] if result.query is Query.DECISION and result.labels is not None else []


def _meaning(result: BatchResult) -> tuple[str, str]:
    match result.query:
        case Query.PROBABILISTIC:
            return f"P_safe >= {result.tau_safe:g}", f"P_safe < {result.tau_unsafe:g}"
        case Query.DECISION:
            return "the decision meets the requirement", "the decision fails it somewhere"
        case _:
            return "the network meets the requirement", "the network fails it somewhere"
