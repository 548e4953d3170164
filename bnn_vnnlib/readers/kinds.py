"""What a file is, by its first bytes: whoever names the wrong one is told what it is, and what to do with it.

Nothing is opened any further than that; a pickle, for one, would run what is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.readers.text import located, read_start

START_BYTES = 4096
"""Bytes that are read, and unpacked from a gzip file."""

MODEL, PROPERTY, ARCHIVE = "an ONNX model", "a VNN-LIB property", "a NumPy archive (.npz)"
TABLE, RESULTS, INSTANCES = "a table (.npz or .parquet)", "a results file", "a benchmark folder or its instances.csv"

_EXPORT = "export the network to ONNX and name that file"
_SWAPPED = "were two files exchanged?"


@dataclass(frozen=True)
class _Kind:
    """A kind of file.

    Attributes
    ----------
    what : it is
    remedy : what to do with it
    suits : what it may be meant as, and is
    """

    what: str
    remedy: str
    suits: tuple[str, ...] = ()


_TORCH_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
"""A number that torch.save wrote first before it made zip archives."""

_EMPTY = _Kind("the file is empty", "copy or write it again", (PROPERTY, RESULTS, INSTANCES))
_POINTER = _Kind("it is a Git-LFS pointer", "run `git lfs pull` where it came from to get the file itself")
_TAR = _Kind("it holds a tar archive", "unpack it and name the file inside")
_ZIP = _Kind("it is a zip archive", "unpack it and name the file inside")
_NPZ = _Kind(
    "it is a NumPy archive (.npz)",
    "a posterior gets into a model by bnn-vnnlib attach MODEL POSTERIOR TARGET; otherwise two files were exchanged",
    (ARCHIVE, TABLE),
)
_NPY = _Kind("it is a single NumPy array (.npy)", "write all arrays into one archive with numpy.savez")
_TORCH = _Kind(
    "it is a PyTorch file",
    "export the network with torch.onnx.export; weight samples or deviations go into an archive for bnn-vnnlib attach",
)
_PICKLE = _Kind(
    "it is a Python pickle", "it is never opened, since that would run what is in it; write numpy.savez files"
)
_KERAS = _Kind("it is a Keras file", f"{_EXPORT} (tf2onnx)")
_HDF5 = _Kind("it is an HDF5 file, such as Keras writes", f"{_EXPORT} (tf2onnx)")
_TFLITE = _Kind("it is a TensorFlow Lite model", f"{_EXPORT} (tf2onnx)")
_PARQUET = _Kind("it is a Parquet table", _SWAPPED, (TABLE,))
_ONNX = _Kind("it seems to be an ONNX model", _SWAPPED, (MODEL,))
_VNNLIB = _Kind("it is VNN-LIB text", _SWAPPED, (PROPERTY, RESULTS))
_JSON = _Kind("it is JSON text, such as the record of a run", "name the file that the record belongs to")
_WEB = _Kind("it is a web page or XML", "download the file itself, not the page that shows it")
_RESULTS = _Kind("it is a results file", _SWAPPED, (RESULTS,))
_PLAIN = _Kind("it holds text", _SWAPPED, (PROPERTY, RESULTS, INSTANCES))


def kind_of(start: bytes) -> _Kind | None:
    """The kind of a file that starts like this (unpacked, if it is gzip); None for what is not known."""
    if not start:
        return _EMPTY
    for magic, kind in (
        (b"version https://git-lfs", _POINTER), (b"\x93NUMPY", _NPY), (b"\x89HDF", _HDF5), (b"PAR1", _PARQUET),
        (b"\x80\x02", _PICKLE), (b"\x80\x03", _PICKLE), (b"\x80\x04", _PICKLE), (b"\x80\x05", _PICKLE),
    ):  # fmt: skip
        if start.startswith(magic):
            return _TORCH if kind is _PICKLE and (_TORCH_MAGIC in start or b"torch" in start) else kind
    if start.startswith(b"PK\x03\x04"):
        return _zipped(start)
    if start[257:262] == b"ustar":
        return _TAR
    if start[4:8] == b"TFL3":
        return _TFLITE
    # An ONNX file begins with its first field, the version of the format, unless a tool writes its own order.
    return _text(start) or (_ONNX if len(start) > 16 and start[0] == 8 and 0 < start[1] < 64 else None)


def refuse_other(start: bytes, wanted: str, path: Path, refusal: type[InputError] = InputError) -> None:
    """Raise where a file that starts like this is known to be something else than what is wanted."""
    kind = kind_of(start)
    if kind is not None and wanted not in kind.suits:
        raise refusal(f"expected {wanted}: {kind.what}; {kind.remedy}", path=path)


def expect(path: str | Path, wanted: str, refusal: type[InputError] = InputError) -> None:
    """Raise where a file on disk is known to be something else; one that cannot be read is left to its reader."""
    path = Path(path)
    start = start_of(path)
    if start is not None:
        refuse_other(start, wanted, path, refusal)


def start_of(path: Path) -> bytes | None:
    """The first bytes of a file, or of `path`.gz; unpacked, if it is gzip; None where they cannot be read."""
    try:
        return read_start(located(path), START_BYTES)
    except InputError:
        return None


def _zipped(start: bytes) -> _Kind:
    """The kind of a zip archive by the name of the first file inside, which the local header holds."""
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if name.endswith(b".npy"):
        return _NPZ
    if name.endswith((b"/data.pkl", b"/version", b"/byteorder", b"/constants.pkl")) or b"/data/" in name:
        return _TORCH
    return _KERAS if name in (b"metadata.json", b"config.json", b"model.weights.h5") else _ZIP


def _text(start: bytes) -> _Kind | None:
    """The kind of a text by its first bytes; None if it is no text."""
    text = start.removeprefix(b"\xef\xbb\xbf")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if error.start < len(text) - 4:  # the last letter may be cut off
            return None
    if re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", text):
        return None
    text = text.lstrip()
    if text[:1] in (b"(", b";"):
        return _VNNLIB
    if text[:1] == b"<":
        return _WEB
    if text[:1] == b"{":
        return _JSON
    if re.match(rb"(sat|unsat|unknown|timeout|timed-out|error)\s", text + b"\n"):
        return _RESULTS
    return _PLAIN
