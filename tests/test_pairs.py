"""Properties about two networks, from the question to the verdict: against drawn networks, exact minima and replays."""

from __future__ import annotations

from itertools import product as every
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from bnn_vnnlib import Options, Property, Verdict, read_model, verify
from bnn_vnnlib.check_witness import Judgement, check_witness
from bnn_vnnlib.errors import InputError, OptionError, UnsupportedError
from bnn_vnnlib.files.vnncomp import read_result, results_text
from bnn_vnnlib.model import GaussianDiagonal, Model, WeightSamples, attach, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.pairs import side_by_side
from bnn_vnnlib.question.property import violated_case
from bnn_vnnlib.vnnlib import parse_property, read_property
from fuzz.outcomes import processor_time
from support.builders import model
from support.command import call

RNG = np.random.default_rng(0)
LAYERS = [(RNG.normal(size=(6, 2)), 0.3 * RNG.normal(size=6)), (RNG.normal(size=(2, 6)) / 2, RNG.normal(size=2))]


def variances(size: float) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.full(w.shape, size**2), np.full(b.shape, size**2)) for w, b in LAYERS]


def asked(word: str, inputs: str, violation: str, lower: float = 0.0, upper: float = 1.0) -> Property:
    """Of networks with 2 inputs and outputs; x_f in a box."""
    relation = f"({word} f)" if word else ""
    text = f"""(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,2]))
(declare-network g {relation} (declare-input U real [1,2]) (declare-output V real [1,2]))
(assert (and (>= X[0,0] {lower}) (<= X[0,0] {upper}) (>= X[0,1] {lower}) (<= X[0,1] {upper})))
"""
    return parse_property(text + f"(assert {inputs})(assert {violation})")


SAME = "(and (== X[0,0] U[0,0]) (== X[0,1] U[0,1]))"
NEAR = "(and (<= U[0,0] (+ X[0,0] 0.05)) (>= U[0,0] (- X[0,0] 0.05)) (== X[0,1] U[0,1]))"
MOVED = "(and (>= X[0,0] U[0,0]) (>= U[0,0] 0.0) (== X[0,1] U[0,1]))"


def apart(bound: float, i: int = 0) -> str:
    return f"(or (>= Y[0,{i}] (+ V[0,{i}] {bound})) (<= Y[0,{i}] (- V[0,{i}] {bound})))"


def share_of_violating(first: Model, second: Model, coupling: str, prop: Property, draws: int = 200) -> float:
    """Of drawn pairs, those that violate the property at some point of a grid: less than the truth, but for chance."""
    joined = side_by_side(first, second, coupling, same=coupling == "same")
    drawn = sample(joined.network, joined.posterior, draws, torch.Generator().manual_seed(1))
    grid = np.array(list(every(*[np.linspace(0, 1, 11)] * 2)))
    steps = np.linspace(-0.05, 0.05, 5) if len(prop.constraints) == 4 and prop.num_cases == 2 else np.zeros(1)
    x = np.concatenate([np.concatenate([grid, grid - [step, 0]], 1) for step in steps])
    y = evaluate(joined.network, torch.as_tensor(x), drawn).numpy()
    rows = prop.rows
    hit = np.zeros(draws, bool)
    for case in range(prop.num_cases):
        which = rows.owner == case
        hit |= (y @ rows.outputs[which].T <= rows.bound[which]).all(-1).any(-1)
    return float(hit.mean())


# Verdicts


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_least_difference_that_is_never_reached_is_found(activation: str) -> None:
    """Of fixed weights: unsat above the true maximum of |f - g| over T, sat below it, by a grid on T's corners."""
    net = model(LAYERS, activation=activation)
    x = torch.as_tensor(np.array(list(every(*[np.linspace(0, 1, 201)] * 2))))
    most = (evaluate(net.network, x) - evaluate(net.network, x - torch.tensor([0.05, 0.0])))[:, 0].abs().max()
    most = float(most)
    safe = verify(net, asked("equal-to", NEAR, apart(1.02 * most)), timeout=30)
    assert safe.verdict is Verdict.UNSAT
    found = verify(net, asked("equal-to", NEAR, apart(0.98 * most)), timeout=30)
    assert found.verdict is Verdict.SAT
    assert violated_case(asked("equal-to", NEAR, apart(0.98 * most)), found.witness.x, found.witness.y) is not None


