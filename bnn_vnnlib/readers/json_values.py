"""JSON text -> values."""

from __future__ import annotations

import json
import math
from typing import Any

_DEEPEST = 64
_LONGEST = 400  # digits; float64 reaches to 1.8e308


def parse_json(text: str) -> Any:
    """The values of a JSON text, strictly.

    Raises
    ------
    ValueError : not JSON; NaN or an infinity, as a word or as a number beyond float64; a key twice in an object; nested
        deeper than 64. Its text is one clear reason.
    """
    try:
        found = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_decimal, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError(_DEEP) from None
    level = [found]
    for _ in range(_DEEPEST):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ValueError(_DEEP)
    return found


_DEEP = f"nested too deep, more than {_DEEPEST} levels"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ on which of two values counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST or not math.isfinite(float(text)):
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _decimal(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is infinite as float64")
    return value


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")
