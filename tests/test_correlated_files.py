"""Correlated posteriors and mixtures from the archive to the verdict: commands, witnesses, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from model.model_helpers import small_net
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from bnn_vnnlib import Verdict, read_model, read_property, verify
from bnn_vnnlib.cli.commands import app
from bnn_vnnlib.model import Component, GaussianDiagonal, GaussianFull, Mixture, attach
from bnn_vnnlib.sweeps.source import model_digest

SHAPES = {"W1": (5, 4), "b1": (5,), "W2": (5, 3), "b2": (3,)}


def archive(family: str) -> dict[str, np.ndarray]:
    """Small spreads over the weights of `small_net`."""
    rng = np.random.default_rng(0)
    factors = {f"{n}_factor": 0.02 * rng.normal(size=(3, *s)) for n, s in SHAPES.items()}
    diagonals = {f"{n}_diagonal": np.full(s, 1e-4) for n, s in SHAPES.items()}
    match family:
        case "gaussian_full":
            return factors
        case "gaussian_lowrank":
            return factors | diagonals
        case "gaussian_kron":
            left, right = 0.1 * rng.normal(size=(5, 5)), rng.normal(size=(5, 5))
            found = {
                "W1_left": left,
                "W1_right": right,
                "W1_spectrum": np.full((5, 5), 0.01),
                "W1_bias": np.array("b1"),
            }
            return found | {"W2_left": left, "W2_right": rng.normal(size=(3, 3)), "W2_spectrum": np.full((5, 3), 0.01)}
        case _:
            means = {f"{n}_mean": rng.normal(size=s) for n, s in SHAPES.items()}
            first = {f"component0/{key}": value for key, value in (factors | diagonals | means).items()}
            spreads = {f"{n}_std": np.full(s, 0.01) for n, s in SHAPES.items()}
            second = {
                f"component1/{key}": value + (0.01 if "mean" in key else 0) for key, value in (means | spreads).items()
            }
            return first | second | {"posterior_probabilities": np.array([0.25, 0.75])}


FAMILIES = ["gaussian_full", "gaussian_lowrank", "gaussian_kron", "mixture"]


@pytest.fixture(params=FAMILIES)
def attached(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The family, and a file that `bnn-vnnlib attach` wrote."""
    onnx.save(small_net(np.float64), tmp_path / "plain.onnx")
    np.savez(tmp_path / "p.npz", **archive(request.param))
    command = ["attach", "plain.onnx", "p.npz", "bnn.onnx", "--likelihood", "categorical"]
    run([str(tmp_path / part) if "." in part else part for part in command])
    return request.param, tmp_path / "bnn.onnx"


def run(command: list[str], code: int = 0) -> str:
    found = CliRunner().invoke(app, command)
    assert found.exit_code == code, found.output
    return found.output


def written(folder: Path, rows: str) -> Path:
    names = [*(f"X_{i}" for i in range(4)), *(f"Y_{i}" for i in range(3))]
    lines = [f"(declare-const {name} Real)" for name in names]
    lines += [f"(assert (>= X_{i} -0.1)) (assert (<= X_{i} 0.1))" for i in range(4)]
    path = folder / "p.vnnlib"
    path.write_text("\n".join([*lines, f"(assert {rows})"]))
    return path


def test_commands(attached: tuple[str, Path]) -> None:
    family, path = attached
    folder = path.parent
    assert family in run(["inspect", str(path)])
    run(["sample", str(path), str(folder / "drawn"), "--n", "2"])
    assert len(list((folder / "drawn").glob("*.onnx"))) == 2
    assert f"family {family} has no samples of its own" in run(["sample", str(path), str(folder / "all")], 2)
    run(["mean", str(path), str(folder / "mean.onnx")])
    assert read_model(folder / "mean.onnx").posterior is None
    run(["merge", str(path), str(folder / "merged.onnx"), "--n", "3"])
    assert f"family {family}: say how many" in run(["merge", str(path), str(folder / "none.onnx")], 2)
    model = read_model(path)
    assert model_digest(model) == model_digest(read_model(path))
    np.savez(folder / "p.npz", **{k: v if "bias" in k or "prob" in k else 2 * v for k, v in archive(family).items()})
    run(["attach", str(folder / "plain.onnx"), str(folder / "p.npz"), str(folder / "other.onnx")])
    assert model_digest(read_model(folder / "other.onnx")) != model_digest(model)


