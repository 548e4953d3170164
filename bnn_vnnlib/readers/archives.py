"""NumPy archives (.npz) -> arrays."""

from __future__ import annotations

import math
import re
import sys
import zipfile
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.readers.text import RATIO, SMALL

_MAX_ARRAY_BYTES = 2**35
"""Bytes of all arrays, at most: 32 GiB."""

_MEMBERS = 100_000
_ENCRYPTED = 0x1 | 0x40  # flags of a zip entry
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS = "biufcSU"
_PIECE = 2**20
_LONGEST_HEADER = 4096  # bytes of a header
_HEADER = re.compile(rb"[\w\s{}()'\",:<>|=]*")  # no records, no signs, no escapes
_VERSIONS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}  # bytes of the header's length, and who reads it


def read_npz(path: Path, refusal: type[InputError] = InputError) -> dict[str, NDArray[Any]]:
    """The arrays of an archive, by name.

    The directory is checked before anything is unpacked, and each header before its array gets memory: a member is
    exactly its header and the bytes that this announces.

    Parameters
    ----------
    refusal : kind of error

    Raises
    ------
    InputError : unreadable or damaged; no archive; members that are encrypted, packed in another way than NumPy does,
        twice there, one upon the other, unpacking to more than RATIO and MAX_BYTES allow, no arrays, or arrays of
        objects, records or dates. Names the member.
    """
    try:
        if not path.is_file():
            raise refusal("is a folder, expected an npz file" if path.is_dir() else "no such file", path=path)
        with path.open("rb") as file:
            if not file.read(4).startswith(b"PK"):  # zipfile looks for its directory anywhere in a file
                raise _Refused("not a NumPy archive (.npz): no zip file")
            archive = zipfile.ZipFile(file)
            members = _members(archive, path.stat().st_size)
            return {name: _array(archive, member) for name, member in members.items()}
    except _Refused as error:
        raise refusal(str(error), path=path) from None
    except InputError:
        raise
    except zipfile.BadZipFile as error:
        raise refusal(f"not a NumPy archive (.npz), or a damaged one ({error})", path=path) from None
    except OSError as error:
        raise refusal(f"cannot be read ({error.strerror or error})", path=path) from None
    except Exception as error:  # zipfile and zlib let many kinds of them through, and promise none
        reason = f"{type(error).__name__}: {error}"
        raise refusal(f"not a NumPy archive (.npz), or a damaged one ({reason})", path=path) from None


class _Refused(Exception):
    """Why an archive is refused."""


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The entries of the directory by the name of the array."""
    entries = archive.infolist()
    if len(entries) > _MEMBERS:
        raise _Refused(f"the archive has {len(entries):,} members, more than the {_MEMBERS:,} that are read")
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        stated = entry.orig_filename
        if not stated.endswith(".npy") or stated != entry.filename or ".." in stated.split("/"):
            raise _Refused(f"member {stated!r} is no array; a NumPy archive has members NAME.npy and nothing else")
        name = stated.removesuffix(".npy")
        if name in found:
            raise _Refused(f"member {stated!r} is there twice")
        if entry.flag_bits & _ENCRYPTED:
            raise _Refused(f"member {stated!r} is encrypted; save the arrays without a password")
        if entry.compress_type not in _METHODS:
            method = f"zip method {entry.compress_type}"
            raise _Refused(f"member {stated!r} is packed by {method}; expected what numpy.savez_compressed writes")
        found[name] = entry
    in_order = sorted(entries, key=lambda entry: entry.header_offset)
    for entry, following in pairwise(in_order):
        if entry.header_offset + entry.compress_size >= following.header_offset:
            raise _Refused(f"members {entry.filename!r} and {following.filename!r} lie one upon the other")
    limit, total = min(_MAX_ARRAY_BYTES, max(SMALL, RATIO * size)), sum(entry.file_size for entry in entries)
    if total > limit:
        message = f"unpacks to {total:,} bytes, more than {limit:,}, the limit for {size:,} packed ones"
        raise _Refused(f"{message}; if it is no bomb, save it with numpy.savez")
    return found


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of an archive, read piece by piece, of the size that its header announces."""
    try:
        with archive.open(entry) as stream:
            dtype, shape, columns_first, left = _header(stream, entry.file_size)
            size = math.prod(shape) * dtype.itemsize
            if size != left:
                raise _Refused(f"announces {size:,} bytes ({dtype} of shape {shape}) and has {left:,}")
            flat = np.empty(size, np.uint8)
            place = 0
            while place < size:
                piece = stream.read(min(_PIECE, size - place))
                if not piece:  # whatever the checksum says: memory that nothing was written to must not come out
                    raise _Refused("ends too early")
                flat[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
                place += len(piece)  # the last byte has the checksum compared
    except _Refused as error:
        raise _Refused(f"member {entry.filename!r} {error}") from None
    except MemoryError:
        raise _Refused(f"member {entry.filename!r} needs {entry.file_size:,} bytes, more than there are") from None
    except Exception as error:  # of zipfile, of zlib and of NumPy
        raise _Refused(f"member {entry.filename!r} is damaged ({error or type(error).__name__})") from None
    good = {"b": lambda: flat.max(initial=0) <= 1, "U": lambda: _letters(flat.view(f"{dtype.str[0]}u4"))}
    if dtype.kind in good and not good[dtype.kind]():
        raise _Refused(f"member {entry.filename!r} is damaged (bytes that are no {dtype.name})")
    return flat.view(dtype).reshape(shape, order="F" if columns_first else "C")


def _letters(codes: NDArray[Any]) -> bool:
    """Whether all of them stand for letters: no halves of letters, which no file in UTF-8 can hold."""
    return bool(((codes < 0xD800) | ((codes > 0xDFFF) & (codes <= 0x10FFFF))).all())


def _header(stream: IO[bytes], size: int) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """(type, shape, whether columns lie first, bytes that follow); NumPy reads it, which has Python read it."""
    version = np.lib.format.read_magic(stream)
    if version not in _VERSIONS:
        raise _Refused(f"is in version {version} of the format; plain arrays have 1.0 or 2.0")
    width, read = _VERSIONS[version]
    stated = stream.read(width)
    length = int.from_bytes(stated, "little")
    if length > _LONGEST_HEADER:
        raise _Refused(f"has a header of {length:,} bytes; that of a plain array has 118")
    text = stream.read(length)
    if _HEADER.fullmatch(text) is None or text.count(b"(") != 1:
        raise _Refused(f"is no plain array: its header says {text[:200].decode('latin-1').strip()}")
    shape, columns_first, dtype = read(BytesIO(stated + text))
    if dtype.kind not in _KINDS or (dtype.kind == "f" and dtype.itemsize > 8):
        raise _Refused(f"holds {dtype.name}, expected numbers that float64 can hold, or text")
    if min(shape, default=0) < 0 or max(shape, default=0) > sys.maxsize:
        raise _Refused(f"has the shape {shape}")
    return dtype, shape, columns_first, size - np.lib.format.MAGIC_LEN - width - length
