"""verify: one property of one model, from the question to the verdict."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from scipy import special, stats

from bnn_vnnlib import (
    OptionError,
    Property,
    UnsupportedError,
    Verdict,
    read_model,
    read_property,
    verify,
    verify_batch,
    witness,
)
from bnn_vnnlib.display import meaning
from bnn_vnnlib.errors import InputError, PropertyError
from bnn_vnnlib.model import sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.question.property import Boxes, input_feasible, violated_case
from bnn_vnnlib.setting import Setting
from support.builders import model, outputs, properties, random_model, random_samples
from support.clock import Clock

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
QUERIES = ["probabilistic", "decision", "deterministic"]


def known_problems() -> list[tuple[str, str, str]]:
    """(property, model, allowed outcomes); one placeholder where the folder is absent."""
    table = CASES / "expected.tsv"
    if not table.is_file():
        return [("", "", "")]
    return [tuple(line.split("\t")) for line in table.read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(("prop", "network", "allowed"), known_problems())
def test_known_problems(prop, network, allowed):
    if not prop:
        pytest.skip("../shared is not here")
    net = read_model(CASES / network)
    try:
        word = verify(
            net, read_property(CASES / prop, net.network.signature), query="deterministic", timeout=60
        ).verdict
    except InputError:
        word = "refuse"
    assert word in allowed.split("|")


def text(tmp_path: Path, body: str, inputs: int = 2, outputs_: int = 1) -> Property:
    declared = [
        f"(declare-const {name}_{i} Real)" for name, count in (("X", inputs), ("Y", outputs_)) for i in range(count)
    ]
    path = tmp_path / "p.vnnlib"
    path.write_text("\n".join([*declared, body]))
    return read_property(path)


def line(deviation: float = 0.1, **settings):
    """y = w x, w ~ N(1, deviation^2)."""
    return model([([[1.0]], [0.0])], [([[deviation**2]], None)], **settings)


def at_one(net, bound: float, low: float = 1.0, high: float = 1.0) -> Property:
    """V: y <= bound at x = 1 (or over an interval)."""
    return properties(net, [(low, high)], [(0, [([1], None, bound, False)])])


def test_thresholds_decide_the_verdict():
    net = line()
    prop = at_one(net, 0.8)  # P_safe = .977
    assert stats.norm.cdf(2) == pytest.approx(0.977, abs=1e-3)
    for tau, word in ((0.9, "unsat"), (0.95, "unsat"), (0.975, "unknown"), (0.99, "unknown")):
        assert verify(net, prop, method="linear", tau_safe=tau, tau_unsafe=min(tau, 0.5)).verdict == word
    prop = at_one(net, 1.2)  # P_safe = .023
    for tau, word in ((0.9, "sat"), (0.1, "sat"), (0.02, "unknown"), (0.0, "unknown")):
        assert verify(net, prop, tau_safe=0.95, tau_unsafe=tau).verdict == word


def test_a_threshold_given_alone_refutes_too():
    """P_safe = .977: below .999, so that the requirement P_safe >= .999 is refuted."""
    assert verify(line(), at_one(line(), 0.8), tau_safe=0.999).verdict == "sat"
    assert verify(line(), at_one(line(), 0.8), tau_unsafe=0.5).verdict == "unsat"


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_between_the_thresholds_no_verdict_is_looked_for(timeout):
    """P_safe = .977 lies between .9 and .99: that is proved, work ends, and nobody is told to try something else."""
    begun = time.monotonic()
    found = verify(line(), at_one(line(), 0.8, 1.0, 1.01), tau_safe=0.99, tau_unsafe=0.9, timeout=timeout)
    assert time.monotonic() - begun < 20
    assert (found.verdict, found.between) == ("unknown", True)
    assert meaning(found) == "proved: 0.9 <= P_safe < 0.99, between the thresholds: neither verdict applies"
    assert verify(line(), at_one(line(), 0.8), tau_safe=1.0, tau_unsafe=0.98).verdict == "sat"
    one, high = np.ones((1, 1)), np.full((1, 1), 1.01)
    cases = [[(-one, np.array([-0.8]), np.array([False]))]]  # violated where y >= 0.8
    batch = verify_batch(line(), one, high, properties=cases, tau_safe=0.1, tau_unsafe=0.01, timeout=timeout)
    assert batch.verdicts.tolist() == ["unknown"]
    assert 0.01 <= batch.lower[0] <= batch.upper[0] < 0.1


def test_what_is_proved_to_lie_between_is_no_timeout(monkeypatch):
    """Time is up once the bounds are there."""
    monkeypatch.setattr(Setting, "undecided", Verdict.TIMEOUT)
    assert verify(line(), at_one(line(), 0.8, 1.0, 1.01), tau_safe=0.99, tau_unsafe=0.9).verdict == "unknown"


def test_the_record_says_which_method_gave_each_bound():
    """At a point one row is Gaussian, which tails know, and the only layer is the last; with intervals there are boxes
    of weights alone."""
    net = line()
    found = verify(net, at_one(net, 0.8), tau_unsafe=0.5).details
    assert (found["lower_by"], found["upper_by"]) == ("tails", "last layer")
    found = verify(net, at_one(net, 0.8), method="interval", tau_safe=0.9, tau_unsafe=0.5).details
    assert found["lower_by"] == "centred boxes"


def test_the_record_says_what_ran_and_not_what_the_options_allow():
    net = line(likelihood="gaussian")
    at = at_one(net, 0.8)
    assert verify(net, at).method == "lower bound: tails; upper bound: last layer"
    assert verify(net, at, method="interval", tau_safe=0.9, tau_unsafe=0.1).method.startswith(
        "lower bound: centred boxes (interval); upper bound: "
    )
    assert verify(net, at, boxes="sampled").method.startswith("lower bound: boxes around samples (linear); upper")
    assert verify(net, at, timeout=0.0).method == "none"
    assert verify(net, properties(net, [(1, 1)], [])).method == "the property alone"
    assert verify(net, at_one(net, -5.0)).method == "lower bound: tails; upper bound: none"
    fixed = "the ranges of the last activations alone"  # the decision of a linear map is that of its mean
    assert verify(net, at, query="decision").method == fixed
    hidden = random_model(0, [1, 3, 1], likelihood="gaussian")
    assert verify(hidden, at_one(hidden, -100.0), query="decision").method == "closed forms"
    assert (
        verify(hidden, at_one(hidden, -100.0), query="decision", method="interval").method == "centred boxes (interval)"
    )
    assert verify(hidden, at_one(hidden, -100.0), query="decision", timeout=0.0).method.startswith("lower bound: none")
    assert verify(net, at, query="decision", rule="median", method="interval").method == "centred boxes (interval)"
    assert verify(net, at_one(net, 2.0), query="deterministic").method == "attack"
    assert verify(net, at, query="deterministic").method == "linear, branch and bound"
    drawn = random_samples(0, [1, 3, 1], 4, likelihood="gaussian")
    far = at_one(drawn, -100.0)
    assert verify(drawn, far).method == "lower bound: weight samples (linear); upper bound: none"
    assert verify(drawn, far, query="decision").method == "weight samples (linear)"


def test_a_batch_names_all_methods_that_gave_bounds():
    net = line(likelihood="gaussian")
    low, cases = np.array([[1.0], [1.0]]), [[(np.ones((1, 1)), np.array([b]), np.array([False]))] for b in (0.8, -5.0)]
    assert verify_batch(net, low, low, properties=cases).method == "lower bound: tails; upper bound: last layer, none"
    assert verify_batch(net, low, low, properties=cases, query="decision").method == "ranges"


def test_a_threshold_that_is_met_exactly():
    """unsat from lower >= tau, sat from upper < tau: without variance, both are 1 or 0."""
    net = line(0.0)
    assert verify(net, at_one(net, 0.5), tau_safe=1.0, tau_unsafe=1.0).verdict == "unsat"
    assert verify(net, at_one(net, 2.0), tau_safe=1.0, tau_unsafe=0.0).verdict == "unknown"  # P_safe < 0 never
    for tiny in (5e-324, 1e-17, 1e-3):
        found = verify(net, at_one(net, 2.0), tau_safe=1.0, tau_unsafe=tiny)
        assert (found.verdict, found.p_safe.upper) == ("sat", 0.0)
    assert verify(net, at_one(net, 2.0), tau_safe=0.0).verdict == "unsat"  # P_safe >= 0 always


@pytest.mark.parametrize("first", [True, False])
def test_boxes_that_overlap_have_cases_of_their_own(first):
    """The attacked point lies in both boxes; only one of them has a case that it violates."""
    net = line()
    cases = [(0, [([1.0], None, -100.0, False)]), (1, [([-1.0], None, 0.0, False)])]
    prop = properties(net, [(0, 1), (0, 0.5)], cases if first else [(1 - box, rows) for box, rows in cases])
    assert verify(net, prop, query="probabilistic").verdict == "sat"


def test_one_safe_box_does_not_make_a_property_safe():
    """Of two boxes, one is safe, and every point of the other one is a violation."""
    net = line(likelihood="gaussian")
    prop = properties(net, [(0, 1), (2, 3)], [(0, [([1], None, -100.0, False)]), (1, [([1], None, 10.0, False)])])
    for query in QUERIES:
        assert verify(net, prop, query=query).verdict == "sat"


@pytest.mark.parametrize("shown", [True, False])
def test_a_deterministic_violation_needs_a_replayed_witness(monkeypatch, shown):
    """Of two boxes, one is safe. At first nothing that is found in the other one is a violation in onnxruntime."""
    replayed, calls = witness.replayed, []

    def replay(*args):
        calls.append(args)
        return replayed(*args) if shown and len(calls) == 2 else None

    monkeypatch.setattr(witness, "replayed", replay)
    net = line()
    prop = properties(net, [(0, 1), (2, 3)], [(0, [([1], None, -100.0, False)]), (1, [([1], None, 10.0, False)])])
    found = verify(net, prop, query="deterministic")
    assert (found.verdict, found.witness is not None) == (("sat", True) if shown else ("unknown", False))
    timed = verify(net, prop, query="deterministic", timeout=0.0)
    assert (timed.verdict, timed.witness) == ("timeout", None)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("family", ["gaussian", "samples"])
def test_time_may_be_up_at_any_moment(monkeypatch, query, family):
    """Wherever time ends, what comes back is a valid result, and the bounds enclose those of a full run's truth."""
    widths = [3, 4, 2]
    net = random_model(0, widths, spread=0.1, likelihood="categorical")
    if family == "samples":
        net = random_samples(0, widths, 4, likelihood="categorical")
    label = int(outputs(net, np.zeros(3)).argmax())
    row = np.where(np.arange(2) == label, -1.0, 1.0)  # violated by most networks: the witness has to be checked too
    prop = properties(net, [(-1, 1)], [(0, [(row, None, 0.0, False)])])
    clock = Clock(monkeypatch)
    how = {"tau_safe": 0.95, "tau_unsafe": 0.9} if query == "probabilistic" else {}
    full = verify(net, prop, query=query, timeout=1000, **how)
    total = clock.looks
    assert total > 0
    assert full.verdict == "sat"
    for allowed in range(0, total + 1, max(1, total // 12)):
        clock.stopped_at(allowed)
        found = verify(net, prop, query=query, timeout=1000, **how)
        assert found.verdict in ("timeout", full.verdict)
        if query == "probabilistic":
            assert 0 <= found.p_safe.lower <= full.p_safe.upper
            assert full.p_safe.lower <= found.p_safe.upper <= 1
        if query == "decision":
            assert (found.decision.lower <= full.decision.upper).all()
            assert (found.decision.upper >= full.decision.lower).all()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", float("nan")),
        ("seed", -1),
        ("margin", -1.0),
        ("num_boxes", 3),
        ("method", "guess"),
        ("boxes", "big"),
    ],
)
def test_options_that_mean_nothing(option, value):
    net = random_model(0, [1, 3, 1], spread=0.1)
    prop = properties(net, [([0.0], [1.0])], [(0, [([1.0], None, -100.0, False)])])
    with pytest.raises(OptionError):
        verify(net, prop, **{option: value})


