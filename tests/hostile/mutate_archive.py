"""NumPy archives, mangled: by bytes, by fields of the zip directory, by headers of the arrays, by members."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from hostile.mutate_bytes import bytes_changed

Members = list[tuple[str, bytes]]

SHAPES = ("()", "(2,)", "(-1,)", "(2, 3, 4)", "(0,)", "(4611686018427387904,)", "(1000000, 1000000)",
          "(0, 9223372036854775807)",
          "(True, 2)", "(2.0,)", "'x'", "None", "(99999999999999999999999,)", "(" + "1, " * 70 + ")", "[2, 2]",
          "(0, 4611686018427387904, 4611686018427387904)", "(100000000,)")  # fmt: skip
DESCRIPTIONS = ("'<f8'", "'>f8'", "'<f4'", "'<f2'", "'|O'", "'<U4'", "'<U999999999'", "'|S3'", "'|V8'", "'<M8[ns]'",
                "'<c16'", "'<f16'",
                "[('a', '<f8')]", "[('a', '|O')]", "'nonsense'", "8", "None", "('<f8', (2, 2))", "'|b1'", "'<i8'",
                "'<u1'", "'<f8\\x1b'",
                "[" * 200 + "]" * 200, "(" * 3000, "'<f8' if 1 else 2", "__import__('os')", "9" * 5000,
                "'<i4,(99999,99999)f8'",
                "{'names': ['a'], 'formats': ['O']}", "-" * 4000 + "1", "'\\d'", "''", "'f'*9**9")  # fmt: skip
NAMES = ("x", "../x.npy", "/etc/passwd", "a\\b.npy", "W_std.npy", "W_variance.npy", "x.npy", "\x1b[31mred.npy",
         "\u202egnp.npy", "con.npy",
         "a" * 5000 + ".npy", "", ".npy", "x.npy/", "posterior_probabilities.npy", "W_samples.npy",
         "component0/W_mean.npy",
         "component99999999999/W_std.npy", "component" + "9" * 5000 + "/W_std.npy")  # fmt: skip


def archives() -> list[bytes]:
    """Archives as people have them: posteriors of a weight W (2, 2), tables, inputs, training data."""
    rng = np.random.default_rng(0)
    w, boxes = rng.uniform(0.1, 1, (2, 2)), rng.uniform(-1, 1, (5, 2))
    table = {"lower": boxes, "upper": boxes + 0.1}
    kinds: list[dict[str, Any]] = [
        {"W_std": w}, {"W_variance": w.astype(np.float32)},
        {"W_samples": rng.normal(size=(3, 2, 2)), "posterior_probabilities": np.array([0.25, 0.25, 0.5])},
        {"W_factor": rng.normal(size=(3, 2, 2)), "W_diagonal": w}, {"W_factor": rng.normal(size=(4, 2, 2))},
        {"W_left": np.eye(2), "W_right": np.eye(2), "W_spectrum": w},
        {"component0/W_mean": w, "component0/W_std": w, "component1/W_mean": w, "component1/W_std": w,
         "posterior_probabilities": np.array([0.5, 0.5])},
        {**table, "label": np.arange(5) % 2}, {**table, "network": np.array(["a"] * 5), "group": np.arange(5)},
        {**table, "output_lower": boxes - 1, "output_upper": boxes + 1},
        {**table, "a": rng.normal(size=(5, 3, 2)), "b": rng.normal(size=(5, 3)), "case": np.array([0, 0, 1])},
        {"x": boxes, "label": np.arange(5) % 2, "valid_lower": -np.ones(2), "valid_upper": np.ones(2)},
        {"x": boxes, "y": boxes, "scale": np.ones(2)}, {"x": boxes, "y": np.arange(5) % 2},
    ]  # fmt: skip
    found = []
    for arrays in kinds:
        for save in (np.savez, np.savez_compressed):
            stream = io.BytesIO()
            save(stream, **arrays)  # type: ignore[arg-type]
            found.append(stream.getvalue())
    return found


def mangled_archive(rng: Random, seeds: list[bytes]) -> bytes:
    """An archive that is more or less broken."""
    data = rng.choice(seeds)
    if rng.random() < 0.6:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        for _ in range(1 + int(rng.expovariate(1))):
            rng.choice(_MEMBERS)(rng, members)
        data = _packed(rng, members)
    if rng.random() < 0.5:
        data = rng.choice(_FIELDS)(rng, data)
    if rng.random() < 0.3:
        data = bytes_changed(rng, data)
    return data


def parquets() -> list[bytes]:
    """Parquet tables and inputs, and such with columns of every kind that these are not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    boxes = [[0.0, 0.5]] * 5
    good: dict[str, Any] = {"lower": boxes, "upper": [[1.0, 0.75]] * 5, "label": [0, 1, 0, 1, 0]}
    odd: list[Any] = [
        ["a", "b", None, "d", "e"], [b"a"] * 5, [{"a": 1}] * 5, [[1], [1, 2], [], [3], [4]], [None] * 5, [True] * 5,
        [[[1.0]]] * 5, ["\x1b[31m"] * 5, pa.array([1] * 5, pa.timestamp("ns")),
        pa.array(["a"] * 5).dictionary_encode(),
        pa.array([1] * 5, pa.decimal128(9)), pa.array([[("a", 1)]] * 5, pa.map_(pa.string(), pa.int64())),
        pa.array([[1.0, 2.0]] * 5, pa.list_(pa.float64(), 2)), pa.array(["a"] * 5, pa.large_string()),
        pa.array([1] * 5, pa.float16()), pa.array([1] * 5, pa.date32()),
    ]  # fmt: skip
    tables = [good, {"x": boxes, "y": boxes}, *({**good, "label": column} for column in odd),
              *({**good, "group": column} for column in odd), *({**good,
              "lower": column} for column in odd)]  # fmt: skip
    found = []
    for number, columns in enumerate(tables):
        stream = io.BytesIO()
        pq.write_table(pa.table(columns), stream, compression=("snappy", "gzip", "zstd", "none")[number % 4])
        found.append(stream.getvalue())
    return found


