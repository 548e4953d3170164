"""Property files: plain or compressed."""

from __future__ import annotations

import re
from pathlib import Path

from bnn_vnnlib import readers
from bnn_vnnlib.errors import InputError, VnnlibSyntaxError
from bnn_vnnlib.readers import kinds

MAX_BYTES = 128 * 2**20
_MARABOU = re.compile(r"\s*(?:[+-]?[\d.]*\s*(?:[xy]|ws_\d++_)\d++\s*)++(?:<=|>=|=)\s*[-+.\deE]+\s*(?:[\r\n]|\Z)")


def read_text(path: str | Path, limit: int = MAX_BYTES, what: str = "VNN-LIB") -> tuple[str, Path]:
    """The text of a property file (or of `what` is expected) and the path that was opened.

    A file is decompressed if it is a gzip file, whatever its name; if `path` is missing, `path`.gz is tried.

    Raises
    ------
    InputError : missing, unreadable, broken or larger than `limit` bytes (decompressed)
    VnnlibSyntaxError : not UTF-8 text
    """
    found = readers.located(path)
    kinds.expect(found, kinds.PROPERTY, VnnlibSyntaxError)
    return readers.read_text(found, limit, what, VnnlibSyntaxError), found


def looks_like_vnnlib(path: str | Path) -> bool:
    """Whether a file (or `path`.gz) starts like VNN-LIB, by content: "(" or ";" after blanks. False if unreadable.

    A file of nothing but blanks is judged by its name. Marabou's text counts as well: it is the property, if not one
    that is read.
    """
    try:
        found = readers.located(path)
        start = readers.read_start(found, 4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except InputError:
        return False
    if looks_like_marabou(start.decode("utf-8", "replace")):
        return True
    return start[:1] in (b"(", b";") if start else ".vnnlib" in found.name.lower()


def looks_like_marabou(text: str) -> bool:
    """Whether a text starts with a line such as `x0 >= 0.5` or `+y0 -y1 <= 0`: the verifier Marabou's own format."""
    return _MARABOU.match(text[:1000]) is not None
