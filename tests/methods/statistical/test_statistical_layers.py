"""Some layers drawn, the rest bounded: against closed forms and sampled truth; the choice of a number of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

from bnn_vnnlib import Model, Verdict, verify, verify_batch
from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.files.sidecar import record
from bnn_vnnlib.methods.statistical import conditional, safety
from bnn_vnnlib.model import sample
from bnn_vnnlib.network import draws
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.layers import random_layers, split_layers
from contract import zoo
from contract.truth import Truth
from support.builders import model, properties
from support.clock import Clock

ASKED: dict[str, Any] = {"query": "probabilistic", "guarantee": "statistical"}


def two_layers(first: float, second: float, **options: Any) -> Model:
    """y = relu(x + N(0, first^2) + 9) + N(0, second^2) - 9, which is a line as long as the unit is on."""
    return model([([[1.0]], [9.0]), ([[1.0]], [-9.0])],
                 [([[0.0]], [first**2]), ([[0.0]], [second**2])], **options)  # fmt: skip


def asked(net: Model, p_safe: float, deviation: float, **options: Any) -> Any:
    """Of y >= t on [0, 1], with P_safe about Phi((t - 1) / deviation)."""
    t = 1 + deviation * float(ndtri(p_safe))
    above = [(np.array([[-1.0]]), np.array([-t]), np.array([False]))]
    return verify_batch(net, [[0.0]], [[1.0]], properties=above, **ASKED, **options)


def test_the_risk_in_the_rest_is_no_matter_of_luck() -> None:
    """Nearly all noise is behind the drawn layer: 200 draws say as much as 2,000 of whole networks; not otherwise."""
    for first, second, drawn in ((0.01, 1.0, 0.09), (1.0, 0.01, 0.25)):
        deviation = float(np.hypot(first, second))
        found = asked(two_layers(first, second), 0.9, deviation, drawn_layers=1, draws=200, seed=1, goal="bounds")
        assert found.lower[0] <= 0.9 <= found.upper[0]
        assert found.upper[0] - found.lower[0] <= drawn
        whole = asked(two_layers(first, second), 0.9, deviation, drawn_layers=2, draws=200, seed=1, goal="bounds")
        width = whole.upper[0] - whole.lower[0]
        assert (found.upper[0] - found.lower[0] < 0.7 * width) == (second > first)


@pytest.mark.parametrize(
    ("graph", "family", "layers"),
    [("two layers", "gaussian", 1), ("two layers", "gaussian", 2), ("two layers", "kron", 1),
     ("three layers", "gaussian", 2), ("residual", "gaussian", 1)],
)  # fmt: skip
def test_intervals_hold_the_truth(graph: str, family: str, layers: int) -> None:
    case = zoo.probabilistic(graph, family, "narrow")
    found = verify_batch(case.model, case.lower, case.upper, properties=case.properties, draws=150, seed=1,
                         drawn_layers=layers, goal="bounds", **ASKED)  # fmt: skip
    assert not Truth(case).safety_evidence(found.lower, found.upper, found.points)
    assert found.draws is not None
    assert (found.draws[:, 0] == 150).all()
    assert (found.draws[:, 3] >= -1e-9).all()
    assert (found.upper - found.lower).min() < 0.4


@pytest.mark.parametrize("graph", ["two layers", "three layers", "residual", "convolution"])
def test_the_two_parts_are_the_network(graph: str) -> None:
    net = zoo.probabilistic(graph, "gaussian", "narrow").model
    assert net.posterior is not None
    layers = random_layers(net.network, net.posterior)
    params = sample(net.network, net.posterior, 3, torch.Generator().manual_seed(0))
    x = torch.rand(5, net.network.signature.input_size, dtype=torch.float64)
    whole = evaluate(net.network, x, params)
    for count in range(1, len(layers)):
        parts = split_layers(net.network, layers, count)
        drawn = {name for layer in layers[:count] for name in layer}
        assert not drawn & set(parts.rest.tensors)
        h = evaluate(parts.first, x, {name: v for name, v in params.items() if name in parts.first.tensors})
        y = evaluate(parts.rest, h, {name: v for name, v in params.items() if name in parts.rest.tensors})
        torch.testing.assert_close(y, whole)


@pytest.mark.parametrize("p_safe", [0.5, 0.95])
def test_coverage(p_safe: float) -> None:
    """40 runs with fresh draws, equal shares of the noise: each side fails as rarely as it may."""
    runs, below, above = 40, 0, 0
    for seed in range(runs):
        found = asked(two_layers(0.7, 0.7), p_safe, 0.7 * np.sqrt(2), drawn_layers=1, seed=seed, confidence=0.6,
                      draws=40, goal="bounds")  # fmt: skip
        below += found.lower[0] > p_safe
        above += found.upper[0] < p_safe
    assert max(below, above) <= runs * 0.2 + 3 * np.sqrt(runs * 0.16)
    assert below + above > 0 or p_safe > 0.9


def test_unknown_draws_count_against_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draws._normal
    monkeypatch.setattr(draws, "_normal", lambda w: (whole(w)[0], torch.arange(len(w)) % 2 == 0))
    found = asked(two_layers(0.01, 1.0), 0.6, 1.0, drawn_layers=1, draws=1000, seed=3, goal="bounds")
    assert abs(found.draws[0, 3] - 500) <= 20
    assert 0.15 <= found.lower[0] <= 0.3
    assert 0.8 <= found.upper[0] <= 0.9


def test_wherever_the_clock_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, case = Clock(monkeypatch), zoo.probabilistic("two layers", "gaussian", "narrow")
    truth = Truth(case)
    for look in (0, 2, 6, 20, 60):
        clock.stopped_at(look)
        found = verify_batch(case.model, case.lower, case.upper, properties=case.properties, seed=1, draws=60,
                             drawn_layers=1, timeout=100.0, goal="bounds", **ASKED)  # fmt: skip
        assert not truth.safety_evidence(found.lower, found.upper, found.points)


def test_a_long_run_finds_the_better_number_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of whole networks stay counted, those of the pilot are none of the counted ones."""
    monkeypatch.setattr(safety, "_LONG", 100)
    monkeypatch.setattr(safety, "_PATIENCE", 0)
    taken: list[tuple[int, int]] = []
    whole = draws.Draws.take
    monkeypatch.setattr(
        draws.Draws, "take", lambda self, index: taken.append((self.stream, len(index))) or whole(self, index)
    )
    net = two_layers(0.05, 1.0)
    t = 1 + float(np.hypot(0.05, 1.0)) * float(ndtri(0.9))
    prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -t, False)])])
    result = verify(net, prop, seed=1, draws=400, tau_safe=0.7, goal="bounds", **ASKED)
    assert result.details["drawn_layers"] == 1
    assert result.statistics is not None
    assert result.p_safe is not None
    assert result.statistics.counted == 400
    streams = {stream: sum(n for s, n in taken if s == stream) for stream, _ in taken}
    assert streams[0] + streams[4] == 400
    assert streams[5] == conditional.PILOT
    assert result.p_safe.lower <= 0.9 <= result.p_safe.upper
    kept = record(result, {}, seed=1, timeout=None)
    assert kept["details"]["drawn_layers"] == 1
    assert kept["draws"]["safe"] + kept["draws"]["violating"] + kept["draws"]["open"] == pytest.approx(400)
    wide = verify(two_layers(1.0, 0.05), prop, seed=1, draws=400, goal="bounds", **ASKED)
    assert "drawn_layers" not in wide.details
    sat = verify(net, prop, seed=1, drawn_layers=1, tau_safe=0.95, **ASKED)
    assert sat.verdict is Verdict.SAT
    assert sat.witness is not None
    assert "given the drawn layers" in sat.witness.shows


