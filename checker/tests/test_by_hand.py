"""Proofs by hand that hold, rule by rule; the first two are the examples of docs/certificates.md."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from bnn_vnnlib_check.errors import RejectedError
from by_hand import ACCEPTED, Instance, items, model, one_leaf, prop, tails

IDENTITY = [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])]
"""relu(x) - relu(-x) = x."""


def bound_of(said: str) -> float:
    """The number behind P_safe."""
    return float(re.search(r"P_safe [<>]= ([\d.]+)", said)[1])  # type: ignore[index]


def upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def test_fixed_weights(tmp_path: Path) -> None:
    one = Instance(tmp_path, model(IDENTITY), prop([(1, 2)], 1, "(<= Y_0 0.5)"))
    said = one.said(one.claim(items(), one_leaf([1], [2])))
    assert said == "accepted: deterministic, unsat: no input violates the property, for the network"


def test_one_gaussian_weight(tmp_path: Path) -> None:
    one = Instance(tmp_path, model([([[2.0]], [0.0])], [([[1.0]], [0.0])]), prop([(1, 1)], 1, "(<= Y_0 0)"))
    said = one.said(one.claim(items(tails()), one_leaf([1], [1]), bound="0.977"))
    assert said.startswith("accepted: probabilistic, unsat: P_safe >= 0.97724986")
    assert bound_of(said) == pytest.approx(1 - upper_tail(2), abs=2e-9)


def test_variance_of_a_bias(tmp_path: Path) -> None:
    one = Instance(tmp_path, model([([[2.0]], [1.0])], [([[0.0]], [1.0])]), prop([(0, 1)], 1, "(<= Y_0 -1)"))
    said = one.said(one.claim(items(tails()), one_leaf([0], [1]), bound="0.977"))
    assert bound_of(said) == pytest.approx(1 - upper_tail(2), abs=2e-9)


def test_a_box_pays_for_what_x_may_do(tmp_path: Path) -> None:
    """w x on [1, 2]: hc = 1.5, rho = 0.5, m0 = 2, E = 2 - sqrt(2 / pi) / 2 at the mean 2, L = 2."""
    one = Instance(tmp_path, model([([[2.0]], [0.0])], [([[0.25]], [0.0])]), prop([(1, 2)], 1, "(<= Y_0 0)"))
    said = one.said(one.claim(items(tails()), one_leaf([1], [2]), bound="0.95"))
    mean = 2 - math.sqrt(2 / math.pi) * 0.5 * 0.5
    assert bound_of(said) == pytest.approx(1 - upper_tail(mean / (2 * 0.5)), abs=2e-9)


def test_claims_are_paid(tmp_path: Path) -> None:
    """relu(w x) at x = 1, w ~ N(3, 1), claimed in [1, 5]: 2 Phi(-2) for the claims, 0 for the row of a fixed layer."""
    fixed = ([[0.0]], [0.0])
    layers = [([[3.0]], [0.0]), ([[1.0]], [0.0])]
    one = Instance(tmp_path, model(layers, [([[1.0]], [0.0]), fixed]), prop([(1, 1)], 1, "(<= Y_0 -1)"))
    arrays = one_leaf([1], [1]) | {"l": np.array([[1.0]]), "u": np.array([[5.0]])}
    said = one.said(one.claim(items(tails(["l"], ["u"])), arrays, "bound", "0.9"))
    assert bound_of(said) == pytest.approx(1 - 2 * upper_tail(2) - upper_tail(4), abs=2e-9)


def test_variations_are_paid_and_help(tmp_path: Path) -> None:
    """Two layers on a small box: with `near` bound 2 has a radius that is the box's, not the claim's."""
    layers = [([[3.0]], [0.0]), ([[1.0]], [0.0])]
    noise = [([[0.04]], [0.0]), ([[0.04]], [0.0])]
    one = Instance(tmp_path, model(layers, noise), prop([(0.99, 1.01)], 1, "(<= Y_0 -1)"))
    arrays = one_leaf([0.99], [1.01]) | {"l": np.array([[2.0]]), "u": np.array([[4.0]]), "v": np.array([[0.05]])}
    without = {name: part for name, part in arrays.items() if name != "v"}
    plain = bound_of(one.said(one.claim(items(tails(["l"], ["u"])), without, "bound", "0.5")))
    near = bound_of(one.said(one.claim(items(tails(["l"], ["u"], ["v"])), arrays, "bound", "0.5")))
    assert plain < near < 1
    fold, s = math.sqrt(2 / math.pi), 0.2
    sides = [upper_tail((gap - fold * s * 0.01) / (s * 1.01)) for gap in (2.97 - 2, 4 - 3.03)]
    varies = upper_tail((0.05 - (3 + fold * s) * 0.01) / (s * 0.01))
    spread = s * math.sqrt(4**2 + 1.01**2)
    rows = [upper_tail((2.97 + 1 - fold * s * (rho + 0.01)) / spread) for rho in (1, 0.05)]
    assert 1 - plain == pytest.approx(sum(sides) + rows[0], abs=2e-9)
    assert 1 - near == pytest.approx(sum(sides) + varies + 2 * rows[1], abs=2e-9)


def test_a_tree(tmp_path: Path) -> None:
    """relu(x) + relu(-x) = |x| on [-1, 1]: not proved at once, but in four parts."""
    absolute = [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [0.0])]
    one = Instance(tmp_path, model(absolute), prop([(-1, 1)], 1, "(<= Y_0 -0.1)"))
    arrays = one_leaf([-1], [1])
    assert one.said(one.claim(items(), arrays)).startswith(ACCEPTED)
    other = Instance(tmp_path, model(IDENTITY), prop([(-1, 1)], 1, "(or (<= Y_0 -1.1) (>= Y_0 1.1))"))
    arrays |= {"inputs": np.array([0, -1, 0, -1, -1], np.int32), "cuts": np.array([0.0, 0, 0.5, 0, 0])}
    assert other.said(other.claim(items(), arrays)).startswith(ACCEPTED)


def test_ties_and_strict_rows(tmp_path: Path) -> None:
    """y = x >= 1: y < 1 is false everywhere, y <= 1 is not. No rounding is lost on exact numbers."""
    strict = Instance(tmp_path, model([([[1.0]], [0.0])]), prop([(1, 2)], 1, "(< Y_0 1)"))
    assert strict.said(strict.claim(items(), one_leaf([1], [2]))).startswith(ACCEPTED)


def test_rows_that_mention_inputs(tmp_path: Path) -> None:
    """y = x: the row Y_0 - X_0 + 0.1 <= 0 is false, as the walk's coefficients cancel."""
    one = Instance(tmp_path, model(IDENTITY), prop([(1, 2)], 1, "(<= (+ Y_0 0.1) X_0)"))
    assert one.said(one.claim(items(), one_leaf([1], [2]))).startswith(ACCEPTED)


