"""The folder of a long job: finished chunks lie in it, so that a job that was ended goes on where it was.

    settings.json                  what decides the results: options, hashes of networks and of the table's arrays
    parts/000000-HASH.parquet      the rows of a finished chunk, and what it cost
    steps/000001-0003-HASH.parquet where a chunk that goes on in steps has got to, until it is finished
    NAME.parquet                   all rows, once every chunk is there
    summary.csv                    the summary table

Every file is written in one step, so a chunk is finished when its part is there: what was being computed when the
process was killed is computed again, nothing is lost, and nothing is there twice. HASH is that of the file's contents,
its number and the job's settings, so a part that was damaged, or that belongs to another job, is known before anything
is read from it; its chunk is done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.arrays import Arrays, parquet, parquet_bytes, read_columns
from bnn_vnnlib.files.sidecar import plain, read_object, to_text
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.system.durable import LOCK, clear, locked, make_folder, replacing

SETTINGS, OWN_HASH = "settings.json", "sha256"


@dataclass(frozen=True)
class Cost:
    """Of a chunk, or of a job with its earlier calls.

    Attributes
    ----------
    rows : of the tables
    seconds : of work, over all processes
    peak_mb : the most memory that a process ever had, in 2^20 bytes
    """

    rows: int
    seconds: float
    peak_mb: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rows + other.rows, self.seconds + other.seconds, max(self.peak_mb, other.peak_mb))


NOTHING = Cost(0, 0.0, 0.0)
"""The cost of what has not begun."""


@dataclass(frozen=True)
class Part:
    """A finished chunk: its columns and what it cost."""

    columns: Arrays
    cost: Cost


@dataclass(frozen=True)
class Step:
    """Where a chunk has got to that goes on in steps.

    Attributes
    ----------
    columns : what the next step needs, one entry a row
    number : of steps so far
    done : rows of which the next steps will learn nothing more
    cost : of all steps so far
    """

    columns: Arrays
    number: int
    done: int
    cost: Cost = NOTHING


@dataclass(frozen=True)
class Folder:
    """The folder of a job; nothing is made before `opened`."""

    path: Path

    @property
    def chunk(self) -> int | None:
        """The size of the chunks of the job that is in it: one that goes on keeps it; None where nothing says."""
        place = self.path / SETTINGS
        known = _intact(place) if place.is_file() else None
        size = None if known is None else known.get("chunk")
        return size if isinstance(size, int) and size > 0 else None

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[Kept]:
        """Make the folder, or make sure that what is in it may be gone on with, and keep other processes out.

        Raises
        ------
        OptionError : another job is in it: names what differs; another process is at work in it; pyarrow is not there
        """
        parquet()
        now = plain(settings)
        self._check(now)
        with locked(self.path):
            damaged = self._check(now)  # once more, now that nobody else changes it
            clear(self.path)
            make_folder(self.path / "parts")
            kept = Kept(self.path, json.dumps(now, sort_keys=True))
            if damaged and kept.rejected and not kept.parts:
                message = "is damaged, and no finished part belongs to this job; take another folder"
                raise OptionError(message, path=self.path / SETTINGS)
            kept.remove_rejected()
            write_text(self.path / SETTINGS, to_text({**now, OWN_HASH: _hash_of(now)}))
            yield kept

    def _check(self, now: Mapping[str, Any]) -> bool:
        """Whether the settings are there and damaged; refuses those of another job."""
        place = self.path / SETTINGS
        if not place.exists():
            if self.path.exists() and {path.name for path in self.path.iterdir()} - {LOCK}:
                raise OptionError("the folder is not empty, and holds no job; take another folder", path=self.path)
            return False
        earlier = _intact(place)
        if earlier is None:
            return True
        differing = [key for key in {**earlier, **now} if earlier.get(key) != now.get(key)]
        if "job" in differing and earlier.get("job") is not None:
            message = f"the folder holds a job of another kind ({earlier['job']}, not {now['job']}); take another one"
            raise OptionError(message, path=self.path)
        if differing:
            pairs = ", ".join(_difference(key, earlier.get(key), now.get(key)) for key in differing)
            raise OptionError(f"the folder holds a job with other settings ({pairs}); take another one", path=self.path)
        return False


@dataclass
class Kept:
    """What is finished of a job, in its folder.

    Attributes
    ----------
    path, settings : of the job, these as text
    parts, steps : {chunk: file}, checked
    rejected : files that are damaged, of another job, or of a version that wrote no hashes
    """

    path: Path
    settings: str
    parts: dict[int, Path] = field(init=False, default_factory=dict)
    steps: dict[int, Path] = field(init=False, default_factory=dict)
    rejected: list[Path] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        for kind, known in (("parts", self.parts), ("steps", self.steps)):
            for path in sorted((self.path / kind).glob("*")):  # of a chunk's steps, the last one is the furthest
                stem, _, mark = path.stem.rpartition("-")
                if path.suffix == ".parquet" and mark == self._mark(stem, path.read_bytes()):
                    known[int(stem[:6])] = path
                else:
                    self.rejected.append(path)

    def remove_rejected(self) -> None:
        """They are done again."""
        for path in self.rejected:
            path.unlink(missing_ok=True)

    def keep(self, chunk: int, part: Part) -> None:
        """Write a finished chunk."""
        self.parts[chunk] = self._write("parts", f"{chunk:06d}", part.columns, asdict(part.cost))
        self._forget_steps(chunk)

    def keep_step(self, chunk: int, step: Step) -> None:
        """Write where a chunk has got to, in place of earlier steps."""
        make_folder(self.path / "steps")
        note = {"number": step.number, "done": step.done, **asdict(step.cost)}
        path = self._write("steps", f"{chunk:06d}-{step.number:04d}", step.columns, note)
        self._forget_steps(chunk, path)
        self.steps[chunk] = path

    def part(self, chunk: int) -> Part:
        """A finished chunk."""
        columns, note = read_columns(self.parts[chunk])
        return Part(columns, Cost(**note))

    def step(self, chunk: int) -> Step:
        """The last step of a chunk that has begun."""
        columns, note = read_columns(self.steps[chunk])
        return Step(columns, note.pop("number"), note.pop("done"), Cost(**note))

    def _forget_steps(self, chunk: int, but: Path | None = None) -> None:
        for path in (self.path / "steps").glob(f"{chunk:06d}-*"):
            if path != but:
                path.unlink(missing_ok=True)
        self.steps.pop(chunk, None)

    def _write(self, kind: str, stem: str, columns: Arrays, note: Mapping[str, Any]) -> Path:
        data = parquet_bytes(columns, note)
        path = self.path / kind / f"{stem}-{self._mark(stem, data)}.parquet"
        with replacing(path) as stream:
            stream.write(data)
        return path

    def _mark(self, stem: str, data: bytes) -> str:
        return hashlib.sha256(f"{self.settings}\0{stem}\0".encode() + data).hexdigest()[:16]


def _intact(place: Path) -> dict[str, Any] | None:
    """Settings without their hash (a version that wrote none is trusted); None where they are damaged."""
    try:
        values = read_object(place, "")
    except InputError:
        return None
    mark = values.pop(OWN_HASH, None)
    return values if mark in (None, _hash_of(values)) else None


def _hash_of(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _difference(key: str, there: Any, now: Any) -> str:
    """Hashes say nothing to people."""
    kind, _, name = key.partition(" ")
    if kind in ("array", "network"):
        return f"{kind} {name}: {'not there before' if there is None else 'gone' if now is None else 'changed'}"
    return f"{key}: {there} there, {now} now"
