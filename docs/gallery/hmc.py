"""Hamiltonian Monte Carlo: the predictive of a small network, sampled by NumPyro and bounded over whole intervals.

    python docs/gallery/hmc.py [FOLDER]

NumPyro (`pip install numpyro`) draws weights from the posterior of a regression. With the samples as the posterior, the
expected output is an average of finitely many networks, and its bounds over an interval of inputs come close to exact.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from torch import nn

from bnn_vnnlib import verify_batch
from bnn_vnnlib.adapters import from_samples

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
random = np.random.default_rng(0)
x = np.concatenate([random.uniform(-2, -0.5, 15), random.uniform(0.7, 2, 15)])[:, None].astype(np.float32)
y = (x[:, 0] ** 3 / 3 + random.normal(0, 0.2, 30)).astype(np.float32)


def model(x, y=None):
    w1 = numpyro.sample("w1", dist.Normal(0, 1).expand([1, 8]).to_event(2))
    b1 = numpyro.sample("b1", dist.Normal(0, 1).expand([8]).to_event(1))
    w2 = numpyro.sample("w2", dist.Normal(0, 1).expand([8, 1]).to_event(2))
    output = (jnp.tanh(x @ w1 + b1) @ w2)[:, 0]
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(output, 0.2), obs=y)


chain = MCMC(NUTS(model), num_warmup=200, num_samples=100, progress_bar=False)
chain.run(jax.random.PRNGKey(0), x, y)
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
names = {"w1": "0.weight", "b1": "0.bias", "w2": "2.weight"}
drawn = chain.get_samples()
adapted = from_samples(net, drawn, likelihood="gaussian", names=names, x=x)

edges = np.linspace(-3, 3, 61)
result = verify_batch(adapted.model, edges[:-1, None], edges[1:, None], query="decision")
print(f"100 networks, {len(edges) - 1} intervals in {result.seconds:.1f} s; "
      f"widest bounds {(result.upper - result.lower).max():.3f}")  # fmt: skip

fine = np.linspace(-3, 3, 300)[:, None]
lines = np.tanh(fine[None] @ drawn["w1"] + drawn["b1"][:, None]) @ drawn["w2"]
figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
ax.plot(fine, np.asarray(lines)[:30, :, 0].T, color="#bbbbbb", linewidth=0.5)
ax.stairs(result.upper[:, 0], edges, baseline=result.lower[:, 0], fill=True, color="#2166ac", zorder=2,
          label="certified bounds on the expected output")  # fmt: skip
ax.scatter(x, y, s=8, color="black", label="data", zorder=3)
ax.set(xlabel="input", ylabel="output", xlim=(-3, 3))
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
figure.savefig(OUT / "hmc.svg")
