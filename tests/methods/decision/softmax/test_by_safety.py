"""The expected softmax by P_safe: its steps against linear programs and enumerated samples, and what it decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from bnn_vnnlib import verify_batch
from bnn_vnnlib.methods.decision.softmax.by_safety import MARGINS, SoftmaxBySafety, _least
from bnn_vnnlib.model import GaussianDiagonal, sample
from bnn_vnnlib.network.evaluate import evaluate
from support.builders import outputs, random_model, random_samples

ROWS = [[1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.5, -3.0], [1.0, 1.0, -1.0], [-1.0, -2.0, -2.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("margin", [0.0, 0.3, *MARGINS, 40.0])
def test_a_row_is_least_at_a_corner(margin):
    """Step 1 against a linear program over the simplex with s_j <= exp(-t) s_i."""
    rng = np.random.default_rng(0)
    rows = [*ROWS, *rng.normal(size=(8, 3)).tolist(), *np.sort(rng.integers(-2, 3, size=(4, 3)))[:, ::-1].tolist()]
    for row in rows:
        c = np.array(sorted(row, reverse=True))  # the leader first
        others = np.eye(3)[1:] - np.exp(-margin) * np.eye(3)[0]
        exact = linprog(c, A_ub=others, b_ub=np.zeros(2), A_eq=np.ones((1, 3)), b_eq=[1.0], bounds=(0, 1)).fun
        found = float(_least(torch.tensor(row, dtype=torch.float64)[None, None], margin))
        assert exact - 1e-11 < found <= exact + 1e-12


def enumerated(net, x):
    """The true P(E_t) of a posterior of samples, at points, for `SoftmaxBySafety`."""
    params = {name: torch.as_tensor(values) for name, values in net.posterior.samples.items()}
    share = torch.as_tensor(net.posterior.probabilities)

    def safe(problem):
        y = evaluate(net.network, problem.lower, params)  # (S, I, m)
        rows = problem.rows
        value = (y[:, :, None] * rows.outputs).sum(-1)
        return (share[:, None] * (value > rows.bound).all(-1)).sum(0)

    y = evaluate(net.network, x, params)
    return safe, (share[:, None, None] * torch.softmax(y, -1)).sum(0)


@pytest.mark.parametrize("size", [0.5, 2.0, 8.0, 30.0])
def test_below_the_truth_of_samples(size):
    rows = torch.tensor(np.concatenate([ROWS, np.negative(ROWS)]))[None]
    best = []
    for seed in range(12):
        net = random_samples(seed, [2, 5, 3], 7)
        scaled = {
            name: size * values if name in ("W1", "b1") else values for name, values in net.posterior.samples.items()
        }
        net = replace(net, posterior=replace(net.posterior, stored=scaled))
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        safe, truth = enumerated(net, x)
        found = SoftmaxBySafety(safe).lower(x, x, rows)
        exact = (truth[:, None] * rows).sum(-1)
        assert (found <= exact + 1e-12).all()
        assert (found >= rows.amin(-1) - 1e-9).all()
        best.append((exact - found)[:, 1])
        moved = SoftmaxBySafety(safe).lower(x, x, rows, torch.ones(1, rows.shape[1], 2, dtype=torch.float64))
        torch.testing.assert_close(moved, found + x.sum(-1, keepdim=True), rtol=0, atol=1e-12)
    if size == 30.0:  # nearly all margins are beyond the largest t
        assert float(torch.cat(best).median()) < 0.1


def wide(scale: float, spread: float, widths=(4, 30, 30, 3)):
    net = random_model(1, widths, spread=spread, likelihood="categorical")
    tensors = {name: scale * values for name, values in net.network.tensors.items()}
    variances = {name: scale**2 * values for name, values in net.posterior.variances.items()}
    return replace(net, network=replace(net.network, tensors=tensors), posterior=GaussianDiagonal(variances))


def test_it_decides_what_large_logits_hide():
    """Moments of exp(f_j - f_i) say .3 where a class leads in nearly every network; time is needed and kept."""
    net = wide(8.0, 0.1)
    x = 2 * np.random.default_rng(0).normal(size=(6, 4))[:1]
    label = outputs(net, x).argmax(1)
    found = verify_batch(net, x, x, labels=label, query="decision", timeout=20)
    assert found.verdicts[0].value == "unsat"
    assert found.lower[0, label[0]] > 0.9
    drawn = sample(net.network, net.posterior, 4000, torch.Generator().manual_seed(0))
    truth = torch.softmax(evaluate(net.network, torch.tensor(x), drawn), -1).mean(0).numpy()[0]
    assert (found.lower[0] <= truth + 0.02).all()
    assert (truth <= found.upper[0] + 0.02).all()


def test_other_classes_get_what_is_left():
    """Rows over the outputs of a softmax: upper bounds follow from the lower bounds of the others."""
    net = wide(8.0, 0.1)
    x = 2 * np.random.default_rng(0).normal(size=(6, 4))[:1]
    label = int(outputs(net, x).argmax(1)[0])
    found = verify_batch(net, x, x, labels=[label], query="decision", timeout=20)
    others = np.delete(np.arange(3), label)
    assert (found.upper[0, others] <= 1 - found.lower[0, label] + 1e-9).all()
    assert (found.upper[0, others] >= 0).all()
