"""The folder of a long job: finished chunks lie in it, so that a job that was ended goes on where it was.

    settings.json          what decides the results: options, hashes of networks and of the table's arrays
    parts/000000.parquet   the rows of a finished chunk, and what it cost
    NAME.parquet           all rows, once every chunk is there
    summary.csv            the summary table

Every file is written in one step, so a chunk is finished when its part is there: what was being computed when the
process was killed is computed again, nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.sidecar import plain, read_object, to_text
from bnn_vnnlib.sweeps.arrays import Arrays, parquet, read_columns, write_columns
from bnn_vnnlib.vnncomp import write_text


@dataclass(frozen=True)
class Cost:
    """rows : of a chunk; seconds : that it took; peak_mb : the most memory that its process ever had, 2^20 bytes."""

    rows: int
    seconds: float
    peak_mb: float


@dataclass(frozen=True)
class Part:
    """A finished chunk: its columns and what it cost."""

    columns: Arrays
    cost: Cost


@dataclass(frozen=True)
class Folder:
    """The folder of a job; nothing is made before `open`."""

    path: Path

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the folder, or make sure that what is in it may be gone on with.

        Raises
        ------
        OptionError : another job is in it: names what differs; or pyarrow is not there
        """
        parquet()
        place = self.path / "settings.json"
        settings = plain(settings)
        if place.exists():
            self._compare(read_object(place, "take another folder"), settings)
        elif self.path.exists() and any(self.path.iterdir()):
            raise OptionError("the folder is not empty, and holds no job; take another folder", path=self.path)
        try:
            (self.path / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder cannot be made: {error.strerror}", path=self.path) from None
        if not place.exists():
            write_text(place, to_text(settings))

    def _compare(self, earlier: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        differing = [key for key in {**earlier, **settings} if earlier.get(key) != settings.get(key)]
        if differing:
            pairs = ", ".join(_difference(key, earlier.get(key), settings.get(key)) for key in differing)
            raise OptionError(f"the folder holds a job with other settings ({pairs}); take another one", path=self.path)

    def clear(self) -> None:
        """Remove what a killed process left half written."""
        for unfinished in self.path.glob("**/.*.part"):
            unfinished.unlink(missing_ok=True)

    def has(self, chunk: int) -> bool:
        """Whether the chunk is finished."""
        return self._part(chunk).is_file()

    def keep(self, chunk: int, part: Part) -> None:
        """Write a finished chunk."""
        write_columns(self._part(chunk), part.columns, asdict(part.cost))

    def parts(self, chunks: int) -> Iterator[Part]:
        """The finished ones among the first `chunks`."""
        for chunk in range(chunks):
            if self.has(chunk):
                yield self._read(self._part(chunk))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the system lets go of the lock when this one ends, however it ends.

        Raises
        ------
        OptionError : another process is at work in the folder
        """
        try:
            fcntl = import_module("fcntl")
        except ImportError:  # not a POSIX system: two jobs at once only do the same work twice
            yield
            return
        with (self.path / "settings.json").open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OptionError("another process is at work in this folder", path=self.path) from None
            except OSError:  # a file system without locks
                pass
            yield

    def _read(self, path: Path) -> Part:
        try:
            columns, note = read_columns(path)
        except InputError as error:
            raise InputError(f"{error.message}; delete it to have its chunk computed again", path=path) from None
        return Part(columns, Cost(**note))

    def _part(self, chunk: int) -> Path:
        return self.path / "parts" / f"{chunk:06d}.parquet"


def _difference(key: str, there: Any, now: Any) -> str:
    """Hashes say nothing to people."""
    kind, _, name = key.partition(" ")
    if kind in ("array", "network"):
        return f"{kind} {name}: {'not there before' if there is None else 'gone' if now is None else 'changed'}"
    return f"{key}: {there} there, {now} now"
