"""Queries of models with correlated posteriors and mixtures: bounds against sampled weights, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from scipy import special, stats

import bnn_vnnlib
from bnn_vnnlib import verify_batch
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.methods.components import components_of, weighted_sum
from bnn_vnnlib.methods.safety import portfolio as probabilistic
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Model,
    Network,
    Posterior,
    attach,
    from_covariance,
    model_from_proto,
    sample,
)
from bnn_vnnlib.network import evaluate
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline
from support.networks import dense_network
from support.tails import tensor

NETWORK = dense_network([2, 5, 3], seed=4)
NAMES = list(NETWORK.tensors)


def full(size: float, last: bool = False) -> GaussianFull:
    rng = np.random.default_rng(1)
    shapes = {name: NETWORK.tensors[name].shape for name in (NAMES[2:] if last else NAMES)}
    n = sum(int(np.prod(shape)) for shape in shapes.values())
    root = size * rng.normal(size=(n, n // 2)) / np.sqrt(n // 2)
    return from_covariance(root @ root.T, shapes)


def low_rank(size: float) -> GaussianLowRank:
    rng = np.random.default_rng(2)
    factors = {n: size * rng.normal(size=(3, *t.shape)) / 2 for n, t in NETWORK.tensors.items()}
    return GaussianLowRank(factors, {n: np.full(t.shape, (0.3 * size) ** 2) for n, t in NETWORK.tensors.items()})


def kron(size: float) -> GaussianKron:
    rng = np.random.default_rng(3)
    layers = []
    for weight, bias in ((NAMES[0], NAMES[1]), (NAMES[2], NAMES[3])):
        p, q = NETWORK.tensors[weight].shape
        left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (p, q + 1))
        layers.append(KronLayer(weight, left, right, size**2 * rng.uniform(0, 1, (p, q + 1)), bias))
    return GaussianKron(tuple(layers))


def diagonal(size: float) -> GaussianDiagonal:
    return GaussianDiagonal({n: np.full(t.shape, size**2) for n, t in NETWORK.tensors.items()})


def mixture(*parts: Any, moved: float = 0.1) -> Mixture:
    rng = np.random.default_rng(4)
    means = [{n: t + moved * rng.normal(size=t.shape) for n, t in NETWORK.tensors.items()} for _ in parts]
    weights = np.arange(1.0, len(parts) + 1)
    components = tuple(Component(mean, part) for mean, part in zip(means, parts, strict=True))
    return Mixture(components, weights / weights.sum())


def model(posterior: Posterior, likelihood: Any = "categorical") -> Model:
    return Model(NETWORK, posterior, likelihood, None, b"")


FAMILIES = {
    "full": full, "last": lambda size: full(size, True), "lowrank": low_rank, "kron": kron,
    "mixture": lambda size: mixture(diagonal(size), low_rank(size)),
    "diagonals": lambda size: mixture(diagonal(size), diagonal(size / 2), moved=0.3),
}  # fmt: skip

CENTERS = np.random.default_rng(5).uniform(-1, 1, (3, 2))
LABELS = evaluate.evaluate(NETWORK, tensor(CENTERS)).argmax(-1).numpy()
SAMPLED = 4000


@pytest.fixture(autouse=True)
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without refinement, which goes on as long as it may."""
    monkeypatch.setattr(probabilistic, "refine", lambda found, *_: found)


