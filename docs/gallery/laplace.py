"""A Laplace approximation: how many networks drawn from it are right everywhere in a small square?

    python docs/gallery/laplace.py [FOLDER]

laplace-torch (`pip install laplace-torch`) fits a Gaussian over the last layer. For each square of the plane the
map shows the lower bound on P_safe: the probability that a drawn network gives one class, that of the mean network, in
the whole square.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bnn_vnnlib import certify
from bnn_vnnlib.adapters import from_laplace

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
torch.manual_seed(0)
x = torch.cat([torch.randn(60, 2) * 0.6 + shift for shift in (torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.5]))])
y = torch.arange(2).repeat_interleave(60)
net = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 2))
optimiser = torch.optim.Adam(net.parameters(), 0.05, weight_decay=1e-3)
for _ in range(150):
    optimiser.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimiser.step()

la = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="full")
la.fit(DataLoader(TensorDataset(x, y), batch_size=60))
la.optimize_prior_precision(method="marglik")
adapted = from_laplace(la, x[:10])
print(adapted.agreement)  # what laplace-torch draws, and what is drawn from the posterior taken over, agree

SQUARES = 20
edges = np.linspace(-3, 3, SQUARES + 1)
half = (edges[1] - edges[0]) / 2
middle = np.stack(np.meshgrid(edges[:-1] + half, edges[:-1] + half), -1).reshape(-1, 2)
result = certify(adapted, middle, eps=half, timeout=60)
print(result.summary())

figure, ax = plt.subplots(figsize=(6.0, 4.8), layout="constrained")
shown = ax.pcolormesh(
    edges, edges, result.lower.reshape(SQUARES, SQUARES), cmap="viridis", vmin=0, vmax=1, rasterized=True
)
for k, colour in enumerate(["white", "#b2182b"]):
    ax.scatter(*x[y == k].T, s=9, color=colour, edgecolor="black", linewidth=0.4)
figure.colorbar(shown, label="lower bound on P_safe")
ax.set_aspect("equal")
figure.savefig(OUT / "laplace.svg", dpi=150)
