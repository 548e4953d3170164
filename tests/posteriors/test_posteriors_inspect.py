"""`inspect` says what a file carries, whose it seems to be, and what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from exports import DrawnNet, exported
from networks_with_posteriors import gaussian, graph, mlp, op, samples, saved
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.model import attach, describe, model_from_proto, read_model
from bnn_vnnlib.posteriors.origin import missing, origin


def named(*names: str) -> onnx.ModelProto:
    """A network whose tensors have these names."""
    nodes = [op("MatMul", "x W", "y")]
    return graph(nodes, {"W": np.ones((4, 3)), **{name: np.ones(2) for name in names}})


@pytest.mark.parametrize(
    ("library", "names"),
    [("torchbnn", ("0.weight_mu", "0.weight_log_sigma")), ("torch-uncertainty", ("0.weight_mu", "0.weight_sigma")),
     ("BLiTZ", ("0.weight_sampler.mu", "0.weight_sampler.rho")), ("bayesian-torch", ("fc.mu_weight", "fc.rho_weight")),
     ("fastbnns", ("0._module_params.weight_mean",)), ("Pyro", ("g.loc", "g.scale_unconstrained")),
     ("TensorFlow Probability (DenseFlipout)", ("seq/dense_flipout/Normal",)), ("", ("0.weight", "0.bias", "sigma"))],
)  # fmt: skip
def test_library(library: str, names: tuple[str, ...]) -> None:
    assert origin(named(*names)).library == library


def test_what_is_missing() -> None:
    proto = mlp()
    assert "attach" in missing(model_from_proto(proto), proto)[0]
    some = attach(proto, gaussian(proto, ("W1", "b1")))
    found = " ".join(missing(model_from_proto(some), some))
    assert "W2, b2, W3" in found
    assert "--likelihood" in found
    every = attach(proto, gaussian(proto, ("W1", "b1", "W2", "b2", "W3")), likelihood="gaussian")
    assert missing(model_from_proto(every), every) == ()
    drawn = attach(proto, samples(proto, ("W1", "b1", "W2", "b2", "W3")), likelihood="gaussian")
    assert "mean" in missing(model_from_proto(drawn), drawn)[0]


def test_command(tmp_path: Path) -> None:
    path = saved(mlp(), tmp_path / "b.onnx", gaussian(mlp(), ("W1",)), None)
    shown = CliRunner().invoke(app, ["inspect", str(path)])
    assert shown.exit_code == 0, shown.output
    for text in ("a posterior beside the weights", "missing", "likelihood", "gaussian_diag"):
        assert text in shown.stdout
    exported(DrawnNet("softplus"), tmp_path)
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "export.onnx")])
    for text in ("pytorch", "stochastic export", "recovered", "gaussian_diag"):
        assert text in shown.stdout


def test_a_refused_file_is_explained(tmp_path: Path) -> None:
    nodes = [op("RandomUniformLike", "x", "e"), op("Mul", "x e", "w"), op("MatMul", "w W", "y")]
    proto = graph(nodes, {"W": np.ones((4, 3)), "a.rho_weight": np.ones(1)})
    onnx.save(proto, tmp_path / "odd.onnx")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "odd.onnx")])
    assert shown.exit_code == 2
    assert shown.stdout == ""
    for text in ("bayesian-torch", "stochastic export", "adds noise to activations"):
        assert text in shown.stderr


def test_what_a_graph_draws_is_described(tmp_path: Path) -> None:
    """Uniform weights of [0, 2]: their deviation is that of draws."""
    nodes = [op("RandomUniformLike", "W", "e", high=2.0), op("Mul", "W e", "w"), op("MatMul", "x w", "y")]
    onnx.save(graph(nodes, {"W": np.ones((4, 3))}), tmp_path / "odd.onnx")
    model = read_model(tmp_path / "odd.onnx")
    (tensor,) = describe(model).tensors
    assert tensor.relative_sd is not None
    assert abs(tensor.relative_sd[1] - 1 / np.sqrt(3)) < 0.1
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "odd.onnx")])
    assert shown.exit_code == 0, shown.output
    for text in ("stochastic export", "sampler", "kept as it is"):
        assert text in shown.stdout


LIBRARIES = {
    "torchbnn": "torchbnn", "blitz": "BLiTZ", "bayesian_torch": "bayesian-torch", "pyro": "Pyro",
    "torch_uncertainty": "torch-uncertainty", "tfp": "TensorFlow Probability", "gen": "", "ivon": "", "mcdropout": "",
}  # fmt: skip


def test_shared_exports(shared: Path) -> None:
    """The right library for every file."""
    for path in sorted((shared / "data" / "exports").glob("*.onnx")):
        (expected,) = [library for prefix, library in LIBRARIES.items() if path.name.startswith(prefix)]
        found = origin(onnx.load(path)).library
        assert found.startswith(expected), path.name
        assert bool(found) == bool(expected), path.name
