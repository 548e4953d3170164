"""Processes that we start run no code of the current folder, and know how many threads they may have.

Python puts the current folder first on the path of `python -m` and `python -c`. A benchmark that somebody downloaded
may hold a file argparse.py or torch.py, and a process that is started from there would run it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SAFE = "PYTHONSAFEPATH"  # the same as `python -P`, also for whatever the process itself starts


def trusted_path() -> list[str]:
    """`sys.path` without the current folder, in absolute names.

    The current folder stays if this package lies in it (a checkout), or the program that was started: their code runs
    anyway.
    """
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    running = {_real(Path(__file__).parents[2])} | ({_real(Path(program).parent)} if program else set())
    here = {_real(Path.cwd())} - running
    return list(dict.fromkeys(os.path.abspath(place) for place in sys.path if _real(Path(place)) not in here))


def _real(path: Path) -> str:
    return os.path.realpath(path)


def forget_current_folder() -> None:
    """Take the current folder, where `python -m` looks first, out of sys.path: for the command line, before other
    imports.
    """
    sys.path[:] = trusted_path()


@contextmanager
def isolated() -> Iterator[None]:
    """Context in which `multiprocessing` (or Dask) starts processes.

    They look for modules in `trusted_path()`, and have the threads of `with_threads(None)`.
    """
    path, before = sys.path[:], {name: os.environ.get(name) for name in (_SAFE, *_THREADS)}
    sys.path[:] = trusted_path()
    os.environ.update(with_threads(None), **{_SAFE: "1"})
    try:
        yield
    finally:
        sys.path[:] = path
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def with_threads(threads: int | None) -> dict[str, str]:
    """The environment of a process whose numerical libraries have so many threads.

    Parameters
    ----------
    threads : as asked for; None: as the environment says already, and one where it says nothing
    """
    if threads is not None:
        return {**os.environ, **dict.fromkeys(_THREADS, str(threads))}
    return {**dict.fromkeys(_THREADS, "1"), **os.environ}


def usual_threads() -> int:
    """How many threads a process has for which no number is asked: that of OMP_NUM_THREADS, else one."""
    first = os.environ.get(_THREADS[0], "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else 1


def cores() -> int:
    """Number of cores that this process may use, where the system tells; else of all cores."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
