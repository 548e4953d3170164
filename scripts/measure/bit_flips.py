"""Flip single bits in the folders of finished jobs, give the command again, and see what comes out.

    python scripts/measure/bit_flips.py --flips 600

A small sweep, radii and uncertainty of benchmarks/hcas, in chunks, lie in three folders. Each flip changes one bit of
one file, drawn uniformly from all bits of all files; the job is then done again in a copy of the folder.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from bnn_vnnlib import InputError
from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.sweeps import Bounding, Pair, Radii, Reading, Source, make_inputs, make_table, radii, sweep, uncertainty

NET = Path(__file__).resolve().parents[2] / "benchmarks" / "hcas" / "onnx" / "hcas_hmc_125_pra0_tau20.onnx"
SAME, AGAIN, REFUSED = "the same", "the same, said that something is done again", "refused in one message"
CHANGED, RAW = "another result, without a word", "raw exception"
KINDS = ("sweep", "radius", "uncertainty")

Job = Callable[[Path, Callable[[Any], None]], Arrays]


def jobs() -> dict[str, Job]:
    """Each takes a folder and what watches its progress, and returns the columns of its result."""
    rng = np.random.default_rng(0)
    x, label = rng.uniform(-0.5, 0.5, (12, 3)), rng.integers(0, 5, 12)
    table = make_table({"lower": x - 0.001, "upper": x + 0.001, "label": label})
    inputs, net = make_inputs({"x": x[:4]}), Source(NET)
    how, size = Bounding(tau_safe=0.7, tau_unsafe=0.7), Radii(0.1, 0.05)
    return {
        "sweep": lambda out, watch: sweep([Pair(net, table)], how, out=out, chunk=3, watch=watch).columns,
        "radius": lambda out, watch: radii(net, inputs, size, out=out, chunk=2, watch=watch).columns,
        "uncertainty": lambda out, watch: (
            uncertainty(net, inputs, [0.001, 0.01], Reading(quick=True), out=out, chunk=2, watch=watch).columns
        ),
    }


def experiment(
    folder: Path, flips: int, seed: int, kinds: Sequence[str] = KINDS, inside: str = "."
) -> dict[str, Counter[str]]:
    """{job: how often each outcome}, of so many flips in all.

    Parameters
    ----------
    folder : to work in
    kinds : of jobs
    inside : the part of each job's folder in which bits are flipped
    """
    known, rng = jobs(), random.Random(seed)  # noqa: S311 (no secrets)
    whole = {kind: known[kind](folder / kind, lambda _: None) for kind in kinds}
    bits = [(kind, path.relative_to(folder / kind), 8 * path.stat().st_size)
            for kind in kinds for path in sorted((folder / kind / inside).rglob("*")) if path.is_file()]  # fmt: skip
    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for kind, path, size in rng.choices(bits, [size for _, _, size in bits], k=flips):
        copy = folder / "copy"
        shutil.copytree(folder / kind, copy)
        data, bit = bytearray((copy / path).read_bytes()), rng.randrange(size)
        data[bit // 8] ^= 1 << bit % 8
        (copy / path).write_bytes(data)
        found[kind][_outcome(known[kind], copy, whole[kind])] += 1
        shutil.rmtree(copy)
    return found


def _outcome(job: Job, folder: Path, whole: Arrays) -> str:
    seen: list[Any] = []
    try:
        columns = job(folder, seen.append)
    except InputError:
        return REFUSED
    except Exception:
        return RAW
    if columns.keys() != whole.keys() or not all(_equal(columns[name], whole[name]) for name in whole):
        return CHANGED
    return AGAIN if seen[0].redone else SAME


def _equal(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def main(flips: int = 600, seed: int = 0) -> None:
    """Print how often each outcome."""
    with tempfile.TemporaryDirectory() as folder:
        found = experiment(Path(folder), flips, seed)
    for kind, counts in found.items():
        print(kind, dict(counts))
    total = sum(found.values(), Counter[str]())
    print("all", {name: total[name] for name in (SAME, AGAIN, REFUSED, CHANGED, RAW)})


if __name__ == "__main__":
    typer.run(main)