def test_coefficients_that_are_no_floats(tmp_path: Path) -> None:
    """0.3 y <= 0.1 x: both sides are scaled until the coefficients of y are whole; what g misses is paid for."""
    one = Instance(tmp_path, model(IDENTITY), prop([(1, 2)], 1, "(<= (* 0.3 Y_0) (* 0.1 X_0))"))
    assert one.said(one.claim(items(), one_leaf([1], [2]))).startswith(ACCEPTED)
    third = Instance(tmp_path, model(IDENTITY), prop([(1, 1)], 1, "(<= (* 0.3 Y_0) (* 0.3 X_0))"))
    with pytest.raises(RejectedError):
        third.said(third.claim(items(), one_leaf([1], [1])))


def test_samples(tmp_path: Path) -> None:
    """Weights 1, 2, -1 with shares 1/4, 1/4, 1/2; the last one violates."""
    weights = np.array([1.0, 2.0, -1.0])
    made = model([([[0.0]], [0.0])], samples=[(weights.reshape(3, 1, 1), np.zeros((3, 1)))], probabilities=[1, 1, 2])
    one = Instance(tmp_path, made, prop([(1, 2)], 1, "(<= Y_0 0)"))
    proved = {"rule": "samples/1", "samples": [{"index": i, "proof": items()} for i in (1, 0)]}
    assert bound_of(one.said(one.claim(proved, one_leaf([1], [2]), "bound", "0.5"))) == 0.5
    at = {"rule": "samples/1", "samples": [{"index": 2, "proof": {"rule": "point/1", "x": "x"}}]}
    assert bound_of(one.said(one.claim(at, {"x": np.array([1.5])}, "sat", "0.5"))) == 0.5


