"""Airborne collision avoidance: a map of where the advice of a Bayesian network is certified.

    python docs/gallery/collision_avoidance.py [FOLDER]

The network is that of benchmarks/hcas: from distance, bearing and heading of an intruder to a score of each of five
advisories. For each square of distance and bearing (the heading fixed) the decision is bounded over the whole square,
and the map shows which advisory is certified to have the best expected score.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from bnn_vnnlib import read_model, verify_batch

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
MODEL = Path(__file__).resolve().parents[2] / "benchmarks" / "hcas" / "onnx" / "hcas_vi_125_pra0_tau20.onnx"
model = read_model(MODEL)
SQUARES = 24
edges = np.linspace(-0.5, 0.5, SQUARES + 1)
heading = 0.0
corner = np.stack(np.meshgrid(edges[:-1], edges[:-1]), -1).reshape(-1, 2)
lower = np.column_stack([corner, np.full(len(corner), heading)])
upper = np.column_stack([corner + edges[1] - edges[0], np.full(len(corner), heading)])
result = verify_batch(model, lower, upper, query="decision", timeout=60)
count = result.lower.shape[1]
rivals = np.stack([np.delete(result.upper, k, axis=1).max(1) for k in range(count)], 1)
best = np.where((result.lower > rivals).any(1), (result.lower > rivals).argmax(1), count)
share = float((best < count).mean())
print(f"{len(lower)} squares in {result.seconds:.1f} s; an advisory is certified in {100 * share:.1f} %")

names = ["clear of conflict", "weak left", "weak right", "strong left", "strong right", "none certified"]
colours = ["#d9ef8b", "#92c5de", "#f4a582", "#2166ac", "#b2182b", "#ffffff"]
figure, ax = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
ax.pcolormesh(edges, edges, best.reshape(SQUARES, SQUARES), cmap=plt.matplotlib.colors.ListedColormap(colours),
              vmin=-0.5, vmax=count + 0.5, rasterized=True)  # fmt: skip
handles = [
    plt.matplotlib.patches.Patch(facecolor=c, edgecolor="#888888", label=n) for c, n in zip(colours, names, strict=True)
]
ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
ax.set(xlabel="distance of the intruder (scaled)", ylabel="its bearing (scaled)", aspect="equal")
figure.savefig(OUT / "collision_avoidance.svg", dpi=150)
