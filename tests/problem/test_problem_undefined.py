"""Networks that some weights leave undefined: what is no number violates nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_problem_touching import posterior_of

from bnn_vnnlib import Model, verify, verify_batch
from bnn_vnnlib.model import sample
from support.builders import model, properties, rows

AT_LEAST_0 = rows([[-1.0]], [0.0], [False])
"""The violation Y_0 >= 0: of Relu(Log(z)) where z > 0, and of nothing where z < 0."""


def logarithm(weight: float, family: str) -> Model:
    """Relu(Log(w x)), w about `weight`."""
    net = model([([[weight]], [0.0])], end=["Log", "Relu"], likelihood="gaussian")
    return replace(net, posterior=posterior_of(net, family, spread=1.0))


@pytest.mark.parametrize("family", ["gaussian", "samples", "low rank", "mixture"])
@pytest.mark.parametrize("margin", [None, 2.0], ids=["auto", "boxes"])
def test_an_undefined_output_violates_nothing(family: str, margin: float | None) -> None:
    """About half of all networks are undefined at x = 1: these are safe."""
    if margin and family != "gaussian":
        pytest.skip("a margin is one of boxes of independent weights")
    net = logarithm(-0.1, family)
    assert net.posterior is not None
    drawn = sample(net.network, net.posterior, 20_000, torch.Generator().manual_seed(0))
    safe = float((drawn["W0"].flatten() + drawn["b0"].flatten() < 0).double().mean())
    found = verify_batch(
        net, [[1.0]], [[1.0]], properties=[[AT_LEAST_0]], query="probabilistic", timeout=2.0, margin=margin
    )
    assert found.lower[0] - 0.02 <= safe <= found.upper[0] + 0.02  # five standard errors


@pytest.mark.parametrize("family", ["gaussian", "samples"])
def test_no_decision_is_made_of_undefined_outputs(family: str) -> None:
    """The expectation of what is no number for half of all networks violates nothing."""
    net = logarithm(-0.1, family)
    found = verify_batch(net, [[1.0]], [[1.0]], properties=[[AT_LEAST_0]], query="decision", timeout=2.0)
    assert found.verdicts[0] != "sat"


def test_a_point_of_a_box_at_which_the_network_is_defined() -> None:
    """Relu(Log(x)) over [-1, 2]: the witness is above 0, alone and in a batch."""
    net = model([([[1.0]], [0.0])], end=["Log", "Relu"], likelihood="gaussian")
    asked = properties(net, [(-1.0, 2.0)], [(0, [([-1.0], None, -0.5, False)])])
    found = verify(net, asked, query="deterministic", timeout=5.0)
    assert found.verdict == "sat"
    assert found.witness is not None
    assert found.witness.x[0] > 1.6
    batch = verify_batch(net, [[-1.0]], [[2.0]], properties=[[rows([[-1.0]], [-0.5], [False])]], query="deterministic")
    assert batch.verdicts[0] == "sat"
    assert batch.points[0, 0] > 1.6


def test_defined_whatever_the_weights() -> None:
    """Sqrt(Abs(z)) is a number for all z: violations are found as ever."""
    net = model([([[1.0]], [0.0])], end=["Abs", "Sqrt"], likelihood="gaussian")
    net = replace(net, posterior=posterior_of(net, "gaussian", spread=1.0))
    found = verify_batch(net, [[1.0]], [[1.0]], properties=[[rows([[-1.0]], [0.0], [False])]], timeout=2.0)
    assert found.upper[0] < 1e-9
