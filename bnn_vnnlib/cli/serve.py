"""A process that does the work of `run` (started by `runs.worker.Worker`): many command lines, one after the other.

Importing torch costs seconds, so a process serves until something goes wrong in it. A request is a line of JSON on
standard input, {"arguments": [...], "log": PATH}; its answer is a line on standard output, {"code": EXIT CODE}.
The arguments are those of the command line: an instance of a run is decided exactly as `bnn-vnnlib verify` decides it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from bnn_vnnlib.system.heap import keep_freed_memory

OUT, ERR = 1, 2


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=float, help="bytes")
    memory = parser.parse_args().memory
    answers = os.fdopen(os.dup(OUT), "w", buffering=1)
    os.dup2(ERR, OUT)  # nothing that a library prints may pass for an answer
    for stream in (sys.stdout, sys.stderr):  # both go into one log, in the order in which they were written
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _offer_to_the_killer()
    if memory is not None:
        _limit(int(memory))
    _import()
    keep_freed_memory()
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    answers.write(json.dumps({"ready": True}) + "\n")
    while True:
        request = json.loads(requests.get())
        _redirect(request["log"])
        code = _serve(request["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(json.dumps({"code": code}) + "\n")


def _listen(requests: queue.SimpleQueue[str]) -> None:
    """Pass the requests on; without a parent there is nobody to work for, so the work ends at once."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _serve(arguments: list[str]) -> int:
    from bnn_vnnlib.cli import app

    try:
        app(arguments, obj=time.monotonic())
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    return 0


def _import() -> None:
    """Everything slow, before the first time limit counts."""
    for name in ("torch", "onnxruntime", "scipy.stats", "bnn_vnnlib.witness", "bnn_vnnlib.model.reading",
                 "bnn_vnnlib.methods.safety.safety", "bnn_vnnlib.methods.decision"):  # fmt: skip
        import_module(name)


def _redirect(log: str) -> None:
    """Both streams into a file of the instance, so that even the last words of a crash are kept."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, OUT)
    os.dup2(descriptor, ERR)
    os.close(descriptor)


def _limit(size: int) -> None:
    """More than this many bytes of data is a MemoryError of this process, not a hunt through the machine."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _offer_to_the_killer() -> None:
    """When memory runs out, Linux shall end this process and not the one that keeps the run together."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
