"""Bounds on the expected softmax: closed forms, lines and splitting, against numbers that share nothing with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.bounds.dense.hidden import hidden
from bnn_vnnlib.gaussian.relu import relu_mean
from bnn_vnnlib.methods.decision.regression.by_tails import ExpectationByTails
from bnn_vnnlib.methods.decision.softmax import by_tails
from bnn_vnnlib.methods.decision.softmax.by_samples import Samples
from bnn_vnnlib.methods.decision.softmax.by_tails import SoftmaxTails
from bnn_vnnlib.methods.decision.softmax.method import SPLIT, SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import MeanNetwork, OneLayerSoftmax
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.dense_chain import DenseChain, dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.problem import from_labels, from_property
from bnn_vnnlib.splitting.frontier import Effort, Look, minimise
from bnn_vnnlib.system.clock import Deadline
from support.builders import bounds_of, expectation, model, properties, random_model, random_samples

CPU = torch.device("cpu")


def layers_of(net) -> DenseChain:
    found = dense_chain(net.network, net.posterior, CPU)
    assert found is not None
    return found


def unit(m: int) -> torch.Tensor:
    return torch.eye(m, dtype=torch.float64)[None]


def both(method, lower, upper, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper bounds on every D_i."""
    found = method.lower(lower, upper, torch.cat([unit(m), -unit(m)], 1))
    return found[:, :m], -found[:, m:]


def inside(lower, upper, count: int, seed: int) -> torch.Tensor:
    """Points (count, N, n) of the boxes, their corners among them."""
    share = torch.rand(count, *lower.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    share[::2] = share[::2].round()
    return (lower + (upper - lower) * share).clamp(lower, upper)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.3, 3.0])
@pytest.mark.parametrize("width", [0.0, 0.05, 2.0])
def test_lines_of_the_hidden_layer(spread, width):
    for seed in range(20):
        net = random_model(seed, [3, 8, 4], spread=spread)
        layers = layers_of(net)
        center = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        center[0] = 0.0  # s has a kink there if there is no noise in the bias
        lower, upper = center - width, center + width
        found = hidden(layers.first, lower, upper).lines(layers.last.mean, layers.last.bias)
        for x in inside(lower, upper, 40, seed):
            m = x @ layers.first.mean.mT + layers.first.bias
            s = torch.sqrt(x**2 @ layers.first.variance.mT + layers.first.bias_variance)
            truth = relu_mean(m, s) @ layers.last.mean.mT + layers.last.bias
            line = found.value + (found.slope @ (x - center)[..., None])[..., 0]
            assert (line <= truth + 1e-9).all()
            if width == 0.0:
                assert torch.allclose(line, truth, atol=1e-8)


