"""The posterior stays with its weights through clean-ups of other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks_with_posteriors import gaussian, graph, mlp, op, samples, saved
from onnx import ModelProto
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import ModelError, OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, Model, WeightSamples, model_from_proto, read_model, replay
from bnn_vnnlib.posteriors import simplify as module
from bnn_vnnlib.posteriors.parts import FileParts, read_parts, with_values, without_posterior
from bnn_vnnlib.posteriors.simplify import Fingerprints, simplified
from support.command import call

TOOLS = ("onnxruntime", "onnxsim", "onnxslim", "onnxoptimizer")
WEIGHTS = ("K", "k", "W", "b", "V", "v")


def convolution() -> ModelProto:
    """Conv, BatchNormalization, layers spelled with transpositions, a zero bias: everything that tools rewrite."""
    rng = np.random.default_rng(0)
    tensors = {
        "K": rng.normal(size=(3, 1, 3, 3)),
        "k": rng.normal(size=3),
        "g": rng.uniform(0.5, 2, 3),
        "o": rng.normal(size=3),
    }
    tensors |= {"W": rng.normal(size=(7, 48)), "b": rng.normal(size=7), "V": rng.normal(size=(3, 7)), "v": np.zeros(3)}
    nodes = [op("Conv", "x K k", "c"), op("BatchNormalization", "c g o o g", "n"), op("Relu", "n", "r")]
    nodes += [op("Identity", "r", "i"), op("Flatten", "i", "f"), op("Gemm", "f W b", "h", transB=1)]
    nodes += [op("Relu", "h", "a"), op("Transpose", "V", "T", perm=[1, 0]), op("MatMul", "a T", "m")]
    return graph([*nodes, op("Add", "m v", "y")], tensors, (1, 1, 6, 6))


def function(model: Model, x: np.ndarray, moved: dict[str, np.ndarray]) -> np.ndarray:
    """The network at x with other weights, in onnxruntime."""
    proto = with_values(onnx.load_model_from_string(model.onnx_bytes), moved)
    return replay(model_from_proto(without_posterior(proto, model.posterior)), x)


def same_posterior(before: Model, after: Model, x: np.ndarray) -> None:
    """Both networks at mean + sd * z, the z of every entry found by its own sd: all sds are distinct."""
    assert isinstance(before.posterior, GaussianDiagonal)
    assert isinstance(after.posterior, GaussianDiagonal)
    old, new = before.posterior.variances, after.posterior.variances
    flat = np.concatenate([variance.reshape(-1) for variance in old.values()])
    assert len(np.unique(flat)) == flat.size
    np.testing.assert_array_equal(np.sort(flat), np.sort(np.concatenate([v.reshape(-1) for v in new.values()])))
    z = dict(zip(flat.tolist(), np.random.default_rng(7).normal(size=flat.size), strict=True))

    def sampled(model: Model, variances: dict[str, np.ndarray]) -> np.ndarray:
        noise = {name: np.vectorize(z.__getitem__)(variance) for name, variance in variances.items()}
        return function(model, x, {n: model.network.tensors[n] + np.sqrt(v) * noise[n] for n, v in variances.items()})

    np.testing.assert_allclose(sampled(after, dict(new)), sampled(before, dict(old)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("make", [convolution, mlp])
def test_the_posterior_follows(make: Callable[[], ModelProto], tool: str, tmp_path: Path) -> None:
    if tool != "onnxruntime":
        pytest.importorskip(tool, reason=f"{tool} (extra `simplify`) is not installed")
    proto = make()
    names = WEIGHTS if make is convolution else ("W1", "b1", "W2", "b2", "W3")
    before = read_model(saved(proto, tmp_path / "b.onnx", gaussian(proto, names), "categorical"))
    result, _ = simplified(read_parts(tmp_path / "b.onnx"), tool)
    after = model_from_proto(result)
    assert after.likelihood == "categorical"
    assert len(result.graph.node) < len(proto.graph.node) or tool == "onnxoptimizer"
    x = np.random.default_rng(1).normal(size=(4, before.network.signature.input_size))
    same_posterior(before, after, x)


def test_samples_follow(tmp_path: Path) -> None:
    proto = convolution()
    posterior = samples(proto, WEIGHTS)
    before = read_model(saved(proto, tmp_path / "b.onnx", posterior, None))
    result, notes = simplified(read_parts(tmp_path / "b.onnx"))
    after = model_from_proto(result)
    assert isinstance(after.posterior, WeightSamples)
    assert any("without fusions" in note for note in notes)  # the normalisation would go into the convolution
    x = np.random.default_rng(1).normal(size=(4, 36))
    for index in range(3):
        old = function(before, x, {name: values[index] for name, values in posterior.samples.items()})
        new = function(after, x, {name: values[index] for name, values in after.posterior.samples.items()})
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4)


def pretend(monkeypatch: pytest.MonkeyPatch, tool: Callable[[ModelProto], None]) -> None:
    def run(_tool: str, proto: ModelProto, _fuse: bool) -> ModelProto:
        copy = ModelProto()
        copy.CopyFrom(proto)
        tool(copy)
        return copy

    monkeypatch.setattr(module, "cleaned_up", run)


def initializer(proto: ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def rename(proto: ModelProto) -> None:
    initializer(proto, "W1").name = "other"
    proto.graph.node[2].input[1] = "other"


def scale(proto: ModelProto) -> None:
    tensor = initializer(proto, "W1")
    tensor.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(tensor), "W1"))


def double(proto: ModelProto) -> None:
    proto.graph.initializer.add().CopyFrom(initializer(proto, "W1"))
    proto.graph.initializer[-1].name = "again"


def other_bias(proto: ModelProto) -> None:
    tensor = initializer(proto, "shift")
    tensor.CopyFrom(onnx.numpy_helper.from_array(1 + onnx.numpy_helper.to_array(tensor), "shift"))


def parts_of(tmp_path: Path) -> FileParts:
    proto = mlp()
    return read_parts(saved(proto, tmp_path / "b.onnx", gaussian(proto, ("W1", "b2")), None))


def test_a_tool_that_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, rename)
    after = model_from_proto(simplified(parts_of(tmp_path))[0])
    assert isinstance(after.posterior, GaussianDiagonal)
    assert set(after.posterior.variances) == {"other", "b2"}


@pytest.mark.parametrize(
    ("tool", "error", "message"),
    [(scale, PosteriorError, "computes with this weight"), (double, PosteriorError, "copies"),
     (other_bias, ModelError, "changed what the network computes")],
)  # fmt: skip
def test_a_tool_that_breaks_something_is_caught(
    tool: Callable[[ModelProto], None], error: type[Exception], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pretend(monkeypatch, tool)
    with pytest.raises(error, match=message):
        simplified(parts_of(tmp_path))


def test_marks_are_found_wherever_they_go() -> None:
    proto = mlp()
    marks = Fingerprints(proto, ["W2", "b2"])
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in marks.marked.graph.initializer}
    joined = np.concatenate([arrays["W2"].T, arrays["b2"][:, None], np.zeros((6, 1), np.float32)], axis=1)
    places = marks.locate(joined)
    np.testing.assert_array_equal(places[:, :5], np.arange(30).reshape(5, 6).T)
    np.testing.assert_array_equal(places[:, 5], 30 + np.arange(6))
    assert (places[:, 6] == -1).all()
    assert (marks.locate(arrays["W1"]) == -1).all()
    vector = np.arange(36.0)
    np.testing.assert_array_equal(marks.joined(marks.cut(vector)), vector)


def test_half_precision_runs_out_of_marks() -> None:
    proto = graph([op("MatMul", "x W", "y")], {})
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 2000), np.float16), "W"))
    with pytest.raises(UnsupportedError, match="float16"):
        Fingerprints(proto, ["W"])


def test_command(tmp_path: Path) -> None:
    proto = convolution()
    onnx.save(proto, tmp_path / "plain.onnx")
    np.savez(tmp_path / "p.npz", W_std=np.full((7, 48), 0.1), v_std=np.full(3, 0.2))
    files = [str(tmp_path / name) for name in ("plain.onnx", "out.onnx", "p.npz")]
    arguments = ["simplify", *files[:2], "--posterior", files[2], "--likelihood", "categorical"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    model = read_model(tmp_path / "out.onnx")
    assert isinstance(model.posterior, GaussianDiagonal)
    assert sorted(v.size for v in model.posterior.variances.values()) == [3, 336]
    again = CliRunner().invoke(app, ["simplify", files[1], files[0], "--posterior", files[2]])
    assert again.exit_code == 2
    assert "already" in again.stderr


def test_a_tool_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxsim", None)
    with pytest.raises(OptionError, match="pip install onnxsim"):
        simplified(parts_of(tmp_path), "onnxsim")


def rounded(*before: onnx.NodeProto) -> ModelProto:
    """x -> y with a layer whose weight is computed in a way that the reader does not know."""
    rng = np.random.default_rng(3)
    tensors = {"W": rng.normal(size=(4, 5)), "V": rng.normal(size=(5, 3)), "low": np.array(-100.0), "c": np.array(2.0)}
    return graph([*before, op("MatMul", "x R", "h"), op("Relu", "h", "a"), op("MatMul", "a V", "y")], tensors)


UNKNOWN = op("Round", "W", "R")


def test_the_tool_runs_before_the_reader(tmp_path: Path) -> None:
    """Without a posterior, or with one on other weights."""
    onnx.save(rounded(UNKNOWN), tmp_path / "plain.onnx")
    with pytest.raises(UnsupportedError, match="Round"):
        read_model(tmp_path / "plain.onnx")
    outcome = call("simplify", tmp_path / "plain.onnx", tmp_path / "out.onnx")
    assert "as it is, the model cannot be read" in outcome.stderr
    after, x = read_model(tmp_path / "out.onnx"), np.random.default_rng(0).normal(size=(3, 4))
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in rounded(UNKNOWN).graph.initializer}
    truth = np.maximum(x.astype(np.float32) @ np.rint(arrays["W"]), 0) @ arrays["V"]
    np.testing.assert_allclose(replay(after, x), truth, rtol=1e-5, atol=1e-5)
    posterior = GaussianDiagonal({"V": np.arange(1.0, 16.0).reshape(5, 3)})
    saved(rounded(UNKNOWN), tmp_path / "b.onnx", posterior, "categorical")
    call("simplify", tmp_path / "b.onnx", tmp_path / "out.onnx")
    kept = read_model(tmp_path / "out.onnx")
    assert kept.likelihood == "categorical"
    assert isinstance(kept.posterior, GaussianDiagonal)
    (variance,) = kept.posterior.variances.values()
    np.testing.assert_array_equal(np.sort(variance, axis=None), np.arange(1.0, 16.0))


@pytest.mark.parametrize(
    "before", [[UNKNOWN], [op("Max", "W low", "R")], [op("Clip", "W low", "R")], [op("Mul", "W c", "R")],
               [op("Cast", "W", "H", to=10), op("Cast", "H", "R", to=1)]],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["onnxruntime", "onnxslim"])
def test_a_weight_that_is_changed_keeps_no_posterior(before: list[onnx.NodeProto], tool: str, tmp_path: Path) -> None:
    """Marks between -64 and 64 pass a Max with -100 unchanged; a Gaussian does not."""
    proto = rounded(*before, UNKNOWN)
    if before != [UNKNOWN]:  # something else that only the tool understands
        proto = rounded(*before)
        proto.graph.node[-1].output[0] = "z"
        proto.graph.node.append(op("Sum", "z r", "y"))
        proto.graph.node.insert(0, op("Round", "c", "r"))
    else:
        proto = rounded(UNKNOWN)
    saved(proto, tmp_path / "b.onnx", gaussian(proto, ("W",)), None)
    for arguments in (["b.onnx"], ["plain.onnx", "--posterior", str(tmp_path / "p.npz")]):
        onnx.save(proto, tmp_path / "plain.onnx")
        np.savez(tmp_path / "p.npz", W_std=np.full((4, 5), 0.1))
        command = ["simplify", tmp_path / arguments[0], tmp_path / "out.onnx", *arguments[1:], "--tool", tool]
        assert "posterior" in call(*command, code=2).stderr
        assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("where", ["function", "branch"])
def test_a_weight_that_is_changed_out_of_sight_keeps_no_posterior(where: str, tmp_path: Path) -> None:
    """The Max with -100, which all marks pass, lies in a local function or in a branch of an If."""
    inner, layer = op("Max", "w low", "r"), op("MatMul", "x r", "o")
    proto = rounded()
    del proto.graph.node[0]
    if where == "function":
        imports = [onnx.helper.make_opsetid("", 17)]
        proto.functions.append(onnx.helper.make_function("my", "f", ["x", "w", "low"], ["o"], [inner, layer], imports))
        proto.opset_import.append(onnx.helper.make_opsetid("my", 1))
        proto.graph.node.insert(0, onnx.helper.make_node("f", ["x", "W", "low"], ["h"], domain="my"))
    else:
        inner.input[0] = "W"
        ends = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in ("o", "p")]
        then = onnx.helper.make_graph([inner, layer], "t", [], ends[:1])
        other = onnx.helper.make_graph([op("MatMul", "x W", "p")], "e", [], ends[1:])
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "b"))
        proto.graph.node.insert(0, op("If", "b", "h", then_branch=then, else_branch=other))
    proto.graph.node[-1].output[0] = "z"
    proto.graph.node.append(op("Sum", "z s", "y"))
    proto.graph.node.insert(0, op("Round", "c", "s"))
    saved(proto, tmp_path / "b.onnx", gaussian(proto, ("W",)), None)
    assert "carries a posterior" in call("simplify", tmp_path / "b.onnx", tmp_path / "out.onnx", code=2).stderr
    assert not (tmp_path / "out.onnx").exists()
