"""Proofs by hand that hold, rule by rule; the first two are the examples of docs/certificates.md."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from bnn_vnnlib_check.errors import RejectedError
from bnn_vnnlib_check.model import read_model
from by_hand import ACCEPTED, RAMP, Instance, convolution, items, model, one_leaf, prop, sign_arrays, signs, tails

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
    """relu(w x) at x = 1, w ~ N(3, 1), claimed in [1, 5]: 2 Phi(-2) for the claims, and no more for the row of a fixed
    layer, which the claims exclude."""
    fixed = ([[0.0]], [0.0])
    layers = [([[3.0]], [0.0]), ([[1.0]], [0.0])]
    one = Instance(tmp_path, model(layers, [([[1.0]], [0.0]), fixed]), prop([(1, 1)], 1, "(<= Y_0 -1)"))
    arrays = one_leaf([1], [1]) | {"l": np.array([[1.0]]), "u": np.array([[5.0]])}
    said = one.said(one.claim(items(tails(["l"], ["u"])), arrays, "bound", "0.9"))
    assert bound_of(said) == pytest.approx(1 - 2 * upper_tail(2), abs=2e-9)


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


def test_a_mixture(tmp_path: Path) -> None:
    """w ~ N(2, 1) with 3/4 and N(-2, 1) with 1/4, at x = 1: the second component is left out, and counts 1."""
    layers = [([[1.0]], [0.0])]
    parts = [([([[mean]], [0.0])], [([[1.0]], [0.0])]) for mean in (2.0, -2.0)]
    made = model(layers, components=parts, probabilities=[3, 1])
    one = Instance(tmp_path, made, prop([(1, 1)], 1, "(<= Y_0 0)"))
    node = {"rule": "mixture/1", "components": [{"index": 0, "proof": items(tails())}]}
    said = one.said(one.claim(node, one_leaf([1], [1]), "bound", "0.73"))
    assert bound_of(said) == pytest.approx(0.75 * (1 - upper_tail(2)), abs=2e-9)
    at = {"rule": "mixture/1", "components": [{"index": 1, "proof": {"rule": "point/1", "x": "x", "leaf": tails()}}]}
    said = one.said(one.claim(at, {"x": np.array([1.0])}, "sat", "0.76"))
    assert bound_of(said) == pytest.approx(0.75 + 0.25 * upper_tail(2), abs=2e-9)


@pytest.mark.parametrize(("threshold", "accepted"), [("-0.001", True), ("0", True), ("0.001", False)])
def test_a_box_of_weights(tmp_path: Path, threshold: str, accepted: bool) -> None:
    """y = w x + b on [1, 2], w ~ N(4, 1), b ~ N(0, 0.25): y > 4 - 2.5 - 1.25 on the box of 2.5 deviations."""
    one = Instance(
        tmp_path, model([([[4.0]], [0.0])], [([[1.0]], [0.25])]), prop([(1, 2)], 1, f"(< Y_0 (+ 0.25 {threshold}))")
    )
    node = {"rule": "box_mass/1", "margin": "2.5", "proof": items()}
    if not accepted:
        with pytest.raises(RejectedError, match="proved is P_safe >= 0;"):
            one.said(one.claim(node, one_leaf([1], [2]), "bound", "0.97"))
        return
    said = one.said(one.claim(node, one_leaf([1], [2]), "bound", "0.97"))
    assert bound_of(said) == pytest.approx(math.erf(2.5 / math.sqrt(2)) ** 2, abs=2e-9)


def test_a_box_of_weights_in_two_layers(tmp_path: Path) -> None:
    """relu(v x) w at x = 1, v, w ~ N(2, 0.25), 2 deviations: v, w in [1, 3], so that y >= 1. Fixed biases count not."""
    layers, noise = [([[2.0]], [0.0]), ([[2.0]], [0.0])], [([[0.25]], [0.0]), ([[0.25]], [0.0])]
    node = {"rule": "box_mass/1", "margin": "2", "proof": items()}
    one = Instance(tmp_path, model(layers, noise), prop([(1, 1)], 1, "(< Y_0 1)"))
    said = one.said(one.claim(node, one_leaf([1], [1]), "bound", "0.9"))
    assert bound_of(said) == pytest.approx(math.erf(2 / math.sqrt(2)) ** 2, abs=2e-9)
    other = Instance(tmp_path, model(layers, noise), prop([(1, 1)], 1, "(<= Y_0 1)"))
    with pytest.raises(RejectedError):
        other.said(other.claim(node, one_leaf([1], [1]), "bound", "0.9"))


def test_signs(tmp_path: Path) -> None:
    """relu(x) <= (2/3)(x + 1) on [-1, 2], so y <= 2 at first. Where x <= 1, y <= (2/3)(x + 1) + (2/3)(1 - x) = 4/3, and
    where x >= 1, y <= (2/3)(x + 1) - (x - 1) + (1/3)(x - 1) = 4/3."""
    one = Instance(tmp_path, model(RAMP), prop([(-1, 2)], 1, "(>= Y_0 1.34)"))
    said = one.said(one.claim(signs(), sign_arrays()))
    assert said == "accepted: deterministic, unsat: no input violates the property, for the network"
    whole = sign_arrays() | {"neurons": np.array([-1]), **{k: sign_arrays()[k][1:] for k in ("slopes", "beta", "rows")}}
    with pytest.raises(RejectedError, match="does not exclude a violation"):
        one.said(one.claim(signs(), whole))


def test_signs_that_nothing_has(tmp_path: Path) -> None:
    """x - 1 >= 0 and x <= 0 do not meet: beta of both excludes the leaf; on [2, 3] a sign below 0 is empty at once."""
    one = Instance(tmp_path, model(RAMP), prop([(-1, 2)], 1, "(>= Y_0 1.34)"))
    arrays = sign_arrays() | {
        "neurons": np.array([0, 1, -1, -1, 1, -1, -1], np.int32), "slopes": np.zeros((4, 2)), "rows": np.ones((4, 1)),
        "beta": np.array([[0, 0], [1.0, 1.0], [0, 1.0], [0, 0]]),
    }  # fmt: skip
    assert one.said(one.claim(signs(), arrays)).startswith(ACCEPTED)
    far = Instance(tmp_path, model(RAMP), prop([(2, 3)], 1, "(>= Y_0 1.01)"))
    changed = {"box": np.array([[2.0], [3.0]]), "beta": np.zeros((2, 2))}
    assert far.said(far.claim(signs(), sign_arrays() | changed)).startswith(ACCEPTED)


def test_multipliers_of_rows_and_constraints(tmp_path: Path) -> None:
    """y = x0 + x1: y >= 1.2 and x0 + x1 <= 1 is excluded by their sum; and y >= 1 and x0 + x1 < 1, as one is strict."""
    made, box = model([([[1.0, 1.0]], [0.0])]), np.array([[0.0, 0.0], [1.0, 1.0]])
    arrays = {"box": box, "neurons": np.array([-1]), "slopes": np.zeros((1, 0)), "beta": np.zeros((1, 0))}
    for violation, multipliers, accepted in (
        ("(and (>= Y_0 1.2) (<= (+ X_0 X_1) 1))", [1, 1], True), ("(and (>= Y_0 1) (< (+ X_0 X_1) 1))", [1, 1], True),
        ("(and (>= Y_0 1) (<= (+ X_0 X_1) 1))", [1, 1], False),
        ("(and (>= Y_0 1.2) (<= (+ X_0 X_1) 1))", [1, 0], False),
        ("(and (>= Y_0 1) (< (+ X_0 X_1) 1))", [0, 0], False),
    ):  # fmt: skip
        one = Instance(tmp_path, made, prop([(0, 1), (0, 1)], 1, violation))
        manifest = one.claim(signs(), arrays | {"rows": np.array([multipliers], float)})
        if accepted:
            assert one.said(manifest).startswith(ACCEPTED)
        else:
            with pytest.raises(RejectedError, match="does not exclude a violation"):
                one.said(manifest)


CONV = {"pads": [1, 1, 0, 1], "strides": [1, 2], "dilations": [2, 1]}


def test_a_convolution_is_what_onnx_says() -> None:
    """The matrix of a convolution, against the reference implementation of ONNX; noise repeats the kernel's."""
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    kernel, bias, x = rng.normal(size=(3, 2, 2, 3)), rng.normal(size=3), rng.normal(size=(1, 2, 5, 6))
    made = convolution(kernel, bias, x.shape, kernel**2, bias**2, **CONV)
    layer = read_model(made).parts[0][0]
    (y,) = ReferenceEvaluator(onnx.load_from_string(made)).run(None, {"x": x})
    assert layer.weight is not None
    assert np.allclose(layer.weight @ x.ravel() + layer.bias, y.ravel())
    assert layer.weight_variance is not None
    assert np.allclose(layer.weight_variance, layer.weight**2)
    assert layer.shared is not None
    assert np.count_nonzero(layer.shared) == kernel.size + bias.size


