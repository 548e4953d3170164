"""The figure of robustness.md: python docs/figures/sums.py"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

mpl.rcParams["svg.hashsalt"] = "figures"
count = np.unique(np.round(np.logspace(0, 3, 60)))
distance = 4.0  # of the row's mean from the threshold, in deviations of the whole sum: the same for every count
margin = distance / np.sqrt(count)  # a box refutes the row while count weights at their ends move it by no more
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
ax.semilogx(count, np.full_like(count, norm.cdf(distance)), color="#2166ac", label="tail of the sum (here the truth)")
ax.semilogx(count, (1 - 2 * norm.sf(margin)) ** count, color="#b2182b", label="largest safe box around the mean")
ax.set(xlim=(1, 1000), ylim=(0, 1.05), xlabel="number of weights in the row", ylabel="proved of P_safe")
ax.legend(loc="center right", frameon=False, fontsize=8)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
