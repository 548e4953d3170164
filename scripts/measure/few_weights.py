"""How close bounds come with four random weights: P_safe and the decision, on five graphs, points and boxes.

python scripts/measure/few_weights.py [SECONDS] ; processor seconds, one thread.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch

sys.path.insert(0, "tests")
time.monotonic = time.process_time

from bnn_vnnlib import verify_batch  # noqa: E402
from bnn_vnnlib.network.evaluate import evaluate  # noqa: E402
from bnn_vnnlib.network.families import sample  # noqa: E402
from bnn_vnnlib.network.network import GaussianDiagonal, Model, Network  # noqa: E402
from support import zoo  # type: ignore[import-not-found]  # noqa: E402
from support.networks import dense_network  # type: ignore[import-not-found]  # noqa: E402

GRAPHS = {
    "one layer of relu": lambda: dense_network((2, 5, 2), seed=5),
    "one layer of tanh": lambda: dense_network((2, 4, 2), "tanh", seed=3),
    "two layers of relu": lambda: dense_network((2, 4, 4, 2), seed=4),
    "residual": zoo.residual,
    "convolution": zoo.deep_conv,
}


def few(network: Network, deviation: float) -> GaussianDiagonal:
    """Four random weights, anywhere."""
    rng = np.random.default_rng(0)
    variances = {name: np.zeros_like(tensor) for name, tensor in network.tensors.items()}
    places = [(name, i) for name, tensor in network.tensors.items() for i in range(tensor.size)]
    for k in rng.permutation(len(places))[:4]:
        name, i = places[k]
        variances[name].reshape(-1)[i] = deviation**2
    return GaussianDiagonal(variances)


def main(seconds: float) -> None:
    """One line for each graph, deviation, radius and query."""
    torch.set_num_threads(1)
    for name, make in GRAPHS.items():
        for deviation in (0.1, 0.3):
            network = make()
            posterior = few(network, deviation)
            model = Model(network, posterior, "categorical", None, b"")
            x = 0.7 * np.random.default_rng(1).normal(size=(1, network.signature.input_size))
            drawn = sample(network, posterior, 20000, torch.Generator().manual_seed(0))
            y = evaluate(network, torch.tensor(x), drawn)[:, 0].numpy()
            row = np.zeros((1, y.shape[-1]))
            row[0, [0, -1]] = 1, -1
            violation = [[(row, np.array([np.quantile(y @ row[0], 0.3)]), np.array([False]))]]
            common: dict[str, Any] = {"goal": "bounds", "gap": 1e-3, "timeout": seconds}
            asked: list[tuple[str, dict[str, Any]]] = [
                ("probabilistic", {"properties": violation}),
                ("decision", {"likelihood": "categorical"}),
                ("decision", {"likelihood": "gaussian"}),
            ]
            for query, options in asked:
                begun = time.process_time()
                found = verify_batch(model, x, x, query=query, **options, **common)
                spent = time.process_time() - begun
                kind = query if query == "probabilistic" else f"{query}, {options['likelihood']}"
                gap = float((found.upper - found.lower).max())
                print(f"{name:20s} {deviation:4.1f}  {kind:24s} gap {gap:.5f}  {spent:5.1f} s", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
