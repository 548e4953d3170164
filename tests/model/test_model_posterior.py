"""The posterior in a file: attach and read, every loader rule, samples, npz."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_helpers import make_model, node, run_onnx, small_net, with_weights
from onnx import ModelProto, TypeProto, helper, numpy_helper

from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import (
    GaussianDiagonal,
    WeightSamples,
    attach,
    attach_file,
    describe,
    from_standard_deviations,
    model_from_proto,
    read_model,
    read_posterior_npz,
    replay,
    sample,
)

POINTS = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32).astype(np.float64)


def gaussian(seed: int = 1) -> GaussianDiagonal:
    rng = np.random.default_rng(seed)
    return from_standard_deviations({"W1": rng.uniform(0.1, 1, (5, 4)), "b2": rng.uniform(0, 1, 3)})


def samples() -> WeightSamples:
    rng = np.random.default_rng(2)
    tensors = {"W1": rng.normal(size=(4, 5, 4)), "b2": rng.normal(size=(4, 3))}
    return WeightSamples(tensors, np.array([0.1, 0.2, 0.3, 0.4]))


def initializer(proto: ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def without(proto: ModelProto, *names: str) -> ModelProto:
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
    copy = ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy


def manifest(proto: ModelProto) -> dict[str, Any]:
    (entry,) = [entry for entry in proto.metadata_props if entry.key == "bnn.posterior"]
    content: dict[str, Any] = json.loads(entry.value)
    return content


def edited(proto: ModelProto, **changes: Any) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(proto)
    copy.metadata_props[0].value = json.dumps(manifest(proto) | changes)
    return copy


@pytest.mark.parametrize("element", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("embed", [False, True])
def test_gaussian_round_trip(element: Any, embed: bool, tmp_path: Path) -> None:
    """What is stored, in the weight's own type, is what is read, exactly; the graph is untouched."""
    plain = small_net(element)
    path = attach_file(
        write(plain, tmp_path), gaussian(), tmp_path / "b.onnx.gz", likelihood="categorical", embed=embed
    )
    model = read_model(path)
    assert isinstance(model.posterior, GaussianDiagonal)
    for name, variance in gaussian().variances.items():
        np.testing.assert_array_equal(model.posterior.variances[name], variance.astype(element).astype(np.float64))
    assert model.likelihood == "categorical"
    assert not [note for note in model.notes if "shape" not in note]
    carried = onnx.load_model_from_string(model.onnx_bytes)
    assert carried.graph.node == plain.graph.node
    if element != np.float16:
        np.testing.assert_array_equal(replay(model, POINTS), run_onnx(plain, POINTS))


def write(proto: ModelProto, folder: Path) -> Path:
    path = folder / "plain.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("embed", [False, True])
def test_samples_round_trip(embed: bool) -> None:
    model = model_from_proto(attach(small_net(np.float64), samples(), embed=embed))
    assert isinstance(model.posterior, WeightSamples)
    np.testing.assert_array_equal(model.posterior.probabilities, samples().probabilities)
    for name, values in samples().samples.items():
        np.testing.assert_array_equal(model.posterior.samples[name], values)
        mean = np.tensordot(samples().probabilities, values, 1)
        np.testing.assert_allclose(model.network.tensors[name], mean, rtol=1e-14)
    mean_net = with_weights(small_net(np.float64), {name: model.network.tensors[name] for name in ("W1", "b2")})
    np.testing.assert_allclose(replay(model, POINTS), run_onnx(mean_net, POINTS), rtol=1e-13)
    assert model.likelihood is None


@pytest.mark.parametrize("posterior", [gaussian(), samples()], ids=["gaussian", "samples"])
def test_embedded_tensors_survive_a_simplifier(posterior: GaussianDiagonal | WeightSamples) -> None:
    """Simplifiers drop unused initializers and keep the metadata."""
    proto = attach(small_net(), posterior, embed=True)
    stripped = without(proto, "W1_variance", "b2_variance", "W1_samples", "b2_samples", "posterior_probabilities")
    read, full = model_from_proto(stripped).posterior, model_from_proto(proto).posterior
    for field in vars(full):
        value, expected = getattr(read, field), getattr(full, field)
        pairs = [(value[n], expected[n]) for n in expected] if isinstance(expected, dict) else [(value, expected)]
        for own, other in pairs:
            np.testing.assert_array_equal(own, other)


