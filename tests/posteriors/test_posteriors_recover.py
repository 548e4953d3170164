"""Posteriors out of stochastic exports: what is recovered is what was drawn, and the rest is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from exports import DrawnNet, exported
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

from bnn_vnnlib import read_model
from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import PosteriorError
from bnn_vnnlib.model import GaussianDiagonal, model_from_proto, replay
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.recovery import NotRecoverable, recover, recover_file

SPELLINGS = ("exp", "softplus", "log_variance", "log1p", "normal", "flat", "local")
Parts = tuple[list[onnx.NodeProto], dict[str, np.ndarray]]
RNG = np.random.default_rng(0)
MU, SD = RNG.normal(size=(3, 4)), RNG.uniform(0.1, 0.5, (3, 4))


def op(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=f"{operator}_{output}", **attributes)


def graph(nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], shape: tuple[int, ...] = (1, 4)) -> ModelProto:
    """x -> y in float64."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()]
    x, y = (helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in (("x", list(shape)), ("y", None)))
    body = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(*before: onnx.NodeProto, **tensors: np.ndarray) -> ModelProto:
    """y = x W^T with W computed by the nodes."""
    return graph([*before, op("Gemm", "x W", "y", transB=1)], {"mu": MU, "sd": SD, **tensors})


NOISE = op("RandomNormalLike", "mu", "e")


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_mean_and_deviation(spelling: str, fold: bool, tmp_path: Path) -> None:
    net = DrawnNet(spelling)
    recovery = recover(exported(net, tmp_path, fold=fold), likelihood="categorical")
    tensors = holders(recovery.proto)
    assert len(recovery.deviations) == 2
    for (name, deviation), (mean, sd) in zip(recovery.deviations.items(), net.layers(), strict=True):
        np.testing.assert_allclose(array_of(tensors[name]), mean, atol=1e-7)
        np.testing.assert_allclose(deviation, sd, atol=1e-7)
    model = model_from_proto(recovery.proto)
    assert model.likelihood == "categorical"
    with torch.no_grad():  # onnxruntime runs the file as the network of the means
        x = torch.randn(6, 4)
        hidden = torch.relu(nn.functional.linear(x, net.first.mu, net.first.bias))
        expected = nn.functional.linear(hidden, net.second.mu, net.second.bias)
    np.testing.assert_allclose(replay(model, x.numpy()), expected.numpy(), atol=1e-5)