@pytest.mark.parametrize("timeout", [0.0, 1e-9, -1.0])
@pytest.mark.parametrize("query", ["probabilistic", "decision"])
def test_no_time_at_all(timeout, query):
    net = random_model(0, [3, 4, 2], likelihood="categorical")
    prop = properties(net, [(-1, 1)], [(0, [([1, -1], None, 0.0, False)])])
    found = verify(net, prop, query=query, timeout=timeout)
    assert found.verdict == "timeout"
    if query == "probabilistic":
        assert (found.p_safe.lower, found.p_safe.upper) == (0.0, 1.0)


def test_questions_that_cannot_be_asked_are_refused():
    plain = model([([[1.0]], [0.0])])
    prop = at_one(plain, 0.0)
    for query in ("probabilistic", "decision"):
        with pytest.raises(OptionError, match="posterior"):
            verify(plain, prop, query=query)
    assert verify(plain, prop).query == "deterministic"
    net = line()
    assert verify(net, prop).query == "probabilistic"
    with pytest.raises(OptionError, match="likelihood"):
        verify(net, prop, query="decision")
    assert verify(net, prop, query="decision", likelihood="gaussian").verdict == "unsat"
    two = model([([[1.0, 1.0]], [0.0])], [([[0.1, 0.1]], None)])
    with pytest.raises(OptionError, match="2 inputs and 1 outputs"):
        verify(net, at_one(two, 0.0))
    drawn = random_samples(0, [1, 2, 1], 3)
    with pytest.raises(UnsupportedError, match="samples"):
        verify(drawn, at_one(drawn, 0.0), boxes="sampled")


