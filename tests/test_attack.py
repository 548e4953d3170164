"""What the attack aims at, and where it starts from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from bnn_vnnlib import Model, attack
from bnn_vnnlib.attack import Attack, AttackAim
from bnn_vnnlib.model import sample
from bnn_vnnlib.problem.problem import from_cases
from support.builders import model, problem, random_model, rows


def noisy_end() -> Model:
    """y = w x + b: lower on average the larger x is, but far more uncertain there."""
    return model([([[-0.01]], [-0.05])], [([[0.1**2]], [0.02**2])])


def drawn(net: Model, count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    assert net.posterior is not None
    return sample(net.network, net.posterior, count, torch.Generator().manual_seed(seed))


def test_the_common_point_is_where_most_networks_violate() -> None:
    """V: y <= 0 on [0, 1]. The mean network is worst at 1, where 7 networks of 10 violate; at 0 it is 99 of 100."""
    net, question = noisy_end(), problem([0.0], [1.0], rows([[1.0]], [0.0]))
    mean, _ = attack.run(net.network, question, {}, Attack())
    assert mean.item() == 1.0
    params = drawn(net, 400)
    common, value = attack.run(net.network, question, params, Attack(), aim="common")
    assert common.shape == (1, 1, 1)
    assert common.item() < 0.1
    assert value.item() == pytest.approx(-2.5, abs=0.4)
    each = attack.violation(net.network, question, params, common[None].expand(400, -1, -1, -1), "identity")
    assert (each <= 0).double().mean().item() == pytest.approx(stats.norm.cdf(2.5), abs=0.03)


@pytest.mark.parametrize(("aim", "count"), [("each", 5), ("mean", 1), ("common", 1)])
def test_every_aim_has_its_own_shape(aim: AttackAim, count: int) -> None:
    net = random_model(0, [3, 5, 2], spread=0.3)
    low = torch.zeros(4, 3, dtype=torch.float64)
    question = from_cases(low, low + 0.5, [[rows([[1.0, -1.0]], [-0.3])]], 2)
    params = drawn(net, 5)
    x, value = attack.run(net.network, question, params, Attack(), aim=aim)
    assert x.shape == (count, 4, 3)
    assert value.shape == (count, 4)
    assert ((x >= 0) & (x <= 0.5)).all()
    again = attack.violation(net.network, question, params, x[:, None], "identity", aim)[:, 0]
    torch.testing.assert_close(again, value)


@pytest.mark.parametrize("aim", ["each", "mean", "common"])
def test_what_is_found_in_float32_is_worth_what_float64_says(aim: AttackAim) -> None:
    net = random_model(2, [3, 5, 2], spread=0.3)
    low = torch.full((4, 3), 0.1, dtype=torch.float64)
    for width in (0.5, 1e-12):  # float32 has no number inside the narrow box
        question = from_cases(low, low + width, [[rows([[1.0, -1.0]], [-0.3])]], 2)
        params = drawn(net, 5)
        x, value = attack.run(net.network, question, params, Attack(precision=torch.float32), aim=aim)
        assert x.dtype == value.dtype == torch.float64
        assert ((x >= low) & (x <= low + width)).all()
        again = attack.violation(net.network, question, params, x[:, None], "identity", aim)[:, 0]
        torch.testing.assert_close(again, value, rtol=1e-12, atol=1e-12)
        if aim != "common":  # a ratio that depends on the last digits where the networks agree
            full = attack.run(net.network, question, params, Attack(), aim=aim)[1]
            torch.testing.assert_close(value, full, rtol=0.05, atol=0.05)


def test_the_mean_is_of_the_outputs() -> None:
    net = random_model(1, [3, 5, 2], spread=0.3)
    question = problem(np.zeros(3), np.ones(3), rows([[1.0, 0.0]], [0.0]), outputs=2)
    params = drawn(net, 6)
    x = torch.rand(1, 1, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    each = attack.violation(net.network, question, params, x.expand(6, -1, -1, -1), "identity")
    mean = attack.violation(net.network, question, params, x, "identity", "mean")
    torch.testing.assert_close(mean[0], each.mean(0))


@pytest.mark.parametrize("aim", ["each", "mean", "common"])
def test_never_worse_than_the_start(aim: AttackAim) -> None:
    """One step and one start: random weights of several layers, the start chosen among many points."""
    net = random_model(2, [4, 16, 16, 2], spread=0.2)
    low = torch.zeros(6, 4, dtype=torch.float64)
    question = from_cases(low, low + 1, [[rows([[1.0, -1.0], [0.0, 1.0]], [-0.3, 0.2])]], 2)
    params = drawn(net, 3)
    start = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, value = attack.run(net.network, question, params, Attack(steps=1, restarts=1), aim=aim, start=start)
    count = 3 if aim == "each" else 1
    before = attack.violation(net.network, question, params, start.expand(count, 1, -1, -1), "identity", aim)[:, 0]
    assert (value <= before + 1e-12).all()


def test_a_start_outside_is_moved_inside() -> None:
    net, question = noisy_end(), problem([0.0], [1.0], rows([[1.0]], [0.0]))
    start = torch.tensor([[7.0]], dtype=torch.float64)
    x, _ = attack.run(net.network, question, {}, Attack(steps=0, restarts=1), start=start)
    assert x.item() == 1.0


def test_common_points_do_not_depend_on_the_neighbours() -> None:
    net = random_model(3, [4, 12, 3], spread=0.2)
    low = torch.tensor(np.random.default_rng(0).normal(size=(9, 4)))
    question = from_cases(low, low + 0.4, [[rows([[1.0, -1.0, 0.0]], [0.0])]], 3)
    params = drawn(net, 8)
    whole, _ = attack.run(net.network, question, params, Attack(), aim="common", start=low)
    order = torch.tensor(np.random.default_rng(1).permutation(9))
    shuffled, _ = attack.run(net.network, question.items(order), params, Attack(), aim="common", start=low[order])
    torch.testing.assert_close(shuffled[0], whole[0, order])
    alone, _ = attack.run(net.network, question.items(order[:1]), params, Attack(), aim="common", start=low[order[:1]])
    torch.testing.assert_close(alone[0], whole[0, order[:1]])
