"""The JSON record of a run, next to its results file. Strict JSON: an infinite bound is written as a string."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.readers import parse_json, read_text
from bnn_vnnlib.result import Bounds, DecisionBounds, Diagnosis, Query, Result, Statistics, Verdict, Witness

RECORD_FORMAT = 1
_MAX_BYTES = 2**28  # bytes of a record

RECORD = {
    "format": "version of this format",
    "verdict": "sat, unsat, unknown, timeout or error",
    "query": "probabilistic, decision or deterministic; null where the run ended before that was known",
    "files.ROLE": "path of each input; roles are property, model, model 2, ...",
    "sha256.ROLE": "hash of the file as it lies on disk; null if it cannot be read",
    "seed": "of attacks, sampled boxes and counted draws",
    "timeout": "time limit in seconds; null: none",
    "versions.NAME": "of this program, Python and the libraries",
    "asked.violation": "what must not happen, in words; asked is null where the run ended before that was known",
    "asked.unsat_means": "what unsat says about the model, given that",
    "asked.vacuous": "why nothing can violate the property, whatever the network; null where something might",
    "tau_safe": "probabilistic: unsat if P_safe is at least this",
    "tau_unsafe": "probabilistic: sat if P_safe is below this",
    "p_safe.lower": "guaranteed lower bound on P_safe; p_safe is null for other queries",
    "p_safe.upper": "guaranteed upper bound on P_safe",
    "rule": "decision: mean, median or quantile:Q; else null",
    "decision.lower[i]": "guaranteed lower bound on output i of D over all of T; decision is null for other queries",
    "decision.upper[i]": "guaranteed upper bound on it",
    "decision.rows.lower[r]": "guaranteed lower bound on the left side of the property's row r over its own box",
    "decision.rows.upper[r]": "guaranteed upper bound on it",
    "guarantee": "certain, or statistical: verdict and bounds hold with the stated confidence over the draws",
    "confidence": "statistical: that of each interval; null where bounds are certain",
    "draws.counted": "statistical: networks that the bounds are taken over; draws is null where bounds are certain",
    "draws.safe": "of these, proved to be safe on all of T (where some layers are drawn and the rest is bounded: the "
    "sum of what is proved of the probability of that); null under decision",
    "draws.violating": "of these, proved to violate at some point of T, likewise; null under decision",
    "draws.open": "of these, those of which nothing is proved",
    "draws.generator": "of the random bits",
    "method": "what gave the bounds, by side where they differ; null where the run ended before",
    "witness.x[i]": "the input, flattened over all inputs in the model's order; witness is null unless sat",
    "witness.y[i]": "the mean network's output there; for deterministic that of the network",
    "witness.hidden[i]": "the value there of hidden node i of those that the property declares, as nested lists",
    "witness.shows": "what the pair shows, in words",
    "witness.check": "numbers of the check that was made before sat was said",
    "diagnosis.cause": "likely cause: weak network, weak bound, or between (P_safe is proved to lie between the "
    "thresholds); diagnosis, which is a guess, is null for sat and unsat, and where the run ended before",
    "diagnosis.why": "the same in a sentence",
    "diagnosis.drawn": "networks that an attack was tried on",
    "diagnosis.broken": "share of them in which it found a violation: an estimate; null unless probabilistic",
    "diagnosis.margin": "the least by which it missed a violation, in units of the row's largest coefficient; "
    "at most 0: by which it found one",
    "diagnosis.rows[i]": "the cases that stay open, or that the attack met, in words; the worst first, three at most",
    "diagnosis.loss.PART": "of the first of them, the share of what the bound loses: the input box, or a layer",
    "diagnosis.limit": "what ended the work: time, effort (what is done without a time limit) or methods",
    "diagnosis.limited_by": "the same in words",
    "diagnosis.unserved[i]": "a method that does not serve the question, and why",
    "diagnosis.smaller": "largest share of the input intervals' widths that was found unsat; null: none",
    "diagnosis.command": "one command line to try next; null: none is known that would help",
    "diagnosis.advice": "what it is for",
    "diagnosis.decides": "whether the work behind it was done: it gives a verdict",
    "diagnosis.seconds": "that the diagnosis took; they are part of time_s",
    "diagnosis.lines[i]": "all of this in two to four lines",
    "time_s": "seconds that solving took, by its own clock, until a result or until it was ended",
    "start_s": "seconds before that: the program's start, its libraries, reading the files; null where nobody measured",
    "details": "further facts: masses, margins, counts; its keys depend on the query and the method",
    "notes[i]": "remarks for people; without a method the only one is the reason",
}
"""Every key of the record and its meaning. `run` adds "run": names, times, options, hashes, what `--check` said."""


def sidecar_path(results: Path) -> Path:
    """Path of the record of a results file: the same name with `.json` appended."""
    return results.with_name(f"{results.name}.json")


def record(
    result: Result, files: Mapping[str, Path], *, seed: int, timeout: float | None, start_s: float | None = None
) -> dict[str, Any]:
    """The record of a finished run as plain JSON values.

    Parameters
    ----------
    result : the outcome
    files : the inputs by role ("property", "model")
    seed, timeout : as given; seconds
    start_s : seconds before solving began
    """
    return {
        **_frame(result.verdict, result.query, files, seed, timeout),
        "asked": None if result.asked is None else asdict(result.asked),
        "tau_safe": result.tau_safe,
        "tau_unsafe": result.tau_unsafe,
        "p_safe": _bounds(result.p_safe),
        "rule": None if result.rule is None else str(result.rule),
        "decision": _decision(result.decision),
        "guarantee": result.guarantee,
        "confidence": None if result.statistics is None else result.statistics.confidence,
        "draws": _draws(result.statistics),
        "method": result.method,
        "witness": _witness(result.witness),
        "diagnosis": _diagnosis(result.diagnosis),
        "time_s": result.time_s,
        "start_s": start_s,
        "details": as_json(result.details),
        "notes": list(result.notes),
    }


def unfinished(
    verdict: Verdict,
    reason: str,
    files: Mapping[str, Path],
    *,
    query: Query | None,
    seed: int,
    timeout: float | None,
    time_s: float,
    start_s: float | None = None,
) -> dict[str, Any]:
    """The record of a run without a result: refused input, an internal fault, or a time limit hit from outside."""
    nothing = dict.fromkeys(
        (
            "asked",
            "tau_safe",
            "tau_unsafe",
            "p_safe",
            "rule",
            "decision",
            "guarantee",
            "confidence",
            "draws",
            "method",
            "witness",
            "diagnosis",
        )
    )
    frame = _frame(verdict, query, files, seed, timeout)
    return {**frame, **nothing, "time_s": time_s, "start_s": start_s, "details": {}, "notes": [reason]}


def to_text(values: Mapping[str, Any]) -> str:
    """Strict JSON: a number that JSON cannot hold is an error here, not a token that readers choke on."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON object from a file that anybody may have changed.

    Raises
    ------
    InputError : unreadable, too large, not JSON (see `parse_json`), not an object; ends with the remedy
    """
    try:
        values = parse_json(read_text(path, _MAX_BYTES, "JSON"))
    except ValueError as error:
        reason = error.message if isinstance(error, InputError) else error
        raise InputError(f"cannot be read as JSON ({reason}); {remedy}", path=path) from None
    if not isinstance(values, dict):
        raise InputError(f"holds {type(values).__name__}, expected a JSON object; {remedy}", path=path)
    return values


def as_json(value: Any) -> Any:
    """Arrays, numpy scalars, enums and paths as JSON values; infinities as "Infinity", "-Infinity"; NaN as null."""
    match value:
        case np.ndarray():
            return as_json(value.tolist())
        case np.generic():
            return as_json(value.item())
        case float() if not math.isfinite(value):
            return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case str() | int() | float() | None:
            return value
        case Mapping():
            return {str(key): as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
        case _:
            return str(value)


def sha256(path: Path) -> str | None:
    """Hash of a file as it lies on disk (packed, if it is packed); None if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def _frame(
    verdict: Verdict, query: Query | None, files: Mapping[str, Path], seed: int, timeout: float | None
) -> dict[str, Any]:
    """The entries that every record has, whatever came of the run."""
    return {
        "format": RECORD_FORMAT,
        "verdict": verdict.value,
        "query": None if query is None else query.value,
        "files": {role: str(path) for role, path in files.items()},
        "sha256": {role: sha256(path) for role, path in files.items()},
        "seed": seed,
        "timeout": timeout,
        "versions": _versions(),
    }


