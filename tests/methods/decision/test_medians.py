"""Medians: order statistics, closed forms, quadrature, sampled attacks; the rule from the options to the record."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from typer.testing import CliRunner

from bnn_vnnlib import Options, Verdict, verify, verify_batch
from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.files.sidecar import record
from bnn_vnnlib.gaussian.characteristic import Sums, _reach, quantiles
from bnn_vnnlib.methods import decision
from bnn_vnnlib.methods.decision.median import quantile_lower
from bnn_vnnlib.methods.decision.regression.medians import _TAIL_SHARES, OneLayerMedians, _rarely
from bnn_vnnlib.model import WeightSamples, sample
from bnn_vnnlib.network.dense_chain import dense_chain
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.weight_sets import CentredUnion
from bnn_vnnlib.result import Rule
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.vnnlib import read_property
from support.builders import bounds_of, model, random_model, random_samples, rows

HALF = torch.tensor(0.5, dtype=torch.float64)
PLACE = "bnn_vnnlib.methods.decision.regression"


def medians(net, **options):
    task = decision.DecisionTask(bounds_of(net), net.posterior, torch.device("cpu"), Rule.MEDIAN, **options)
    return decision.portfolio(task)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9), st.integers(0, 1000))
def test_samples_against_the_definition(values, seed):
    """The least v among the values that is a median, with equal and with unequal probabilities."""
    rng = np.random.default_rng(seed)
    for share in (np.full(len(values), 1 / len(values)), rng.dirichlet(np.ones(len(values)))):
        v = np.array(values, float)
        mass = np.array([(share[v <= t].sum(), share[v >= t].sum()) for t in v])
        least = v[(mass >= 0.5 - 1e-12).all(1)].min()
        found = float(quantile_lower(torch.tensor(v), torch.tensor(share), HALF))
        assert found <= least
        if np.abs(mass - 0.5).min() > 1e-9:
            assert found == least


def test_what_no_box_covers_counts_as_below():
    """Boxes of mass .3, .45 and .6 (nested) that prove 3, 2, 1: only the last says anything about the median."""
    union = CentredUnion(torch.tensor([0.3, 0.45, 0.6]).double(), torch.tensor([0.3, 0.45, 0.6]).double())
    assert float(quantile_lower(torch.tensor([3.0, 2.0, 1.0]).double(), union.union_lower, HALF)) == 1.0
    # two disjoint boxes of mass .4 and .2 that prove 1 and 2: above 2 lies .2 only, and .4 may lie below both
    share, value = torch.tensor([0.4, 0.2]).double(), torch.tensor([1.0, 2.0]).double()
    assert float(quantile_lower(value, lambda member: (member * share).sum(-1), HALF)) == 1.0
    assert float(quantile_lower(value, lambda member: 0.8 * (member * share).sum(-1), HALF)) == -np.inf


def one_neuron(t, m, s, mu, sig, b, sig_b):
    """P(W relu(a) + b' < t) by quadrature over a."""

    def inner(z):
        return stats.norm.cdf(t, b + mu * z, np.sqrt((sig * z) ** 2 + sig_b**2))

    above = integrate.quad(lambda a: inner(a) * stats.norm.pdf(a, m, s), 0, max(m, 0) + 9 * s, limit=200)[0]
    return stats.norm.cdf(0, m, s) * inner(0.0) + above


def sums_of(*parts):
    return Sums(*(torch.tensor(part, dtype=torch.float64) for part in parts))


def law_and_quantiles(seed):
    """Of each share the probability below its quantile, less what it may be."""
    rng = np.random.default_rng(seed)
    m, s, mu, b = rng.normal(), 10 ** rng.uniform(-1, 0.3), rng.normal(), rng.normal()
    sig, sig_b = 10 ** rng.uniform(-1.5, 0), 10 ** rng.uniform(-1.5, 0)
    sums = sums_of(*([[v]] for v in (m, s, mu, sig)), [b], [sig_b], [1e-15])
    shares = np.array([0.0, 0.01, 0.1, 0.2])
    found = [one_neuron(t, m, s, mu, sig, b, sig_b) for t in quantiles(sums, torch.as_tensor(shares))[0].tolist()]
    return np.array(found) - (0.5 - shares)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_quantiles_against_quadrature(seed):
    assert (law_and_quantiles(seed) < 1e-7).all()


@pytest.mark.parametrize("seed", range(25))
def test_quantiles_are_close(seed):
    """But for one law in some thousands: a neuron that is hardly ever on and far larger than the noise beside it."""
    assert (law_and_quantiles(seed) > -2e-4).all()


def test_quantiles_where_the_tail_is_heavy():
    found = law_and_quantiles(2959)
    assert ((found > -5e-3) & (found < 1e-7)).all()


def test_quantiles_with_an_atom_and_without_noise_say_nothing_wrong():
    """A dead neuron and a bias without noise: all mass at b."""
    sums = sums_of([[-50.0]], [[1.0]], [[1.0]], [[0.0]], [2.0], [0.0], [0.0])
    assert (quantiles(sums, torch.tensor([0.0, 0.1]).double()) <= 2.0).all()


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.02, 0.3]))
@settings(max_examples=15, deadline=None)
def test_moves_from_the_centre_have_the_variance_that_is_paid_for(seed, radius):
    net = random_model(seed, [2, 6, 2], spread=0.5)
    chain = dense_chain(net.network, net.posterior, torch.device("cpu"))
    source = OneLayerMedians(chain, Deadline())
    center = torch.as_tensor(np.random.default_rng(seed).normal(size=(1, 2)))
    low, high = center - radius, center + radius
    bound = source._variance(low, high, (high - low) / 2)
    params = sample(net.network, net.posterior, 4000, torch.Generator().manual_seed(seed))
    for x in (low, high, low + (high - low) * torch.tensor([[0.0, 1.0]])):
        moved = evaluate(net.network, x, params) - evaluate(net.network, center, params)
        assert (moved.var(0) <= bound * (1 + 0.25) + 1e-200).all()


