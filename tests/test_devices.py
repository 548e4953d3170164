"""The whole street on a CUDA device: the real one where there is one, else one that is pretended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bnn_vnnlib import OptionError, Result, read_model, read_property, verify, verify_batch
from bnn_vnnlib.methods.safety.large_variance.rows import LargeVarianceBounds
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.problem.problem import from_labels
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.devices import EMULATION, find_device, plain_convolution
from support.builders import random_model
from support.large_variance import dense
from support.pretended_device import pretended_device

DIGITS = Path(__file__).resolve().parents[1] / "benchmarks" / "digits"
QUESTIONS = [
    ("digits_vi_mlp", "digits_vi_mlp_robust_313_0.02", "probabilistic"),
    ("digits_vi_mlp", "digits_vi_mlp_robust_313_0.12", "probabilistic"),
    ("digits_vi_mlp", "digits_vi_mlp_decision_313_0.02", "decision"),
    ("digits_vi_conv", "digits_vi_conv_robust_313_0.02", "probabilistic"),
    ("digits_ensemble", "digits_ensemble_robust_313_0.08", "probabilistic"),
    ("digits_ensemble", "digits_ensemble_decision_313_0.03", "decision"),
    ("diabetes_vi_tanh", "diabetes_vi_tanh_interval_36_0.2", "probabilistic"),
    ("diabetes_vi_tanh", "diabetes_vi_tanh_decision_36_0.3", "decision"),
    ("diabetes_vi_tanh", "diabetes_vi_tanh_interval_36_0.6", "deterministic"),
]


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    if torch.cuda.is_available():
        yield torch.device("cuda:0")
        return
    with pretended_device() as device:
        yield device


def _decide(model: str, prop: str, query: str, device: str | None) -> Result:
    network = read_model(DIGITS / "onnx" / f"{model}.onnx")
    return verify(network, read_property(DIGITS / "vnnlib" / "1.0" / f"{prop}.vnnlib"), query=query, device=device)


@pytest.mark.parametrize(("model", "prop", "query"), QUESTIONS)
def test_a_cuda_device_decides_as_the_cpu_does(model: str, prop: str, query: str, cuda: torch.device) -> None:
    found = _decide(model, prop, query, "cuda")
    expected = _decide(model, prop, query, None)
    assert found.verdict == expected.verdict
    for one, other in ((found.p_safe, expected.p_safe), (found.decision, expected.decision)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            np.testing.assert_allclose(one.lower, other.lower, atol=1e-6)
            np.testing.assert_allclose(one.upper, other.upper, atol=1e-6)


@pytest.mark.parametrize(("widths", "rule"), [([2, 5, 4, 1], "mean"), ([1, 4, 4, 1], "mean"), ([2, 5, 1], "median")])
@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_laws_are_inverted_on_the_device(widths: list[int], rule: str, radius: float, cuda: torch.device) -> None:
    """Characteristic functions, their inversion and what regression makes of it."""
    net, x = random_model(1, widths, spread=0.3), np.zeros((2, widths[0]))
    found, expected = (
        verify_batch(net, x - radius, x + radius, query="decision", likelihood="gaussian", rule=rule, device=device)
        for device in ("cuda", None)
    )
    np.testing.assert_allclose(found.lower, expected.lower, atol=1e-10)
    np.testing.assert_allclose(found.upper, expected.upper, atol=1e-10)


@pytest.mark.parametrize(("widths", "radius"), [((2, 5, 3), 0.0), ((2, 5, 3), 0.02), ((2, 3, 3, 2), 0.02)])
def test_large_variances_are_bounded_on_the_device(widths: tuple[int, ...], radius: float, cuda: torch.device) -> None:
    """Rows over boxes and at points, pairs of rows, two hidden layers as one: nothing is brought to the CPU."""
    rng = np.random.default_rng(0)
    layers = [dense(rng, out, into, spread=0.2) for into, out in itertools.pairwise(widths)]
    x = torch.tensor(rng.normal(size=(1, 2)))

    def bounds(device: torch.device) -> list[torch.Tensor]:
        there = (DenseLayer(**{name: part.to(device) for name, part in vars(layer).items()}) for layer in layers)
        wide, at = LargeVarianceBounds(DenseChain.relu(*there), Deadline()), x.to(device)
        asked = from_labels(at - radius, at + radius, torch.zeros(1, dtype=torch.long, device=device), widths[-1])
        assert wide.pays(asked).shape == (1,)
        return [found.cpu() for found in (wide.item_failures(asked), wide.unsafe(asked, at, at))]

    for found, expected in zip(bounds(cuda), bounds(torch.device("cpu")), strict=True):
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda there: there + torch.ones(3),
        lambda there: torch.where(there > 0, there, torch.zeros(3)),
        lambda there: torch.ones(3)[torch.tensor([0], device=there.device)],
        lambda there: torch.cat([there, torch.ones(3)]),
    ],
)
def test_the_device_refuses_tensors_of_the_cpu(mixed, cuda: torch.device) -> None:
    with pytest.raises(RuntimeError):
        mixed(torch.tensor([1.0, 2.0, 3.0], device=cuda))


def test_the_device_is_not_read_into_numpy(cuda: torch.device) -> None:
    there = torch.tensor([1.0, 2.0], device=cuda)
    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()
    assert (there * 2).cpu().numpy().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "mps", "meta", "cuda:99"])
def test_a_device_that_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        find_device(name)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OptionError, match="0 CUDA devices"):
        find_device("cuda")


def test_emulated_products_are_refused(monkeypatch: pytest.MonkeyPatch, cuda: torch.device) -> None:
    monkeypatch.setenv(EMULATION, "1")
    with pytest.raises(OptionError, match=EMULATION):
        find_device("cuda")
    assert find_device("cpu").type == "cpu"


def test_convolutions_on_cuda_leave_cudnn_alone(cuda: torch.device) -> None:
    before = torch.backends.cudnn.enabled
    with plain_convolution(cuda):
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled == before
