"""Count torch's operations in one pass of each method, by the function of ours that asks for them.

    python scripts/measure/calls.py [--batch 64] [--network 3-125-5]

Small networks are bound by this number; unlike a time it does not depend on what else the machine does. The passes are
those of `speed`. An operation is what reaches a kernel of torch: views count, a matrix product counts several times.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from speed import ours
from torch.utils._python_dispatch import TorchDispatchMode

import bnn_vnnlib

PACKAGE = str(Path(bnn_vnnlib.__file__).parent)


class Calls(TorchDispatchMode):
    """Counts operations by the innermost function of the package on the stack."""

    def __init__(self) -> None:
        super().__init__()
        self.by_function: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note who asks."""
        frame = sys._getframe(1)
        while not frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
            frame = frame.f_back
        self.by_function[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"] += 1
        return func(*args, **(kwargs or {}))


def main(batch: int = 64, network: str = "3-125-5") -> None:
    """Print a row for each function and the sums."""
    torch.set_num_threads(1)
    sizes = [int(size) for size in network.split("-")]
    counts = {}
    for name, run in ours(sizes, batch).items():
        run()  # what is kept between passes is made here
        with Calls() as calls:
            run()
        counts[name] = calls.by_function
    table = Table("function", *counts)
    for function, _ in sum(counts.values(), Counter()).most_common():
        table.add_row(function, *(str(found[function]) for found in counts.values()))
    table.add_row("all", *(str(found.total()) for found in counts.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
