"""The figure of large-variance.md: python docs/figures/ramp.py"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

mpl.rcParams["svg.hashsalt"] = "figures"
reach = 1.0  # both R and R~
v = np.linspace(-reach, reach, 100)
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
z = np.linspace(-2.2, 2.2, 400)
ax.plot(z, np.maximum(z, 0), color="#b2182b", label="relu")
for centre, colour in ((-0.6, "#92c5de"), (0.0, "#4393c3"), (0.6, "#2166ac")):
    slope = np.clip((centre + reach) / (2 * reach), 0, 1)
    intercept = max(max(centre + end, 0) - slope * end for end in (-reach, reach))
    ax.plot(centre + v, intercept + slope * v, color=colour, label=f"ζ = {centre:g}: slope a = {slope:g}")
    ax.plot([centre], [intercept], "o", color=colour, markersize=4)
ax.set(xlabel="input of the neuron, ζ + v with |v| ≤ R = 1", ylabel="output", xlim=(-2.2, 2.2))
ax.legend(loc="upper left", frameon=False, fontsize=8)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
