"""A Bayesian network beside its mean: what a deterministic verifier proves of the mean, and P_safe, on the same boxes.

    python docs/gallery/deterministic.py [FOLDER]

The digits of benchmarks/digits. The same box is asked about twice: the one network of the posterior means, as any
verifier of deterministic networks would, and P_safe, the probability that a drawn network is right in the whole box.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from bnn_vnnlib import certify

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
MODEL = Path(__file__).resolve().parents[2] / "benchmarks" / "digits" / "onnx" / "digits_vi_mlp.onnx"
images, labels = load_digits(return_X_y=True)
x, y = images[1500:1530] / 16, labels[1500:1530]

figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained", sharey=True)
for ax, radius in zip(axes, (0.05, 0.08), strict=True):
    mean = certify(MODEL, x, y, radius, clip=(0, 1), query="deterministic", timeout=30)
    drawn = certify(MODEL, x, y, radius, clip=(0, 1), timeout=30)
    print(f"radius {radius}: the mean network", mean.summary(), "drawn networks", drawn.summary(), sep="\n")
    order = np.lexsort((drawn.lower, drawn.upper))
    for place, k in enumerate(order):
        colour = {"unsat": "#1b7837", "sat": "#b2182b"}.get(str(mean.verdicts[k]), "#8c8c8c")
        ax.plot([place, place], [drawn.lower[k] - 0.004, drawn.upper[k] + 0.004], color=colour, linewidth=2.5)
    ax.axhline(0.95, color="black", linewidth=0.8, linestyle="--")
    ax.set(title=f"changes up to {radius}", xlabel="test images, sorted", ylim=(-0.03, 1.03))
axes[0].set_ylabel("bounds on P_safe")
lines = [plt.Line2D([], [], color=c, linewidth=2.5) for c in ("#1b7837", "#b2182b", "#8c8c8c")]
figure.legend(lines, ["mean network proved right", "mean network proved wrong", "mean network open"],
              loc="outside lower center", ncols=3, frameon=False)  # fmt: skip
figure.savefig(OUT / "deterministic.svg")
