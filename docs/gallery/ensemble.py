"""A deep ensemble on two half-moons: where is its averaged prediction certified, and where is it certified uncertain?

    python docs/gallery/ensemble.py [FOLDER]

Ten networks are a posterior of ten weight samples. Each small square of the plane is one box: bounds on the expected
probability of a class hold for every point in it, so the map has no gaps between the points that one would sample.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from bnn_vnnlib import verify_batch
from bnn_vnnlib.adapters import from_ensemble

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
rng = np.random.default_rng(0)
angle, label = rng.uniform(0, np.pi, 300), rng.integers(0, 2, 300)
moon = np.stack([np.cos(angle), np.sin(angle)], 1) * np.where(label, -1, 1)[:, None] + np.outer(label, [1.0, 0.5])
x = torch.tensor(moon + rng.normal(0, 0.15, moon.shape), dtype=torch.float32)
y = torch.tensor(label)

members = []
for seed in range(10):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.03)
    rows = torch.randint(0, 300, (300,))  # a bootstrap sample
    for _ in range(250):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    members.append(net)
model = from_ensemble(members, x[:20], likelihood="categorical").model

edges = np.linspace(-2.5, 3.5, 61)
lower = np.stack(np.meshgrid(edges[:-1], edges[:-1]), -1).reshape(-1, 2)
result = verify_batch(model, lower, lower + (edges[1] - edges[0]), query="decision")
certified = np.select(
    [result.lower[:, 0] > 0.9, result.lower[:, 1] > 0.9, (result.upper < 0.75).all(1)], [0, 1, 2], 3
).reshape(60, 60)
names = ["class 0: at least 0.9", "class 1: at least 0.9", "uncertain: no class above 0.75", "neither certified"]
print(
    f"{len(lower)} squares in {result.seconds:.1f} s:", dict(zip(names, np.bincount(certified.ravel()), strict=False))
)

colours = ["#92c5de", "#f4a582", "#fee08b", "#f0f0f0"]
figure, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
ax.pcolormesh(edges, edges, certified, cmap=plt.matplotlib.colors.ListedColormap(colours), vmin=-0.5, vmax=3.5,
              rasterized=True)  # fmt: skip
for k, colour in enumerate(["#053061", "#67001f"]):
    ax.scatter(*x[y == k].T, s=5, color=colour)
handles = [plt.matplotlib.patches.Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
ax.set_aspect("equal")
figure.savefig(OUT / "ensemble.svg", dpi=150)