@pytest.mark.parametrize(
    ("coupling", "relation"),
    [("same", "equal-to"), ("independent", "isomorphic-to"), ("noise", "isomorphic-to"), ("shared", "")],
)
@pytest.mark.parametrize("bound", [0.02, 0.12, 0.5])
def test_bounds_hold_for_drawn_pairs(coupling: str, relation: str, bound: float) -> None:
    first = model(LAYERS, variances(0.02))
    second = (
        model([(w + 0.01, b) for w, b in LAYERS], variances(0.025)) if coupling in ("independent", "noise") else first
    )
    prop = asked(relation, NEAR, apart(bound))
    found = verify((first, second), prop, coupling=None if coupling == "same" else coupling,
                   timeout=20 if bound == 0.5 and coupling != "independent" else 3)  # fmt: skip
    share = share_of_violating(first, second, coupling, prop)
    assert found.p_safe.upper >= 1 - share - 0.15  # 200 draws: four standard deviations
    assert found.p_safe.lower <= 1 - share + 1e-12 + 0.15
    if share == 0 and bound == 0.5 and coupling != "independent":
        assert found.p_safe.lower > 0.5


def test_common_noise_proves_what_independent_draws_do_not_have() -> None:
    """A posterior beside itself, rounded to float16: the networks agree to 1e-2 with one z, and not with two."""
    first = model(LAYERS, variances(0.05))
    second = model([tuple(np.float64(np.float16(part)) for part in layer) for layer in LAYERS], variances(0.05))
    prop = asked("isomorphic-to", SAME, apart(0.02))
    together = verify((first, second), prop, coupling="noise", timeout=5)
    alone = verify((first, second), prop, timeout=5)
    assert together.p_safe.lower > 0.999
    assert together.verdict is Verdict.UNSAT
    assert alone.p_safe.upper < 0.6
    assert alone.verdict is Verdict.SAT


def test_a_tie_is_no_fall() -> None:
    """On the diagonal both copies agree: `<` asks for a fall, `<=` is violated there by every network."""
    net = model(LAYERS)
    assert verify(net, asked("equal-to", SAME, "(< Y[0,0] V[0,0])"), timeout=5).verdict is Verdict.UNSAT
    assert verify(net, asked("equal-to", SAME, "(<= Y[0,0] V[0,0])"), timeout=5).verdict is Verdict.SAT
    drawn = verify(model(LAYERS, variances(0.1)), asked("equal-to", SAME, "(< Y[0,0] V[0,0])"), timeout=5)
    assert drawn.p_safe.lower == 1.0


def test_samples_are_paired_or_shared() -> None:
    """Two independent draws of two samples are four pairs; of one draw both copies have the same sample."""
    shift = np.array([0.0, 1.0])
    layers = [(np.eye(2), np.zeros(2))]
    stored = [(np.stack([np.eye(2)] * 2), np.stack([np.zeros(2), shift]))]
    net = model(layers, samples=stored, probabilities=[0.25, 0.75])
    prop = asked("isomorphic-to", SAME, "(or (> Y[0,1] (+ V[0,1] 0.5)) (< Y[0,1] (- V[0,1] 0.5)))")
    two = verify((net, net), prop, timeout=5).p_safe
    assert two.lower == pytest.approx(0.25**2 + 0.75**2, abs=1e-9)
    assert two.upper == pytest.approx(0.25**2 + 0.75**2, abs=1e-9)
    assert verify((net, net), prop, coupling="shared", timeout=5).p_safe.lower > 1 - 1e-9


def test_decision_of_two_regressions() -> None:
    """D is linear in the last layer: of posteriors there alone it is that of the means."""
    sizes = [(np.zeros(w.shape), np.zeros(b.shape)) for w, b in LAYERS[:1]] + [(np.full((2, 6), 1.0), np.ones(2))]
    net = model(LAYERS, sizes, likelihood="gaussian")
    other = model([*LAYERS[:1], (LAYERS[1][0], LAYERS[1][1] + 0.1)], sizes, likelihood="gaussian")
    prop = asked("isomorphic-to", SAME, "(>= V[0,0] (+ Y[0,0] 0.11))")
    assert verify((net, other), prop, query="decision", timeout=20).verdict is Verdict.UNSAT
    prop = asked("isomorphic-to", SAME, "(>= V[0,0] (+ Y[0,0] 0.09))")
    assert verify((net, other), prop, query="decision", timeout=20).verdict is Verdict.SAT


