"""Rows that an output just touches: decided by closed ranges, whatever the weights, and never beyond them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bnn_vnnlib import BatchResult, Model, read_model, read_property, verify, verify_batch
from bnn_vnnlib.model import Component, GaussianDiagonal, GaussianLowRank, Mixture, Posterior, WeightSamples
from bnn_vnnlib.problem.problem import from_property
from bnn_vnnlib.problem.refute import settled
from bnn_vnnlib.problem.weight_sets import mean_weights, random_names
from support.builders import bounds_of, model, problem, properties, rows

ASKED = [
    ("deterministic", "gaussian"), ("decision", "gaussian"), ("decision", "samples"),
    *(("probabilistic", family) for family in ("gaussian", "samples", "low rank", "mixture")),
]  # fmt: skip
"""Queries, and the posteriors that they serve."""

ENDS = {
    "Relu": (0.0, None), "Abs": (0.0, None), "Softplus": (0.0, None), "Exp": (0.0, None), "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Erf": (-1.0, 1.0), "Softsign": (-1.0, 1.0), "Elu": (-1.0, None),
    "Softmax": (0.0, 1.0),
}  # fmt: skip
"""Closed ranges of what a graph may end in."""


def posterior_of(net: Model, family: str, spread: float = 0.3) -> Posterior:
    """Around the network's weights; its rectified outputs are often 0."""
    rng, tensors = np.random.default_rng(0), net.network.tensors
    gaussian = GaussianDiagonal({name: np.full(tensor.shape, spread**2) for name, tensor in tensors.items()})
    match family:
        case "gaussian":
            return gaussian
        case "samples":
            drawn = {name: mean + spread * rng.normal(size=(5, *mean.shape)) for name, mean in tensors.items()}
            return WeightSamples(drawn, np.full(5, 0.2))
        case "low rank":
            factors = {name: spread * rng.normal(size=(2, *mean.shape)) for name, mean in tensors.items()}
            return GaussianLowRank(factors, gaussian.variances)
        case _:
            moved = [{name: mean + shift for name, mean in tensors.items()} for shift in (-0.1, 0.1)]
            return Mixture(tuple(Component(mean, gaussian) for mean in moved), np.array([0.5, 0.5]))


def ending(end: str, outputs: int = 2) -> Model:
    """Two inputs, a random layer, and an activation at the end, which pushes values to its ends."""
    rng = np.random.default_rng(1)
    return model([(3 * rng.normal(size=(outputs, 2)), rng.normal(size=outputs))], end=[end], likelihood="gaussian")


def ask(net: Model, case: Any, query: str, family: str = "gaussian", low: Any = -1.0, high: Any = 1.0) -> BatchResult:
    """One box and one case; not for long, since much stays open."""
    net = net if net.posterior is not None else replace(net, posterior=posterior_of(net, family))
    if net.network.softmax_axis is not None:
        net = replace(net, likelihood="categorical")
    n = net.network.signature.input_size
    lower, upper = (np.broadcast_to(np.asarray(side, float), (1, n)) for side in (low, high))
    return verify_batch(net, lower, upper, properties=[[case]], query=query, timeout=2.0)


@pytest.mark.parametrize("name", ["l_relu_unstable", "l_relu_dead"])
@pytest.mark.parametrize(("query", "family"), ASKED)
def test_a_relu_is_never_negative(shared: Path, name: str, query: str, family: str) -> None:
    """Y_0 < 0 of a network that ends in a Relu."""
    net = read_model(shared / f"cases/reports/{name}.onnx")
    asked = read_property(shared / "cases/reports/p1_neg.vnnlib")
    net = replace(net, posterior=posterior_of(net, family))
    likelihood = "gaussian" if query == "decision" else None
    found = verify(net, asked, query=query, likelihood=likelihood, timeout=5.0)
    assert found.verdict == "unsat"
    if query == "probabilistic":
        assert found.p_safe is not None
        assert found.p_safe.lower == 1.0
    said = "the ranges of the network's last activations exclude every violation, whatever the weights"
    assert (said in found.notes) == (query != "deterministic")


@pytest.mark.parametrize(("query", "family"), ASKED)
def test_ranges_take_no_time(query: str, family: str) -> None:
    """What they exclude is excluded even if time is up from the start; what they leave is not."""
    net = ending("Relu")
    net = replace(net, posterior=posterior_of(net, family))
    impossible, open_ = rows([[1.0, 0.0]], [0.0], [True]), rows([[1.0, 0.0]], [0.4], [True])
    found = verify_batch(
        net, [[-1, -1]] * 2, [[1, 1]] * 2, properties=[[impossible], [open_]], query=query, timeout=0.0
    )
    assert found.verdicts[0] == "unsat" != found.verdicts[1]
    asked = properties(net, [(-1.0, 1.0)], [(0, [([1.0, 0.0], None, 0.0, True)])])
    assert verify(net, asked, query=query, timeout=0.0).verdict == "unsat"


