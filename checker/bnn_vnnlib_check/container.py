"""The certificate's file: a zip archive with a manifest and arrays. Everything in it may be hostile.

Sizes are limited before memory is asked for; an entry that is there twice, a key that is there twice, an array that
nothing refers to, numbers that are no numbers: the file is refused.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bnn_vnnlib_check.errors import UnreadableError

T = TypeVar("T")

MANIFEST = "manifest.json"
MANIFEST_BYTES, ARRAY_BYTES, ALL_BYTES, ENTRIES = 2**26, 2**28, 2**30, 2**18
DIGITS = 1000
"""Characters of a number, at most."""

DTYPES = ("|u1", "<i4", "<i8", "<f4", "<f8")


class Certificate:
    """A certificate's file. manifest : the manifest; `array` reads what it refers to."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
            infos = self._zip.infolist()
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise UnreadableError(f"{path} cannot be read as a certificate: {error}") from error
        self._infos = {info.filename: info for info in infos}
        self._left = set(self._infos) - {MANIFEST}
        if len(infos) > ENTRIES or len(self._infos) < len(infos):
            raise UnreadableError(f"{path} has too many entries, or one twice")
        if sum(info.file_size for info in infos) > ALL_BYTES:
            raise UnreadableError(f"{path} unpacks to more than {ALL_BYTES} bytes")
        self.manifest = Node(_json(self._bytes(MANIFEST, MANIFEST_BYTES)), "the manifest")

    def array(self, name: Any, kind: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """The array of that name: "f" floats, exactly as float64, "i" whole numbers; None in `shape`: any size."""
        if not isinstance(name, str):
            raise UnreadableError(f"the name of an array is wanted, found {_short(name)}")
        data = self._bytes(name, ARRAY_BYTES)
        self._left.discard(name)
        stream = io.BytesIO(data)
        try:
            if npy.read_magic(stream) != (1, 0):
                raise UnreadableError(f"array {name}: another version than 1.0 of the npy format")
            found, fortran, dtype = npy.read_array_header_1_0(stream)
        except (ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError) as error:
            raise UnreadableError(f"array {name} has no valid header") from error
        if dtype.str not in DTYPES or fortran:
            raise UnreadableError(f"array {name} is of type {dtype.str}, or stored by columns")
        rest = data[stream.tell() :]
        if any(not isinstance(n, int) or n < 0 for n in found) or math.prod(found) * dtype.itemsize != len(rest):
            raise UnreadableError(f"array {name} holds {len(rest)} bytes, which do not fit its shape {_short(found)}")
        if len(found) != len(shape) or any(want not in (None, have) for want, have in zip(shape, found, strict=True)):
            raise UnreadableError(f"array {name} is of shape {found}, expected {shape}")
        values = np.frombuffer(rest, dtype).reshape(found)
        if kind == "i":
            if dtype.kind not in "iu":
                raise UnreadableError(f"array {name} is of type {dtype}, expected whole numbers")
            return values.astype(np.int64)
        if not np.isfinite(values).all():
            raise UnreadableError(f"array {name} has numbers that are not finite")
        return values.astype(np.float64)

    def close(self) -> None:
        """Refuse a file of which some entry was never asked for."""
        if self._left:
            raise UnreadableError(f"nothing refers to entry {sorted(self._left)[0]!r}")

    def _bytes(self, name: str, limit: int) -> bytes:
        """The bytes of an entry, of which there may be `limit` at most."""
        info = self._infos.get(name)
        if info is None:
            raise UnreadableError(f"the certificate has no entry {_short(name)}")
        if info.file_size > limit or info.flag_bits & 1:
            raise UnreadableError(f"entry {name!r} is larger than {limit} bytes, or encrypted")
        try:
            with self._zip.open(info) as stream:
                data = stream.read(limit + 1)
        except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as error:
            raise UnreadableError(f"entry {name!r} is damaged: {error}") from error
        if len(data) != info.file_size:
            raise UnreadableError(f"entry {name!r} has another size than the archive says")
        return data


class Node:
    """An object of the manifest, and where it is. A key that nobody asks for is unknown, which `done` refuses."""

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, dict):
            raise UnreadableError(f"{where}: an object is wanted, found {_short(content)}")
        self._content, self.where, self._asked = content, where, set[str]()

    def has(self, key: str) -> bool:
        """Whether the object has the key."""
        return key in self._content

    def get(self, key: str) -> Any:
        """The value of a key that has to be there."""
        self._asked.add(key)
        if key not in self._content:
            raise UnreadableError(f"{self.where} has no {key!r}")
        return self._content[key]

    def typed(self, key: str, kind: type[T], what: str) -> T:
        """The value of a key, of this type and no other."""
        value = self.get(key)
        if type(value) is not kind:
            raise UnreadableError(f"{self.where}: {key!r} is no {what}: {_short(value)}")
        return value

    def text(self, key: str) -> str:
        """The value of a key, which must be a text."""
        return self.typed(key, str, "text")

    def items(self, key: str) -> list[Any]:
        """The value of a key, which must be a list."""
        return self.typed(key, list, "list")

    def whole(self, key: str) -> int:
        """The value of a key, which must be a whole number that is not negative."""
        value = self.typed(key, int, "whole number")
        if value < 0:
            raise UnreadableError(f"{self.where}: {key!r} is below 0")
        return value

    def rule(self, wanted: str) -> None:
        """Refuse an object whose rule is not this one."""
        found = self.text("rule")
        if found != wanted:
            raise UnreadableError(f"{self.where}: rule {found[:40]!r} is not known here, {wanted} is")

    def node(self, key: str) -> Node:
        """The value of a key, which must be an object."""
        return Node(self.get(key), f"{self.where}, {key}")

    def nodes(self, key: str) -> list[Node]:
        """The value of a key, which must be a list of objects."""
        return [Node(one, f"{self.where}, {key} {i}") for i, one in enumerate(self.items(key))]

    def done(self) -> None:
        """Refuse an object of which some key was never asked for."""
        unknown = sorted(set(self._content) - self._asked)
        if unknown:
            raise UnreadableError(f"{self.where}: unknown key {_short(unknown[0])}")


def _json(data: bytes) -> Any:
    """The manifest, without keys that are there twice, long numbers, or words for numbers."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise UnreadableError("the manifest has a key twice in one object")
        return dict(pairs)

    def number(text: str) -> float:
        if len(text) > DIGITS:
            raise UnreadableError(f"the manifest has a number of more than {DIGITS} characters")
        return float(text) if set(text) & set(".eE") else int(text)

    def none(text: str) -> Any:
        raise UnreadableError(f"the manifest has {text} for a number")

    hooks: dict[str, Any] = {"parse_int": number, "parse_float": number, "parse_constant": none}
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique, **hooks)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"the manifest is no JSON: {error}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