@pytest.mark.parametrize("family", ["gaussian", "samples"])
def test_decision_of_two_classifiers(family: str) -> None:
    """E softmax(f) - E softmax(g) of a classifier and one with another bias, each drawn for itself: the bounds hold the
    means over draws at sampled pairs of T, for all outputs and for the row, and are not much wider."""
    moved = [LAYERS[0], (LAYERS[1][0], LAYERS[1][1] + np.array([0.3, 0.0]))]
    rng, nets = np.random.default_rng(4), []
    for layers in (LAYERS, moved):
        stored = [tuple(part + 0.1 * rng.normal(size=(5, *part.shape)) for part in layer) for layer in layers]
        how = {"samples": stored, "probabilities": [0.2] * 5} if family == "samples" else {}
        nets.append(model(layers, variances(0.05) if family == "gaussian" else None, likelihood="categorical", **how))
    prop = asked("isomorphic-to", SAME, "(>= Y[0,0] V[0,0])", 0.4, 0.6)
    with processor_time():
        found = verify(tuple(nets), prop, query="decision", outputs="probabilities", timeout=3)
    joined = side_by_side(*nets, "independent")
    drawn = sample(joined.network, joined.posterior, 4000, torch.Generator().manual_seed(1))
    if family == "samples":
        drawn = {name: torch.as_tensor(values) for name, values in joined.posterior.samples.items()}
    x = torch.as_tensor(np.tile(rng.uniform(0.4, 0.6, (20, 2)), 2))
    y = torch.cat([part.softmax(-1) for part in evaluate(joined.network, x, drawn).split(2, -1)], -1).mean(0).numpy()
    slack = 1e-9 if family == "samples" else 0.02
    assert (y >= found.decision.lower - slack).all()
    assert (y <= found.decision.upper + slack).all()
    apart = y[:, 0] - y[:, 2]  # of the row Y - V <= ..., with the sign of V - Y
    assert found.decision.row_lower[0] <= (-apart).min() + slack
    assert found.decision.row_upper[0] >= (-apart).max() - slack
    assert (found.decision.upper - found.decision.lower).max() < 0.75
    assert found.verdict is Verdict.UNSAT or family == "gaussian"


def test_rows_are_not_moved_in_front_of_a_softmax() -> None:
    """Logits (1, 0) and (2, 3): f_0 < g_0, but 0.73 > 0.27."""
    nets = [model([(np.zeros((2, 2)), np.array(bias))], end=("Softmax",)) for bias in ((1.0, 0.0), (2.0, 3.0))]
    more = verify(tuple(nets), asked("isomorphic-to", SAME, "(>= Y[0,0] V[0,0])"), timeout=10)
    less = verify(tuple(nets), asked("isomorphic-to", SAME, "(<= Y[0,0] V[0,0])"), timeout=10)
    assert (more.verdict, less.verdict) == (Verdict.SAT, Verdict.UNSAT)


# Refusals


def test_refused_by_name() -> None:
    net, drawn = model(LAYERS), model(LAYERS, variances(0.1))
    one = parse_property(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
        "(assert (and (>= X_0 0) (<= X_0 1) (>= X_1 0) (<= X_1 1) (>= Y_0 0)))"
    )
    two, equal = asked("isomorphic-to", SAME, apart(1.0)), asked("equal-to", SAME, apart(1.0))
    disturbed = model(LAYERS, variances(0.2))
    sampled = model(
        LAYERS, samples=[(np.stack([w] * 2), np.stack([b] * 2)) for w, b in LAYERS], probabilities=[0.5, 0.5]
    )
    classifier = model(LAYERS, variances(0.1), likelihood="categorical")
    cases: list[tuple[type[InputError], str, object, Property, dict[str, str]]] = [
        (OptionError, "about one network, and 2 models", (net, net), one, {}),
        (OptionError, "about one network; leave it out", drawn, one, {"coupling": "shared"}),
        (OptionError, "give both", net, two, {}),
        (OptionError, "equal-to f, which is one draw", drawn, equal, {"coupling": "independent"}),
        (OptionError, "their models are not the same", (drawn, disturbed), equal, {}),
        (OptionError, "W0 variance differs", (drawn, disturbed), two, {"coupling": "shared"}),
        (OptionError, "neither model carries a posterior", (net, net), two, {"coupling": "noise"}),
        (UnsupportedError, "family samples", (sampled, drawn), two, {"coupling": "noise"}),
        (UnsupportedError, "families samples and gaussian_diag", (sampled, drawn), two, {}),
        (OptionError, "say --outputs probabilities", (classifier, classifier), two, {"query": "decision"}),
    ]
    for kind, words, models, prop, options in cases:
        with pytest.raises(kind, match=words):
            verify(models, prop, **options)