def quadrature(net, x: float) -> np.ndarray:
    """D(x) of a network with one hidden neuron and two outputs: over its value, then over the difference of logits."""
    tensors, variances = net.network.tensors, net.posterior.variances
    m, s = tensors["W0"][0, 0] * x + tensors["b0"][0], np.sqrt(variances["W0"][0, 0] * x * x + variances["b0"][0])
    t = np.linspace(-9, 9, 601)
    p = np.exp(-t * t / 2)
    p /= p.sum()
    edges = np.append(t, -m / s) if s > 0 else t  # the kink of the relu
    u = np.unique(np.concatenate([np.linspace(-9, 9, 601), edges]))
    density = np.exp(-u * u / 2) / np.sqrt(2 * np.pi)
    z = np.maximum(m + s * u, 0)
    mean = (tensors["W1"][0, 0] - tensors["W1"][1, 0]) * z + tensors["b1"][0] - tensors["b1"][1]
    deviation = np.sqrt(variances["W1"].sum() * z * z + variances["b1"].sum())
    inner = (p / (1 + np.exp(-(mean[:, None] + deviation[:, None] * t)))).sum(-1)
    first = np.trapezoid(inner * density, u)
    return np.array([first, 1 - first])


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.4, 1.0])
def test_one_neuron_by_quadrature(spread):
    gaps = []
    for seed in range(6):
        net = random_model(seed, [1, 1, 2], spread=spread)
        source = OneLayerSoftmax(layers_of(net))
        lower, upper = torch.tensor([[-0.4]], dtype=torch.float64), torch.tensor([[0.9]], dtype=torch.float64)
        truth = np.stack([quadrature(net, x) for x in np.linspace(-0.4, 0.9, 14)])
        once = both(SoftmaxRows(source, Deadline()), lower, upper, 2)
        split = both(SoftmaxRows(source, Deadline(), SPLIT), lower, upper, 2)
        for low, high in (once, split):
            assert (low[0].numpy() <= truth.min(0) + 1e-6).all()
            assert (high[0].numpy() >= truth.max(0) - 1e-6).all()
        assert (split[0] >= once[0] - 1e-12).all()
        gaps.append(float((split[1] - split[0]).mean() - np.ptp(truth, axis=0).mean()))
    if spread <= 0.1:
        assert np.mean(gaps) < 0.01


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from([0.0, 0.02, 0.5]))
@settings(max_examples=15, deadline=None)
def test_one_layer_against_sampled_networks(seed, spread, width):
    """Rows of all kinds; the error of the sampled means is less than 6 of its standard deviations."""
    net = random_model(seed, [3, 10, 4], spread=spread)
    generator = torch.Generator().manual_seed(seed)
    lower = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    upper = lower + width
    outputs = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    inputs = torch.randn(3, 6, 3, generator=generator, dtype=torch.float64)
    source = OneLayerSoftmax(layers_of(net))
    found = [
        SoftmaxRows(source, Deadline(), effort).lower(lower, upper, outputs, inputs)
        for effort in (None, Effort(1e-3, 60))
    ]
    assert (found[1] >= found[0]).all()
    params = sample(net.network, net.posterior, 4000, generator)
    for x in inside(lower, upper, 6, seed):
        rows = (torch.softmax(evaluate(net.network, x, params), -1)[:, :, None] * outputs).sum(-1)
        error = 6 * rows.std(0) / np.sqrt(len(rows)) + 1e-9
        truth = rows.mean(0) + (inputs @ x[..., None])[..., 0]
        assert (found[1] <= truth + error).all()


def test_fixed_weights_are_met_at_points():
    net = random_model(3, [2, 6, 3], spread=0.0)
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = both(SoftmaxRows(OneLayerSoftmax(layers_of(net)), Deadline()), x, x, 3)
    truth = torch.softmax(evaluate(net.network, x), -1)
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert float((high - low).max()) < 1e-8


@pytest.mark.parametrize(("deviation", "x"), [(1.0, 1.0), (1e150, 1e-170), (1e-150, 1e130), (1e-120, 1e-60)])
def test_squares_that_underflow(deviation, x):
    """The hidden neuron is relu(N(0, (sd x)^2)), in any units; D_0 = E sigmoid(10 relu(N(0, 1)))."""
    scale = 10 / (deviation * x)
    net = model(
        [([[0.0]], [0.0]), ([[scale if np.isfinite(scale) else 1.0], [0.0]], [0.0, 0.0])],
        [([[deviation**2]], [0.0]), ([[0.0], [0.0]], [0.0, 0.0])],
    )  # fmt: skip
    u = np.linspace(0, 12, 200_001)
    truth = 0.25 + np.trapezoid(np.exp(-u * u / 2) / np.sqrt(2 * np.pi) / (1 + np.exp(-10 * u)), u)
    point = torch.tensor([[x]], dtype=torch.float64)
    low, high = both(SoftmaxRows(OneLayerSoftmax(layers_of(net)), Deadline()), point, point, 2)
    assert float(low[0, 0]) <= truth <= float(high[0, 0])


def test_an_item_does_not_depend_on_its_neighbours():
    net = random_model(5, [3, 12, 4], spread=0.2)
    method = SoftmaxRows(OneLayerSoftmax(layers_of(net)), Deadline(), Effort(1e-3, 50))
    lower = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = method.lower(lower, lower + 0.4, unit(4))
    alone = torch.cat([method.lower(x[None], x[None] + 0.4, unit(4)) for x in lower])
    assert torch.allclose(together, alone, atol=1e-12)