def constants(net) -> list[Property]:
    """Rows that mean something else for logits than for probabilities."""
    texts = [
        ([1, 0], None, 0.5, False),
        ([1, -1], None, 0.1, False),
        ([1, -2], None, 0.0, False),
        ([1, 1], None, 0.0, False),
    ]
    texts.append(([1, -1], [1.0, 0.0], 0.0, False))
    return [properties(net, [(-1, 1)], [(0, [row])]) for row in texts]


def test_constants_against_logits_are_refused_unless_probabilities_are_meant():
    net = random_model(0, [2, 4, 2], spread=0.1, likelihood="categorical")
    for prop in constants(net):
        with pytest.raises(OptionError, match="outputs probabilities"):
            verify(net, prop, query="decision")
        verify(net, prop, query="decision", outputs="probabilities")
        verify(net, prop, query="probabilistic")  # the outputs are the logits there
    difference = properties(net, [(-1, 1)], [(0, [([2.0, -2.0], None, 0.0, False)])])
    verify(net, difference, query="decision")
    ended = random_model(0, [2, 4, 2], spread=0.1, likelihood="categorical", end=["Softmax"])
    for prop in constants(ended):
        verify(ended, prop, query="decision")


def test_constants_of_a_bernoulli_model():
    logits = line(likelihood="bernoulli")
    with pytest.raises(OptionError, match="outputs probabilities"):
        verify(logits, at_one(logits, 0.6), query="decision")
    found = verify(logits, at_one(logits, 0.6), query="decision", outputs="probabilities")
    assert found.verdict == "unsat"  # E sigmoid(w) = .73
    assert found.decision.lower[0] <= special.expit(1.0) <= found.decision.upper[0] + 1e-3


