"""Estimates: near the truth where it is known, in words that promise nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.estimate import estimate
from support.builders import model, properties
from support.command import call
from sweeps.sweep_models import write_net

PROPERTY = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (and (>= X_0 0.1) (<= X_0 0.2) (>= X_1 0.1) (<= X_1 0.2)))
(assert (<= Y_0 Y_1))
"""


def test_shares_and_ranges_of_a_line() -> None:
    """y = x + N(0, 1) on [0, 1]: violated, y >= 1.5, by networks with noise of at least 1/2."""
    net = model([([[1.0]], [0.0])], [([[0.0]], [1.0])])
    found = estimate(net, properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -1.5, False)])]), networks=2000, seed=1)
    truth = float(ndtr(-0.5))
    assert abs(found.broken - truth) < 5 * found.error
    assert found.point[0] == pytest.approx(1.0)
    assert abs(found.at_point - found.broken) < 1e-9
    assert 0.9 < found.upper[0] - found.lower[0] <= 1.0 + 1e-9
    assert abs(found.spread[0] - 1) < 0.1


def test_expected_probabilities_where_the_likelihood_gives_them() -> None:
    net = model([([[1.0], [-1.0]], [0.0, 0.0])], [([[0.1], [0.1]], [0.1, 0.1])], likelihood="categorical")
    found = estimate(net, properties(net, [(-1.0, 1.0)], [(0, [([1.0, -1.0], None, 0.0, False)])]), seed=1)
    assert ((found.lower >= 0) & (found.upper <= 1)).all()
    assert (found.upper - found.lower > 0.5).all()
    logits = estimate(model([([[1.0], [-1.0]], [0.0, 0.0])], [([[0.1], [0.1]], [0.1, 0.1])]),
                      properties(net, [(-1.0, 1.0)], [(0, [([1.0, -1.0], None, 0.0, False)])]), seed=1)  # fmt: skip
    assert logits.lower[0] < 0


def test_the_command_says_that_nothing_is_proved(tmp_path: Path) -> None:
    write_net(tmp_path / "net.onnx", (2, 4, 2))
    (tmp_path / "p.vnnlib").write_text(PROPERTY)
    out = call("estimate", tmp_path / "p.vnnlib", tmp_path / "net.onnx", "--n", 30, "--json", tmp_path / "e.json")
    assert "estimates, no bounds" in out.stdout
    kept = json.loads((tmp_path / "e.json").read_text())
    assert kept["guarantee"] == "estimate"
    assert 0 <= kept["broken"] <= 1
    assert np.shape(kept["lower"]) == (2,)
    again = call("estimate", tmp_path / "p.vnnlib", tmp_path / "net.onnx", "--n", 30, "--json", tmp_path / "f.json")
    assert again.stdout.split("time")[0] == out.stdout.split("time")[0]


def test_refusals(tmp_path: Path) -> None:
    net = model([([[1.0]], [0.0])])
    prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -1.5, False)])])
    with pytest.raises(InputError, match="needs a posterior"):
        estimate(net, prop)
    with pytest.raises(InputError, match="positive whole number"):
        estimate(net, prop, networks=0)
