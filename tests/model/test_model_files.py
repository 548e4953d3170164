"""Files that are, or only look like, a model; what `read_model` says about them."""

from __future__ import annotations

import contextlib
import gzip
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from model_helpers import make_model, node, run_onnx, small_net
from onnx import ModelProto, helper

from bnn_vnnlib.errors import InputError, ModelError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, attach, build_network, model_from_proto, read_model, replay
from bnn_vnnlib.model.files import read_proto, write_model
from bnn_vnnlib.network.evaluate import evaluate

POINTS = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32).astype(np.float64)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return write_model(small_net(), tmp_path / "net.onnx")


def external(folder: Path, location: str = "net.data") -> Path:
    """small_net with its tensors in `folder/net.data`, referred to as `location`."""
    proto = small_net()
    onnx.save_model(proto, folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    raw = onnx.load(folder / "net.onnx", load_external_data=False)
    for tensor in raw.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (folder / "net.onnx").write_bytes(raw.SerializeToString())
    return folder / "net.onnx"


def test_plain_gzip_and_absent_suffix(net: Path, tmp_path: Path) -> None:
    expected = replay(read_model(net), POINTS)
    packed = write_model(read_proto(net)[0], tmp_path / "packed.onnx.gz")
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    np.testing.assert_array_equal(replay(read_model(packed), POINTS), expected)
    named = read_model(tmp_path / "packed.onnx")  # only packed.onnx.gz exists
    assert named.path == packed
    disguised = tmp_path / "disguised.onnx"
    disguised.write_bytes(packed.read_bytes())
    np.testing.assert_array_equal(replay(read_model(disguised), POINTS), expected)


def test_replay_and_evaluate_agree(net: Path) -> None:
    model = read_model(net)
    y = evaluate(model.network, torch.tensor(POINTS)).numpy()
    np.testing.assert_allclose(replay(model, POINTS), y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_onnx(small_net(), POINTS), y, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected"):
        replay(model, POINTS[:, :3])


IMPOSTORS = {
    "empty": (b"", "the file is empty"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git-LFS pointer"),
    "text": (b"(declare-const X_0 Real)", "it is VNN-LIB text; were two"),
    "html": (b"\n<!DOCTYPE html>", "web page"),
    "zip": (b"PK\x03\x04rest", "zip archive"),
    "tar_in_gzip": (gzip.compress(bytes(257) + b"ustar" + bytes(300)), "tar archive"),
    "noise": (b"\xff\xfe\xfd" * 50, "not an ONNX model"),
    "truncated_gzip": (gzip.compress(bytes(range(256)) * 20)[:-20], "ends too early"),
    "damaged_gzip": (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged gzip"),
    "other_proto": (helper.make_opsetid("", 3).SerializeToString(), "not an ONNX model"),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_impostor(name: str, tmp_path: Path) -> None:
    data, message = IMPOSTORS[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        read_model(path)
    assert caught.value.path == path


def test_every_truncation_is_one_clear_error(net: Path) -> None:
    """A cut file either does not parse or is inconsistent; it never reads as a model, never a traceback."""
    data = net.read_bytes()
    for size in range(1, len(data), 7):
        net.write_bytes(data[:size])
        with pytest.raises((ModelError, UnsupportedError)):
            read_model(net)


@pytest.mark.parametrize("seed", range(150))
def test_changed_bytes_are_a_model_or_one_clear_error(tmp_path: Path, seed: int) -> None:
    """Three random bytes are changed in a file with a posterior and every kind of folding."""
    nodes = [node("Transpose", "W", "V"), node("Gemm", "x V b", "h", alpha=0.5), node("Relu", "h", "a"),
             node("Reshape", "a s", "r"), node("Div", "r c", "y")]  # fmt: skip
    weights = {"W": np.ones((2, 4)), "b": np.ones(2), "s": np.array([1, 2]), "c": np.array([3.0, 4.0])}
    proto = attach(make_model(nodes, weights, element=np.float32), GaussianDiagonal({"W": np.ones((2, 4))}))
    data = bytearray(proto.SerializeToString())
    rng = np.random.default_rng(seed)
    for place in rng.integers(len(data), size=3):
        data[place] = rng.integers(256)
    (tmp_path / "net.onnx").write_bytes(data)
    with contextlib.suppress(InputError):
        assert read_model(tmp_path / "net.onnx").network.signature.output_size > 0


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_model(tmp_path / "nothing.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        read_model(tmp_path)


def test_gz_name_without_gzip(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx.gz"
    path.write_bytes(small_net().SerializeToString())
    with pytest.raises(ModelError, match="not gzip"):
        read_model(path)


def test_external_data_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model = read_model(path)
    np.testing.assert_allclose(replay(model, POINTS), run_onnx(small_net(), POINTS), rtol=1e-6)


@pytest.mark.parametrize("location", ["../net.data", "/etc/hostname", "sub/../../net.data", ""])
def test_external_data_never_leave_the_folder(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner, location)
    (tmp_path / "net.data").write_bytes((inner / "net.data").read_bytes())
    with pytest.raises(ModelError, match="leave the model's folder"):
        read_model(path)


def test_external_data_through_a_link_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner)
    (inner / "net.data").rename(tmp_path / "net.data")
    (inner / "net.data").symlink_to(tmp_path / "net.data")
    with pytest.raises(ModelError, match="leave the model's folder"):
        read_model(path)


def test_external_data_missing_or_short(tmp_path: Path) -> None:
    path = external(tmp_path)
    data = (tmp_path / "net.data").read_bytes()
    (tmp_path / "net.data").write_bytes(data[:-4])
    with pytest.raises(ModelError, match="external data do not fit"):
        read_model(path)
    (tmp_path / "net.data").unlink()
    with pytest.raises(ModelError, match=r"'net\.data' is missing"):
        read_model(path)


def traits() -> dict[str, tuple[ModelProto, str]]:
    """Unusual but usable files, and the remark that each earns ("" = none)."""
    symbolic = make_model([node("Relu", "x")], {}, ("batch", 4), element=np.float32)
    newer = small_net()
    newer.ir_version = 99
    twice = small_net()
    twice.opset_import.append(helper.make_opsetid("", 17))
    other_domain = small_net()
    other_domain.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    listed = small_net()
    listed.ir_version = 3
    listed.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in listed.graph.initializer
    )
    dead = make_model([node("Sin", "x", "unused"), node("Relu", "x")], {}, element=np.float32)
    spare = make_model([node("Relu", "x")], {"spare": np.zeros(3)}, element=np.float32)
    mixed = small_net()
    mixed.graph.input[0].type.tensor_type.elem_type = 11
    mixed.graph.output[0].type.tensor_type.elem_type = 11
    no_sizes = small_net()
    no_sizes.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, []))
    return {
        "symbolic": (symbolic, r"open dimensions are taken as 1, shape \(1, 4\)"),
        "newer_ir": (newer, "IR version 99"),
        "duplicate_opset": (twice, ""),
        "unused_domain": (other_domain, ""),
        "weights_listed_as_inputs": (listed, ""),
        "dead_node": (dead, "Sin.*left out"),
        "spare_initializer": (spare, "spare is used by no node"),
        "mixed_floats": (mixed, "float32 weights with a float64 input"),
        "no_sizes": (no_sizes, ""),
    }


@pytest.mark.parametrize("shape", [[7], [1, 4], [3, 1], [1, 1, 3], ["batch", 4]])
def test_declared_shape_that_the_graph_contradicts(shape: list[int | str]) -> None:
    proto = small_net()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, shape))
    with pytest.raises(ModelError, match=r"declares shape .* but its graph computes \(1, 3\)") as caught:
        model_from_proto(proto)
    assert caught.value.node == "y"


@pytest.mark.parametrize("shape", [["batch", 3], [1, "classes"], [1, 3], [-1, 3], [0, 3]])
def test_declared_shape_with_open_sizes(shape: list[int | str]) -> None:
    proto = small_net()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, shape))
    assert model_from_proto(proto).notes == ()


