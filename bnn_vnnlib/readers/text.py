"""Files, plain or gzip: bytes, text, tables of comma-separated values and JSON values."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.printable import printable

RATIO, SMALL = 100, 2**27
"""What is packed may unpack to 100 times its size, and to 128 MiB in any case: weights and text shrink to a tenth,
zeros and bombs to a thousandth."""

_GZIP = b"\x1f\x8b"
_PIECE = 2**20


def located(path: str | Path, refusal: type[InputError] = InputError, what: str = "a file") -> Path:
    """The file, or `path`.gz if only that is there.

    Parameters
    ----------
    refusal : kind of error
    what : was expected, for messages

    Raises
    ------
    InputError : no such file, a folder, or something else that is no regular file (a pipe, a device)
    """
    path = Path(path)
    try:
        for candidate in (path, Path(f"{path}.gz")):
            if candidate.is_file():
                return candidate
        folder = path.is_dir()
    except (OSError, ValueError):  # a name that is too long, holds a zero byte, or is no name
        folder = False
    raise refusal(f"is a folder, expected {what}" if folder else "no such file", path=path)


def read_bytes(path: Path, most: int, refusal: type[InputError] = InputError) -> bytes:
    """The content of a file; that of a gzip file unpacked, whatever its name.

    Parameters
    ----------
    most : bytes, packed and unpacked
    refusal : kind of error

    Raises
    ------
    InputError : missing, unreadable, damaged, too large, or a gzip file that unpacks to more than RATIO allows
    """
    with _opened(path, refusal) as (stream, size, packed):
        if size > most:
            raise refusal(f"the file has {size:,} bytes, more than the {most:,} that are read", path=path)
        if not packed:
            return stream.read()
        limit = min(most, max(SMALL, RATIO * size))
        unpacked = io.BytesIO()  # gives its buffer away without a copy
        while piece := stream.read(_PIECE):
            if unpacked.tell() + len(piece) > limit:
                message = f"unpacks to more than {limit:,} bytes, the limit for {size:,} packed ones"
                remedy = "" if limit == most else "; if it is no gzip bomb, unpack it yourself"
                raise refusal(message + remedy, path=path)
            unpacked.write(piece)
        return unpacked.getvalue()


def read_start(path: Path, count: int) -> bytes:
    """The first `count` bytes of what `read_bytes` gives; InputError as there."""
    with _opened(path, InputError) as (stream, _, _):
        return stream.read(count)


def read_text(path: Path, most: int, what: str = "text", no_text: type[InputError] = InputError) -> str:
    """The content of a file, unpacked as by `read_bytes`, as text; a byte order mark at its start is left out.

    Parameters
    ----------
    most : bytes, packed and unpacked
    what : was expected, for messages
    no_text : kind of error where it is not UTF-8

    Raises
    ------
    InputError : as `read_bytes`; not UTF-8 (with the line)
    """
    data = read_bytes(path, most).removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise no_text(f"not a text file: expected {what} in UTF-8", path=path, line=line) from None


def is_gzip(path: Path) -> bool:
    """Whether the file is gzip, whatever its name; the file is there."""
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


@contextmanager
def _opened(path: Path, refusal: type[InputError]) -> Iterator[tuple[IO[bytes], int, bool]]:
    """(stream of what is in the file, bytes of the file, whether it is gzip)"""
    try:
        if not path.is_file():
            raise refusal("is a folder, expected a file" if path.is_dir() else "no such file", path=path)
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
            yield stream, path.stat().st_size, packed
    except InputError:
        raise
    except EOFError:
        raise refusal("damaged gzip file (it ends too early); copy it again", path=path) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise refusal(f"damaged gzip file ({error}); copy it again", path=path) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise refusal(f"cannot be read ({getattr(error, 'strerror', None) or error})", path=path) from None


MAX_TABLE_BYTES = 2**26
"""Bytes of a table, unpacked, at most."""

_CELLS = 4_000_000  # a table of commas has as many cells as bytes, and a cell takes sixty


def read_rows(path: Path, *, skip_blanks: bool = False) -> list[tuple[int, list[str]]]:
    """(line, cells) of each row of a CSV file, plain or gzip.

    `line` is that of the row's last line, which is where an unbalanced quotation mark shows.

    Parameters
    ----------
    skip_blanks : leave out blanks behind a comma

    Raises
    ------
    InputError : missing, unreadable, too large, no text, no CSV (with the line)
    """
    rows = csv.reader(
        io.StringIO(read_text(path, MAX_TABLE_BYTES, what="a table"), newline=""), skipinitialspace=skip_blanks
    )
    found, cells = [], 0
    try:
        for row in rows:
            cells += max(1, len(row))
            if cells > _CELLS:
                raise InputError(f"the table has more than {_CELLS:,} cells", path=path)
            found.append((rows.line_num, row))
    except csv.Error as error:
        raise InputError(f"not a CSV file ({error})", path=path, line=rows.line_num) from None
    return found


def table_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV that any program can show: what is not printable in a cell is written as its escape."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [printable(cell, lines=True) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()


_DEEPEST = 64
_MOST_DIGITS = 400  # digits; float64 reaches to 1.8e308


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
    """An object of JSON; ValueError for a key that is there twice, as readers differ on which value counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS or not math.isfinite(float(text)):
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _decimal(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is infinite as float64")
    return value


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")
