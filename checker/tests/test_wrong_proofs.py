"""Wrong proofs by hand, each rejected for its own reason: one or more for every rule and every binding."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bnn_vnnlib_check.bounds import Box, Chain
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from bnn_vnnlib_check.model import read_model
from bnn_vnnlib_check.tails import Gaussian, Leaf
from by_hand import (
    ACCEPTED,
    LINEAR,
    RAMP,
    Instance,
    convolution,
    items,
    model,
    one_leaf,
    prop,
    sign_arrays,
    signs,
    tails,
)

IDENTITY = [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])]
NOISE = [([[0.04], [0.04]], [0.0, 0.0]), ([[0.04, 0.04]], [0.0])]
CUT = {"inputs": np.array([0, -1, -1], np.int32), "cuts": np.array([0.0, 0, 0])}


def fixed(folder: Path, violation: str = "(<= Y_0 0.5)", box: Any = ((1, 2),)) -> Instance:
    return Instance(folder, model(IDENTITY), prop(box, 1, violation))


def gaussian(folder: Path) -> tuple[Instance, dict[str, Any], dict[str, Any]]:
    """x on [0.99, 1.01] through two noisy layers, its leaf and its arrays: P_safe >= 0.99."""
    one = Instance(folder, model(IDENTITY, NOISE), prop([("0.99", "1.01")], 1, "(<= Y_0 -1)"))
    arrays = one_leaf([0.99], [1.01]) | {
        "l": np.array([[0.0, -2.0]]), "u": np.array([[2.0, 0.0]]), "v": np.array([[0.05, 0.05]]),
    }  # fmt: skip
    arrays["box"] += [[-1e-9], [1e-9]]
    return one, tails(["l"], ["u"], ["v"]), arrays


def rejected(one: Instance, manifest: Any, why: str, **asked: str) -> None:
    with pytest.raises(RejectedError, match=why):
        one.said(manifest, **asked)


# linear/1


@pytest.mark.parametrize("violation", ["(<= Y_0 1)", "(< Y_0 1.001)", "(<= Y_0 1.5)", "(>= Y_0 0)"])
def test_a_row_that_is_not_false(tmp_path: Path, violation: str) -> None:
    one = fixed(tmp_path, violation)
    rejected(one, one.claim(items(), one_leaf([1], [2])), "does not exclude a violation")


@pytest.mark.parametrize(("power", "accepted"), [(-59, True), (-61, False)])
def test_what_a_float_misses_is_paid_for(tmp_path: Path, power: int, accepted: bool) -> None:
    """y = (1 + 2^-30)^2 at x = 1, which has 61 binary digits: no coefficient of a walk holds it."""
    with localcontext() as context:
        context.prec = 100
        threshold = format(1 + Decimal(2) ** -29 + Decimal(2) ** power, "f")
    a = 1 + 2.0**-30
    one = Instance(tmp_path, model([([[a]], [0.0]), ([[a]], [0.0])]), prop([(1, 1)], 1, f"(>= Y_0 {threshold})"))
    manifest = one.claim(items(), one_leaf([1], [1]))
    if accepted:
        assert one.said(manifest).startswith(ACCEPTED)
    else:
        rejected(one, manifest, "does not exclude a violation")


@pytest.mark.parametrize("accepted", [True, False])
def test_what_a_slope_misses_is_paid_for(tmp_path: Path, accepted: bool) -> None:
    """max a relu(x) - c x on [-1, 2] is 2 a - 2 c, c the float near a s, rounded down, and s the slope of the chord."""
    s = 2.0 / 3.0
    a = next(a for a in np.linspace(1.1, 1.9, 9).tolist() if Fraction(a * s) < Fraction(a) * Fraction(s))
    most = 2 * Fraction(a) - 2 * Fraction(a * s)
    missed = Fraction(a) * Fraction(s) - Fraction(a * s)
    most = most + Fraction(1, 2**80) if accepted else most - missed
    with localcontext() as context:
        context.prec = 400
        threshold = format(Decimal(most.numerator) / Decimal(most.denominator), "f")
        slope = format(Decimal(a * s), "f")
    violation = f"(>= Y_0 (+ (* {slope} X_0) {threshold}))"
    one = Instance(tmp_path, model([([[1.0]], [0.0]), ([[a]], [0.0])]), prop([(-1, 2)], 1, violation))
    manifest = one.claim(items(), one_leaf([-1], [2]))
    if accepted:
        assert one.said(manifest).startswith(ACCEPTED)
    else:
        rejected(one, manifest, "does not exclude a violation")


def test_one_of_two_cases_stays_open(tmp_path: Path) -> None:
    one = fixed(tmp_path, "(or (<= Y_0 0.5) (>= Y_0 2))")
    rejected(one, one.claim(items(), one_leaf([1], [2])), "does not exclude a violation")


def test_a_case_without_rows(tmp_path: Path) -> None:
    one = fixed(tmp_path, "(<= X_0 1.5)")
    rejected(one, one.claim(items(), one_leaf([1], [2])), "does not exclude a violation")


# items/1, split_inputs/1


@pytest.mark.parametrize(("lower", "upper"), [(1.0000001, 2), (1, 1.9999999), (1.2, 1.3)])
def test_a_box_that_does_not_cover_its_case(tmp_path: Path, lower: float, upper: float) -> None:
    one = fixed(tmp_path)
    rejected(one, one.claim(items(), one_leaf([lower], [upper])), "no item's box contains the box of case 1")


def test_a_float_does_not_cover_a_decimal(tmp_path: Path) -> None:
    """0.3 is more than the float that is written so."""
    assert (0.3).as_integer_ratio()[0] * 10 < 3 * (0.3).as_integer_ratio()[1]
    one = fixed(tmp_path, box=((0, "0.3"),), violation="(<= Y_0 -1)")
    rejected(one, one.claim(items(), one_leaf([0], [0.3])), "no item's box contains")
    assert one.said(one.claim(items(), one_leaf([0], [math.nextafter(0.3, 1)]))).startswith(ACCEPTED)


def test_no_items_at_all(tmp_path: Path) -> None:
    one = fixed(tmp_path)
    rejected(one, one.claim({"rule": "items/1", "items": []}, {}), "no item's box contains")


@pytest.mark.parametrize(
    ("inputs", "cuts", "why"),
    [
        ([0, -1], [1.5, 0], "ends before 1 of its boxes"),
        ([-1, -1], [0, 0], "goes on after its last leaf"),
        ([0, -1, -1], [2.5, 0, 0], "cuts input 0 outside of its box"),
        ([1, -1, -1], [1.5, 0, 0], "cuts input 1 outside of its box"),
        ([0, 0, -1, -1, -1], [1.5, 1.7, 0, 0, 0], "node 1 cuts input 0 outside of its box"),
    ],
)
def test_trees_with_gaps(tmp_path: Path, inputs: list[int], cuts: list[float], why: str) -> None:
    one = fixed(tmp_path)
    arrays = one_leaf([1], [2]) | {"inputs": np.array(inputs, np.int32), "cuts": np.array(cuts)}
    rejected(one, one.claim(items(), arrays), why)


def test_every_leaf_counts(tmp_path: Path) -> None:
    """y = x <= 0.5 is excluded on the right half alone."""
    one = fixed(tmp_path, box=((0, 2),))
    arrays = one_leaf([0], [2]) | CUT | {"cuts": np.array([1.0, 0, 0])}
    rejected(one, one.claim(items(), arrays), "does not exclude a violation")


def test_failures_of_items_and_leaves_add_up(tmp_path: Path) -> None:
    """y = w x, w ~ N(2, 1), at x = 1 and x = 2 in two cases, or in two leaves: one of them alone would do."""
    made = model([([[2.0]], [0.0])], [([[1.0]], [0.0])])
    points = "(or (and (<= X_0 1) (<= Y_0 0)) (and (>= X_0 2) (<= Y_0 0)))"
    one = Instance(tmp_path, made, prop([(1, 2)], 1, points))
    both = items(tails())
    both["items"].append(copy.deepcopy(both["items"][0]) | {"box": "other"})
    arrays = one_leaf([1], [1]) | {"other": np.array([[2.0], [2.0]])}
    assert one.said(one.claim(both, arrays, bound="0.954")).startswith(ACCEPTED)
    rejected(one, one.claim(both, arrays, bound="0.96"), "proved is P_safe >= 0.954499")
    with pytest.raises(RejectedError, match="no item's box contains the box of case 2"):
        one.said(one.claim(items(tails()), one_leaf([1], [1]), bound="0.954"))
    twice = Instance(tmp_path, made, prop([(1, 1)], 1, "(<= Y_0 0)"))
    arrays = one_leaf([1], [1]) | CUT | {"cuts": np.array([1.0, 0, 0])}
    rejected(twice, twice.claim(items(tails()), arrays, bound="0.97"), "proved is P_safe >= 0.954499")


# samples/1


@pytest.mark.parametrize(
    ("indices", "why"),
    [([0, 0], "comes twice"), ([3], "the posterior has no part 3"), ([0, 1, 2], "proved is P_safe >= 0.5")],
)
def test_samples(tmp_path: Path, indices: list[int], why: str) -> None:
    weights = np.array([1.0, 2.0, -1.0])
    made = model([([[0.0]], [0.0])], samples=[(weights.reshape(3, 1, 1), np.zeros((3, 1)))], probabilities=[1, 1, 2])
    one = Instance(tmp_path, made, prop([(1, 2)], 1, "(<= Y_0 0)"))
    node = {"rule": "samples/1", "samples": [{"index": i, "proof": items()} for i in indices]}
    rejected(one, one.claim(node, one_leaf([1], [2]), "bound", "0.75"), why)


@pytest.mark.parametrize(
    ("index", "other", "why"),
    [(0, {}, "proved is P_safe >= 0.732"), (1, {}, "proved is P_safe >= 0"), (2, {}, "has no part 2")],
)
def test_mixtures(tmp_path: Path, index: int, other: Any, why: str) -> None:
    """A component that is left out counts 1, and each has its own means."""
    parts = [([([[mean]], [0.0])], [([[1.0]], [0.0])]) for mean in (2.0, -2.0)]
    made = model([([[1.0]], [0.0])], components=parts, probabilities=[3, 1])
    one = Instance(tmp_path, made, prop([(1, 1)], 1, "(<= Y_0 0)"))
    node = {"rule": "mixture/1", "components": [{"index": index, "proof": items(tails())}]}
    rejected(one, one.claim(node, one_leaf([1], [1]), "bound", "0.74"), why)


# box_mass/1


@pytest.mark.parametrize(
    ("margin", "why"),
    [("2.51", "proved is P_safe >= 0;"), ("2.4", "proved is P_safe >= 0.9674"), ("0", "above 0"), ("-3", "above 0")],
)
def test_boxes_of_weights(tmp_path: Path, margin: str, why: str) -> None:
    """y = w x + b, w ~ N(4, 1), b ~ N(0, 0.25) at x = 1: y > 0.25 for 2.5 deviations, whose mass is 0.9753."""
    made = model([([[4.0]], [0.0])], [([[1.0]], [0.25])])
    one = Instance(tmp_path, made, prop([(1, 1)], 1, "(< Y_0 0.25)"))
    node = {"rule": "box_mass/1", "margin": margin, "proof": items()}
    rejected(one, one.claim(node, one_leaf([1], [1]), "bound", "0.975"), why)


def test_a_box_of_weights_without_noise(tmp_path: Path) -> None:
    one = fixed(tmp_path)
    with pytest.raises(RejectedError, match="and weights with noise"):
        one.said(one.claim({"rule": "box_mass/1", "margin": "2", "proof": items()}, one_leaf([1], [2])))


def test_boxes_of_weights_are_not_added_up(tmp_path: Path) -> None:
    """Two items under one box: what one of them leaves open opens all of it."""
    made = model([([[4.0]], [0.0])], [([[1.0]], [0.25])])
    points = "(or (and (<= X_0 1) (< Y_0 0.25)) (and (>= X_0 2) (< Y_0 2)))"
    one = Instance(tmp_path, made, prop([(1, 2)], 1, points))
    both = items()
    both["items"].append(copy.deepcopy(both["items"][0]) | {"box": "other"})
    arrays = one_leaf([1], [1]) | {"other": np.array([[2.0], [2.0]])}
    node = {"rule": "box_mass/1", "margin": "2.5", "proof": both}
    rejected(one, one.claim(node, arrays, "bound", "0.1"), "proved is P_safe >= 0;")


# split_signs/1

SIGN_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a negative multiplier of a sign": ({"beta": np.array([[0.0, -0.1], [0.0, 1 / 3]])}, "a multiplier is negative"),
    "a negative multiplier of a row": ({"rows": np.array([[1.0], [-1.0]])}, "a multiplier is negative"),
    "too little of it": ({"beta": np.array([[0.0, 0.6], [0.0, 1 / 3]])}, "does not exclude a violation"),
    "a multiplier of a sign that nobody knows": ({"beta": np.array([[1.0, 0.6], [0.0, 1 / 3]])}, "does not exclude"),
    "no row": ({"rows": np.zeros((2, 1))}, "does not exclude a violation"),
    "a leaf that is missing": ({"neurons": np.array([1, -1])}, "ends before 1 of its boxes"),
    "a leaf too many": ({"neurons": np.array([1, -1, -1, -1])}, "goes on after its last leaf"),
    "a neuron twice": ({"neurons": np.array([1, 1, -1, -1, -1])}, "which is not there or has a sign"),
    "a neuron that is not there": ({"neurons": np.array([2, -1, -1])}, "which is not there or has a sign"),
    "the other half first": ({"beta": np.array([[0.0, 1 / 3], [0.0, 2 / 3]])}, "does not exclude a violation"),
}


@pytest.mark.parametrize("what", SIGN_CHANGES)
def test_trees_of_signs(tmp_path: Path, what: str) -> None:
    change, why = SIGN_CHANGES[what]
    one = Instance(tmp_path, model(RAMP), prop([(-1, 2)], 1, "(>= Y_0 1.34)"))
    assert one.said(one.claim(signs(), sign_arrays())).startswith(ACCEPTED)
    rejected(one, one.claim(signs(), sign_arrays() | change), why)


@pytest.mark.parametrize("slope", [-3.0, 0.5, 1.0, 2.0, 1e300])
def test_slopes_under_signs_are_hints(tmp_path: Path, slope: float) -> None:
    """y reaches 1: whatever the slopes, that is never excluded."""
    one = Instance(tmp_path, model(RAMP), prop([(-1, 2)], 1, "(>= Y_0 0.999)"))
    arrays = sign_arrays() | {"slopes": np.full((2, 2), slope)}
    rejected(one, one.claim(signs(), arrays), "does not exclude a violation")
    below = Instance(
        tmp_path, model([([[1.0], [1.0]], [0.0, -1.0]), ([[-1.0, 1.0]], [0.0])]), prop([(-1, 2)], 1, "(<= Y_0 -0.999)")
    )
    rejected(below, below.claim(signs(), arrays), "does not exclude a violation")


def test_multipliers_of_signs_that_nobody_knows(tmp_path: Path) -> None:
    """y = x on [-1, 1] reaches -1. If x >= 0 were known, y >= 1.5 x - 0.5 >= -0.5."""
    one = fixed(tmp_path, "(<= Y_0 -0.6)", box=((-1, 1),))
    arrays = {
        "box": np.array([[-1.0], [1.0]]), "neurons": np.array([-1]), "slopes": np.array([[1.0, 0.0]]),
        "beta": np.array([[1.5, 0.0]]), "rows": np.ones((1, 1)),
    }  # fmt: skip
    rejected(one, one.claim(signs(), arrays), "does not exclude a violation")
    known = {"neurons": np.array([0, -1, -1]), **{k: np.repeat(arrays[k], 2, 0) for k in ("slopes", "beta", "rows")}}
    rejected(one, one.claim(signs(), arrays | known), "does not exclude a violation")  # the other half has x = -1


RANDOM = 200


@pytest.mark.parametrize("violation", ["(>= Y_0 0.999)", "(and (>= Y_0 0.5) (<= (+ X_0 Y_0) 1.2))"])
def test_random_trees_of_signs_of_a_property_that_is_violated(tmp_path: Path, violation: str) -> None:
    """Whatever neurons, slopes and multipliers say."""
    rng = np.random.default_rng(0)
    one = Instance(tmp_path, model(RAMP), prop([(-1, 2)], 1, violation))
    rows = violation.count("Y_0")
    for _ in range(RANDOM // 2):
        neurons = [[-1], [0, -1, -1], [1, -1, -1], [0, 1, -1, -1, -1], [1, -1, 0, -1, -1]][rng.integers(5)]
        leaves = neurons.count(-1)
        shapes = {"slopes": (leaves, 2), "beta": (leaves, 2), "rows": (leaves, rows)}
        arrays = {name: np.abs(rng.normal(size=shape)) * 10.0 ** rng.integers(-3, 3) for name, shape in shapes.items()}
        manifest = one.claim(signs(), sign_arrays() | arrays | {"neurons": np.array(neurons)})
        rejected(one, manifest, "does not exclude a violation")


def test_a_tree_of_signs_for_every_case(tmp_path: Path) -> None:
    one = Instance(tmp_path, model(RAMP), prop([(-1, 2)], 1, "(or (>= Y_0 1.34) (>= Y_0 0.5))"))
    rejected(one, one.claim(signs(), sign_arrays()), "1 trees for 2 cases")
    both = signs()
    both["items"][0]["tree"]["cases"] *= 2
    rejected(one, one.claim(both, sign_arrays()), "does not exclude a violation")


def test_signs_are_no_rule_for_noise(tmp_path: Path) -> None:
    one, _, arrays = gaussian(tmp_path)
    rejected(
        one,
        one.claim(
            signs(), {"box": arrays["box"]} | {k: v for k, v in sign_arrays().items() if k != "box"}, bound="0.99"
        ),
        "a network with noise",
    )


# tails/1


def test_a_shared_weight_is_one_random_number(tmp_path: Path) -> None:
    """Two pixels under one kernel: the sum's deviation is sqrt(4 * 0.05) = 0.447, not sqrt(2 * 0.05) = 0.316."""
    made = convolution(np.ones((1, 1, 1, 1)), np.zeros(1), (1, 1, 1, 2), np.full((1, 1, 1, 1), 0.04), np.full(1, 0.01))
    one = Instance(tmp_path, made, prop([(1, 1), (1, 1)], 2, "(<= (+ Y_0 Y_1) 1)"))
    manifest = one.claim(items(tails()), one_leaf([1, 1], [1, 1]), "bound", "0.99")
    rejected(one, manifest, r"proved is P_safe >= 0\.987")