@pytest.mark.parametrize("drift", [0.0, -3.0])
def test_the_price_of_a_box_is_cantellis(monkeypatch, drift):
    """P(Delta < E Delta - d) = p for d = sd sqrt(1 / p - 1) is reached by a law on two points."""
    net = random_model(0, [2, 6, 2], spread=0.5)
    source = OneLayerMedians(dense_chain(net.network, net.posterior, torch.device("cpu")), Deadline())
    monkeypatch.setattr(f"{PLACE}.medians.quantiles", lambda sums, shares: torch.zeros(4, len(shares)).double())
    monkeypatch.setattr(f"{PLACE}.medians.deviations", lambda sums: torch.full((4,), 1e3).double())
    monkeypatch.setattr(OneLayerMedians, "_variance", lambda *_: torch.full((1, 2), 4.0, dtype=torch.float64))

    def means(_, low, high):
        return torch.full((1, 4), 0.0 if bool((low == high).all()) else drift, dtype=torch.float64)

    monkeypatch.setattr(OneLayerMedians, "_means", means)
    point = torch.zeros(1, 2, dtype=torch.float64)
    found = source.sides(point - 0.1, point + 0.1)
    expected = -2 * np.sqrt(1 / _TAIL_SHARES[-1] - 1) + drift  # the largest share is the cheapest
    assert (found <= expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def one_hidden(first, last, variances):
    chain = dense_chain(*net_parts(model([first, last], variances, likelihood="gaussian")))
    return OneLayerMedians(chain, Deadline())


def net_parts(net):
    return net.network, net.posterior, torch.device("cpu")


def test_half_a_deviation_is_not_enough_between_mean_and_median(monkeypatch):
    """P = 1/2 at distance sd from the mean is reached by a law on two points."""
    net = random_model(0, [2, 6, 2], spread=0.5)
    source = OneLayerMedians(dense_chain(*net_parts(net)), Deadline())
    monkeypatch.setattr(
        f"{PLACE}.medians.quantiles", lambda sums, shares: torch.full((4, len(shares)), -np.inf).double()
    )
    monkeypatch.setattr(f"{PLACE}.medians.deviations", lambda sums: torch.full((4,), 3.0).double())
    monkeypatch.setattr(OneLayerMedians, "_variance", lambda *_: torch.full((1, 2), 4.0, dtype=torch.float64))
    monkeypatch.setattr(OneLayerMedians, "_means", lambda *_: torch.full((1, 4), 1.0, dtype=torch.float64))
    point = torch.zeros(1, 2, dtype=torch.float64)
    found = source.sides(point - 0.1, point + 0.1)
    assert (found <= 1 - (3 + 2)).all()
    np.testing.assert_allclose(found, 1 - (3 + 2), rtol=1e-6)


def test_the_variance_of_a_move_is_exact_where_the_neuron_is_on():
    """Then delta = V u is Gaussian, and Var(W delta) = mu^2 s^2 + sig^2 (m^2 + s^2) at the farthest corner."""
    mu, sig2, v, sv2 = 1.7, 0.09, np.array([0.8, -0.5]), np.array([0.04, 0.01])
    source = one_hidden(
        ([v], [60.0]), ([[mu]], [0.0]), [([sv2], [0.02]), ([[sig2]], [0.5])]
    )  # fmt: skip
    low, high = torch.tensor([[0.1, -0.4]]).double(), torch.tensor([[0.5, 0.4]]).double()
    radius = (high - low) / 2
    m, s2 = float(np.abs(v) @ radius[0].numpy()), float(sv2 @ radius[0].numpy() ** 2)
    expected = mu**2 * s2 + sig2 * (m**2 + s2)
    found = source._variance(low, high, radius).item()
    assert expected <= found <= expected * (1 + 1e-5)


def test_the_variance_of_a_move_with_a_rare_neuron(monkeypatch):
    """E N^4 <= 3 (m^2 + s^2)^2: with probability q of being on at all, E delta^2 <= (m^2 + s^2) sqrt(3 q)."""
    mu, sig2, v, sv2, q = 1.7, 0.09, np.array([0.8, -0.5]), np.array([0.04, 0.01]), 1 / 300
    source = one_hidden(([v], [-60.0]), ([[mu]], [0.0]), [([sv2], [0.02]), ([[sig2]], [0.5])])
    monkeypatch.setattr(f"{PLACE}.medians._rarely", lambda t: torch.where(t < 0, q, 1.0))
    low, high = torch.tensor([[0.1, -0.4]]).double(), torch.tensor([[0.5, 0.4]]).double()
    radius = (high - low) / 2
    m, s2 = float(np.abs(v) @ radius[0].numpy()), float(sv2 @ radius[0].numpy() ** 2)
    found = source._variance(low, high, radius).item()
    expected = (mu**2 + sig2) * (m**2 + s2) * np.sqrt(3 * q)
    assert expected <= found <= expected * (1 + 1e-5)


@given(st.floats(-30, 5))
@settings(max_examples=40, deadline=None)
def test_one_of_two_events_is_as_likely_as_both_together_at_most(t):
    found = _rarely(torch.tensor([t], dtype=torch.float64)).item()
    assert min(1.0, 2 * float(mpmath.ncdf(t))) <= found <= 1.0


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
def test_quantiles_of_a_jump(noise):
    """relu(N(0, 1)) has half of its mass at 0: with little noise the wave has more terms than are summed."""
    sums = sums_of([[0.0]], [[1.0]], [[1.0]], [[0.0]], [0.0], [noise], [0.0])
    shares = np.array([0.0, 0.05, 0.1, 0.2, 0.4])
    for share, t in zip(shares, quantiles(sums, torch.as_tensor(shares))[0].tolist(), strict=True):
        # with b' <= noise N: the jump alone, and what of the half-normal is below t
        below = (
            0.5 * stats.norm.cdf(t / noise)
            + integrate.quad(
                lambda a, t=t: stats.norm.pdf(a) * stats.norm.cdf((t - a) / noise),
                0,
                1,
                points=[noise, 5 * noise, 0.05],
            )[0]
        )
        assert below < 0.5 - share + 1e-7


def test_mass_beyond_the_period_counts(monkeypatch):
    """Of what lies beyond, nothing is known."""
    known = _reach

    def leaky(*given):
        reach, tail = known(*given)
        return reach, tail + 0.05

    monkeypatch.setattr("bnn_vnnlib.gaussian.characteristic._reach", leaky)
    assert (law_and_quantiles(1) <= -0.05 + 1e-7).all()


def test_of_a_linear_network_the_median_is_the_mean():
    """f = w x + b is Gaussian: median = mean = x1 - 2 x2 + .5, on a box with a closed form of its range."""
    net = model([([[1.0, -2.0]], [0.5])], [([[0.04, 0.01]], [0.02])], likelihood="gaussian")
    for radius, slack in ((0.0, 0.05), (0.2, 0.5)):
        low, high = np.array([[1.0 - radius, 0.5 - radius]]), np.array([[1.0 + radius, 0.5 + radius]])
        found = verify_batch(net, low, high, properties=[[rows([1.0], -9.0)]], query="decision", rule="median")
        truth = 0.5 - 3 * radius, 0.5 + 3 * radius
        assert truth[0] - slack <= found.lower[0, 0] <= truth[0] + 1e-9
        assert truth[1] - 1e-9 <= found.upper[0, 0] <= truth[1] + slack


@pytest.mark.parametrize("level", [0.05, 0.3, 0.9])
def test_quantiles_of_a_linear_network(level):
    """f = w x + b is Gaussian with an increasing mean: its quantiles are known, and so are those of samples of it."""
    net = model([([[1.0]], [0.5])], [([[0.0]], [0.04])], likelihood="gaussian")
    low, high, rule = np.array([[0.0]]), np.array([[0.1]]), f"quantile:{level}"
    asked = {"properties": [[rows([1.0], -9.0)]], "query": "decision", "rule": rule}
    found = verify_batch(net, low, high, **asked)
    truth = 0.5 + 0.2 * special.ndtri(level) + np.array([0.0, 0.1])
    assert truth[0] - 0.3 <= found.lower[0, 0] <= truth[0]
    assert truth[1] <= found.upper[0, 0] <= truth[1] + 0.3
    noise = np.linspace(-1, 1, 21)  # each with 1/21: the quantile is a sample
    posterior = WeightSamples({"W0": np.ones((21, 1, 1)), "b0": noise[:, None]}, np.full(21, 1 / 21))
    sampled = replace(model([([[1.0]], [0.5])], likelihood="gaussian"), posterior=posterior)
    found = verify_batch(sampled, low, high, **asked)
    place = math.ceil(level * 21) - 1
    assert found.lower[0, 0] == pytest.approx(noise[place], abs=1e-9)
    assert found.upper[0, 0] == pytest.approx(noise[place] + 0.1, abs=1e-9)


def test_rules_that_are_none(tmp_path):
    for rule in ("quantile:0", "quantile:1", "quantile:nan", "quantile:", "quantile:1e"):
        with pytest.raises(OptionError, match=f"rule '{rule}': a number is missing, unreadable or out of its range"):
            Options(rule=rule)
    for rule in ("Quantile:0.5", "quantiles"):
        with pytest.raises(OptionError, match="unknown rule"):
            Options(rule=rule)
    assert Options("decision", rule="quantile:0.50").question().rule == "median"
    assert pickle.loads(pickle.dumps(Rule("quantile:0.05"))).level == 0.05
    net = random_model(1, [2, 3, 1], likelihood="gaussian")
    file = tmp_path / "p.vnnlib"
    file.write_text(TEXT.format(bound=5).replace("rule=median", "rule=quantile:0.95"))
    result = verify(net, read_property(file))
    assert result.rule == "quantile:0.95"
    assert "0.95-quantiles of the outputs" in result.asked.unsat_means
    assert record(result, {}, seed=0, timeout=None)["rule"] == "quantile:0.95"


@given(
    st.integers(0, 10_000), st.sampled_from([[3, 2], [2, 8, 2], [3, 16, 1], [2, 5, 5, 1]]),
    st.sampled_from([0.05, 0.3, 1.0]), st.sampled_from([0.0, 0.05, 0.3]), st.booleans(),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_against_sampled_networks(seed, widths, spread, radius, samples):
    """At no point may more than half of the networks lie beyond a bound; all rows and outputs, and all verdicts."""
    make = random_samples if samples else random_model
    extra = (5,) if samples else ()
    net = make(seed, widths, *extra, spread=spread, likelihood="gaussian")
    rng = np.random.default_rng(seed)
    center, row = rng.normal(size=(2, widths[0])), rng.normal(size=widths[-1])
    case = rows(row, float(rng.normal()))
    low, high = center - radius, center + radius
    found = verify_batch(net, low, high, properties=[[case]], query="decision", rule="median", timeout=20.0)
    if samples:
        params = {name: torch.as_tensor(values) for name, values in net.posterior.samples.items()}
        share = torch.as_tensor(net.posterior.probabilities)
    else:
        params = sample(net.network, net.posterior, 3001, torch.Generator().manual_seed(seed))
        share = torch.full((3001,), 1 / 3001.0).double()
    error = 1e-9 if samples else 6 * 0.5 / np.sqrt(3001)
    points = [found.points, low, high, *(low + (high - low) * rng.random((3, 2, widths[0])))]
    for x in (torch.as_tensor(p) for p in points):
        y = evaluate(net.network, x, params)
        below = (share[:, None, None] * (y < torch.as_tensor(found.lower) - 1e-9)).sum(0)
        above = (share[:, None, None] * (y > torch.as_tensor(found.upper) + 1e-9)).sum(0)
        assert (below <= 0.5 + error).all()
        assert (above <= 0.5 + error).all()
    assert np.isfinite(found.lower).all()
    order = y.sort(0).values
    value = order[len(order) // 2].numpy() @ row  # at the last of the points
    if not samples:
        spare = 8 * float((y.std(0).numpy() * np.abs(row)).sum(-1).max()) / np.sqrt(3001)
        assert (found.row_lower[:, 0] <= value + spare).all()
        assert (found.row_upper[:, 0] >= value - spare).all()


def test_samples_are_bounded_to_the_tolerance():
    """One input, 5 samples: against a grid."""
    net = random_samples(3, [1, 6, 1], 5, spread=0.4, likelihood="gaussian")
    x = torch.linspace(-0.5, 0.5, 2001, dtype=torch.float64)[:, None]
    params = {name: torch.as_tensor(values) for name, values in net.posterior.samples.items()}
    y, order = evaluate(net.network, x, params)[..., 0].sort(0)
    share = torch.as_tensor(net.posterior.probabilities)[order].cumsum(0)
    middle = y.gather(0, (share < 0.5).sum(0, keepdim=True))[0]
    found = verify_batch(net, [[-0.5]], [[0.5]], properties=[[rows([1.0], -9.0)]], query="decision", rule="median")
    spread = float(y.std())
    assert float(middle.min()) - 3e-3 * spread <= found.lower[0, 0] <= float(middle.min()) + 1e-4
    assert float(middle.max()) - 1e-4 <= found.upper[0, 0] <= float(middle.max()) + 3e-3 * spread


def test_points_are_exact_and_boxes_shrink_to_them():
    net = random_model(0, [2, 8, 1], spread=0.3, likelihood="gaussian")
    x = np.array([[0.3, -0.4]])
    widths = []
    for radius in (0.0, 1e-4, 1e-3):
        found = verify_batch(
            net, x - radius, x + radius, properties=[[rows([1.0], -9.0)]], query="decision", rule="median"
        )
        widths.append(float(found.upper[0, 0] - found.lower[0, 0]))
    assert widths[0] < 1e-5
    assert widths[0] < widths[1] < widths[2] < 0.05


TEXT = """
; bnn-vnnlib: query=decision rule=median
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real)
(assert (>= X_0 0.2)) (assert (<= X_0 0.25)) (assert (>= X_1 -0.4)) (assert (<= X_1 -0.35))
(assert (>= (+ Y_0 X_0) {bound}))
"""


@pytest.mark.parametrize("samples", [False, True])
def test_verdicts_witness_and_record(tmp_path, samples):
    """Inputs in a row, both verdicts, the comment, the JSON record, and the same from a batch."""
    make, extra = (random_samples, (5,)) if samples else (random_model, ())
    net = make(1, [2, 8, 1], *extra, spread=0.2, likelihood="gaussian")
    middle = float(evaluate(net.network, torch.tensor([[0.225, -0.375]]).double())[0, 0])
    for bound, verdict in ((middle + 1.0, Verdict.UNSAT), (middle - 1.0, Verdict.SAT)):
        file = tmp_path / "p.vnnlib"
        file.write_text(TEXT.format(bound=bound))
        result = verify(net, read_property(file))
        assert (result.verdict, result.rule) == (verdict, Rule.MEDIAN)
        assert result.decision.row_lower[0] <= result.decision.row_upper[0]
        assert record(result, {}, seed=0, timeout=None)["rule"] == "median"
        if verdict is Verdict.SAT:
            assert "medians" in result.witness.shows
            assert result.witness.check["decision_lower"][0] <= result.witness.check["decision_upper"][0]
    box = np.array([[0.2, -0.4]]), np.array([[0.25, -0.35]])
    batch = verify_batch(net, *box, properties=[[rows([-1.0], -(middle - 1.0))]], query="decision", rule="median")
    assert batch.verdicts[0] == Verdict.SAT
    mean = verify_batch(net, *box, properties=[[rows([-1.0], -(middle - 1.0))]], query="decision")
    assert np.abs(mean.lower - batch.lower).max() > 1e-6  # the rule makes a difference


def test_the_rule_of_a_comment_counts_for_the_decision_only():
    assert Options("probabilistic").question({"rule": "median"}).rule == Rule.MEAN
    assert Options().question({"rule": "median", "query": "decision"}).rule == Rule.MEDIAN
    assert Options("decision", rule="mean").question({"rule": "median"}).rule == Rule.MEAN


@pytest.mark.parametrize(
    ("options", "likelihood", "error", "message"),
    [
        ({"query": "decision"}, "categorical", UnsupportedError, "rule median is for regression"),
        ({"query": "decision"}, "bernoulli", UnsupportedError, "rule median is for regression"),
        ({"query": "probabilistic"}, "gaussian", OptionError, "for query decision"),
        ({}, "gaussian", OptionError, "for query decision"),
    ],
)
def test_refused_by_name(options, likelihood, error, message):
    net = random_model(1, [2, 4, 2], likelihood=likelihood)
    with pytest.raises(error, match=message):
        verify_batch(net, [[0.0, 0.0]], [[0.1, 0.1]], labels=[0], rule="median", **options)


def test_the_command_line(tmp_path, identity_model):
    """attach, then verify --rule median: the record says so; a classifier is refused with exit code 2."""
    (tmp_path / "p.vnnlib").write_text(
        "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)"
        "(assert (>= X_0 0.0)) (assert (<= X_0 0.1)) (assert (>= X_1 0.0)) (assert (<= X_1 0.1)) (assert (>= Y_0 0.5))"
    )
    np.savez(tmp_path / "w.npz", W_std=np.full((2, 2), 0.01))
    net, out = tmp_path / "net.onnx", tmp_path / "r.txt"
    runner = CliRunner()
    assert runner.invoke(app, ["attach", str(identity_model), str(tmp_path / "w.npz"), str(net)]).exit_code == 0
    ask = ["verify", str(tmp_path / "p.vnnlib"), str(net), "--query", "decision", "--results-file", str(out)]
    done = runner.invoke(app, [*ask, "--rule", "median", "--likelihood", "gaussian"])
    assert (done.exit_code, done.stdout) == (0, "unsat\n")
    assert "median" in done.stderr
    stored = json.loads((tmp_path / "r.txt.json").read_text())
    assert stored["rule"] == "median"
    assert stored["decision"]["upper"][0] < 0.5
    refused = runner.invoke(app, [*ask, "--rule", "median", "--likelihood", "categorical"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "rule median is for regression" in " ".join(refused.stderr.split())
    assert json.loads((tmp_path / "r.txt.json").read_text())["rule"] is None


def test_an_unknown_rule_is_named():
    with pytest.raises(OptionError, match="unknown rule 'mode'; known are mean, median"):
        Options("decision", rule="mode")


def test_boxes_alone_where_they_are_asked_for():
    net = random_model(0, [1, 3, 1], spread=0.05, likelihood="gaussian")
    full = verify_batch(net, [[0.1]], [[0.2]], properties=[[rows([1.0], -9.0)]], query="decision", rule="median")
    for options in ({"margin": 3.0}, {"method": "interval"}):
        expect = medians(net, margin=options.get("margin"))
        assert len(list(expect.steps.rows)) == (1 if "margin" in options else 3)
        found = verify_batch(
            net, [[0.1]], [[0.2]], properties=[[rows([1.0], -9.0)]], query="decision", rule="median", **options
        )
        assert np.isfinite(found.lower).all()
        assert found.lower[0, 0] <= full.upper[0, 0]
        assert found.upper[0, 0] >= full.lower[0, 0]