def mangled_parquet(rng: Random, seeds: list[bytes]) -> bytes:
    """A Parquet file that is more or less broken."""
    data = rng.choice(seeds)
    return data if rng.random() < 0.1 else bytes_changed(rng, data)


def npy(header: bytes, body: bytes = b"", version: int = 1, claimed: int | None = None) -> bytes:
    """An array file with any header; `claimed` is what it says that its length is."""
    length = len(header) if claimed is None else claimed
    width = "<H" if version == 1 else "<I"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack(width, length % (2**16 if version == 1 else 2**32))
        + header
        + body
    )


def _packed(rng: Random, members: Members) -> bytes:
    stream = io.BytesIO()
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    method = rng.choices(methods, [4, 4, 1, 1])[0]
    with zipfile.ZipFile(stream, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            info = zipfile.ZipInfo(name.replace("\0", "") or "empty")
            info.filename = name
            info.compress_type = rng.choice(methods) if rng.random() < 0.1 else method
            archive.writestr(info, content)
    return stream.getvalue()


def _header(rng: Random, members: Members) -> None:
    """Another header: shape, type, order, nesting, length, version."""
    place = rng.randrange(len(members)) if members else -1
    if place < 0:
        return
    name, content = members[place]
    body = content[128:] if rng.random() < 0.5 else bytes(rng.choice([0, 8, 32, 100_000]))
    fields = f"'descr': {rng.choice(DESCRIPTIONS)}, 'fortran_order': {rng.choice(['False', 'True', '3', 'None'])}"
    text = f"{{{fields}, 'shape': {rng.choice(SHAPES)}}}" + rng.choice(["\n", "", "\0", " " * 70_000, ", 'more': 1"])
    if rng.random() < 0.4:
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {rng.choice(SHAPES)}, }}\n"
    claimed = rng.choice([None, None, None, 0, 65_535, 2**32 - 1])
    members[place] = name, npy(text.encode("latin-1", "replace"), body, rng.choice([1, 1, 2, 3, 4, 0]), claimed)


def _content(rng: Random, members: Members) -> None:
    """The bytes of a member, behind a checksum that is right."""
    for place in range(len(members)):
        name, content = members[place]
        if rng.random() < 0.7:
            members[place] = name, bytes_changed(rng, content)


