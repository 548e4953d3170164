"""All readers in a process of their own, under limits of time and memory."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

MEMORY = 6 * 2**30
"""Bytes of address space for the reader: a file of less than a megabyte that needs more is a bomb that went off."""


@dataclass(frozen=True)
class Outcome:
    """`kind` is read, refused, crash or hang; `text` the message or the evidence."""

    kind: str
    text: str = ""


def readers(suffix: str) -> tuple[Callable[[Path], object], ...]:
    """Whatever reads files with this suffix, from the inside of the package."""
    import bnn_vnnlib
    from bnn_vnnlib.check_witness import other_files
    from bnn_vnnlib.files.benchmarks import read_instances as read_instances
    from bnn_vnnlib.files.sidecar import read_object
    from bnn_vnnlib.files.vnncomp import read_result
    from bnn_vnnlib.model.attachment import posterior_from_npz
    from bnn_vnnlib.posteriors.fit import Data
    from bnn_vnnlib.report.row import read_row
    from bnn_vnnlib.report.source import _table
    from bnn_vnnlib.sweeps.inputs import read_inputs
    from bnn_vnnlib.sweeps.table import read_table

    network = SimpleNamespace(signature=SimpleNamespace(input_size=2, output_size=2))

    def instances(path: Path) -> list[Path | None]:
        return [bnn_vnnlib.files.benchmarks.existing(one.prop) for one in read_instances(path, "c") if one.missing]

    return {
        ".vnnlib": (bnn_vnnlib.read_property,),
        ".onnx": (bnn_vnnlib.read_model,),
        ".npz": (
            lambda path: posterior_from_npz(path, {"W": (2, 2)}),
            read_table,
            read_inputs,
            lambda path: Data.read(path, network, "categorical"),  # type: ignore[arg-type]
            lambda path: Data.read(path, network, "gaussian"),  # type: ignore[arg-type]
        ),
        ".parquet": (read_table, read_inputs),
        ".csv": (instances, _table),
        ".json": (
            lambda path: read_row("run", "place", read_object(path, "delete it"), path),
            lambda path: other_files(path.with_suffix(""), {"model": path}),
        ),
        ".txt": (read_result,),
    }[suffix]


def judged(path: Path) -> Outcome:
    """What the readers say of a file, by its suffix. Anything but one clear message of each is a crash."""
    said = [_judged(reader, path) for reader in readers(path.suffix)]
    return max(said, key=lambda outcome: ("refused", "read", "crash").index(outcome.kind))


def _judged(reader: Callable[[Path], object], path: Path) -> Outcome:
    from bnn_vnnlib.errors import InputError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader(path)
    except InputError as error:
        message = str(error)
        if not error.message or not message.isprintable() or len(message) > 6000:
            return Outcome("crash", f"not one clear message: {message[:6000]!r}")
        if "allocate" in message:
            return Outcome("crash", f"memory: {message}")
        return Outcome("refused", message)
    except BaseException:  # whatever else comes out is what this looks for
        return Outcome("crash", traceback.format_exc())
    return Outcome("read")


class Reader:
    """A process that reads one file after another; killed when a file takes too long, started again when it is gone."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._folder = tempfile.TemporaryDirectory(prefix="hostile-")
        self._process: mp.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def read(self, suffix: str, data: bytes) -> Outcome:
        """The outcome of one file with this content; suffix says what it is."""
        path = Path(self._folder.name) / f"case{suffix}"
        path.write_bytes(data)
        connection = self._started()
        with contextlib.suppress(BrokenPipeError):  # a process that is gone is found out below
            connection.send(path)
        if not self._answers(connection):
            self._stop()
            return Outcome("hang", f"more than {self.seconds:g} s")
        try:
            found: Outcome = connection.recv()
        except (EOFError, ConnectionResetError):
            code = self._process.exitcode if self._process else None
            self._stop()
            return Outcome("crash", f"the process ended (exit code {code})")
        return found

    def _answers(self, connection: Connection) -> bool:
        """Whether an answer comes within `seconds` of the processor's time, or ten times as many of the clock's."""
        begun, spent = time.monotonic(), self._spent()
        while not connection.poll(min(0.2, self.seconds)):
            if time.monotonic() - begun >= 10 * self.seconds or self._spent() - spent > self.seconds:
                return False
        return True

    def _spent(self) -> float:
        """Processor seconds of the reading process; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, AttributeError):
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _started(self) -> Connection:
        if self._connection is None:
            context = mp.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            if not self._connection.poll(120):
                raise RuntimeError("the reader's process does not start")
            self._connection.recv()
        return self._connection

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(connection: Connection) -> None:
    import pyarrow.parquet  # noqa: F401

    readers(".onnx")  # the imports come before the first case
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    connection.send("ready")
    while True:
        try:
            path = connection.recv()
        except EOFError:
            return
        connection.send(judged(path))