def test_weights_in_constant_nodes_can_carry_a_posterior() -> None:
    weight = onnx.helper.make_node("Constant", [], ["W"], value=numpy_helper.from_array(np.eye(4, dtype=np.float32)))
    proto = make_model([weight, node("MatMul", "x W")], {}, element=np.float32)
    model = model_from_proto(attach(proto, from_standard_deviations({"W": np.full((4, 4), 0.5)})))
    assert isinstance(model.posterior, GaussianDiagonal)
    assert (model.posterior.variances["W"] == 0.25).all()
    mean = WeightSamples({"W": np.stack([np.zeros((4, 4)), np.ones((4, 4))])}, np.array([0.5, 0.5]))
    assert (model_from_proto(attach(proto, mean)).network.tensors["W"] == 0.5).all()


BAD_POSTERIORS = {
    "unknown_name": (GaussianDiagonal({"W9": np.ones((5, 4))}), "no weight 'W9'; it has W1, b1, W2, b2"),
    "shape": (GaussianDiagonal({"W1": np.ones((4, 5))}), r"W1.*\(4, 5\), expected \(5, 4\)"),
    "negative": (GaussianDiagonal({"b1": np.full(5, -1e-9)}), "b1.*negative"),
    "nan": (GaussianDiagonal({"b1": np.full(5, np.nan)}), "b1.*NaN"),
    "empty": (GaussianDiagonal({}), "names no tensor"),
    "vanishes": (GaussianDiagonal({"b1": np.full(5, 1e-60)}), "b1.*cannot hold"),
    "overflows": (GaussianDiagonal({"b1": np.full(5, 1e60)}), "b1.*cannot hold"),
    "samples_shape": (WeightSamples({"b1": np.ones((3, 4))}, np.full(3, 1 / 3)), r"b1.*expected \(3, 5\)"),
    "samples_nan": (WeightSamples({"b1": np.full((1, 5), np.inf)}, np.ones(1)), "b1.*NaN or infinite"),
    "probabilities_sum": (WeightSamples({"b1": np.ones((2, 5))}, np.array([0.5, 0.6])), "sum to 1"),
    "probabilities_negative": (WeightSamples({"b1": np.ones((2, 5))}, np.array([1.5, -0.5])), ">= 0"),
}


@pytest.mark.parametrize("name", BAD_POSTERIORS)
def test_bad_posterior_is_refused_by_name(name: str) -> None:
    posterior, message = BAD_POSTERIORS[name]
    with pytest.raises(PosteriorError, match=message):
        attach(small_net(), posterior)


def test_negative_standard_deviation() -> None:
    with pytest.raises(PosteriorError, match=r"W1.*negative"):
        from_standard_deviations({"W1": [-1.0]})


def test_likelihood_is_checked_and_overridden() -> None:
    with pytest.raises(OptionError, match="'poisson' is unknown"):
        attach(small_net(), gaussian(), likelihood="poisson")
    proto = attach(small_net(), gaussian(), likelihood="categorical")
    model = model_from_proto(proto, likelihood="gaussian")
    assert model.likelihood == "gaussian"
    assert any("the file says categorical" in note for note in model.notes)


