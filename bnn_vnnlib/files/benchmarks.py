"""Instances: benchmarks of the competition with their instances.csv, and the two files of a single one.

1. `read_benchmarks`, `read_instances`: folders and tables.
2. `find_files`: which file is the property, which the model, and do they fit together.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnn_vnnlib.errors import InputError, OptionError, UnsupportedError
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.readers import kinds, located, read_rows

# 1. Benchmarks

_TABLES = ("instances.csv", "instances.csv.gz")
_VERSION = re.compile(r"\d+(\.\d+)+")
_LONGEST_LIST = 10_000  # letters of a list of networks
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
    return [instance for category, table in found.items() for instance in read_instances(table, category)]


def read_instances(path: Path, category: str) -> list[Instance]:
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
            pairs = ast.literal_eval(cell) if len(cell) <= _LONGEST_LIST else None
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


# 2. One instance

_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class Files:
    """The property and one or two models; each with the NAME of `--network NAME=MODEL`, or None."""

    prop: Path
    networks: tuple[tuple[str | None, Path], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "prop", located(self.prop))
        object.__setattr__(self, "networks", tuple((name, located(path)) for name, path in self.networks))

    @property
    def model(self) -> Path:
        """The first model."""
        return self.networks[0][1]

    @property
    def by_role(self) -> dict[str, Path]:
        """The paths by the roles that the JSON record names: property, model, model 2, .."""
        numbered = {f"model {i}": path for i, (_, path) in enumerate(self.networks[1:], 2)}
        return {"property": self.prop, "model": self.model, **numbered}

    def of_networks(self, prop: Property) -> tuple[Path, ...]:
        """The models in the order in which the property declares its networks.

        A network that is equal-to the other needs no file of its own, and may have the same one.

        Raises
        ------
        OptionError : a NAME that the property does not declare (VNN-LIB 1.0 declares none) or that is given twice; too
            few or too many models
        """
        second = prop.second
        declared = [name for name in (prop.network, None if second is None else second.name) if name is not None]
        listed = " and ".join(map(repr, declared))
        given = [name for name, _ in self.networks if name is not None]
        for name in given if declared else []:
            if name not in declared:
                noun = "networks" if len(declared) > 1 else "network"
                message = f"the property declares the {noun} {listed}, but --network names {name!r}"
                raise OptionError(message, path=self.prop)
        if len(set(given)) < len(given):
            raise OptionError(f"--network names {given[0]!r} twice", path=self.prop)
        if second is None:
            if len(self.networks) > 1:
                message = f"the property is about one network, and {len(self.networks)} were given"
                raise OptionError(message, path=self.prop)
            return (self.model,)
        optional = second.relation == "equal-to"
        if len(self.networks) == 1 and optional and given in ([], [prop.network]):
            return (self.model,)
        if len(self.networks) != 2:
            message = f"the property is about the networks {listed}: give each with --network NAME=MODEL"
            raise OptionError(message, path=self.prop)
        if len(given) < 2:
            raise OptionError(f"say which model is which: --network NAME=MODEL for each of {listed}", path=self.prop)
        by_name = dict(self.networks)
        return tuple(by_name[name] for name in declared)


def find_files(files: Sequence[Path], networks: Sequence[str]) -> Files:
    """`PROPERTY --network [NAME=]MODEL`, once a network, or two files in any order, told apart by their contents.

    Raises
    ------
    OptionError : too few or too many files, or two that cannot be told apart
    UnsupportedError : more than two networks
    """
    if len(networks) > 2:
        raise UnsupportedError(f"{len(networks)} networks were given; a property may be about two at most")
    match len(files), len(networks):
        case 1, 1 | 2:
            return Files(files[0], tuple(map(named, networks)))
        case 2, 0:
            prop, model = _in_order(files[0], files[1])
            return Files(prop, ((None, model),))
        case 1, 0:
            kind = kinds.kind_of(kinds.start_of(located(files[0])) or b"")
            if kind is not None and kinds.MODEL in kind.suits:
                raise OptionError("the property is missing: give it beside this model", path=files[0])
            raise OptionError("the model is missing: add --network MODEL, or give two files", path=files[0])
        case _:
            raise OptionError("expected PROPERTY --network MODEL, or MODEL PROPERTY")


def named(text: str) -> tuple[str | None, Path]:
    """NAME and path of `[NAME=]MODEL`."""
    found = _NAMED.fullmatch(text)
    if found is None or existing(Path(text)) == Path(text):
        return None, Path(text)
    return found[1], Path(found[2])


def _in_order(first: Path, second: Path) -> tuple[Path, Path]:
    """The two files as (property, model), by what they hold; OptionError where that does not tell."""
    from bnn_vnnlib.vnnlib import looks_like_vnnlib

    first, second = located(first), located(second)
    match looks_like_vnnlib(first), looks_like_vnnlib(second):
        case True, False:
            return first, second
        case False, True:
            return second, first
        case True, True:
            raise OptionError(
                f"both files are VNN-LIB text, and neither is a model (the other is {second})", path=first
            )
    # Neither reads like VNN-LIB: let the one that is named so be refused with its own line and column.
    ordered = sorted((first, second), key=lambda path: ".vnnlib" not in path.name)
    if ".vnnlib" in ordered[0].name:
        return ordered[0], ordered[1]
    said = "; ".join(f"{path.name}: {_kind_of(path)}" for path in (first, second))
    raise OptionError(f"neither file is VNN-LIB text ({said})", path=first)


def _kind_of(path: Path) -> str:
    kind = kinds.kind_of(kinds.start_of(path) or b"")
    return "not known" if kind is None else kind.what