def sampled(posterior: Posterior, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Per box the share of sampled networks that misclassify one of many points, and mean softmax (N, P, m) there."""
    drawn = sample(NETWORK, posterior, SAMPLED, torch.Generator().manual_seed(0))
    moves = np.random.default_rng(6).uniform(-eps, eps, (60, 2))
    moves[:4] = eps * np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    points = (CENTERS[:, None] + moves).reshape(-1, 2)
    y = evaluate.evaluate(NETWORK, tensor(points), drawn).reshape(SAMPLED, len(CENTERS), -1, 3)
    wrong = (y.argmax(-1) != tensor(LABELS)[:, None]).any(-1).double().mean(0).numpy()
    return wrong, torch.softmax(y, -1).mean(0).numpy()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [0.03, 0.2])
def test_p_safe_and_the_decision_hold_against_sampled_weights(family: str, size: float) -> None:
    posterior, eps = FAMILIES[family](size), 0.02
    wrong, expected = sampled(posterior, eps)
    found = verify_batch(model(posterior), CENTERS - eps, CENTERS + eps, LABELS, query="probabilistic")
    for failed, lower, upper in zip(wrong, found.lower, found.upper, strict=True):
        assert 0 <= lower <= upper <= 1
        assert stats.binom.sf(round(failed * SAMPLED) - 1, SAMPLED, 1 - lower) > 1e-7
    if size < 0.1:
        assert (found.lower > 0.9).sum() >= 2
    if size > 0.1:
        return
    again = verify_batch(model(posterior), CENTERS - eps, CENTERS + eps, LABELS, query="decision")
    spread = 6 / np.sqrt(SAMPLED)
    assert (again.lower - spread <= expected.min(1)).all()
    assert (expected.max(1) <= again.upper + spread).all()
    if family != "diagonals":
        assert ((again.upper - again.lower).min(1) < 0.6).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_upper_bounds_at_wrong_labels(family: str) -> None:
    """Everything is unsafe: the upper bound sees it, at any point of the box, and not more than there is."""
    posterior = FAMILIES[family](0.05)
    labels = (LABELS + 1) % 3
    found = verify_batch(model(posterior), CENTERS - 0.02, CENTERS + 0.02, labels, query="probabilistic")
    drawn = sample(NETWORK, posterior, SAMPLED, torch.Generator().manual_seed(1))
    assert (found.upper < 0.9).any()
    box = verify_batch(model(posterior), CENTERS, CENTERS, labels, query="probabilistic")
    y = evaluate.evaluate(NETWORK, tensor(CENTERS), drawn)
    safe = (y.argmax(-1) == tensor(labels)).double().mean(0).numpy()
    for share, lower, upper in zip(safe, box.lower, box.upper, strict=True):
        assert stats.binom.sf(round(share * SAMPLED) - 1, SAMPLED, upper) > 1e-7
        assert stats.binom.cdf(round(share * SAMPLED), SAMPLED, lower) > 1e-7


def test_a_mixture_of_equal_components_is_the_component() -> None:
    single = verify_batch(model(diagonal(0.1)), CENTERS - 0.02, CENTERS + 0.02, LABELS, query="probabilistic")
    twice = mixture(diagonal(0.1), diagonal(0.1), moved=0.0)
    both = verify_batch(model(twice), CENTERS - 0.02, CENTERS + 0.02, LABELS, query="probabilistic")
    np.testing.assert_allclose(both.lower, single.lower, rtol=1e-12)
    np.testing.assert_allclose(both.upper, single.upper, rtol=1e-12)


def test_a_mixture_of_points_is_its_samples() -> None:
    """Without variance the bounds are sums of probabilities; the worst component does not count for all."""
    points = mixture(*[diagonal(0.0)] * 4, moved=0.8)
    found = verify_batch(model(points), CENTERS, CENTERS, LABELS, query="probabilistic")
    expected = np.zeros(3)
    for share, part in zip(points.probabilities, points.components, strict=True):
        params = {name: tensor(mean) for name, mean in part.means.items()}
        right = evaluate.evaluate(NETWORK, tensor(CENTERS), params).argmax(-1).numpy() == LABELS
        expected += share * right
    assert 0 < expected.min() < 1
    np.testing.assert_allclose(found.lower, expected, atol=1e-12)
    np.testing.assert_allclose(found.upper, expected, atol=1e-12)
    assert (found.lower <= expected).all()
    assert (expected <= found.upper).all()


def test_weighted_sums_are_rounded_down() -> None:
    from fractions import Fraction

    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(5))
    values = rng.normal(size=(5, 200)) * 10.0 ** rng.integers(-9, 9, (5, 200))
    found = weighted_sum(tensor(shares), tensor(values)).numpy()
    for column in range(200):
        exact = sum(Fraction(p) * Fraction(v) for p, v in zip(shares.tolist(), values[:, column].tolist(), strict=True))
        assert Fraction(found[column]) <= exact
    ones = weighted_sum(tensor(shares), torch.ones(5, 2, dtype=torch.float64))
    assert (ones == 1).all()
    assert (weighted_sum(tensor([0.5, 0.5]), tensor([[-np.inf], [1.0]])) == -np.inf).all()


def test_components_without_probability_are_left_out() -> None:
    part = mixture(diagonal(0.1), low_rank(0.1))
    none = Mixture(part.components, np.array([0.0, 1.0]))
    found = components_of(OutputBounds(Engine(NETWORK), "identity"), none)
    assert [one.share for one in found] == [1.0]
    np.testing.assert_array_equal(found[0].network.tensors[NAMES[0]], part.components[1].means[NAMES[0]])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "boxes": ({"boxes": "sampled"}, "boxes around samples need independent weights"),
    "tails for decisions": ({"query": "decision", "method": "tails"}, "method tails"),
}


@pytest.mark.parametrize("family", ["full", "lowrank", "kron", "mixture"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_serves_is_refused_by_name(family: str, name: str) -> None:
    options, message = REFUSED[name]
    posterior = FAMILIES[family](0.1)
    with pytest.raises(UnsupportedError, match=message) as caught:
        verify_batch(model(posterior), CENTERS, CENTERS, LABELS, **{"query": "probabilistic", **options})
    if name != "tails for decisions":
        assert bnn_vnnlib.network.families.family_of(posterior) in str(caught.value)


@pytest.mark.parametrize("family", ["full", "lowrank", "kron"])
def test_tuning_descends_through_the_groups(family: str) -> None:
    posterior = FAMILIES[family](0.08)
    problem = from_labels(tensor(CENTERS - 0.02), tensor(CENTERS + 0.02), torch.as_tensor(LABELS), 3)
    tails = TailBounds(NETWORK, posterior, torch.device("cpu"), Deadline())
    before = tails.item_failures(problem)
    after = tails.improved(problem, before, 12, 0.0)
    assert (after <= before).all()
    assert (after < before).any()


def test_deterministic_asks_about_the_mean() -> None:
    found = verify_batch(model(full(0.1)), CENTERS, CENTERS, LABELS, query="deterministic")
    assert (found.lower == 1).all()


def test_a_question_that_tails_do_not_serve_is_left_to_boxes() -> None:
    from dataclasses import replace

    ended = replace(NETWORK, softmax_axis=1)
    rows = [(np.array([[1.0, 0.0, 0.0]]), np.array([0.3]), np.array([False]))]
    asked = Model(ended, full(0.1), "categorical", None, b"")
    found = verify_batch(asked, CENTERS, CENTERS, properties=[rows], query="probabilistic")
    assert set(found.lower_by) | set(found.upper_by) <= {"centred boxes", "none"}


@pytest.mark.parametrize("second", ["Mul", "MatMul", "part"])
def test_a_bias_that_is_also_read_otherwise_shares_its_noise_with_that(second: str) -> None:
    """Y = sum((X W + c) * c), or (X W + c) V + c[:1]: the rows of W are nearly fixed, c moves as one."""
    last = {
        "Mul": [("Mul", ["b", "c"], "d"), ("MatMul", ["d", "V"], "Y")],
        "MatMul": [("MatMul", ["b", "c"], "Y")],
        "part": [("MatMul", ["b", "V"], "d"), ("Slice", ["c", "from", "to"], "e"), ("Add", ["d", "e"], "Y")],
    }[second]
    nodes = [("MatMul", ["X", "W"], "a"), ("Add", ["a", "c"], "b"), *last]
    tensors = {"W": np.eye(2), "c": np.ones(2), "V": np.ones((2, 1)), "from": np.array([0]), "to": np.array([1])}
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes], "net",
        [helper.make_tensor_value_info("X", TensorProto.DOUBLE, [1, 2])],
        [helper.make_tensor_value_info("Y", TensorProto.DOUBLE, [1] if second == "MatMul" else [1, 1])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    small, left = 1e-3, np.array([[1e-3, 0], [0, 1e-3], [100.0, 0]])
    layer = KronLayer("W", left, np.eye(2) * small, np.ones((2, 2)), "c", 0)
    net = model_from_proto(attach(proto, GaussianKron((layer,)), likelihood="gaussian"))
    c = 1 + 100 * small * np.random.default_rng(0).normal(size=(200_000, 2))  # beside it the noise of W is nothing
    y = (1 + c).sum(1) + c[:, 0] if second == "part" else ((1 + c) * c).sum(1)
    one = np.ones((1, 2))
    for share in (0.01, 0.9):
        bound = np.quantile(y, share)
        case = (np.array([[1.0]]), np.array([bound]), np.array([False]))
        found = verify_batch(net, one, one, properties=[[case]], query="probabilistic", timeout=10)
        error = 5 * np.sqrt(share * (1 - share) / len(y)) + 1e-4
        assert found.lower[0] - error <= 1 - share <= found.upper[0] + error
        assert found.lower[0] > 0.5 or found.upper[0] < 0.5


def test_what_mixtures_alone_are_refused() -> None:
    posterior = FAMILIES["mixture"](0.1)
    for options, message in (
        ({"margin": 2.0}, "leave out --margin"),
        ({"query": "decision", "rule": "median", "likelihood": "gaussian"}, "median does not serve"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            verify_batch(model(posterior), CENTERS, CENTERS, LABELS, **{"query": "probabilistic", **options})


@pytest.mark.parametrize("family", ["full", "lowrank", "kron"])
@pytest.mark.parametrize("how", ["mean", "median", "margin", "bernoulli"])
def test_decisions_of_correlated_weights_enclose_drawn_ones(family: str, how: str) -> None:
    """More latent numbers than cells serve: by tails, and by boxes of Sidak's mass."""
    likelihood = "bernoulli" if how == "bernoulli" else "gaussian"
    options: dict[str, Any] = {"rule": "median"} if how == "median" else {"margin": 3.5} if how == "margin" else {}
    net = model(FAMILIES[family](0.1))
    found = verify_batch(net, CENTERS, CENTERS, query="decision", likelihood=likelihood, timeout=3, **options)
    drawn = sample(net.network, net.posterior, 20000, torch.Generator().manual_seed(0))
    y = evaluate.evaluate(net.network, torch.as_tensor(CENTERS, dtype=torch.float64), drawn)
    y = torch.sigmoid(y) if how == "bernoulli" else y
    truth = y.median(0).values if how == "median" else y.mean(0)
    error = 4 * y.std(0) / np.sqrt(20000) * 1.3
    assert np.isfinite(found.lower).all()
    assert np.isfinite(found.upper).all()
    assert (found.lower <= (truth + error).numpy()).all()
    assert (found.upper >= (truth - error).numpy()).all()
    width = found.upper - found.lower
    if how == "bernoulli":
        assert (width <= 0.3).all()
    elif how != "margin":
        assert (width <= {"mean": 8, "median": 3}[how] * y.std(0).numpy()).all()


def test_boxes_of_correlated_weights_hold_their_mass() -> None:
    """Sidak: y = w_1 + w_2 is in (-2, 2) for both weights in (-1, 1), of correlation 0.9."""
    network = dense_network((2, 1), seed=0)
    names = list(network.tensors)
    root = np.linalg.cholesky(np.array([[0.25, 0.225], [0.225, 0.25]])).T
    zero = Network(network.signature, network.nodes, network.outputs, {k: 0 * v for k, v in network.tensors.items()})
    posterior = GaussianFull({names[0]: root[:, None, :], names[1]: np.zeros((2, 1))})
    one = Model(zero, posterior, "gaussian", None, b"")
    rows = [[(np.array([[-1.0]]), np.array([-1.99]), np.array([False]))]]
    found = verify_batch(one, [[1.0, 1.0]], [[1.0, 1.0]], properties=rows, margin=1.98)
    truth = special.ndtr(1.99 / np.sqrt(0.95))
    assert 0.9 <= found.lower[0] <= truth