def damaged_files() -> dict[str, tuple[ModelProto, type[Exception], str]]:
    proto = attach(small_net(), gaussian(), likelihood="categorical")
    weights = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    params = manifest(proto)["params"]
    renamed = without(proto, "W1")
    renamed.graph.initializer.append(numpy_helper.from_array(weights["W1"], "fused"))
    renamed.graph.node[0].input[1] = "fused"
    stray = ModelProto()
    stray.CopyFrom(proto)
    stray.graph.initializer.append(numpy_helper.from_array(weights["b1"] ** 2, "b1_variance"))
    twice = ModelProto()
    twice.CopyFrom(proto)
    twice.metadata_props.append(twice.metadata_props[0])
    not_json = ModelProto()
    not_json.CopyFrom(proto)
    not_json.metadata_props[0].value = "{"
    embedded = attach(small_net(), gaussian(), embed=True)
    broken = edited(embedded, params={"W1": manifest(embedded)["params"]["W1"] | {"variance_base64": "AAAA"}})
    return {
        "stripped": (without(proto, "W1_variance"), PosteriorError, "W1.*stripped.*simplify first, attach after"),
        "all_stripped": (without(proto, "W1_variance", "b2_variance"), PosteriorError, "stripped"),
        "renamed": (renamed, PosteriorError, "'W1'.*no longer has.*simplify first"),
        "stale_mean": (with_weights(proto, {"W1": weights["W1"] * 2}), PosteriorError, "W1.*changed.*stale"),
        "transposed_mean": (with_weights(proto, {"b2": weights["b2"][::-1]}), PosteriorError, "b2.*stale"),
        "stale_variance": (with_weights(proto, {"b2_variance": weights["b2_variance"] * 2}), PosteriorError, "b2"),
        "shape": (edited(proto, params={"W1": params["W1"] | {"shape": [4, 5]}}), PosteriorError, "W1"),
        "bad_shape": (edited(proto, params={"W1": params["W1"] | {"shape": "5x4"}}), PosteriorError, "W1.*5x4"),
        "unlisted": (edited(proto, params={"W1": params["W1"]}), PosteriorError, "'b2_variance' is not listed"),
        "stray": (stray, PosteriorError, "'b1_variance' is not listed"),
        "no_tensor_named": (edited(proto, params={"W1": {**params["W1"], "variance": None}}), PosteriorError, "W1"),
        "no_params": (edited(proto, params={}), PosteriorError, "'params'"),
        "twice": (twice, PosteriorError, "2 metadata entries"),
        "not_json": (not_json, PosteriorError, "damaged: not JSON"),
        "not_an_object": (edited_text(proto, "[1]"), PosteriorError, "not a JSON object"),
        "format": (edited(proto, format=2), UnsupportedError, "format 2"),
        "family_type": (edited(proto, family=["mixture"]), PosteriorError, "unknown"),
        "unknown_family": (edited(proto, family="student"), PosteriorError, "'student' is unknown"),
        "bad_likelihood": (edited(proto, likelihood="poisson"), PosteriorError, "damaged.*'poisson'"),
        "embedded_damaged": (broken, PosteriorError, "W1.*embedded tensor is damaged"),
    }


def edited_text(proto: ModelProto, text: str) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(proto)
    copy.metadata_props[0].value = text
    return copy


@pytest.mark.parametrize("name", damaged_files())
def test_damaged_posterior_is_never_read_as_deterministic(name: str) -> None:
    proto, kind, message = damaged_files()[name]
    with pytest.raises(kind, match=message):
        model_from_proto(proto)


@pytest.mark.parametrize("family", ["dropout"])
def test_reserved_families(family: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{family}' is not supported yet"):
        model_from_proto(edited(attach(small_net(), gaussian()), family=family))


def test_variance_without_manifest_is_accepted_by_name_with_a_note() -> None:
    proto = attach(small_net(), gaussian())
    del proto.metadata_props[:]
    model = model_from_proto(proto)
    assert isinstance(model.posterior, GaussianDiagonal)
    assert set(model.posterior.variances) == {"W1", "b2"}
    assert any("W1_variance, b2_variance accepted by name" in note for note in model.notes)


def test_samples_without_manifest() -> None:
    proto = attach(small_net(), samples())
    del proto.metadata_props[:]
    assert isinstance(model_from_proto(proto).posterior, WeightSamples)
    with pytest.raises(PosteriorError, match="posterior_probabilities"):
        model_from_proto(without(proto, "posterior_probabilities"))


def test_by_name_needs_the_right_shape_and_sign() -> None:
    proto = small_net()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 5), np.float32), "W1_variance"))
    with pytest.raises(PosteriorError, match=r"W1.*\(4, 5\), expected \(5, 4\)"):
        model_from_proto(proto)
    proto.graph.initializer[-1].CopyFrom(numpy_helper.from_array(-np.ones((5, 4), np.float32), "W1_variance"))
    with pytest.raises(PosteriorError, match=r"W1.*negative"):
        model_from_proto(proto)


def test_a_tensor_that_the_graph_uses_is_no_posterior() -> None:
    """`bn_variance` beside `bn` may be a running variance."""
    nodes = [node("BatchNormalization", "x bn bn bn bn_variance")]
    proto = make_model(nodes, {"bn": np.ones(4), "bn_variance": np.ones(4)})
    assert model_from_proto(proto).posterior is None


def test_posterior_of_an_unused_weight_is_a_note() -> None:
    proto = make_model([node("MatMul", "x W")], {"W": np.eye(4), "spare": np.ones(2)})
    both = from_standard_deviations({"W": np.ones((4, 4)), "spare": np.ones(2)})
    model = model_from_proto(attach(proto, both))
    assert isinstance(model.posterior, GaussianDiagonal)
    assert set(model.posterior.variances) == {"W"}
    assert any("posterior of spare is ignored" in note for note in model.notes)
    with pytest.raises(PosteriorError, match="no node uses any"):
        model_from_proto(attach(proto, from_standard_deviations({"spare": np.ones(2)})))


