"""Two networks in differences: the graph says what it claims, and the bounds hold at attacked weights and inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch

from bnn_vnnlib import Model
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import Ranges
from bnn_vnnlib.model import Network, sample
from bnn_vnnlib.network.evaluate import FUNCTIONS, evaluate
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.network.nodes import GAPS, Gap, Known
from bnn_vnnlib.network.pairs import in_differences, may_change
from support.attack import Falsifier
from support.networks import Builder, dense_network
from support.pairs import COUPLINGS, boxes_of, pair
from support.zoo import GRAPHS

METHODS: tuple[Literal["interval", "linear"], ...] = ("interval", "linear")
EXACT = [name for name in GRAPHS if "slack" not in name]  # a slack stands for one number, whatever reads it
ATTACKED = [(name, "same") for name in EXACT if "alone" not in name and not name.startswith("difference_itself")]
ATTACKED += [
    (name, coupling)
    for name in ("residual", "tied", "several", "scalar_output", "deep_conv", "linear_shift_inside", "conv_bias_inside",
                 "scale_full_inside", "constant_sum_inside", "tanh_inside", "product_inside", "max_inside")
    for coupling in ("independent", "noise")
]  # fmt: skip


def seed_of(name: str) -> int:
    return sum(map(ord, name))


def both(name: str, coupling: str) -> tuple[Model, Model]:
    """The product, and the same in differences, x_g anywhere."""
    joined = pair(GRAPHS[name](), coupling, np.random.default_rng(seed_of(name)))
    n = joined.network.signature.input_size // 2
    apart = in_differences(joined, (np.full(n, -np.inf), np.full(n, np.inf)))
    assert apart is not None
    return joined, apart


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("name", [name for name in GRAPHS if "alone" not in name])
def test_both_graphs_say_the_same(name: str, coupling: str) -> None:
    """Of drawn weights, each copy computes what its network does, and the third output is the difference."""
    joined, apart = both(name, coupling)
    rng = np.random.default_rng(seed_of(name) + 1)
    n, m = (size // 2 for size in (joined.network.signature.input_size, joined.network.signature.output_size))
    x, d = (torch.as_tensor(rng.normal(size=(3, n)) * size) for size in (1.0, 0.3))
    drawn = {}
    if apart.posterior is not None:  # there are weights
        drawn = sample(apart.network, apart.posterior, 4, torch.Generator().manual_seed(0))
    found = evaluate(apart.network, torch.cat([x, d], -1), drawn)
    first, second = evaluate(joined.network, torch.cat([x, x - d], -1), sampled_as(joined, apart, drawn)).split(m, -1)
    torch.testing.assert_close(found, torch.cat([first, second, first - second], -1), rtol=1e-9, atol=1e-9)


def sampled_as(joined: Model, apart: Model, drawn: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of the product that a draw in differences stands for, where those are mean and noise."""
    names = [] if joined.posterior is None else names_of(joined.posterior)
    return {
        name: drawn[name] if name in drawn else torch.as_tensor(joined.network.tensors[name]) + drawn[f"{name} noise"]
        for name in names
    }


@pytest.mark.parametrize(("name", "coupling"), ATTACKED)
def test_attacked_weights_and_inputs_never_contradict(name: str, coupling: str) -> None:
    network = (apart := both(name, coupling)[1]).network
    rng = np.random.default_rng(seed_of(name) + 2)
    n, m = network.signature.input_size // 2, network.signature.output_size // 3
    lower = torch.as_tensor(rng.normal(size=(1, 2 * n)))
    upper = lower + torch.as_tensor(0.5 * rng.random((1, 2 * n)))
    lower[:, n:], upper[:, n:] = torch.as_tensor([[-0.1], [0.3]]) * torch.as_tensor(rng.random((2, n)))
    C = torch.as_tensor(rng.normal(size=(1, 2, 3 * m)))
    C[:, 0, : 2 * m] = 0.0  # a row in differences alone
    G = torch.as_tensor(rng.normal(size=(1, 2, 2 * n))) * torch.tensor([[[0.0], [1.0]]])
    weights = boxes_of(apart, (1.5,))
    falsifier = Falsifier(network, weights, lower, upper, C, G)
    falsifier.search(rng)
    for method in METHODS:
        falsifier.check(Engine(network, method).rows(weights, lower, upper, C, G, forms=True))


def test_equal_inputs_of_equal_networks_have_no_difference() -> None:
    """d = 0 exactly: nothing is rounded on the way, in intervals."""
    apart = both("deep_conv", "same")[1]
    n = apart.network.signature.input_size // 2
    zero, one = torch.zeros(1, 1, n, dtype=torch.float64), torch.ones(1, 1, n, dtype=torch.float64)
    box = Interval(torch.cat([-one, zero], -1), torch.cat([one, zero], -1))
    last = Engine(apart.network, "interval").ranges(boxes_of(apart), box).values[apart.network.outputs[-1]]
    assert float(last.magnitude.max()) < 1e-290


