"""Syntax tree to normal form."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bnn_vnnlib.question.property import Property
from bnn_vnnlib.signature import Signature
from bnn_vnnlib.vnnlib.assemble import assemble
from bnn_vnnlib.vnnlib.check import Scope, check
from bnn_vnnlib.vnnlib.dnf import expand
from bnn_vnnlib.vnnlib.groups import compare_signatures
from bnn_vnnlib.vnnlib.linear import Comparisons
from bnn_vnnlib.vnnlib.options import read_options
from bnn_vnnlib.vnnlib.runs import read_runs
from bnn_vnnlib.vnnlib.simple import read_simple
from bnn_vnnlib.vnnlib.tree import Query, Source

_NUMBER_2X = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_NUMBERS_2X = re.compile(rf"(?:{_NUMBER_2X.pattern}(?: |\Z))*+")


def normalise(query: Query, source: Source, signature: Signature | None = None) -> Property:
    """The property that a syntax tree describes; checked against a model's signature, if there is one.

    Raises
    ------
    PropertyError, UnsupportedError : located in the text where possible
    """
    options = read_options(source)
    scope = check(query, source)
    shapes = [] if signature is None else compare_signatures(scope.version, scope.signature, signature, source.path)
    comparisons = Comparisons(scope)
    runs = read_runs(query.assertions)
    simple = read_simple(runs, scope, comparisons)
    assembled = assemble(expand(query.assertions, simple, comparisons, source), scope)
    numbers = _notes_on_numbers((*runs.numbers, *comparisons.literals), scope)
    notes = (*scope.notes, *shapes, *numbers, *comparisons.notes, *assembled.notes)
    return Property(
        version=scope.version,
        network=scope.network,
        signature=scope.signature,
        boxes=assembled.boxes,
        constraints=assembled.constraints,
        case_box=assembled.case_box,
        rows=assembled.rows,
        options=options,
        notes=notes,
        hidden=scope.hidden,
    )


def _notes_on_numbers(literals: Iterable[str], scope: Scope) -> list[str]:
    if scope.version[0] == 1:
        return []
    texts = list(literals)
    if _NUMBERS_2X.fullmatch(" ".join(texts)):  # one match is many times cheaper than one for each
        return []
    foreign = {text: None for text in texts if not _NUMBER_2X.fullmatch(text)}
    first, others = next(iter(foreign)), len(foreign) - 1
    more = f" ({others} more like it)" if others else ""
    return [f"{first} is not how VNN-LIB 2.x writes a number; it is read as in 1.0{more}"]