def test_cases_of_pairs(shared: Path) -> None:
    """No input of w07 has a bound, and the outputs that it compares read the input that is equal alone."""
    identity = read_model(shared / "cases" / "id2.onnx")
    for name in ("w07_equal_to.vnnlib", "reports/f04_monotone_equal.vnnlib"):
        prop = read_property(shared / "cases" / name)
        assert verify(identity, prop, timeout=20).verdict is Verdict.UNSAT
    three = shared / "corpus" / "vnnlib2_standard_tests" / "multiple_networks.vnnlib"
    with pytest.raises(UnsupportedError, match=r"3 networks \(AcasXu, AcasYu, AcasZu\) are not supported"):
        read_property(three)


# Witnesses and commands


def saved(folder: Path, name: str, net: Model, posterior: GaussianDiagonal | WeightSamples | None = None) -> Path:
    proto = onnx.load_model_from_string(net.onnx_bytes)
    if posterior is not None:
        proto = attach(proto, posterior)
    onnx.save(proto, folder / name)
    return folder / name


@pytest.mark.parametrize("size", [0.0, 0.05])
def test_a_witness_lists_all_variables_and_can_be_checked(size: float) -> None:
    net = model(LAYERS, variances(size) if size else None)
    prop = asked("isomorphic-to", NEAR, apart(0.001))
    found = verify((net, net), prop, timeout=10)
    assert found.verdict is Verdict.SAT
    text = results_text(found, prop)
    names = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert names == ["sat", "X", "Y", "U", "V"]


def test_commands(tmp_path: Path) -> None:
    """Verdict, record, check of the witness; names in any order, wrong names and files refused."""
    net = model(LAYERS, element=np.float32)
    first = saved(tmp_path, "f.onnx", net, GaussianDiagonal({"W0": np.full((6, 2), 1e-4)}))
    second = saved(tmp_path, "g.onnx", net)
    text = Path(tmp_path / "p.vnnlib")
    text.write_text(TEXT)
    both = [f"--network=g={second}", f"--network=f={first}"]
    result = tmp_path / "r.txt"
    found = call("verify", text, *both, "--timeout=10", f"--results-file={result}")
    assert found.stdout.startswith("sat")
    assert read_result(result).values.keys() == {"X", "Y", "U", "V"}
    checked = call("check-witness", first, text, result, f"--network=g={second}")
    assert checked.stdout == f"{Judgement.VALID}\n"
    assert (
        "say which model is which" in call("verify", text, f"--network={first}", f"--network=f={second}", code=2).stderr
    )
    assert "give each with" in call("verify", text, first, code=2).stderr
    assert "names 'h'" in call("verify", text, f"--network=f={first}", f"--network=h={second}", code=2).stderr