def _versions() -> dict[str, str | None]:
    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    libraries = {name: installed(name) for name in ("torch", "onnx", "onnxruntime", "numpy", "scipy", "lark")}
    return {"bnn-vnnlib": __version__, **libraries, "python": platform.python_version()}


def _bounds(bounds: Bounds | None) -> dict[str, Any] | None:
    return None if bounds is None else {"lower": as_json(bounds.lower), "upper": as_json(bounds.upper)}


def _draws(statistics: Statistics | None) -> dict[str, Any] | None:
    if statistics is None:
        return None
    return {name: getattr(statistics, name) for name in ("counted", "safe", "violating", "open", "generator")}


def _decision(bounds: DecisionBounds | None) -> dict[str, Any] | None:
    if bounds is None:
        return None
    rows = {"lower": as_json(bounds.row_lower), "upper": as_json(bounds.row_upper)}
    return {"lower": as_json(bounds.lower), "upper": as_json(bounds.upper), "rows": rows}


def _diagnosis(diagnosis: Diagnosis | None) -> dict[str, Any] | None:
    if diagnosis is None:
        return None
    command = diagnosis.command and shlex.join(diagnosis.command)
    return as_json({**asdict(diagnosis), "command": command, "lines": diagnosis.lines})


def _witness(witness: Witness | None) -> dict[str, Any] | None:
    if witness is None:
        return None
    return {
        "x": as_json(witness.x),
        "y": as_json(witness.y),
        "hidden": as_json(witness.hidden),
        "shows": witness.shows,
        "check": as_json(witness.check),
    }