def test_a_shared_weight_over_a_box(tmp_path: Path) -> None:
    """On [0.75, 1.25] twice: mean 1.5, E|N| 0.5 s for two deviations s = 0.2, and L^2 = 0.04 (2 + 0.5)^2 + 0.01 * 4."""
    made = convolution(np.ones((1, 1, 1, 1)), np.zeros(1), (1, 1, 1, 2), np.full((1, 1, 1, 1), 0.04), np.full(1, 0.01))
    one = Instance(tmp_path, made, prop([("0.75", "1.25")] * 2, 2, "(<= (+ Y_0 Y_1) 0)"))
    gap = 1.5 - math.sqrt(2 / math.pi) * 0.5 * 0.2
    spread = math.sqrt(0.04 * 2.5**2 + 0.01 * 4)
    exact = 1 - math.erfc(gap / spread / math.sqrt(2)) / 2
    arrays = one_leaf([0.75, 0.75], [1.25, 1.25])
    rejected(one, one.claim(items(tails()), arrays, "bound", f"{exact + 1e-6:.9f}"), f"proved is P_safe >= {exact:.6f}")
    assert one.said(one.claim(items(tails()), arrays, "bound", f"{exact - 1e-6:.9f}")).startswith(ACCEPTED)


def test_the_gaussian_proof_holds(tmp_path: Path) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    assert one.said(one.claim(items(leaf), arrays, bound="0.99")).startswith(ACCEPTED)


