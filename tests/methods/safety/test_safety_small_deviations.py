"""As the standard deviations vanish, P_safe tends to the deterministic verdict, and so do its bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bnn_vnnlib import Model, verify
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.methods.safety import refine as stages
from bnn_vnnlib.methods.safety.by_weights import CentredBoxes
from bnn_vnnlib.methods.safety.refine import BoxSplitting
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.problem.refute import refuted_cases
from bnn_vnnlib.problem.weight_sets import margin_of
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, outputs, problem, properties, rows, sampled_violations

WIDTHS = (2, 16, 16, 1)
WANTED = 0.95


def net(relative: float) -> Model:
    """A ReLU network of 337 weights, each with this share of itself as its standard deviation."""
    random = np.random.default_rng(3)
    shapes = list(zip(WIDTHS[1:], WIDTHS[:-1], strict=True))
    layers = [(random.standard_normal(shape) / np.sqrt(shape[1]), random.standard_normal(shape[0])) for shape in shapes]
    return model(layers, [((relative * w) ** 2, (relative * b) ** 2) for w, b in layers])


GRID = np.stack(np.meshgrid(*[np.linspace(-1, 1, 201)] * 2), -1).reshape(-1, 2)
VALUES = outputs(net(0.0), GRID)[:, 0]
SPAN = float(np.ptp(VALUES))


def below(value: float) -> Problem:
    """Violated where y <= value."""
    return problem([-1, -1], [1, 1], rows([[1.0]], [value]))


def splitting(weights: Model, question: Problem, *, at: torch.Tensor | None = None) -> BoxSplitting:
    bounds = OutputBounds(Engine(weights.network, "linear", Deadline()), "identity")
    boxes = CentredBoxes(bounds, weights.posterior, question, Deadline())
    points = torch.zeros_like(question.lower) if at is None else at
    return BoxSplitting(boxes, points, WANTED, only_likely=True)


def steps(stage: BoxSplitting) -> list:
    wanted = torch.ones(1, dtype=torch.bool)
    found = []
    while (news := stage.step(wanted, wanted)) is not None:
        found.append(news)
    return found


def test_a_small_box_of_weights_is_proved_where_one_pass_is_not_enough() -> None:
    safe = below(float(VALUES.min()) - 0.02 * SPAN)
    small = net(1e-7)
    stage = splitting(small, safe)
    margin = margin_of(torch.tensor([[WANTED]], dtype=torch.float64), stage._boxes.count)
    assert not refuted_cases(stage._boxes.bounds, stage._boxes.weights.scaled(margin), safe).all()
    found = steps(stage)
    assert WANTED <= float(found[-1].lower[0]) < WANTED + 1e-3  # the mass of the box, not more
    assert all(float(one.upper[0]) == 1.0 for one in found)


def test_large_deviations_are_left_to_others() -> None:
    """At the attacked point alone the box does not refute: no split of the inputs could help, and none is tried."""
    assert steps(splitting(net(0.5), below(float(VALUES.min()) - 0.02 * SPAN))) == []


def test_many_inputs_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "LIKELY_INPUTS", 1)
    assert steps(splitting(net(1e-7), below(float(VALUES.min()) - 0.02 * SPAN))) == []


def test_a_violation_that_the_attack_missed_bounds_p_safe_from_above() -> None:
    """The point given does not violate; branch and bound finds one that does, for all weights of the box."""
    violated = below(float(VALUES.min()) + 0.005 * SPAN)
    assert VALUES[len(VALUES) // 2] > violated.rows.bound  # the centre is safe
    small = net(1e-7)
    found = steps(splitting(small, violated))[-1]
    assert float(found.lower[0]) == 0.0
    assert 1 - WANTED - 1e-3 < float(found.upper[0]) <= 1 - WANTED
    assert float(found.point_mass[0]) >= WANTED
    at = found.point[:1]
    assert outputs(small, at.numpy())[0, 0] <= violated.rows.bound
    assert (at.abs() <= 1).all()
    alone = problem(at.numpy(), at.numpy(), rows([[1.0]], [float(violated.rows.bound)]))
    assert sampled_violations(small, alone, 200, 0) >= 200 * WANTED - 20


def test_every_item_of_an_instance_counts() -> None:
    """One part of the inputs is safe, in the other the violation is: nothing is proved from below, all from above."""
    value = float(VALUES.min()) + 0.005 * SPAN
    half = GRID[:, 0] < 0
    left_is_safe = VALUES[half].min() > value
    lower, upper = np.array([[-1.0, -1.0], [0.0, -1.0]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    case = rows([[1.0]], [value])
    both = replace(problem(lower, upper, case, case), instance=torch.zeros(2, dtype=torch.int64), instances=1)
    found = steps(splitting(net(1e-7), both, at=(both.lower + both.upper) / 2))[-1]
    assert float(found.lower[0]) == 0.0
    assert float(found.upper[0]) <= 1 - WANTED
    assert (float(found.point[0, 0]) >= 0) is bool(left_is_safe)


@pytest.mark.parametrize(("shift", "limit"), [(-0.02, 1.0), (0.02, 0.0)])
def test_bounds_tend_to_the_deterministic_verdict(shift: float, limit: float) -> None:
    """Both verdicts, from large deviations to small ones, with all that `verify` does."""
    value = float(VALUES.min()) + shift * SPAN
    gaps = []
    for relative, seconds in ((0.3, 1), (1e-7, 60)):
        weights = net(relative)
        question = properties(weights, [(-1, 1)], [(0, [([1.0], None, value, False)])])
        found = verify(weights, question, tau_safe=WANTED, tau_unsafe=1 - WANTED, timeout=seconds).p_safe
        assert found is not None
        gaps.append(max(abs(found.lower - limit), abs(found.upper - limit)))
    assert gaps[1] <= 1 - WANTED < gaps[0]
