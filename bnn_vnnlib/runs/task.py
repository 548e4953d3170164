"""One instance -> Outcome. Nothing is written but what is returned, so that a task may run anywhere, and run again."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.sidecar import as_json, read_object, sidecar_path, unfinished
from bnn_vnnlib.files.vnncomp import read_result
from bnn_vnnlib.jobs.worker import Died, Overdue, WorkerKind, discard, own_worker
from bnn_vnnlib.result import Query, Verdict

if TYPE_CHECKING:
    from bnn_vnnlib.runs.records import AnyTask

GRACE = 10.0
"""`verify` ends itself within 5 s of its limit; a process that is not back after this many seconds hangs."""

MODULES = (__name__, "torch", "onnxruntime", "scipy.stats", "bnn_vnnlib.cli", "bnn_vnnlib.witness",
           "bnn_vnnlib.model.reading", "bnn_vnnlib.methods.safety.safety", "bnn_vnnlib.methods.decision")  # fmt: skip
"""Everything slow that a process imports before the first time limit counts."""

_LOG_TAIL = 20_000
"""Characters of what was printed, for the log of an instance that failed."""


@dataclass(frozen=True)
class InstanceTask:
    """What a process needs to know of one instance.

    Attributes
    ----------
    category, onnx, vnnlib : the names in the tables
    models : (name, path) of each network
    prop : path of the property
    timeout : seconds; None: no limit
    arguments : further options of `bnn-vnnlib verify`
    query, seed : as among the arguments, for the record of a run that was cut off
    threads, memory : of the process (threads None: as its environment says, else 1); bytes
    fresh : a process of its own
    check : have the witness of a `sat` checked by `bnn-vnnlib check-witness`
    certificates : have a certificate written where there is one (`bnn_vnnlib.certificates`)
    missing : files that are not there; such an instance is an `error` without work
    own_timeout : that of its line in the table, which `timeout` may replace: it tells apart two lines of the same files
    """

    category: str
    onnx: str
    vnnlib: str
    models: tuple[tuple[str | None, str], ...]
    prop: str
    timeout: float | None
    arguments: tuple[str, ...] = ()
    query: str | None = None
    seed: int = 0
    threads: int | None = None
    memory: float | None = None
    fresh: bool = False
    check: bool = False
    certificates: bool = False
    missing: tuple[str, ...] = ()
    own_timeout: float | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The paths by the roles that the JSON record names: property, model, model 2, .."""
        first, *more = (Path(path) for _, path in self.models)
        return {"property": Path(self.prop), "model": first, **{f"model {i}": path for i, path in enumerate(more, 2)}}

    @property
    def asked(self) -> dict[str, Any]:
        """What decides the outcome beside the files, as JSON values."""
        asked = {"version": __version__, "arguments": list(self.arguments), "timeout": self.timeout,
                 "memory": self.memory}  # fmt: skip
        return {**asked, "certificates": True} if self.certificates else asked

    def command(self, results: Path) -> list[str]:
        """The command line that decides the instance."""
        networks = [f"--network={path if name is None else f'{name}={path}'}" for name, path in self.models]
        limit = [] if self.timeout is None else [f"--timeout={self.timeout}"]
        if self.memory is not None:
            limit.append(f"--memory={self.memory / 2**30}")
        if self.certificates:
            limit.append(f"--certificate={certificate_path(results)}")
        return ["verify", self.prop, *networks, f"--results-file={results}", *limit, *self.arguments]

    def check_command(self, results: Path, query: str | None) -> list[str]:
        """The command line that checks its witness; query and thresholds are in the record."""
        of_query: dict[str | None, tuple[str, ...]] = {
            Query.DECISION: ("--seed=", "--likelihood=", "--outputs=", "--coupling="),
            Query.PROBABILISTIC: ("--seed=", "--coupling="),
        }
        needed = of_query.get(query, ("--seed=",))
        same = [option for option in self.arguments if option.startswith(needed)]
        second = [f"--network={name}={path}" for name, path in self.models[1:]]
        return ["check-witness", self.models[0][1], self.prop, str(results), *second, *same]


@dataclass(frozen=True)
class Outcome:
    """How an instance ended.

    Attributes
    ----------
    results : text of its results file
    record : its JSON record
    prepare_time, run_time : seconds: for a process that is ready to work; for the work, as measured from outside
    log : what was printed, if it failed
    checked : what `check-witness` said of the witness; None: not asked, or no witness
    certificate : the file, None where there is none
    """

    results: str
    record: Mapping[str, Any]
    prepare_time: float
    run_time: float
    log: str = ""
    checked: str | None = None
    certificate: bytes | None = None

    @property
    def verdict(self) -> Verdict:
        """The first line of the results file."""
        return Verdict(self.results.split(maxsplit=1)[0])


def certificate_path(results: Path) -> Path:
    """Path of the certificate of a results file: the same name with the ending `.cert`."""
    return results.with_suffix(".cert")


