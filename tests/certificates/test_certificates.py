"""The prover's certificates, read by the checker: accepted where honest, never for more than the truth.

One instance has an exact P_safe: y = w2 relu(w1 x), violated where y <= t < 0 for some x in [l, u], 0 < l. The least y
is that at x = u, if it is negative at all, so that P_safe is an integral over w1.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
import os
import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import bnn_vnnlib
import bnn_vnnlib_check.cli as checker
import by_hand
from bnn_vnnlib import Bounds, Options, Query, Result, Verdict
from bnn_vnnlib.bounds import activations
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.tails import noise, tail
from bnn_vnnlib.certificates import prove, trees
from bnn_vnnlib.certificates.prove import Certified, refuse, write_proof
from bnn_vnnlib.check_witness import check_witness
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.model import WeightSamples
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import from_cases
from bnn_vnnlib.question import options
from bnn_vnnlib.report.source import read_folder
from bnn_vnnlib.runs.compare import Line, ToolAnswer, contradictions
from bnn_vnnlib.setting import settle_run
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.vnnlib import match, read_property
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from support.command import call

BOX = ("0.5", "0.7")
FIRST, SECOND, THRESHOLD = (2.0, 0.2), (1.0, 0.4), -0.7
"""Mean and deviation of w1 and w2, and what y must not fall to."""

TAMPERINGS = 150


def exact() -> float:
    """P_safe of `product`: of w2 relu(w1 u) > c, u the upper end of the box (w2 > 0 is always safe)."""

    def safe(w1: float) -> float:
        top = max(w1, 0.0) * float(BOX[1])
        ok = 1.0 if top == 0 else stats.norm.sf(THRESHOLD / top, *SECOND)
        return float(ok * stats.norm.pdf(w1, *FIRST))

    value, error = integrate.quad(safe, FIRST[0] - 12 * FIRST[1], FIRST[0] + 12 * FIRST[1], epsabs=1e-12)
    assert error < 1e-9
    return value


def product(folder: Path) -> by_hand.Instance:
    layers = [([[FIRST[0]]], [0.0]), ([[SECOND[0]]], [0.0])]
    variances = [([[FIRST[1] ** 2]], [0.0]), ([[SECOND[1] ** 2]], [0.0])]
    return by_hand.Instance(folder, by_hand.model(layers, variances), by_hand.prop([BOX], 1, f"(<= Y_0 {THRESHOLD})"))


def network(folder: Path, kind: str, seed: int = 0) -> by_hand.Instance:
    """Three inputs, two hidden layers of 6, two outputs; the violation is y1 >= y0 + margin."""
    rng = np.random.default_rng(seed)
    sizes = [(6, 3), (6, 6), (2, 6)]
    layers = [(rng.normal(size=s) / s[1] ** 0.5, rng.normal(size=s[0]) / 2) for s in sizes]
    more: dict[str, Any] = {}
    if kind == "gaussian":
        more["variances"] = [((0.01 * w) ** 2 + 1e-6, (0.01 * b) ** 2) for w, b in layers]
    if kind == "samples":
        more["samples"] = [tuple(part + 0.05 * rng.normal(size=(5, *part.shape)) for part in layer) for layer in layers]
        more["probabilities"] = (weights := rng.uniform(0.5, 1.5, 5)) / weights.sum()
    if kind in ("mixture", "box"):
        more["variances"] = [(np.full(w.shape, 1e-8), np.full(b.shape, 1e-8)) for w, b in layers]
    if kind == "mixture":
        means = [[tuple(part + 0.03 * rng.normal(size=part.shape) for part in layer) for layer in layers] for _ in "ab"]
        more = {"components": [(part, more["variances"]) for part in means], "probabilities": [0.25, 0.75]}
    activation = "Tanh" if seed % 2 else "Relu"
    box = [(f"{c - 0.05:.4f}", f"{c + 0.05:.4f}") for c in rng.normal(size=3)]
    text = by_hand.prop(box, 2, "(or (>= Y_1 (+ Y_0 2.5)) (>= Y_0 (+ Y_1 2.5)))")
    return by_hand.Instance(folder, by_hand.model(layers, activation=activation, **more), text)


def written(one: by_hand.Instance, **options: Any) -> tuple[tuple[Path, Path, Path], Certified | str, Result]:
    """The run's certificate."""
    one.arrays = {}
    paths = one.write("")
    model = bnn_vnnlib.read_model(paths[0])
    prop = match(read_property(paths[1]), model.network.signature, paths[1])
    result = bnn_vnnlib.verify(model, prop, **options)
    setting = settle_run(model, Options(**options), prop)
    return paths, write_proof(paths[2], {"model": paths[0], "property": paths[1]}, setting, prop, result), result


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["fixed", "gaussian", "samples", "mixture"])
def test_accepted(tmp_path: Path, kind: str, seed: int) -> None:
    paths, found, result = written(network(tmp_path, kind, seed))
    assert isinstance(found, Certified), found
    assert found.verdict == result.verdict
    said = checker.check(*paths)
    assert said.startswith(f"accepted: {result.query}, {result.verdict}: ")