@pytest.mark.parametrize("kind", ["relu", "tanh", "sigmoid", "softplus"])
def test_differences_are_tighter_than_the_product(kind: str) -> None:
    """Of d in [0, 0.05] the range is several times narrower than that of two copies."""
    joined = pair(dense_network((3, 16, 16, 2), kind, seed=1), "same", np.random.default_rng(0))
    apart = in_differences(joined, (np.full(3, -np.inf), np.full(3, np.inf)))
    x = torch.full((1, 3), -0.5, dtype=torch.float64), torch.full((1, 3), 0.5, dtype=torch.float64)
    d = torch.zeros(1, 3, dtype=torch.float64), torch.full((1, 3), 0.05, dtype=torch.float64)
    unit = torch.eye(2, dtype=torch.float64)
    rows = torch.cat([torch.zeros(2, 4, dtype=torch.float64), unit], -1)[None]
    mine = Engine(apart.network).rows(boxes_of(apart), torch.cat([x[0], d[0]], 1), torch.cat([x[1], d[1]], 1), rows)
    box = torch.cat([x[0], x[0] - 0.05], 1), torch.cat([x[1], x[1]], 1)
    theirs = Engine(joined.network).rows(boxes_of(joined), *box, torch.cat([unit, -unit], -1)[None])
    assert bool((mine.lower > theirs.lower / 3).all())
    assert any(isinstance(node, Gap) for node in apart.network.nodes)


def test_known_ranges_stop_a_walk() -> None:
    """x_g is kept where the question keeps it, also where x_f - d would leave it."""
    joined = pair(GRAPHS["identity"](), "same", np.random.default_rng(0))
    apart = in_differences(joined, (np.full(3, -0.25), np.full(3, np.inf)))
    assert any(isinstance(node, Known) for node in apart.network.nodes)
    box = torch.tensor([[0.0] * 3 + [0.0] * 3], dtype=torch.float64), torch.ones(1, 6, dtype=torch.float64)
    rows = torch.zeros(1, 3, 9, dtype=torch.float64)
    rows[0, :, 3:6] = torch.eye(3)
    for method in METHODS:
        found = Engine(apart.network, method).rows(boxes_of(apart), *box, rows).lower[0, 0]
        torch.testing.assert_close(found, torch.full((3,), -0.25, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", GAPS)
def test_lines_of_a_gap_hold_at_sampled_places(kind: str) -> None:
    """On d of one sign they go through 0; on d of both signs they lie around every sampled f(x) - f(x - d)."""
    from bnn_vnnlib.bounds.activations import ACTIVATIONS
    from bnn_vnnlib.bounds.linear import gap_lines

    rng = np.random.default_rng(seed_of(kind))
    alpha = {"clip": (-0.5, 0.75), "leaky_relu": 0.1, "gelu": 0.7}.get(kind, 0.0)
    node = Gap("gap", (0, 1, 2, 3, 4), (40,), kind, alpha)
    x = torch.as_tensor(np.sort(rng.normal(size=(2, 1, 1, 40)) * 2, 0))
    d = torch.as_tensor(np.sort(rng.normal(size=(2, 1, 1, 40)), 0))
    y = torch.stack([x[0] - d[1], x[1] - d[0]])
    values = {i: Interval(*ends) for i, ends in enumerate((x, y, d))}
    lines_of = {3 + i: ACTIVATIONS[kind].lines(alpha, *ends) for i, ends in enumerate((x, y))}
    walk = SimpleNamespace(ranges=Ranges(values, {}, lines_of))
    lines = gap_lines(node, walk).lines
    share = torch.as_tensor(rng.random((2, 500, 1, 1, 40)))
    at, gap = x[0] + share[0] * (x[1] - x[0]), d[0] + share[1] * (d[1] - d[0])
    function = FUNCTIONS[kind]
    value = function(alpha, at) - function(alpha, at - gap)
    assert bool((lines.lower_slope * gap + lines.lower_intercept <= value + 1e-12).all())
    assert bool((value <= lines.upper_slope * gap + lines.upper_intercept + 1e-12).all())
    one_sign = (d[0] >= 0) | (d[1] <= 0)
    assert bool(one_sign.any())
    assert not bool(lines.upper_intercept[one_sign].any())
    assert bool(lines.upper_intercept[~one_sign].any())


def of_parts() -> Network:
    """x_0 + x_1, x_0 + x_2, x_0 x_1, x_0 x_2."""
    b = Builder(3)
    x = b.input(1, 3)
    first, second = b.select(x, [[0, 0]]), b.select(x, [[1, 2]])
    return b.network(b.concat(b.sum(first, second), b.product(first, second), axis=1))


@pytest.mark.parametrize("name", [*GRAPHS, "of parts"])
def test_outputs_without_a_path_do_not_change(name: str) -> None:
    """Of every input in turn: an output that changes at some of 50 points is said to be able to."""
    joined = pair({**GRAPHS, "of parts": of_parts}[name](), "same", rng := np.random.default_rng(seed_of(name)))
    network, n = joined.pair.first.network, joined.network.signature.input_size // 2
    weights = sample(network, joined.pair.first.posterior, 1, torch.Generator().manual_seed(0))
    for k in range(n):
        x = torch.as_tensor(rng.normal(size=(50, n)))
        y = x.clone()
        y[:, k] += torch.as_tensor(rng.normal(size=50))
        changed = (evaluate(network, x, weights) != evaluate(network, y, weights)).reshape(50, -1).any(0).numpy()
        assert (may_change(joined, np.arange(n) == k) >= changed).all()
