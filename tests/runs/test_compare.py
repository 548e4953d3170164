"""Other verifiers beside us. Small shell programs stand for them."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bnn_vnnlib import Verdict
from bnn_vnnlib.runs import tools
from bnn_vnnlib.runs.compare import Contradiction, Line, ToolAnswer, agreement, contradictions, solved
from bnn_vnnlib.runs.tools import RECIPES, Tool, ToolTask, run_tool, tool
from support.command import call

PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 {bound}))
"""


@pytest.fixture
def ask(tmp_path):
    """What a command says of an instance of no matter what."""
    (tmp_path / "net.onnx").write_text("net")
    (tmp_path / "p.vnnlib").write_text("property")

    def ask(command: str, timeout: float = 10.0, prepare: str | None = None):
        one = Tool("other", command, prepare)
        return run_tool(
            ToolTask("c", "net", "p", one, str(tmp_path / "net.onnx"), str(tmp_path / "p.vnnlib"), timeout)
        )  # fmt: skip

    return ask


@pytest.mark.parametrize(
    ("script", "results"),
    [
        ("echo unsat >$0", "unsat\n"),
        ("echo holds >$0", "unsat\n"),
        ("printf 'sat\\n((X_0 0.5)\\n(Y_0 1.0))\\n' >$0", "sat\n((X_0 0.5)\n(Y_0 1.0))\n"),
        ("printf 'sat ((X_0 0.5) (Y_0 1.0))' >$0", "sat\n((X_0 0.5) (Y_0 1.0))\n"),
        ("echo timed-out >$0", "timeout\n"),
        ("echo reading; echo unsat", "unsat\n"),  # on standard output, after other lines
        ("printf 'chatter\\nsat\\nInput assignment:\\n\\tx0 = 0.5\\n\\tx1 = -1e-3\\n\\ty0 = 2\\n'",
         "sat\n((X_0 0.5) (X_1 -1e-3))\n"),
        ("echo what >$0", "error\n"),
        ("exit 3", "error\n"),
        ("echo unsat >$0; exit 3", "unsat\n"),
    ],
)  # fmt: skip
def test_what_tools_say(ask, script, results):
    outcome = ask(f'bash -c "{script}" {{results}} {{onnx}} {{vnnlib}}'.replace("$0", "$0"))
    assert outcome.results == results


def test_a_tool_that_overstays_is_killed_with_all_it_started(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "KILL_AFTER", 0.3)
    begun = time.monotonic()
    outcome = ask(f"bash -c 'sleep 600 & (sleep 1; touch {tmp_path}/alive) & wait' {{onnx}} {{vnnlib}}", timeout=0.1)
    assert outcome.verdict is Verdict.TIMEOUT
    assert time.monotonic() - begun < 20
    time.sleep(1.2)
    assert not (tmp_path / "alive").exists()


def test_a_preparation_that_fails_skips_the_instance(ask):
    assert ask("bash -c 'echo unsat' {onnx} {vnnlib}", prepare="false").verdict is Verdict.ERROR
    outcome = ask("bash -c 'echo unsat' {onnx} {vnnlib}", prepare="sleep 0.2")
    assert outcome.verdict is Verdict.UNSAT
    assert outcome.prepare_time >= 0.2
    assert outcome.run_time < outcome.prepare_time