def test_local_reparameterisation_has_the_outputs_of_the_weights(tmp_path: Path) -> None:
    """One layer: mean and variance of the file's own outputs, estimated by running it, are those of the weights."""
    torch.manual_seed(1)
    proto = exported(nn.Sequential(DrawnNet("local").first), tmp_path)
    (deviation,) = recover(proto).deviations.values()
    x = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = np.array([session.run(None, {session.get_inputs()[0].name: x})[0][0] for _ in range(4000)])
    np.testing.assert_allclose(outputs.std(0), np.sqrt(deviation**2 @ x[0] ** 2), rtol=0.06)  # 5 standard errors


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(12, 40))
def test_noise_cut_from_a_longer_vector_in_any_order(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    places, slopes = rng.permutation(size)[:12], rng.normal(size=(3, 4))
    proto = drawn(
        op("RandomNormal", "", "e", shape=[size], scale=2.0, mean=0.5),
        op("Gather", "e i", "g"), op("Reshape", "g s", "r"), op("Mul", "r k", "m"), op("Add", "m mu", "W"),
        i=places, s=np.array([3, 4]), k=slopes.astype(np.float32).astype(float),
    )  # fmt: skip
    del proto.graph.node[0].input[:]
    proto.graph.node[0].attribute.append(helper.make_attribute("dtype", TensorProto.DOUBLE))
    recovery = recover(proto)
    k = slopes.astype(np.float32).astype(float)
    np.testing.assert_allclose(recovery.deviations["W"], np.abs(2 * k), rtol=1e-9)
    np.testing.assert_allclose(array_of(holders(recovery.proto)["W"]), MU + 0.5 * k, rtol=1e-12)


def test_a_product_with_a_diagonal_matrix_is_no_covariance() -> None:
    """It is evaluated what the operators do, not which they are."""
    nodes = [op("RandomNormalLike", "flat", "e"), op("MatMul", "D e", "d"), op("Reshape", "d s", "r")]
    proto = drawn(*nodes, op("Add", "r mu", "W"), D=np.diag(SD.ravel()), flat=np.zeros(12), s=np.array([3, 4]))
    np.testing.assert_allclose(recover(proto).deviations["W"], SD, rtol=1e-12)


@pytest.mark.parametrize("off", [1.0, 1e-3, 1e-7])
def test_a_full_covariance_is_refused_never_summed(off: float) -> None:
    factor = np.diag(SD.ravel())
    factor[7, 2] = off
    nodes = [op("RandomNormalLike", "flat", "e"), op("MatMul", "L e", "d"), op("Reshape", "d s", "r")]
    proto = drawn(*nodes, op("Add", "r mu", "W"), L=factor, flat=np.zeros(12), s=np.array([3, 4]))
    with pytest.raises(NotRecoverable, match="full") as caught:
        recover(proto)
    assert caught.value.kind == "correlated"


def test_one_weight_used_twice_keeps_one_posterior() -> None:
    """W and its transpose share their noise: the posterior belongs to W, and follows."""
    nodes = [NOISE, op("Mul", "sd e", "d"), op("Add", "mu d", "W"), op("Transpose", "W", "T")]
    nodes += [op("MatMul", "x T", "h"), op("MatMul", "h W", "y")]
    proto = graph(nodes, {"mu": MU, "sd": SD})
    recovery = recover(proto)
    assert list(recovery.deviations) == ["W"]
    np.testing.assert_allclose(recovery.deviations["W"], SD, rtol=1e-12)
    model = model_from_proto(recovery.proto)
    x = np.ones((1, 4))
    np.testing.assert_allclose(replay(model, x), x @ MU.T @ MU)


def test_two_weights_of_the_same_noise_are_correlated() -> None:
    nodes = [NOISE, op("Mul", "sd e", "d"), op("Add", "mu d", "W"), op("Mul", "W two", "V")]
    nodes += [op("Gemm", "x W", "h", transB=1), op("MatMul", "h V", "y")]
    with pytest.raises(NotRecoverable) as caught:
        recover(graph(nodes, {"mu": MU, "sd": SD, "two": np.array(2.0)}))
    assert caught.value.kind == "correlated"


def test_repeated_entries_keep_their_one_noise() -> None:
    """A column drawn once and repeated: the four entries of a row are one random number."""
    nodes = [op("RandomNormalLike", "column", "e"), op("Add", "column e", "w"), op("Expand", "w s", "W")]
    recovery = recover(drawn(*nodes, column=MU[:, :1], s=np.array([3, 4])))
    assert {name: deviation.shape for name, deviation in recovery.deviations.items()} == {"w": (3, 1)}


FLAT_NOISE = [NOISE, op("Mul", "sd e", "d"), op("Add", "mu d", "n")]
LOCAL = [op("Mul", "x x", "q"), op("MatMul", "x M", "m"), op("MatMul", "q S", "v"), op("Sqrt", "v", "s")]
LOCAL_TENSORS = {"M": MU.T, "S": SD.T**2}
REFUSED: dict[str, tuple[str, Parts]] = {
    "log-normal": ("not gaussian", ([*FLAT_NOISE, op("Exp", "n", "W"), op("Gemm", "x W", "y", transB=1)], {})),
    "clipped": ("not gaussian", ([*FLAT_NOISE, op("Relu", "n", "W"), op("Gemm", "x W", "y", transB=1)], {})),
    "squared": ("not gaussian", ([NOISE, op("Mul", "e e", "W"), op("Gemm", "x W", "y", transB=1)], {})),
    "sums": ("correlated", ([NOISE, op("ReduceSum", "e", "t"), op("Add", "mu t", "W"),
                             op("Gemm", "x W", "y", transB=1)], {})),
    "two scales of one noise": ("correlated", ([NOISE, op("Add", "mu e", "W"), op("Mul", "sd e", "d"),
                                                op("Gemm", "x W", "h", transB=1), op("MatMul", "h d", "y")], {})),
    "on the input": ("activation noise", ([op("RandomNormalLike", "x", "e"), op("Add", "x e", "y")], {})),
    "uniform": ("other noise", ([op("RandomUniformLike", "mu", "W"), op("Gemm", "x W", "y", transB=1)], {})),
    "dropout": ("mc dropout", ([op("Dropout", "x r t", "y")], {"r": np.array(0.5, np.float32), "t": np.array(True)})),
    "nothing random": ("mean only", ([op("Gemm", "x mu", "y", transB=1)], {})),
    "noise without effect": ("mean only", ([NOISE, op("Mul", "e zero", "z"), op("Add", "mu z", "W"),
                                            op("Gemm", "x W", "y", transB=1)], {"zero": np.zeros(1)})),
    "frozen": ("frozen noise", ([op("Mul", "sd l.weight_sampler.eps_w", "d"), op("Add", "mu d", "W"),
                                 op("Gemm", "x W", "y", transB=1)], {"l.weight_sampler.eps_w": MU})),
    "local, another input": ("activation noise", ([op("Relu", "x", "z"), op("Mul", "z z", "q"), *LOCAL[1:],
                             op("RandomNormalLike", "m", "e"), op("Mul", "s e", "p"), op("Add", "m p", "y")],
                             LOCAL_TENSORS)),
    "local, one noise for all": ("activation noise", ([*LOCAL, op("Shape", "m", "d"),
                                 op("ReduceSum", "m", "t", keepdims=1), op("RandomNormalLike", "t", "e"),
                                 op("Mul", "s e", "p"), op("Add", "m p", "y")], LOCAL_TENSORS)),
    "local, random variance": ("activation noise", ([*LOCAL[:3], op("RandomNormalLike", "one", "r"),
                               op("Add", "v r", "w"), op("Sqrt", "w", "s"), op("RandomNormalLike", "m", "e"),
                               op("Mul", "s e", "p"), op("Add", "m p", "y")], {**LOCAL_TENSORS, "one": np.ones(3)})),
    "local, no root": ("activation noise", ([*LOCAL, op("RandomNormalLike", "m", "e"), op("Mul", "v e", "p"),
                                             op("Add", "m p", "y")], LOCAL_TENSORS)),
    "local, negative variance": ("activation noise", ([*LOCAL, op("RandomNormalLike", "m", "e"),
                                 op("Mul", "s e", "p"), op("Add", "m p", "y")], {"M": MU.T, "S": -SD.T})),
    "local, shared weight": ("activation noise", ([*LOCAL, op("RandomNormalLike", "m", "e"), op("Mul", "s e", "p"),
                             op("Add", "m p", "a"), op("MatMul", "x M", "b"), op("Add", "a b", "y")], LOCAL_TENSORS)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recovered_is_named(name: str) -> None:
    kind, (nodes, tensors) = REFUSED[name]
    proto = graph(nodes, {"mu": MU, "sd": SD, **tensors})
    with pytest.raises(NotRecoverable) as caught:
        recover(proto)
    assert caught.value.kind == kind


@pytest.mark.parametrize("constant", [[0.1, 0.2, 0.3], [[0.1, 0.2, 0.3]], 0.2, [0.2]])
def test_local_reparameterisation_with_random_bias(constant: object) -> None:
    """A constant under the root is the variance of a bias of mean 0: one for each unit, also of a single number."""
    nodes = [*LOCAL[:3], op("Add", "v c", "w"), op("Pow", "w half", "s"), op("RandomNormalLike", "s", "e")]
    nodes += [op("Mul", "e s", "p"), op("Add", "p m", "y")]
    tensors = {**LOCAL_TENSORS, "c": np.array(constant), "half": np.array(0.5)}
    recovery = recover(graph(nodes, tensors))
    np.testing.assert_allclose(recovery.deviations["M"], SD.T)
    expected = np.broadcast_to(np.array(constant).reshape(-1), (1, 3))
    np.testing.assert_allclose(recovery.deviations["y.bias"] ** 2, expected)
    assert recovery.deviations["y.bias"].shape == (1, 3)
    x = np.array([[1.0, 2.0, -1.0, 0.5]])
    np.testing.assert_allclose(replay(model_from_proto(recovery.proto), x), x @ MU.T)


def test_local_reparameterisation_of_a_convolution() -> None:
    """The variance of a convolution's bias lies along the channels."""
    rng = np.random.default_rng(4)
    tensors = {"M": rng.normal(size=(3, 2, 2, 2)), "b": rng.normal(size=3), "S": rng.uniform(0.1, 1, (3, 2, 2, 2))}
    nodes = [op("Conv", "x M b", "m"), op("Mul", "x x", "q"), op("Conv", "q S c", "v"), op("Sqrt", "v", "s")]
    nodes += [op("RandomNormalLike", "m", "e"), op("Mul", "s e", "p"), op("Add", "m p", "y")]
    proto = graph(nodes, {**tensors, "c": np.array([0.1, 0.2, 0.3])}, (1, 2, 4, 4))
    recovery = recover(proto)
    np.testing.assert_allclose(recovery.deviations["M"] ** 2, tensors["S"])
    np.testing.assert_allclose(recovery.deviations["y.bias"].reshape(-1) ** 2, [0.1, 0.2, 0.3])
    assert recovery.deviations["y.bias"].shape == (1, 3, 1, 1)
    assert isinstance(model_from_proto(recovery.proto).posterior, GaussianDiagonal)


def test_random_signs_are_flipout(tmp_path: Path) -> None:
    class Flipout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mu = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            signs = [torch.rand_like(part) - 0.5 for part in (x, x[:, :3])]
            kernel = 0.1 * torch.randn_like(self.mu)
            a, b = (sign.sign() for sign in signs)
            return nn.functional.linear(x, self.mu) + nn.functional.linear(x * a, kernel) * b

    with pytest.raises(NotRecoverable, match="Flipout") as caught:
        recover(exported(Flipout(), tmp_path))
    assert caught.value.kind == "flipout"


def test_frozen_noise_is_released_only_when_asked() -> None:
    nodes, tensors = REFUSED["frozen"][1]
    proto = graph(nodes, {"mu": MU, "sd": SD, **tensors})
    with pytest.raises(NotRecoverable, match="--frozen-noise"):
        model_from_proto(proto)
    recovery = recover(proto, frozen_noise=True)
    np.testing.assert_allclose(recovery.deviations["W"], SD)
    np.testing.assert_allclose(array_of(holders(recovery.proto)["W"]), MU)
    assert "l.weight_sampler.eps_w" in " ".join(recovery.notes)


def test_random_outputs_are_left_out() -> None:
    """A layer that also returns a divergence of its sampled weights."""
    proto = drawn(NOISE, op("Mul", "sd e", "s"), op("Add", "mu s", "W"), op("ReduceSumSquare", "W", "kl", keepdims=0))
    proto.graph.output.append(helper.make_tensor_value_info("kl", TensorProto.DOUBLE, []))
    recovery = recover(proto)
    assert [info.name for info in recovery.proto.graph.output] == ["y"]
    assert "output kl is random and depends on no input: left out" in recovery.notes
    np.testing.assert_allclose(recovery.deviations["W"], SD)


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    """A recovery whose network needs an operator that is not supported leaves no file behind."""
    proto = drawn(NOISE, op("Mul", "sd e", "s"), op("Add", "mu s", "W"))
    proto.graph.node[-1].output[0] = "h"
    proto.graph.node.append(op("Floor", "h", "y"))
    assert recover(proto).deviations
    onnx.save(proto, tmp_path / "export.onnx")
    (tmp_path / "kept.onnx").write_text("an older file")
    for target in ("out.onnx", "out.onnx.gz", "kept.onnx"):
        outcome = CliRunner().invoke(app, ["recover", str(tmp_path / "export.onnx"), str(tmp_path / target)])
        assert outcome.exit_code == 2
        assert "could not be read back: node Floor_y (Floor)" in outcome.stderr
        assert "wrote" not in outcome.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export.onnx", "kept.onnx"]
    assert (tmp_path / "kept.onnx").read_text() == "an older file"


def test_a_file_with_a_posterior_has_nothing_to_recover(tmp_path: Path) -> None:
    recovery = recover(exported(DrawnNet("exp"), tmp_path))
    with pytest.raises(PosteriorError, match="already"):
        recover(recovery.proto)


@pytest.mark.parametrize("what", ["V_variance", "V_samples"])
def test_a_posterior_beside_the_draws_is_not_lost(what: str) -> None:
    """W is drawn, V has a variance or samples by name: reading W alone would take V for certain."""
    tensors = {"V": np.ones(4), what: np.ones(4) if what == "V_variance" else np.ones((1, 4))}
    tensors |= {} if what == "V_variance" else {"posterior_probabilities": np.ones(1)}
    proto = drawn(NOISE, op("Mul", "e sd", "d"), op("Add", "mu d", "W"), **tensors)
    proto.graph.node[-1].input[0] = "h"
    proto.graph.node.insert(0, op("Mul", "x V", "h"))
    with pytest.raises(PosteriorError, match="would be lost"):
        model_from_proto(proto)
    proto.graph.initializer.pop(next(i for i, t in enumerate(proto.graph.initializer) if t.name == what))
    assert list(model_from_proto(proto).posterior.variances) == ["W"]


def test_verify_recovers_by_itself_and_says_so(tmp_path: Path) -> None:
    exported(DrawnNet("softplus"), tmp_path)
    names = "".join(f"(declare-const X_{i} Real)\n(assert (<= X_{i} 0.01))\n(assert (>= X_{i} 0))\n" for i in range(4))
    outputs = "".join(f"(declare-const Y_{i} Real)\n" for i in range(3))
    (tmp_path / "p.vnnlib").write_text(f"{names}{outputs}(assert (>= Y_0 1000))")
    arguments = ["verify", str(tmp_path / "p.vnnlib"), "--network", str(tmp_path / "export.onnx")]
    outcome = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "r.json")])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith("unsat")
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["query"] == "probabilistic"
    assert "recovered from a stochastic export" in outcome.stderr


