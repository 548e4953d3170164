"""Digits, from training in torch to a certificate: how does the certified share fall as the images may change more?

    python docs/gallery/digits.py [FOLDER]

Each weight gets a Gaussian, fitted by variational inference ("Bayes by backprop"). For each radius, and each of forty
test images, P_safe is bounded: the probability that a drawn network classifies every image within that radius rightly.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from bnn_vnnlib import certify

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
log_sd = {name: torch.full_like(weight, -5.0).requires_grad_() for name, weight in net.named_parameters()}
optimiser = torch.optim.Adam([*net.parameters(), *log_sd.values()], lr=0.01)
for _ in range(400):
    rows = torch.randint(0, 1400, (128,))
    drawn = {name: w + log_sd[name].exp() * torch.randn_like(w) for name, w in net.named_parameters()}
    loss = nn.functional.cross_entropy(torch.func.functional_call(net, drawn, x[rows]), y[rows])
    for name, w in net.named_parameters():  # divergence from the prior N(0, 0.1), with the weight 0.001 / 1400
        ratio = log_sd[name].exp() / 0.1
        loss = loss + 0.001 / 1400 * (ratio**2 / 2 + (w / 0.1) ** 2 / 2 - ratio.log()).sum()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

posterior = {name: value.exp() for name, value in log_sd.items()}
radii = [0.0, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06]
proved, failed = [], []
for radius in radii:
    result = certify(net, x[1400:1440], y[1400:1440], radius, posterior=posterior, clip=(0, 1))
    proved.append(100 * float((result.verdicts == "unsat").mean()))
    failed.append(100 * float((result.verdicts == "sat").mean()))
    print(f"radius {radius}\n{result.summary()}\n")
    if radius == 0.04:
        result.plot().figure.savefig(OUT / "digits_bounds.svg")

# P_safe falls as the radius grows. So what is proved at one radius holds at all smaller ones, and what fails at one
# radius fails at all larger ones: between the radii that were asked, the shares are steps.
figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
ax.fill_between(radii, 0, 100, color="#cccccc", label="open")
ax.fill_between(radii, 0, proved, step="pre", color="#1b7837", label="proved: P_safe ≥ 0.95")
ax.fill_between(
    radii, [100 - share for share in failed], 100, step="post", color="#b2182b", label="proved: P_safe < 0.95"
)
ax.set(xlabel="largest change of a pixel", ylabel="test images in %", xlim=(0, radii[-1]), ylim=(0, 100))
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
figure.savefig(OUT / "digits.svg")