def test_a_box_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tails prove nothing, a box of the weights may: its mass is a little more than tau_safe."""
    monkeypatch.setattr(trees.Tails, "failures", lambda self, problem: torch.ones(len(problem)))
    monkeypatch.setattr(trees.Tails, "tuned", lambda self, problem, failures, deadline: (failures, None))
    paths, found = claimed(network(tmp_path, "box"), Query.PROBABILISTIC)
    assert isinstance(found, Certified)
    assert opened(paths[2])[0]["proof"]["rule"] == "box_mass/1"
    said = checker.check(*paths)
    assert said.startswith("accepted: probabilistic, unsat")
    assert 0.95 <= by_number(said) < 0.9501


@pytest.mark.parametrize(
    ("instance", "query", "rule"),
    [
        ("digits_vi_mlp_robust_166_0.12", Query.DETERMINISTIC, "split_signs/1"),
        ("digits_vi_conv_robust_166_0.06", Query.PROBABILISTIC, "tails/1"),
        ("digits_vi_conv_robust_166_0.06", Query.DETERMINISTIC, "linear/1"),
    ],
)
def test_images(tmp_path: Path, instance: str, query: Query, rule: str) -> None:
    """64 inputs, whose network is no question of splits of the inputs; two convolutions with noise in their kernels."""
    folder = Path(__file__).parents[2] / "benchmarks" / "digits"
    files = {
        "model": folder / "onnx" / f"{instance.partition('_robust')[0]}.onnx",
        "property": folder / "vnnlib" / "1.0" / f"{instance}.vnnlib",
    }
    model = bnn_vnnlib.read_model(files["model"])
    prop = match(read_property(files["property"]), model.network.signature, files["property"])
    setting = settle_run(model, Options(query=query), prop)
    refuse(model, query, "certain")
    result = Result(Verdict.UNSAT, query, 0.95, 0.95, "", 0.0, p_safe=Bounds(0.95, 1.0))
    path = tmp_path / "c.cert"
    found = write_proof(path, files, setting, prop, result)
    assert isinstance(found, Certified), found
    assert rule in str(opened(path)[0]["proof"])
    said = checker.check(files["model"], files["property"], path, {"query": query.value})
    assert said.startswith(f"accepted: {query.value}, unsat")


def test_signs_of_several_cases_and_rows(tmp_path: Path) -> None:
    """Cases of several rows, and a constraint on inputs: the multipliers are of the rows that the checker reads."""
    rng = np.random.default_rng(3)
    layers = [(rng.normal(size=(8, 24)) / 4, rng.normal(size=8) / 4), (rng.normal(size=(3, 8)), rng.normal(size=3))]
    total = " ".join(f"X_{i}" for i in range(24))
    cases = ("(and (>= Y_0 11) (>= Y_1 Y_2))", "(and (<= Y_2 -12) (<= Y_0 Y_1) (>= Y_0 -1))", "(>= (- Y_1 Y_2) 14.5)")
    text = by_hand.prop([(-1, 1)] * 24, 3, f"(and (<= (+ {total}) 20) (or {' '.join(cases)}))")
    one = by_hand.Instance(tmp_path, by_hand.model(layers), text)
    paths, found, _ = written(one, timeout=20.0)
    assert isinstance(found, Certified), found
    assert "split_signs/1" in str(opened(paths[2])[0]["proof"])
    assert checker.check(*paths).startswith("accepted: deterministic, unsat")


def test_a_split_box_has_the_slopes_that_it_has_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes of all boxes are kept in the order of the forest; two samples of the weights, with a box each."""
    one = network(tmp_path, "samples")
    one.arrays = {}
    model = bnn_vnnlib.read_model(one.write("")[0])
    assert isinstance(model.posterior, WeightSamples)
    samples = weight_sets.SampledWeights.of(model.network, model.posterior, torch.device("cpu"))
    leaves = trees.FixedSettings(OutputBounds(Engine(model.network), "identity"), samples.boxes(torch.arange(2)))
    ends = torch.tensor([[1.0], [0.5]], dtype=torch.float64).expand(2, 3)
    row = np.array([[1.0, -1.0]]), np.array([-0.1]), np.array([False])
    compared, real = 0, trees.Forest.split

    def split(forest: trees.Forest, index: Tensor, steepness: Tensor, failures: Callable[..., Tensor]) -> None:
        nonlocal compared
        torch.testing.assert_close(steepness, leaves.steepness(forest.boxes(index)))
        compared += len(index)
        real(forest, index, steepness, failures)

    monkeypatch.setattr(trees.Forest, "split", split)
    problem = from_cases(-ends, ends, [[row]], 2)
    forest = trees.grow(leaves, problem, 60, lambda failures: torch.zeros(2, dtype=torch.bool), Deadline())
    assert len(forest) >= 60
    assert compared >= 29