def test_graphs_without_the_form_are_left_alone():
    net = random_model(0, [2, 4, 3])
    assert dense_chain(net.network, net.posterior, CPU) is not None
    for other in (random_model(0, [2, 4, 3], activation="tanh"), random_model(0, [2, 3])):
        expect = expectation(other, "softmax")
        assert not expect.steps.aimed


@pytest.mark.parametrize("widths", [[2, 6, 3], [2, 5, 5, 3]])
def test_samples_against_their_exact_decision(widths):
    for seed in range(6):
        net = random_samples(seed, widths, 5)
        expect = expectation(net, "softmax")
        method = SoftmaxRows(Samples(expect.task.bounds.engine, expect.task.weights[0], False), Deadline())
        lower = torch.randn(2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        upper = lower + 0.3
        params = {name: torch.as_tensor(values) for name, values in net.posterior.samples.items()}
        x = inside(lower, upper, 400, seed)
        y = torch.softmax(evaluate(net.network, x.flatten(0, 1), params), -1)
        truth = (expect.task.weights[1][:, None, None] * y).sum(0).unflatten(0, x.shape[:2])
        once = both(method, lower, upper, 3)
        split = both(SoftmaxRows(method.source, Deadline(), SPLIT), lower, upper, 3)
        for low, high in (once, split):
            assert (low <= truth.amin(0) + 1e-12).all()
            assert (high >= truth.amax(0) - 1e-12).all()
        assert float((split[1] - split[0] - (truth.amax(0) - truth.amin(0))).max()) < 0.01


def test_one_logit_is_a_softmax_with_zero():
    for net in (random_model(2, [2, 5, 1], spread=0.1), random_samples(2, [2, 5, 1], 4)):
        expect = expectation(net, "sigmoid")
        portfolio = expect.steps
        lower = torch.tensor([[0.1, -0.2]], dtype=torch.float64)
        low, high = both(portfolio.aimed[0], lower, lower + 0.2, 1)
        params = sample(net.network, net.posterior, 4000, torch.Generator().manual_seed(0))
        truth = torch.sigmoid(evaluate(net.network, inside(lower, lower + 0.2, 30, 0).flatten(0, 1), params)).mean(0)
        assert float(low) <= float(truth.min()) + 0.03
        assert float(high) >= float(truth.max()) - 0.03
        assert float(high - low) < float(truth.max() - truth.min()) + 0.06


@pytest.mark.parametrize("inputs", [2, 24])
def test_comparisons_are_true(inputs):
    """Proved order of two classes, by splitted inputs and by the mean network, against a sampled predictive."""
    proved = 0
    for seed in range(8):
        net = random_model(seed, [inputs, 8, 3], spread=0.08)
        generator = torch.Generator().manual_seed(seed)
        center = torch.randn(4, inputs, generator=generator, dtype=torch.float64)
        label = evaluate(net.network, center).argmax(-1)
        width = 0.3 / inputs
        question = from_labels(center - width, center + width, label, 3)
        criterion = MeanNetwork(bounds_of(net, "softmax"), OneLayerSoftmax(layers_of(net)))
        rows, items = criterion.false_rows(question), criterion.refuted(question)
        assert (items | ~rows.all(-1)).all()
        params = sample(net.network, net.posterior, 3000, generator)
        for x in inside(question.lower, question.upper, 12, seed):
            y = torch.softmax(evaluate(net.network, x, params), -1)
            gap = (y[:, :, None] * question.rows.outputs).sum(-1)
            error = 6 * gap.std(0) / np.sqrt(len(gap)) + 1e-9
            assert (~rows | (gap.mean(0) > -error)).all()
            assert (~items | (gap.mean(0) > -error).all(-1)).all()
        proved += int(items.sum())
    assert proved > 5


def test_what_is_not_a_comparison_is_not_decided_by_margins():
    """Y_0 <= 0.9 is true for D, although class 0 leads; the criterion must not refute it."""
    net = model([(np.eye(2), [0, 0]), (np.eye(2), [0, 0])], [(0.01 * np.ones((2, 2)), [0, 0])] * 2)
    criterion = MeanNetwork(bounds_of(net, "softmax"), OneLayerSoftmax(layers_of(net)))
    lower = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    question = from_labels(lower, lower, torch.tensor([0]), 2)
    assert bool(criterion.refuted(question).all())
    shifted = from_labels(lower, lower, torch.tensor([0]), 2)
    shifted.rows.bound.add_(0.9)
    assert not bool(criterion.refuted(shifted).any())
    assert not bool(criterion.false_rows(shifted).any())


def test_a_row_with_inputs_is_left_alone_where_many_inputs_vary():
    """Y_0 <= Y_1 and Y_2 + X_0 <= 2.9 both hold where X_0 = 2; the mean network is asked about the first alone."""
    net = model(
        [(np.eye(3, 21), [0, 0, 0]), (np.zeros((3, 3)), [0, 1, 0])],
        [(0.01 * np.ones((3, 21)), [0, 0, 0]), (0.01 * np.ones((3, 3)), [0, 0, 0])],
    )
    low = np.append(2.0, -np.ones(20))
    case = [([1.0, -1.0, 0.0], None, 0.0, False), ([0.0, 0.0, 1.0], np.eye(1, 21)[0], 2.9, False)]
    question = from_property(properties(net, [(low, low + 0.1)], [(0, case)]))
    criterion = MeanNetwork(bounds_of(net, "softmax"), OneLayerSoftmax(layers_of(net)))
    assert not bool(criterion.refuted(question).any())
    turned = from_property(properties(net, [(low, low + 0.1)], [(0, [([-1.0, 1.0, 0.0], None, 0.0, False), case[1]])]))
    assert bool(criterion.refuted(turned).all())


@pytest.mark.parametrize("spread", [0.02, 0.2])
def test_tails_of_deep_classifiers_against_sampled_networks(spread):
    best = 0.0
    for seed in range(4):
        net = random_model(seed, [3, 8, 8, 3], spread=spread)
        expect = expectation(net, "softmax")
        (method,), outputs_of = expect.steps.quick, expect.steps.last
        assert isinstance(method, SoftmaxTails)
        assert [part.thorough for part in outputs_of] == [False, True]
        generator = torch.Generator().manual_seed(seed)
        lower = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        outputs = torch.cat([unit(3), torch.randn(1, 4, 3, generator=generator, dtype=torch.float64)], 1)
        every = [part.lower(lower, lower + 0.05, outputs) for part in (method, *outputs_of)]
        found = torch.stack(every).amax(0)
        if spread == 0.02:  # what is linear in the noise costs nothing
            assert ((every[0] + 0.001 < every[1])[:, :3]).all()
        params = sample(net.network, net.posterior, 3000, generator)
        for x in inside(lower, lower + 0.05, 10, seed):
            rows = (torch.softmax(evaluate(net.network, x, params), -1)[:, :, None] * outputs).sum(-1)
            assert (found <= rows.mean(0) + 6 * rows.std(0) / np.sqrt(len(rows)) + 1e-9).all()
        best = max(best, float(found[:, :3].amax()))
    assert best > 0.3


@pytest.mark.parametrize("classes", [3, by_tails.ALL_UP_TO + 1])
def test_tails_come_first_where_there_are_no_closed_forms_and_few_classes(classes):
    net = random_model(0, [2, 4, 4, classes], activation="tanh")
    expect = expectation(net, "softmax")
    found = expect.steps
    quick, last = [[type(method) for method in methods] for methods in (found.quick, found.last)]
    few = [SoftmaxTails, ExpectationByTails], [ExpectationByTails]
    assert (quick, last) == (few if classes == 3 else ([], [SoftmaxTails]))


def test_tails_of_many_classes_bound_what_the_rows_count_most(monkeypatch):
    """As where all of them are bounded, for rows that count one class; and no more than sampled means."""
    classes = by_tails.ALL_UP_TO + 2
    net = random_model(1, [3, 6, classes], spread=0.1, activation="tanh")
    expect = expectation(net, "softmax")
    (method,) = expect.steps.last
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    one = unit(classes)[0]
    counted = torch.stack([one[[5, 5, 0]], one[[1, 2, 3]], one[[13, 0, 13]], one[[7, 7, 7]]])
    rows = torch.cat([counted, torch.randn(4, 2, classes, generator=generator, dtype=torch.float64)], 1)
    found = method.lower(lower, lower + 0.05, rows)
    assert by_tails._classes(rows).shape[1] < classes
    monkeypatch.setattr(by_tails, "ALL_UP_TO", classes)
    whole = method.lower(lower, lower + 0.05, rows)
    torch.testing.assert_close(found[:, :3], whole[:, :3], rtol=1e-9, atol=1e-9)
    assert (whole >= found - 1e-12).all()
    assert (whole[:, 3:] > found[:, 3:] + 0.01).any()
    params = sample(net.network, net.posterior, 3000, generator)
    for x in inside(lower, lower + 0.05, 10, 0):
        drawn = (torch.softmax(evaluate(net.network, x, params), -1)[:, :, None] * rows).sum(-1)
        assert (whole <= drawn.mean(0) + 6 * drawn.std(0) / np.sqrt(len(drawn)) + 1e-9).all()


def test_a_row_takes_what_the_bounds_of_all_classes_leave(monkeypatch):
    """D >= (.2, .1, 0) and D_1 <= .3: -D_0 >= -.9, D_0 - D_1 >= -.6, D_1 + 2 D_2 >= .1, -D_1 >= -.3, 1 - D_1 >= .7."""
    net = random_model(0, [2, 4, 4, 3], activation="tanh")
    expect = expectation(net, "softmax")
    method, _ = expect.steps.quick
    known = torch.tensor([[0.2, 0.1, 0.0]], dtype=torch.float64)
    most = torch.tensor([[1.0, 0.3, 1.0]], dtype=torch.float64)
    monkeypatch.setattr(SoftmaxTails, "_bounds", lambda *_: (known, most))
    rows = [[-1.0, 0, 0], [1, -1, 0], [0, 1, 2], [1, 1, 1], [0, -1, 0], [1, 0, 1]]
    rows = torch.tensor([rows], dtype=torch.float64)
    point = torch.zeros(1, 2, dtype=torch.float64)
    found = method.lower(point, point, rows)[0]
    truth = torch.tensor([-0.9, -0.6, 0.1, 1.0, -0.3, 0.7], dtype=torch.float64)
    assert (found <= truth).all()
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)