TEXT = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
(declare-network g (isomorphic-to f) (declare-input U float32 [1,2]) (declare-output V float32 [1,2]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0) (== X[0,1] U[0,1]) (== X[0,0] U[0,0])))
(assert (or (> Y[0,0] (+ V[0,0] 0.00001)) (< Y[0,0] (- V[0,0] 0.00001))))
"""


def test_a_checked_witness_is_asked_again() -> None:
    net = model(LAYERS, variances(0.05))
    prop = asked("isomorphic-to", SAME, apart(0.001))
    found = verify((net, net), prop, timeout=10)
    values = {one.name: part.reshape(one.shape) for ones, flat in
              ((prop.signature.inputs, found.witness.x), (prop.signature.outputs, found.witness.y))
              for one, part in zip(ones, np.split(flat, 2), strict=True)}  # fmt: skip
    from bnn_vnnlib.files.vnncomp import ResultsFile

    question = Options().question()
    assert check_witness((net, net), prop, ResultsFile(Verdict.SAT, values), question).judgement is Judgement.VALID
    values["U"] = values["U"] + 0.25
    assert check_witness((net, net), prop, ResultsFile(Verdict.SAT, values), question).judgement is Judgement.INVALID


def test_medians_of_both_are_no_median_of_the_difference() -> None:
    """Samples 0, 0, 9 and -5, 0, 0.1: both medians are 0, and the median of f - g over all nine pairs is 5."""
    stored = [(np.zeros((3, 1, 1)), np.array([[0.0], [0.0], [9.0]]))]
    f = model([(np.zeros((1, 1)), np.zeros(1))], samples=stored, probabilities=[1 / 3] * 3, likelihood="gaussian")
    shifted = [(np.zeros((3, 1, 1)), np.array([[-5.0], [0.0], [0.1]]))]
    g = model([(np.zeros((1, 1)), np.zeros(1))], samples=shifted, probabilities=[1 / 3] * 3, likelihood="gaussian")
    text = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,1]) (declare-output Y real [1,1]))
(declare-network g (isomorphic-to f) (declare-input U real [1,1]) (declare-output V real [1,1]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (== X[0,0] U[0,0]) (>= Y[0,0] (+ V[0,0] 0.05))))
"""
    found = verify((f, g), parse_property(text), query="decision", rule="median", timeout=10)
    assert found.verdict is not Verdict.SAT


@pytest.mark.parametrize("size", [0.0, 0.3])
def test_outputs_that_inputs_cannot_reach_do_not_change(size: float) -> None:
    """Output 1 reads input 1 alone, through a hidden layer: it is one number for both copies, whatever the other input
    is, and however far; output 0 reads both."""
    layers = [(np.array([[1.0, 0.5], [0.0, 1.0]]), np.zeros(2)), (np.array([[1.0, 1.0], [0.0, 2.0]]), np.zeros(2))]
    spread = [(np.array([[1.0, 0.0], [0.0, 1.0]]) * size**2, np.zeros(2)), (np.zeros((2, 2)), np.full(2, size**2))]
    net = model(layers, spread if size else None)
    text = """(vnnlib-version <2.0>)
(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,2]))
(declare-network g (equal-to f) (declare-input U real [1,2]) (declare-output V real [1,2]))
(assert (== X[0,1] U[0,1]))
(assert (> Y[0,{0}] V[0,{0}]))
"""
    assert verify(net, parse_property(text.format(1)), timeout=10).verdict is Verdict.UNSAT
    bounded = text + "(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= U[0,0] 0.0) (<= U[0,0] 1.0)"
    bounded += " (>= X[0,1] 0.0) (<= X[0,1] 1.0)))"
    assert verify(net, parse_property(bounded.format(0)), timeout=10).verdict is not Verdict.UNSAT


@pytest.mark.parametrize(
    ("coupling", "family"), [("same", "gaussian"), ("independent", "samples"), ("noise", "gaussian")]
)
def test_statistical_answers_about_pairs(coupling: str, family: str) -> None:
    """With the stated confidence, from drawn pairs, each verified for all of T: the interval holds the share that a
    grid shows of other draws, but for chance, and is narrower than [0, 1]."""
    rng = np.random.default_rng(1)
    stored = [tuple(part + 0.02 * rng.normal(size=(6, *part.shape)) for part in layer) for layer in LAYERS]
    how = {"samples": stored, "probabilities": [1 / 6] * 6} if family == "samples" else {}
    first = model(LAYERS, None if how else variances(0.02), **how)
    second = first if coupling == "same" else model(
        [(w + 0.01, b) for w, b in LAYERS], None if how else variances(0.025), **how
    )  # fmt: skip
    prop = asked("equal-to" if coupling == "same" else "isomorphic-to", NEAR, apart(0.12))
    with processor_time():
        found = verify((first, second), prop, coupling=None if coupling == "same" else coupling,
                       guarantee="statistical", confidence=0.99, draws=100, timeout=20)  # fmt: skip
    assert found.statistics.counted > 0
    share = share_of_violating(first, second, coupling, prop)
    assert found.p_safe.lower <= 1 - share + 0.15  # 200 draws: four standard deviations
    assert found.p_safe.upper >= 1 - share - 0.15
    assert found.p_safe.upper - found.p_safe.lower < 1
