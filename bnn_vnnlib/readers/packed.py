"""Files, plain or gzip, as bytes or as text."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from bnn_vnnlib.errors import InputError

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
        for candidate in (path, path.with_name(f"{path.name}.gz")):
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