def test_tools_as_the_command_line_names_them(tmp_path):
    (tmp_path / "run_instance.sh").write_text("")
    scripts = tool(f"theirs={tmp_path}")
    assert scripts.command.endswith("run_instance.sh v1 {category} {onnx} {vnnlib} {results} {timeout}")
    assert scripts.prepare is None
    assert tool("maraboupy") is RECIPES[0]
    assert tool("mine=run {onnx} {vnnlib}") == Tool("mine", "run {onnx} {vnnlib}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_say_whether_they_were_run(recipe):
    assert "The authors have run it." in recipe.note or recipe.note.endswith("The authors have not run it")
    assert "{onnx}" in recipe.command
    assert "{vnnlib}" in recipe.command


LINE = Line("c", "n", "p", "mean", "mean")


def line(**words: str) -> Line:
    answers = {}
    for name, word in words.items():
        verdict, _, checked = word.partition("/")
        answers[name] = ToolAnswer(Verdict(verdict), 1.0, checked or None)
    return Line("c", "n", "p", "mean", "mean", answers)


def test_agreement_is_counted():
    lines = [line(a="sat", b="unsat"), line(a="sat", b="sat"), line(a="unsat", b="unknown"), line(a="timeout", b="sat"),
             line(a="error", b="unknown"), line(a="sat")]  # fmt: skip
    counts = agreement(lines, ["a", "b"])["a", "b"]
    assert counts == {"contradict": 1, "same": 1, "only the first": 1, "only the second": 1, "neither": 1}
    assert solved(lines, "a") == ({Verdict.SAT: 3, Verdict.UNSAT: 1, Verdict.TIMEOUT: 1, Verdict.ERROR: 1}, 6.0)


@pytest.mark.parametrize(
    ("word", "finding"),
    [
        ("sat/valid", "b is wrong: the witness of a holds"),
        ("sat/valid within tolerance", "open: the witness of a misses its bounds"),
        ("sat/invalid", "the sat of a is not shown (its witness: invalid)"),
        ("sat/no witness", "the sat of a is not shown"),
    ],
)
def test_a_contradiction_is_settled_by_the_witness(word, finding):
    one = line(a=word, b="unsat", c="unknown")
    (found,) = contradictions([one])
    assert found == Contradiction(one, "a", "b")
    assert found.finding.startswith(finding)


def test_a_verdict_with_a_confidence_is_no_contradiction():
    """It may be wrong without a fault, so it is counted and listed apart; where both agree it counts like any other."""
    sure, likely = ToolAnswer(Verdict.SAT, 1.0, "valid"), ToolAnswer(Verdict.UNSAT, 1.0, confidence=0.99)
    one = replace(LINE, answers={"a": sure, "b": likely, "c": ToolAnswer(Verdict.UNSAT, 1.0)})
    counts = agreement([one], ["a", "b", "c"])
    assert counts["a", "b"] == {"statistical disagreement": 1}
    assert counts["a", "c"] == {"contradict": 1}
    assert counts["b", "c"] == {"same": 1}
    found = {two.unsat: two for two in contradictions([one])}
    assert not found["c"].statistical
    assert found["b"].finding == "statistical disagreement: b holds with confidence 0.99"


# The whole command, against our own verifier


@pytest.fixture
def benchmark(tmp_path, identity_model):
    """A network that is its own mean, and one with a posterior of two samples."""
    import numpy as np

    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "plain.onnx").write_bytes(identity_model.read_bytes())
    samples = np.stack([np.eye(2), 3 * np.eye(2)]).astype(np.float32)
    (name,) = ["W"]
    mean = folder / "mean.onnx"
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(identity_model)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(2 * np.eye(2, dtype=np.float32), name))
    onnx.save(proto, mean)
    np.savez(tmp_path / "posterior.npz", W_samples=samples)
    args = ["attach", str(mean), str(tmp_path / "posterior.npz"), str(folder / "bnn.onnx"), "--likelihood", "gaussian"]
    call(*args)
    for bound in ("1.5", "2.5"):
        (folder / f"{bound}.vnnlib").write_text(PROPERTY.format(bound=bound))
    rows = [f"{net}.onnx,{bound}.vnnlib,60\n" for net in ("plain", "bnn") for bound in ("1.5", "2.5")]
    (folder / "instances.csv").write_text("".join(rows))
    return folder


