"""Benchmarks: the competition's folders and their instances.csv."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.readers import kinds, read_rows

_TABLES = ("instances.csv", "instances.csv.gz")
_VERSION = re.compile(r"\d+(\.\d+)+")
_LONGEST = 10_000  # letters of a list of networks
_SUFFIX = re.compile(r"instances(?P<suffix>.*?)\.csv(\.gz)?")


@dataclass(frozen=True)
class Instance:
    """A line of an instances.csv.

    Attributes
    ----------
    category : the benchmark's folder, with its version folder where there is one ("acasxu/2.0")
    onnx, vnnlib : the cells as they are written
    models : (name, path) of each network; the name is None where the cell is a plain path
    prop : path of the property
    timeout : seconds
    """

    category: str
    onnx: str
    vnnlib: str
    models: tuple[tuple[str | None, Path], ...]
    prop: Path
    timeout: float

    @property
    def missing(self) -> tuple[Path, ...]:
        """Files that are not there, packed or not."""
        return tuple(path for path in (*(path for _, path in self.models), self.prop) if existing(path) is None)


def read_benchmarks(paths: Sequence[Path]) -> list[Instance]:
    """All instances of some benchmarks, in the order of their tables.

    Parameters
    ----------
    paths : tables (instances.csv, plain or gzip), benchmark folders, or folders of benchmarks or of versions

    Raises
    ------
    InputError : no table, or a malformed one (file and line); two benchmarks of the same name
    """
    found: dict[str, Path] = {}
    for path in paths:
        for table in _tables(path):
            other = found.setdefault(_category(table), table)
            if other.resolve() != table.resolve():
                message = f"two benchmarks are called {_category(table)!r} (the other is {other}); run them separately"
                raise OptionError(message, path=table)
    return [instance for category, table in found.items() for instance in read_table(table, category)]


def read_table(path: Path, category: str) -> list[Instance]:
    """The instances of one table; see `read_benchmarks`."""
    rows = read_rows(path, skip_blanks=True)
    return [_instance(row, category, path, line) for line, row in rows if any(cell.strip() for cell in row)]


def existing(path: Path) -> Path | None:
    """The file, or its twin: benchmarks are stored packed but named unpacked, or the reverse."""
    twins = (path, Path(f"{path}.gz"), path.with_suffix("") if path.suffix == ".gz" else path)
    try:
        return next((twin for twin in twins if twin.is_file()), None)
    except (OSError, ValueError):  # a name that no file can have
        return None


def _tables(path: Path) -> Iterable[Path]:
    if path.is_file():
        kinds.expect(path, kinds.INSTANCES)
        return [path]
    if not path.is_dir():
        raise InputError("no such file or folder", path=path)
    for depth in ("", "*/", "*/*/"):
        tables = {table.parent: table for name in reversed(_TABLES) for table in path.glob(f"{depth}{name}")}
        if tables:
            return sorted(tables.values())
    raise InputError("no instances.csv in this folder, nor one or two folders below", path=path)


def _category(table: Path) -> str:
    folder = table.resolve().parent
    name = f"{folder.parent.name}/{folder.name}" if _VERSION.fullmatch(folder.name) else folder.name
    suffix = _SUFFIX.fullmatch(table.name)
    return name + (suffix["suffix"] if suffix else f"_{table.name.split('.')[0]}")


def _instance(row: list[str], category: str, table: Path, line: int) -> Instance:
    cells = [cell.strip() for cell in row]
    if len(cells) != 3:
        message = f"expected onnx,vnnlib,timeout, found {len(cells)} cells; a list of networks must be quoted"
        raise InputError(message, path=table, line=line)
    network, prop, limit = cells
    folder = table.resolve().parent
    models = tuple((name, folder / file) for name, file in _networks(network, table, line))
    return Instance(category, network, prop, models, folder / prop, _seconds(limit, table, line))


def _networks(cell: str, table: Path, line: int) -> list[tuple[str | None, str]]:
    """A path, or the competition's list "[('f', 'a.onnx'), ('g', 'b.onnx')]"."""
    if not cell.startswith("["):
        return [(None, cell)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python may refuse one day
            pairs = ast.literal_eval(cell) if len(cell) <= _LONGEST else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # what is nested deep gives any of these
        pairs = None
    if isinstance(pairs, list) and pairs and all(map(_named, pairs)):
        return [(name, file) for name, file in pairs]
    message = f"expected a path or a list [('name', 'path')], found {cell}"
    raise InputError(message, path=table, line=line)


def _named(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)


def _seconds(text: str, table: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"the time limit must be a positive number of seconds, found {text!r}", path=table, line=line)
    return value