@pytest.mark.parametrize(
    "change",
    [
        {"l": np.array([[0.99, -2.0]])},  # claims that fail half the time
        {"u": np.array([[1.01, 0.0]])},
        {"l": np.array([[0.999, -1.001]]), "u": np.array([[1.001, -0.999]])},
        {"l": np.array([[-40.0, -40.0]]), "u": np.array([[40.0, 40.0]])},  # and claims that say nothing
    ],
)
def test_claims_that_fail_too_often(tmp_path: Path, change: dict[str, Any]) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    rejected(one, one.claim(items(leaf), arrays | change, bound="0.99"), "proved is P_safe >= 0")


def test_a_variation_that_is_claimed_too_small(tmp_path: Path) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    change = {"v": np.array([[0.01, 0.01]])}  # the mean network alone varies by as much
    rejected(one, one.claim(items(leaf), arrays | change, bound="0.99"), "proved is P_safe >= 0;")


def test_a_variation_that_is_less_than_its_range_by_what_balls_do_not_hold() -> None:
    """z = x on [-2^-200, 1] from its middle: 1 is less than the width, which no ball of 96 bits shows."""
    made = read_model(model([([[1.0]], [0.0]), ([[1.0]], [0.0])], [([[1.0]], [0.0]), ([[0.0]], [0.0])]))
    box, z = Box(np.array([0.0]), np.array([2.0])), Box(np.array([-(2.0**-200)]), np.array([1.0]))
    free, paid = (Leaf(Gaussian(Chain(made.parts[0])), box, [(z, v)], {}).q for v in (np.array([1.5]), np.array([1.0])))
    assert paid > free