def compare(*args: object, code: int = 0):
    return call("compare", *args, code=code)


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_a_comparison(benchmark, tmp_path):
    out = tmp_path / "out"
    liar = "liar=bash -c 'echo unsat >$0' {results} {onnx} {vnnlib}"
    kinds = ("--network", "mean", "--network", "sampled", "--network", "merged")
    args = (benchmark, "--out", out, "--tool", liar, *kinds, "--samples", 3, "--query", "decision", "--workers", 1)
    said = compare(*args).stderr
    assert "0 of 12 instances of liar are finished; 12 to go" in said
    assert "12 of 12 instances of liar after" in said
    assert "liar [12/12] unsat" in said
    rows = {(row["network"], row["property"], row["variant"]): row for row in table(out / "comparison.csv")}
    assert len(rows) == 2 + 2 * (1 + 3 + 1)
    # The plain network stays below 1; the mean reaches 2, as does the prediction of the BNN; the draws 1 or 3.
    assert rows["plain.onnx", "1.5.vnnlib", "plain"]["bnn-vnnlib: result"] == "unsat"
    for variant in ("mean", "merged"):
        assert rows["bnn.onnx", "1.5.vnnlib", variant]["bnn-vnnlib: result"] == "sat"
        assert rows["bnn.onnx", "1.5.vnnlib", variant]["bnn-vnnlib: checked"] == "valid"
        assert rows["bnn.onnx", "2.5.vnnlib", variant]["bnn-vnnlib: result"] == "unsat"
    merged = rows["bnn.onnx", "1.5.vnnlib", "merged"]
    assert (merged["bnn-vnnlib decision: result"], merged["bnn-vnnlib decision: checked"]) == ("sat", "valid")
    assert rows["bnn.onnx", "1.5.vnnlib", "mean"]["bnn-vnnlib decision: result"] == ""
    drawn = [row["bnn-vnnlib: result"] for (net, prop, _), row in rows.items()
             if (net, prop) == ("bnn.onnx", "2.5.vnnlib") and row["kind"] == "sampled"]  # fmt: skip
    assert set(drawn) <= {"sat", "unsat"}
    # The liar is caught wherever something is sat.
    wrong = [row for row in table(out / "contradictions.csv") if row["unsat"] == "liar"]
    assert len(wrong) >= 3
    assert all(row["finding"].startswith("liar is wrong: the witness of") for row in wrong)
    assert said.index("contradictions:") < said.index("first")
    assert "Neither says anything about the BNN" in " ".join(said.split())
    counts = {(row["first"], row["second"]): row for row in table(out / "agreement.csv")}
    contradicted = sum(row["sat"] == "bnn-vnnlib" for row in wrong)
    assert counts["bnn-vnnlib", "liar"]["contradict"] == str(contradicted)
    # Once more: everything is finished.
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*.txt")}
    assert "12 of 12 instances of liar are finished; 0 to go" in compare(*args).stderr
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.txt")} == times
    assert json.loads((out / "runs" / "liar" / "run.json").read_text())["command"].startswith("bash -c")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--tool", "nobody"), "unknown tool 'nobody'; known are maraboupy"),
        (("--tool", "x=nowhere"), "expected a folder, or a command with {onnx} and {vnnlib}"),
        (("--tool", "x=no-such-program {onnx} {vnnlib}"), "there is no program no-such-program"),
        (("--tool", "x=bash {onnx} {vnnlib} {what}"), "cannot be filled in"),
        (("--tool", "x=bash {onnx} {vnnlib} $BNN_VNNLIB_NOWHERE"), "variable of the environment is not set"),
        (("--tool", "bnn-vnnlib=bash {onnx} {vnnlib}"), "a name of its own, other than bnn-vnnlib"),
        (("--network", "median"), "--network median: expected mean or sampled or merged"),
        (("--only", "nothing"), "no instance is left"),
        (("--guarantee", "statistical"), "guarantee statistical is about our bounds on the BNN itself: add query"),
        (("--query", "probabilistic", "--confidence", "0.9"), "add guarantee statistical"),
        (("--query", "decision", "--guarantee", "likely"), "guarantee"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_work(benchmark, tmp_path, args, message):
    assert message in compare(benchmark, "--out", tmp_path / "out", *args, code=2).stderr
    assert not (tmp_path / "out" / "runs").exists()


def test_statistical_answers_beside_a_tool(benchmark, tmp_path):
    """Two weight samples as a classifier, which decides for the class of the larger input; the liar denies it."""
    args = ("attach", benchmark / "mean.onnx", tmp_path / "posterior.npz", benchmark / "bnn.onnx", "--likelihood",
            "categorical")  # fmt: skip
    call(*args)
    header = PROPERTY.format(bound=0).rsplit("(assert", 1)[0].replace("(<= X_1 1.0)", "(<= X_1 0.25)")
    (benchmark / "p.vnnlib").write_text(header.replace("(>= X_0 0.0)", "(>= X_0 0.75)") + "(assert (<= Y_0 Y_1))")
    (benchmark / "instances.csv").write_text("bnn.onnx,p.vnnlib,20\n")
    witness = "sat\\n((X_0 1.0)\\n(X_1 0.0)\\n(Y_0 0.1)\\n(Y_1 0.2))\\n"
    liar = f"liar=bash -c 'printf \"{witness}\" >$0' {{results}} {{onnx}} {{vnnlib}}"
    out = tmp_path / "out"
    said = compare(benchmark, "--out", out, "--tool", liar, "--network", "merged", "--query", "decision",
                   "--guarantee", "statistical", "--confidence", "0.99", "--workers", 1).stderr  # fmt: skip
    assert "statistical disagreements: 1" in said
    (apart,) = table(out / "disagreements.csv")
    assert (apart["sat"], apart["unsat"]) == ("liar", "bnn-vnnlib decision")
    assert apart["finding"] == "statistical disagreement: bnn-vnnlib decision holds with confidence 0.99"
    (certain,) = table(out / "contradictions.csv")
    assert certain["unsat"] == "bnn-vnnlib"
    call("report", out, "--out", tmp_path / "page.html")
    assert "Statistical disagreements" in (tmp_path / "page.html").read_text()


def test_the_recipes_are_listed():
    outcome = compare("--recipes")
    for recipe in RECIPES:
        assert recipe.name in outcome.stdout