def test_declared_batch_behind_an_open_one_is_a_note() -> None:
    """The batch is our choice, not the file's."""
    proto = make_model([node("Relu", "x")], {}, ("batch", 4), element=np.float32)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [7, 4]))
    assert any("declares shape (7, 4)" in note for note in model_from_proto(proto).notes)


@pytest.mark.parametrize("name", traits())
def test_unusual_but_usable(name: str, tmp_path: Path) -> None:
    proto, remark = traits()[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    model = read_model(path)
    assert model.network.signature.input_size == 4
    notes = [note for note in model.notes if "gives no shape" not in note]
    assert len(notes) == bool(remark)
    if remark:
        assert any(re.search(remark, note) for note in notes)
    y = evaluate(model.network, torch.tensor(POINTS)).numpy()
    np.testing.assert_allclose(replay(model, POINTS), y, rtol=1e-5, atol=1e-6)


def test_two_default_opsets_contradict_each_other() -> None:
    proto = small_net()
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    with pytest.raises(ModelError, match=r"\[11, 17\]"):
        build_network(proto)


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot write"):
        write_model(small_net(), tmp_path / "no" / "net.onnx")
    write_model(small_net(), tmp_path / "net.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_integer_input_is_refused(tmp_path: Path) -> None:
    proto = make_model([node("Identity", "x")], {}, element=np.int64)
    with pytest.raises(UnsupportedError, match="input of type int64"):
        read_model(write_model(proto, tmp_path / "net.onnx"))