def test_bounds_beyond_all_numbers_say_nothing() -> None:
    """1e200 Y + 1e200 X with Y = 1e200 <= X is more than float64 holds."""
    net = model([(np.zeros((1, 1)), [1e200])])
    asked = properties(net, [(1e200, 1e201)], [(0, [([1e200], [1e200], 0.0, False), ([-1e200], [-1e200], 0.0, False)])])
    question, weights = from_property(asked), mean_weights(net.network)
    rows_ = question.rows
    found = bounds_of(net).closed(weights, question.lower, question.upper, rows_.outputs, rows_.inputs)[0, 0]
    assert (found <= torch.tensor([np.finfo(float).max, -np.inf])).all()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("query", "family"), ASKED)
def test_a_strict_row_at_the_end_of_a_range(end: str, query: str, family: str) -> None:
    """Nothing lies beyond the end; whether something lies at it is another question, which a tie in the row asks."""
    net = ending(end)
    if end == "Softmax" and query == "decision" and family == "samples":
        net = replace(net, likelihood="categorical")
    for sign, value in zip((1.0, -1.0), ENDS[end], strict=True):
        if value is None:
            continue
        beyond = ask(net, rows([[sign, 0.0]], [sign * value], [True]), query, family)
        assert beyond.verdicts[0] == "unsat"
        if query == "probabilistic":
            assert beyond.lower[0] == 1.0
        if query == "decision":
            assert (sign * np.stack([beyond.lower, beyond.upper]) >= sign * value).all()
        if end == "Softmax" and family in ("low rank", "mixture") and query == "probabilistic":
            continue  # tails do not serve rows behind a Softmax
        inside = ask(net, rows([[sign, 0.0]], [sign * value + 0.4], [True]), query, family)
        assert inside.verdicts[0] != "unsat"


@pytest.mark.parametrize("end", ["Relu", "HardSigmoid"])
@pytest.mark.parametrize(("query", "family"), ASKED)
def test_what_is_reached_is_not_excluded(end: str, query: str, family: str) -> None:
    """The output is 0 at every x of the box under nearly all weights: Y_0 <= 0 is violated there, Y_0 < 0 is not."""
    net = model([(np.eye(2), [-9.0, -9.0])], end=[end], likelihood="gaussian")
    net = replace(net, posterior=posterior_of(net, family, 1e-3))
    assert ask(net, rows([[1.0, 0.0]], [0.0], [True]), query).verdicts[0] == "unsat"
    exact = (family == "samples" and query == "probabilistic") or query == "deterministic"
    tied = ask(net, rows([[1.0, 0.0]], [0.0]), query)
    assert tied.verdicts[0] == "sat" if exact else tied.verdicts[0] != "unsat"
    both = ask(net, rows([[1.0, 0.0], [-1.0, 0.0]], [0.5, 0.0]), query)  # the second row always holds
    assert both.verdicts[0] == "sat" if query != "decision" else both.verdicts[0] != "unsat"


@pytest.mark.parametrize(("query", "family"), ASKED)
def test_rows_of_several_outputs(query: str, family: str) -> None:
    net = ending("Relu")
    assert ask(net, rows([[1.0, 2.0]], [0.0], [True]), query, family).verdicts[0] == "unsat"
    assert ask(net, rows([[1.0, -1.0]], [0.0], [True]), query, family).verdicts[0] != "unsat"
    soft = replace(ending("Softmax", 3), likelihood="categorical")
    assert ask(soft, rows([[-1.0, -1.0, 0.0]], [-1.0], [True]), query, family).verdicts[0] == "unsat"
    assert ask(soft, rows([[1.0, 1.0, 1.0]], [1.0], [True]), query, family).verdicts[0] == "unsat"
    if query != "probabilistic" or family in ("gaussian", "samples"):
        assert ask(soft, rows([[-1.0, -1.0, 0.0]], [-0.7]), query, family).verdicts[0] != "unsat"


@pytest.mark.parametrize("query", ["probabilistic", "decision", "deterministic"])
def test_rows_with_a_part_in_the_inputs(query: str) -> None:
    """Y_0 + X_0 < -1 with X_0 in [-1, 1] and Y_0 >= 0; X_0 alone reaches -1."""
    net = ending("Relu")
    net = replace(net, posterior=posterior_of(net, "gaussian"))

    def verdict(bound: float, strict: bool) -> str:
        asked = properties(net, [(-1.0, 1.0)], [(0, [([1.0, 0.0], [1.0, 0.0], bound, strict)])])
        return verify(net, asked, query=query, timeout=2.0).verdict

    assert verdict(-1.0, True) == "unsat"
    assert verdict(-0.5, True) != "unsat"


