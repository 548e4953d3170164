"""From a requirement to a file and back: what is written is the negation of what was asked, on the whole region."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib import Verdict, read_property, requirements, rules, verify_batch
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.model import read_model
from bnn_vnnlib.question.property import input_feasible, violated_case
from bnn_vnnlib.question.statement import requirement_in_words
from bnn_vnnlib.vnnlib import parse_property
from support.command import call

ROOT = Path(__file__).resolve().parents[1]
MLP = ROOT / "benchmarks" / "digits" / "onnx" / "digits_vi_mlp.onnx"
UNIT = requirements.between([0, 0], [1, 1])


def forbidden(requirement: requirements.Requirement, y: np.ndarray, version: str) -> bool:
    prop = parse_property(requirements.property_text(UNIT, requirement, version))  # type: ignore[arg-type]
    return violated_case(prop, np.array([0.5, 0.5]), y) is not None


def by_rule(cases: rules.Cases, y: np.ndarray) -> bool:
    return any(bool(np.where(strict, a @ y < b, a @ y <= b).all()) for a, b, strict in cases)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.sampled_from(["1.0", "2.0"]))
def test_a_file_forbids_what_the_rule_of_that_name_forbids(seed, size, version):
    rng = np.random.default_rng(seed)
    # Quarters: ties are frequent, and every number is exact.
    y, label, tau = rng.integers(0, 5, size) / 4, int(rng.integers(size)), int(rng.integers(5)) / 4
    costs = rng.integers(1, 6, size) / 4
    low = y - rng.integers(-1, 2, size) / 4
    for written, rule in (
        (requirements.robust(size, label), rules.most_likely(size, label)),
        (requirements.most_likely(size, label), rules.most_likely(size, label)),
        (requirements.least_cost(costs.tolist(), label), rules.least_cost(costs, label)),
        (requirements.confident(size, label, tau), rules.confident(size, label, tau)),
        (requirements.uncertain(size, tau), rules.uncertain(size, tau)),
        (requirements.within(low.tolist(), (low + 0.25).tolist()), rules.within(low, low + 0.25)),
    ):
        assert forbidden(written, y, version) == by_rule(rule, y), written.says


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_a_region_covers_what_it_says_in_the_units_of_the_data(seed):
    """In rational arithmetic: the true box lies in the file's, which is not much larger."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 4))
    x, radius, mean = rng.normal(0, 50, n), rng.uniform(0, 3, n).round(2), rng.normal(0, 30, n)
    std, low, high = rng.uniform(0.3, 30, n), x - rng.uniform(0, 2, n), x + rng.uniform(0, 2, n)
    found = requirements.around(x, radius, (low, high), mean, std)
    exact = [[Fraction(repr(float(value))) for value in side] for side in (x, radius, mean, std, low, high)]
    for i, (at, r, m, s, first, last) in enumerate(zip(*exact, strict=True)):
        ends = (max(at - r, first) - m) / s, (min(at + r, last) - m) / s
        written = Fraction(found.lower[i]), Fraction(found.upper[i])
        assert written[0] <= ends[0] <= ends[1] <= written[1]
        assert ends[0] - written[0] < Fraction(1, 10**15)
        assert written[1] - ends[1] < Fraction(1, 10**15)
    read = parse_property(requirements.property_text(found, requirements.within([0], [None])))
    assert input_feasible(read, (read.boxes.inner_lower / 2 + read.boxes.inner_upper / 2)[0], 0)


def test_a_region_in_real_units_is_what_was_asked():
    """Height 1.80 m give or take 0.05, a network that takes (x - 1.7) / 0.1: 0.5 to 1.5."""
    found = requirements.around(["1.80"], "0.05", mean="1.7", std="0.1")
    assert [float(found.lower[0]), float(found.upper[0])] == [0.5, 1.5]