@pytest.mark.parametrize("end", [["Sigmoid"], ["Sigmoid", "Flatten"], ["Sigmoid", "Reshape"], ["Sigmoid", "Squeeze"]])
def test_probabilities_are_not_squashed_twice(end):
    """A Sigmoid stays one when the graph moves its result about; once, a Reshape hid it: D was said to be .62."""
    net = model([([[1.0]], [0.0])], [([[0.01]], None)], end=end, likelihood="bernoulli")
    found = verify(net, at_one(net, 0.3, 0.0, 0.0), query="decision")
    assert found.decision.lower[0] <= 0.5 <= found.decision.upper[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_softmax_at_the_end_changes_no_comparison_of_classes(seed):
    """Probabilistic and deterministic: Y_i - Y_j against 0 is decided on the logits, whatever the scale of the row."""
    logits = random_model(seed, [2, 5, 3], spread=0.1)
    ended = random_model(seed, [2, 5, 3], spread=0.1, end=["Softmax"])
    x = np.random.default_rng(seed).normal(size=2)
    order = np.argsort(outputs(logits, x))
    row = np.zeros(3)
    row[order[-1]], row[order[0]] = 0.25, -0.25
    for query in ("probabilistic", "deterministic"):
        for sign in (1, -1):
            one, other = (
                verify(
                    net, properties(net, [(x - 0.02, x + 0.02)], [(0, [(sign * row, None, 0.0, False)])]), query=query
                )
                for net in (logits, ended)
            )
            if query == "probabilistic":
                assert other.p_safe.lower >= one.p_safe.lower - 1e-9
                assert other.p_safe.upper <= one.p_safe.upper + 1e-3
            else:
                assert {one.verdict, other.verdict} != {"sat", "unsat"}


def test_constants_against_a_softmax_by_its_functional():
    """P(softmax_0 <= .6) with f = (w, 0): softmax_0 = sigmoid(w)."""
    net = model([([[1.0], [0.0]], [0.0, 0.0])], [([[0.01], [0.0]], None)], end=["Softmax"], likelihood="categorical")
    prop = properties(net, [(1, 1)], [(0, [([1, 0], None, 0.7, False)])])
    truth = stats.norm.sf((special.logit(0.7) - 1.0) / 0.1)
    found = verify(net, prop, query="probabilistic")
    assert truth - 0.1 <= found.p_safe.lower <= truth <= found.p_safe.upper
    found = verify(net, prop, query="decision")
    assert found.verdict == "unsat"
    found = verify(net, properties(net, [(1, 1)], [(0, [([-1, 0], None, -0.7, False)])]), query="decision")
    assert found.verdict == "sat"
    assert found.witness.check["decision_lower"][0] >= 0.7


@pytest.mark.parametrize("element", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_a_deterministic_witness_replays_in_onnxruntime(seed, element):
    net = random_model(seed, [3, 6, 2], spread=0.1, element=element)
    low, high = np.full(3, -0.3), np.full(3, 0.7)
    edge = outputs(net, np.array([0.1, 0.1, 0.2])) @ [1, -1]
    prop = properties(net, [(low, high)], [(0, [([1, -1], None, edge + 0.01, False)])], [(0, (1, 1, 1), 0.5, False)])
    found = verify(net, prop, query="deterministic")
    assert found.verdict == "sat"
    session = onnxruntime.InferenceSession(net.onnx_bytes, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": found.witness.x.astype(element)[None]})
    np.testing.assert_array_equal(y[0].astype(np.float64), found.witness.y)
    assert input_feasible(prop, found.witness.x, 0)
    assert violated_case(prop, found.witness.x, found.witness.y) == 0


@pytest.mark.parametrize("query", QUERIES)
def test_witnesses_satisfy_the_constraints_exactly(query):
    """The violation is at its strongest where the constraint is broken."""
    net = model([(np.eye(2), np.zeros(2))], [(np.full((2, 2), 1e-8), None)], likelihood="gaussian")
    prop = properties(net, [(-1, 1)], [(0, [([-1, 0], None, -0.125, False)])], [(0, (3.0, 1.0), -0.25, True)])
    found = verify(net, prop, query=query)
    assert found.verdict == "sat"
    assert input_feasible(prop, found.witness.x, 0)


def test_probabilistic_witnesses_say_what_they_show():
    net = line()
    found = verify(net, at_one(net, 2.0), query="probabilistic")
    assert found.verdict == "sat"
    assert found.witness.check["violation_mass_lower"] > 0.05
    np.testing.assert_allclose(found.witness.y, found.witness.x)
    drawn = sample(net.network, net.posterior, 500, torch.Generator().manual_seed(0))
    share = (evaluate(net.network, torch.tensor(found.witness.x[None]), drawn)[:, 0, 0] <= 2.0).double().mean()
    assert share >= found.witness.check["violation_mass_lower"] - 0.1


def test_samples_that_violate_at_points_of_their_own():
    """y = w x over [-1, 1], V: y >= .5: each sample has its own x, no x shows more than half of them."""
    drawn = np.array([1.0, -1.0]).reshape(2, 1, 1)
    net = model([([[0.0]], [0.0])], samples=[(drawn, None)])
    found = verify(
        net, properties(net, [(-1, 1)], [(0, [([-1], None, -0.5, False)])]), query="probabilistic", tau_unsafe=0.3
    )
    assert (found.verdict, found.p_safe.upper) == ("sat", 0.0)
    assert found.details["violating_samples"] == [0, 1]
    assert "of its own" in found.witness.shows
    assert found.witness.check["violation_mass_lower"] <= 0.5


def test_weight_samples_warn_about_their_mean():
    net = random_samples(0, [2, 3, 2], 4)
    prop = properties(net, [(0, 0)], [(0, [([1, 0], None, -100.0, False)])])
    assert any("meaningless" in note for note in verify(net, prop, query="deterministic").notes)


def test_the_seed_decides_everything_that_is_drawn():
    net = random_model(5, [3, 8, 2], spread=0.2, likelihood="categorical")
    prop = properties(net, [(-0.5, 0.5)], [(0, [([1, -1], None, 0.0, False)])])
    for settings in ({}, {"boxes": "sampled"}, {"query": "decision"}, {"query": "deterministic"}):
        first, second = (verify(net, prop, seed=7, **settings) for _ in range(2))
        assert first.verdict == second.verdict
        assert first.p_safe == second.p_safe
        if first.witness is not None:
            np.testing.assert_array_equal(first.witness.x, second.witness.x)
    sampled = [verify(net, prop, seed=s, boxes="sampled", margin=0.5).details for s in (1, 2)]
    assert sampled[0]["safe_margin_sd"] == sampled[1]["safe_margin_sd"] == 0.5


@pytest.mark.parametrize("query", QUERIES)
def test_a_number_that_no_float_hits(tmp_path, query):
    """X_0 == 0.1: the bounds hold the real point; y = x there is about .1."""
    net = model([([[1.0, 0.0]], [0.0])], [([[0.0, 0.0]], None)], likelihood="gaussian")
    point = "(assert (= X_0 0.1)) (assert (= X_1 0.3))"
    for row, word in (
        ("(<= Y_0 0.09)", "unsat"),
        ("(<= Y_0 0.11)", "sat"),
        ("(< Y_0 0.1)", "unknown"),
        ("(<= Y_0 0.1)", "unknown"),
    ):
        prop = text(tmp_path, f"{point} (assert {row})")
        assert bool((prop.boxes.inner_lower > prop.boxes.inner_upper).any())
        found = verify(net, prop, query=query)
        assert found.verdict in (word, "sat" if (query, word) == ("deterministic", "unknown") else word)
        if query == "probabilistic":
            truth = 1.0 if row in ("(<= Y_0 0.09)", "(< Y_0 0.1)") else 0.0
            assert found.p_safe.lower <= truth <= found.p_safe.upper


def test_constraints_where_no_float_is():
    """X_0 = 1/10 and X_0 >= float(.1): no real point does, since float(.1) is a little more; the nearest float does."""
    net = model([([[0.0, 0.0]], [0.0])], [([[0.0, 0.0]], None)], likelihood="gaussian")
    below, above = np.nextafter(0.1, 0), 0.1
    boxes = Boxes(
        np.array([[below, 0.5]]), np.array([[above, 0.5]]), np.array([[above, 0.5]]), np.array([[below, 0.5]])
    )
    prop = properties(net, [(0, 1)], [(0, [([1], None, 1.0, False)])], [(0, (-1.0, 0.0), -0.1, False)])
    prop = Property(
        prop.version, None, prop.signature, boxes, prop.constraints, prop.case_box, prop.rows, prop.options, prop.notes
    )
    assert verify(net, prop, query="probabilistic").p_safe.upper == 1.0


@pytest.mark.parametrize("query", QUERIES)
def test_properties_without_cases_rows_or_outputs(query):
    net = random_model(0, [2, 3, 2], spread=0.1, likelihood="gaussian")
    nothing = properties(net, [(0, 1)], [])
    found = verify(net, nothing, query=query)
    assert found.verdict == "unsat"
    assert found.asked.vacuous == "no input satisfies its input part"
    with pytest.raises(PropertyError, match="nothing can violate this property"):
        verify(net, nothing, query=query, strict=True)
    everywhere = properties(net, [(0, 1)], [(0, [])])
    found = verify(net, everywhere, query=query, strict=True)
    assert found.verdict == "sat"
    assert found.asked.vacuous is None
    if query == "probabilistic":
        assert found.p_safe.upper <= 1e-11
    beside = properties(net, [(0, 1), (2, 3)], [(0, [([1, 0], None, -1e6, False)]), (1, [])])
    assert verify(net, beside, query=query).verdict == "sat"


@pytest.mark.parametrize("query", QUERIES)
def test_what_is_proved_vacuous_is_unsat(query):
    """y_0 < y_1 and y_0 >= y_1: bounds, which close strict rows, do not see that."""
    net = random_model(0, [2, 3, 2], spread=0.1, likelihood="gaussian")
    either = properties(net, [(-1, 1)], [(0, [([1, -1], None, 0.0, True), ([-1, 1], None, 0.0, False)])])
    found = verify(net, either, query=query, timeout=20)
    assert found.asked.vacuous == "its rows contradict each other"
    assert found.verdict == "unsat"
    if query == "probabilistic":
        assert (found.p_safe.lower, found.p_safe.upper) == (1.0, 1.0)


@pytest.mark.parametrize("query", QUERIES)
def test_rows_over_inputs_alone_and_over_both(query):
    """y = x: y - x <= -.5 never holds; x <= .5 does at half of the box; y + x <= 1 at the lower end."""
    net = model([(np.eye(1), [0.0])], [([[1e-6]], None)], likelihood="gaussian")

    def ask(rows: list) -> str:
        return verify(net, properties(net, [(0, 1)], [(0, rows)]), query=query).verdict

    assert ask([([1], [-1.0], -0.5, False)]) == "unsat"
    assert ask([([0], [1.0], 0.5, False)]) == "sat"
    assert ask([([0], [1.0], -0.5, False)]) == "unsat"
    assert ask([([1], [1.0], 1.0, False)]) == "sat"
    # y <= .25 and x >= .75: decisions are bounded row by row, over the whole box
    word = ask([([1], [0.0], 0.25, False), ([0], [-1.0], -0.75, False)])
    assert word == ("unknown" if query == "decision" else "unsat")


def test_verdicts_of_a_grid_of_questions_never_contradict_the_truth():
    """One weight, one input: P_safe and D are known, for both directions, thresholds and methods."""
    net = line(0.2, likelihood="gaussian")
    for bound, tau, method in itertools.product(np.linspace(0.2, 1.0, 5), (0.9,), ("interval", "auto")):
        prop = at_one(net, float(bound), 0.5, 1.0)  # y >= .5 w: violated where min(.5 w, w) <= bound
        truth = stats.norm.sf(2 * bound, 1, 0.2)
        found = verify(net, prop, tau_safe=tau, method=method)
        assert found.p_safe.lower <= truth + 1e-9
        assert found.p_safe.upper >= truth - 1e-9
        assert not (found.verdict == "unsat" and truth < tau)
        assert not (found.verdict == "sat" and truth >= min(tau, 0.95))
        decided = verify(net, prop, query="decision", method=method)
        assert decided.verdict in (("sat", "unknown") if bound >= 0.5 - 1e-9 else ("unsat", "unknown"))


def test_a_path_in_place_of_what_was_read_is_refused(identity_model):
    with pytest.raises(OptionError, match="read_property"):
        verify(read_model(identity_model), "property.vnnlib")
    with pytest.raises(OptionError, match="read_model"):
        verify_batch(str(identity_model), [[0.0, 0.0]], [[1.0, 1.0]], labels=[0])
