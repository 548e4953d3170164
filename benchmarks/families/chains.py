"""Samples of the posterior by Hamiltonian Monte Carlo: the No-U-Turn Sampler of NumPyro, on the CPU.

The posterior itself, without temperature and robust likelihood: prior N(0, s0^2 I), categorical or Gaussian likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from networks import Architecture
from splits import Split


@dataclass(frozen=True)
class Chain:
    """`warmup` steps that adapt it, then `kept` samples, every `thinning`-th step; a step has at most 2^depth moves."""

    points: int = 1000
    warmup: int = 150
    kept: int = 16
    thinning: int = 4
    depth: int = 6


def draw_samples(
    architecture: Architecture,
    split: Split,
    prior_sd: float,
    noise_sd: float,
    chain: Chain,
    begin: dict[str, torch.Tensor],
    seed: int,
) -> dict[str, torch.Tensor]:
    """{name: (kept, *shape)} for a dense architecture, given the first `points` of a shuffled training part.

    The chain begins at the weights `begin`, which spares it the way from the prior to the posterior.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    if any(layer.kind != "dense" for layer in architecture.layers):
        raise ValueError(f"{architecture.name}: only dense layers are sampled")
    rows = np.random.default_rng(seed).permutation(len(split.train_x))[: chain.points]
    x, y = jnp.asarray(split.train_x[rows], jnp.float32), jnp.asarray(split.train_y[rows])
    activate = jax.nn.relu if architecture.activation == "Relu" else jnp.tanh
    start = {name: jnp.asarray(tensor.numpy()) for name, tensor in begin.items()}

    def model() -> None:
        weights: dict[str, Any] = {
            name: numpyro.sample(name, dist.Normal(0.0, prior_sd).expand(value.shape).to_event(value.ndim))
            for name, value in start.items()
        }
        value = x
        for layer in architecture.layers:
            if layer is not architecture.layers[0]:
                value = activate(value)
            value = value @ weights[f"{layer.name}_weight"].T + weights[f"{layer.name}_bias"]
        if architecture.likelihood == "categorical":
            numpyro.sample("y", dist.Categorical(logits=value), obs=y)
        else:
            numpyro.sample("y", dist.Normal(value[:, 0], noise_sd), obs=y)

    sampler = MCMC(
        NUTS(model, max_tree_depth=chain.depth, init_strategy=numpyro.infer.init_to_value(values=start)),
        num_warmup=chain.warmup,
        num_samples=chain.kept * chain.thinning,
        thinning=chain.thinning,
    )
    sampler.run(jax.random.PRNGKey(seed))
    drawn = sampler.get_samples()
    return {name: torch.from_numpy(np.array(drawn[name], np.float32)) for name in start}
