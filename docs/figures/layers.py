"""The figure of decision.md: python docs/figures/layers.py"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import beta

mpl.rcParams["svg.hashsalt"] = "figures"
levels = np.array([0.15, 0.35, 0.55, 0.75, 0.9])
v = np.linspace(0, 1, 300)
truth = beta(4, 1.8)
proved = truth.sf(levels) * 0.93
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
ax.fill_between(v, truth.sf(v), color="#fddbc7", label="area: the expectation")
for low, high, height in zip([0.0, *levels[:-1]], levels, proved, strict=True):
    ax.fill_between([low, high], height, color="#4393c3", alpha=0.8, label="area: the bound" if low == 0 else None)
ax.plot(v, truth.sf(v), color="#b2182b", label="P(softmax ≥ v)")
ax.plot(levels, proved, "o", color="#2166ac", markersize=4, label="proved at five levels")
ax.set(xlim=(0, 1), ylim=(0, 1.05), xlabel="level v", ylabel="probability")
ax.legend(loc="lower left", frameon=True, fontsize=8)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