def test_verdicts_and_witnesses(attached: tuple[str, Path]) -> None:
    family, path = attached
    model = read_model(path)
    safe = verify(model, read_property(written(path.parent, "(>= Y_0 100.0)"), model.network.signature))
    assert safe.verdict is Verdict.UNSAT
    assert safe.p_safe is not None
    assert safe.p_safe.lower > 0.999
    unsafe = verify(model, read_property(written(path.parent, "(>= Y_0 -100.0)"), model.network.signature))
    assert unsafe.verdict is Verdict.SAT
    assert unsafe.p_safe is not None
    assert unsafe.p_safe.upper < 0.001
    assert unsafe.witness is not None
    assert unsafe.witness.check["violation_mass_lower"] > 0.999
    assert unsafe.witness.check["sampled_violations_estimate"] == 1.0
    mean = verify(
        model, read_property(written(path.parent, "(>= Y_0 100.0)"), model.network.signature), query="deterministic"
    )
    assert mean.verdict is Verdict.UNSAT
    assert any("mixture" in note for note in mean.notes) == isinstance(model.posterior, Mixture)
    assert family in safe.method or "mixture" in safe.method


@pytest.mark.parametrize("options", [["--boxes", "sampled"]])
def test_boxes_are_refused_with_one_message(attached: tuple[str, Path], options: list[str]) -> None:
    family, path = attached
    output = run(["verify", str(path), str(written(path.parent, "(>= Y_0 100.0)")), *options], 2)
    assert "boxes around samples need independent weights" in " ".join(output.split())
    assert family in output
    assert "Traceback" not in output


def test_a_mixture_whose_components_violate_at_inputs_of_their_own(tmp_path: Path) -> None:
    """y = w x on [-1, 1], w near 1 or -1: every component violates y > -.5 for sure, at another end."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["X", "W"], ["Y"])], "net",
        [helper.make_tensor_value_info("X", TensorProto.DOUBLE, [1, 1])],
        [helper.make_tensor_value_info("Y", TensorProto.DOUBLE, [1, 1])],
        [numpy_helper.from_array(np.zeros((1, 1)), "W")],
    )  # fmt: skip
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    small = GaussianDiagonal({"W": np.full((1, 1), 1e-6)})
    parts = tuple(Component({"W": np.array([[mean]])}, small) for mean in (1.0, -1.0))
    model, prop, results = tmp_path / "mix.onnx", tmp_path / "p.vnnlib", tmp_path / "r.txt"
    model.write_bytes(attach(net, Mixture(parts, np.array([0.5, 0.5])), likelihood="gaussian").SerializeToString())
    prop.write_text(
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 -1))(assert (<= X_0 1))(assert (<= Y_0 -0.5))"
    )
    limits = ["--tau-safe", "0.3", "--tau-unsafe", "0.3"]
    said = CliRunner().invoke(
        app, ["verify", str(prop), "--network", str(model), "--results-file", str(results), *limits]
    )
    assert said.stdout.startswith("sat")
    checked = CliRunner().invoke(app, ["check-witness", str(model), str(prop), str(results)])
    assert checked.exit_code == 0, checked.output
    assert checked.stdout == "valid\n"


@pytest.mark.parametrize("family", ["full", "mixture"])
def test_a_plain_network_keeps_nothing_of_weights_that_no_node_reads(family: str, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["X", "W"], ["Y"])], "net",
        [helper.make_tensor_value_info("X", TensorProto.DOUBLE, [1, 1])],
        [helper.make_tensor_value_info("Y", TensorProto.DOUBLE, [1, 1])],
        [numpy_helper.from_array(np.ones((1, 1)), name) for name in ("W", "U")],
    )  # fmt: skip
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    root = GaussianFull({name: np.ones((1, 1, 1)) for name in ("W", "U")})
    means = {name: np.ones((1, 1)) for name in ("W", "U")}
    posterior = root if family == "full" else Mixture((Component(means, root),) * 2, np.array([0.5, 0.5]))
    model, plain = tmp_path / "m.onnx", tmp_path / "plain.onnx"
    model.write_bytes(attach(net, posterior).SerializeToString())
    assert CliRunner().invoke(app, ["mean", str(model), str(plain)]).exit_code == 0
    assert read_model(plain).posterior is None
