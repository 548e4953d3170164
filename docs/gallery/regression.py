"""A regression with one input: certified bounds on its expected output, interval by interval, beside networks drawn.

    python docs/gallery/regression.py [FOLDER]

The last layer of a network gets the Gaussian posterior of a Bayesian linear regression, in closed form. Between the
data the expected output is bounded over whole intervals of the input: the steps enclose it everywhere, not at a grid.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from bnn_vnnlib import certify

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
torch.manual_seed(0)
x = torch.cat([torch.linspace(-3, -1, 8), torch.linspace(1, 3, 8)])[:, None]
y = torch.sin(2 * x) + 0.2 * torch.randn_like(x)
net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(1000):
    optimiser.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    optimiser.step()

with torch.no_grad():  # precision of the last layer's weights: features' products / noise + prior
    features = net[1](net[0](x)).double()
    variance = 1 / ((features**2).sum(0) / 0.2**2 + 1)
posterior = {"2.weight": variance.sqrt()[None]}

edges = torch.linspace(-4, 4, 61)
middles, half = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0]) / 2
result = certify(net, middles[:, None], eps=half, delta=10.0, posterior=posterior, query="decision")
widest = float((result.upper - result.lower).max())
print(result.summary(), f"widest bounds {widest:.3f}", sep="\n")

fine = torch.linspace(-4, 4, 400)[:, None]
figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
with torch.no_grad():
    for seed in range(20):
        torch.manual_seed(seed)
        weight = net[2].weight + posterior["2.weight"].float() * torch.randn(1, 30)
        line = net[1](net[0](fine)) @ weight.T + net[2].bias
        ax.plot(fine, line, color="#bbbbbb", linewidth=0.6, label="networks drawn" if seed == 0 else None)
ax.stairs(result.upper[:, 0], edges, baseline=result.lower[:, 0], fill=True, color="#2166ac", zorder=2,
          label="certified bounds on the expected output")  # fmt: skip
ax.scatter(x, y, s=8, color="black", label="data", zorder=3)
ax.set(xlabel="input", ylabel="output", ylim=(-3, 3), xlim=(-4, 4))
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
figure.savefig(OUT / "regression.svg")
