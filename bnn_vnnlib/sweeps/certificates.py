"""Certificates for chosen rows of a sweep: each row becomes a property file of its own, which is decided and proved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.question.options import IN_COMMENTS, Options
from bnn_vnnlib.requirements import Requirement, Row, between, property_text, robust, within
from bnn_vnnlib.result import Query, Result
from bnn_vnnlib.sweeps.questions import AskedRows, setting_of
from bnn_vnnlib.sweeps.sweeping import Pair
from bnn_vnnlib.sweeps.table import Table

_SECONDS = 60.0
"""Time limit of a row."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """A row: its number through all tables, its table and its place there, the file of its network."""

    row: int
    table: Table
    at: int
    network: Path


def chosen(text: str, pairs: Sequence[Pair], options: Options) -> list[Chosen]:
    """Rows from a text such as "0,5,17".

    Raises
    ------
    OptionError : no numbers, or no such row
    UnsupportedError, InputError : there is no rule for the network or the query; the network has no file
    """
    from bnn_vnnlib.certificates.prove import refuse

    starts = np.cumsum([0, *(len(pair.table) for pair in pairs)])
    try:
        rows = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--certificates takes rows such as 0,5,17, found {text!r}") from None
    if bad := [row for row in rows if not 0 <= row < starts[-1]]:
        raise OptionError(f"--certificates: the tables have rows 0 to {starts[-1] - 1}, found {bad[0]}")
    found = []
    for row in rows:
        number = int(np.searchsorted(starts, row, "right")) - 1
        pair, at = pairs[number], row - int(starts[number])
        named = pair.source if isinstance(pair.source, Mapping) else {"": pair.source}
        source = named["" if pair.table.network is None or "" in named else str(pair.table.network[at])]
        if source.path is None:
            raise InputError("a certificate is about a file; this network is in memory")
        setting = setting_of(options, source.model)
        refuse(setting.model, setting.query, options.guarantee)
        found.append(Chosen(row, pair.table, at, source.path))
    return found


def write_certificates(rows: Sequence[Chosen], options: Options, folder: Path) -> Iterator[tuple[int, Result]]:
    """Decide rows again and write `row_N.vnnlib` and `row_N.cert`; `details.certificate` says what came of it."""
    from bnn_vnnlib.api import verify
    from bnn_vnnlib.certificates.prove import certified
    from bnn_vnnlib.model.reading import read_model
    from bnn_vnnlib.vnnlib import match, read_property

    for one in rows:
        started, model = time.monotonic(), read_model(one.network)
        lower, upper = (_exact(side[one.at]) for side in (one.table.lower, one.table.upper))
        asked = one.table.asked.rows(slice(one.at, one.at + 1))
        requirement = _requirement(asked, model.network.signature.output_size, one.row)
        given = {name: options.given[name] for name in IN_COMMENTS if name in options.given}
        comment = {name: str(value.value if isinstance(value, Query) else value) for name, value in given.items()}
        prop = folder / f"row_{one.row}.vnnlib"
        write_text(prop, property_text(between(lower, upper), requirement, comment=comment))
        question = match(read_property(prop), model.network.signature, prop)
        how = replace(options, timeout=_SECONDS)
        result = verify(model, question, started=started, **how.given)
        files = {"model": one.network, "property": prop}
        yield one.row, certified(prop.with_suffix(".cert"), files, model, question, how, result, started)


def _exact(values: NDArray[np.float64]) -> NDArray[np.object_]:
    """The floats as decimals, exactly."""
    return np.array([Decimal(float(v)) for v in values], object)


def _requirement(asked: AskedRows, outputs: int, row: int) -> Requirement:
    """What one row asks for."""
    if asked.labels is not None and asked.labels[0] >= 0:
        return robust(outputs, int(asked.labels[0]))
    if asked.lower is not None and asked.upper is not None:
        return within(
            *([Decimal(float(v)) if np.isfinite(v) else v for v in side[0]] for side in (asked.lower, asked.upper))
        )
    if asked.a is None or asked.b is None or asked.case is None:
        raise OptionError(f"row {row} asks nothing that could be proved")
    cases = [np.flatnonzero(asked.case == case) for case in np.unique(asked.case)]
    forbidden = tuple(
        tuple(
            Row({j: Decimal(float(v)) for j, v in enumerate(asked.a[0, r]) if v}, Decimal(float(asked.b[0, r])))
            for r in rows
        )
        for rows in cases
    )
    return Requirement(f"the inequalities of row {row} do not all hold together", outputs, forbidden, {})