@pytest.mark.parametrize("slope", [-3.0, 0.0, 0.5, 1.0, 1e300])
def test_slopes_are_hints(tmp_path: Path, slope: float) -> None:
    """The offset of a line is computed: y = relu(x) is never proved to stay below 0.9 on [0.99, 1.01]."""
    layers = [([[1.0]], [0.0]), ([[1.0]], [0.0])]
    noise = [([[1e-6]], [0.0]), ([[1e-6]], [0.0])]
    arrays = one_leaf([0.5], [1.5]) | {"l": np.array([[-0.5]]), "u": np.array([[2.5]])}
    leaf = {**tails(["l"], ["u"]), "slopes": ["s"]}
    arrays["s"] = np.full((1, 2, 1), slope)
    one = Instance(tmp_path, model(layers, noise), prop([("0.99", "1.01")], 1, "(>= Y_0 0.9)"))
    rejected(one, one.claim(items(leaf), arrays, bound="0.001"), "proved is P_safe >= 0;")
    true = Instance(tmp_path, model(layers, noise), prop([("0.99", "1.01")], 1, "(>= Y_0 3)"))
    manifest = true.claim(items(leaf), arrays, "bound", "0.5")
    if slope in (0.5, 1.0):
        assert true.said(manifest).startswith(ACCEPTED)