@pytest.mark.parametrize("family", ["none", "samples"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_point_at_which_the_output_is_the_bound(family: str, sign: float) -> None:
    """Y = 3 relu(1.5 - .25) - 2 relu(.25) = 3.25, without any rounding."""
    layers = [([[1.0, 0.0], [0.0, 1.0]], [-0.25, 0.0]), ([[3.0, -2.0]], [0.0])]
    samples = [[np.repeat(np.array(part)[None], 3, 0) for part in layer] for layer in layers]
    net = model(layers, samples=samples if family == "samples" else None)
    query = "probabilistic" if family == "samples" else "deterministic"
    x = [1.5, 0.25]

    def verdict(bound: float, strict: bool) -> str:
        return ask(net, rows([[sign]], [bound], [strict]), query, low=x, high=x).verdicts[0]

    assert verdict(sign * 3.25, True) == "unsat"
    assert verdict(sign * 3.25, False) == "sat"
    above = float(np.nextafter(sign * 3.25, np.inf))
    assert verdict(above, True) == "sat"
    assert verdict(float(np.nextafter(sign * 3.25, -np.inf)), False) == "unsat"


def test_a_box_whose_corner_touches_the_bound() -> None:
    """Y = X on [0, 1]: Y < 0 nowhere, Y <= 0 at 0."""
    net = model([([[1.0]], [0.0])])
    assert ask(net, rows([[1.0]], [0.0], [True]), "deterministic", low=0.0).verdicts[0] == "unsat"
    assert ask(net, rows([[1.0]], [0.0]), "deterministic", low=0.0).verdicts[0] == "sat"
    assert ask(net, rows([[-1.0]], [-1.0], [True]), "deterministic", low=0.0).verdicts[0] == "unsat"


@pytest.mark.parametrize("weights", [[1.0, 2.0**-60], [2.0**-60, 1.0], [1.0, -(2.0**-60)]])
def test_a_value_that_float64_rounds_to_the_bound(weights: list[float]) -> None:
    """y = 1 +- 2^-60, which float64 rounds to 1: one of Y > 1 and Y < 1 is violated, and never called safe."""
    net = model([([weights], [0.0])])
    sign = 1.0 if min(weights) < 0 else -1.0
    violated = ask(net, rows([[sign]], [sign], [True]), "deterministic", low=1.0)
    assert violated.verdicts[0] != "unsat"


def test_all_places_agree_on_what_is_left() -> None:
    """A case with a row that cannot hold is gone; a row that always holds is padding; nothing else changes."""
    net = ending("Relu")
    impossible, certain = ([1.0, 0.0], 0.0, True), ([-1.0, 0.0], 0.0, False)
    open_ = ([0.0, 1.0], 0.5, False)

    def case(*chosen: tuple[list[float], float, bool]) -> Any:
        return rows([a for a, _, _ in chosen], [b for _, b, _ in chosen], [s for _, _, s in chosen])

    question = problem(
        [-1, -1], [1, 1], case(impossible, open_), case(certain, open_), case(open_), case(certain), outputs=2
    )
    posterior = posterior_of(net, "gaussian")
    names = random_names(net.network, posterior)
    found = settled(bounds_of(net), mean_weights(net.network), question, names)
    assert found.exists.tolist() == [[False, True, True, True]]
    assert found.rows.case.tolist() == [[4, 4, 4, 1, 2, 4]]
    linear = model([(np.eye(2), [0.0, 0.0])])
    assert settled(bounds_of(linear), mean_weights(linear.network), question, list(linear.network.tensors)) is question


def test_items_of_a_batch_are_settled_for_themselves() -> None:
    """At a point the fixed network is known, elsewhere it is not."""
    net = model([([[1.0]], [0.0])])
    low, high = np.array([[0.0], [-1.0], [0.5]]), np.array([[1.0], [1.0], [0.5]])
    case = rows([[1.0]], [0.0], [True])
    found = verify_batch(net, low, high, properties=[[case]], query="deterministic", timeout=2.0)
    assert found.verdicts.tolist() == ["unsat", "sat", "unsat"]


def test_a_network_without_noise_is_exact_at_a_point() -> None:
    """A Gaussian with variances of 0: P_safe is 0 or 1."""
    net = model([([[1.0]], [0.0])], [([[0.0]], [0.0])])
    for strict, lower, upper in ((True, 1.0, 1.0), (False, 0.0, 0.0)):
        found = ask(net, rows([[1.0]], [0.5], [strict]), "probabilistic", low=0.5, high=0.5)
        assert (found.lower[0], found.upper[0]) == (lower, upper)
