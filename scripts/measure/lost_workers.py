"""A sweep and a run on a Dask cluster of two workers, one of which is killed on the way, beside those of one process.

    python scripts/measure/lost_workers.py --boxes 200000

The boxes are small cubes of the inputs of benchmarks/hcas, with labels at random, asked of the mean network (so that it
takes minutes); the run has instances of benchmarks/digits. The worker is killed (SIGKILL) when a tenth is finished. The
files of the sweep must be the same byte for byte, the results of the run the same but for their times.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bnn_vnnlib.files.benchmarks import read_benchmarks
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.runs.records import Records
from bnn_vnnlib.runs.run import How, Run, selected
from bnn_vnnlib.sweeps import Bounding, Pair, Source, make_table, sweep

ROOT = Path(__file__).resolve().parents[2]
NET = ROOT / "benchmarks" / "hcas" / "onnx" / "hcas_hmc_125_pra0_tau20.onnx"


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Address of a scheduler with two workers, processes of their own, and what kills the first of them.

    The address is the scheduler's own choice, so no port is guessed. No nanny starts a worker again.
    """
    told = folder / "scheduler.json"
    told.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str, *words: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *words, "--no-dashboard"]
        command += ["--host", "127.0.0.1", "--scheduler-file", str(told)]
        started.append(
            subprocess.Popen(  # noqa: S603
                command, env=environment, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

    def lose() -> None:
        started[1].kill()
        started[1].wait()

    try:
        start("dask_scheduler", "--port", "0")
        until = time.monotonic() + 300
        while not told.exists() and time.monotonic() < until:
            time.sleep(0.05)
        for name in ("one", "two"):
            start("dask_worker", "--nthreads", "1", "--no-nanny", "--name", name)
        yield json.loads(told.read_text())["address"], lose
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def boxes(count: int) -> dict[str, np.ndarray]:
    """A table of small cubes with labels at random."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (count, 3))
    return {"lower": x - 1e-6, "upper": x + 1e-6, "label": rng.integers(0, 5, count)}


def swept(net: Path, table: dict[str, np.ndarray], folder: Path, chunk: int | None = None) -> dict[str, float]:
    """Seconds of the sweep in one process, and on the cluster; SystemExit if their files differ."""
    pairs, how, seconds = [Pair(Source(net), make_table(table))], Bounding("deterministic", restarts=1), {}
    lost = 0

    begun = time.monotonic()
    sweep(pairs, how, out=folder / "alone", chunk=chunk, threads=1)
    seconds["one process"] = time.monotonic() - begun
    with cluster(folder) as (address, lose):

        def watch(progress: object) -> None:
            nonlocal lost
            done, rows = progress.done, progress.rows  # type: ignore[attr-defined]
            if not lost and done >= rows / 10:
                lost = done
                lose()

        begun = time.monotonic()
        sweep(pairs, how, out=folder / "cluster", chunk=chunk, threads=1, scheduler=address, watch=watch)
        seconds["cluster, one worker killed"] = time.monotonic() - begun
    if not 0 < lost < len(table["lower"]):
        raise SystemExit(f"the worker was killed after {lost} boxes")
    for name in ("bounds.parquet", "summary.csv"):
        if (folder / "alone" / name).read_bytes() != (folder / "cluster" / name).read_bytes():
            raise SystemExit(f"{name} differs")
    return seconds


def ran(benchmark: Path, only: list[str], folder: Path) -> dict[str, float]:
    """Seconds of the run here, and on the cluster; SystemExit if their results differ in more than their times."""
    instances, how, seconds = selected(read_benchmarks([benchmark]), only), How(), {}
    with cluster(folder) as (address, lose):
        for name, where in (("here", Slots(1, 1)), ("cluster, one worker killed", Slots(2, 1, address))):
            begun = time.monotonic()
            records = Records(folder / f"run {where.scheduler is not None}")
            with Run.opened(how.tasks(instances, 1), records, how.settings) as opened:
                for number, _ in enumerate(opened.go(where), 1):
                    if where.scheduler is not None and number == max(1, len(instances) // 10):
                        lose()
            seconds[name] = time.monotonic() - begun
    here, there = (verdicts(folder / f"run {on_cluster}") for on_cluster in (False, True))
    if here != there or not len(here) == len(instances) > 0 or any(row[3] == "error" for row in here):
        raise SystemExit(f"{len(instances)} instances; results here: {here}; on the cluster: {there}")
    return seconds


def verdicts(folder: Path) -> list[list[str]]:
    """results.csv without its times."""
    with (folder / "results.csv").open() as stream:
        return [[*row[:3], row[4]] for row in csv.reader(stream)]


def main(count: Annotated[int, typer.Option("--boxes")] = 200_000) -> None:
    """Compare, and print the seconds."""
    with tempfile.TemporaryDirectory() as name:
        for what, seconds in (
            (f"sweep of {count} boxes", swept(NET, boxes(count), Path(name))),
            ("run", ran(ROOT / "benchmarks" / "digits", ["vnnlib/1.0/*mlp*_0.02.vnnlib"], Path(name))),
        ):
            typer.echo(f"{what}: the same; {', '.join(f'{how} {taken:.0f} s' for how, taken in seconds.items())}")


if __name__ == "__main__":
    typer.run(main)
