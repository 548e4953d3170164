"""Real files: each is read and agrees with onnxruntime, or is refused by the name of what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bnn_vnnlib.errors import InputError, ModelError, UnsupportedError
from bnn_vnnlib.model import (
    GaussianDiagonal,
    Model,
    Replayer,
    WeightSamples,
    model_from_proto,
    read_model,
    replay,
)
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import DropoutMasks
from doubled import doubled

ROOT = Path(__file__).resolve().parents[2]

# corpus file -> the operator for which it is refused
REFUSED = {"cctsdb_yolo/patch-1": "Cast"}  # the input's last entries become indices
# o* cases -> output at x = (1, 1) (o20: at 0), or what the refusal says
CASES: dict[str, list[float] | str] = {
    "o01_gemm_transB": [3.5, 5.5, 7.5],
    "o02_matmul_const_left": [3, 7, 11],
    "o04_mul_front": [2, 2],
    "o06_unk_dims": [],
    "o08_ir99": [],
    "o09_opset99": "opset 99",
    "o11_reducemean18": [],
    "o12_clip11": [],
    "o13_unknown_op": [],
    "o14_two_outputs": [1, 1, -1, -1],
    "o15_unused_init": [],
    "o16_dup_opset": [1, 1],
    "o19_dropout": [1, 1],
    "o20_constant_node": [],
    "o23_no_shape_out": [],
    "o25_external": [],
    "o28_lfs_pointer": "Git-LFS pointer",
    "id2": [1, 1],
    "two_in": [2, 2],
}


def agree(model: Model, count: int = 20, tolerance: float = 2e-5) -> None:
    """Our network and onnxruntime compute the same, up to rounding."""
    size = model.network.signature.input_size
    x = np.random.default_rng(0).uniform(-1, 1, (count, size)).astype(np.float32).astype(np.float64)
    with torch.no_grad():
        y = evaluate(model.network, torch.tensor(x), softmax=True).numpy()
    expected = replay(model, x)
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


def corpus_files() -> list[str]:
    folder = ROOT.parent / "shared" / "corpus"
    files = sorted([*folder.rglob("*.onnx"), *folder.rglob("*.onnx.gz")])
    return [str(path.relative_to(folder)) for path in files] or ["absent"]


def bare(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".onnx")


@pytest.mark.parametrize("name", corpus_files())
def test_corpus(shared: Path, name: str) -> None:
    path = shared / "corpus" / name
    refusal = REFUSED.get(bare(name))
    if refusal is None:
        agree(read_model(path))
        return
    with pytest.raises(UnsupportedError) as caught:
        read_model(path)
    assert caught.value.node is not None
    assert refusal in caught.value.node
    assert caught.value.path == path


@pytest.mark.parametrize("name", [name for name in corpus_files() if bare(name) not in REFUSED])
def test_corpus_in_float64(shared: Path, name: str) -> None:
    """Without float32 rounding the difference is a billion times smaller."""
    model = model_from_proto(doubled(read_proto(shared / "corpus" / name)[0]))
    try:
        Replayer(model)
    except ModelError:
        pytest.skip("onnxruntime has no float64 kernels for this network")
    agree(model, tolerance=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_case(shared: Path, name: str) -> None:
    path, expected = shared / "cases" / f"{name}.onnx", CASES[name]
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            read_model(path)
        return
    model = read_model(path)
    agree(model)
    if expected:
        ones = torch.ones(1, model.network.signature.input_size, dtype=torch.float64)
        assert evaluate(model.network, ones)[0].tolist() == expected


def test_cases_with_a_remark(shared: Path) -> None:
    cases = shared / "cases"
    assert "IR version 99" in read_model(cases / "o08_ir99.onnx").notes[0]
    assert "unused_var" in read_model(cases / "o15_unused_init.onnx").notes[0]
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert evaluate(read_model(cases / "o20_constant_node.onnx").network, zero)[0].tolist() == [1, 1]
    with pytest.raises(ModelError, match="tar archive"):
        read_model(cases / "o26_tar_inside.onnx.gz")


def test_stochastic_exports_are_never_read_as_deterministic(shared: Path) -> None:
    """Every export with a live posterior is read with it, or refused for what it is; Dropout is one of masks."""
    reasons, masks = {}, set()
    for path in sorted((shared / "data" / "exports").glob("*.onnx")):
        if path.name.startswith("ivon_"):
            continue  # holds no posterior at all: the mean, or one sample
        try:
            found = read_model(path).posterior
            assert found is not None
            if isinstance(found, DropoutMasks):
                masks.add(path.name)
        except UnsupportedError as error:
            reasons[path.name] = str(error)
    assert len(reasons) == 3
    assert len(masks) == 3
    assert all("mcdropout" in name for name in masks)
    assert "BLiTZ" in reasons["blitz.legacy.onnx"]
    assert "Flipout" in reasons["tfp_DenseFlipout.tf2onnx.onnx"]


def converted(shared: Path, folder: Path, name: str, likelihood: str) -> Model:
    """Model made by scripts/npz_to_onnx.py."""
    command = [sys.executable, str(ROOT / "scripts" / "npz_to_onnx.py")]
    files = [str(shared / "data" / "posteriors" / f"{name}.npz"), str(folder / "net.onnx")]
    subprocess.run([*command, *files, "--likelihood", likelihood], check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    return read_model(folder / "net.onnx")


@pytest.mark.parametrize(
    ("name", "activation"), [("hcas_rob_pra0_tau20", np.maximum), ("uci_vogn32tanh_kin8nm1", None)]
)
def test_dense_posterior_from_npz(shared: Path, tmp_path: Path, name: str, activation: object) -> None:
    """The network is act(x @ W1 + b1) @ W2 + b2, the variances are the squares of std_i."""
    model = converted(shared, tmp_path, name, "categorical")
    arrays = np.load(shared / "data" / "posteriors" / f"{name}.npz")
    w1, b1, w2, b2 = (arrays[f"mean_{i}"].astype(np.float64) for i in range(4))
    x = np.random.default_rng(1).uniform(-0.5, 0.5, (5, len(w1)))
    hidden = x @ w1 + b1
    hidden = np.tanh(hidden) if activation is None else np.maximum(hidden, 0)
    y = evaluate(model.network, torch.tensor(x)).numpy()
    np.testing.assert_allclose(y, hidden @ w2 + b2, rtol=1e-12, atol=1e-12)
    assert isinstance(model.posterior, GaussianDiagonal)
    stds = arrays["std_2"].astype(np.float64)
    np.testing.assert_array_equal(model.posterior.variances["W2"], (stds**2).astype(np.float32))
    assert model.likelihood == "categorical"


def test_samples_from_npz(shared: Path, tmp_path: Path) -> None:
    model = converted(shared, tmp_path, "hcas_hmc_pra0_tau20", "categorical")
    arrays = np.load(shared / "data" / "posteriors" / "hcas_hmc_pra0_tau20.npz")
    assert isinstance(model.posterior, WeightSamples)
    np.testing.assert_allclose(model.posterior.probabilities, arrays["freq"] / arrays["freq"].sum(), rtol=1e-14)
    np.testing.assert_array_equal(model.posterior.samples["W1"], arrays["samples_0"].astype(np.float64))


def test_convolution_from_npz(shared: Path, tmp_path: Path) -> None:
    """28 x 28 x 3 images, kernel HWIO: against a direct sum of windows."""
    name = "gtsrb_SWAG_small_Posterior_5_new"
    model = converted(shared, tmp_path, name, "categorical")
    arrays = np.load(shared / "data" / "posteriors" / f"{name}.npz")
    x = np.random.default_rng(1).uniform(0, 1, (2, 28, 28, 3))
    windows = np.lib.stride_tricks.sliding_window_view(x, (4, 4), axis=(1, 2))  # (N, 25, 25, 3, 4, 4)
    conv = np.einsum("nhwcij,ijco->nhwo", windows, arrays["mean_0"].astype(np.float64)) + arrays["mean_1"]
    hidden = np.maximum(conv, 0).reshape(2, -1) @ arrays["mean_2"].astype(np.float64) + arrays["mean_3"]
    logits = np.maximum(hidden, 0) @ arrays["mean_4"].astype(np.float64) + arrays["mean_5"]
    y = evaluate(model.network, torch.tensor(x.reshape(2, -1))).numpy()
    np.testing.assert_allclose(y, logits, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cifar10_resnet_2021/resnet_2b", "mnist_fc/mnist-net_256x2"])
def test_onnx2torch_agrees(shared: Path, name: str) -> None:
    """A third, independent reading of the same file."""
    onnx2torch = pytest.importorskip("onnx2torch")
    path = shared / "corpus" / f"{name}.onnx"
    model = read_model(path)
    module = onnx2torch.convert(str(path)).double().eval()
    shape = model.network.signature.inputs[0].shape
    x = torch.rand(
        2, model.network.signature.input_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        expected = torch.stack([module(point.reshape(shape)).reshape(-1) for point in x])
        np.testing.assert_allclose(evaluate(model.network, x), expected, rtol=1e-9, atol=1e-9)