@dataclass
class _Attempt:
    """What is known of an instance as its process goes on."""

    folder: Path
    begun: float = field(default_factory=time.monotonic)
    prepare_time: float = 0.0

    @property
    def results(self) -> Path:
        return self.folder / "results.txt"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"


def run_task(task: InstanceTask) -> Outcome:
    """Decide one instance in a process that may crash, hang or be killed without harm to anybody else.

    A process that came back serves again; after a fault it is replaced. Refused input, a crash and a lack of memory are
    `error`; a process that hangs beyond its time limit is ended and is `timeout`.
    """
    if task.missing:
        return unanswered(task, Verdict.ERROR, f"no such file: {', '.join(task.missing)}")
    with tempfile.TemporaryDirectory(prefix="bnn-vnnlib-") as folder:
        attempt = _Attempt(Path(folder))
        try:
            return _decided(task, attempt)
        except Exception as error:
            discard()
            return _cut_off(task, attempt, error)
        finally:
            if task.fresh:
                discard()


def work_off(arguments: list[str], log: str) -> int:
    """Exit code of a command line, worked off in the process of an instance: exactly as `bnn-vnnlib` works it off.

    Parameters
    ----------
    log : file of the instance for both output streams, so that even the last words of a crash are kept
    """
    app = import_module("bnn_vnnlib.cli").app  # a program to be run, not a part of this one

    with open(log, "wb") as stream:
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(stream.fileno(), descriptor)
    try:
        app(arguments, obj=time.monotonic())
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    return 0


def _decided(task: InstanceTask, attempt: _Attempt) -> Outcome:
    """The outcome of an instance that a worker decides, within its limits of time and memory."""
    worker, attempt.prepare_time = own_worker(WorkerKind(task.threads, task.memory, MODULES))
    attempt.begun = time.monotonic()
    limit = None if task.timeout is None else task.timeout + GRACE
    code = worker.call(work_off, task.command(attempt.results), str(attempt.log), limit=limit)
    taken = time.monotonic() - attempt.begun
    outcome = _read(attempt, taken)
    if outcome is None:
        reason = f"no results file; exit code {code}"
        return unanswered(task, Verdict.ERROR, reason, attempt.prepare_time, taken, tail(attempt.log))
    if code == 1:  # a fault of the program: whatever it left behind in the process shall not reach another instance
        discard()
    if not (task.check and outcome.verdict is Verdict.SAT):
        return outcome
    check = task.check_command(attempt.results, outcome.record["query"])
    worker.call(work_off, check, str(attempt.log), limit=limit)
    said = attempt.log.read_text(errors="replace").split("\n", 1)[0]
    return replace(outcome, checked=said)


def _cut_off(task: InstanceTask, attempt: _Attempt, error: Exception) -> Outcome:
    """A process that is gone may have written its last words: `verify` ends itself where its time limit passes."""
    taken = time.monotonic() - attempt.begun
    outcome = _read(attempt, taken)
    if outcome is not None:
        return outcome
    match error:
        case Overdue():
            verdict, reason = Verdict.TIMEOUT, f"the process hung beyond the time limit and was ended ({error})"
        case Died():
            verdict, reason = Verdict.ERROR, f"the process died: {error}"
        case _:  # a MemoryError, for one
            verdict, reason = Verdict.ERROR, f"the process died: {type(error).__name__}: {error}"
    return unanswered(task, verdict, reason, attempt.prepare_time, taken, tail(attempt.log))


def _read(attempt: _Attempt, taken: float) -> Outcome | None:
    """What the process wrote, if it is all there."""
    try:
        verdict = read_result(attempt.results).verdict
        record = read_object(sidecar_path(attempt.results), "")
    except (InputError, OSError):
        return None
    log = tail(attempt.log) if verdict is Verdict.ERROR else ""
    proof = certificate_path(attempt.results)
    certificate = proof.read_bytes() if proof.is_file() else None
    results = attempt.results.read_text(encoding="utf-8")
    return Outcome(results, record, attempt.prepare_time, taken, log, certificate=certificate)


def unanswered(
    task: AnyTask, verdict: Verdict, reason: str, prepare_time: float = 0.0, run_time: float = 0.0, log: str = ""
) -> Outcome:
    """The outcome of an instance that ended without an answer: why stands in its record."""
    query = None if task.query is None else Query(task.query)
    record = unfinished(
        verdict, reason, task.files, query=query, seed=task.seed, timeout=task.timeout, time_s=run_time
    )  # fmt: skip
    return Outcome(f"{verdict}\n", as_json(record), prepare_time, run_time, log)


def tail(log: Path) -> str:
    """The last of what was printed, which may be gigabytes; "" where there is no such file."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 4 * _LOG_TAIL))  # a letter has four bytes at most
        return stream.read().decode(errors="replace")[-_LOG_TAIL:]
