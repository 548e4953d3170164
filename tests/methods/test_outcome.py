"""The probability that an outcome is below a threshold, and moments of exponentials that stand in the way of noise."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch
from scipy import integrate, stats

from bnn_vnnlib import attach, verify, verify_batch
from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.methods.decision.by_weights import exponential_norm, output_norms
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.result import Rule
from bnn_vnnlib.vnnlib import parse_property
from contract import zoo
from support.builders import model, random_model
from support.command import call

ONE = np.ones((1, 1))


def heteroscedastic():
    """Outputs (m, v) at x = 1: m ~ N(0.3, 0.25), v ~ N(-1, 0.09)."""
    return model(
        [([[0.3], [-1.0]], [0.0, 0.0])], [([[0.25], [0.09]], [0.0, 0.0])], likelihood="gaussian_heteroscedastic"
    )


def below(threshold: float) -> float:
    def at(v: float) -> float:
        return float(stats.norm.cdf((threshold - 0.3) / np.sqrt(0.25 + np.exp(v))) * stats.norm.pdf(v, -1, 0.3))

    return integrate.quad(at, -5, 3, epsabs=1e-12)[0]


def test_noise_of_the_model_is_included() -> None:
    found = verify_batch(
        heteroscedastic(), ONE, ONE, query="decision", rule="probability-below:0.4", goal="bounds", gap=1e-3, timeout=20
    )
    assert found.lower.shape == (1, 1)
    assert found.lower[0, 0] <= below(0.4) <= found.upper[0, 0]
    assert found.upper[0, 0] - found.lower[0, 0] <= 5e-3


def test_noise_of_the_rule_is_included() -> None:
    """m ~ N(0.3 x, 0.25 x^2), noise 0.5: Phi((T - m) / sqrt(0.25 + 0.25 x^2)), least at the end of the box."""
    net = model([([[0.3]], [0.0])], [([[0.25]], [0.0])], likelihood="gaussian")
    found = verify_batch(
        net, ONE, [[1.5]], query="decision", rule="probability-below:0.6:0.5", goal="bounds", gap=1e-2, timeout=4
    )
    truth = [stats.norm.cdf((0.6 - 0.3 * x) / (0.5 * np.sqrt(1 + x**2))) for x in (1.0, 1.5)]
    assert found.lower[0, 0] <= min(truth)
    assert found.upper[0, 0] >= max(truth)
    assert found.upper[0, 0] - found.lower[0, 0] <= max(truth) - min(truth) + 0.05


TEXT = """
; bnn-vnnlib: query=decision rule=probability-below:0.4
(declare-const X_0 Real)
(declare-const Y_0 Real)
(assert (= X_0 1))
(assert (>= Y_0 {}))
"""


@pytest.mark.parametrize(("bound", "verdict"), [(0.3, "sat"), (0.8, "unsat")])
def test_a_verdict_and_its_words(bound: float, verdict: str) -> None:
    result = verify(heteroscedastic(), parse_property(TEXT.format(bound)), timeout=20)
    assert result.verdict == verdict
    assert result.rule == "probability-below:0.4"
    assert result.asked is not None
    assert "probability that an outcome is below 0.4" in result.asked.unsat_means
    if verdict == "sat":
        assert result.witness is not None
        expected = stats.norm.cdf((0.4 - 0.3) / np.exp(-0.5))
        assert result.witness.y == pytest.approx([expected])


def test_a_verdict_with_a_confidence() -> None:
    asked = parse_property(TEXT.format(0.3))
    found = verify(heteroscedastic(), asked, guarantee="statistical", confidence=0.99, seed=1, draws=4000)
    assert found.verdict == "sat"
    assert found.witness is not None
    assert found.witness.y == pytest.approx([stats.norm.cdf((0.4 - 0.3) / np.exp(-0.5))])
    assert "probability of the event" in found.witness.shows


def test_the_command_line_and_the_check_of_its_witness(tmp_path) -> None:
    (tmp_path / "p.vnnlib").write_text(TEXT.format(0.3).replace(" rule=probability-below:0.4", ""))
    net = heteroscedastic()
    proto = attach(onnx.load_from_string(net.onnx_bytes), net.posterior, likelihood="gaussian_heteroscedastic")
    onnx.save(proto, tmp_path / "m.onnx")
    files, rule = (str(tmp_path / "p.vnnlib"), str(tmp_path / "m.onnx")), "--rule=probability-below:0.4"
    out = str(tmp_path / "r.txt")
    done = call("verify", *files, "--query=decision", rule, f"--results-file={out}", "--timeout=30")
    assert done.stdout.startswith("sat")
    assert json.loads((tmp_path / "r.txt.json").read_text())["rule"] == "probability-below:0.4"
    checked = call("check-witness", files[1], files[0], out)
    assert checked.stdout.strip() == "valid"
    attacked = call("attack", *files, "--query=decision", rule, "--timeout=30")
    assert attacked.stdout.startswith("valid")


def test_a_model_of_another_likelihood_is_refused_by_name(tmp_path) -> None:
    """Before its outputs are compared with the one probability that the property is about."""
    (tmp_path / "p.vnnlib").write_text(TEXT.format(0.3))
    net = random_model(0, [1, 3, 3], likelihood="categorical")
    onnx.save(
        attach(onnx.load_from_string(net.onnx_bytes), net.posterior, likelihood="categorical"), tmp_path / "m.onnx"
    )
    refused = call("verify", str(tmp_path / "p.vnnlib"), str(tmp_path / "m.onnx"), code=2)
    assert "and the likelihood is categorical" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("rule", "changed", "error", "what"),
    [
        ("probability-below:0.4", {"likelihood": "categorical"}, UnsupportedError, "is for likelihoods gaussian"),
        ("probability-below:0.4", {"likelihood": "gaussian"}, UnsupportedError, "1 output"),
        ("probability-below:0.4:0.1", {}, OptionError, "has the noise in its second output"),
        ("probability-below:0.4:-1", {}, OptionError, "a number is missing, unreadable or out of its range"),
        ("probability-below:", {}, OptionError, "a number is missing, unreadable or out of its range"),
        ("quantile:2", {}, OptionError, "a number is missing, unreadable or out of its range"),
        ("probability-below:0.4", {"query": "probabilistic"}, OptionError, "query"),
    ],
)
def test_what_is_refused(rule: str, changed: dict, error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        verify_batch(heteroscedastic(), ONE, ONE, **{"query": "decision", "rule": rule, **changed})


def test_a_gaussian_needs_its_noise() -> None:
    net = model([([[0.3]], [0.0])], [([[0.25]], [0.0])], likelihood="gaussian")
    with pytest.raises(OptionError, match="needs the deviation of the noise"):
        verify_batch(net, ONE, ONE, query="decision", rule="probability-below:0.4")


def test_rules_are_read_and_written_alike() -> None:
    assert str(Rule("probability-below:0.40")) == "probability-below:0.4"
    assert str(Rule("probability-below:-1e-3:0.5")) == "probability-below:-0.001:0.5"


# -- norms


def test_the_norm_of_an_exponential_of_one_unit() -> None:
    """v = W h + b, h = relu(a): E exp(2 v) by quadrature, W and b integrated in closed form."""
    net = model([([[0.8]], [0.2]), ([[-0.4]], [0.1])], [([[0.09]], [0.04]), ([[0.16]], [0.01])])
    boxes = weight_sets.marginal(net.network, net.posterior)
    x = torch.tensor([[1.0]], dtype=torch.float64)
    found = float(exponential_norm(net.network, boxes, x, x, 2)) ** 2
    t = np.sqrt(0.13)

    def at(n: float) -> float:
        h = max(1.0 + t * n, 0.0)
        return float(np.exp(2 * (-0.4 * h + 0.1) + 2 * (0.16 * h**2 + 0.01)) * stats.norm.pdf(n))

    truth = integrate.quad(at, -12, 12, points=[-1 / t], limit=200)[0]
    positive = integrate.quad(lambda n: at(n) * np.exp(0.8 * max(1 + t * n, 0)), -12, 12, points=[-1 / t], limit=200)[0]
    assert found >= truth
    assert found == pytest.approx(positive, rel=1e-6)  # a negative mean counts as 0


@pytest.mark.parametrize("graph", ["attention", "tied", "residual"])
@pytest.mark.parametrize("family", ["gaussian", "full", "low_rank", "kron"])
def test_norms_of_any_graph_and_family(graph: str, family: str) -> None:
    net = zoo.model_of(graph, family, "wide")
    low = torch.full((1, net.network.signature.input_size), -0.3, dtype=torch.float64)
    boxes = weight_sets.marginal(net.network, net.posterior)
    norms = output_norms(net.network, boxes, low, low + 0.6, independent=family == "gaussian")[0]
    assert bool(torch.isfinite(norms).all())
    drawn = sample(net.network, net.posterior, 4000, torch.Generator().manual_seed(0))
    x = low + 0.6 * torch.rand(5, low.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    squares = evaluate(net.network, x, drawn) ** 2
    assert bool((squares.mean(0) <= norms**2 + 4 * squares.std(0) / np.sqrt(4000)).all())


def test_an_interval_of_noise_has_bounds() -> None:
    """Two hidden weights, a head (m, v): D of m + 2 sqrt(exp(v)) was without any bound."""
    net = random_model(3, [2, 6, 2], spread=0.1, likelihood="gaussian_heteroscedastic")
    x = np.full((1, 2), 0.25)
    found = verify_batch(net, x, x, query="decision", rule="probability-below:0.2", timeout=6)
    drawn = sample(net.network, net.posterior, 20000, torch.Generator().manual_seed(0))
    m, v = evaluate(net.network, torch.tensor(x), drawn)[:, 0].numpy().T
    truth = stats.norm.cdf((0.2 - m) / np.exp(v / 2)).mean()
    assert found.lower[0, 0] - 0.01 <= truth <= found.upper[0, 0] + 0.01
    assert found.upper[0, 0] - found.lower[0, 0] <= 0.3
