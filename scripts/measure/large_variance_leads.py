"""What Hunter and Worsley's inequality would give instead of the union over rows, estimated.

    python scripts/measure/large_variance_leads.py FILE.npz [--points 0,1,2] [--scale 1] [--sampled 200000]

P(union of A_i) <= sum P(A_i) - sum over the edges of a tree of P(A_i and A_j). FILE as for large_variance.py; boxes are
points. Printed, from sampled networks: the share that keeps the class, 1 - the sum over rows, the same with the best
tree, and with the best star (one row joined with all others), whose joint failures share one row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from large_variance import network, outputs, question
from scipy.sparse import csgraph


def main(
    file: Path,
    points: Annotated[str, typer.Option()] = "0,1,2,3,4",
    scale: Annotated[float, typer.Option()] = 1.0,
    draws: Annotated[int, typer.Option("--sampled")] = 200_000,
) -> None:
    """Print one line a point."""
    torch.set_num_threads(1)
    stack, data = network(file, scale)
    for place in map(int, points.split(",")):
        x = torch.tensor(data[place])
        _, label = question(stack, x, 0.0)
        y = outputs(stack, x, draws)
        others = torch.arange(y.shape[1]) != label
        failed = (y[:, [label]] <= y[:, others]).double()
        joint = (failed.T @ failed / draws).numpy()
        single = joint.diagonal().copy()
        np.fill_diagonal(joint, 0.0)
        tree = -csgraph.minimum_spanning_tree(-joint).sum()
        union = 1 - single.sum()
        line = f"point {place} kept {float((failed.amax(1) == 0).double().mean()):.4f} sum of rows {union:.4f}"
        print(f"{line} tree {union + tree:.4f} star {union + joint.sum(1).max():.4f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
