"""A whole benchmark folder of deterministic networks as a benchmark of BNNs."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import InputError, OptionError, UnsupportedError
from bnn_vnnlib.files.benchmarks import Instance, existing, read_instances
from bnn_vnnlib.files.sidecar import read_object, sha256
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.posteriors.convert import Recipe, convert
from bnn_vnnlib.signature import Likelihood

_RECORD = "conversion.json"


@dataclass(frozen=True)
class ConvertedBenchmark:
    """What was written: networks converted now and kept from an earlier run, instances, and remarks."""

    converted: int
    kept: int
    instances: int
    left_out: int
    notes: tuple[str, ...]


def convert_benchmark(
    source: Path,
    target: Path,
    recipe: Recipe,
    likelihood: Likelihood,
    *,
    described: str,
    skip_missing: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> ConvertedBenchmark:
    """Convert every network that instances.csv names and copy its properties: a folder of the same layout.

    A run that was ended goes on where it was: networks of the same content, recipe and likelihood are kept.

    Parameters
    ----------
    described : the recipe in words; kept in conversion.json, with the hash of every network
    skip_missing : leave out instances whose files are not there (else they are an error)
    progress : called with the number of finished networks, of all, and the next one's name

    Raises
    ------
    InputError : no instances.csv, or a file of it is missing
    UnsupportedError : an instance with several networks
    OptionError : the target is the source
    """
    if target.resolve() == source.resolve():
        raise OptionError("the converted benchmark needs a folder of its own", path=target)
    table = existing(source / "instances.csv")
    if table is None:
        raise InputError("no instances.csv in this folder", path=source)
    instances = read_instances(table, source.name)
    usable = _usable(instances, source, table, skip_missing)
    networks = {instance.onnx: network for instance, network, _ in usable}
    record = _Record.read(target / _RECORD, {"recipe": described, "likelihood": likelihood})
    notes: list[str] = []
    kept = 0
    for index, (cell, file) in enumerate(networks.items()):
        if progress is not None:
            progress(index, len(networks), cell)
        out = _inside(target, cell.removesuffix(".gz"))
        if record.holds(cell, file) and out.is_file():
            kept += 1
            continue
        proto, remarks = convert(file, recipe, likelihood)
        write_readable(proto, out)
        record.add(cell, file)
        notes += [f"{cell}: {remark}" for remark in remarks]
    _write_rest(usable, target)
    return ConvertedBenchmark(len(networks) - kept, kept, len(usable), len(instances) - len(usable), tuple(notes))


_Usable = tuple[Instance, Path, Path]
"""An instance, its network and its property."""


def _usable(instances: list[Instance], source: Path, table: Path, skip_missing: bool) -> list[_Usable]:
    """The instances whose files are there; InputError for others, unless they are to be skipped."""
    found = []
    for instance in instances:
        if len(instance.models) > 1:
            raise UnsupportedError("an instance with several networks cannot be converted", path=table)
        network, prop = _file(source, instance.onnx), _file(source, instance.vnnlib)
        if network is not None and prop is not None:
            found.append((instance, network, prop))
        elif not skip_missing:
            missing = instance.onnx if network is None else instance.vnnlib
            raise InputError(f"{missing} is not there; --skip-missing leaves such instances out", path=table)
    if not found:
        raise InputError("names no instance whose files are there", path=table)
    return found


def _file(folder: Path, cell: str) -> Path | None:
    """The file of a cell, packed or not; benchmarks are also kept in one flat folder."""
    return existing(folder / cell) or existing(folder / Path(cell).name)


def _inside(folder: Path, cell: str) -> Path:
    """Path of a cell's file, whose folder is made; InputError where it would leave the benchmark's folder."""
    path = folder / cell
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{cell!r} in instances.csv would leave the benchmark's folder; refused")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write_rest(usable: list[_Usable], target: Path) -> None:
    """Copies of the properties, and instances.csv."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for instance, _, prop in usable:
        cell = instance.vnnlib.removesuffix(".gz") + (".gz" if prop.suffix == ".gz" else "")
        shutil.copyfile(prop, _inside(target, cell))
        rows.writerow((instance.onnx.removesuffix(".gz"), instance.vnnlib, f"{instance.timeout:g}"))
    write_text(target / "instances.csv", table.getvalue())


@dataclass
class _Record:
    """conversion.json: how, and which networks are done."""

    path: Path
    how: dict[str, Any]
    done: dict[str, str | None]

    @classmethod
    def read(cls, path: Path, how: dict[str, Any]) -> _Record:
        """The record of an earlier run if it did the same, else an empty one."""
        try:
            stored = read_object(path, "")
            same = stored["how"] == how
            return cls(path, how, dict(stored["networks"]) if same else {})
        except (KeyError, TypeError, ValueError):  # of these are InputErrors
            return cls(path, how, {})

    def holds(self, cell: str, file: Path) -> bool:
        return cell in self.done and self.done[cell] == sha256(file)

    def add(self, cell: str, file: Path) -> None:
        self.done[cell] = sha256(file)
        write_text(self.path, json.dumps({"how": self.how, "networks": self.done}, indent=1, sort_keys=True) + "\n")
