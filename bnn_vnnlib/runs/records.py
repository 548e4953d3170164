"""The finished instances of a run, as files of its folder.

    instances/CATEGORY/NAME-DIGEST.txt    results file, as the competition reads it
    instances/CATEGORY/NAME-DIGEST.txt.json  record
    instances/CATEGORY/NAME-DIGEST.log    what was printed, for an instance that failed
    results.csv, table.csv, table.parquet the tables, made of the above

The results file is written last: an instance is finished when it is there. It counts as finished only if its record is
undamaged and was made of the same files (by their SHA-256) with the same options; else it is run again. The digest is
that of the instance's line in its table, so an instance keeps its place wherever the line stands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.sidecar import read_object, sha256, sidecar_path, to_text
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.jobs.folder import Folder
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.task import InstanceTask, Outcome, certificate_path, unanswered
from bnn_vnnlib.runs.tools import ToolTask
from bnn_vnnlib.system.durable import make_folder, replacing

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


AnyTask = InstanceTask | ToolTask
"""One instance for our verifier, or for another tool."""


@dataclass(frozen=True)
class Entry:
    """A finished instance: its results file and its record."""

    results: Path
    record: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """The verdict that the record states."""
        return Verdict(self.record["verdict"])

    @property
    def reason(self) -> str | None:
        """Why there is no verdict."""
        return reason_of(self.record)


@dataclass(frozen=True)
class Records(Folder):
    """The folder of a run.

    Attributes
    ----------
    again : which finished instances are to be run again, and so may have been run with other settings
    """

    again: Again = "never"
    FILE: ClassVar[str] = "run.json"

    def _advice(self, earlier: Mapping[str, Any], now: Mapping[str, Any], differing: Collection[str]) -> str | None:
        if self.again != "never":
            return None
        advice = "take another folder, or add --rerun all to run everything again"
        return advice if set(differing) - set(_LIMITS) else f"{advice}, or --rerun unknown to keep what is decided"

    def _shown(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings as they are given on the command line: option -> value."""
        found = dict(settings)
        memory, queries, arguments = (found.pop(name, None) for name in ("memory", "queries", "arguments"))
        try:
            found["--timeout"] = found.pop("timeout", None)
            found["--memory"] = None if memory is None else memory / 2**30
            found["--query"] = " ".join(query for query in queries or () if query is not None) or None
            for argument in arguments or ():
                name, _, value = argument.partition("=")
                found[name] = value or "given"
        except (AttributeError, TypeError):
            raise self._damaged from None
        return found

    def _check_damaged(self, now: Mapping[str, Any]) -> None:
        raise self._damaged

    @property
    def _damaged(self) -> InputError:
        message = "damaged settings; delete the file: instances that are finished still count"
        return InputError(message, path=self.path / self.FILE)

    def place(self, task: AnyTask) -> str:
        """Path of its results file, relative to the folder: the same whenever and wherever its line is in the table."""
        name = f"{_stem(task.onnx, 'onnx')}_{_stem(task.vnnlib, 'vnnlib')}"[:_LONGEST]
        line = json.dumps([task.category, task.onnx, task.vnnlib, task.own_timeout])
        mark = hashlib.sha256(line.encode()).hexdigest()[:12]
        return f"instances/{_SPECIAL.sub('_', task.category)}/{name}-{mark}.txt"

    def entry(self, task: AnyTask) -> Entry | None:
        """A finished instance, or None."""
        found = self._found(task)
        return found if isinstance(found, Entry) else None

    def _found(self, task: AnyTask) -> Entry | str | None:
        """A finished instance, or why what is there does not count (in a few words), or None where nothing is."""
        results = self.path / self.place(task)
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
        certain = record.get("guarantee", "certain") == "certain"  # a sat with a confidence has no witness to check
        if verdict is Verdict.SAT and certain and getattr(task, "check", False) and run["checked"] is None:
            return "not checked"
        return Entry(results, record)

    def todo(self, tasks: Iterable[AnyTask]) -> tuple[list[AnyTask], dict[str, int]]:
        """The tasks that are to be run, and {why what was finished does not count: how often}.

        An instance is to be run if it is not finished, if what is there does not count, or if it was finished with a
        verdict that is to be tried again.
        """
        todo, why = [], Counter[str]()
        for task in tasks:
            found = self._found(task)
            if isinstance(found, str):
                why[found] += 1
            if not isinstance(found, Entry) or found.verdict in _AGAIN[self.again]:
                todo.append(task)
        return todo, dict(why)

    def write(self, task: AnyTask, outcome: Outcome, of: Mapping[str, str | None]) -> Entry:
        """Keep an outcome; the record gains an entry "run".

        Parameters
        ----------
        of : hashes of the files, from before the work. If they changed meanwhile, nobody knows which ones were read,
            and the outcome is an `error`
        """
        read, now = outcome.record.get("sha256", {}), hashes(task)
        if now != of or any(of.get(role) != found for role, found in read.items()):
            reason = "the instance's files changed while the run went on; --rerun failed runs it again"
            outcome = unanswered(task, Verdict.ERROR, reason, outcome.prepare_time, outcome.run_time, outcome.log)
        results = self.path / self.place(task)
        make_folder(results.parent)
        run = {
            "category": task.category, "network": task.onnx, "property": task.vnnlib,
            "prepare_time": outcome.prepare_time, "run_time": outcome.run_time, "checked": outcome.checked,
            "asked": task.asked, "sha256": now,
        }  # fmt: skip
        proof, certificate = certificate_path(results), outcome.certificate
        if getattr(task, "certificates", False):
            digest = None if certificate is None else hashlib.sha256(certificate).hexdigest()
            run["certificate"] = None if digest is None else {"file": proof.name, "sha256": digest}
        record = {**outcome.record, "run": run}
        run["digest"] = _digest(record, outcome.results.encode())
        results.unlink(missing_ok=True)
        proof.unlink(missing_ok=True)
        if certificate is not None:
            with replacing(proof) as stream:
                stream.write(certificate)
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


def hashes(task: AnyTask) -> dict[str, str | None]:
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


def _digest(record: Mapping[str, Any], results: bytes) -> str:
    """SHA-256 of a record, without the digest itself, and of its results file."""
    run = {key: value for key, value in record["run"].items() if key != "digest"}
    text = json.dumps({**record, "run": run}, sort_keys=True)
    return hashlib.sha256(text.encode() + b"\0" + results).hexdigest()


def _stem(cell: str, folder: str) -> str:
    """The cell as part of a file's name: without the usual folder and suffixes."""
    plain = cell.removesuffix(".gz").removesuffix(f".{folder}").removeprefix("./").removeprefix(f"{folder}/")
    return _SPECIAL.sub("_", plain).strip("_.") or "unnamed"
