"""Deterministic networks into BNNs: stated deviations, ensembles, fits, whole benchmark folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from networks_with_posteriors import graph, mlp, op, samples, saved
from onnx import numpy_helper
from typer.testing import CliRunner

from bnn_vnnlib import Verdict, read_model, read_property, verify, verify_batch
from bnn_vnnlib.cli import app
from bnn_vnnlib.errors import InputError, OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.model import GaussianDiagonal, WeightSamples, attach, model_from_proto, replay
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.posteriors import benchmark
from bnn_vnnlib.posteriors.benchmark import convert_benchmark
from bnn_vnnlib.posteriors.convert import Ensemble, FittedOn, Spread, Stated, convert, weight_names
from bnn_vnnlib.posteriors.fit import Data, as_module
from bnn_vnnlib.posteriors.parts import with_values

ALL = ["W1", "b1", "W2", "b2", "W3"]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    onnx.save(mlp(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def stated(*texts: str) -> Stated:
    return Stated(tuple(Spread.parse(text) for text in texts))


def test_weights_are_those_of_layers() -> None:
    """Not the normalisation of the input, nor the statistics of a BatchNormalization."""
    assert weight_names(model_from_proto(mlp()).network, mlp()) == ALL
    rng = np.random.default_rng(0)
    tensors = {"K": rng.normal(size=(3, 1, 3, 3)), "k": rng.normal(size=3), "g": rng.uniform(1, 2, 3)}
    nodes = [op("Conv", "x K k", "c"), op("BatchNormalization", "c g g g g", "n"), op("Flatten", "n", "y")]
    proto = graph(nodes, tensors, (1, 1, 6, 6), (1, 48))
    assert weight_names(model_from_proto(proto).network, proto) == ["K", "k"]


def test_stated_deviations(net: Path) -> None:
    """Absolute, relative and none; the last pattern that fits counts."""
    converted, _ = convert(net, stated("*=10%", "W?=0.5", "W3=0", "b2=0.25"), "categorical")
    model = model_from_proto(converted)
    assert model.likelihood == "categorical"
    assert isinstance(model.posterior, GaussianDiagonal)
    means, variances = model.network.tensors, model.posterior.variances
    assert set(variances) == {"W1", "b1", "W2", "b2"}
    np.testing.assert_allclose(variances["W1"], 0.25)
    np.testing.assert_allclose(variances["b1"], 0.01 * means["b1"] ** 2, rtol=1e-6)
    np.testing.assert_allclose(variances["b2"], 0.0625)
    assert converted.graph.node == mlp().graph.node


@pytest.mark.parametrize(
    ("recipe", "message"),
    [(stated("nowhere=1"), "W1, b1"), (stated("*=0"), "every standard deviation"), (Ensemble(()), "--member")],
)
def test_recipes_that_make_nothing(recipe: Any, message: str, net: Path) -> None:
    with pytest.raises(OptionError, match=message):
        convert(net, recipe, "categorical")


@pytest.mark.parametrize("text", ["W1", "W1=", "=1", "W1=x", "W1=-1", "W1=nan", "W1=inf%"])
def test_spreads_that_mean_nothing(text: str) -> None:
    with pytest.raises(OptionError):
        Spread.parse(text)


def test_a_posterior_is_not_put_over_another(tmp_path: Path) -> None:
    path = saved(mlp(), tmp_path / "b.onnx", samples(mlp(), ("W1",)), None)
    with pytest.raises(PosteriorError, match="already"):
        convert(path, stated("*=1"), "categorical")


def test_no_weights(tmp_path: Path) -> None:
    onnx.save(graph([op("Relu", "x", "y")], {}, (1, 4), (1, 4)), tmp_path / "n.onnx")
    with pytest.raises(UnsupportedError, match="no linear layer"):
        convert(tmp_path / "n.onnx", stated("*=1"), "gaussian")


# ensembles -----------------------------------------------------------------------------------------------------------


def member(seed: int, folder: Path, *, names: str = "") -> Path:
    proto = mlp(seed=seed)
    for tensor in proto.graph.initializer:
        tensor.name += names
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = name + names if name != "x" and name[0] in "sWb" else name
    onnx.save(proto, folder / f"member{seed}.onnx")
    return folder / f"member{seed}.onnx"


def test_ensemble_of_networks_whose_weights_are_called_otherwise(tmp_path: Path) -> None:
    first, others = member(0, tmp_path), (member(1, tmp_path, names="_1"), member(2, tmp_path))
    model = model_from_proto(convert(first, Ensemble(others), "categorical")[0])
    assert isinstance(model.posterior, WeightSamples)
    np.testing.assert_allclose(model.posterior.probabilities, 1 / 3)
    assert set(model.posterior.samples) == {"shift", *ALL}  # every network has a normalisation of its own
    for index, seed in enumerate((0, 1, 2)):
        arrays = {t.name: numpy_helper.to_array(t) for t in mlp(seed=seed).graph.initializer}
        for name, stack in model.posterior.samples.items():
            np.testing.assert_array_equal(stack[index], arrays[name])


def test_weights_that_agree_stay_deterministic(net: Path, tmp_path: Path) -> None:
    other = with_values(mlp(), {"W3": np.ones((6, 3))})
    onnx.save(other, tmp_path / "other.onnx")
    model = model_from_proto(convert(net, Ensemble((tmp_path / "other.onnx",)), "gaussian")[0])
    assert isinstance(model.posterior, WeightSamples)
    assert set(model.posterior.samples) == {"W3"}
    with pytest.raises(OptionError, match="same weights"):
        convert(net, Ensemble((net,)), "gaussian")


def test_a_scalar_weight_stays_a_scalar() -> None:
    proto = graph([op("Mul", "x c", "y")], {"c": np.array(2.0)}, (1, 2), (1, 2))
    assert list(with_values(proto, {"c": np.array(3.0)}).graph.initializer[0].dims) == []


def normalised(seed: int, folder: Path, *, image: bool) -> Path:
    """A layer, a BatchNormalization with statistics of its own, a layer."""
    rng = np.random.default_rng(seed)
    tensors = {"W": rng.normal(size=(5, 2, 3, 3) if image else (5, 4)), "g": rng.uniform(0.5, 2, 5)}
    tensors |= {"o": rng.normal(size=5), "m": rng.normal(size=5), "v": rng.uniform(0.1, 3, 5)}
    tensors |= {"V": rng.normal(size=(20 if image else 5, 3))}
    first = op("Conv", "x W", "h") if image else op("Gemm", "x W", "h", transB=1)
    nodes = [first, op("BatchNormalization", "h g o m v", "n"), op("Relu", "n", "r"), op("Flatten", "r", "f")]
    proto = graph([*nodes, op("MatMul", "f V", "y")], tensors, (1, 2, 4, 4) if image else (1, 4))
    onnx.save(proto, folder / f"normalised{seed}.onnx")
    return folder / f"normalised{seed}.onnx"


@pytest.mark.parametrize("image", [False, True])
def test_members_keep_their_own_running_statistics(image: bool, tmp_path: Path) -> None:
    """Each sample is one member, and the bounds of a point are its outputs."""
    files = [normalised(seed, tmp_path, image=image) for seed in range(3)]
    model = model_from_proto(convert(files[0], Ensemble(tuple(files[1:])), "gaussian")[0])
    assert isinstance(model.posterior, WeightSamples)
    assert {"m", "v"} <= set(model.posterior.samples)
    x = np.random.default_rng(5).normal(size=(4, model.network.signature.input_size)).astype(np.float32)
    truth = np.array([replay(read_model(file), x) for file in files])
    params = {name: torch.tensor(stack) for name, stack in model.posterior.samples.items()}
    y = evaluate(model.network, torch.tensor(x, dtype=torch.float64), params).numpy()
    np.testing.assert_allclose(y, truth, rtol=1e-4, atol=1e-5)
    result = verify_batch(model, x, x, properties=[[(np.eye(3)[:1], np.zeros(1), np.zeros(1, bool))]], query="decision")
    np.testing.assert_allclose(result.lower, truth.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.upper, truth.mean(0), rtol=1e-4, atol=1e-5)


def test_running_statistics_are_no_gaussians(tmp_path: Path) -> None:
    proto = onnx.load(normalised(0, tmp_path, image=False))
    for name in ("m", "v"):
        with pytest.raises(PosteriorError, match="cannot carry a posterior"):
            model_from_proto(attach(proto, GaussianDiagonal({name: np.full(5, 1e-4)})))


def test_weights_that_the_file_computes_are_named(tmp_path: Path) -> None:
    tensors = {"L": np.ones((4, 5)), "W": np.ones((5, 3))}
    proto = graph([op("Exp", "L", "E"), op("MatMul", "x E", "h"), op("MatMul", "h W", "y")], tensors)
    onnx.save(proto, tmp_path / "n.onnx")
    _, notes = convert(tmp_path / "n.onnx", stated("*=0.1"), "gaussian")
    assert "computed in the file, and left without deviations: E; simplify the network first" in notes


def changed(what: str) -> onnx.ModelProto:
    proto = mlp()
    match what:
        case "an activation":
            return mlp("Tanh")
        case "a node less":
            proto.graph.node[-1].output[0] = "gone"
            proto.graph.node[-2].output[0] = "y"
        case "an attribute":
            proto.graph.node[2].attribute[0].i = 0
        case "a shape":
            proto = with_values(proto, {})
            proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones((7, 4), np.float32), "W1"))
        case "the wiring":
            proto.graph.node[6].input[0] = "a1"
    return proto


@pytest.mark.parametrize("what", ["an activation", "a node less", "an attribute", "a shape", "the wiring"])
def test_another_architecture_is_refused(what: str, net: Path, tmp_path: Path) -> None:
    onnx.save(changed(what), tmp_path / "other.onnx")
    with pytest.raises(PosteriorError, match="another architecture") as caught:
        convert(net, Ensemble((tmp_path / "other.onnx",)), "gaussian")
    assert "other.onnx" in str(caught.value)


# fits ----------------------------------------------------------------------------------------------------------------


def linear(folder: Path, rng: np.random.Generator) -> tuple[Path, Path, np.ndarray, np.ndarray]:
    """y = W x + b with noise, the least-squares network and its data."""
    x = rng.normal(size=(50, 4))
    y = x @ rng.normal(size=(4, 2)) + 0.3 * rng.normal(size=(50, 2))
    solution = np.linalg.lstsq(np.c_[x, np.ones(50)], y, rcond=None)[0]
    proto = graph([op("Gemm", "x W b", "y")], {"W": solution[:4], "b": solution[4]}, out=(1, 2))
    onnx.save(proto, folder / "linear.onnx")
    np.savez(folder / "data.npz", x=x, y=y)
    return folder / "linear.onnx", folder / "data.npz", x, y


@pytest.mark.filterwarnings("ignore")  # the libraries' own
def test_laplace_of_a_linear_network_is_the_closed_form(tmp_path: Path) -> None:
    """1 / variance = sum of x_i^2 / noise^2 + prior precision, for every weight."""
    pytest.importorskip("laplace", reason="laplace-torch (extra `convert`) is not installed")
    path, data, x, y = linear(tmp_path, np.random.default_rng(0))
    converted, notes = convert(path, FittedOn("laplace", data), "gaussian")
    model = model_from_proto(converted)
    assert isinstance(model.posterior, GaussianDiagonal)
    weights = model.network.tensors
    noise = np.mean((x @ weights["W"] + weights["b"] - y) ** 2)
    precision = 1 / model.posterior.variances["W"] - (x**2).sum(0)[:, None] / noise
    np.testing.assert_allclose(1 / model.posterior.variances["b"] - 50 / noise, precision[0], rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(precision, precision[0, 0], rtol=1e-3, atol=0.05)
    assert f"{precision[0, 0]:.2g}"[:2] in notes[0]
    assert "residuals" in notes[1]


@pytest.mark.filterwarnings("ignore")
def test_ivon_keeps_a_good_network_good(tmp_path: Path) -> None:
    pytest.importorskip("ivon", reason="ivon-opt (extra `convert`) is not installed")
    path, data, x, y = linear(tmp_path, np.random.default_rng(1))
    epochs: list[int] = []
    recipe = FittedOn("ivon", data, epochs=5, rate=1e-3, progress=epochs.append)
    model = model_from_proto(convert(path, recipe, "gaussian")[0])
    assert epochs == [1, 2, 3, 4, 5]
    assert isinstance(model.posterior, GaussianDiagonal)
    assert all((variance > 0).all() for variance in model.posterior.variances.values())
    weights = model.network.tensors
    assert np.mean((x @ weights["W"] + weights["b"] - y) ** 2) < 0.15


def test_the_module_computes_the_network(net: Path) -> None:
    network = read_model(net).network
    module = as_module(network, ALL)
    x = np.random.default_rng(0).normal(size=(5, 4))
    outputs = module(torch.tensor(x))
    np.testing.assert_allclose(outputs.detach().numpy(), replay(read_model(net), x), rtol=1e-4, atol=1e-4)
    outputs.sum().backward()
    assert [tuple(p.grad.shape) for p in module.parameters() if p.grad is not None] == [
        network.tensors[name].shape for name in ALL
    ]


BAD_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "no y": ({"x": np.zeros((3, 4))}, "'y'"),
    "features": ({"x": np.zeros((3, 5)), "y": np.zeros(3, int)}, "expected finite numbers"),
    "rows": ({"x": np.zeros((3, 4)), "y": np.zeros(2, int)}, "2 rows"),
    "classes": ({"x": np.zeros((3, 4)), "y": np.array([0, 1, 3])}, "0 to 2"),
    "fractions": ({"x": np.zeros((3, 4)), "y": np.zeros(3)}, "classes"),
    "nan": ({"x": np.full((3, 4), np.nan), "y": np.zeros(3, int)}, "finite"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_do_not_fit(name: str, net: Path, tmp_path: Path) -> None:
    arrays, message = BAD_DATA[name]
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        Data.read(tmp_path / "d.npz", read_model(net).network, "categorical")
    assert "d.npz" in str(caught.value)


def test_no_archive_and_no_library(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.npz").write_text("no")
    with pytest.raises(InputError, match="archive"):
        convert(net, FittedOn("ivon", tmp_path / "d.npz"), "categorical")
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 4)), y=np.zeros(3, int))
    for method, library in (("laplace", "laplace-torch"), ("ivon", "ivon-opt")):
        monkeypatch.setitem(__import__("sys").modules, method, None)
        with pytest.raises(OptionError, match=f"pip install {library}"):
            convert(net, FittedOn(method, tmp_path / "d.npz"), "categorical")
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 4)), y=np.zeros((3, 3)))
    with pytest.raises(UnsupportedError, match="bernoulli"):
        convert(net, FittedOn("laplace", tmp_path / "d.npz"), "bernoulli")


# folders -------------------------------------------------------------------------------------------------------------

PROPERTY = "".join(f"(declare-const X_{i} Real)\n(assert (<= X_{i} 0.1))\n(assert (>= X_{i} 0))\n" for i in range(4))
PROPERTY += "".join(f"(declare-const Y_{i} Real)\n" for i in range(3)) + "(assert (>= Y_0 {bound}))\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path / "plain"
    for part in ("onnx", "vnnlib"):
        (base / part).mkdir(parents=True)
    for seed in (0, 1):
        onnx.save(mlp(seed=seed), base / "onnx" / f"net{seed}.onnx")
    (base / "vnnlib" / "p.vnnlib").write_text(PROPERTY.format(bound=10000))
    lines = [f"onnx/net{seed}.onnx,vnnlib/p.vnnlib,30" for seed in (0, 1)]
    (base / "instances.csv").write_text("\n".join(lines) + "\n")
    return base


def test_a_folder_becomes_a_folder_that_runs(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "bnn"
    arguments = ["convert", str(folder), str(target), "--likelihood", "gaussian", "--relative-sd", "0.01"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    rows = list(csv.reader((target / "instances.csv").read_text().splitlines()))
    assert rows == [[f"onnx/net{seed}.onnx", "vnnlib/p.vnnlib", "30"] for seed in (0, 1)]
    for network, prop, _ in rows:
        result = verify(read_model(target / network), read_property(target / prop))
        assert result.verdict is Verdict.UNSAT
        assert result.p_safe is not None
    again = CliRunner().invoke(app, arguments)
    assert "0 networks converted, 2 kept" in again.stderr


def test_a_conversion_that_was_ended_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, recipe = tmp_path / "bnn", stated("*=1%")
    done: list[str] = []

    def ended(source: Path, *_rest: Any) -> Any:
        done.append(source.name)
        if len(done) == 2:
            raise KeyboardInterrupt
        return convert(source, *_rest)

    monkeypatch.setattr(benchmark, "convert", ended)
    with pytest.raises(KeyboardInterrupt):
        convert_benchmark(folder, target, recipe, "gaussian", described="1 %")
    summary = convert_benchmark(folder, target, recipe, "gaussian", described="1 %")
    assert (summary.converted, summary.kept) == (1, 1)
    assert done == ["net0.onnx", "net1.onnx", "net1.onnx"]
    other = convert_benchmark(folder, target, stated("*=2%"), "gaussian", described="2 %")
    assert (other.converted, other.kept) == (2, 0)
    onnx.save(mlp(seed=7), folder / "onnx" / "net0.onnx")  # another network under the same name
    assert convert_benchmark(folder, target, stated("*=2%"), "gaussian", described="2 %").converted == 1
    assert json.loads((target / "conversion.json").read_text())["how"]["recipe"] == "2 %"


def test_folders_that_are_refused(folder: Path, tmp_path: Path) -> None:
    def attempt(target: Path = tmp_path / "t", **options: Any) -> benchmark.ConvertedBenchmark:
        return convert_benchmark(folder, target, stated("*=1%"), "gaussian", described="", **options)

    with pytest.raises(OptionError, match="folder of its own"):
        attempt(folder)
    (folder / "onnx" / "net1.onnx").unlink()
    with pytest.raises(InputError, match="--skip-missing"):
        attempt()
    assert attempt(skip_missing=True).left_out == 1
    (folder / "instances.csv").write_text("onnx/net0.onnx,../plain/vnnlib/p.vnnlib,3\n")
    with pytest.raises(InputError, match="leave"):
        attempt()
    (folder / "instances.csv").unlink()
    with pytest.raises(InputError, match=r"no instances\.csv"):
        attempt()


@pytest.mark.parametrize(
    "options",
    [[], ["--sd", "1", "--relative-sd", "1"], ["--fit", "ivon"], ["--sd", "1", "--member", "x"], ["--data", "x"]],
)
def test_options_that_contradict(options: list[str], net: Path, tmp_path: Path) -> None:
    base = ["convert", str(net), str(tmp_path / "o.onnx"), "--likelihood", "gaussian"]
    outcome = CliRunner().invoke(app, [*base, *options])
    assert outcome.exit_code == 2
    assert "error:" in outcome.stderr
    assert CliRunner().invoke(app, [*base[:3], "--sd", "1"]).exit_code == 2  # the likelihood is required


# the shared corpus ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "prop", "limit"), [("5_9", 3, 1.0), ("2_9", 8, 0.0)])
def test_acas_tends_to_the_deterministic_verdict(network: str, prop: int, limit: float, shared: Path) -> None:
    """As the sd goes to 0, P_safe is proved to be near 1 (published unsat) or near 0 (published sat)."""
    acas = shared / "corpus" / "acasxu"
    violation = read_property(acas / f"prop_{prop}.vnnlib")
    source = acas / f"ACASXU_run2a_{network}_batch_2000.onnx"
    gaps = []
    for relative, seconds in ((1e-3, 2), (1e-6, 40)):
        model = model_from_proto(convert(source, Stated((Spread(relative, True),)), "gaussian")[0])
        p_safe = verify(model, violation, tau_unsafe=1e-3, timeout=seconds).p_safe
        assert p_safe is not None
        gaps.append(max(abs(p_safe.lower - limit), abs(p_safe.upper - limit)))
    assert gaps[1] < 1e-6 <= gaps[0]
