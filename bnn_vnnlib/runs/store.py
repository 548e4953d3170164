"""The folder of a run: what is finished lies in it, so that a run that was ended goes on where it was.

    run.json                              how the instances were run
    instances/CATEGORY/NAME.txt           results file, as the competition reads it
    instances/CATEGORY/NAME.txt.json      record
    instances/CATEGORY/NAME.log           what was printed, for an instance that failed
    results.csv, table.csv, table.parquet the tables, made of the above

Every file is written in one step, the results file last: an instance is finished when it is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.task import Outcome
from bnn_vnnlib.sidecar import read_object, sidecar_path, to_text
from bnn_vnnlib.vnncomp import write_text

Again = Literal["never", "failed", "unknown", "all"]
_AGAIN: Mapping[Again, frozenset[Verdict]] = {
    "never": frozenset(),
    "failed": frozenset({Verdict.ERROR}),
    "unknown": frozenset({Verdict.ERROR, Verdict.UNKNOWN, Verdict.TIMEOUT}),
    "all": frozenset(Verdict),
}
_SPECIAL = re.compile(r"[^A-Za-z0-9._+=-]+")
_LONGEST = 150  # characters of a file's name, well below what file systems allow


class Named(Protocol):
    """Whatever has the three names of an instance."""

    @property
    def category(self) -> str: ...
    @property
    def onnx(self) -> str: ...
    @property
    def vnnlib(self) -> str: ...


@dataclass(frozen=True)
class Entry:
    """A finished instance: its results file and its record."""

    results: Path
    record: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """As the record has it."""
        return Verdict(self.record["verdict"])


@dataclass(frozen=True)
class Store:
    """The folder of a run."""

    folder: Path

    def open(self, settings: Mapping[str, Any], again: Again) -> None:
        """Make the folder, or make sure that what is in it may be gone on with.

        Raises
        ------
        OptionError : it holds a run with other settings, and the new ones were not asked for with `again`
        """
        path = self.folder / "run.json"
        if path.exists() and again == "never":
            earlier = read_object(path, "delete it to run everything again")
            differing = sorted(key for key in {*settings, *earlier} if settings.get(key) != earlier.get(key))
            if differing:
                pairs = ", ".join(f"{key}: {earlier.get(key)} there, {settings.get(key)} now" for key in differing)
                message = f"the folder holds a run with other settings ({pairs}); take another folder, or add --rerun"
                raise OptionError(message, path=self.folder)
        try:
            (self.folder / "instances").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder cannot be made: {error.strerror}", path=self.folder) from None
        write_text(path, to_text(settings))

    def places(self, tasks: Iterable[Named]) -> dict[str, Any]:
        """{path of the results file, relative to the folder: task}; every task has a place of its own."""
        places: dict[str, Any] = {}
        for task in tasks:
            name = f"{_stem(task.onnx, 'onnx')}_{_stem(task.vnnlib, 'vnnlib')}"[:_LONGEST]
            base = f"instances/{_SPECIAL.sub('_', task.category)}/{name}"
            place, count = f"{base}.txt", 1
            while place in places:
                count += 1
                place = f"{base}~{count}.txt"
            places[place] = task
        return places

    def open_places(self, places: Iterable[str], again: Again) -> list[str]:
        """Those that are to be run: not finished, or finished with a verdict that is to be tried again."""
        return [place for place in places if (entry := self.entry(place)) is None or entry.verdict in _AGAIN[again]]

    def entry(self, place: str) -> Entry | None:
        """A finished instance, or None."""
        results = self.folder / place
        record = sidecar_path(results)
        if not (results.is_file() and record.is_file()):
            return None
        return Entry(results, read_object(record, "delete it to have its instance run again"))

    def entries(self, places: Iterable[str]) -> Iterator[Entry]:
        """The finished ones among these."""
        return (entry for place in places if (entry := self.entry(place)) is not None)

    def write(self, place: str, task: Named, outcome: Outcome, **more: Any) -> Entry:
        """Keep an outcome; the record gains an entry "run"."""
        results = self.folder / place
        results.parent.mkdir(parents=True, exist_ok=True)
        names = {"category": task.category, "network": task.onnx, "property": task.vnnlib}
        times = {"prepare_time": outcome.prepare_time, "run_time": outcome.run_time}
        record = {**outcome.record, "run": {**names, **times, "checked": outcome.checked, **more}}
        results.unlink(missing_ok=True)
        write_text(sidecar_path(results), to_text(record))
        if outcome.log:
            write_text(results.with_suffix(".log"), outcome.log)
        else:
            results.with_suffix(".log").unlink(missing_ok=True)
        write_text(results, outcome.results)
        return Entry(results, record)


def _stem(cell: str, folder: str) -> str:
    """The cell as part of a file's name: without the usual folder and suffixes."""
    plain = cell.removesuffix(".gz").removesuffix(f".{folder}").removeprefix("./").removeprefix(f"{folder}/")
    return _SPECIAL.sub("_", plain).strip("_.") or "unnamed"