def test_an_empty_claim(tmp_path: Path) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    rejected(one, one.claim(items(leaf), arrays | {"l": np.array([[3.0, -2.0]])}, bound="0.99"), "layer 0 is empty")


def test_noise_is_not_left_out(tmp_path: Path) -> None:
    """A rule for fixed weights does not serve a posterior, and the other way round."""
    one, leaf, arrays = gaussian(tmp_path)
    box = {name: arrays[name] for name in ("box", "inputs", "cuts")}
    with pytest.raises(UnreadableError, match=r"'linear/1' is not known here, tails/1 is"):
        one.said(one.claim(items(LINEAR), box, bound="0.99"))
    with pytest.raises(UnreadableError, match=r"'tails/1' is not known here, linear/1 is"):
        one.said(one.claim(items(leaf), arrays), query="deterministic")


def test_one_claim_for_each_layer_and_leaf(tmp_path: Path) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    with pytest.raises(UnreadableError, match="2 arrays for 1 claimed layers"):
        one.said(one.claim(items({**leaf, "lower": ["l", "l"]}), arrays, bound="0.99"))
    with pytest.raises(UnreadableError, match=r"shape \(1, 2\), expected \(2, 2\)"):
        one.said(one.claim(items(leaf), arrays | CUT | {"cuts": np.array([1.0, 0, 0])}, bound="0.99"))


