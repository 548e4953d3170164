"""Which question is asked: a command-line option, else the property's own comment, else the default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.result import Query

DEFAULT_TAU = 0.95
_KNOWN = ("query", "tau_safe", "tau_unsafe")


@dataclass(frozen=True)
class Question:
    """The query (None: probabilistic if the model carries a posterior, else deterministic) and its thresholds."""

    query: Query | None
    tau_safe: float
    tau_unsafe: float

    def __post_init__(self) -> None:
        for name in ("tau_safe", "tau_unsafe"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise OptionError(f"{name} is a probability, between 0 and 1; found {getattr(self, name)}")
        if self.tau_unsafe > self.tau_safe:
            raise OptionError(f"tau_unsafe ({self.tau_unsafe}) must not exceed tau_safe ({self.tau_safe})")


def settle(
    comment: Mapping[str, str],
    query: str | None = None,
    tau_safe: float | None = None,
    tau_unsafe: float | None = None,
    *,
    path: Path | None = None,
) -> Question:
    """Settle the question from options and the property's comment `; bnn-vnnlib: key=value ...`.

    Where only one threshold is given, the default of the other gives way to it.

    Parameters
    ----------
    comment : the property's own settings, `Property.options`
    query, tau_safe, tau_unsafe : the options; None where not given
    path : the property's file, for messages

    Raises
    ------
    OptionError : an unknown key, a value that is no such thing, thresholds out of range or out of order
    """
    unknown = sorted(set(comment) - set(_KNOWN))
    if unknown:
        known = ", ".join(_KNOWN)
        raise OptionError(f"unknown setting {unknown[0]!r} in a comment; known are {known}", path=path)
    asked = query if query is not None else comment.get("query")
    safe = tau_safe if tau_safe is not None else _number(comment, "tau_safe", path)
    unsafe = tau_unsafe if tau_unsafe is not None else _number(comment, "tau_unsafe", path)
    if safe is None:
        safe = DEFAULT_TAU if unsafe is None else max(DEFAULT_TAU, unsafe)
    if unsafe is None:
        unsafe = min(DEFAULT_TAU, safe)
    return Question(None if asked is None else _query(asked, path), safe, unsafe)


def _query(text: str, path: Path | None) -> Query:
    try:
        return Query(text)
    except ValueError:
        raise OptionError(f"unknown query {text!r}; known are {', '.join(Query)}", path=path) from None


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
