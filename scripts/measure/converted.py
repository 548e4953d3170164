"""Benchmarks of deterministic networks, converted with smaller and smaller relative standard deviations.

    python scripts/measure/converted.py FOLDER --likelihood gaussian --timeout 8 [--relative-sd 1e-3 --relative-sd 1e-6]

FOLDER is a benchmark (instances.csv and its files; instances whose files are missing are left out). For each instance:
the deterministic verdict, then the bounds on P_safe. As the deviations vanish, P_safe tends to 1 or 0.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from bnn_vnnlib import Query, read_model, read_property, verify
from bnn_vnnlib.benchmarks import read_benchmarks
from bnn_vnnlib.display import interval
from bnn_vnnlib.model.network import Likelihood
from bnn_vnnlib.model.posterior import checked_likelihood
from bnn_vnnlib.posteriors.benchmark import convert_benchmark
from bnn_vnnlib.posteriors.convert import Stated
from bnn_vnnlib.posteriors.stated import Spread


def main(
    folder: Path,
    likelihood: str = "gaussian",
    timeout: float = 8,
    relative_sd: Annotated[list[float] | None, typer.Option()] = None,
) -> None:
    """Print a line for each instance."""
    torch.set_num_threads(1)
    console = Console(width=200)
    chosen: Likelihood = checked_likelihood(likelihood) or "gaussian"
    with tempfile.TemporaryDirectory() as name:
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


if __name__ == "__main__":
    typer.run(main)