def test_splitting_reaches_the_minimum_and_stops_at_its_goal():
    """x^2 - 2 x on [-3, 2] by interval arithmetic; the least value is -1."""
    calls = []

    def bound(item, lower, upper):
        calls.append(len(item))
        square = torch.where((lower <= 0) & (upper >= 0), 0.0, torch.minimum(lower**2, upper**2))
        return Look(square - 2 * upper, (lower + upper - 2)[:, None], lower, upper)

    def least(goal=None, deadline=Deadline(), known=-torch.inf):
        low, high, known = (torch.full((1, 1), value, dtype=torch.float64) for value in (-3, 2, known))
        goal = None if goal is None else torch.full_like(low, goal)
        return minimise(bound, None, low, high, known, Effort(1e-3, 10_000), deadline, goal)

    found = least()
    assert -1.002 < float(found) <= -1.0
    everything = sum(calls)
    calls.clear()
    found = least(-1.5)
    assert -1.5 < float(found) <= -1.0
    assert sum(calls) < everything
    calls.clear()
    found = least(-0.5)
    assert float(found) <= -1.0
    assert sum(calls) < everything
    assert float(least(deadline=Deadline(0.0), known=-9.0)) == -9.0


def test_rows_give_up_what_the_distance_of_the_laws_may_cost():
    """A row is off by the distance times the difference of its largest and least coefficient."""
    net = random_model(1, [3, 6, 3], spread=0.2)
    lower = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.tensor([[[1.0, 0.0, 0.0], [2.0, -1.0, 0.5]]], dtype=torch.float64)
    source = OneLayerSoftmax(layers_of(net))
    for effort in (None, Effort(1e-3, 20)):
        exact, moved = (SoftmaxRows(source, Deadline(), effort, off).lower(lower, lower, rows) for off in (0.0, 0.01))
        assert (moved <= exact - 0.01 * torch.tensor([1.0, 3.0]) * (1 - 1e-12)).all()
        torch.testing.assert_close(moved, exact - 0.01 * torch.tensor([1.0, 3.0], dtype=torch.float64))
