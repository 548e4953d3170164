"""The linear method against its reference: McCormick planes in (w, z), then the minimum over the weights.

For w in [wl, wu] and z in [zl, zu] the product w z lies above wl z + zl w - wl zl and above wu z + zu w - wu zu, and
below wu z + zl w - wu zl and below wl z + zu w - wl zu (expand the products of the nonnegative distances to the ends).
A row takes, for every weight, one of the two planes on its side; what remains in w is then minimised over the box.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import Ranges
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.nodes import Activation, Linear, Shift
from support.networks import Builder, dense_network, point_weights, random_boxes, random_inputs, random_rows


def product_planes(
    a: Tensor, w: tuple[Tensor, Tensor], z: tuple[Tensor, Tensor], first: Tensor
) -> tuple[Tensor, Tensor]:
    """Coefficients over z and constant, below a W z for one row a (out); `first` chooses the plane of each weight."""
    (wl, wu), (zl, zu) = w, z
    a = a[:, None]
    use_lower_end = torch.where(a >= 0, first, ~first)
    over_z = torch.where(use_lower_end, wl, wu)  # the end of w that multiplies z
    over_w = torch.where(first, zl, zu).expand_as(over_z)  # the end of z that multiplies w
    left = a * over_w
    in_w = torch.minimum(left * wl, left * wu)
    return (a * over_z).sum(0), (in_w - a * over_z * over_w).sum()


def mccormick(
    network: Network, weights: WeightBoxes, ranges: Ranges, box: tuple[Tensor, Tensor], c: Tensor, g: Tensor,
    choose: np.random.Generator | bool,
) -> float:  # fmt: skip
    """Lower bound on c y + g x for a plain dense ReLU network, one weight box, one item, with the given ranges."""
    a, constant = c, c.new_zeros(())
    for position in range(len(network.nodes) - 1, 0, -1):
        node = network.nodes[position]
        if isinstance(node, Activation):
            lines = ranges.lines[position]
            pick = [part.flatten() for part in (lines.lower_slope, lines.upper_slope)]
            constant = constant + a.clamp(min=0) @ lines.lower_intercept.flatten()
            constant = constant + a.clamp(max=0) @ lines.upper_intercept.flatten()
            a = torch.where(a >= 0, a * pick[0], a * pick[1])
        elif isinstance(node, Shift):
            center = weights.centers[node.bias.source][0]
            radius = weights.scale[0, 0] * weights.spreads[node.bias.source]
            constant = constant + a @ center - a.abs() @ radius
        elif isinstance(node, Linear):
            center = weights.centers[node.weight.source][0]
            radius = weights.scale[0, 0] * weights.spreads[node.weight.source]
            z = ranges.values[node.inputs[0]]
            if isinstance(choose, bool):
                first = torch.full(center.shape, choose)
            else:
                first = torch.as_tensor(choose.random(center.shape) < 0.5)
            sides = (z.lower.flatten(), z.upper.flatten())
            a, more = product_planes(a, (center - radius, center + radius), sides, first)
            constant = constant + more
    a = a + g
    return (torch.where(a >= 0, a * box[0], a * box[1]).sum() + constant).item()


CHOICES = [True, False, np.random.default_rng(7)]


def problem(seed: int, depth: int, size: float) -> tuple[Network, WeightBoxes, Tensor, Tensor, Tensor, Tensor]:
    """A small dense ReLU network with boxes."""
    network = dense_network([3, *[4] * depth, 2], seed=seed)
    rng = np.random.default_rng(seed)
    weights = random_boxes(network, rng, 1, 1, size)
    return (network, weights, *random_inputs(network, rng, 1, size=1.0), *random_rows(network, rng, 1, 4))


@pytest.mark.parametrize("size", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_never_below_mccormick(depth: int, size: float) -> None:
    gains = []
    for seed in range(8):
        network, weights, lower, upper, C, G = problem(seed, depth, size)
        bounds = Engine(network)
        box = Interval(lower[None], upper[None])
        ranges = bounds.ranges(weights, box)
        form = bounds.rows(weights, lower, upper, C, G, forms=True).form
        found = form.minimum(box)[0, 0]
        for row in range(4):
            for choose in CHOICES:
                other = mccormick(network, weights, ranges, (lower[0], upper[0]), C[0, row], G[0, row], choose)
                assert found[row].item() >= other - 1e-9 * (1 + abs(other))
                gains.append(found[row].item() - other)
    assert max(gains) > 1e-3  # the comparison can tell the two apart


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_reference_is_right(depth: int) -> None:
    """Sound at samples, and the same as the engine where the weights are exact."""
    for seed in range(4):
        network, weights, lower, upper, C, G = problem(seed, depth, 0.2)
        rng = np.random.default_rng(seed)
        for exactly in (False, True):
            boxes = weights.scaled(torch.zeros(1, 1, dtype=torch.float64)) if exactly else weights
            box = Interval(lower[None], upper[None])
            ranges = Engine(network).ranges(boxes, box)
            form = Engine(network).rows(boxes, lower, upper, C, G, forms=True).form
            x = lower + torch.as_tensor(rng.random((300, 1, 3))) * (upper - lower)
            params = {
                name: c[0]
                + torch.as_tensor(rng.uniform(-1, 1, size=(300, *c.shape[1:])))
                * boxes.scale[0, 0]
                * boxes.spreads[name]
                for name, c in boxes.centers.items()
            }
            y = evaluate(network, x, params)[:, 0]
            for row in range(4):
                values = y @ C[0, row] + x[:, 0] @ G[0, row]
                for choose in CHOICES:
                    other = mccormick(network, boxes, ranges, (lower[0], upper[0]), C[0, row], G[0, row], choose)
                    assert values.min().item() >= other - 1e-9
                    if exactly:
                        assert form.minimum(box)[0, 0, row].item() == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("kind", ["product", "maximum"])
def test_what_products_and_maxima_read_is_bounded_by_linear_forms(kind: str) -> None:
    """Two maps that nearly cancel: intervals from map to map are many times as wide as what the elements attain."""
    build = Builder(seed=3)
    turn, x = np.linalg.qr(build.rng.normal(size=(12, 12)))[0], build.input(12)
    back = np.concatenate([turn.T + 0.01 * build.rng.normal(size=turn.shape) for _ in range(2)])
    both = build.linear(build.linear(x, turn), back)
    if kind == "product":
        x, y = (build.select(both, np.arange(12) + start) for start in (0, 12))
        network = build.network(build.product(build.broadcast(x, 2, 12), build.broadcast(y, 2, 12)))
    else:
        network = build.network(build.maximum(build.reshape(both, 12, 2)))
    center = torch.as_tensor(build.rng.normal(size=12))
    lower, upper = center - 0.2, center + 0.2
    unit = torch.eye(network.signature.output_size, dtype=torch.float64)
    rows = torch.cat([unit, -unit])[None]
    found = Engine(network).rows(point_weights(network), lower[None], upper[None], rows).lower[0, 0]
    points = lower + torch.as_tensor(build.rng.random((4000, 12))) * (upper - lower)
    attained = (evaluate(network, points[None])[0] @ rows[0].T).amin(0)
    assert (found <= attained).all()
    assert (attained - found).max() < 0.1
