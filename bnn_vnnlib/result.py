"""What a verification returns."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bnn_vnnlib.errors import SoundnessError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_QUANTILE = re.compile(r"quantile:([0-9.eE+-]+)")
_BELOW = re.compile(r"probability-below:([0-9.eE+-]+)(?::([0-9.eE+-]+))?")


@dataclass(frozen=True)
class Event:
    """The event that an outcome is below a threshold; noise: the deviation of an outcome around its mean, None: the
    model's.
    """

    threshold: float
    noise: float | None


class Verdict(StrEnum):
    """The words of a VNN-COMP results file."""

    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    ERROR = "error"


class Query(StrEnum):
    """What is asked of the network."""

    PROBABILISTIC = "probabilistic"
    DECISION = "decision"
    DETERMINISTIC = "deterministic"


class Rule(str):
    """Which decision is made of the predictive: what Y means under the query `decision`.

    "mean", "median", or "quantile:Q" with 0 < Q < 1; the median is quantile:0.5. Of an output, an alpha-quantile over
    the posterior is any t with P(f <= t) >= alpha and P(f >= t) >= 1 - alpha. "probability-below:T" is the expectation
    of P(outcome < T | x, w), whose noise the model gives or, behind another colon, the rule.

    Attributes
    ----------
    level : alpha, as float64 holds it; None: an expectation
    event : whose probability Y_0 is; None: Y is made of the outputs
    """

    level: float | None
    event: Event | None
    MEAN: ClassVar[Rule]
    MEDIAN: ClassVar[Rule]

    def __new__(cls, text: str) -> Rule:
        """ValueError where the text is no rule."""
        words = {None: "mean", 0.5: "median"}
        event = _BELOW.fullmatch(text)
        if event is not None:
            threshold, noise = float(event[1]), None if event[2] is None else float(event[2])
            if not math.isfinite(threshold) or (noise is not None and not 0 < noise < math.inf):
                raise ValueError(text)
            rule = super().__new__(cls, f"probability-below:{threshold!r}" + ("" if noise is None else f":{noise!r}"))
            rule.level, rule.event = None, Event(threshold, noise)
            return rule
        found = _QUANTILE.fullmatch(text)
        if found is None and text not in words.values():
            raise ValueError(text)
        level = float(found[1]) if found is not None else {word: q for q, word in words.items()}[text]
        if level is not None and not 0 < level < 1:
            raise ValueError(text)
        rule = super().__new__(cls, words.get(level, f"quantile:{level!r}"))
        rule.level, rule.event = level, None
        return rule

    @property
    def of_outputs(self) -> str:
        """What the decision is of all outputs, in words."""
        if self.event is not None:
            return f"probability that an outcome is below {self.event.threshold:g}"
        if self.level is None:
            return "means of the outputs"
        return "medians of the outputs" if self.level == 0.5 else f"{self.level:g}-quantiles of the outputs"


Rule.MEAN, Rule.MEDIAN = Rule("mean"), Rule("median")


@dataclass(frozen=True)
class Bounds:
    """Guaranteed bounds lower <= truth <= upper, certain or with a stated confidence; NaN is refused."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise SoundnessError(f"contradictory bounds [{self.lower}, {self.upper}]")


@dataclass(frozen=True)
class Statistics:
    """What bounds with a stated confidence rest on: networks that were drawn and verified.

    Attributes
    ----------
    confidence : that of each interval, over the draws
    counted : draws that the bounds are taken over, from the first one on without a gap
    safe, violating : of these, proved to be so on all of T, and at some point of T; None where draws are not counted
        but averaged (decision). Where a part of the layers is drawn, sums of the probabilities that are proved
    open : all others: of these nothing is proved, and they count against both bounds
    seed, generator : of the draws
    """

    confidence: float
    counted: int
    safe: float | None
    violating: float | None
    open: float
    seed: int
    generator: str


@dataclass(frozen=True, eq=False)
class DecisionBounds:
    """Bounds on D(x), or on the medians if that is the rule, over all x of T.

    Shapes: outputs (m,), rows (R,) in the order of the property's rows.
    row_lower, row_upper bound a.D(x) + g.x over the row's own input box. NaN never occurs; +-inf means no bound.
    """

    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats


