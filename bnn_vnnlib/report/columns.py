"""Rows as columns of JSON values, for the page's scripts. Bounds are rounded outward here too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from typing import Any

from bnn_vnnlib.display import digits
from bnn_vnnlib.files.sidecar import plain
from bnn_vnnlib.report.guarantee import Guarantee, guarantee
from bnn_vnnlib.report.pictures import Picture
from bnn_vnnlib.report.row import Row

_TEXTS = ("run", "category", "network", "verdict", "query", "rule", "method", "checked", "reason", "shows",
          "violation", "unsat_means", "vacuous")  # fmt: skip
_MAX_INPUTS = 10
"""Longer witnesses are in the records; the page shows them as pictures only."""


def page_data(rows: Sequence[Row], keys: Sequence[int], images: Mapping[int, Picture]) -> dict[str, Any]:
    """Everything that scripts need.

    Returns
    -------
    rows : how many
    texts : by name {values: distinct texts, codes: index into them of each row, -1 for none}
    numbers : by name a list; null where there is none
    bounds : p_safe and decision as {lower, upper}; a decision's are lists, with "Infinity" and "-Infinity"
    guarantees : {values: [says, open, how], codes}
    more : by index of the row, what few of them have: witness, notes, diagnosis, details
    pictures : by index of the row
    """
    words = [guarantee(row) for row in rows]
    distinct = list(dict.fromkeys(words))
    places = {one: place for place, one in enumerate(distinct)}
    return {
        "rows": len(rows),
        "texts": {name: _coded(getattr(row, name) for row in rows) for name in _TEXTS} | {
            "property": _coded(row.prop for row in rows), "place": _coded(row.place for row in rows)},
        "numbers": {
            "key": list(keys),
            "seconds": [_rounded(row.seconds) for row in rows],
            "timeout": [row.timeout for row in rows],
            "tau_safe": [row.tau_safe for row in rows],
            "tau_unsafe": [row.tau_unsafe for row in rows],
            "gap": [None if row.gap is None or isinf(row.gap) else _out(row.gap, down=False) for row in rows],
        },
        "bounds": {"p_safe": [_interval(row) for row in rows], "decision": [_vectors(row) for row in rows]},
        "guarantees": {"values": [_words(one) for one in distinct], "codes": [places[one] for one in words]},
        "more": {str(index): more for index, row in enumerate(rows) if (more := _more(row))},
        "pictures": {str(index): picture.values() for index, picture in images.items()},
    }  # fmt: skip


def _coded(values: Iterable[str | None]) -> dict[str, list[Any]]:
    """Texts by number, because few of many are distinct.

    >>> _coded(["a", None, "b", "a"])
    {'values': ['a', 'b'], 'codes': [0, -1, 1, 0]}
    """
    numbers: dict[str, int] = {}
    codes = [-1 if value is None else numbers.setdefault(str(value), len(numbers)) for value in values]
    return {"values": list(numbers), "codes": codes}


def _interval(row: Row) -> list[float] | None:
    return None if row.p_safe is None else [_out(row.p_safe[0], down=True), _out(row.p_safe[1], down=False)]


def _vectors(row: Row) -> list[list[Any]] | None:
    if row.decision is None:
        return None
    lower, upper = row.decision
    return [plain([_out(value, down=True) for value in lower]), plain([_out(value, down=False) for value in upper])]


def _words(one: Guarantee) -> list[str]:
    return [one.says, one.open, one.how]


def _more(row: Row) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if row.x is not None and len(row.x) <= _MAX_INPUTS:
        more["x"] = plain(row.x)
    if row.y is not None and len(row.y) <= _MAX_INPUTS:
        more["y"] = plain(row.y)
    if row.notes and row.method is not None:
        more["notes"] = list(row.notes)
    if row.diagnosis:
        more["diagnosis"] = list(row.diagnosis)
    facts = [f"{name} {_fact(value)}" for name, value in row.details.items() if value not in (None, [], {}, "")]
    return more | ({"details": facts} if facts else {})


def _fact(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _out(value: float, *, down: bool) -> float:
    """Six digits, so that no digit of the page claims more than was proved."""
    return float(digits(value, down=down))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