def _array(rng: Random, members: Members) -> None:
    """Another array in place of one: a wrong type, an odd shape, numbers that are none, objects."""
    if not members:
        return
    place = rng.randrange(len(members))
    arrays: list[Callable[[], Any]] = [
        lambda: np.array(["a", "\x1b[31m"]), lambda: np.array([{}], dtype=object), lambda: np.zeros((5, 0)),
        lambda: np.float64(3),
        lambda: np.full((5, 2), np.nan), lambda: np.full((5, 2), np.inf), lambda: np.zeros((5, 2), dtype="M8[s]"),
        lambda: np.zeros((0, 2)),
        lambda: np.zeros((5, 2), dtype=[("a", "f4")]), lambda: np.full(5, -(2**63)), lambda: np.full(5, 2**64 - 1,
        dtype=np.uint64),
        lambda: np.zeros((5, 2), dtype=complex), lambda: np.zeros(5, dtype=np.longdouble), lambda: np.full((2, 2),
        -1.0),
        lambda: np.full((2, 2), 1e308), lambda: np.full((2, 2), 5e-324), lambda: np.array(b"\xff"),
        lambda: np.zeros((2,) * 20),
        lambda: np.full((5, 2), np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf0\x7f", "<f8")[0]),
    ]  # fmt: skip
    stream = io.BytesIO()
    np.save(stream, rng.choice(arrays)(), allow_pickle=True)
    members[place] = members[place][0], stream.getvalue()


def _name(rng: Random, members: Members) -> None:
    if members:
        place = rng.randrange(len(members))
        members[place] = rng.choice([*NAMES, members[0][0]]), members[place][1]


def _list(rng: Random, members: Members) -> None:
    """Members dropped, repeated, moved, or of another kind."""
    if not members:
        return
    place = rng.randrange(len(members))
    match rng.randrange(5):
        case 0:
            del members[place]
        case 1:
            members.append(members[place])
        case 2:
            rng.shuffle(members)
        case 3:
            members.append((rng.choice(NAMES), rng.choice([b"", b"text", b"PK\x05\x06" + bytes(18), npy(b"")])))
        case _:
            members += [(f"{i}.npy", b"") for i in range(300)]


def _bomb(rng: Random, members: Members) -> None:
    """Many zeros that shrink to nothing, behind a header that is right or not."""
    if members:
        count = rng.choice([10**5, 10**6])
        header = (
            f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count * rng.choice([1, 1, 10**6])},), }}\n".encode()
        )
        members[rng.randrange(len(members))] = members[0][0], npy(header, bytes(count))


def _directory(rng: Random, data: bytes) -> bytes:
    """A field of an entry of the directory, or of a member's own header: flags, method, sizes, offset, lengths."""
    central = rng.random() < 0.7
    mark = b"PK\x01\x02" if central else b"PK\x03\x04"
    places = [i for i in range(len(data)) if data.startswith(mark, i)]
    if not places:
        return data
    short, long = ((8, 10, 28, 30, 32, 6), (16, 20, 24, 42)) if central else ((6, 8, 26, 28, 4), (14, 18, 22))
    offset = rng.choice([*short, *long])
    kind = "<H" if offset in short else "<I"
    flags = [0, 1, 8, 0x20, 0x40, 0x41, 0x800, 2, 6, 9, 12, 14, 93, 95, 99, 45, 63, 64, 65535]
    value = rng.choice(flags if kind == "<H" else [0, 1, 2**31, 2**32 - 1, 10**9, places[0], len(data)])
    place = rng.choice(places) + offset
    changed = bytearray(data)
    changed[place : place + struct.calcsize(kind)] = struct.pack(kind, value)
    return bytes(changed)


def _overlapping(_rng: Random, data: bytes) -> bytes:
    """Every entry of the directory points at the first member."""
    changed = bytearray(data)
    for place in [i for i in range(len(data)) if data.startswith(b"PK\x01\x02", i)]:
        changed[place + 42 : place + 46] = bytes(4)
    return bytes(changed)


def _end(rng: Random, data: bytes) -> bytes:
    """The record at the end of the directory: counts, sizes, offsets."""
    place = data.rfind(b"PK\x05\x06")
    if place < 0:
        return data
    offset, kind = rng.choice([(4, "<H"), (8, "<H"), (10, "<H"), (12, "<I"), (16, "<I"), (20, "<H")])
    changed = bytearray(data)
    changed[place + offset : place + offset + struct.calcsize(kind)] = struct.pack(kind, rng.choice([0, 1, 65535]))
    return bytes(changed)


def _surrounded(rng: Random, data: bytes) -> bytes:
    return rng.choice([b"junk" * 100 + data, data + b"junk", data + data, b"\x1f\x8b" + data, data[: len(data) // 2]])


_MEMBERS = (_header, _header, _header, _content, _array, _name, _list, _bomb)
_FIELDS = (_directory, _directory, _directory, _overlapping, _end, _surrounded)
