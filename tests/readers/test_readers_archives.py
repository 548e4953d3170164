"""NumPy archives: all that NumPy writes is read, exactly; all that lies is refused with one message."""

from __future__ import annotations

import io
import re
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from bnn_vnnlib.errors import InputError, PosteriorError
from bnn_vnnlib.readers import archives, read_npz
from hostile.mutate_archive import npy

GOOD = {
    "float64": np.array([[1.5, -0.0], [np.nan, 5e-324]]), "bool": np.array([True, False]), "scalar": np.float64(3),
    "columns_first": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big_endian": np.arange(4, dtype=">f4"),
    "half": np.float16([1, 2]), "empty": np.zeros((0, 3)), "text": np.array(["a", "\u00e9\u20ac", ""]),
    "big_endian_text": np.array(["ab"], dtype=">U2"),
    "int": np.array([2**63 - 1]), "bytes": np.array([b"ab"]), "/layers.0/weight_std": np.ones((2, 2)),
    "large": np.arange(400_000.0),
}  # fmt: skip


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_comes_back(tmp_path, save):
    save(tmp_path / "a.npz", **GOOD)
    found = read_npz(tmp_path / "a.npz")
    assert list(found) == list(GOOD)
    for name, array in GOOD.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_an_array_in_version_2_of_the_format_is_read(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }\n"
    found = read_npz(archive(tmp_path, npy(header, struct.pack("<d", 2.5), version=2)))
    assert found["x"].tolist() == [2.5]


def archive(
    folder: Path, *contents: bytes, names: tuple[str, ...] = ("x.npy",), method: int = zipfile.ZIP_STORED
) -> Path:
    """A zip file with any members."""
    path = folder / "a.npz"
    with zipfile.ZipFile(path, "w", method) as stored, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in zip(names, contents, strict=True):
            stored.writestr(name, content)
    return path


def header(shape: str, descr: str = "'<f8'", order: str = "False") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode("latin-1")


