"""The finished chunks of a job, as files of its folder.

    parts/000000-HASH.parquet      the rows of a finished chunk, and what it cost
    steps/000001-0003-HASH.parquet where a chunk that goes on in steps has got to, until it is finished
    NAME.parquet                   all rows, once every chunk is there
    summary.csv                    the summary table

HASH is that of the file's contents, its number and the job's settings, so a part that was damaged, or that belongs to
another job, is known before anything is read from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.files.arrays import Arrays, parquet, parquet_bytes, read_columns
from bnn_vnnlib.files.sidecar import as_json
from bnn_vnnlib.jobs.folder import Folder
from bnn_vnnlib.system.durable import LOCK, make_folder, replacing


@dataclass(frozen=True)
class Cost:
    """What a chunk cost, or a job with its earlier calls.

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


NO_COST = Cost(0, 0.0, 0.0)
"""The cost of what has not begun."""


@dataclass(frozen=True)
class Part:
    """A finished chunk: its columns and what it cost."""

    columns: Arrays
    cost: Cost


@dataclass(frozen=True)
class Step:
    """How far a chunk that is worked on in steps has got.

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
    cost: Cost = NO_COST


@dataclass(frozen=True)
class PartsFolder(Folder):
    """The folder of a job in chunks."""

    @property
    def chunk(self) -> int | None:
        """The size of the chunks of the job that is in it: one that goes on keeps it; None where nothing says."""
        size = (self.settings or {}).get("chunk")
        return size if isinstance(size, int) and size > 0 else None

    @contextmanager
    def kept(self, settings: Mapping[str, Any]) -> Iterator[Kept]:
        """The folder, opened (`Folder.opened`): what is finished in it, without files that do not count.

        Raises
        ------
        OptionError : also where pyarrow is not there
        """
        parquet()
        with self.opened(settings):
            make_folder(self.path / "parts")
            kept = Kept(self.path, as_json(settings))
            kept.remove_rejected()
            yield kept

    def _check_damaged(self, now: Mapping[str, Any]) -> None:
        kept = Kept(self.path, now)
        if kept.rejected and not kept.parts:
            message = "is damaged, and no finished part belongs to this job; take another folder"
            raise OptionError(message, path=self.path / self.FILE)

    def _check_foreign(self) -> None:
        if self.path.exists() and {path.name for path in self.path.iterdir()} - {LOCK}:
            raise OptionError("the folder is not empty, and holds no job; take another folder", path=self.path)


@dataclass
class Kept:
    """What is finished of a job, in its folder.

    Attributes
    ----------
    path, settings : of the job
    parts, steps : {chunk: file}, checked
    rejected : files that are damaged, of another job, or of a version that wrote no hashes
    """

    path: Path
    settings: Mapping[str, Any]
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
        """Remove the files that were rejected; their chunks are done again."""
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
        return hashlib.sha256(f"{json.dumps(self.settings, sort_keys=True)}\0{stem}\0".encode() + data).hexdigest()[:16]
