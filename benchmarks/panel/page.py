"""Write panel.md and panel.svg, a heat map, beside the table of all cells: `python page.py --cells docs/panel.csv`."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from answer import read_rows
from questions import DRAWS, QUERIES, SHARE, TIMEOUT

NOTHING = 1e-6
"""Bounds on a probability that exclude no more than this at either end are vacuous."""
GAP, MOST = 0.1, 0.9
"""Informative: bounds that are this close, or a lower bound of at least this share of the estimate."""
TIMES, LEAST = 10, 0.01
"""Bounds on D are vacuous if they are so many times as wide as the attained range, which counts as LEAST at least."""
ERRORS = 5
"""Standard errors by which an estimate has to be on the wrong side of a bound to be listed as suspicious."""


@dataclass(frozen=True)
class Cell:
    """A question, its estimate and its answer: a row of the table that `answer.py` writes."""

    architecture: str
    posterior: str
    query: str
    radius: float
    place: int  # of the radius: 0, 1, 2
    name: str
    verdict: str
    lower: float
    upper: float
    estimate: tuple[float, float]  # P_safe twice, or the attained range of D
    unit: float
    is_probability: bool
    method: str
    seconds: float
    cause: str  # why there is no verdict, by the diagnosis
    diagnosis: float | None  # the share of the seconds that it took
    reason: str
    revision: str

    @property
    def decided(self) -> bool:
        return self.verdict in ("sat", "unsat")

    @property
    def refused(self) -> bool:
        return self.verdict == "error"

    @property
    def informative(self) -> bool:
        least = self.estimate[0]
        close = self.upper - self.lower <= GAP * self.unit
        return close or (self.is_probability and least > 0 and self.lower >= MOST * least)

    @property
    def vacuous(self) -> bool:
        if self.is_probability and self.lower <= NOTHING and self.upper >= 1 - NOTHING:
            return True
        attained = max(self.estimate[1] - self.estimate[0], LEAST * self.unit)
        return self.query == "decision" and self.upper - self.lower > TIMES * attained

    @property
    def suspicious(self) -> bool:
        """Whether the estimate contradicts a bound by more than it can be wrong (probabilities only)."""
        if not self.is_probability or self.refused:
            return False
        low, high = self.estimate
        slack = ERRORS * math.sqrt(max(high * (1 - high), low * (1 - low), 1 / DRAWS) / DRAWS)
        # An attack over a box that misses violations makes the estimate of P_safe too large, never too small.
        above = self.query == "decision" or self.radius == 0
        return low < self.lower - slack or (above and high > self.upper + slack)


def read(cells: Path) -> list[Cell]:
    """All cells that were measured."""
    return [_cell(row) for row in read_rows(cells)]


def _cell(row: dict[str, str]) -> Cell:
    numbers = {name: float(row[name]) for name in ("radius", "lower", "upper", "unit", "seconds")}
    return Cell(
        row["architecture"], row["posterior"], row["query"], numbers["radius"], int(row["property"].rsplit("_", 1)[1]),
        row["property"], row["verdict"], numbers["lower"], numbers["upper"],
        (float(row["estimate"]), float(row["estimate_to"])), numbers["unit"], row["probability"] == "1", row["method"],
        numbers["seconds"], row["cause"], float(row["diagnosis"]) if row["diagnosis"] else None,
        row["reason"].rsplit("/", 1)[-1], row["revision"],
    )  # fmt: skip


FIGURES: tuple[tuple[str, Callable[[Cell], bool]], ...] = (
    ("decided", lambda cell: cell.decided),
    ("informative", lambda cell: cell.informative),
    ("vacuous", lambda cell: cell.vacuous),
    ("refused", lambda cell: cell.refused),
)


def table(title: str, groups: dict[str, list[Cell]]) -> list[str]:
    """One row a group, both queries side by side."""
    heads = [f"{figure} {short}" for short in ("P", "D") for figure in (*(name for name, _ in FIGURES), "seconds")]
    lines = [f"| {title} | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name, cells in groups.items():
        values = []
        for query in QUERIES:
            asked = [cell for cell in cells if cell.query == query]
            values += [f"{sum(map(test, asked)) / len(asked):.0%}" if asked else "" for _, test in FIGURES]
            values.append(f"{statistics.median(cell.seconds for cell in asked):.1f}" if asked else "")
        lines.append(f"| {name} | {' | '.join(values)} |")
    return lines


def diagnosed(cells: list[Cell]) -> str:
    """What the diagnoses of the undecided questions took, in two sentences."""
    made = [(cell.diagnosis, cell.seconds) for cell in cells if cell.diagnosis is not None]
    if not made:
        return "No question was diagnosed."
    share, seconds = max(made)
    return (
        f"The diagnoses took {sum(one * whole for one, whole in made) / sum(whole for _, whole in made):.1%} of the "
        f"time of the {len(made)} questions without a verdict. The median share is "
        f"{statistics.median(one for one, _ in made):.1%}; the largest is {share:.0%}, of {seconds:.1f} s."
    )


def grouped(cells: Iterable[Cell], key: Callable[[Cell], str]) -> dict[str, list[Cell]]:
    """In the order in which the groups come first."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def draw(cells: list[Cell], path: Path) -> None:
    """The heat map: the share of informative cells, with the shares decided and vacuous written in."""
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "panel", "svg.fonttype": "none", "font.size": 8})
    groups = grouped(cells, lambda cell: f"{cell.architecture}, {cell.posterior}")
    columns = [(query, place) for query in QUERIES for place in range(3)]
    figure, axes = plt.subplots(figsize=(6.8, 0.26 * len(groups) + 1.2), layout="constrained")
    shares = [[math.nan] * len(columns) for _ in groups]
    for i, members in enumerate(groups.values()):
        for j, (query, place) in enumerate(columns):
            asked = [cell for cell in members if (cell.query, cell.place) == (query, place)]
            if not asked:
                continue
            shares[i][j] = sum(cell.informative for cell in asked) / len(asked)
            counts = [sum(map(test, asked)) for _, test in (FIGURES[0], FIGURES[2])]
            colour = "white" if shares[i][j] < 0.45 else "black"
            axes.text(j, i, f"{counts[0]} / {counts[1]}", ha="center", va="center", color=colour)
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    names = {"probabilistic": "P_safe", "decision": "D"}
    radii = ("point", "small", "medium")
    axes.set_xticks(range(len(columns)), [f"{names[query]}\n{radii[place]}" for query, place in columns])
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_title("test inputs: decided / vacuous; colour: share informative")
    figure.colorbar(image, fraction=0.05)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def page(cells: list[Cell]) -> str:
    """The page in Markdown."""
    inputs = len({cell.name.rsplit("_", 2)[1] for cell in cells})
    causes = grouped((cell for cell in cells if cell.cause), lambda cell: f"{cell.query}: {cell.cause}")
    suspicious = [cell for cell in cells if cell.suspicious]
    refused = grouped((cell for cell in cells if cell.refused), lambda cell: f"{cell.architecture}, {cell.posterior}")
    radii = ("point", "small", "medium")
    whole = {"all": cells, **{f"radius: {radii[k]}": [c for c in cells if c.place == k] for k in range(3)}}
    methods = grouped(cells, lambda cell: f"{cell.query}: {cell.method or 'none'}")
    libraries = ("torch", "torchbnn", "bayesian-torch", "ivon-opt", "laplace-torch", "swa-gaussian", "numpyro")
    revisions = grouped(cells, lambda cell: cell.revision)
    versions = ", ".join(f"{name} {version}" for name in libraries if (version := _version(name)))
    lines = [
        "# The panel: how useful are the answers?",
        "",
        "Written by `make panel` (benchmarks/panel); do not edit. Ordinary Bayesian networks as their libraries train",
        "them, with default or documented settings and the deviations that came out; none was tuned for certification.",
        f"{inputs} test inputs each, three radii, both queries, {TIMEOUT} processor seconds a question, one thread.",
        "",
        f"Measured with revision {', '.join(revisions)}, in processor seconds. {versions}",
        "",
        "| word | of P_safe (P) | of the decision (D) |",
        "|---|---|---|",
        "| question | every network drawn keeps the class of the predictive (classes), or stays within "
        f"{SHARE:g} of the targets' span around it | the same of the decision |",
        "| decided | `unsat` at P_safe >= 0.95 or `sat` at < 0.95 | `unsat` or `sat` |",
        f"| informative | bounds within {GAP:g}, or the lower one at least {MOST:g} of the estimate "
        f"| bounds within {GAP:g} (a regression: of the span), or the lower one at least {MOST:g} of the estimate |",
        f"| vacuous | [0, 1] | [0, 1], or more than {TIMES} times as wide as the attained range "
        f"(taken as {LEAST:g} at least) |",
        f"| estimate | share of {DRAWS:,} drawn networks that an attack did not break | what an attack attained, "
        f"averaged over {DRAWS:,} networks |",
        "",
        "Radii: digits and MNIST 0, 0.01 and 0.05 of the range of a pixel; tables 0, 0.02 and 0.1 standard deviations",
        "of a feature; the controller 0, 0.01 and 0.05 of states in [-1, 1]. Seconds are medians. A refused question",
        "counts as vacuous. Every cell with its bounds and its estimate: [panel.csv](panel.csv).",
        "",
        "![Heat map](panel.svg)",
        "",
        "## In all",
        "",
        *table("", whole),
        "",
        "## By posterior",
        "",
        *table("posterior", grouped(cells, lambda cell: f"{cell.architecture}, {cell.posterior}")),
        "",
        "## By architecture",
        "",
        *table("architecture", grouped(cells, lambda cell: cell.architecture)),
        "",
        "## By kind of posterior",
        "",
        *table("posterior", grouped(cells, lambda cell: cell.posterior)),
        "",
        "## By method that gave the bounds",
        "",
        "| query: method | cells | informative | vacuous |",
        "|---|---|---|---|",
        *(
            f"| {name} | {len(some)} | {sum(c.informative for c in some)} | {sum(c.vacuous for c in some)} |"
            for name, some in methods.items()
        ),
        "",
        "## Why there is no verdict",
        "",
        f"As the diagnoses guess. {diagnosed(cells)}",
        "",
        "| query: cause | cells | informative | vacuous |",
        "|---|---|---|---|",
        *(
            f"| {name} | {len(some)} | {sum(c.informative for c in some)} | {sum(c.vacuous for c in some)} |"
            for name, some in sorted(causes.items())
        ),
        "",
        "## Refused",
        "",
        *(f"- {name}: {some[0].reason}" for name, some in refused.items()),
        "",
        "## Estimates against bounds",
        "",
        f"Cells whose estimate is on the wrong side of a bound by over {ERRORS} standard errors: {len(suspicious)}.",
        *(f"- {cell.name} ({cell.query}): [{cell.lower}, {cell.upper}], {cell.estimate}" for cell in suspicious),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the table of all cells; the page goes beside it")
    table = parser.parse_args().cells
    cells = read(table)
    table.with_suffix(".md").write_text(page(cells), encoding="utf-8")
    draw(cells, table.with_suffix(".svg"))


if __name__ == "__main__":
    main()