# point/1, empty/1


@pytest.mark.parametrize(("x", "violation"), [(1.5, "(<= Y_0 1)"), (1.5, "(< Y_0 1.5)"), (3.0, "(>= Y_0 1)")])
def test_points_that_violate_nothing(tmp_path: Path, x: float, violation: str) -> None:
    one = fixed(tmp_path, violation)
    rejected(one, one.claim({"rule": "point/1", "x": "x"}, {"x": np.array([x])}, "sat"), "violates no case")


def test_points_outside_of_constraints(tmp_path: Path) -> None:
    one = fixed(tmp_path, "(and (>= (+ X_0 X_0) 3.5) (>= Y_0 1))")
    at = {"rule": "point/1", "x": "x"}
    rejected(one, one.claim(at, {"x": np.array([1.5])}, "sat"), "violates no case")
    assert one.said(one.claim(at, {"x": np.array([1.75])}, "sat")).startswith(ACCEPTED)
    strict = fixed(tmp_path, "(and (> X_0 1.5) (>= Y_0 1))")
    rejected(strict, strict.claim(at, {"x": np.array([1.5])}, "sat"), "violates no case")


def test_all_rows_have_to_hold_at_a_point(tmp_path: Path) -> None:
    """-Phi counts once for each row: y <= 0 and y >= -2 for y ~ N(-1, 1) at x = 1."""
    made = model([([[-1.0]], [0.0])], [([[1.0]], [0.0])])
    one = Instance(tmp_path, made, prop([(0, 1)], 1, "(and (<= Y_0 0) (>= Y_0 -2))"))
    node = {"rule": "point/1", "x": "x", "leaf": tails()}
    rejected(one, one.claim(node, {"x": np.array([1.0])}, "sat", "0.2"), r"proved is P_safe <= 0.3173")
    assert one.said(one.claim(node, {"x": np.array([1.0])}, "sat", "0.3174")).startswith(ACCEPTED)


