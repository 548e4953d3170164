"""The folder of a run: what is finished lies in it, so that a run that was ended goes on where it was.

    run.json                              how the instances were run
    instances/CATEGORY/NAME-DIGEST.txt    results file, as the competition reads it
    instances/CATEGORY/NAME-DIGEST.txt.json  record
    instances/CATEGORY/NAME-DIGEST.log    what was printed, for an instance that failed
    results.csv, table.csv, table.parquet the tables, made of the above

Every file is written in one step, the results file last: an instance is finished when it is there. It counts as
finished only if its record is undamaged and was made of the same files (by their SHA-256) with the same options; else
it is run again. The digest is that of the instance's line in its table, so an instance keeps its place wherever the
line stands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.sidecar import read_object, sha256, sidecar_path, to_text, unfinished
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.task import Outcome
from bnn_vnnlib.system.durable import clear, make_folder

FORMAT = 2
"""Of the folder. Before 2, records did not say which options they were made with."""

Again = Literal["never", "failed", "unknown", "all"]
_AGAIN: Mapping[Again, frozenset[Verdict]] = {
    "never": frozenset(),
    "failed": frozenset({Verdict.ERROR}),
    "unknown": frozenset({Verdict.ERROR, Verdict.UNKNOWN, Verdict.TIMEOUT}),
    "all": frozenset(Verdict),
}
_LIMITS = ("timeout", "memory")
"""Options that say when to give up: what was decided within other ones is decided."""

_SPECIAL = re.compile(r"[^A-Za-z0-9._+=-]+")
_LONGEST = 150  # characters of a file's name, well below what file systems allow


class Runnable(Protocol):
    """A task of any kind, as a run sees it; see `Task`."""

    @property
    def category(self) -> str: ...
    @property
    def onnx(self) -> str: ...
    @property
    def vnnlib(self) -> str: ...
    @property
    def own_timeout(self) -> float | None: ...
    @property
    def files(self) -> dict[str, Path]: ...
    @property
    def asked(self) -> dict[str, Any]: ...
    @property
    def seed(self) -> int: ...
    @property
    def timeout(self) -> float | None: ...


@dataclass(frozen=True)
class Entry:
    """A finished instance: its results file and its record."""

    results: Path
    record: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """As the record has it."""
        return Verdict(self.record["verdict"])

    @property
    def reason(self) -> str | None:
        """Why there is no verdict."""
        return reason_of(self.record)


@dataclass(frozen=True)
class Store:
    """The folder of a run, which only one process at a time may open (`durable.locked`)."""

    folder: Path

    def open(self, settings: Mapping[str, Any], again: Again) -> tuple[str, ...]:
        """Make the folder, or make sure that what is in it may be gone on with; returns remarks for people.

        Raises
        ------
        OptionError : it holds a run with other settings, and the new ones were not asked for with `again`
        """
        path, instances = self.folder / "run.json", self.folder / "instances"
        remarks: tuple[str, ...] = ()
        now = {"format": FORMAT, **settings}
        if path.exists():
            earlier = read_object(path, "delete it; instances that are finished still count")
            if earlier.get("format") != FORMAT:
                remarks = self._set_aside(instances)
            elif again == "never":
                self._compare(earlier, now)
        clear(self.folder)
        make_folder(instances)
        write_text(path, to_text(now))
        return remarks

    def _set_aside(self, instances: Path) -> tuple[str, ...]:
        """Records that do not say what they are of are no use to us, but perhaps to their owner."""
        aside = instances.with_name("instances.old")
        if not instances.is_dir():
            return ()
        if aside.exists():
            raise OptionError("is in the way of records of an older version: move it elsewhere", path=aside)
        instances.rename(aside)
        return (f"the records of an older version, which do not say which files they are of, are now in {aside}; their "
                "instances are run again",)  # fmt: skip

    def _compare(self, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        differing = sorted(key for key in {*now, *earlier} if now.get(key) != earlier.get(key))
        if differing:
            try:
                there, here = _as_options(earlier), _as_options(now)
            except (AttributeError, TypeError):
                damaged = "damaged settings; delete the file: instances that are finished still count"
                raise InputError(damaged, path=self.folder / "run.json") from None
            pairs = ", ".join(
                f"{name}: {there.get(name, 'not given')} there, {here.get(name, 'not given')} now"
                for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)
            )  # fmt: skip
            message = (f"the folder holds a run with other settings ({pairs}); take another folder, or add --rerun all "
                       "to run everything again")  # fmt: skip
            if all(key in _LIMITS for key in differing):
                message += ", or --rerun unknown to keep what is decided"
            raise OptionError(message, path=self.folder)

    def place(self, task: Runnable) -> str:
        """Path of its results file, relative to the folder: the same whenever and wherever its line is in the table."""
        name = f"{_stem(task.onnx, 'onnx')}_{_stem(task.vnnlib, 'vnnlib')}"[:_LONGEST]
        line = json.dumps([task.category, task.onnx, task.vnnlib, task.own_timeout])
        mark = hashlib.sha256(line.encode()).hexdigest()[:12]
        return f"instances/{_SPECIAL.sub('_', task.category)}/{name}-{mark}.txt"

    def entry(self, task: Runnable) -> Entry | None:
        """A finished instance, or None."""
        found = self._found(task)
        return found if isinstance(found, Entry) else None

    def _found(self, task: Runnable) -> Entry | str | None:
        """A finished instance, or why what is there does not count (in a few words), or None where nothing is."""
        results = self.folder / self.place(task)
        if not (results.is_file() and sidecar_path(results).is_file()):
            return None
        try:
            record = read_object(sidecar_path(results), "")
            said = results.read_bytes()
            verdict = Verdict(record["verdict"])
            run = record["run"]
            intact = run["digest"] == _digest(record, said)
        except (InputError, OSError, KeyError, TypeError, ValueError):
            intact = False
        if not intact:
            return "damaged"
        if run["sha256"] != hashes(task):
            return "made of other files"
        differing = [key for key, value in task.asked.items() if run["asked"].get(key) != value]
        if differing and not (verdict in (Verdict.SAT, Verdict.UNSAT) and all(key in _LIMITS for key in differing)):
            return "made with other options"
        if verdict is Verdict.SAT and getattr(task, "check", False) and run["checked"] is None:
            return "not checked"
        return Entry(results, record)

    def todo(self, tasks: Iterable[Runnable], again: Again) -> tuple[list[Any], dict[str, int]]:
        """Those that are to be run, and {why what was finished does not count: how often}.

        An instance is to be run if it is not finished, if what is there does not count, or if it was finished with a
        verdict that is to be tried again.
        """
        todo, why = [], Counter[str]()
        for task in tasks:
            found = self._found(task)
            if isinstance(found, str):
                why[found] += 1
            if not isinstance(found, Entry) or found.verdict in _AGAIN[again]:
                todo.append(task)
        return todo, dict(why)

    def entries(self, tasks: Iterable[Runnable]) -> Iterator[Entry]:
        """The finished ones among these, in their order; a task that is there twice is there twice."""
        return (entry for task in tasks if (entry := self.entry(task)) is not None)

    def write(self, task: Runnable, outcome: Outcome, of: Mapping[str, str | None]) -> Entry:
        """Keep an outcome; the record gains an entry "run".

        Parameters
        ----------
        of : hashes of the files, from before the work. If they changed meanwhile, nobody knows which ones were read,
            and the outcome is an `error`
        """
        read, now = outcome.record.get("sha256", {}), hashes(task)
        if now != of or any(of.get(role) != found for role, found in read.items()):
            outcome = _spoilt(task, outcome)
        results = self.folder / self.place(task)
        make_folder(results.parent)
        run = {
            "category": task.category, "network": task.onnx, "property": task.vnnlib,
            "prepare_time": outcome.prepare_time, "run_time": outcome.run_time, "checked": outcome.checked,
            "asked": task.asked, "sha256": now,
        }  # fmt: skip
        record = {**outcome.record, "run": run}
        run["digest"] = _digest(record, outcome.results.encode())
        results.unlink(missing_ok=True)
        write_text(sidecar_path(results), to_text(record))
        if outcome.log:
            write_text(results.with_suffix(".log"), outcome.log)
        else:
            results.with_suffix(".log").unlink(missing_ok=True)
        write_text(results, outcome.results)
        return Entry(results, record)


def reason_of(record: Mapping[str, Any]) -> str | None:
    """Why there is no verdict, which is the only note of a record without a method."""
    notes = record.get("notes") or [None]
    return notes[0] if record.get("method") is None else None


def hashes(task: Runnable) -> dict[str, str | None]:
    """SHA-256 of each file of a task by role, as the record names them; with the files that a model's weights lie in.

    None where it cannot be read.
    """
    found: dict[str, str | None] = {}
    for role, path in task.files.items():
        found[role] = _hashed(path)
        if role.startswith("model"):
            found |= {f"{role}: {file.name}": _hashed(file) for file in _weights_of(path, _state(path))}
    return found


def _hashed(path: Path) -> str | None:
    return _hash(path, _state(path))


def _state(path: Path) -> tuple[int, ...]:
    """What the system says of a file; any change of its contents changes this too."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=4096)