def test_words_say_what_is_required_and_what_is_forbidden():
    text = requirements.property_text(UNIT, requirements.robust(3, 1))
    assert "Required: output 1 is larger than every other output" in text
    assert "Forbidden, and stated below: Y_0 >= Y_1, or Y_2 >= Y_1" in text
    assert requirement_in_words(parse_property(text)) == "Y_1 is larger than every other output"
    text = requirements.property_text(UNIT, requirements.within(["-inf", 1], [2, 3]), "2.0")
    assert requirement_in_words(parse_property(text)) == "Y[0] <= 2 and Y[1] >= 1 and Y[1] <= 3"
    turned = text.replace("(> Y[0] 2)", "(< Y[0] 2)")  # what a slip of the pen looks like when it is read back
    assert requirement_in_words(parse_property(turned)).startswith("Y[0] >= 2")
    least = requirements.property_text(UNIT, requirements.robust(3, 1)).replace("(>= Y_2 Y_1)", "(<= Y_2 Y_1)")
    assert "larger than every" not in requirement_in_words(parse_property(least))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: requirements.robust(1, 0), "at least two outputs"),
        (lambda: requirements.robust(3, 3), "one of 0 to 2, found 3"),
        (lambda: requirements.within([2], [1]), "must lie between 2 and 1"),
        (lambda: requirements.within([None], ["inf"]), "nothing is asked"),
        (lambda: requirements.within(["inf"], [None]), "an end of an interval must be a finite number"),
        (lambda: requirements.within([None], [-np.inf]), "an end of an interval must be a finite number"),
        (lambda: requirements.within([0, 0], [1]), "2 lower and 1 upper"),
        (lambda: requirements.confident(3, 0, 1.5), "tau is a probability"),
        (lambda: requirements.least_cost([1, -1], 0), "positive"),
        (lambda: requirements.around([0.5], -0.1), "must not be negative"),
        (lambda: requirements.around([0.5, 0.5], [0.1, 0.1, 0.1]), "one number, or 2, found 3"),
        (lambda: requirements.around([2.0], 0.1, (0, 1)), "outside of the valid range [0, 1]"),
        (lambda: requirements.around([float("nan")], 0.1), "finite number"),
        (lambda: requirements.around([1.0], 0.1, std=0), "standard deviation must be positive"),
        (lambda: requirements.between([1], [0]), "between 1 and 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        make()


# The command


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Four inputs of 64 numbers with labels, in every kind of file."""
    folder = tmp_path_factory.mktemp("inputs")
    x = (np.random.default_rng(0).integers(0, 17, (4, 64)) / 16).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x, label=np.array([3, 1, 4, 1]))
    names = [f"pixel{i}" for i in range(64)]
    rows = [",".join([*map(str, row.tolist()), str(label)]) for row, label in zip(x, [3, 1, 4, 1], strict=True)]
    (folder / "x.csv").write_text("\n".join([",".join([*names, "label"]), *rows]) + "\n")
    np.save(folder / "one.npy", x[1].reshape(8, 8))
    np.save(folder / "flat.npy", x[1])
    return folder


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.csv"])
def test_the_same_property_from_every_kind_of_file(inputs, tmp_path, name):
    label = ["--label", 1] if name == "x.npy" else []
    arguments = ["--center", inputs / name, "--row", 1, "--radius", 0.25, "--clip", 0, 1, "--outputs", 10]
    call("property", "robust", *arguments, *label, "-o", tmp_path / "p.vnnlib")
    prop = read_property(tmp_path / "p.vnnlib")
    x = np.load(inputs / "x.npy")[1].astype(float)
    assert (prop.boxes.lower == np.maximum(x - 0.25, 0)).all()
    assert (prop.boxes.upper == np.minimum(x + 0.25, 1)).all()
    assert requirement_in_words(prop) == "Y_1 is larger than every other output"


def test_numbers_in_another_order_than_the_network_takes_are_refused(tmp_path):
    conv = MLP.with_name("digits_vi_conv.onnx")
    for shape, fits in (((2, 8, 8), True), ((2, 1, 8, 8), True), ((8, 8), True), ((2, 64), True), ((2, 4, 16), False)):
        np.save(tmp_path / "x.npy", np.zeros(shape))
        where = ["--center", tmp_path / "x.npy", "--row", 0, "--radius", 0.1, "--network", conv]
        said = call("property", "robust", *where, "-o", tmp_path / "p.vnnlib", code=0 if fits else 2).stderr
        assert fits or "do not fit the network's, (1, 1, 8, 8)" in said


def test_a_picture_is_an_input(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    image.fromarray(pixels).save(tmp_path / "grey.png")
    image.fromarray(np.stack([pixels, pixels // 2, pixels * 0], -1)).save(tmp_path / "colour.png")
    for name, wanted in (("grey", pixels[None]), ("colour", np.stack([pixels, pixels // 2, pixels * 0]))):
        where = ["--center", tmp_path / f"{name}.png", "--radius", 0, "--outputs", 3, "--label", 0]
        call("property", "robust", *where, "-o", tmp_path / "p.vnnlib")
        found = read_property(tmp_path / "p.vnnlib").boxes
        assert (found.inner_lower + found.inner_upper)[0] / 2 == pytest.approx(wanted.ravel() / 255, abs=1e-15)


def test_newcomer_from_a_requirement_to_a_certificate(tmp_path):
    """Three commands; nobody wrote or read VNN-LIB, and the answer is that of `verify_batch` on the same box."""
    shipped = read_property(MLP.parents[1] / "vnnlib" / "1.0" / "digits_vi_mlp_robust_313_0.02.vnnlib").boxes
    image = (shipped.lower[0] / 2 + shipped.upper[0] / 2).clip(0, 1)
    np.save(tmp_path / "image.npy", image.reshape(8, 8))
    wanted = ["--center", tmp_path / "image.npy", "--radius", 0.01, "--clip", 0, 1, "--network", MLP]
    said = call("property", "robust", *wanted, "-o", tmp_path / "p.vnnlib").stderr
    model, x = read_model(MLP), image[None]
    label = int(re.search(r"output (\d) is larger", said)[1])
    explained = call("explain", tmp_path / "p.vnnlib", "--network", MLP).stdout
    assert f"Y_{label} is larger than every other output" in " ".join(explained.split())
    assert f"(the largest is output {label})" in " ".join(explained.split())
    verdict = call("verify", tmp_path / "p.vnnlib", "--network", MLP).stdout.split()[0]
    found = verify_batch(model, np.maximum(x - 0.01, 0), np.minimum(x + 0.01, 1), labels=[label])
    assert verdict == found.verdicts[0] == Verdict.UNSAT


def test_a_network_without_a_posterior_has_no_expected_probabilities(inputs, tmp_path):
    call("mean", MLP, tmp_path / "mean.onnx")
    where = ["--center", inputs / "one.npy", "--radius", 0.1, "--network", tmp_path / "mean.onnx"]
    wanted = ["property", "confident", "--tau", 0.6, *where, "-o", tmp_path / "p.vnnlib"]
    assert "this network has none" in call(*wanted, code=2).stderr
    call(*wanted, "--query", "deterministic")
    text = (tmp_path / "p.vnnlib").read_text()
    assert "; bnn-vnnlib: query=deterministic\n" in text
    assert "the output of class" in text  # not its expected probability
    call("verify", tmp_path / "p.vnnlib", "--network", tmp_path / "mean.onnx", "--timeout", 20)


def test_rows_become_a_benchmark(inputs, tmp_path):
    where = ["--center", inputs / "x.npz", "--radius", 0.001, "--network", MLP, "--benchmark", tmp_path / "bench"]
    call("property", "confident", "--tau", 0.3, *where, "--limit", 5)
    table = (tmp_path / "bench" / "instances.csv").read_text().splitlines()
    assert table[0] == "onnx/digits_vi_mlp.onnx,vnnlib/confident_0.vnnlib,5"
    assert len(table) == 4
    assert read_property(tmp_path / "bench" / "vnnlib" / "confident_2.vnnlib").options == {
        "query": "decision", "outputs": "probabilities"
    }  # fmt: skip
    call("run", tmp_path / "bench", "--out", tmp_path / "results", "--only", "*confident_0*", "--workers", 1)
    again = call("property", "confident", "--tau", 0.3, *where, code=2).stderr
    assert "there is a benchmark in this folder" in again


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["robust", "--center", "x.npz", "--radius", "0.1", "--outputs", "10"], "choose one with --row"),
        (["robust", "--center", "flat.npy", "--radius", "0.1", "--outputs", "10"], "robust needs --label"),
        (["robust", "--center", "flat.npy", "--radius", "0.1"], "--outputs M, or --network"),
        (["robust", "--center", "flat.npy", "--label", "1", "--outputs", "10"], "--radius"),
        (["robust", "--outputs", "10"], "say for which inputs"),
        (["robst", "--outputs", "10"], "did you mean 'robust'"),
        (["robust", "--center", "x.npz", "--row", "9", "--radius", "1", "--outputs", "10"], "rows 0 to 3"),
        (["uncertain", "--center", "flat.npy", "--radius", "0", "--label", "1", "--tau", "1", "--outputs", "2"],
         "--label says nothing to uncertain"),
        (["within", "--lower", "0", "--upper", "1", "--outputs", "1"], "needs --least and --most"),
        (["within", "--lower", "0", "--upper", "a", "--outputs", "1"], "neither numbers"),
        (["within", "--lower", "0", "--upper", "1", "--outputs", "1", "--delta", "1"], "add --network"),
        (["robust", "--center", "flat.npy", "--radius", "1", "--outputs", "3", "--network", str(MLP)], "10 outputs"),
        (["least_cost", "--center", "flat.npy", "--radius", "1", "--label", "0", "--costs", "1,2", "--outputs", "3"],
         "3 numbers"),
        (["robust", "--center", "flat.npy", "--radius", "1", "--outputs", "3", "--label", "0", "--tau-safe", "2"],
         "between 0 and 1"),
    ],
)  # fmt: skip
def test_the_command_refuses_by_name(inputs, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(inputs)
    assert said in call("property", *arguments, "-o", tmp_path / "p.vnnlib", code=2).stderr
    assert not (tmp_path / "p.vnnlib").exists()


def test_files_that_hold_no_inputs_are_refused(tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n1,x\n")
    (tmp_path / "nan.csv").write_text("1,nan\n")
    np.savez(tmp_path / "other.npz", z=np.ones(3))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for name, said in (
        ("bad.csv", "3: expected 2 finite numbers, found 'x'"), ("nan.csv", "1: expected 2 finite numbers"),
        ("other.npz", "unknown array 'z'"), ("objects.npy", "not a NumPy array of numbers"),
        ("cut.npy", "not a NumPy array of numbers"), ("missing.npy", "no such file"),
    ):  # fmt: skip
        out = call("property", "robust", "--center", tmp_path / name, "--radius", 1, "--outputs", 2, "--label", 0,
                   "-o", tmp_path / "p.vnnlib", code=2)  # fmt: skip
        assert said in out.stderr, name


def test_explain_tells_a_contradiction_and_the_middle(tmp_path):
    text = requirements.property_text(UNIT, requirements.within([0], [1]))
    (tmp_path / "p.vnnlib").write_text(
        text.replace("(or (and (< Y_0 0)) (and (> Y_0 1)))", "(and (< Y_0 0) (> Y_0 1))")
    )
    assert "nothing can violate this property" in call("explain", tmp_path / "p.vnnlib").stdout
    assert "no network" not in call("explain", tmp_path / "p.vnnlib").stderr
    said = call("explain", tmp_path / "p.vnnlib", "--network", MLP, code=2).stderr
    assert "2" in said
    assert "64" in said


def test_explain_reads_properties_of_two_networks(tmp_path):
    box = "".join(f"(assert (<= 0.2 {v}[0,{i}]))(assert (>= 0.3 {v}[0,{i}]))" for v in "XU" for i in range(64))
    names = "(declare-input {0} real [1,64]) (declare-output {1} real [1,10])"
    networks = f"(declare-network f {names.format('X', 'Y')}) (declare-network g (equal-to f) {names.format('U', 'V')})"
    text = f"(vnnlib-version <2.0>)\n{networks}\n{box}\n(assert (>= Y[0,1] (+ V[0,1] 5.0)))\n"
    (tmp_path / "two.vnnlib").write_text(text)
    said = " ".join(call("explain", tmp_path / "two.vnnlib", "--network", MLP).stdout.split())
    assert "required Y[0,1] - V[0,1] < 5" in said
    assert "nothing forbidden" in said  # in the middle both copies get one input, so they differ by 0