def test_a_property_that_is_not_empty(tmp_path: Path) -> None:
    one = fixed(tmp_path)
    with pytest.raises(UnreadableError, match=r"rule 'empty/1' is not known"):
        one.said(one.claim({"rule": "empty/1"}, {}))


# Bindings

CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "model": (lambda m: m["model"].update(sha256="0" * 64), "another model"),
    "model's size": (lambda m: m["model"].update(size=1), "another model"),
    "property": (lambda m: m["property"].update(sha256="0" * 64), "another property"),
    "query": (lambda m: m.update(query="deterministic"), "about query 'deterministic', asked is probabilistic"),
    "tau_safe": (lambda m: m.update(tau_safe="0.9"), "about tau_safe 0.9, asked is 0.95"),
    "tau_unsafe": (lambda m: m.update(tau_unsafe="0.96"), "about tau_unsafe 0.96, asked is 0.95"),
    "bound": (lambda m: m["claim"].update(bound="0.999999999"), "claimed is 0.999999999"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_bindings(tmp_path: Path, what: str) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    manifest = one.claim(items(leaf), arrays, bound="0.99")
    change, why = CHANGES[what]
    change(manifest)
    rejected(one, manifest, why)


def test_the_verdict_is_bound_to_the_thresholds(tmp_path: Path) -> None:
    one, leaf, arrays = gaussian(tmp_path)
    asked = {"tau_safe": "0.9999999", "tau_unsafe": "0.5"}
    manifest = one.claim(items(leaf), arrays, bound="0.99", **asked)
    rejected(one, manifest, "which is less than tau_safe", **asked)
    rejected(one, manifest, "asked is 0.95")
    manifest["claim"]["verdict"] = "bound"
    assert "no verdict" in one.said(manifest, **asked)


def test_another_model(tmp_path: Path) -> None:
    """The bytes that are hashed are those that are read."""
    one, leaf, arrays = gaussian(tmp_path)
    manifest = one.claim(items(leaf), arrays, bound="0.99")
    one.model = model(IDENTITY, [([[0.05], [0.04]], [0.0, 0.0]), NOISE[1]])
    rejected(one, manifest, "another model")
