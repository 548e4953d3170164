"""Witnesses by attack: against closed forms, and through the file that `check-witness` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from bnn_vnnlib import Verdict, attach
from bnn_vnnlib.check_witness import Judgement
from bnn_vnnlib.errors import InputError, PropertyError, UnsupportedError
from bnn_vnnlib.estimate import find_witness
from bnn_vnnlib.files.vnncomp import read_result
from bnn_vnnlib.model import GaussianDiagonal
from support.builders import model, properties, random_model
from support.command import call
from sweeps.sweep_models import write_net

PROPERTY = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (and (>= X_0 -1) (<= X_0 1) (>= X_1 -1) (<= X_1 1)))
(assert (<= Y_0 Y_1))
"""


def test_the_point_at_which_most_networks_violate() -> None:
    """y = 0.05 - 0.01 x + N(0, 0.1^2 x^2 + 0.02^2) <= 0 on [0, 1]: the mean's least is at 1, another is worse."""
    net = model([([[-0.01]], [0.05])], [([[0.1**2]], [0.02**2])])
    prop = properties(net, [(0.0, 1.0)], [(0, [([1.0], None, 0.0, False)])])
    x = np.linspace(0, 1, 1001)
    mass = ndtr((0.01 * x - 0.05) / np.sqrt(0.01 * x**2 + 0.0004))
    found = find_witness(net, prop, networks=400, tau_safe=0.8, seed=1)
    there = float(np.interp(found.witness.x[0], x, mass))
    assert there >= mass.max() - 0.01
    assert found.share is not None
    assert found.error is not None
    assert abs(found.share - there) <= 5 * found.error
    assert found.check.judgement is Judgement.VALID
    assert found.fails == ((found.fails[0][0], found.share),)
    assert "z0_0 <= 0" in found.fails[0][0]
    never = find_witness(net, prop, tau_safe=0.2, seed=1)
    assert never.check.judgement is Judgement.INVALID


def test_many_cases_and_rows_of_inputs() -> None:
    """Violations y <= -2 (rarely), y - x >= 1.5 (by half of the networks at x = 1): the worst comes first."""
    net = model([([[2.0]], [0.5])], [([[0.0]], [1.0])])
    cases = [([1.0], None, -2.0, False)], [([-1.0], [1.0], -1.5, False)]
    found = find_witness(net, properties(net, [(0.0, 1.0)], [(0, cases[0]), (0, cases[1])]), tau_safe=0.9, seed=1)
    assert found.witness.x[0] == pytest.approx(1.0)
    assert found.fails[0][1] == pytest.approx(0.5, abs=0.08)
    assert found.check.judgement is Judgement.VALID


def test_the_input_set_in_which_more_networks_violate() -> None:
    """y = x + N(0, 1) >= 1.5 on two boxes: at 1 by 3 networks of 10, at 0.1 by 1 of 12."""
    net = model([([[1.0]], [0.0])], [([[0.0]], [1.0])])
    above = [([-1.0], None, -1.5, False)]
    for boxes in ([(0.0, 0.1), (0.9, 1.0)], [(0.9, 1.0), (0.0, 0.1)]):
        found = find_witness(net, properties(net, boxes, [(0, above), (1, above)]), seed=1)
        assert found.witness.x[0] == pytest.approx(1.0)


@pytest.mark.parametrize("rule", ["mean", "quantile:0.1"])
def test_decisions(rule: str) -> None:
    net = model([([[1.0]], [0.0])], [([[0.0]], [1.0])], likelihood="gaussian")
    for bound, judgement in ((-1.0, Judgement.VALID), (-2.0, Judgement.INVALID)):
        bound += 0.9 if rule == "mean" else 0.0
        prop = properties(net, [(0.0, 1.0)], [(0, [([1.0], None, bound, False)])])
        found = find_witness(net, prop, query="decision", rule=rule, seed=1)
        assert found.check.judgement is (judgement if rule != "mean" else Judgement.INVALID if bound < 0 else judgement)
        assert found.witness.x[0] == pytest.approx(0.0)
        assert (len(found.fails) == 1) == (found.check.judgement is Judgement.VALID)
        assert found.share is None


