"""Compare every network under a folder with onnxruntime, and name those that are refused and what they block.

    python scripts/measure/networks.py CORPUS [--points 20] [--out networks.csv]

For each file: random inputs, the largest |ours - onnxruntime's| / max(1, max |y|), on the file as it is (float32) and
on a copy in float64 where onnxruntime has kernels for it. If CORPUS/expected/nns.csv and expected_results.csv are there
(operators of published networks; published instances), the share of instances whose network uses an operator that is
not supported is printed too: an estimate, because an operator may be supported and a use of it refused.
"""

from __future__ import annotations

import ast
import csv
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bnn_vnnlib.errors import InputError, ModelError
from bnn_vnnlib.model import Model, Replayer, model_from_proto
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.folding import FOLDABLE
from bnn_vnnlib.model.operators import supported_operators
from bnn_vnnlib.network.evaluate import evaluate
from doubled import doubled


@dataclass(frozen=True)
class Compared:
    """One file: relative differences (None: onnxruntime cannot run it), or why it is refused."""

    name: str
    single: float | None = None
    double: float | None = None
    refused: str | None = None


def difference(model: Model, points: int) -> float | None:
    """Largest difference to onnxruntime relative to max(1, max |y|); None if onnxruntime does not run the model."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (points, model.network.signature.input_size)).astype(np.float32).astype(np.float64)
    try:
        theirs = Replayer(model)(x)
    except ModelError:
        return None
    with torch.no_grad():
        ours = evaluate(model.network, torch.tensor(x), softmax=True).numpy()
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


def compared(path: Path, points: int) -> Compared:
    """Both comparisons, or the refusal."""
    try:
        proto = read_proto(path)[0]
        single = difference(model_from_proto(proto), points)
        return Compared(path.name, single, difference(model_from_proto(doubled(proto)), points))
    except InputError as error:
        return Compared(path.name, refused=str(error))


def blocked(expected: Path) -> tuple[Counter[str], Counter[str], int, int]:
    """Instances and networks by unsupported operator; instances blocked, and all whose operators are known."""
    known = {*supported_operators(), *FOLDABLE}
    missing: dict[tuple[str, str], set[str]] = {}
    with (expected / "nns.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            missing[row["benchmark"], row["onnx"]] = set(ast.literal_eval(row["node_types"])) - known
    instances: Counter[str] = Counter()
    stopped = total = 0
    with (expected / "expected_results.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            operators = missing.get((row["bench"], Path(row["onnx"]).name.removesuffix(".gz")))
            if operators is None:
                continue
            total += 1
            stopped += bool(operators)
            instances.update(operators)
    networks = Counter(operator for operators in missing.values() for operator in operators)
    return instances, networks, stopped, total


def main(
    corpus: Path,
    points: int = 20,
    out: Annotated[Path | None, typer.Option(help="A CSV file with a line for every network.")] = None,
) -> None:
    """Print the largest differences by folder, every refusal, and what is blocked."""
    torch.set_num_threads(1)
    console = Console(width=140)
    paths = sorted(path for path in corpus.rglob("*.onnx*") if path.is_file())
    groups: defaultdict[str, list[Compared]] = defaultdict(list)
    for path in track(paths, "comparing", console=Console(stderr=True)):
        groups[path.relative_to(corpus).parts[0]].append(compared(path, points))
    table = Table("folder", "networks", "float32", "float64", "without float64 kernels", "refused")
    for folder, found in sorted(groups.items()):
        read = [one for one in found if one.refused is None]
        double = [one.double for one in read if one.double is not None]
        table.add_row(
            folder,
            str(len(found)),
            f"{max((one.single for one in read if one.single is not None), default=float('nan')):.0e}",
            f"{max(double, default=float('nan')):.0e}",
            str(len(read) - len(double)),
            str(len(found) - len(read)),
        )
    console.print(table)
    everything = [one for found in groups.values() for one in found]
    single = max(one.single for one in everything if one.single is not None)
    double_ = max(one.double for one in everything if one.double is not None)
    console.print(f"{len(everything)} networks; largest difference {single:.1e} in float32, {double_:.1e} in float64")
    for one in everything:
        if one.refused is not None:
            console.print(f"refused: {one.name}: {one.refused}", markup=False, highlight=False, soft_wrap=True)
        elif one.single is None:
            console.print(f"onnxruntime does not run {one.name}")
    if (corpus / "expected" / "nns.csv").is_file():
        instances, networks, stopped, total = blocked(corpus / "expected")
        share = f"{stopped} of {total} published instances ({100 * stopped / max(total, 1):.1f} %)"
        console.print(f"{share} use an operator that is not supported:")
        for operator, count in networks.most_common():
            console.print(f"  {operator}: {count} networks, {instances[operator]} instances")
    if out is not None:
        with out.open("w", newline="") as stream:
            rows = [[one.name, one.single, one.double, one.refused] for one in everything]
            csv.writer(stream).writerows([["network", "float32", "float64", "refused"], *rows])


if __name__ == "__main__":
    typer.run(main)
