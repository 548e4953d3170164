"""Files that outlast a kill and a power cut, and folders that one process at a time works in."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO

from bnn_vnnlib.errors import InputError, OptionError

LOCK = ".lock"
_SCRATCH = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose contents become the file in one step, once they are on the disk.

    Whoever looks sees the earlier file or the whole new one, also after a power cut: contents and name are flushed.

    Raises
    ------
    InputError : the file cannot be written; the earlier one is still there
    """
    scratch = scratch_of(path)
    try:
        with scratch.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
        _flush_names(path.parent)
    except BaseException as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot be written: {error.strerror}", path=path) from error
        raise


def scratch_of(path: Path) -> Path:
    """Path of the file that is written before it takes the place of `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}{_SCRATCH}")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, so that a power cut does not take them away again.

    Raises
    ------
    InputError : it cannot be made
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made: {error.strerror}", path=path) from None
    for folder in missing:
        _flush_names(folder.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be; what killed ones left half written is removed.

    The system lets go of the lock when this process ends, however it ends, so no lock is ever left behind; the file
    stays, and says who had it. Without locks (not a POSIX system, some network drives) two processes do the same work
    twice, which harms nothing, because each file is replaced in one step.

    Raises
    ------
    OptionError : another process is at work in the folder
    InputError : the folder cannot be made, or not be written into
    """
    make_folder(folder)
    try:
        fcntl = import_module("fcntl")
    except ImportError:
        _clear(folder)
        yield
        return
    path = folder / LOCK
    try:
        stream = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the folder cannot be written into: {error.strerror}", path=folder) from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read(200).strip()
            message = f"another process is at work in this folder{f' ({holder})' if holder else ''}"
            raise OptionError(f"{message}; wait until it has ended, or take another folder", path=folder) from None
        except OSError:
            pass
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        _clear(folder)
        yield


def _clear(folder: Path) -> None:
    for scratch in folder.rglob(f".*{_SCRATCH}"):
        scratch.unlink(missing_ok=True)


def _flush_names(folder: Path) -> None:
    """Have the names in a folder written to the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