def test_posteriors_without_certain_bounds() -> None:
    net = model([([[1.0]], [0.0])]).drawn_by(lambda n, rng: {"b0": rng.exponential(size=(n, 1))})
    prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -2.0, False)])])
    with pytest.raises(UnsupportedError, match="ask guarantee statistical"):
        find_witness(net, prop)
    found = find_witness(net, prop, guarantee="statistical", tau_safe=0.9, seed=1)
    assert found.check.judgement is Judgement.CONFIDENT
    assert "with confidence 0.999999" in found.check.reasons[0]
    assert abs((found.share or 0) - np.exp(-1)) < 0.08
    less = find_witness(net, prop, guarantee="statistical", tau_safe=0.2, seed=1)
    assert less.check.judgement is Judgement.UNCONFIRMED


def test_fixed_weights_and_refusals() -> None:
    net = random_model(0, [2, 5, 1])
    prop = properties(net, [([0.0, 0.0], [1.0, 1.0])], [(0, [([1.0], None, 100.0, False)])])
    found = find_witness(net, prop, query="deterministic")
    assert (found.check.judgement, found.networks, found.fresh) == (Judgement.VALID, 1, 1)
    assert found.decision[0] == pytest.approx(found.witness.y[0], abs=1e-5)
    with pytest.raises(InputError, match="positive whole number"):
        find_witness(net, prop, networks=0)
    with pytest.raises(InputError, match="needs a posterior"):
        find_witness(model([([[1.0]], [0.0])]), properties(net, [], []), query="probabilistic")
    with pytest.raises(PropertyError, match="nothing to attack"):
        find_witness(random_model(0, [2, 5, 1]), properties(net, [], []))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_the_file_goes_to_check_witness(tmp_path: Path, version: str) -> None:
    write_net(tmp_path / "net.onnx", (2, 4, 2))
    text = PROPERTY
    if version == "2.0":
        text = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1, 2]) (declare-output Y real [1, 2]))
(assert (and (>= X[0,0] -1.0) (<= X[0,0] 1.0) (>= X[0,1] -1.0) (<= X[0,1] 1.0)))
(assert (<= Y[0,0] Y[0,1]))
"""
    (tmp_path / "p.vnnlib").write_text(text)
    asked = (tmp_path / "p.vnnlib", tmp_path / "net.onnx", "--tau-safe", 0.9, "--seed", 3)
    out = call("attack", *asked, "-o", tmp_path / "w.txt", "--timeout", 30)
    assert out.stdout.startswith("valid:")
    assert "estimates" in out.stdout
    assert read_result(tmp_path / "w.txt").verdict is Verdict.SAT
    assert not (tmp_path / "w.txt").read_text().startswith("sat")
    kept = json.loads((tmp_path / "w.txt.json").read_text())
    assert (kept["guarantee"], kept["judgement"], kept["tau_unsafe"]) == ("estimate", "valid", 0.9)
    assert 0.1 < kept["share"] <= 1
    again = call("check-witness", tmp_path / "net.onnx", tmp_path / "p.vnnlib", tmp_path / "w.txt")
    assert again.stdout == "valid\n"
    counted = call("check-witness", tmp_path / "net.onnx", tmp_path / "p.vnnlib", tmp_path / "w.txt", "--guarantee",
                   "statistical", "--seed", 9)  # fmt: skip
    assert counted.stdout == "valid with confidence\n"


def test_attached_posteriors_are_what_is_attacked() -> None:
    """The mean network is safe everywhere, and three networks of ten are not."""
    net = model([([[1.0]], [0.0])])
    import onnx

    proto = onnx.load_model_from_string(net.onnx_bytes)
    from bnn_vnnlib.model import model_from_proto

    wide = model_from_proto(attach(proto, GaussianDiagonal({"b0": np.array([1.0])})))
    prop = properties(wide, [(0.0, 1.0)], [(0, [([-1.0], None, -1.5, False)])])
    found = find_witness(wide, prop, seed=2)
    assert found.check.judgement is Judgement.VALID
    assert found.share == pytest.approx(ndtr(-0.5), abs=0.06)
    assert found.witness.y[0] < 1.5