def test_a_point(tmp_path: Path) -> None:
    """x = 0.1, which is no float: the point is clipped to the box in rationals, where a tie is a violation."""
    one = Instance(tmp_path, model(IDENTITY), prop([("0.1", "0.1")], 1, "(and (<= Y_0 0.1) (>= Y_0 0.1))"))
    said = one.said(one.claim({"rule": "point/1", "x": "x"}, {"x": np.array([0.1])}, "sat"))
    assert said == "accepted: deterministic, sat: an input violates the property, for the network"


def test_a_point_with_noise(tmp_path: Path) -> None:
    """w ~ N(-2, 1) at x = 1: y <= 0 has probability Phi(2)."""
    one = Instance(tmp_path, model([([[-2.0]], [0.0])], [([[1.0]], [0.0])]), prop([(0, 1)], 1, "(<= Y_0 0)"))
    node = {"rule": "point/1", "x": "x", "leaf": tails()}
    said = one.said(one.claim(node, {"x": np.array([1.0])}, "sat", "0.03"))
    assert bound_of(said) == pytest.approx(upper_tail(2), abs=2e-9)


def test_an_empty_property(tmp_path: Path) -> None:
    one = Instance(tmp_path, model(IDENTITY), prop([(2, 1)], 1, "(<= Y_0 0)"))
    assert "an empty property" in one.said(one.claim({"rule": "empty/1"}, {}))


def test_the_posterior_mean_is_named(tmp_path: Path) -> None:
    one = Instance(tmp_path, model([([[2.0]], [0.0])], [([[1.0]], [0.0])]), prop([(1, 1)], 1, "(<= Y_0 0)"))
    said = one.said(one.claim(items(), one_leaf([1], [1])), query="deterministic")
    assert said.endswith("for the posterior mean")


@pytest.mark.parametrize("activation", ["Tanh", "Sigmoid", "LeakyRelu", "Relu"])
def test_lines_hold(activation: str) -> None:
    """Lines below and above, at a thousand points of random ranges, with any slopes."""
    from bnn_vnnlib_check.bounds import Box, lines
    from bnn_vnnlib_check.model import ACTIVATIONS, Layer

    rng = np.random.default_rng(0)
    layer = Layer(
        None, np.zeros(40), activation=ACTIVATIONS[activation], alpha=0.25 if activation == "LeakyRelu" else 0.0
    )
    functions = {
        "Tanh": np.tanh, "Sigmoid": lambda z: 1 / (1 + np.exp(-z)), "Relu": lambda z: np.maximum(z, 0),
        "LeakyRelu": lambda z: np.where(z > 0, z, 0.25 * z),
    }  # fmt: skip
    ends = np.sort(rng.normal(size=(2, 40)) * 3, axis=0)
    z = ends[0] + np.linspace(0, 1, 1000)[:, None] * (ends[1] - ends[0])
    for hints in (None, rng.uniform(-0.5, 1.5, (2, 40)), np.zeros((2, 40)), np.ones((2, 40))):
        found = lines(layer, Box(*ends), hints)
        low, high = (np.array([float(v) for v in side.entries()]) for side in found.offsets)
        value = functions[activation](z)
        assert (found.slopes[0] * z + low <= value + 1e-12).all()
        assert (found.slopes[1] * z + high >= value - 1e-12).all()
        touch = np.minimum((value - found.slopes[0] * z - low).min(0), (found.slopes[1] * z + high - value).min(0))
        assert touch.max() < 0.05  # no line is far from what it bounds
