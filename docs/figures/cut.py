"""The figure of branching.md: python docs/figures/cut.py"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

mpl.rcParams["svg.hashsalt"] = "figures"
x = np.linspace(0, 1, 200)
row = 0.35 + 0.9 * x**1.5 + 0.12 * np.sin(9 * x)
slope = 0.85
least = float((row - slope * x).min())  # the largest t with slope x + t <= row(x)
line = slope * x + least
bound = 0.5
edge = (bound - least) / slope
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
ax.axvspan(edge, 1, color="#dddddd", label="cut off: the line exceeds b")
ax.plot(x, row, color="#b2182b", label="row r(x)")
ax.plot(x, line, color="#2166ac", label="minorant s·x + t")
ax.axhline(bound, color="black", linewidth=0.8, linestyle="--")
ax.plot([0], [least], "o", color="#2166ac", markersize=4)
ax.annotate("L", (0, least), (0.02, least - 0.1))
ax.annotate("b", (0, bound), (0.015, bound + 0.03))
ax.set(xlim=(0, 1), ylim=(-0.1, 1.5), xlabel="$x_j$ from $l_j$ to $u_j$", xticks=[0, edge, 1],
       xticklabels=["$l_j$", "$l_j + (b-L)/s_j$", "$u_j$"], yticks=[])  # fmt: skip
ax.legend(loc="upper left", frameon=False, fontsize=8)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