def _hash(path: Path, _state: tuple[int, ...]) -> str | None:
    return sha256(path)


@lru_cache(maxsize=4096)
def _weights_of(path: Path, _state: tuple[int, ...]) -> tuple[Path, ...]:
    """The files of a model's external data; none where it is no model, which its run will say."""
    from bnn_vnnlib.model.files import data_files

    try:
        return tuple(data_files(path))
    except InputError:
        return ()


def _as_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a run as they are given on the command line, without those that are not given."""
    found = {"version": settings.get("version"), "--timeout": settings.get("timeout")}
    memory = settings.get("memory")
    found["--memory"] = None if memory is None else memory / 2**30
    found["--query"] = " ".join(query for query in settings.get("queries", ()) if query is not None) or None
    for argument in settings.get("arguments", ()):
        name, _, value = argument.partition("=")
        found[name] = value or "given"
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in found.items() if value is not None
    }  # fmt: skip


def _digest(record: Mapping[str, Any], results: bytes) -> str:
    """Of a record, but for the digest itself, and its results file."""
    run = {key: value for key, value in record["run"].items() if key != "digest"}
    text = json.dumps({**record, "run": run}, sort_keys=True)
    return hashlib.sha256(text.encode() + b"\0" + results).hexdigest()


def _spoilt(task: Runnable, outcome: Outcome) -> Outcome:
    reason = "the instance's files changed while the run went on; --rerun failed runs it again"
    record = unfinished(
        Verdict.ERROR, reason, task.files, query=None, seed=task.seed, timeout=task.timeout, time_s=outcome.run_time
    )  # fmt: skip
    return replace(outcome, results=f"{Verdict.ERROR}\n", record=record, checked=None)


def _stem(cell: str, folder: str) -> str:
    """The cell as part of a file's name: without the usual folder and suffixes."""
    plain = cell.removesuffix(".gz").removesuffix(f".{folder}").removeprefix("./").removeprefix(f"{folder}/")
    return _SPECIAL.sub("_", plain).strip("_.") or "unnamed"