@pytest.mark.parametrize("query", ["deterministic", "probabilistic"])
def test_a_point_cannot_be_split(tmp_path: Path, query: str) -> None:
    """y = relu(x) - relu(-x) = x at the point 1 does not reach 0.999999999, which the bounds of a certificate miss."""
    layers = [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])]
    more: dict[str, Any] = {}
    if query == "probabilistic":
        more["samples"] = [tuple(np.array([part]) for part in layer) for layer in layers]
        more["probabilities"] = [1.0]
    text = by_hand.prop([("1", "1")], 1, "(<= Y_0 0.999999999)")
    one = by_hand.Instance(tmp_path, by_hand.model(layers, **more), text)
    _, found, result = written(one, query=query)
    assert result.verdict == "unsat"
    if query == "deterministic":
        assert isinstance(found, str)
        assert "did not suffice" in found
    else:
        assert isinstance(found, Certified)
        assert found.bound == 0


@pytest.mark.parametrize("tau", [0.9, 0.97])
def test_no_more_than_the_truth(tmp_path: Path, tau: float) -> None:
    paths, found = claimed(product(tmp_path), Query.PROBABILISTIC, tau_safe=tau, tau_unsafe=0.1)
    assert isinstance(found, Certified)
    said = checker.check(*paths, {"tau_safe": str(tau), "tau_unsafe": "0.1"})
    assert said.startswith("accepted: probabilistic, unsat")
    assert tau <= by_number(said) <= exact()


def claimed(one: by_hand.Instance, query: Query, **options: Any) -> tuple[tuple[Path, Path, Path], Certified | str]:
    """The certificate of `unsat`, whatever a run would find."""
    one.arrays = {}
    paths = one.write("")
    model = bnn_vnnlib.read_model(paths[0])
    prop = match(read_property(paths[1]), model.network.signature, paths[1])
    setting = settle_run(model, Options(**options), prop)
    certain = Bounds(0.0, 1.0) if query is Query.PROBABILISTIC else None
    result = Result(Verdict.UNSAT, query, 0.9, 0.1, "", 0.0, p_safe=certain)
    return paths, write_proof(paths[2], {"model": paths[0], "property": paths[1]}, setting, prop, result)


def by_number(said: str) -> float:
    return float(said.split("P_safe")[1].split()[1].rstrip(","))


