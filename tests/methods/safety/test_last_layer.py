"""A random last layer behind a fixed body: its closed forms against sampled noise, exact corners and exact laws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from bnn_vnnlib import verify, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.methods.last_layer import last_layer
from bnn_vnnlib.methods.safety.last_layer import LastLayerBounds, LastLayerSplitting
from bnn_vnnlib.methods.safety.safety import Goal, SafetyTask
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import Component, GaussianDiagonal, Mixture, Model, Network
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline
from fuzz.posterior_families import GAUSSIAN, drawn
from support.builders import model, properties
from support.networks import Builder, dense_network

DRAWS, SIDE = 5000, 9

ROWS = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [0.3, 0.0, 0.0]], dtype=torch.float64)


def flat() -> Network:
    """A body that is affine."""
    b = Builder(2)
    return b.network(b.dense(b.dense(b.input(1, 2), 4), 3))


def branches() -> Network:
    """Convolutions that meet again, an average and a dense layer whose features have two axes."""
    b = Builder(5)
    x = b.reshape(b.dense(b.input(1, 2), 16), 1, 1, 4, 4)
    y = b.activation(b.shift(b.conv(x, (2, 1, 3, 3), pads=(1, 1, 1, 1)), (2, 1, 1)))
    z = b.activation(b.sum(y, b.conv(y, (2, 2, 3, 3), pads=(1, 1, 1, 1))), "tanh")
    return b.network(b.dense(b.reshape(z, 1, 32), 3))


def kinks() -> Network:
    """Features |x_j - c_j| around the kinks, which are free of each other."""
    b = Builder(3)
    return b.network(b.dense(b.activation(b.shift(b.input(1, 2), np.array([-0.3, 0.2])), "abs"), 3))


BODIES = {
    "flat": flat, "kinks": kinks,
    "relu": lambda: dense_network((2, 6, 3), seed=1), "deep": lambda: dense_network((2, 5, 5, 3), seed=2),
    "tanh": lambda: dense_network((2, 5, 3), "tanh", seed=3), "branches": branches,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sampled:
    """A model, two boxes (one is a point), their bounds, and rows (S, X, R) of sampled networks on a grid of each."""

    model: Model
    task: SafetyTask
    found: LastLayerBounds
    rows: list[Tensor]


def task_of(net: Model, lower: Tensor, upper: Tensor, labels: Tensor, deadline: Deadline = Deadline()) -> SafetyTask:
    problem = from_labels(lower, upper, labels, 3)
    problem = replace(problem, rows=replace(problem.rows, outputs=ROWS[None, :2]))
    bounds = OutputBounds(Engine(net.network, "linear", deadline), "identity")
    posterior = net.posterior
    assert posterior is not None
    return SafetyTask(bounds, posterior, problem, Attack(steps=3, restarts=1), deadline, Goal(0.95, 0.95))


@cache
def case(body: str, family: str, size: float = 0.3) -> Sampled:
    network = BODIES[body]()
    rng = np.random.default_rng(len(body) + 7 * len(family))
    means = {name: network.tensors[name] for name in list(network.tensors)[-2:]}
    if body == "kinks":  # else the mean network and the noise are not at their least at the same x
        network = replace(network, tensors={n: 0 * v if n in means else v for n, v in network.tensors.items()})
    deviations = {name: size * rng.uniform(0.5, 1.0, mean.shape) for name, mean in means.items()}
    net = Model(network, drawn(family, means, deviations, rng, 4), None, None, b"")
    center = torch.tensor([[0.3, -0.2], [-0.4, 0.5]], dtype=torch.float64)
    radius = torch.tensor([[0.25, 0.15], [0.0, 0.0]], dtype=torch.float64)
    task = task_of(net, center - radius, center + radius, torch.tensor([0, 0]))
    found = LastLayerBounds.of(task)
    assert isinstance(found, LastLayerBounds), found
    side = torch.linspace(-1, 1, SIDE, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    assert net.posterior is not None
    params = sample(network, net.posterior, DRAWS, torch.Generator().manual_seed(1))
    y = [evaluate(network, c + grid * r, params) for c, r in zip(center, radius, strict=True)]
    return Sampled(net, task, found, [values.reshape(DRAWS, -1, 3) @ ROWS.mT for values in y])


def whole(sampled: Sampled) -> object:
    """The bounds of all three rows."""
    problem = sampled.task.problem
    rows = replace(
        problem.rows, outputs=ROWS[None], bound=torch.zeros(1, 3, dtype=torch.float64),
        inner_bound=torch.zeros(1, 3, dtype=torch.float64), strict=torch.zeros(1, 3, dtype=torch.bool),
        case=torch.arange(3)[None], origin=torch.arange(3)[None],
    )  # fmt: skip
    return replace(problem, rows=rows, exists=torch.ones(1, 3, dtype=torch.bool))


CORRELATED = [(body, family) for body in ("flat", "branches") for family in GAUSSIAN[1:]]
EVERY = pytest.mark.parametrize(("body", "family"), [*((body, "gaussian") for body in BODIES), *CORRELATED])


@EVERY
def test_what_rows_lose_over_a_box_is_at_least_what_sampled_rows_lose(body: str, family: str) -> None:
    sampled = case(body, family)
    bounds = sampled.found.rows(whole(sampled))  # type: ignore[arg-type]
    mean = evaluate(sampled.model.network, sampled.task.problem.lower)  # of the last item, a point
    assert mean.isfinite().all()
    for item, rows in enumerate(sampled.rows):
        least = rows.amin(1)  # (S, R), over the grid
        error = 4 * least.std(0) / DRAWS**0.5
        assert bool((bounds.mean[item] <= least.mean(0) + error).all())
        assert bool((least.std(0) <= bounds.spread[item] * (1 + 4 / DRAWS**0.5)).all())
        if item == 1 or body in ("flat", "kinks"):  # there steps 1 and 2 lose nothing
            assert bool((bounds.mean[item] >= least.mean(0) - error - 1e-9).all())
        if item == 1:
            assert bool((bounds.spread[item] <= least.std(0) * (1 + 5 / DRAWS**0.5)).all())
        for share in (0.02, 0.1, 0.3):
            level = least.quantile(share, 0)
            failure = bounds.failures(level[None].expand(2, -1))[item]
            assert bool((failure >= share - 4 * (share / DRAWS) ** 0.5).all())
            assert item == 0 or bool((failure <= share + 5 * (share / DRAWS) ** 0.5).all())


@EVERY
def test_the_noise_alone(body: str, family: str) -> None:
    """N_r(h(x)): what is left of the rows without those of the mean network."""
    sampled = case(body, family)
    bounds = sampled.found.rows(whole(sampled))  # type: ignore[arg-type]
    side = torch.linspace(-1, 1, SIDE, dtype=torch.float64)
    problem = sampled.task.problem
    center, radius = (problem.lower + problem.upper)[0] / 2, (problem.upper - problem.lower)[0] / 2
    own = evaluate(sampled.model.network, center + torch.cartesian_prod(side, side) * radius).reshape(-1, 3) @ ROWS.mT
    least = (sampled.rows[0] - own).amin(1)
    assert bool((bounds.least[0] <= own.amin(0) + 1e-9).all())
    assert bool((-bounds.cost[0] <= least.mean(0) + 4 * least.std(0) / DRAWS**0.5).all())
    for share in (0.02, 0.1, 0.3):
        margin = -least.quantile(share, 0)
        assert bool((bounds.beyond(margin[None].expand(2, -1))[0] >= share - 4 * (share / DRAWS) ** 0.5).all())


@EVERY
def test_covariances_at_a_point(body: str, family: str) -> None:
    sampled = case(body, family)
    network, noise = sampled.model.network, sampled.found.noise
    x = sampled.task.problem.lower[1:]
    place = noise.node.inputs[0]
    h = evaluate(replace(network, nodes=network.nodes[: place + 1], outputs=(place,)), x).reshape(1, -1)
    found, error = noise.covariances(ROWS[None], h)
    seen = torch.cov(sampled.rows[1][:, 0].mT)
    size = found[0].diagonal().sqrt()
    assert bool(((seen - found[0]).abs() <= 6 / DRAWS**0.5 * size[:, None] * size).all())
    assert bool((error[0] <= 1e-11 * noise.marginals(ROWS[None])[0].sum(-1).amax() ** 2).all())
    lengths = noise.lengths(ROWS[None], h[:, None], biases=True)[0, 0]
    assert bool(((lengths**2 - found[0].diagonal()).abs() <= 1e-9 * (1 + found[0].diagonal())).all())


@EVERY
def test_violations_at_a_point(body: str, family: str) -> None:
    """Rows 0 and 1 are cases of their own, or one case of two rows."""
    sampled = case(body, family)
    problem, rows = sampled.task.problem, sampled.rows[1][:, 0, :2]
    for quantiles in ((0.1, 0.3), (0.7, 0.5), (0.02, 0.9)):
        level = torch.stack([row.quantile(q) for row, q in zip(rows.mT, quantiles, strict=True)])[None]
        asked = replace(problem, rows=replace(problem.rows, bound=level, inner_bound=level))
        either, both = (rows <= level).any(1).double().mean(), (rows <= level).all(1).double().mean()
        error = 5 / DRAWS**0.5
        mass = sampled.found.unsafe(asked, problem.lower, problem.lower)[1]
        assert mass <= either + error
        assert mass >= min(either, (rows <= level).double().mean(0).amax()) - error
        joint = replace(
            asked, exists=torch.ones(1, 1, dtype=torch.bool),
            rows=replace(asked.rows, case=torch.zeros_like(problem.rows.case)),
        )  # fmt: skip
        assert sampled.found.unsafe(joint, problem.lower, problem.lower)[1] <= both + error
        assert sampled.found.item_failures(asked)[1] >= either - error


def test_differences_of_independent_logits_are_exact_at_a_point() -> None:
    network = dense_network((2, 6, 3), seed=1)
    name = list(network.tensors)[-2]
    net = Model(network, GaussianDiagonal({name: np.full((3, 6), 0.4)}), None, None, b"")
    x = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    task = task_of(net, x, x, torch.tensor([0]))
    rows = torch.tensor([[[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]]], dtype=torch.float64)
    problem = replace(task.problem, rows=replace(task.problem.rows, outputs=rows))
    found = LastLayerBounds.of(task)
    assert isinstance(found, LastLayerBounds)
    params = sample(network, net.posterior, 200_000, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    seen = ((evaluate(network, x, params).reshape(-1, 3) @ rows[0].mT) <= 0).any(1).double().mean()
    assert abs(float(found.unsafe(problem, x, x)[0]) - float(seen)) <= 0.005


@pytest.mark.parametrize("body", ["relu", "deep", "branches"])
def test_branch_and_bound_of_the_body_proves_more_and_never_too_much(body: str) -> None:
    sampled = case(body, "gaussian", 0.05)
    rows = sampled.rows[0][..., :2]
    level = rows.mean(0).amin(0) - 2.2 * rows.std(0).amax(0)
    problem = sampled.task.problem.items(torch.tensor([0]))
    rows_of = replace(problem.rows, bound=level[None], inner_bound=level[None])
    problem = replace(problem, rows=rows_of, instances=1)
    task = replace(sampled.task, problem=problem)
    stage, wanted = LastLayerSplitting(task, sampled.found), torch.ones(1, dtype=torch.bool)
    best = 0.0
    while (news := stage.step(wanted, wanted)) is not None:
        best = max(best, float(news.lower))
    seen = float((rows > level).all(2).all(1).double().mean())
    assert 0.5 <= best <= seen + 4 * (max(1 - seen, 1e-3) / DRAWS) ** 0.5
    assert seen < 0.99
    assert best >= 1 - float(sampled.found.item_failures(problem))


def test_tiny_deviations_prove_what_the_mean_network_proves() -> None:
    network = dense_network((2, 12, 12, 3), seed=4)
    name = list(network.tensors)[-2]
    net = Model(network, GaussianDiagonal({name: (1e-4 * network.tensors[name]) ** 2}), None, None, b"")
    fixed = Model(network, None, None, None, b"")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2))
    labels = evaluate(network, torch.tensor(x)).reshape(12, 3).argmax(1).tolist()
    radius = rng.uniform(0.05, 0.6, (12, 1))
    sure = verify_batch(fixed, x - radius, x + radius, labels, query="deterministic")
    found = verify_batch(net, x - radius, x + radius, labels, query="probabilistic", tau_safe=0.99, tau_unsafe=0.99)
    assert [str(v) for v in found.verdicts] == [str(v) for v in sure.verdicts]
    assert {"unsat", "sat"} == {str(v) for v in sure.verdicts}


@pytest.mark.parametrize("mixed", [False, True])
def test_the_witness_of_sat_shows_the_mass_again(mixed: bool) -> None:
    """Differences of correlated rows: tails alone would not show as much."""
    rng = np.random.default_rng(2)
    layers = [(rng.normal(size=(6, 2)), rng.normal(size=6)), (rng.normal(size=(3, 6)), rng.normal(size=3))]
    fixed = [(0 * w, 0 * b) for w, b in layers[:1]]
    net = model(layers, [*fixed, (np.full((3, 6), 4.0), np.full(3, 4.0))])
    assert isinstance(net.posterior, GaussianDiagonal)
    if mixed:
        net = replace(
            net, posterior=Mixture((Component(dict(net.network.tensors), net.posterior),) * 2, np.full(2, 0.5))
        )
    label = int(evaluate(net.network, torch.zeros(1, 2, dtype=torch.float64)).argmax())
    others = [j for j in range(3) if j != label]
    rows = [np.eye(3)[label] - np.eye(3)[j] for j in others]
    asked = properties(net, [(0.0, 0.0)], [(0, [(row, None, 0.0, False)]) for row in rows])
    found = verify(net, asked, tau_safe=0.9, tau_unsafe=0.9)
    assert found.verdict == "sat"
    assert found.witness is not None
    assert found.p_safe is not None
    if not mixed:
        assert "last layer" in found.method
        assert found.p_safe.upper - found.p_safe.lower < 0.25


def test_what_is_served() -> None:
    network = dense_network((2, 4, 3), seed=1)
    names = list(network.tensors)
    both = GaussianDiagonal({name: np.full_like(network.tensors[name], 0.1) for name in (names[0], names[2])})
    assert last_layer(network, both) is None
    assert last_layer(network, GaussianDiagonal({names[2]: both.variances[names[2]]})) is not None
    task = case("relu", "gaussian").task
    assert LastLayerBounds.of(replace(task, posterior=both)) == "not the last dense layer alone is random"
    assert isinstance(LastLayerBounds.of(replace(task, means="tails")), str)


def test_no_items_have_no_bounds() -> None:
    """As where boxes cannot be halved any more."""
    sampled = case("branches", "gaussian")
    none = sampled.task.problem.items(torch.arange(0))
    assert sampled.found.item_failures(none).shape == (0,)
    assert sampled.found.unsafe(none, none.lower, none.lower).shape == (0,)


def test_nothing_is_claimed_once_time_is_up() -> None:
    sampled = case("deep", "gaussian")
    late = replace(sampled.found.bounds, engine=replace(sampled.found.bounds.engine, deadline=Deadline(0.0)))
    found, problem = replace(sampled.found, bounds=late), sampled.task.problem
    assert bool((found.item_failures(problem) == 1).all())
    assert bool((found.unsafe(problem, problem.lower, problem.lower) == 0).all())
    stage = LastLayerSplitting(sampled.task, found)
    wanted = torch.ones(2, dtype=torch.bool)
    news = stage.step(wanted, wanted)
    assert news is not None
    assert bool((news.lower == 0).all())
