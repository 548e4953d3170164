"""Which question is asked: a command-line option, else the property's own comment, else the default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bnn_vnnlib.errors import OptionError, did_you_mean
from bnn_vnnlib.result import Query, Rule

DEFAULT_TAU = 0.95
Word = TypeVar("Word", Query, Rule)
_KNOWN = ("query", "tau_safe", "tau_unsafe", "rule")


@dataclass(frozen=True)
class Question:
    """The query (None: probabilistic if the model carries a posterior, else deterministic), its thresholds and rule."""

    query: Query | None
    tau_safe: float
    tau_unsafe: float
    rule: Rule = Rule.MEAN

    def __post_init__(self) -> None:
        if self.tau_unsafe > self.tau_safe:
            raise OptionError(
                f"tau_unsafe ({self.tau_unsafe}) must not exceed tau_safe ({self.tau_safe}): "
                "P_safe could be at least the one and below the other"
            )

    def query_of(self, has_posterior: bool) -> Query:
        """The query, by default that of the model."""
        return self.query or (Query.PROBABILISTIC if has_posterior else Query.DETERMINISTIC)

    def between(self, lower: Any, upper: Any) -> Any:
        """Whether bounds on P_safe (numbers or arrays) show that neither verdict applies, however tight they become."""
        return (lower >= self.tau_unsafe) & (upper < self.tau_safe)


def settle(
    comment: Mapping[str, str],
    query: str | None = None,
    tau_safe: float | None = None,
    tau_unsafe: float | None = None,
    *,
    rule: str | None = None,
    path: Path | None = None,
) -> Question:
    """Settle the question from options and the property's comment `; bnn-vnnlib: key=value ...`.

    Where options and comment together give one threshold, it is both: the question is whether P_safe reaches it.

    Parameters
    ----------
    comment : the property's own settings, `Property.options`
    query, tau_safe, tau_unsafe, rule : the options; None where not given
    path : the property's file, for messages

    Raises
    ------
    OptionError : an unknown key, a value that is no such thing, thresholds out of range or out of order
    """
    unknown = sorted(set(comment) - set(_KNOWN))
    if unknown:
        known = ", ".join(_KNOWN)
        hint = did_you_mean(unknown[0], _KNOWN)
        raise OptionError(f"unknown setting {unknown[0]!r} in a comment; known are {known}{hint}", path=path)
    asked = query if query is not None else comment.get("query")
    safe = tau_safe if tau_safe is not None else _number(comment, "tau_safe", path)
    unsafe = tau_unsafe if tau_unsafe is not None else _number(comment, "tau_unsafe", path)
    for name, value, option in (("tau_safe", safe, tau_safe), ("tau_unsafe", unsafe, tau_unsafe)):
        if value is not None and not 0.0 <= value <= 1.0:
            place = path if option is None else None  # the file is to blame only for what it says
            raise OptionError(f"{name} is a probability, between 0 and 1; found {value}", path=place)
    if safe is None:
        safe = DEFAULT_TAU if unsafe is None else unsafe
    if unsafe is None:
        unsafe = safe
    elsewhere = query is not None and query != Query.DECISION  # then the comment's rule is not meant
    chosen = rule if rule is not None or elsewhere else comment.get("rule")
    return Question(
        None if asked is None else _word(Query, asked, path), safe, unsafe,
        Rule.MEAN if chosen is None else _word(Rule, chosen, path),
    )  # fmt: skip


def _word(kind: type[Word], text: str, path: Path | None) -> Word:
    try:
        return kind(text)
    except ValueError:
        message = f"unknown {kind.__name__.lower()} {text!r}; known are {', '.join(kind)}{did_you_mean(text, kind)}"
        raise OptionError(message, path=path) from None


def _number(comment: Mapping[str, str], key: str, path: Path | None) -> float | None:
    if key not in comment:
        return None
    try:
        value = float(comment[key])
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise OptionError(f"{key}={comment[key]} in a comment is not a number", path=path)
    return value