@pytest.mark.parametrize("seed", [0, 1])
def test_changed_hints(tmp_path: Path, seed: int) -> None:
    """Claims, cuts and boxes of a valid certificate changed at random: rejected, or the number is still true."""
    draw = random.Random(seed)
    paths, found = claimed(product(tmp_path), Query.PROBABILISTIC, tau_safe=0.9, tau_unsafe=0.1)
    assert isinstance(found, Certified)
    manifest, arrays = opened(paths[2])
    manifest["claim"] = {"verdict": "bound", "bound": "0"}
    truth, accepted = exact(), 0
    for _ in range(TAMPERINGS // 2):
        changed = {name: values.copy() for name, values in arrays.items()}
        for _ in range(draw.randint(1, 3)):
            values = changed[draw.choice(sorted(changed))]
            place = draw.randrange(values.size)
            scale = 10.0 ** draw.uniform(-9, 1)
            values.flat[place] = values.flat[place] * (1 + draw.choice([-1, 1]) * scale) + draw.choice([0, scale])
        save(paths[2], manifest, changed)
        try:
            said = checker.check(*paths, {"tau_safe": "0.9", "tau_unsafe": "0.1"})
        except (RejectedError, UnreadableError):
            continue
        accepted += 1
        assert by_number(said) <= truth
    assert accepted  # most claims may be changed a little


def opened(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        names = [name for name in archive.namelist() if name != "manifest.json"]
        return manifest, {name: np.load(io.BytesIO(archive.read(name))) for name in names}


def save(path: Path, manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, values in arrays.items():
            stream = io.BytesIO()
            np.save(stream, values)
            archive.writestr(name, stream.getvalue())


def no_folding(patch: pytest.MonkeyPatch) -> None:
    """E|N| is not paid."""
    patch.setattr(noise, "FOLD", 0.0)


def small_spread(patch: pytest.MonkeyPatch) -> None:
    """A spread times 0.95."""
    honest = tail.Normal.failure
    patch.setattr(tail.Normal, "failure", lambda self, t: honest(tail.Normal(self.mean, 0.95 * self.spread), t))
    other = tail.Martingale.failure
    patch.setattr(tail.Martingale, "failure", lambda self, t: (other(self, t) * 0.9).clamp(max=1.0))


def forgotten_events(patch: pytest.MonkeyPatch) -> None:
    """Claims are tighter than what is paid for."""
    honest = trees.quantile
    patch.setattr(trees, "quantile", lambda p: honest(p) * 0.5)


def gap(patch: pytest.MonkeyPatch) -> None:
    """The boxes of items are too narrow."""
    honest = prove.from_property

    def narrow(*given: Any) -> Any:
        problem = honest(*given)
        middle = (problem.lower + problem.upper) / 2
        return prove.replace(problem, upper=middle + 0.9 * (problem.upper - middle))

    patch.setattr(prove, "from_property", narrow)


def wrong_slope(patch: pytest.MonkeyPatch) -> None:
    """The line above relu has no offset."""
    honest = activations.Kink.lines

    def low(self: Any, *given: Any, **more: Any) -> Any:
        found = honest(self, *given, **more)
        below, zero, chord, _ = found.parts
        return type(found)(below, zero, chord, torch.zeros_like(chord))

    patch.setattr(activations.Kink, "lines", low)


def heavy_box(patch: pytest.MonkeyPatch) -> None:
    """The mass of a box of weights is that of half as many weights."""
    honest = prove.weight_sets.random_count
    patch.setattr(prove.weight_sets, "random_count", lambda *given: honest(*given) // 2)
    patch.setattr(trees.Tails, "failures", lambda self, problem: torch.ones(len(problem)))
    patch.setattr(trees.Tails, "tuned", lambda self, problem, failures, deadline: (failures, None))


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    one.__name__: one for one in (no_folding, small_spread, forgotten_events, gap, heavy_box)
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_the_prover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """A formula of the prover is wrong, so that it claims too much: the checker rejects, whatever the threshold."""
    MUTANTS[mutant](monkeypatch)
    paths, found = claimed(product(tmp_path), Query.PROBABILISTIC, tau_safe=0.9, tau_unsafe=0.1)
    assert isinstance(found, Certified)
    with pytest.raises(RejectedError, match=r"proved is P_safe >= |no item's box"):
        checker.check(*paths, {"tau_safe": "0.9", "tau_unsafe": "0.1"})


def test_a_mutant_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """y = relu(x) on [-1, 1] reaches 1: without the chord's offset the prover thinks that it stays below 0.6."""
    one = by_hand.Instance(
        tmp_path, by_hand.model([([[1.0]], [0.0]), ([[1.0]], [0.0])]), by_hand.prop([(-1, 1)], 1, "(>= Y_0 0.6)")
    )
    wrong_slope(monkeypatch)
    paths, found = claimed(one, Query.DETERMINISTIC)
    assert isinstance(found, Certified)
    with pytest.raises(RejectedError, match="does not exclude a violation"):
        checker.check(*paths)


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run --certificates`: a file beside each answer that has one, its hash and claim; other instances as they are."""
    one = network(tmp_path, "gaussian")
    one.arrays = {}
    model, prop, path = one.write("")
    path.unlink()
    other = tmp_path / "q.vnnlib"
    other.write_bytes(b"; bnn-vnnlib: query=decision\n" + prop.read_bytes())
    (tmp_path / "instances.csv").write_text(f"{model.name},{prop.name},20\n{model.name},{other.name},20\n")
    asked = "run", tmp_path, "--out", tmp_path / "out", "--certificates", "--workers", "1", "--likelihood", "gaussian"
    call(*asked)
    records = {file: json.loads(file.read_text()) for file in (tmp_path / "out" / "instances").rglob("*.json")}
    (with_it,) = [file for file, record in records.items() if record["query"] == "probabilistic"]
    (without,) = [record for record in records.values() if record["query"] == "decision"]
    proof = with_it.with_name(records[with_it]["run"]["certificate"]["file"])
    assert hashlib.sha256(proof.read_bytes()).hexdigest() == records[with_it]["run"]["certificate"]["sha256"]
    assert checker.check(model, prop, proof).startswith("accepted: probabilistic, ")
    assert without["run"]["certificate"] is None
    assert any("no rule for query decision in certificates" in note for note in without["notes"])
    table = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert table[0].count(",certificate,") == 1
    assert certificates_of(tmp_path / "out") == ["not checked"]
    with_checker(tmp_path, monkeypatch)
    done = call("check-certificates", tmp_path / "out")
    assert done.stdout.strip() == "1 accepted, 0 rejected, 0 error"
    assert certificates_of(tmp_path / "out") == ["accepted"]
    call("report", tmp_path / "out", "--out", tmp_path / "page.html")
    assert "certificate accepted" in (tmp_path / "page_tables" / "instances.csv").read_text()
    honest = proof.read_bytes()
    proof.write_bytes(honest[:-30])
    assert "1 error" in call("check-certificates", tmp_path / "out", code=3).stdout
    proof.write_bytes(honest)
    assert certificates_of(tmp_path / "out") == ["not checked"]  # what was said is of another file
    assert "no certificates here" in call("check-certificates", tmp_path / "page_tables", code=2).stderr


def certificates_of(folder: Path) -> list[str]:
    """What the report knows of the certificates of a run."""
    return [row.certificate for row in read_folder(folder).rows if row.certificate is not None]


def with_checker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker as a program."""
    program = folder / "bin" / "bnn-vnnlib-check"
    program.parent.mkdir()
    source = Path(checker.__file__).parents[1]
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{source}" exec "{sys.executable}" -m bnn_vnnlib_check "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare --certificates`: a column says which answers carry a certificate that was accepted."""
    one = network(tmp_path, "gaussian")
    one.arrays = {}
    model, prop, path = one.write("")
    path.unlink()
    (tmp_path / "instances.csv").write_text(f"{model.name},{prop.name},20\n")
    asked = (
        "compare",
        tmp_path,
        "--out",
        tmp_path / "out",
        "--query",
        "probabilistic",
        "--certificates",
        "--workers",
        "1",
    )
    call(*asked)
    with_checker(tmp_path, monkeypatch)
    call("check-certificates", tmp_path / "out")
    call(*asked)
    with (tmp_path / "out" / "comparison.csv").open() as stream:
        (line,) = csv.DictReader(stream)
    assert line["bnn-vnnlib: certificate"] == "accepted"
    assert certificates_of(tmp_path / "out") == ["accepted", "accepted"]


@pytest.mark.parametrize("way", ["label", "ranges", "cases"])
def test_rows_of_a_sweep(tmp_path: Path, way: str) -> None:
    """`sweep --certificates`: chosen rows become property files with certificates; others do not."""
    one = network(tmp_path, "gaussian")
    one.arrays = {}
    model = one.write("")[0]
    center = np.random.default_rng(1).normal(size=(3, 3))
    asked: dict[str, Any] = {"label": np.array([0, 1, 0])}
    if way == "ranges":
        asked = {"output_lower": np.full((3, 2), -20.0), "output_upper": np.full((3, 2), [[20.0, np.inf]])}
    if way == "cases":
        asked = {"a": np.tile([[[1.0, -1.0], [-1.0, 0.1]]], (3, 1, 1)), "b": np.full((3, 2), -20.1)}
    np.savez(tmp_path / "table.npz", lower=center - 0.01, upper=center + 0.01, **asked)
    out = tmp_path / "out"
    swept = "sweep", model, tmp_path / "table.npz", "--out", out, "--tau-safe", "0.9", "--workers", "1"
    call(*swept, "--certificates", "0,2")
    found = sorted(path.name for path in (out / "certificates").iterdir())
    rows = [name for name in found if name.endswith(".vnnlib")]
    assert rows == ["row_0.vnnlib", "row_2.vnnlib"]
    certificates = [name for name in found if name.endswith(".cert")]
    assert certificates if way == "label" else len(certificates) == 2
    for name in certificates:
        path = out / "certificates" / name
        assert checker.check(model, path.with_suffix(".vnnlib"), path).startswith("accepted: probabilistic")
    if way == "label":
        assert "rows 0 to 2" in " ".join(call(*swept, "--certificates", "3", code=2).stderr.split())
        decision = *swept[:-4], "--query", "decision", "--likelihood", "gaussian"
        assert "no rule for query decision" in call(*decision, "--certificates", "0", code=2).stderr


def test_an_accepted_certificate_settles_a_contradiction() -> None:
    answers = {
        "a": ToolAnswer(Verdict.SAT, 1.0, "invalid"),
        "b": ToolAnswer(Verdict.UNSAT, 1.0, certificate="accepted"),
    }
    (found,) = contradictions([Line("", "n", "p", "plain", "plain", answers)])
    assert found.finding == "a is wrong in real arithmetic: the certificate of b was accepted"


def test_the_same_words() -> None:
    """The two programs that check answers name queries, verdicts and options alike; there is no shared import."""
    assert set(checker.QUERIES) < {query.value for query in Query}
    source = Path(checker.__file__).read_text()
    for option in ("--query", "--tau-safe", "--tau-unsafe"):
        assert f'"{option}"' in source
        assert option in call("check-witness", "--help").stdout
    witness = inspect.getsource(sys.modules[check_witness.__module__])
    for words in ("violates the property", "P_safe", "tau_unsafe"):
        assert words in source
        assert words in witness
    for verdict in ("sat", "unsat"):
        assert f'"{verdict}"' in source
        assert Verdict(verdict)
    assert str(options.TAU) == checker.TAU


def test_refusals(tmp_path: Path) -> None:
    one = network(tmp_path, "gaussian")
    one.arrays = {}
    model = bnn_vnnlib.read_model(one.write("")[0])
    with pytest.raises(UnsupportedError, match="no rule for query decision in certificates"):
        refuse(model, Query.DECISION, "certain")
    with pytest.raises(UnsupportedError, match="no rule for guarantee statistical"):
        refuse(model, Query.PROBABILISTIC, "statistical")
    refuse(model, Query.PROBABILISTIC, "certain")
    refuse(model, Query.DETERMINISTIC, "certain")


def test_what_the_prover_serves_the_checker_reads(tmp_path: Path) -> None:
    """The two lists of operators agree; there is no shared import."""
    from bnn_vnnlib_check.model import ACTIVATIONS

    assert set(ACTIVATIONS) < set(prove._OPERATORS)
    assert set(prove._OPERATORS) - set(ACTIVATIONS) == {
        "Add", "Constant", "Conv", "Flatten", "Gemm", "Identity", "MatMul", "Reshape", "Sub",
    }  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    """`verify --certificate` writes the file, says how to check it, and keeps the facts in the record."""
    one = product(tmp_path)
    one.arrays = {}
    model, prop, path = one.write("")
    record = tmp_path / "r.json"
    done = call("verify", prop, "--network", model, "--certificate", path, "--json", record, "--tau-safe", "0.9")
    assert "bnn-vnnlib-check" in done.stderr
    told = json.loads(record.read_text())["details"]["certificate"]
    assert told["verdict"] == "unsat"
    assert told["size"] == path.stat().st_size
    assert checker.check(model, prop, path, {"tau_safe": "0.9"}).startswith("accepted: probabilistic, unsat")
    path.unlink()
    folder = tmp_path / "folder"
    folder.mkdir()
    done = call("verify", prop, "--network", model, "--certificate", folder, "--tau-safe", "0.9")  # cannot be written
    assert done.stdout.startswith("unsat")
    assert "no certificate was written" in done.stderr
    for refused, why in ((("--query", "decision"), "no rule for query decision"), (("--shrink", "0.5"), "--shrink")):
        done = call("verify", prop, "--network", model, "--certificate", path, *refused, code=2)
        assert why in " ".join(done.stderr.split())
    assert not path.exists()
