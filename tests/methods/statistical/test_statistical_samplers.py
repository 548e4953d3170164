"""Posteriors that a function draws from: dropout, a flow, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from scipy.special import ndtr

from bnn_vnnlib import Model, Verdict, verify, verify_batch
from bnn_vnnlib.errors import InputError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, attach, sample
from bnn_vnnlib.network.draws import Draws
from bnn_vnnlib.network.network import Sampler
from support.builders import model, properties

ASKED: dict[str, Any] = {"query": "probabilistic", "guarantee": "statistical"}
ABOVE = [(np.array([[-1.0]]), np.array([-2.0]), np.array([False]))]
"""y >= 2."""


def flow(net: Model) -> Model:
    """y = x + exp(z): a law that no family of the formats has."""
    return net.drawn_by(lambda n, rng: {"b0": np.exp(rng.standard_normal((n, 1)))})


def plain() -> Model:
    return model([([[1.0]], [0.0])])


def dropout(rate: float) -> Model:
    """Ten hidden units that are each switched off: masks scale the columns of the second matrix."""
    net = model([(np.ones((10, 1)), np.zeros(10)), (np.ones((1, 10)), [0.0])])

    def draw(count: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"W1": (rng.random((count, 1, 10)) >= rate) / (1 - rate)}

    return net.drawn_by(draw)


def test_a_flow_and_dropout_meet_their_laws() -> None:
    found = verify_batch(flow(plain()), [[0.0]], [[1.0]], properties=ABOVE, draws=1500, goal="bounds", seed=1, **ASKED)
    assert found.lower[0] <= 0.5 <= found.upper[0]  # 1 + exp(z) < 2
    assert found.upper[0] - found.lower[0] < 0.2
    # y = 2 x (units on): at most 2 x 7 < 15 where three units or more are off
    above = [(np.array([[-1.0]]), np.array([-15.0]), np.array([False]))]
    off = np.array([0.5**10 * float(c) for c in (1, 10, 45)])  # 0, 1 or 2 of 10 units are off
    found = verify_batch(dropout(0.5), [[0.9]], [[1.0]], properties=above, draws=1500, goal="bounds", seed=1, **ASKED)
    assert found.lower[0] <= 1 - off.sum() <= found.upper[0]
    assert found.draws[0, 3] == 0


def test_draws_by_number_whatever_is_asked_for_together() -> None:
    net = flow(plain())
    assert isinstance(net.posterior, Sampler)
    source = Draws(net.network, net.posterior, 3)
    every = source.take(np.arange(200)).centers["b0"]
    for index in ([0], [63, 64, 65], [199, 5, 130]):
        torch.testing.assert_close(source.take(np.array(index)).centers["b0"], every[index], rtol=0, atol=0)
    assert len(every.unique()) == 200


def test_numbers_that_are_not_finite_count_against_both_sides() -> None:
    net = plain().drawn_by(lambda n, rng: {"b0": np.where(rng.random((n, 1)) < 0.5, np.nan, -9.0)})
    found = verify_batch(net, [[0.0]], [[1.0]], properties=ABOVE, draws=600, goal="bounds", seed=1, **ASKED)
    assert 200 < found.draws[0, 3] < 400
    assert found.lower[0] <= 0.5
    assert found.upper[0] == 1.0


def test_medians_and_witnesses() -> None:
    net = model([([[1.0]], [0.0])], likelihood="gaussian").drawn_by(
        lambda n, rng: {"b0": np.exp(rng.standard_normal((n, 1)))}
    )
    found = verify_batch(net, [[0.0]], [[1.0]], query="decision", rule="median", guarantee="statistical", draws=2000,
                         seed=1)  # fmt: skip
    assert 0.8 <= found.lower[0, 0] <= 1.0
    assert 2.0 <= found.upper[0, 0] <= 2.2
    prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -1.5, False)])])
    result = verify(net, prop, seed=1, tau_safe=0.9, tau_unsafe=0.9, **ASKED)
    assert result.verdict is Verdict.SAT
    assert result.witness is not None
    assert ndtr(np.log(0.5)) < 0.9


def test_refusals() -> None:
    net = flow(plain())
    prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -2.0, False)])])
    with pytest.raises(UnsupportedError, match="ask guarantee statistical"):
        verify(net, prop, query="probabilistic")
    with pytest.raises(PosteriorError, match="no weight 'c'"):
        plain().drawn_by(lambda n, rng: {"c": np.zeros((n, 1))})
    with pytest.raises(PosteriorError, match="expected"):
        plain().drawn_by(lambda n, rng: {"b0": np.zeros(n)})
    with pytest.raises(PosteriorError, match="names no tensor"):
        plain().drawn_by(lambda n, rng: {})
    assert isinstance(net.posterior, Sampler)
    proto = onnx.load_model_from_string(net.onnx_bytes)
    with pytest.raises(InputError, match="a function that draws networks"):
        attach(proto, net.posterior)
    changing = plain().drawn_by(lambda n, rng: {"b0" if n < 9 else "W0": np.zeros((n, 1) if n < 9 else (n, 1, 1))})
    with pytest.raises(PosteriorError, match=r"draws \['W0'\], expected \['b0'\]"):
        verify(changing, prop, **ASKED)


def test_the_same_law_as_a_family_of_the_formats() -> None:
    """A Gaussian drawn by a function, and the family: the same truth in both intervals."""
    variances = {"W0": np.array([[0.3]]), "b0": np.array([0.2])}
    family = Model(plain().network, GaussianDiagonal(variances), None, None, b"")
    own = plain().drawn_by(lambda n, rng: {
        name: plain().network.tensors[name] + np.sqrt(v) * rng.standard_normal((n, *v.shape))
        for name, v in variances.items()
    })  # fmt: skip
    bounds = [verify_batch(net, [[0.5]], [[1.0]], properties=ABOVE, draws=1000, goal="bounds", seed=1, **ASKED)
              for net in (family, own)]  # fmt: skip
    assert max(b.lower[0] for b in bounds) <= min(b.upper[0] for b in bounds)
    drawn = sample(own.network, own.posterior, 10)  # type: ignore[arg-type]
    assert drawn["W0"].shape == (10, 1, 1)
