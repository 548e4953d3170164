"""Long jobs with a stated confidence: what their columns say, seeds that are kept, and radii by one delta."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from bnn_vnnlib import Options
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.sweeps import Pair, Radii, Reading, Source, make_inputs, make_table, radii, sweep, uncertainty
from support.builders import model

ONE = model([([[1.0], [-1.0]], [0.0, 0.0])], [([[0.0], [0.0]], [0.5, 0.5])], likelihood="categorical")
"""y = (x + a, -x + b), a, b ~ N(0, 1/2): class 0 wins on x >= t with probability Phi(2 t)."""


def source() -> Source:
    return Source(memory=ONE)


def test_a_sweep_says_confidence_and_draws_and_keeps_its_seed(tmp_path: Path) -> None:
    lower, upper = np.array([[1.0], [2.0]]), np.array([[1.5], [3.0]])
    table = make_table({"lower": lower, "upper": upper, "label": np.array([0, 0])})
    how = Options(guarantee="statistical", confidence=0.999, draws=200, goal="bounds")
    found = sweep([Pair(source(), table)], how, out=tmp_path / "out").columns
    for place, truth in enumerate(ndtr([2.0, 4.0])):
        assert found["p_safe_lower"][place] <= truth <= found["p_safe_upper"][place]
    assert (found["confidence"] == 0.999).all()
    assert (found["draws_counted"] == found["draws_safe"] + found["draws_violating"] + found["draws_open"]).all()
    kept = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert kept["guarantee"] == "statistical"
    again = sweep([Pair(source(), table)], how, out=tmp_path / "out").columns
    np.testing.assert_array_equal(again["draws_safe"], found["draws_safe"])
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["seed"] == kept["seed"]
    certain = sweep([Pair(source(), table)]).columns
    assert "confidence" not in certain


def test_radii_hold_the_truth_and_one_delta_serves_a_search() -> None:
    """P_safe of the ball around x is Phi(2 (x - r)): both radii at threshold 0.9, 12 searches at confidence 0.8."""
    x, truth = 1.5, 1.5 - 1.2815515655446004 / 2
    inputs = make_inputs({"x": np.full((1, 1), x), "label": np.array([0])})
    missed = 0
    for seed in range(12):
        how = Options(guarantee="statistical", confidence=0.8, draws=60, seed=seed)
        found = radii(source(), inputs, Radii(2.0, 0.1), threshold=0.9, bounding=how)
        robust, unrobust = float(found.robust[0]), float(found.unrobust[0])
        missed += bool(robust > truth) or unrobust < truth
        assert found.columns["confidence"][0] == 0.8
    assert missed <= 12 * 0.2 + 3 * np.sqrt(12 * 0.16)
    with pytest.raises(OptionError, match="those of P_safe"):
        radii(source(), inputs, Radii(1.0, 0.1), bounding=Options("decision", guarantee="statistical"))


def test_uncertainty_reads_statistical_bounds() -> None:
    inputs = make_inputs({"x": np.array([[2.0]])})
    how: Any = Options(guarantee="statistical", confidence=0.99, draws=300, seed=1)
    found = uncertainty(source(), inputs, [0.0, 0.1], Reading(epistemic=0.6), bounding=how).columns
    assert (found["confidence"] == 0.99).all()
    assert (found["decision_lower"] < found["decision_upper"]).all()
    assert (found["draws_counted"] > 0).all()
    assert found["p_safe_lower"].shape == (2, 2)