def test_command(tmp_path: Path) -> None:
    exported(DrawnNet("softplus"), tmp_path)
    arguments = ["recover", str(tmp_path / "export.onnx"), str(tmp_path / "bnn.onnx"), "--likelihood", "categorical"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    model = read_model(tmp_path / "bnn.onnx")
    assert isinstance(model.posterior, GaussianDiagonal)
    assert not [note for note in model.notes if "recovered" in note]
    again = CliRunner().invoke(app, ["recover", str(tmp_path / "bnn.onnx"), str(tmp_path / "x.onnx")])
    assert again.exit_code == 2
    assert "already" in again.stderr


# the shared exports --------------------------------------------------------------------------------------------------

DIAGNOSED = {
    "ivon_mean_only.dynamo.onnx": "mean only", "ivon_mean_only.legacy.onnx": "mean only",
    "ivon_sampled.legacy.onnx": "mean only", "mcdropout.dynamo.onnx": "mc dropout",
    "mcdropout.legacy.onnx": "mc dropout", "mcdropout.legacy_train.onnx": "mc dropout",
    "tfp_DenseFlipout.tf2onnx.onnx": "flipout", "blitz.legacy.onnx": "frozen noise",
    "blitz.legacy_nofold.onnx": "frozen noise",
}  # fmt: skip


def test_shared_exports(shared: Path, tmp_path: Path) -> None:
    """Every file: the right mean and deviation (1e-6) where they are known, or the right diagnosis."""
    folder = shared / "data" / "exports"
    known = json.loads((folder / "manifest.json").read_text())
    for path in sorted(folder.glob("*.onnx")):
        if path.name in DIAGNOSED:
            with pytest.raises(NotRecoverable) as caught:
                recover_file(path, tmp_path / "out.onnx")
            assert caught.value.kind == DIAGNOSED[path.name], path.name
            if caught.value.kind != "frozen noise":
                continue
        released = DIAGNOSED.get(path.name) == "frozen noise"
        recovery = recover_file(path, tmp_path / "out.onnx", frozen_noise=released)
        model = read_model(tmp_path / "out.onnx")
        for name, truth in ((known.get(path.name) or {}).get("recovered") or {}).items():
            np.testing.assert_allclose(array_of(holders(recovery.proto)[name]), truth["mean"], rtol=0, atol=1e-6)
            np.testing.assert_allclose(recovery.deviations[name], truth["std"], rtol=0, atol=1e-6)
        assert np.isfinite(replay(model, np.ones((1, model.network.signature.input_size)))).all()


def test_shared_exports_without_a_listed_truth(shared: Path) -> None:
    """The files that the manifest does not list, against their own tensors or their sibling of another exporter."""
    folder = shared / "data" / "exports"
    for path in sorted(folder.glob("gen_*.onnx")):
        recovery = recover(onnx.load(path))
        tensors = {name: array_of(tensor) for name, tensor in holders(onnx.load(path)).items()}
        (deviation,) = recovery.deviations.values()
        (name,) = recovery.deviations
        np.testing.assert_allclose(array_of(holders(recovery.proto)[name]), tensors["mu"], atol=1e-7)
        expected = [np.log1p(np.exp(tensors[key].astype(float))) for key in ("rho",) if key in tensors]
        expected += [np.exp(value.astype(float)) for key, value in tensors.items() if key.startswith("onnx::Exp")]
        expected += [tensors[key] for key in ("exp", "softplus") if key in tensors]
        expected += [np.sqrt(tensors[key]) for key in ("pow_1",) if key in tensors]
        np.testing.assert_allclose(deviation, expected[0], atol=1e-6, err_msg=path.name)
    folded, unfolded = (recover(onnx.load(folder / f"torchbnn.{kind}.onnx")) for kind in ("legacy", "legacy_nofold"))
    for name, deviation in folded.deviations.items():
        np.testing.assert_allclose(unfolded.deviations[name], deviation, atol=1e-9)
    plain = onnx.load(folder / "tfp_DenseLocalReparameterization.tf2onnx.onnx")
    local = recover(plain)
    tensors = {name: array_of(tensor) for name, tensor in holders(local.proto).items()}
    source = {
        t.name: array_of(t)
        for t in onnx.load(folder / "tfp_DenseLocalReparameterization.tf2onnx.onnx").graph.initializer
    }
    for name, deviation in local.deviations.items():
        np.testing.assert_array_equal(tensors[name], source[name])
        np.testing.assert_allclose(deviation**2, source[name.replace("MatMul/ReadVariableOp", "Square_1")], rtol=1e-6)
