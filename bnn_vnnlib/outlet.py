"""Where a run's outcome goes: results file, JSON record, standard output. One outcome, written once."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.property import Property
from bnn_vnnlib.result import Query, Result, Verdict
from bnn_vnnlib.sidecar import record, sidecar_path, to_text, unfinished
from bnn_vnnlib.vnncomp import results_text, spoken, standard_output, write_text


@dataclass
class Outlet:
    """Fills in what it knows of a run as the run goes on, so that even an unfinished one leaves a record.

    Attributes
    ----------
    results, json : files to write; without `json` the record goes next to `results`
    seed, timeout, started : for the record; `started` in seconds of the monotonic clock
    files, prop, query : known once they are known
    """

    results: Path | None
    json: Path | None
    seed: int
    timeout: float | None
    started: float
    files: Mapping[str, Path] = field(default_factory=dict)
    prop: Property | None = None
    query: Query | None = None

    def __post_init__(self) -> None:
        if self.json is None and self.results is not None and (self.results.is_file() or not self.results.exists()):
            self.json = sidecar_path(self.results)
        for path in (self.results, self.json):
            if path is not None and not path.resolve().parent.is_dir():
                raise OptionError("there is no such folder to write into", path=path)

    def finish(self, result: Result, prop: Property) -> None:
        """Write the outcome of a finished run."""
        text, spoken_text = results_text(result, prop), standard_output(result, prop)
        json = to_text(record(result, self.files, seed=self.seed, timeout=self.timeout))
        self._write(text, json)
        _print(spoken_text)

    def expire(self) -> None:
        """Write that the time limit ended the run before there was a result."""
        self._leave(Verdict.TIMEOUT, "the time limit ended the run before there were any bounds")
        _print(f"{spoken(Verdict.TIMEOUT, self.prop)}\n")

    def fail(self, reason: str) -> None:
        """Write `error`; standard output stays empty, because none of its words means that input was refused."""
        self._leave(Verdict.ERROR, reason)

    def _leave(self, verdict: Verdict, reason: str) -> None:
        elapsed = time.monotonic() - self.started
        values = unfinished(
            verdict,
            reason,
            self.files,
            query=self.query,
            seed=self.seed,
            timeout=self.timeout,
            time_s=elapsed,
        )
        self._write(f"{verdict.value}\n", to_text(values))

    def _write(self, results: str, json: str) -> None:
        if self.json is not None:
            write_text(self.json, json)
        if self.results is not None:
            write_text(self.results, results)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
