"""Plain networks out of a posterior: the mean, draws, and the predictive as one network."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from networks_with_posteriors import gaussian, graph, mlp, op, samples, saved
from onnx import ModelProto, TensorProto, helper, numpy_helper
from scipy.special import expit, softmax
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import OptionError, PosteriorError
from bnn_vnnlib.model import WeightSamples, read_model
from bnn_vnnlib.posteriors.merge import merge
from bnn_vnnlib.posteriors.parts import drawn, read_parts, with_values, write_drawn, write_mean

ALL = ("W1", "b1", "W2", "b2", "W3")
X = np.random.default_rng(5).normal(size=(20, 4)).astype(np.float32)


def run(proto: ModelProto, x: np.ndarray = X) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0]
    return np.array([session.run(None, {source.name: row.reshape(source.shape)})[0].reshape(-1) for row in x], float)


def predictive(proto: ModelProto, posterior: WeightSamples, squash) -> np.ndarray:
    """The average over the samples, one network at a time."""
    each = [
        squash(run(with_values(proto, {name: values[i] for name, values in posterior.samples.items()})))
        for i in range(len(posterior.probabilities))
    ]
    return np.tensordot(posterior.probabilities, np.array(each), 1)


ENDS = {
    "categorical": lambda y: softmax(y, -1),
    "bernoulli": expit,
    "gaussian": lambda y: y,
}


@pytest.mark.parametrize("form", ["blocks", "copies"])
@pytest.mark.parametrize("names", [ALL, ("W3",), ("b1",), ("W2", "b2")])
@pytest.mark.parametrize("likelihood", ENDS)
def test_merged_network_is_the_predictive(likelihood: str, names: tuple[str, ...], form: str, tmp_path: Path) -> None:
    proto = mlp()
    posterior = samples(proto, names)
    merged, _ = merge(read_parts(saved(proto, tmp_path / "b.onnx", posterior, likelihood)), form=form)
    onnx.checker.check_model(merged, full_check=True)
    np.testing.assert_allclose(run(merged), predictive(proto, posterior, ENDS[likelihood]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["blocks", "copies"])
def test_a_softmax_in_the_graph_is_averaged_behind_it(form: str, tmp_path: Path) -> None:
    proto = mlp(softmax=True)
    posterior = samples(proto, ALL)
    merged, _ = merge(read_parts(saved(proto, tmp_path / "b.onnx", posterior, None)), form=form)
    np.testing.assert_allclose(run(merged), predictive(proto, posterior, lambda y: y), atol=1e-6)


@pytest.mark.parametrize("activation", ["Tanh", "Sigmoid", "LeakyRelu", "Elu", "Softplus"])
def test_blocks_of_every_activation(activation: str, tmp_path: Path) -> None:
    proto = mlp(activation)
    posterior = samples(proto, ALL)
    merged, _ = merge(read_parts(saved(proto, tmp_path / "b.onnx", posterior, "gaussian")), form="blocks")
    assert {node.op_type for node in merged.graph.node} == {"Gemm", activation}
    np.testing.assert_allclose(run(merged), predictive(proto, posterior, lambda y: y), rtol=1e-4, atol=1e-5)


def test_a_residual_network_is_merged_by_copies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [op("MatMul", "x W", "h"), op("Relu", "h", "a"), op("Add", "a x", "s"), op("MatMul", "s V", "y")]
    proto = graph(nodes, {"W": rng.normal(size=(4, 4)), "V": rng.normal(size=(4, 3))})
    posterior = samples(proto, ("V",))
    parts = read_parts(saved(proto, tmp_path / "b.onnx", posterior, "gaussian"))
    with pytest.raises(OptionError, match="no chain"):
        merge(parts, form="blocks")
    merged, _ = merge(parts)
    assert sum(node.op_type == "Relu" for node in merged.graph.node) == 1  # what no sample changes is there once
    np.testing.assert_allclose(run(merged), predictive(proto, posterior, lambda y: y), atol=1e-5)


def test_what_is_averaged_has_to_be_settled(tmp_path: Path) -> None:
    proto = mlp()
    parts = read_parts(saved(proto, tmp_path / "b.onnx", samples(proto, ALL), None))
    with pytest.raises(OptionError, match="--likelihood"):
        merge(parts)
    merge(parts, average="outputs")
    regression = read_parts(tmp_path / "b.onnx", likelihood="gaussian")
    with pytest.raises(OptionError, match="no logits"):
        merge(regression, average="probabilities")


def test_a_gaussian_is_drawn_from_and_called_an_estimate(tmp_path: Path) -> None:
    proto = mlp()
    parts = read_parts(saved(proto, tmp_path / "b.onnx", gaussian(proto, ALL), "categorical"))
    with pytest.raises(OptionError, match="--n"):
        merge(parts)
    merged, notes = merge(parts, draws=5, seed=3)
    assert any("estimate" in note for note in notes)
    each = [softmax(run(network), -1) for network, _ in drawn(parts, 5, seed=3)]
    # one network at a time draws the tensors in another order, so only the size of the spread is compared
    assert np.abs(run(merged) - np.mean(each, 0)).max() < 1
    with pytest.raises(OptionError, match="leave"):
        merge(read_parts(saved(proto, tmp_path / "s.onnx", samples(proto, ALL), "categorical")), draws=2)


def test_nothing_to_merge(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "plain.onnx")
    with pytest.raises(PosteriorError, match="no posterior"):
        merge(read_parts(tmp_path / "plain.onnx"))
    with pytest.raises(PosteriorError, match="no posterior"):
        list(drawn(read_parts(tmp_path / "plain.onnx"), 2))


def test_a_matrix_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = mlp()
    parts = read_parts(saved(proto, tmp_path / "b.onnx", samples(proto, ALL), "gaussian"))
    monkeypatch.setattr("bnn_vnnlib.posteriors.merge._MAX_MATRIX_ENTRIES", 200)
    with pytest.raises(OptionError, match="--form copies"):
        merge(parts, form="blocks")


def test_mean_is_the_plain_network(tmp_path: Path) -> None:
    proto = mlp()
    parts = read_parts(saved(proto, tmp_path / "b.onnx", gaussian(proto, ALL), "categorical"))
    written = onnx.load(write_mean(parts, tmp_path / "mean.onnx"))
    assert not written.metadata_props
    assert written.graph == proto.graph
    assert read_model(tmp_path / "mean.onnx").posterior is None


def test_draws_have_the_posteriors_moments(tmp_path: Path) -> None:
    proto = mlp()
    posterior = gaussian(proto, ("W1",))
    parts = read_parts(saved(proto, tmp_path / "b.onnx", posterior, None))
    drawn_weights = []
    for network, share in drawn(parts, 400, seed=1):
        assert share == 1 / 400
        arrays = {t.name: onnx.numpy_helper.to_array(t) for t in network.graph.initializer}
        drawn_weights.append(arrays["W1"])
        assert (arrays["W2"] == parts.model.network.tensors["W2"].astype(np.float32)).all()
    sd = np.sqrt(posterior.variances["W1"])
    score = (np.mean(drawn_weights, 0) - parts.model.network.tensors["W1"]) / sd * 20
    assert np.abs(score).max() < 4.5  # 20 standard normal numbers
    np.testing.assert_allclose(np.std(drawn_weights, 0) / sd, 1, atol=0.2)


def test_every_sample_once(tmp_path: Path) -> None:
    proto = mlp()
    posterior = samples(proto, ALL)
    parts = read_parts(saved(proto, tmp_path / "b.onnx", posterior, None))
    written = write_drawn(parts, tmp_path / "nets", None)
    rows = list(csv.reader((tmp_path / "nets" / "networks.csv").read_text().splitlines()))
    assert [name for name, _ in rows] == [path.name for path in written]
    assert [float(share) for _, share in rows] == posterior.probabilities.tolist()
    for index, path in enumerate(written):
        arrays = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        np.testing.assert_array_equal(arrays["W2"], posterior.samples["W2"][index].astype(np.float32))
    with pytest.raises(OptionError, match="--n"):
        list(drawn(read_parts(saved(proto, tmp_path / "g.onnx", gaussian(proto, ALL), None)), None))


def test_commands(tmp_path: Path) -> None:
    proto = mlp()
    source = str(saved(proto, tmp_path / "b.onnx", samples(proto, ALL), "categorical"))
    for command, *rest in (("mean", "mean.onnx"), ("merge", "merged.onnx"), ("sample", "folder", "--n", "2")):
        outcome = CliRunner().invoke(app, [command, source, str(tmp_path / rest[0]), *rest[1:]])
        assert outcome.exit_code == 0, outcome.output
        assert "wrote" in outcome.stderr
    assert "predictive" in CliRunner().invoke(app, ["mean", source, str(tmp_path / "m.onnx")]).stderr
    assert len(list((tmp_path / "folder").glob("draw_*.onnx"))) == 2
    refused = CliRunner().invoke(app, ["merge", str(tmp_path / "mean.onnx"), str(tmp_path / "x.onnx")])
    assert refused.exit_code == 2


def test_outputs_that_depend_on_no_input_are_not_merged(tmp_path: Path) -> None:
    """A version number beside the output that is asked about."""
    proto = mlp()
    proto.graph.node.append(op("Identity", "number", "version"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "number"))
    proto.graph.output.append(helper.make_tensor_value_info("version", TensorProto.FLOAT, [1]))
    parts = read_parts(saved(proto, tmp_path / "b.onnx", samples(proto, ALL), "gaussian"))
    merged, _ = merge(parts, form="copies")
    assert [info.name for info in merged.graph.output] == ["y"]
