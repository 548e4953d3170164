"""Two rows at once: joint failures against samples and closed forms, and what a union of rows gains by them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bnn_vnnlib.gaussian import inversion
from bnn_vnnlib.methods.safety.large_variance import pairs
from bnn_vnnlib.methods.safety.large_variance.pairs import PairsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.rows import LargeVarianceBounds
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import Problem, from_cases, from_labels
from bnn_vnnlib.system.clock import Deadline
from support.large_variance import in_numpy, least_margins, network, sampled

pairs_at_boxes, both = map(in_numpy, (PairsAtBoxes, pairs.both))
pair_of, transform = map(in_numpy, (pairs._pair, pairs._transform))

ROWS = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]])


def at_point(x: np.ndarray, bound: np.ndarray, rows: np.ndarray = ROWS) -> PairsAtBoxes:
    return pairs_at_boxes(x[None], x[None], rows[None], bound[None], np.array([0]))


def margins(net: DenseChain, x: np.ndarray, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(count, 2) rows at x of sampled networks; given the hidden layer, the outputs are drawn."""
    rng = np.random.default_rng(seed)
    v, b = sampled(net.first, count, rng)
    h = np.maximum(v @ x + b, 0.0)
    last = net.last
    mean, spread = h @ last.mean.numpy().T + last.bias.numpy(), h**2 @ last.variance.numpy().T
    y = mean + np.sqrt(spread + last.bias_variance.numpy()) * rng.standard_normal(mean.shape)
    return np.asarray(y @ rows.T)


@pytest.mark.parametrize(("seed", "hidden"), [(0, 6), (1, 12), (2, 32), (3, 32)])
def test_both_rows_at_a_point(seed: int, hidden: int) -> None:
    net, x = network(seed, 2, hidden, 3, 0.7), np.random.default_rng(seed).normal(size=2)
    bound = np.quantile(margins(net, x, ROWS, 20_000, 1), 0.15, axis=0)
    count = 400_000
    hits = int((margins(net, x, ROWS, count, 2) <= bound).all(1).sum())
    found = float(both(net, at_point(x, bound), Deadline())[0])
    assert stats.binom.cdf(hits, count, found) > 1e-9
    assert found > (0.95 * hits / count - 1e-3 if hidden > 10 else 0.0)


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> DenseChain:
    """Outputs that are Gaussian, but for a hidden neuron of hardly any weight."""
    tiny = torch.full((3, 1), 1e-30, dtype=torch.float64)
    first = DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in ([[0.0]], [-1.0], [[1.0]], [1.0])))
    shift, noise = (
        torch.tensor([0.0, *-mean]),
        torch.tensor([covariance[0, 1], *(np.diag(covariance) - covariance[0, 1])]),
    )
    return DenseChain.relu(first, DenseLayer.exact(torch.zeros_like(tiny), shift, tiny**2 * 1e10, noise))


@settings(max_examples=150, deadline=None)
@given(
    waves=st.integers(1, 8), beyond=st.floats(0.0, 5.0), eta=st.floats(1e-3, 2.0), reach=st.floats(0.2, 5.0),
    mean=st.tuples(st.floats(-0.5, 2.0), st.floats(-0.5, 2.0)), shared=st.floats(0.05, 0.9),
)  # fmt: skip
def test_what_is_left_out_is_paid_for(
    waves: int, beyond: float, eta: float, reach: float, mean: tuple[float, float], shared: float
) -> None:
    """Short series, short periods and much smoothing, for a law that is known."""
    covariance = np.array([[1.0, shared], [shared, 1.0]])
    truth = float(stats.multivariate_normal.cdf(np.zeros(2), np.array(mean), covariance))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "WAVES", waves)
        patch.setattr(pairs, "DEVIATIONS", beyond)
        patch.setattr(pairs, "SMOOTH", ((eta, reach),))
        net = gaussian(np.array(mean), covariance)
        found = float(both(net, at_point(np.ones(1), np.zeros(2)), Deadline())[0])
    assert found <= truth + 1e-6  # as far as the library knows it


