"""Correlated posteriors and mixtures from the archive to the verdict: commands, witnesses, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from model.model_helpers import small_net
from typer.testing import CliRunner

from bnn_vnnlib import Verdict, read_model, read_property, verify
from bnn_vnnlib.cli.commands import app
from bnn_vnnlib.model import Mixture
from bnn_vnnlib.sweeps.digests import model_digest

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


@pytest.mark.parametrize("options", [["--boxes", "sampled"], ["--margin", "2"], ["--method", "linear"]])
def test_boxes_are_refused_with_one_message(attached: tuple[str, Path], options: list[str]) -> None:
    family, path = attached
    output = run(["verify", str(path), str(written(path.parent, "(>= Y_0 100.0)")), *options], 2)
    assert "boxes of weights need independent weights" in " ".join(output.split())
    assert family in output
    assert "Traceback" not in output
