"""The figure of bounds.md: python docs/figures/intercept.py"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

mpl.rcParams["svg.hashsalt"] = "figures"
low, high, slope = -1.0, 3.0, 0.3
z = np.linspace(low, high, 400)
root = np.arctanh(np.sqrt(1 - slope))  # tanh' = 1 - tanh^2
candidates = np.clip([low, high, -root, root], low, high)
intercept = float((np.tanh(candidates) - slope * candidates).min())
at = float(candidates[(np.tanh(candidates) - slope * candidates).argmin()])
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
ax.plot(z, np.tanh(z), color="#b2182b", label="f = tanh")
ax.plot(z, slope * z, color="#999999", linestyle=":", label="slope s through 0")
ax.plot(z, slope * z + intercept, color="#2166ac", label="line s z + t below f")
ax.plot([at], [np.tanh(at)], "o", color="#2166ac", markersize=4)
ax.set(xlim=(low - 0.1, high + 0.1), yticks=[])
ax.set_xticks([low, high], ["l", "u"])
ax.legend(loc="lower right", frameon=False, fontsize=8)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
