"""Many cases in a row: counted, resumable, failures written down so that they can be run again."""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from bnn_vnnlib.errors import InputError
from fuzz.checks import Violation, run_case
from fuzz.models import make_model, proto_of
from fuzz.questions import make_question
from fuzz.specs import Spec, random_spec, simpler
from fuzz.tally import Tally

SHRINKING = 60.0
"""Seconds spent on making one failing case simpler, at most."""

UNRUNNABLE = "onnxruntime does not accept the model"
"""Said of graphs that onnxruntime has no kernels for in double precision; the verifier is right to refuse them."""

Check = Callable[[Spec], list[Violation]]


@dataclass(frozen=True)
class Failure:
    """A case that failed, in its simplest form found."""

    spec: Spec
    original: Spec
    violations: list[Violation]


def judged(spec: Spec, variants: int, seconds: float | None, tally: Tally | None = None) -> list[Violation]:
    """`run_case`, a crash counting as a violation; a graph that onnxruntime cannot run is no case."""
    try:
        return run_case(spec, variants, seconds, tally)
    except InputError as error:
        if UNRUNNABLE in str(error):
            return []
        return [Violation("refused", f"{type(error).__name__}: {error}")]
    except Exception:
        return [Violation("crash", traceback.format_exc())]


def shrunk(spec: Spec, violations: list[Violation], check: Check, seconds: float = SHRINKING) -> Failure:
    """Greedily simpler, as long as the same check fails."""
    stop, best, found = time.monotonic() + seconds, spec, violations
    kinds = {violation.check.split()[0] for violation in violations}
    progress = True
    while progress:
        progress = False
        for candidate in simpler(best):
            if time.monotonic() > stop:
                return Failure(best, spec, found)
            again = check(candidate)
            if kinds & {violation.check.split()[0] for violation in again}:
                best, found, progress = candidate, again, True
                break
    return Failure(best, spec, found)


def write(failure: Failure, folder: Path, command: str) -> Path:
    """A folder with the model, the property, the spec and the evidence."""
    home = folder / f"seed-{failure.original.seed}"
    home.mkdir(parents=True, exist_ok=True)
    record = {
        "spec": asdict(failure.spec), "original": asdict(failure.original), "again": command,
        "violations": [asdict(violation) for violation in failure.violations],
    }  # fmt: skip
    (home / "case.json").write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    try:
        model = make_model(failure.spec)
        onnx.save(proto_of(model), home / "model.onnx")
        text = make_question(failure.spec, model).text(model.network.signature)
        (home / "property.vnnlib").write_text(text, encoding="utf-8")
    except Exception:  # what failed may be the making of the model itself
        (home / "unmade.txt").write_text(traceback.format_exc(), encoding="utf-8")
    return home


def read_spec(path: Path) -> Spec:
    """The simplest spec in a `case.json`."""
    return Spec(**json.loads(path.read_text(encoding="utf-8"))["spec"])


class Campaign:
    """Cases by seed, from where the last run stopped.

    Parameters
    ----------
    folder : of the progress file and the failures
    first : the first seed
    variants, seconds : of each case, see `run_case`; shrinking : seconds spent on a failure
    """

    def __init__(
        self, folder: Path, first: int, variants: int = 4, seconds: float | None = 0.4, shrinking: float = SHRINKING
    ) -> None:
        self.folder, self.first, self.variants, self.seconds = folder, first, variants, seconds
        self.shrinking = shrinking
        self.failures: list[int] = []
        self.counts: Counter[str] = Counter()
        self.tally = Tally()
        self.next = first
        folder.mkdir(parents=True, exist_ok=True)
        self._record = folder / f"progress-{first}.json"
        if self._record.is_file():
            stored = json.loads(self._record.read_text(encoding="utf-8"))
            self.next, self.failures, self.counts = stored["next"], stored["failures"], Counter(stored["counts"])
            self.tally = Tally(stored.get("tally", ()))

    @property
    def cases(self) -> int:
        """Cases tried so far, of earlier runs too."""
        return sum(self.counts.values())

    def run(self, until: float, most: int | None = None) -> Iterator[int]:
        """Cases until a moment of time.monotonic(), `most` of them at most; yields the seed of each when it is done."""
        last = None if most is None else self.next + most
        while time.monotonic() < until and (last is None or self.next < last):
            seed = self.next
            self._case(random_spec(seed))
            self.next = seed + 1
            self._save()
            yield seed

    def _case(self, spec: Spec) -> None:
        violations = judged(spec, self.variants, self.seconds, self.tally)
        self.counts[spec.query] += 1
        if not violations:
            return
        self.failures.append(spec.seed)
        failure = shrunk(spec, violations, lambda one: judged(one, self.variants, self.seconds), self.shrinking)
        write(failure, self.folder, f"make fuzz AGAIN={self.folder}/seed-{spec.seed}/case.json")

    def _save(self) -> None:
        """A kill between two writes leaves the older file."""
        stored = {
            "next": self.next, "failures": self.failures, "counts": self.counts, "tally": self.tally.stored()
        }  # fmt: skip
        partial = self._record.with_suffix(".part")
        partial.write_text(json.dumps(stored) + "\n", encoding="utf-8")
        partial.replace(self._record)
