"""A finished instance as the report sees it: its record, validated once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.printable import printable
from bnn_vnnlib.result import Query, Verdict

Ends = tuple[float, float]
Vector = tuple[float, ...]
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True)
class ReportRow:
    """One instance of one run.

    Attributes
    ----------
    run : label of the run
    place : of the record, relative to the report's folder
    category, network, prop : as in the tables of the run
    variant : of the plain network that was examined ("mean", "draw_0003", "merged", "plain"); None: not a comparison
    tool : another verifier whose word this is; None: ours
    p_safe : bounds on P_safe
    decision : (lower, upper) bounds on D by output; infinite where there is none
    confidence, draws : of bounds that drawn networks gave, and how many there were; None, empty: the bounds are certain
    x, y, shows : the witness
    violation, unsat_means : what was asked, in words
    vacuous : why nothing can violate the property, whatever the network
    diagnosis : lines on why there is no verdict, and what to try next
    seconds : as seen from outside
    reason : why there is no verdict
    checked : what check-witness, or the replay in a comparison, said of a sat
    certificate : what bnn-vnnlib-check said of the answer's certificate, see `certificates.checked`; None: it has none
    files, hashes : the inputs by role ("property", "model")
    """

    run: str
    place: str
    category: str
    network: str
    prop: str
    verdict: Verdict
    query: Query | None
    seconds: float
    variant: str | None = None
    tool: str | None = None
    tau_safe: float | None = None
    tau_unsafe: float | None = None
    rule: str | None = None
    p_safe: Ends | None = None
    decision: tuple[Vector, Vector] | None = None
    confidence: float | None = None
    draws: Mapping[str, Any] = field(default_factory=dict)
    method: str | None = None
    timeout: float | None = None
    seed: float | None = None
    checked: str | None = None
    certificate: str | None = None
    reason: str | None = None
    x: Vector | None = None
    y: Vector | None = None
    shows: str | None = None
    violation: str | None = None
    unsat_means: str | None = None
    vacuous: str | None = None
    notes: tuple[str, ...] = ()
    diagnosis: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, str, str]:
        """(category, network, prop)"""
        return self.category, self.network, self.prop

    @property
    def checks(self) -> str | None:
        """What was checked of the answer: its witness, its certificate, both or None."""
        certificate = None if self.certificate is None else f"certificate {self.certificate}"
        return "; ".join(part for part in (self.checked, certificate) if part is not None) or None

    @property
    def gap(self) -> float | None:
        """Width of the bounds on P_safe, or the largest width of those on D; None without bounds."""
        if self.p_safe is not None:
            return self.p_safe[1] - self.p_safe[0]
        if self.decision is not None and self.decision[0]:
            return max(upper - lower for lower, upper in zip(*self.decision, strict=True))
        return None

    @property
    def between(self) -> bool:
        """P_safe is proved to lie between the two thresholds."""
        if self.p_safe is None or self.tau_safe is None or self.tau_unsafe is None:
            return False
        return self.tau_unsafe <= self.p_safe[0] and self.p_safe[1] < self.tau_safe

    @property
    def guarantee(self) -> str:
        """The kind of guarantee: "certain" or "statistical"."""
        return "certain" if self.confidence is None else "statistical"

    @property
    def decided(self) -> bool:
        """Whether the verdict is sat or unsat."""
        return self.verdict in (Verdict.SAT, Verdict.UNSAT)


def read_row(run: str, place: str, record: Any, path: Path) -> ReportRow:
    """A record as a row.

    Parameters
    ----------
    run, place : see `ReportRow`
    record : JSON values of an instance's record
    path : of the record, for messages

    Raises
    ------
    InputError : the record is damaged: something is missing, of another type, not a number, or no interval
    """
    fields = _Fields(record, path)
    witness, asked = fields.inner("witness"), fields.inner("asked")
    method = fields.text("method")
    notes = fields.texts("notes")
    return ReportRow(
        run=run,
        place=place,
        category=fields.name("category"),
        network=fields.name("network"),
        prop=fields.name("property"),
        verdict=fields.word(Verdict, fields.needed("verdict")),
        query=None if (query := fields.text("query")) is None else fields.word(Query, query),
        seconds=fields.seconds("run", "run_time"),
        tau_safe=fields.number("tau_safe"),
        tau_unsafe=fields.number("tau_unsafe"),
        rule=fields.text("rule"),
        p_safe=fields.interval("p_safe"),
        decision=fields.intervals("decision"),
        confidence=fields.number("confidence"),
        draws=fields.inner("draws").values,
        method=method,
        timeout=fields.number("timeout"),
        seed=fields.number("seed"),
        checked=fields.text("run", "checked"),
        reason=notes[0] if method is None and notes else None,
        x=witness.numbers("x"),
        y=witness.numbers("y"),
        shows=witness.text("shows"),
        violation=asked.text("violation"),
        unsat_means=asked.text("unsat_means"),
        vacuous=asked.text("vacuous"),
        notes=notes,
        diagnosis=fields.inner("diagnosis").texts("lines"),
        details=fields.inner("details").values,
        files=fields.names("files"),
        hashes=fields.names("sha256"),
        versions=fields.names("versions"),
    )


class _Fields:
    """Values of a record by their path; InputError for what a record cannot hold."""

    def __init__(self, values: Any, path: Path) -> None:
        self.path = path
        if not isinstance(values, Mapping):
            raise self._damaged(f"expected a JSON object, found {type(values).__name__}")
        self.values = values

    def _damaged(self, what: str) -> InputError:
        return InputError(f"damaged record: {what}; delete it to have its instance run again", path=self.path)

    def _at(self, keys: tuple[str, ...]) -> Any:
        found: Any = self.values
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def text(self, *keys: str) -> str | None:
        found = self._at(keys)
        if found is not None and not isinstance(found, str):
            raise self._damaged(f"{'.'.join(keys)} is no text")
        return found

    def needed(self, *keys: str) -> str:
        found = self.text(*keys)
        if found is None:
            raise self._damaged(f"{'.'.join(keys)} is missing")
        return found

    def name(self, key: str) -> str:
        """A name in the record, as the tables of a run write it."""
        return printable(self.needed("run", key), lines=True)

    def word(self, kind: type[Word], text: str) -> Word:
        try:
            return kind(text)
        except ValueError:
            raise self._damaged(f"{text!r} is none of {', '.join(kind)}") from None

    def number(self, *keys: str) -> float | None:
        found = self._at(keys)
        if found is None:
            return None
        number = self._number(found, keys)
        if math.isinf(number):
            raise self._damaged(f"{'.'.join(keys)} is infinite")
        return number

    def seconds(self, *keys: str) -> float:
        found = self.number(*keys)
        if found is None or found < 0:
            raise self._damaged(f"{'.'.join(keys)} is missing or negative")
        return found

    def numbers(self, *keys: str) -> Vector | None:
        found = self._at(keys)
        if found is None:
            return None
        if not isinstance(found, list):
            raise self._damaged(f"{'.'.join(keys)} is no list")
        return tuple(self._number(value, keys) for value in found)

    def _number(self, value: Any, keys: tuple[str, ...]) -> float:
        """The number behind a value of the record, which has "Infinity" for an infinite one."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isnan(number):
            raise self._damaged(f"{'.'.join(keys)} has something that is no number")
        return number

    def interval(self, key: str) -> Ends | None:
        lower, upper = self.number(key, "lower"), self.number(key, "upper")
        if lower is None or upper is None:
            return None
        if not lower <= upper:
            raise self._damaged(f"{key} has a lower bound above its upper bound")
        return lower, upper

    def intervals(self, key: str) -> tuple[Vector, Vector] | None:
        lower, upper = self.numbers(key, "lower"), self.numbers(key, "upper")
        if lower is None or upper is None:
            return None
        pairs = list(zip(lower, upper, strict=False))
        if len(lower) != len(upper) or any(low > high or low == math.inf or high == -math.inf for low, high in pairs):
            raise self._damaged(f"{key} has bounds that are no intervals")
        return lower, upper

    def texts(self, key: str) -> tuple[str, ...]:
        found = self._at((key,)) or []
        if not (isinstance(found, list) and all(isinstance(value, str) for value in found)):
            raise self._damaged(f"{key} is no list of texts")
        return tuple(found)

    def names(self, key: str) -> dict[str, str]:
        """A mapping to texts; what is null is left out."""
        return {name: str(value) for name, value in self.inner(key).values.items() if value is not None}

    def inner(self, key: str) -> _Fields:
        found = self._at((key,))
        return _Fields({} if found is None else found, self.path)