@dataclass(frozen=True, eq=False)
class Witness:
    """An input of T, with the (mean) network's output there and what the pair shows.

    x (n,) and y (m,) are flattened over all inputs / outputs in the model's order. `check` records the check that
    was made before the verdict sat was given. `hidden` holds the (mean) network's values of the hidden nodes that the
    property declares, each in the declared shape and the model's own type.
    """

    x: Floats
    y: Floats
    shows: str
    check: Mapping[str, Any] = field(default_factory=dict)
    hidden: tuple[NDArray, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What was asked, in words.

    Attributes
    ----------
    violation : what must not happen, as the property describes it
    unsat_means : what `unsat` says about the model, given that
    vacuous : why nothing can violate the property, whatever the network; None where something might
    """

    violation: str
    unsat_means: str
    vacuous: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Why a run ended without a verdict, and what to try next: a guess, never a bound.

    Attributes
    ----------
    cause : "weak network", "weak bound" or "between" (P_safe is proved to lie between the thresholds)
    why : the same in a sentence
    drawn : networks that an attack was tried on
    broken : share of them in which it found a violation, an estimate (probabilistic only)
    margin : the least by which the attack missed a violation, in units of the row's largest coefficient; <= 0: by which
        it found one
    rows : the cases that stay open, or that the attack met, in words, the worst first; three at most
    loss : of the first of them, the share of what the bound loses by part: the input box, each layer by its ONNX node;
        empty where nothing cheap tells
    limit : what ended the work: "time", "effort" (what is done without a time limit) or "methods" (all had an end)
    limited_by : the same in words
    unserved : methods that do not serve the question, and why
    smaller : the largest share of the widths of the input intervals that was found to be `unsat`; None: none was found
    command : the command line that is suggested, with PROPERTY and MODEL where no file is known; None: none would help
    advice : what it is for
    decides : whether the work behind it was done: it gives a verdict
    seconds : that the diagnosis took
    """

    cause: str
    why: str
    drawn: int
    broken: float | None
    margin: float
    rows: tuple[str, ...]
    loss: Mapping[str, float]
    limit: str | None
    limited_by: str | None
    unserved: tuple[str, ...]
    smaller: float | None
    command: tuple[str, ...] | None
    advice: str | None
    decides: bool
    seconds: float

    @property
    def lines(self) -> tuple[str, ...]:
        """Two to four lines for people."""
        where = f"{'violated' if self.margin <= 0 else 'open'}: {'; '.join(self.rows)}"
        if self.loss:
            parts = sorted(self.loss.items(), key=lambda part: -part[1])
            where += f"; lost in {', '.join(f'{name} {100 * share:.0f} %' for name, share in parts[:4])}"
        limited = "; ".join([*([f"limited by {self.limited_by}"] if self.limited_by else []), *self.unserved])
        command = "" if self.command is None else f"next: {shlex.join(self.command)}  ({self.advice})"
        lines = (f"{self.cause}: {self.why}", where if self.rows else "", limited, command)
        return tuple(line for line in lines if line)

    def with_files(self, property: Path, model: Path) -> Diagnosis:
        """The command with the names of the files."""
        names = {"PROPERTY": str(property), "--network=MODEL": f"--network={model}"}
        command = self.command and tuple(names.get(word, word) for word in self.command)
        return replace(self, command=command)


@dataclass(frozen=True, eq=False)
class Result:
    """Outcome of one instance.

    Attributes
    ----------
    verdict, query : see `docs/semantics.md`
    tau_safe, tau_unsafe : thresholds on P_safe (probabilistic only; kept for the record otherwise)
    p_safe : bounds on the probability that a network drawn from the posterior is safe on all of T
    decision : bounds on the decision
    method : the method that gave the bounds, for people and for the record
    witness : only with the verdict sat
    time_s : seconds spent
    notes : remarks for the user
    rule : what Y means (decision only)
    details : further facts for the JSON sidecar (mass, margins, counts, seeds); JSON-serialisable
    asked : the question in words
    diagnosis : why there is no verdict, with the verdicts unknown and timeout
    statistics : what bounds with a stated confidence rest on; None: they are certain
    """

    verdict: Verdict
    query: Query
    tau_safe: float
    tau_unsafe: float
    method: str
    time_s: float
    p_safe: Bounds | None = None
    decision: DecisionBounds | None = None
    witness: Witness | None = None
    notes: tuple[str, ...] = ()
    rule: Rule | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    asked: Asked | None = None
    diagnosis: Diagnosis | None = None
    statistics: Statistics | None = None

    @property
    def guarantee(self) -> str:
        """The kind of guarantee: "certain" or "statistical"."""
        return "certain" if self.statistics is None else "statistical"

    @property
    def between(self) -> bool:
        """P_safe is proved to lie between the two thresholds: `unknown` is the answer, and no method changes it."""
        return self.p_safe is not None and self.tau_unsafe <= self.p_safe.lower and self.p_safe.upper < self.tau_safe
