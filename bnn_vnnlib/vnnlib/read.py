"""Property files: plain or compressed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from bnn_vnnlib.errors import InputError, VnnlibSyntaxError

MAX_BYTES = 128 * 2**20
_GZIP = b"\x1f\x8b"


def read_text(path: str | Path, limit: int = MAX_BYTES) -> tuple[str, Path]:
    """The text of a property file and the path that was opened.

    A file is decompressed if it is a gzip file, whatever its name; if `path` is missing, `path`.gz is tried.

    Raises
    ------
    InputError : missing, unreadable, broken or larger than `limit` bytes (decompressed)
    VnnlibSyntaxError : not UTF-8 text
    """
    found = _locate(Path(path))
    data = _read(found, limit + 1)
    if len(data) > limit:
        raise InputError(f"the text is longer than {limit:,} bytes, the limit", path=found)
    try:
        return data.decode("utf-8-sig"), found
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise VnnlibSyntaxError("not a text file: expected VNN-LIB in UTF-8", path=found, line=line) from None


def looks_like_vnnlib(path: str | Path) -> bool:
    """Whether a file (or `path`.gz) starts like VNN-LIB, by content: "(" or ";" after blanks. False if unreadable.

    A file of nothing but blanks is judged by its name.
    """
    try:
        found = _locate(Path(path))
        start = _read(found, 4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except InputError:
        return False
    return start[:1] in (b"(", b";") if start else ".vnnlib" in found.name.lower()


def _locate(path: Path) -> Path:
    try:
        if path.is_file():
            return path
        compressed = path.with_name(path.name + ".gz")
        if compressed.is_file():
            return compressed
    except (OSError, ValueError):  # a name that is too long, or no name
        raise InputError("no such file", path=path) from None
    what = "is a folder, expected a file" if path.is_dir() else "no such file"
    raise InputError(what, path=path)


def _read(path: Path, count: int) -> bytes:
    """At most `count` bytes of the text."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start != _GZIP:
                return file.read(count)
            with cast(IO[bytes], gzip.open(file)) as unpacked:
                return unpacked.read(count)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"broken gzip file ({error})", path=path) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path=path) from None
