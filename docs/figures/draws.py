"""The figure of statistical.md: python docs/figures/draws.py"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from bnn_vnnlib.martingale import failing, lower_bounds

mpl.rcParams["svg.hashsalt"] = "figures"
truth, threshold, delta = 0.98, 0.95, failing(0.999999, 2)
safe = np.cumsum(np.random.default_rng(3).random(3000) < truth)
count = np.unique(np.round(np.logspace(0, np.log10(len(safe)), 150)).astype(int))
ones = safe[count - 1]
lower = np.maximum.accumulate(lower_bounds(np.stack([count - ones, ones], 1), delta))
upper = np.minimum.accumulate(1 - lower_bounds(np.stack([ones, count - ones], 1), delta))
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
ax.fill_between(count, lower, upper, color="#d1e5f0")
ax.semilogx(count, lower, color="#2166ac", label="proved, with confidence 0.999999")
ax.semilogx(count, upper, color="#2166ac")
ax.axhline(truth, color="#b2182b", linewidth=1, label="the truth, 0.98")
ax.axhline(threshold, color="black", linewidth=0.8, linestyle="--", label="threshold, 0.95")
at = count[np.argmax(lower >= threshold)]
ax.plot([at], [threshold], "o", color="#2166ac", markersize=4)
ax.set(xlim=(1, len(safe)), ylim=(0, 1.03), xlabel="networks drawn and verified", ylabel="bounds on P_safe")
ax.legend(loc="center right", frameon=False, fontsize=8)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
