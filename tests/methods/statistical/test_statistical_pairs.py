"""Two networks with a stated confidence: the couplings of their draws against closed forms, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from bnn_vnnlib import Model, Verdict, verify
from bnn_vnnlib.errors import InputError
from bnn_vnnlib.vnnlib import parse_property
from support.builders import model

ASKED: dict[str, Any] = {"query": "probabilistic", "guarantee": "statistical", "seed": 1}


def line(deviation: float) -> Model:
    """y = x + N(0, deviation^2)."""
    return model([([[1.0]], [0.0])], [([[0.0]], [deviation**2])])


def apart(bound: float, relation: str = "isomorphic-to", moved: float = 0.0) -> Any:
    """Violated where Y - V >= bound for some x of [0, 1] and u, at most `moved` below x."""
    return parse_property(f"""(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,1]) (declare-output Y real [1,1]))
(declare-network g ({relation} f) (declare-input U real [1,1]) (declare-output V real [1,1]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (<= U[0,0] X[0,0]) (>= U[0,0] (- X[0,0] {moved}))
             (>= Y[0,0] (+ V[0,0] {bound}))))
""")


@pytest.mark.parametrize(
    ("coupling", "deviation"), [("independent", np.hypot(1.0, 0.5)), ("noise", 0.5)],
)  # fmt: skip
def test_couplings_in_closed_form(coupling: Any, deviation: float) -> None:
    for bound in (0.2, 1.3):
        found = verify((line(1.0), line(0.5)), apart(bound), coupling=coupling, draws=1500, goal="bounds", **ASKED)
        assert found.p_safe is not None
        assert found.p_safe.lower <= ndtr(bound / deviation) <= found.p_safe.upper
        assert found.p_safe.upper - found.p_safe.lower <= 0.16
        assert found.statistics is not None
        assert found.statistics.open <= 2
        sure = verify((line(1.0), line(0.5)), apart(bound), coupling=coupling, query="probabilistic")
        assert sure.p_safe is not None
        assert max(sure.p_safe.lower, found.p_safe.lower) <= min(sure.p_safe.upper, found.p_safe.upper)


def test_one_draw_for_both() -> None:
    """Equal networks differ by what their inputs do, whatever the draw; independent copies do not."""
    for bound, verdict in ((0.3, Verdict.UNSAT), (0.2, Verdict.SAT)):
        asked = apart(bound, "equal-to", 0.25)
        found = verify((line(1.0), line(1.0)), asked, draws=500, **ASKED)
        assert found.verdict is verdict
    copies = verify((line(1.0), line(1.0)), apart(0.3, moved=0.25), draws=500, **ASKED)
    assert copies.verdict is Verdict.SAT


def test_verdicts_and_witnesses_have_a_confidence() -> None:
    found = verify((line(1.0), line(0.5)), apart(0.5), tau_safe=0.9, **ASKED)
    assert found.verdict is Verdict.SAT
    assert found.witness is not None
    assert "with confidence" in found.witness.shows
    x, u = found.witness.x
    assert 0 <= u == x <= 1


def test_what_the_product_does_not_serve_is_refused() -> None:
    drawn = line(1.0).drawn_by(lambda n, rng: {"b0": rng.exponential(size=(n, 1))})
    with pytest.raises(InputError, match="families sampler and gaussian_diag are not supported"):
        verify((drawn, line(0.5)), apart(0.5), **ASKED)