@pytest.mark.parametrize(
    ("waves", "beyond", "smooth"),
    [
        (1, 5.0, (0.01, 5.0)),  # a short series
        (2, 5.0, (0.01, 5.0)),
        (16, 0.0, (0.01, 5.0)),  # a short period
        (16, 0.7, (0.01, 5.0)),
        (16, 5.0, (1.0, 0.2)),  # much smoothing, that is often on the wrong side
        (16, 5.0, (0.5, 0.5)),
    ],
)
def test_each_payment_alone(
    waves: int, beyond: float, smooth: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings where what is left out is nearly all that keeps the bound below the truth."""
    monkeypatch.setattr(pairs, "WAVES", waves)
    monkeypatch.setattr(pairs, "DEVIATIONS", beyond)
    monkeypatch.setattr(pairs, "SMOOTH", (smooth,))
    for one, other, shared in itertools.product((-1.0, -0.2, 0.5, 1.0, 2.0), (-1.0, 0.0, 1.0, 2.0), (0.1, 0.6, 0.9)):
        mean, covariance = np.array([one, other]), np.array([[1.0, shared], [shared, 1.0]])
        truth = float(stats.multivariate_normal.cdf(np.zeros(2), mean, covariance))
        found = float(both(gaussian(mean, covariance), at_point(np.ones(1), np.zeros(2)), Deadline())[0])
        assert found <= truth + 1e-6


@pytest.mark.parametrize("shared", [0.1, 0.5, 0.8])
def test_gaussian_outputs_are_bounded_closely(shared: float) -> None:
    covariance = np.array([[1.0, shared], [shared, 1.0]])
    truth = float(stats.multivariate_normal.cdf(np.zeros(2), np.ones(2), covariance))
    found = float(both(gaussian(np.ones(2), covariance), at_point(np.ones(1), np.zeros(2)), Deadline())[0])
    assert truth - 2e-4 < found <= truth + 1e-6


def test_an_atom_beside_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rows are .02 with probability 1/2: smoothing may not move that to where they hold."""
    monkeypatch.setattr(pairs, "WAVES", 200)
    monkeypatch.setattr(pairs, "DEVIATIONS", 14.0)
    monkeypatch.setattr(pairs, "SMOOTH", ((0.05, 3.5),))
    half, one = torch.full((1, 1), 0.5, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    shift = torch.tensor([0.02, 0.0, 0.0], dtype=torch.float64)
    net = DenseChain.relu(
        DenseLayer.exact(0 * half, 0 * half[0], half, half[0]),
        DenseLayer.exact(0 * one, shift, one, torch.full_like(shift, 1e-12)),
    )
    count = 400_000
    hits = int((margins(net, np.ones(1), ROWS, count, 3) <= 0).all(1).sum())
    found = float(both(net, at_point(np.ones(1), np.zeros(2)), Deadline())[0])
    assert stats.binom.cdf(hits, count, found) > 1e-9
    assert found > 0.6 * hits / count


def test_the_transform_of_two_rows() -> None:
    """Against a sum over samples of the hidden layer, the last layer integrated."""
    net, x = network(5, 2, 4, 3, 0.7), np.array([0.7, -0.4])
    pair = pair_of(net, at_point(x, np.zeros(2)))
    w, v = np.array([[0.4, 0.0, 0.9, 1.3]]), np.array([[0.0, 0.7, -0.8, 1.1]])
    found, wrong = transform(pair, w, v)
    m = margins(net, x, ROWS, 400_000, 4)
    for place in range(4):
        waves = np.exp(1j * (w[0, place] * m[:, 0] + v[0, place] * m[:, 1]))
        assert abs(waves.mean() - found[0, place]) < 6 / np.sqrt(len(m))
    assert wrong.max() < 1e-8


CLOSE = np.array([[1.0, -1.0, 0.0], [1.0, -0.98, -0.02]])


@pytest.mark.parametrize(
    ("steps", "rows"), [((0.05, 0.08), ROWS), ((2.0, 0.08), ROWS), ((0.05, 2.0), ROWS), ((0.1, 0.1), CLOSE)]
)
def test_the_envelope_is_above_all_waves_beyond(steps: tuple[float, float], rows: np.ndarray) -> None:
    """In both series; with a large step, one row's waves have died out and the other one's have not; rows that are
    nearly the same cancel.
    """
    net, x = network(6, 2, 3, 3, 0.7), np.array([0.7, -0.4])
    pair = pair_of(net, at_point(x, np.zeros(2), rows))
    step = np.array([steps])
    eta = np.full((1, 2), 0.3)
    far = np.arange(2 * pairs.WAVES + 1, 400, 2.0)
    near = np.arange(1, 400, 2.0)
    total = 0.0
    for one, other in ((far, near), (near[near < far[0]], far)):  # each pair of numbers once
        w, v = (part.ravel()[None] for part in np.meshgrid(one * step[0, 0], other * step[0, 1]))
        for sign in (1, -1):
            phi = np.abs(transform(pair, w, sign * v)[0])
            damped = np.exp(-(w**2 + v**2) * 0.3**2 / 2) / (w / step[0, 0] * v / step[0, 1])
            total += 8 / np.pi**2 * float((phi * damped).sum())
    for r in (0, 1):
        waves = np.zeros((2, 1, len(far)))
        waves[r] = far * step[0, r]
        phi = np.abs(transform(pair, *waves)[0]) * np.exp(-(waves.sum(0) ** 2) * 0.3**2 / 2)
        total += 4 / np.pi * float((phi / far).sum())
    envelopes = (lambda waves: pairs._envelope(pair.held, 0, waves), lambda waves: pairs._envelope(pair.held, 1, waves))
    waves = inversion.pairs(torch.tensor(step), pairs.WAVES)
    assert 0 < total / 4 <= float(waves.rest(envelopes, torch.tensor(eta)[..., None])[0])


def three_classes(seed: int, hidden: int, eps: float) -> tuple[DenseChain, np.ndarray, Problem]:
    """Rows of both other classes that fail often, and often together."""
    net, x = network(seed, 2, hidden, 3, 0.7), np.random.default_rng(seed).normal(size=2)
    own = margins(net, x, ROWS, 20_000, 1)
    shift = net.last.bias + torch.tensor([0.0, *np.quantile(own, 0.1, axis=0)])
    net = DenseChain.relu(net.first, replace(net.last, bias=shift))
    low, high = torch.tensor(x - eps)[None], torch.tensor(x + eps)[None]
    return net, x, from_labels(low, high, torch.tensor([0]), 3)


@pytest.mark.parametrize(("seed", "hidden", "eps"), [(0, 12, 0.0), (1, 12, 0.02), (2, 24, 0.0), (3, 10, 0.02)])
def test_a_union_is_above_what_fails(seed: int, hidden: int, eps: float) -> None:
    """Exact infima of the same networks for both rows; the bound is below the sum of rows where boxes are points."""
    net, x, question = three_classes(seed, hidden, eps)
    count = 20_000
    least = [least_margins(net, row, 0.0, x - eps, x + eps, count, 5) for row in ROWS]
    failed = int((np.minimum(*least) <= 0).sum())
    found = float(LargeVarianceBounds(DenseChain.relu(net.first, net.last), Deadline()).item_failures(question)[0])
    assert stats.binom.sf(failed - 1, count, min(found, 1.0)) > 1e-9
    if eps == 0:
        assert found < sum(float((part <= 0).mean()) for part in least) - 0.005


def test_the_corner_counts_more_than_the_centre() -> None:
    net, x, _ = three_classes(2, 24, 0.0)
    moved = pairs_at_boxes(x[None] - 0.05, x[None] + 0.05, ROWS[None], np.zeros((1, 2)), np.array([0]))
    corner, center = (float(both(net, asked, Deadline())[0]) for asked in (moved, at_point(x, np.zeros(2))))
    assert corner > center + 1e-3


def test_only_cases_of_one_row_are_joined() -> None:
    """A case of two rows holds less often than either, so that nothing is known of it."""
    net, x, _ = three_classes(2, 24, 0.0)
    single = [(row[None], np.zeros(1), np.zeros(1, dtype=bool)) for row in ROWS]
    double = (ROWS, np.zeros(2), np.zeros(2, dtype=bool))
    found = []
    for cases in ([*single], [double, single[0]], [single[0]]):
        question = from_cases(torch.tensor(x)[None], torch.tensor(x)[None], [cases], 3)
        rows = question.rows
        values = torch.where(rows.case < question.cases, 0.1, 1.0).expand(1, -1).double()
        found.append(float(pairs.shared(net, question, rows.outputs, rows.bound, values, Deadline())[0]))
    assert found[0] > 0.01
    assert found[1:] == [0.0, 0.0]


def test_rows_that_are_the_same_are_no_gain() -> None:
    """Their joint law has no envelope: nothing is known, and nothing is taken off."""
    net, x, _ = three_classes(2, 24, 0.0)
    assert float(both(net, at_point(x, np.zeros(2), ROWS[[0, 0]]), Deadline())[0]) <= 0.12


def test_items_pay_for_the_distance_of_the_laws() -> None:
    """A probability moves by the total variation at most, on either side."""
    net, _, question = three_classes(0, 12, 0.0)
    exact, moved = (LargeVarianceBounds(replace(net, law_distance=off), Deadline()) for off in (0.0, 0.01))
    torch.testing.assert_close(moved.item_failures(question), exact.item_failures(question) + 0.01)
    low, high = question.lower, question.upper
    first, second = (side.unsafe(question, low, high) for side in (exact, moved))
    torch.testing.assert_close(second, (first - 0.01).clamp(min=0.0))