def test_a_posterior_in_an_impossible_place_is_refused() -> None:
    nodes = [node("BatchNormalization", "x g g m v")]
    proto = make_model(nodes, {"g": np.ones(4), "m": np.zeros(4), "v": np.ones(4)})
    with pytest.raises(PosteriorError, match=r"running mean.*'m'"):
        model_from_proto(attach(proto, from_standard_deviations({"m": np.ones(4)})))


def test_no_second_posterior_and_no_clash_of_names() -> None:
    with pytest.raises(PosteriorError, match="carries a posterior already"):
        attach(attach(small_net(), gaussian()), gaussian())
    proto = small_net()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "W1_variance"))
    with pytest.raises(PosteriorError, match="already has a tensor 'W1_variance'"):
        attach(proto, gaussian())


def test_attach_leaves_the_given_model_alone() -> None:
    proto = small_net()
    before = proto.SerializeToString()
    attach(proto, samples())
    assert proto.SerializeToString() == before


def test_attached_file_is_valid_onnx() -> None:
    proto = small_net()
    proto.ir_version = 3  # then plain initializers are not allowed, and attach must raise the version
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, [1, 3]))
    onnx.checker.check_model(attach(proto, gaussian()), full_check=True)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [({"b1_variance": np.full(5, 0.25)}, GaussianDiagonal), ({"b1_std": np.full(5, 0.5)}, GaussianDiagonal)],
)
def test_npz_gaussian(keys: dict[str, np.ndarray], kind: type, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", **keys)
    posterior = read_posterior_npz(tmp_path / "p.npz", small_net())
    assert isinstance(posterior, GaussianDiagonal)
    assert (posterior.variances["b1"] == 0.25).all()
    model = model_from_proto(small_net())
    assert (read_posterior_npz(tmp_path / "p.npz", model).variances["b1"] == 0.25).all()  # type: ignore[union-attr]


def test_npz_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", b1_samples=np.ones((4, 5)))
    posterior = read_posterior_npz(tmp_path / "p.npz", small_net())
    assert isinstance(posterior, WeightSamples)
    assert posterior.probabilities.tolist() == [0.25] * 4
    np.savez(tmp_path / "p.npz", b1_samples=np.ones((2, 5)), posterior_probabilities=[0.25, 0.75])
    assert read_posterior_npz(tmp_path / "p.npz", small_net()).probabilities.tolist() == [0.25, 0.75]  # type: ignore[union-attr]


BAD_ARCHIVES = {
    "unknown_key": ({"b1": np.ones(5)}, "key 'b1' is unknown; expected <initializer>_variance"),
    "unknown_weight": ({"c_std": np.ones(5)}, "no weight 'c'"),
    "both": ({"b1_std": np.ones(5), "b1_variance": np.ones(5)}, "mixes"),
    "families": ({"b1_std": np.ones(5), "b2_samples": np.ones((2, 3))}, "mixes"),
    "probabilities_alone": ({"b1_std": np.ones(5), "posterior_probabilities": np.ones(1)}, "without any"),
    "text": ({"b1_std": np.array(["a"] * 5)}, "expected numbers"),
    "nothing": ({}, "names no tensor"),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_bad_archive(name: str, tmp_path: Path) -> None:
    arrays, message = BAD_ARCHIVES[name]
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(PosteriorError, match=message):
        read_posterior_npz(tmp_path / "p.npz", small_net())


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04broken"])
def test_not_an_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    path.write_bytes(content)
    with pytest.raises(PosteriorError, match="a NumPy archive"):
        read_posterior_npz(path, small_net())
    with pytest.raises(PosteriorError, match="no such file"):
        read_posterior_npz(tmp_path / "none.npz", small_net())


def test_sample_has_the_posterior_s_moments() -> None:
    model = model_from_proto(attach(small_net(np.float64), gaussian()))
    assert model.posterior is not None
    count = 20_000
    drawn = sample(model.network, model.posterior, count, torch.Generator().manual_seed(0))
    for name, variance in gaussian().variances.items():
        deviation = np.sqrt(variance)
        off = np.abs(drawn[name].mean(0).numpy() - model.network.tensors[name])
        assert (off <= 5 * deviation / np.sqrt(count)).all()
        np.testing.assert_allclose(drawn[name].std(0).numpy(), deviation, rtol=0.05)


def test_sample_of_samples_keeps_rows_together() -> None:
    model = model_from_proto(attach(small_net(np.float64), samples()))
    assert model.posterior is not None
    drawn = sample(model.network, model.posterior, 4000, torch.Generator().manual_seed(0))
    rows = [(drawn["W1"] == torch.tensor(values)).all(-1).all(-1) for values in samples().samples["W1"]]
    others = [(drawn["b2"] == torch.tensor(values)).all(-1) for values in samples().samples["b2"]]
    assert all(torch.equal(a, b) for a, b in zip(rows, others, strict=True))
    shares = torch.stack(rows).double().mean(1).numpy()
    np.testing.assert_allclose(shares, samples().probabilities, atol=0.04)


def test_describe() -> None:
    summary = describe(model_from_proto(attach(small_net(np.float64), gaussian(), likelihood="categorical")))
    assert (summary.family, summary.likelihood, summary.samples) == ("gaussian_diag", "categorical", 0)
    assert (summary.weights, summary.uncertain_weights) == (20 + 5 + 15 + 3, 20 + 3)
    by_name = {tensor.name: tensor for tensor in summary.tensors}
    assert by_name["b1"].relative_sd is None
    assert by_name["W1"].relative_sd is not None
    low, median, high = by_name["W1"].relative_sd
    assert 0 < low < median < high
    assert dict(summary.operators)["Linear"] == 2
    empirical = describe(model_from_proto(attach(small_net(np.float64), samples())))
    assert (empirical.family, empirical.samples) == ("samples", 4)
    assert describe(model_from_proto(small_net())).family == "deterministic"


def test_describe_zero_weights() -> None:
    proto = make_model([node("Add", "x b")], {"b": np.array([0.0, 0.0, 1.0, 2.0])})
    summary = describe(model_from_proto(attach(proto, from_standard_deviations({"b": [0, 1, 1, 1]}))))
    (tensor,) = summary.tensors
    assert tensor.relative_sd is not None
    assert (tensor.relative_sd[0], tensor.relative_sd[2]) == (0.0, np.inf)  # 0/0 is no uncertainty, 1/0 is


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5), st.booleans())
def test_round_trip_of_any_variance(values: list[float], embed: bool) -> None:
    variance = np.array(values)
    proto = attach(small_net(), GaussianDiagonal({"b1": variance}), embed=embed)
    again = onnx.load_model_from_string(proto.SerializeToString())
    posterior = model_from_proto(again).posterior
    assert isinstance(posterior, GaussianDiagonal)
    np.testing.assert_array_equal(posterior.variances["b1"], variance.astype(np.float32))


