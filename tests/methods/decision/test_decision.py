"""The portfolio behind `decide`: never worse than its parts, sound on random networks, anytime, on published nets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib import Verdict, attack, verify_batch
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.tails.run import TailRun
from bnn_vnnlib.methods import decision
from bnn_vnnlib.model import GaussianDiagonal, Model, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.problem import from_labels
from contract import zoo
from fuzz.posterior_families import FAMILIES
from support.builders import bounds_of, expectation, model, problem, random_model, random_samples, rows
from support.networks import Builder
from support.tails import random_deviations

TRANSFORMS = {"softmax": torch.softmax, "identity": lambda y, _: y}


@given(
    st.integers(0, 10_000), st.sampled_from([[3, 4], [2, 8, 3], [3, 6, 6, 3], [2, 5, 5, 5, 2]]),
    st.sampled_from(["relu", "tanh", "sigmoid"]), st.sampled_from([0.01, 0.1, 0.3, 1.0]),
    st.sampled_from(["categorical", "gaussian"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_bounds_and_verdicts_against_sampled_networks(seed, widths, activation, spread, likelihood, samples):
    """PGD on the predictive of thousands of networks crosses no bound and contradicts no verdict."""
    if samples:
        net = random_samples(seed, widths, 4, spread=spread, activation=activation, likelihood=likelihood)
    else:
        net = random_model(seed, widths, spread=spread, activation=activation, likelihood=likelihood)
    transform = "softmax" if likelihood == "categorical" else "identity"
    center = np.random.default_rng(seed).normal(size=(3, widths[0]))
    lower, upper = center - 0.05, center + 0.05
    label = evaluate(net.network, torch.as_tensor(center)).argmax(-1)
    found = verify_batch(net, lower, upper, labels=label.numpy(), query="decision", timeout=20.0)
    generator = torch.Generator().manual_seed(seed)
    if samples:
        params = {name: torch.as_tensor(values) for name, values in net.posterior.samples.items()}
        share = torch.as_tensor(net.posterior.probabilities)[:, None, None]
    else:
        params, share = (
            sample(net.network, net.posterior, 3000, generator),
            torch.full((3000, 1, 1), 1 / 3000.0),
        )
    question = from_labels(torch.as_tensor(lower), torch.as_tensor(upper), label, widths[-1])
    attacked = attack.run(net.network, question, params, Attack(steps=10, restarts=2), transform, aim="mean")[0][0]
    low, high = (torch.as_tensor(side) for side in (lower, upper))
    points = [attacked, low, high, *(low + (high - low) * torch.rand(3, 3, 1, generator=generator).double())]
    for x in points:
        y = TRANSFORMS[transform](evaluate(net.network, x, params), -1)
        gap = (y[:, :, None] * question.rows.outputs).sum(-1)
        for values, bounds in ((y, (found.lower, found.upper)), (gap, (found.row_lower, found.row_upper))):
            mean = (share * values).sum(0)
            error = 1e-9 + (0.0 if samples else 7 * values.std(0) / np.sqrt(3000))
            assert (torch.as_tensor(bounds[0]) <= mean + error).all()
            assert (torch.as_tensor(bounds[1]) >= mean - error).all()
            if values is gap:
                for i in range(3):
                    if found.verdicts[i] == Verdict.UNSAT:
                        assert (mean[i] > -(1e-9 if samples else error[i])).all()
    assert (found.lower <= found.upper + 1e-12).all()
    assert (found.row_lower <= found.row_upper + 1e-12).all()


@pytest.mark.parametrize("widths", [[2, 8, 3], [3, 6, 6, 3]])
@pytest.mark.parametrize("kind", ["gaussian", "samples"])
def test_the_portfolio_is_as_good_as_its_parts(widths, kind):
    unit = torch.eye(3, dtype=torch.float64)[None]
    for seed in range(4):
        net = (random_model if kind == "gaussian" else random_samples)(
            seed, widths, *([5] if kind == "samples" else [])
        )
        expect = expectation(net, "softmax")
        lower = torch.randn(2, widths[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        best = expect.lower(lower, lower + 0.1, unit)
        parts = [method.lower(lower, lower + 0.1, unit) for method in expect.steps.rows]
        assert len(parts) > 1
        assert all((best >= part - 1e-12).all() for part in parts)
        label = torch.zeros(2, dtype=torch.int64)
        outcome = decision.decide(expect, from_labels(lower, lower + 0.1, label, 3), Attack(restarts=2, steps=5))
        if expect.steps.quick:
            assert (outcome.lower >= expect.steps.quick[0].lower(lower, lower + 0.1, unit) - 1e-12).all()


@pytest.mark.parametrize(("likelihood", "bound"), [("categorical", 0.3), ("gaussian", -30.0)])
def test_large_networks_get_one_quick_pass_and_the_rest_if_it_does_not_suffice(likelihood, bound, monkeypatch):
    """What is proved by one budget is sound, and no further pass is paid for."""
    make = Builder(3)
    x = make.activation(make.shift(make.conv(make.input(1, 2, 5, 5), (3, 2, 2, 2)), (3, 1, 1)))
    network = make.network(make.dense(make.reshape(x, 1, int(np.prod(make.shape(x)))), 2))
    rng = np.random.default_rng(0)
    deviations = random_deviations(network, rng, 0.02)
    net = Model(network, GaussianDiagonal({k: sd**2 for k, sd in deviations.items()}), likelihood, None, b"")
    x = torch.as_tensor(rng.uniform(-1, 1, (1, network.signature.input_size)))
    params = sample(network, net.posterior, 3000, torch.Generator().manual_seed(0))
    y = evaluate(network, x, params)
    mean = (torch.softmax(y, -1) if likelihood == "categorical" else y).mean(0)
    top = int(mean.argmax())
    bound = bound if likelihood == "categorical" else float(mean[0, top]) + bound
    passes = []

    def noted(self, *args, real=TailRun.tail, **named):
        passes.append(self.box.lower.shape[0])
        return real(self, *args, **named)

    monkeypatch.setattr(TailRun, "tail", noted)
    monkeypatch.setattr(backward, "lengthy", lambda network, position: True)
    monkeypatch.setattr("bnn_vnnlib.methods.decision.method.lengthy", lambda network, position: True)
    expect, unit = expectation(net, "softmax" if likelihood == "categorical" else "identity"), torch.eye(2)[top]
    known = float(expect.steps.quick[0].lower(x - 0.1, x + 0.1, unit[None, None].double()))
    for least, enough in ((bound, True), (known + 1e-6, False)):
        passes.clear()
        asked = problem(x - 0.1, x + 0.1, rows(unit[None], [least]), outputs=2)  # violated where D_top <= least
        outcome = decision.decide(expect, asked, Attack(restarts=1, steps=3))
        assert passes[0] == 1
        assert (max(passes) == 1) == enough
        assert bool(outcome.refuted) or not enough
        error = 5 * y.std(0) / 3000**0.5 + 0.01
        assert (outcome.lower <= mean + error).all()
        assert (outcome.upper >= mean - error).all()


def test_boxes_alone_where_they_are_asked_for():
    net = random_model(0, [2, 8, 3])
    for settings_ in ({"boxes": "sampled"}, {"margin": 3.0}):
        expect = expectation(net, "softmax", **settings_)
        assert [type(method).__name__ for method in expect.steps.rows] == ["ByWeights"]
    assert bounds_of(net, "softmax").engine.method == "linear"


def certain(logits: list[float]) -> object:
    """Softmax of fixed logits, with a little noise in an input weight that nothing depends on."""
    w = np.zeros((2, 1))
    return model(
        [(np.zeros((1, 1)), [1.0]), (w, logits)], [(np.full((1, 1), 1e-6), [0.0]), (w, [0.0, 0.0])],
        likelihood="categorical",
    )  # fmt: skip


@pytest.mark.parametrize(("tau", "verdict"), [(0.8, Verdict.UNSAT), (0.9, Verdict.SAT)])
def test_confidence_thresholds(tau, verdict):
    """Certified confident: Y_0 >= tau, the violation being Y_0 <= tau. The truth is 1 / (1 + e^-2) = .8808."""
    net = certain([2.0, 0.0])
    box = np.array([[-1.0]]), np.array([[1.0]])
    found = verify_batch(net, *box, properties=[[rows([1.0, 0.0], tau)]], query="decision")
    assert found.verdicts[0] == verdict
    assert found.row_lower[0, 0] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)


@pytest.mark.parametrize(("tau", "verdict"), [(0.6, Verdict.UNSAT), (0.5, Verdict.SAT)])
def test_certified_uncertain(tau, verdict):
    """No class exceeds tau: violations Y_0 >= tau or Y_1 >= tau. The truth is 1 / (1 + e^-.2) = .5498."""
    net = certain([0.2, 0.0])
    box = np.array([[-1.0]]), np.array([[1.0]])
    cases = [rows([-1.0, 0.0], -tau), rows([0.0, -1.0], -tau)]
    assert verify_batch(net, *box, properties=[cases], query="decision").verdicts[0] == verdict


def test_ties_are_violations():
    net = certain([0.0, 0.0])
    box = np.array([[-1.0]]), np.array([[1.0]])
    found = verify_batch(net, *box, labels=[0], query="decision")
    assert found.verdicts[0] != Verdict.UNSAT


def test_time_that_is_up_leaves_true_bounds():
    net = random_model(1, [3, 16, 4], likelihood="categorical")
    center = np.random.default_rng(0).normal(size=(20, 3))
    for timeout in (1e-9, 0.02, 0.1):
        found = verify_batch(
            net, center - 0.2, center + 0.2, labels=np.zeros(20, int), query="decision", timeout=timeout
        )
        params = sample(net.network, net.posterior, 2000, torch.Generator().manual_seed(0))
        y = torch.softmax(evaluate(net.network, torch.as_tensor(center), params), -1)
        error = 7 * (y.std(0) / np.sqrt(2000)).numpy() + 1e-9
        assert (found.lower <= y.mean(0).numpy() + error).all()
        assert (found.upper >= y.mean(0).numpy() - error).all()


@pytest.mark.parametrize(("name", "most"), [("hcas_rob_pra0_tau20", 1.02), ("hcas_hmc_pra0_tau20", 1.05)])
def test_the_gap_of_hcas_is_near_the_attained_one(shared: Path, tmp_path: Path, name: str, most: float):
    """Ten points at +-.025, the attained gap from sampled points; see docs/measurements.md for all of them."""
    import subprocess
    import sys

    from bnn_vnnlib import read_model

    script = Path(__file__).resolve().parents[3] / "scripts" / "npz_to_onnx.py"
    path = tmp_path / "net.onnx"
    source = shared / "data" / "posteriors" / f"{name}.npz"
    if not source.exists():
        pytest.skip(f"{source.name} is not here")
    subprocess.run([sys.executable, script, source, path, "--likelihood", "categorical"], check=True)
    net = read_model(path)
    x = np.load(shared / "data" / "posteriors" / "hcas_X.npy").astype(float)
    x = torch.as_tensor(x[np.random.default_rng(0).choice(len(x), 10, replace=False)])
    if net.posterior.__class__.__name__ == "WeightSamples":
        params = {key: torch.as_tensor(values) for key, values in net.posterior.samples.items()}
        share = torch.as_tensor(net.posterior.probabilities)[:, None, None]
    else:
        params = sample(net.network, net.posterior, 300, torch.Generator().manual_seed(0))
        share = torch.full((300, 1, 1), 1 / 300.0)
    points = x + 0.05 * torch.rand(150, 10, 3, generator=torch.Generator().manual_seed(0)).double() - 0.025
    corners = torch.cartesian_prod(*[torch.tensor([-0.025, 0.025]).double()] * 3)
    points = torch.cat([points, x + corners[:, None]])
    y = (share * torch.softmax(evaluate(net.network, points.flatten(0, 1), params), -1)).sum(0).unflatten(0, (-1, 10))
    label = y.mean(0).argmax(-1)
    chosen = torch.nn.functional.one_hot(label, 5).double()[:, None]
    expect = expectation(net, "softmax")
    (method,) = expect.steps.aimed
    low, high = method.lower(x - 0.025, x + 0.025, chosen), -method.lower(x - 0.025, x + 0.025, -chosen)
    attained = (y.amax(0) - y.amin(0)).gather(-1, label[:, None])
    assert float((high - low).mean()) <= most * float(attained.mean()) + 0.004
    assert float((high - low).mean()) >= float(attained.mean()) - 0.002


@pytest.mark.parametrize("kind", ["gaussian", "samples"])
def test_rows_that_share_their_boxes_are_bounded_as_well_as_alone(kind):
    """All rows of an item split together, against each of them split for itself."""
    for seed in range(3):
        net = (random_model if kind == "gaussian" else random_samples)(
            seed, [2, 8, 3], *([5] if kind == "samples" else []), spread=0.05
        )
        (method,) = expectation(net, "softmax").steps.aimed
        center = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        lower, upper = center - torch.tensor([[0.05], [0.2], [0.0]]), center + torch.tensor([[0.05], [0.2], [0.0]])
        unit = torch.eye(3, dtype=torch.float64)
        outputs = torch.cat([unit, -unit, unit[:1] - unit[1:]])[None]
        inputs = 0.1 * torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        one_look = method.__class__(method.source, method.deadline).lower(lower, upper, outputs, inputs)
        together = method.lower(lower, upper, outputs, inputs)
        rows_alone = [method.lower(lower, upper, outputs[:, [r]], inputs[:, [r]]) for r in range(8)]
        assert (together >= one_look).all()
        assert float((together - one_look).max()) > 0.002  # splitting does something here
        assert float((together - torch.cat(rows_alone, 1)).abs().max()) <= 1.1 * method.effort.tolerance


@pytest.mark.parametrize("only", ["", "last layer", "few"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_softmax_of_one_output_is_1(family: str, only: str) -> None:
    """Whatever the posterior, at a point and over a box."""
    net = zoo.model_of("one output", family, "wide", "categorical", only=only)
    lower, upper = np.array([[0.5, -0.5], [0.5, -0.5]]), np.array([[0.5, -0.5], [0.6, -0.4]])
    for options in ({}, {"goal": "bounds", "gap": 0.01, "timeout": 1.0}):
        found = verify_batch(net, lower, upper, query="decision", **options)
        assert found.lower.tolist() == found.upper.tolist() == [[1.0], [1.0]]
