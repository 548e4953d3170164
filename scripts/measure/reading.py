"""Read every VNN-LIB file under a folder, and print size, seconds, MB/s, and what the PyPI package vnnlib needs.

    python scripts/measure/reading.py CORPUS [--least 30000] [--repeat 5] [--processor]

Seconds are medians, and include normalising; the PyPI package (a C++ parser of VNN-LIB 2.0) only parses and checks
types. It is asked where it can be imported and can read the file. Files below --least bytes share one line. A
file may be gzip: then its text counts. --processor counts the time of the processor in place of the clock's, for a busy
machine. Peak memory is traced in a run of its own, above the text itself.
"""

from __future__ import annotations

import gzip
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.vnnlib import parse_property


@dataclass(frozen=True)
class Reading:
    """One file: bytes of text, seconds here and there (None: not read), peak memory in bytes, why it is refused."""

    name: str
    size: int
    seconds: float
    theirs: float | None
    peak: int
    refused: str | None


def peer() -> Callable[[str], Any] | None:
    """The parser of the PyPI package, if it is installed."""
    try:
        from vnnlib import parse_query_string
    except ImportError:
        return None
    return parse_query_string


def timed(read: Callable[[str], Any], text: str, repeat: int, clock: Callable[[], float]) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(repeat):
        begun = clock()
        read(text)
        seconds.append(clock() - begun)
    return statistics.median(seconds)


def measured(path: Path, repeat: int, clock: Callable[[], float], theirs: Callable[[str], Any] | None) -> Reading:
    """Both parsers on one file."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    refused, other = None, None

    def ours(content: str) -> None:
        nonlocal refused
        try:
            parse_property(content)
        except InputError as error:
            refused = str(error)

    seconds = timed(ours, text, repeat, clock)
    tracemalloc.start()
    ours(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if theirs is not None:
        try:
            other = timed(theirs, text, repeat, clock)
        except Exception:  # whatever it raises, it cannot read the file
            other = None
    return Reading(path.name, len(text), seconds, other, peak, refused)


def row(one: Reading) -> list[str]:
    """A line of the table."""
    ratio = "-" if one.theirs is None else f"{one.seconds / one.theirs:.1f}"
    theirs = "-" if one.theirs is None else f"{one.theirs:.4f}"
    speed, memory = f"{one.size / one.seconds / 1e6:.1f}", f"{one.peak / max(one.size, 1):.0f}"
    return [one.name, f"{one.size:,}", f"{one.seconds:.4f}", speed, theirs, ratio, memory]


def main(
    corpus: Path,
    least: Annotated[int, typer.Option(help="Smaller files share one line.")] = 30_000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each, of which the median counts.")] = 5,
    processor: Annotated[bool, typer.Option("--processor", help="Time of the processor, not of the clock.")] = False,
) -> None:
    """Print the table, the summary of small files, and every refusal."""
    clock = time.process_time if processor else time.perf_counter
    theirs = peer()
    console, progress = Console(width=160), Console(stderr=True)
    begun = clock()
    parse_property("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (= X_0 0))(assert (<= Y_0 0))")
    console.print(f"first property of the process (grammar and lark loaded): {clock() - begun:.3f} s")
    paths = sorted(path for path in corpus.rglob("*.vnnlib*") if path.is_file())
    found = [measured(path, repeat, clock, theirs) for path in track(paths, "reading", console=progress)]
    table = Table("file", "bytes", "s", "MB/s", "PyPI vnnlib, s", "ratio", "peak memory / text")
    for one in sorted(found, key=lambda one: -one.size):
        if one.size >= least:
            table.add_row(*row(one))
    console.print(table)
    small = [one for one in found if one.size < least]
    if small:
        slowest = max(small, key=lambda one: one.seconds)
        console.print(
            f"{len(small)} smaller files: median {statistics.median(one.seconds for one in small):.4f} s, "
            f"slowest {slowest.seconds:.4f} s ({slowest.name})"
        )
        both = [one.seconds / one.theirs for one in small if one.theirs]
        if both:
            console.print(f"  {len(both)} of them read by both, median ratio {statistics.median(both):.1f}")
    shared = [(one.seconds, one.theirs) for one in found if one.theirs and one.refused is None]
    if shared:
        ours_s, theirs_s = (sum(seconds) for seconds in zip(*shared, strict=True))
        console.print(
            f"{len(shared)} files read by both, all together: {ours_s:.3f} s, PyPI {theirs_s:.3f} s, "
            f"ratio {ours_s / theirs_s:.2f}"
        )
    console.print(f"{len(found)} files, {sum(one.refused is not None for one in found)} refused:")
    for one in found:
        if one.refused is not None:
            console.print(f"  {one.name}: {one.refused}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
