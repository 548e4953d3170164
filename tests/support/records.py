"""Folders as `run` and `compare` write them, made of results that nobody had to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bnn_vnnlib import Bounds, DecisionBounds, Query, Result, Verdict, Witness
from bnn_vnnlib.files.sidecar import record, unfinished
from bnn_vnnlib.report.row import ReportRow, read_row
from bnn_vnnlib.result import Diagnosis, Rule
from bnn_vnnlib.runs.records import Records, hashes
from bnn_vnnlib.runs.task import Outcome

TAILS = "linear, tails and centred boxes"

WEAK_BOUND = Diagnosis(
    cause="weak bound", why="an attack broke none of 64 drawn networks, but only P_safe >= 0.2 is proved", drawn=64,
    broken=0.0, margin=0.1, rows=("Y_0 <= Y_1 (case 1 of 1)",), loss={"layer 1 (fc1)": 0.7, "the input box": 0.3},
    limit="time", limited_by="the time limit of 5 s", unserved=(), smaller=0.5,
    command=("bnn-vnnlib", "verify", "p.vnnlib", "--shrink=0.5"), advice="unsat for 0.5 of the width", decides=True,
    seconds=0.1,
)  # fmt: skip
"""Why there is no verdict: an example with all four lines."""


@dataclass(frozen=True)
class Name:
    """Names and files of an instance, and how it was run."""

    category: str
    onnx: str
    vnnlib: str
    files: dict[str, Path] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    own_timeout: float | None = None
    seed: int = 0
    timeout: float | None = 5.0


def safe(verdict: str, lower: float, upper: float, method: str = TAILS, notes: tuple[str, ...] = ()) -> Result:
    """A probabilistic result; a sat has a witness of four numbers."""
    witness = (
        Witness(np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, 2.0]), "P_w(...) >= 1") if verdict == "sat" else None
    )
    return Result(Verdict(verdict), Query.PROBABILISTIC, 0.95, 0.9, method, 0.5, Bounds(lower, upper),
                  witness=witness, notes=notes)  # fmt: skip


def decision(verdict: str, lower: list[float], upper: list[float], rule: Rule = Rule.MEAN) -> Result:
    """A result of the query decision."""
    bounds = DecisionBounds(*(np.array(values, float) for values in (lower, upper, lower, upper)))
    witness = Witness(np.zeros(4), np.ones(2), "D(X)") if verdict == "sat" else None
    method = "linear, closed forms and centred boxes"
    return Result(
        Verdict(verdict), Query.DECISION, 0.95, 0.95, method, 0.5, decision=bounds, rule=rule, witness=witness
    )


def plain(verdict: str) -> Result:
    """A deterministic result."""
    witness = Witness(np.zeros(4), np.ones(2), "replayed in onnxruntime") if verdict == "sat" else None
    return Result(Verdict(verdict), Query.DETERMINISTIC, 0.95, 0.95, "linear, branch and bound", 0.5, witness=witness)


Entry = tuple[tuple[str, str, str], Result | str]


def write_run(folder: Path, *entries: Entry, files: dict[str, Path] | None = None, seconds: float = 1.5) -> Path:
    """A folder of `run`: names with a result, or with the reason of an error."""
    records = Records(folder)
    with records.opened({"version": "0.1.0", "queries": [None], "timeout": 5.0}):
        for names, result in entries:
            word = result.verdict.value if isinstance(result, Result) else "error"
            task = Name(*names, files=files or {})
            records.write(task, Outcome(f"{word}\n", values(result, files or {}), 0.0, seconds), hashes(task))
    return folder


def values(result: Result | str, files: dict[str, Path]) -> dict:
    """Its record."""
    if isinstance(result, Result):
        return record(result, files, seed=0, timeout=5.0)
    return unfinished(Verdict.ERROR, result, {}, query=None, seed=0, timeout=5.0, time_s=0.1)


def row(
    result: Result | str, run: str = "run", names: tuple[str, str, str] = ("c", "n", "p"), seconds: float = 1.5
) -> ReportRow:
    """A row as it is read from such a folder."""
    category, network, prop = names
    more = {"run": {"category": category, "network": network, "property": prop, "run_time": seconds, "checked": None}}
    return read_row(run, "instances/c/n.txt.json", values(result, {}) | more, Path("n.txt.json"))