def test_noise_that_is_shared_adds_up(tmp_path: Path) -> None:
    """A kernel of one weight w ~ N(1, 0.04) and a bias b ~ N(0, 0.01), used at two pixels of value 1, then y = h0 + h1
    = 2 w + 2 b, of mean 2 and variance 4 (0.04 + 0.01), not 2."""
    made = convolution(np.ones((1, 1, 1, 1)), np.zeros(1), (1, 1, 1, 2), np.full((1, 1, 1, 1), 0.04), np.full(1, 0.01))
    one = Instance(tmp_path, made, prop([(1, 1), (1, 1)], 2, "(<= (+ Y_0 Y_1) 1)"))
    said = one.said(one.claim(items(tails()), one_leaf([1, 1], [1, 1]), "bound", "0.9"))
    assert bound_of(said) == pytest.approx(1 - upper_tail(1 / math.sqrt(4 * 0.05)), abs=2e-9)
    other = Instance(tmp_path, made, prop([(1, 1), (1, 1)], 2, "(<= (- Y_0 Y_1) (- 0.001))"))
    assert bound_of(other.said(other.claim(items(tails()), one_leaf([1, 1], [1, 1]), "bound", "0.9"))) == 1


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
        value, slopes = functions[activation](z), np.ones((2, 40))
        slopes[:, found.bent], offsets = found.slopes, np.zeros((2, 40))
        offsets[:, found.bent] = low, high
        assert (slopes[0] * z + offsets[0] <= value + 1e-12).all()
        assert (slopes[1] * z + offsets[1] >= value - 1e-12).all()
        touch = np.minimum((value - slopes[0] * z - offsets[0]).min(0), (slopes[1] * z + offsets[1] - value).min(0))
        assert touch.max() < 0.05  # no line is far from what it bounds
