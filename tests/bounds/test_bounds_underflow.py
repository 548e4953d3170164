"""Products that vanish in float64, and what they would be worth: each place where a payment in absolute terms is made.

In every test the computed value is exactly 0 where the exact one is negative, so that without the payment the bound
would be wrong by all of it.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import LinearForm
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.model import Network
from bnn_vnnlib.rounding import squared, squared_down
from support.networks import Builder, point_weights


def tensor(values: object) -> torch.Tensor:
    """float64."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def form_of(network: Network, weights: WeightBoxes, x: float, row: float, width: float = 0.0) -> LinearForm:
    """Of one row over one output, of one input."""
    low, high = tensor([[x - width]]), tensor([[x + width]])
    found = Engine(network).rows(weights, low, high, tensor([[[row]]]), forms=True).form
    assert found is not None
    return found


def at(form: LinearForm, x: float) -> Fraction:
    """Its value."""
    return Fraction(form.slope.item()) * Fraction(x) + Fraction(form.offset.item())


def test_the_minimum_of_a_form() -> None:
    form = LinearForm(tensor([[[[1e-200]]]]), tensor([[[0.0]]]))
    point = tensor([[[-1e-200]]])
    assert form.minimum(Interval(point, point)).item() < 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_a_bias_adds_to_the_constant(sign: float) -> None:
    b = Builder()
    b.shift(b.input(1, 1), np.array([-sign * 1e-200]))
    form = form_of(b.network(), point_weights(b.network()), 0.0, sign * 1e-200)
    assert at(form, 0.0) <= -(Fraction(1e-200) ** 2)


def test_constants_that_overflow() -> None:
    """inf - inf in the constant is no number, and no number bounds nothing."""
    b = Builder()
    x = b.shift(b.input(1, 1), np.array([1e200]))
    y = b.shift(b.scale(x, np.array([1e200])), np.array([-1e308]))
    network = b.network(b.sum(y, b.scale(y, np.array([1.0])), signs=(1, -1)))
    low = Engine(network).rows(point_weights(network), tensor([[0.0]]), tensor([[0.0]]), tensor([[[1.0]]]), forms=True)
    assert low.lower.item() == -torch.inf
    assert low.form is not None
    assert low.form.offset.item() == -torch.inf


def box(network: Network, spread: float, scale: float) -> WeightBoxes:
    """Of the only tensor."""
    centers = {name: tensor(t)[None] for name, t in network.tensors.items()}
    return WeightBoxes(centers, {"w0": tensor([[spread]])}, tensor([[scale]]))


def test_the_offset_of_a_chord_times_the_factor_of_a_radius() -> None:
    """|W| <= 1e300 * 1e-200 and |z| <= 1e-200: their product is 1e-100, and the middle two are 0 in float64."""
    b = Builder()
    b.linear(b.input(1, 1), np.zeros((1, 1)))
    form = form_of(b.network(), box(b.network(), 1e300, 1e-200), 0.0, 1.0, 1e-200)
    for x in (1e-200, -1e-200):
        assert at(form, x) <= -Fraction(1e300) * Fraction(1e-200) ** 2


def test_a_radius_that_vanishes_before_a_large_factor() -> None:
    """A Wr = 1e-400 is 0 in float64; times a factor of 1e200 and |z| = 1e280 it is 1e80."""
    b = Builder()
    b.linear(b.input(1, 1), np.zeros((1, 1)))
    form = form_of(b.network(), box(b.network(), 1e-200, 1e200), 1e280, 1e-200)
    assert at(form, 1e280) <= -(Fraction(1e-200) ** 2) * Fraction(1e200) * Fraction(1e280)


@pytest.mark.parametrize("row", [1e300, -1e300])
def test_the_constant_of_a_plane(row: float) -> None:
    """x y >= q x + p y - p q, where p q is 0 in float64 and 1e-400 exactly."""
    b = Builder()
    x = b.input(1, 1)
    b.product(x, b.input(1, 1))
    ends = tensor([[1e-200, 1e-200]]) if row > 0 else tensor([[1e-200, -1e-200]])
    form = Engine(b.network()).rows(point_weights(b.network()), ends, ends, tensor([[[row]]]), forms=True).form
    assert form is not None
    below = sum(Fraction(a) * Fraction(z) for a, z in zip(form.slope.ravel().tolist(), ends[0].tolist(), strict=True))
    assert below + Fraction(form.offset.item()) <= Fraction(1e300) * Fraction(1e-200) ** 2


def test_squares() -> None:
    """From above and from below, around the place where digits are lost, and exactly 0 for 0."""
    x = tensor([0.0, 5e-324, 1e-300, 1e-200, 1.5e-162, 1e-154, 1.1e-145, 3e-145, 1.0 / 3.0, 1e150])
    for above, below, value in zip(squared(x), squared_down(x), x, strict=True):
        exactly = Fraction(value.item()) ** 2
        # both are used with a relative error of a unit paid elsewhere
        assert Fraction(below.item()) <= exactly * (1 + Fraction(2) ** -52)
        assert Fraction(above.item()) * (1 + Fraction(2) ** -52) >= exactly
    assert squared(x)[0].item() == 0.0
    assert squared_down(x)[1].item() == 0.0