def test_no_layer_is_certain_and_what_is_not_served_is_refused() -> None:
    net = two_layers(0.1, 0.1)
    prop = properties(net, [(0.0, 1.0)], [(0, [([-1.0], None, -2.0, False)])])
    none = verify(net, prop, drawn_layers=0, **ASKED)
    sure = verify(net, prop, query="probabilistic")
    assert (none.guarantee, none.verdict) == ("certain", sure.verdict)
    assert none.p_safe == sure.p_safe
    assert float(ndtr(1 / np.hypot(0.1, 0.1))) >= 0.999
    with pytest.raises(UnsupportedError, match="drawn_layers is 3, and the network has 2"):
        verify(net, prop, drawn_layers=3, **ASKED)
    with pytest.raises(OptionError, match="add guarantee statistical"):
        verify(net, prop, drawn_layers=1)
    with pytest.raises(OptionError, match="drawn_layers does not apply"):
        verify(two_layers(0.1, 0.1, likelihood="gaussian"), prop, query="decision", drawn_layers=1,
               guarantee="statistical")  # fmt: skip
    full = zoo.probabilistic("two layers", "full", "narrow")
    with pytest.raises(UnsupportedError, match="independent of each other"):
        verify_batch(full.model, full.lower, full.upper, properties=full.properties, drawn_layers=1, **ASKED)
    over = properties(net, [(0.0, 1.0)], [(0, [([-1.0], [1.0], -2.0, False)])])
    with pytest.raises(UnsupportedError, match="over the outputs alone"):
        verify(net, over, drawn_layers=1, **ASKED)
    layers = random_layers(net.network, net.posterior)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="uses W1 again"):  # as if the last one were drawn, and not the first
        split_layers(net.network, layers[::-1], 1)