def saved(array: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


MEMBERS = {
    "more_than_there_is": (npy(header("(3,)"), bytes(16)), "announces 24 bytes"),
    "less_than_there_is": (npy(header("(1,)"), bytes(16)), "announces 8 bytes"),
    "huge": (npy(header("(1000000, 1000000)"), bytes(8)), "announces 8,000,000,000,000 bytes"),
    "beyond_64_bits": (npy(header("(4611686018427387904, 4611686018427387904)"), b""), "announces"),
    "empty_and_huge": (npy(header("(0, 99999999999999999999999)"), b""), "has the shape"),
    "negative": (npy(header("(-1,)"), bytes(8)), "is no plain array"),
    "objects": (saved(np.array([{}], dtype=object)), "holds object"),
    "records": (saved(np.zeros(2, dtype=[("a", "f4")])), "is no plain array"),
    "dates": (saved(np.zeros(2, dtype="M8[s]")), "is no plain array"),
    "void": (npy(header("(1,)", "'|V8'"), bytes(8)), "holds void"),
    "long_double": (saved(np.zeros(2, dtype=np.longdouble)), "holds (longdouble|float128|float96)"),
    "code": (npy(header("(1,)", "__import__('os').system('true')"), bytes(8)), "is no plain array"),
    "nested": (npy(b"(" * 3000, b""), "is no plain array"),
    "long_header": (npy(header("(1,)") + b" " * 60_000, bytes(8)), "has a header of 60,"),
    "lying_header": (npy(header("(1,)"), bytes(8), claimed=65_535), "has a header of 65,535"),
    "gigabytes_of_header": (npy(header("(1,)"), bytes(8), 2, 2**32 - 1), "has a header of 4,294,967,295"),
    "version_3": (npy(header("(1,)"), bytes(8), version=3), r"is in version \(3, 0\)"),
    "no_array": (b"text", "is damaged"),
    "nothing": (b"", "is damaged"),
    "no_bool": (npy(header("(1,)", "'|b1'"), b"\x02"), "bytes that are no bool"),
    "no_text": (npy(header("(1,)", "'<U1'"), struct.pack("<I", 0x110000)), "bytes that are no str"),
    "half_a_letter": (npy(header("(1,)", "'>U1'"), struct.pack(">I", 0xDC80)), "bytes that are no str"),
    "unknown_type": (npy(header("(1,)", "'<z8'"), bytes(8)), "is damaged"),
    "size_zero": (npy(header("(7,)", "'<U0'"), b""), "NumPy archive"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_members_that_lie(tmp_path, name):
    content, words = MEMBERS[name]
    says(archive(tmp_path, content), words)


def says(path: Path, words: str) -> None:
    """One message, and never much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=words) as caught:
            read_npz(path)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert caught.value.path == path
    assert str(caught.value).isprintable()
    assert peak < 2**22


ONE = saved(np.ones(3))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("x.npy", "x.npy"), "'x.npy' is there twice"),
        (("x.npy", "read.me"), "'read.me' is no array"),
        (("x.npy", "../y.npy"), "'../y.npy' is no array"),
        (("x.npy", "a/../../y.npy"), "is no array"),
    ],
)
def test_directories_that_are_none_of_numpy(tmp_path, names, words):
    says(archive(tmp_path, ONE, ONE, names=names), words)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing(tmp_path, method):
    says(archive(tmp_path, ONE, method=method), f"'x.npy' is packed by zip method {method}")


def patched(path: Path, mark: bytes, offset: int, value: bytes) -> Path:
    """Each header that starts with the mark, changed."""
    data = bytearray(path.read_bytes())
    for found in re.finditer(re.escape(mark), bytes(data)):
        data[found.start() + offset : found.start() + offset + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (8, b"\x01\x00", "'x.npy' is encrypted"),
        (8, b"\x41\x00", "'x.npy' is encrypted"),
        (10, b"\x63\x00", "packed by zip method 99"),
        (6, b"\x63\x00", "zip file version 9.9"),
        (16, b"\x00\x00\x00\x00", "CRC"),
        (24, b"\x00\x00\x00\x00", "is damaged"),
        (24, b"\x00\x00\x00\x40", "unpacks to 1,073,741,824 bytes"),
        (24, b"\x00\x00\x00\x01", "announces 24 bytes"),
        (42, b"\x07\x00\x00\x00", "is damaged"),
    ],
)
def test_entries_that_lie(tmp_path, offset, value, words):
    says(patched(archive(tmp_path, ONE), b"PK\x01\x02", offset, value), words)


def test_members_one_upon_the_other(tmp_path):
    """A bomb without a bomb: every name of the directory is the same bytes."""
    path = archive(tmp_path, ONE, ONE, names=("x.npy", "y.npy"))
    says(patched(path, b"PK\x01\x02", 42, bytes(4)), "lie one upon the other")


def test_a_stream_that_ends_early_gives_no_memory_away(tmp_path):
    """The checksum is that of what is there, the size is not."""
    content = npy(header("(3,)"), bytes(8))
    path = archive(tmp_path, content, method=zipfile.ZIP_DEFLATED)
    size = struct.pack("<I", len(content) + 16)
    patched(path, b"PK\x01\x02", 24, size)
    says(patched(path, b"PK\x03\x04", 22, size), "ends too early|CRC")
    assert zlib.crc32(content) == zipfile.ZipFile(path).infolist()[0].CRC


def test_a_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL", 2**20)
    content = npy(header("(200000,)"), bytes(1_600_000))
    says(archive(tmp_path, content, method=zipfile.ZIP_DEFLATED), "unpacks to 1,600,0.* if it is no bomb, save it with")
    assert len(read_npz(archive(tmp_path, content))["x"]) == 200_000  # not packed, it is what it is


def test_too_many_members(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MEMBERS", 2)
    says(archive(tmp_path, *[ONE] * 3, names=("a.npy", "b.npy", "c.npy")), "has 3 members")


@pytest.mark.parametrize("data", [b"", b"text", b"PK", b"PK\x03\x04", b"PK\x05\x06" + bytes(17), b"\x93NUMPY"])
def test_files_that_are_no_archives(tmp_path, data):
    (tmp_path / "a.npz").write_bytes(data)
    says(tmp_path / "a.npz", "not a NumPy archive")


def test_an_archive_behind_something_else_is_refused(tmp_path):
    path = archive(tmp_path, ONE)
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    says(path, "no zip file")


def test_the_kind_of_error_is_that_of_the_caller(tmp_path):
    with pytest.raises(PosteriorError, match="no such file"):
        read_npz(tmp_path / "a.npz", PosteriorError)
    with pytest.raises(InputError, match="is a folder"):
        read_npz(tmp_path)
    with pytest.raises(PosteriorError, match="is damaged"):
        read_npz(archive(tmp_path, b""), PosteriorError)
