"""Where a run's outcome goes: results file, JSON record, standard output. One outcome, written once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.sidecar import record, sidecar_path, to_text, unfinished
from bnn_vnnlib.files.vnncomp import check_writable, results_text, spoken, standard_output, write_text
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.result import Query, Result, Verdict


@dataclass
class Outlet:
    """Fills in what it knows of a run as the run goes on, so that even an unfinished one leaves a record.

    Attributes
    ----------
    results, json : files to write; without `json` the record goes next to `results`
    seed, timeout, started : for the record; `started` in seconds of the monotonic clock
    files, prop, query : known once they are known
    solving : when solving began, on the same clock; None: not yet
    finished : the verdict has been said
    """

    results: Path | None
    json: Path | None
    seed: int
    timeout: float | None
    started: float
    files: Mapping[str, Path] = field(default_factory=dict)
    prop: Property | None = None
    query: Query | None = None
    solving: float | None = None

    finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.json is None and self.results is not None and (self.results.is_file() or not self.results.exists()):
            self.json = sidecar_path(self.results)
        paths = [path for path in (self.results, self.json) if path is not None]
        for path in paths:
            check_writable(path)
        if len(paths) == 2 and _same(*paths):
            raise OptionError("the results file and the record need two files", path=self.results)

    def read(self, files: Mapping[str, Path]) -> None:
        """Take note of the input files, none of which may be written over."""
        for role, path in files.items():
            for written in (self.results, self.json):
                if written is not None and _same(written, path):
                    self.results = self.json = None
                    raise OptionError(f"this is the {role}, which the results would replace", path=written)
        self.files = files

    def finish(self, result: Result, prop: Property) -> list[InputError]:
        """Say the verdict and write the outcome of a finished run; what could not be written comes back.

        The verdict is said first, and one file that fails leaves the other alone: a verdict that was earned is never
        lost to its record.
        """
        text, spoken_text = results_text(result, prop), standard_output(result, prop)
        self.finished = True
        failures = _print(spoken_text)
        start_s = None if self.solving is None else self.solving - self.started

        def made() -> dict[str, Any]:
            return record(result, self.files, seed=self.seed, timeout=self.timeout, start_s=start_s)

        return failures + self._write(text, made)

    def expire(self) -> list[InputError]:
        """Say and write that the time limit ended the run before there was a result."""
        failures = _print(f"{spoken(Verdict.TIMEOUT, self.prop)}\n")
        reason = "the time limit ended the run before there were any bounds"
        return [*failures, *self._leave(Verdict.TIMEOUT, reason)]

    def fail(self, reason: str) -> list[InputError]:
        """Write `error`; standard output stays empty, because none of its words means that input was refused.

        A verdict that has been said stays.
        """
        return [] if self.finished else self._leave(Verdict.ERROR, reason)

    def _leave(self, verdict: Verdict, reason: str) -> list[InputError]:
        """Write what can be said of a run that did not finish; returns the errors of writing."""
        now = time.monotonic()
        solving = now if self.solving is None else self.solving
        values = unfinished(
            verdict,
            reason,
            self.files,
            query=self.query,
            seed=self.seed,
            timeout=self.timeout,
            time_s=now - solving,
            start_s=solving - self.started,
        )
        return self._write(f"{verdict.value}\n", lambda: values)

    def _write(self, results: str, values: Callable[[], Mapping[str, Any]]) -> list[InputError]:
        """The record first: whoever sees a results file finds its record. A fault in the record leaves the verdict."""
        try:
            failures = _put(self.json, to_text(values())) if self.json is not None else []
        finally:
            late = _put(self.results, results) if self.results is not None else []
        return failures + late


def _put(path: Path, text: str) -> list[InputError]:
    try:
        write_text(path, text)
    except InputError as error:
        return [error]
    return []


def _same(one: Path, other: Path) -> bool:
    """Two names of one file, which need not exist; a device such as /dev/null may take both."""
    if one.resolve() != other.resolve():
        return False
    return not one.exists() or one.is_file()


def _print(text: str) -> list[InputError]:
    """Write to standard output; a reader that is gone, or a full disk, is a failure among others."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):  # nothing of it must be tried again when the interpreter ends
            sys.stdout.close()
        return [InputError(f"standard output cannot be written: {error.strerror}")]
    return []