@pytest.mark.parametrize("where", ["computed", "sparse", "list", "branch"])
@pytest.mark.parametrize("what", ["W_variance", "W_samples"])
def test_a_variance_beside_what_is_no_tensor_is_not_ignored(where: str, what: str) -> None:
    """W_variance by name, but W is computed, sparse, a list in a Constant node or lies in a branch."""
    nodes, weights, beside = [node("Add", "x W")], {}, {what: np.ones(4)}
    if where == "computed":
        nodes.insert(0, node("Exp", "L", "W"))
        weights["L"] = np.ones(4)
    elif where == "list":
        nodes.insert(0, node("Constant", "", "W", value_floats=[1.0, 2.0, 3.0, 4.0]))
    elif where == "branch":
        own = [numpy_helper.from_array(array, name) for name, array in {"W": np.ones(4), **beside}.items()]
        ends = [helper.make_value_info(name, TypeProto()) for name in ("t", "e")]
        nodes = [node("If", "b", then_branch=helper.make_graph([node("Add", "x W", "t")], "t", [], ends[:1], own),
                      else_branch=helper.make_graph([node("Identity", "x", "e")], "e", [], ends[1:]))]  # fmt: skip
        weights["b"], beside = np.array(True), {}
    proto = make_model(nodes, weights | beside)
    if where == "sparse":
        entries, places = numpy_helper.from_array(np.ones(1), "W"), numpy_helper.from_array(np.ones(1, np.int64))
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(entries, places, [4]))
    with pytest.raises(PosteriorError, match="looks like the posterior of 'W'"):
        model_from_proto(proto)
