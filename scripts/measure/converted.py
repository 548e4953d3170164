"""Benchmarks of deterministic networks, converted with smaller and smaller relative standard deviations.

    python scripts/measure/converted.py FOLDER --likelihood gaussian --timeout 8 [--relative-sd 1e-3 --relative-sd 1e-6]

    python scripts/measure/converted.py FOLDER --across 1_1 --across 2_9

FOLDER is a benchmark (instances.csv and its files; instances whose files are missing are left out). For each instance:
the deterministic verdict, then the bounds on P_safe. As the deviations vanish, P_safe tends to 1 or 0. With --across,
the instances are all pairs of a network whose name holds one of these texts and a property in FOLDER.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from bnn_vnnlib import Query, read_model, read_property, verify
from bnn_vnnlib.display import interval
from bnn_vnnlib.files.benchmarks import read_benchmarks
from bnn_vnnlib.network.families import checked_likelihood
from bnn_vnnlib.posteriors.benchmark import convert_benchmark
from bnn_vnnlib.posteriors.convert import Spread, Stated
from bnn_vnnlib.signature import Likelihood


def main(
    folder: Path,
    likelihood: str = "gaussian",
    timeout: float = 8,
    relative_sd: Annotated[list[float] | None, typer.Option()] = None,
    across: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Print a line for each instance."""
    torch.set_num_threads(1)
    console = Console(width=200)
    chosen: Likelihood = checked_likelihood(likelihood) or "gaussian"
    with tempfile.TemporaryDirectory() as name:
        if across:
            folder = crossed(folder, across, Path(name) / "pairs")
        targets = {}
        for sd in relative_sd or [1e-3, 1e-5, 1e-7]:
            targets[sd] = Path(name) / f"{sd:g}"
            recipe = Stated((Spread(sd, True),))
            convert_benchmark(folder, targets[sd], recipe, chosen, described=f"{sd}", skip_missing=True)
        tables = {sd: read_benchmarks([target]) for sd, target in targets.items()}
        for row, instance in enumerate(next(iter(tables.values()))):
            violation = read_property(instance.prop)
            cells = [f"{Path(instance.onnx).stem} {instance.prop.stem}"]
            for sd, table in tables.items():
                model = read_model(table[row].models[0][1])
                if len(cells) == 1:
                    plain = verify(model, violation, query=Query.DETERMINISTIC, timeout=timeout)
                    cells.append(plain.verdict.value)
                start = time.monotonic()
                result = verify(model, violation, timeout=timeout)
                bounds = "-" if result.p_safe is None else interval(result.p_safe)
                cells.append(f"{sd:g}: {result.verdict.value} {bounds} {time.monotonic() - start:.1f} s")
            console.print(" | ".join(cells), markup=False, highlight=False)


def crossed(source: Path, texts: list[str], target: Path) -> Path:
    """A benchmark of all pairs of some networks and all properties of another one."""
    target.mkdir()
    networks = sorted(path for path in source.glob("*.onnx") if any(text in path.name for text in texts))
    properties = sorted(source.glob("*.vnnlib"), key=lambda path: (len(path.name), path.name))
    for path in (*networks, *properties):
        shutil.copy(path, target)
    lines = [f"{network.name},{prop.name},116" for network in networks for prop in properties]
    (target / "instances.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    typer.run(main)
