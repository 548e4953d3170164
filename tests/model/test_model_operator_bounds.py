"""Contract of every operator with bounds: no weights and no input in their boxes leave what intervals and linear
functions promise, for the graphs of `test_model_operators`, `test_model_operator_set` and `test_model_foreign`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_helpers import node
from test_model_foreign import CASES as FOREIGN
from test_model_operator_set import CASES as FURTHER
from test_model_operators import CASES, Case, ints, model_of, uncertain_names

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network, build_network, supported_operators
from bnn_vnnlib.network.evaluate import evaluate
from support.networks import random_rows

DRAWS = 24
# Operators whose results are known while the file is read, or that need an input of another kind.
WITHOUT_BOUNDS = {"Constant", "Shape"}
KINDS = ("interval", "linear")
# Covered elsewhere by tests of their own.
ALONE = [
    Case("cast", [node("Cast", "x", "c", to=11), node("Neg", "c")], element=np.float32),
    Case("resize", [node("Resize", "x - - s")], {"s": ints(1, 2, 10, 18)}, (1, 2, 5, 6), 19, element=np.float32),
    Case("swish", [node("Swish", "x", alpha=0.7)], opset=24),
]
ALL = {case.name: case for case in (*CASES, *FURTHER, *FOREIGN, *ALONE)}


def boxes_of(case: Case, network: Network, rng: np.random.Generator, size: float) -> WeightBoxes:
    """Two boxes of the weights that may carry a posterior; the radii of some entries, or of all, are 0."""
    names = [name for name in uncertain_names(case) if name in network.tensors]
    centers = {name: torch.as_tensor(np.array(tensor))[None] for name, tensor in network.tensors.items()}
    spreads = {}
    for name in names:
        shape = network.tensors[name].shape
        centers[name] = centers[name] + torch.as_tensor(0.1 * rng.normal(size=(2, *shape)))
        spreads[name] = torch.as_tensor(size * rng.random(shape) * (rng.random(shape) < 0.8))
    return WeightBoxes(centers, spreads, torch.ones(2 if names else 1, 1, dtype=torch.float64))


def drawn(rng: np.random.Generator, centre: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """DRAWS points of a box: the middle, then corners, then anything."""
    t = rng.uniform(-1, 1, size=(DRAWS, *centre.shape))
    t[1 : DRAWS // 2] = np.sign(t[1 : DRAWS // 2])
    t[0] = 0
    return centre + torch.as_tensor(t) * radius


@pytest.mark.parametrize("degenerate", ["nothing", "inputs", "weights"])
@pytest.mark.parametrize("name", ALL)
def test_bounds_hold(name: str, degenerate: str) -> None:
    case = ALL[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    network = build_network(model_of(case), uncertain_names(case))
    weights = boxes_of(case, network, rng, 0.0 if degenerate == "weights" else 0.1)
    n = network.signature.input_size
    middle, radius = torch.as_tensor(rng.normal(size=n)), torch.as_tensor(0.2 * rng.random(n))
    radius = torch.zeros(n, dtype=torch.float64) if degenerate == "inputs" else radius
    lower, upper = middle - radius, middle + radius
    C, G = random_rows(network, rng, 1, 2)
    found = {kind: Engine(network, kind).rows(weights, lower[None], upper[None], C, G).lower for kind in KINDS}
    for k in range(weights.count):
        x = torch.minimum(torch.maximum(drawn(rng, middle, radius), lower), upper)
        params = {
            key: drawn(rng, center[min(k, len(center) - 1)], weights.spreads.get(key, torch.zeros_like(center[0])))
            for key, center in weights.centers.items()
        }
        y = evaluate(network, x[:, None], params)[:, 0] if params else evaluate(network, x)
        values = y @ C[0].T + x @ G[0].T
        slack = 1e-9 * (1 + values.abs().max())
        for kind, bound in found.items():
            assert not torch.isnan(bound).any(), kind
            assert (values >= bound[k, 0] - slack).all(), (kind, (values - bound[k, 0]).min())


def test_every_operator_has_a_case() -> None:
    covered = {node.op_type for case in ALL.values() for node in case.nodes}
    assert set(supported_operators()) - covered - WITHOUT_BOUNDS == set()
