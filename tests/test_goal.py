"""`goal="bounds"`: the work goes on past the verdict, until both bounds are close, and the verdict stays what it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bnn_vnnlib import Verdict, verify_batch
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.methods.decision.by_weights import ByWeights
from bnn_vnnlib.methods.decision.method import DecisionTask
from bnn_vnnlib.methods.decision.split import SplitInputs
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.system.clock import Deadline
from support.builders import bounds_of, random_model, random_samples, rows


def test_bounds_on_p_safe_go_on_past_the_verdict():
    net = random_model(0, [2, 6, 1], spread=0.35, likelihood="gaussian")
    x = np.array([[0.3, -0.2]])
    above = float(evaluate(net.network, torch.tensor(x))[0, 0]) + 0.2
    asked = {"properties": [rows([[-1.0]], [-above])], "query": "probabilistic", "tau_safe": 0.6, "timeout": 4}
    soon, late = (verify_batch(net, x - 0.02, x + 0.02, **asked, **more) for more in ({}, {"goal": "bounds"}))
    assert soon.verdicts[0] == late.verdicts[0] == Verdict.UNSAT
    assert late.lower[0] >= soon.lower[0]
    assert late.upper[0] <= soon.upper[0]
    assert late.upper[0] - late.lower[0] < 0.8 * (soon.upper[0] - soon.lower[0])


def test_a_gap_that_is_reached_ends_the_work():
    net = random_model(0, [2, 6, 1], spread=0.35, likelihood="gaussian")
    asked = {"properties": [rows([[-1.0]], [-4.0])], "query": "probabilistic", "tau_safe": 0.6, "timeout": 20}
    found = verify_batch(net, [[0.3, -0.2]], [[0.3, -0.2]], **asked, goal="bounds", gap=0.3)
    assert found.upper[0] - found.lower[0] <= 0.3
    assert found.seconds < 10


@pytest.mark.parametrize("more", [{"gap": 0.1}, {"goal": "verdict", "gap": 0.1}, {"goal": "bounds", "gap": 0.0}])
def test_a_gap_is_positive_and_belongs_to_bounds(more):
    net = random_model(0, [2, 3, 1])
    with pytest.raises(OptionError, match="gap"):
        verify_batch(net, [[0.0, 0.0]], [[1.0, 1.0]], properties=[rows([[1.0]], [0.0])], **more)


def test_fixed_weights_have_no_such_goal():
    net = random_model(0, [2, 3, 1])
    with pytest.raises(OptionError, match="goal"):
        verify_batch(net, [[0.0] * 2], [[1.0] * 2], properties=[rows([[1.0]], [0.0])], query="deterministic",
                     goal="bounds")  # fmt: skip


def test_splitting_inputs_closes_on_the_attained_range():
    """Expected outputs of weight samples over a wide box: between a dense grid's values and the unsplit bounds."""
    net = random_samples(3, [2, 12, 2], 9, likelihood="gaussian")
    posterior = net.posterior
    assert isinstance(posterior, WeightSamples)
    low, high = torch.tensor([[-1.0, -1.0], [0.2, 0.5]]).double(), torch.tensor([[1.0, 1.0], [0.2, 0.9]]).double()
    task = DecisionTask(bounds_of(net), posterior, torch.device("cpu"))
    plain = ByWeights(task.bounds, posterior, *task.weights)
    asked = torch.tensor([[[1.0, 0.0], [0.0, -1.0], [1.0, -1.0]]]).double()
    moved = torch.tensor([[[0.0, 0.0], [0.3, -0.2], [0.0, 1.0]]]).double()
    split = SplitInputs(plain, task.network, Deadline()).lower(low, high, asked, moved)
    share = torch.linspace(0, 1, 61).double()
    grid = torch.cartesian_prod(share, share)
    x = low[:, None] + grid * (high - low)[:, None]
    params = {name: torch.tensor(values) for name, values in posterior.samples.items()}
    p = torch.tensor(posterior.probabilities)[:, None, None]
    y = torch.stack([(p * evaluate(net.network, part, params)).sum(0) / p.sum() for part in x])
    attained = (y[:, :, None] * asked[:, None]).sum(-1) + (x[:, :, None] * moved[:, None]).sum(-1)
    least, vary = attained.amin(1), attained.amax(1) - attained.amin(1)
    assert (split <= least + 1e-12).all()
    assert (split >= least - 0.05 * vary - 1e-9).all()
    whole = plain.lower(low, high, asked, moved)
    assert (split >= whole - 1e-9).all()
    assert (whole[0] < least[0] - 0.3 * vary[0]).any()
    points = SplitInputs(plain, task.network, Deadline()).lower(low, low, asked, moved)
    assert torch.isneginf(points).all()
