"""from_torch, on layers of our own: the mapping, the comparison with the module, and every refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_layers import OWN, DrawnConv, DrawnLinear, DrawnRecurrent, Noisy, OtherLinear, WithKl
from torch import nn

from bnn_vnnlib import PosteriorError, UnsupportedError, read_model, verify
from bnn_vnnlib.adapters import Adapted, Layout, from_torch
from bnn_vnnlib.errors import InputError, ModelError, OptionError
from bnn_vnnlib.model import GaussianDiagonal
from bnn_vnnlib.vnnlib import parse_property


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(3, 4)


def adapted(module: nn.Module, x: torch.Tensor, **options: object) -> Adapted:
    return from_torch(module, x, likelihood="categorical", layouts=[OWN], **options)


def variances(result: Adapted) -> dict[str, np.ndarray]:
    assert isinstance(result.model.posterior, GaussianDiagonal)
    return dict(result.model.posterior.variances)


def test_means_and_deviations_are_the_modules_and_the_rest_stays_deterministic(x, tmp_path):
    net = nn.Sequential(
        DrawnLinear(4, 5, -2.0), nn.ReLU(), nn.Linear(5, 6), nn.Dropout(), DrawnLinear(6, 3, bias=False)
    )
    result = adapted(net, x)
    assert set(variances(result)) == {"0.weight", "0.bias", "4.weight"}
    np.testing.assert_allclose(variances(result)["0.weight"], np.log1p(np.exp(-2)) ** 2, rtol=1e-6)
    np.testing.assert_array_equal(result.model.network.tensors["0.weight"], net[0].weight_mu.detach().numpy())
    np.testing.assert_array_equal(result.model.network.tensors["2.weight"], net[2].weight.detach().numpy())
    assert result.agreement is not None
    assert result.agreement.draws == 1000
    assert result.agreement.errors <= result.agreement.allowed < 6
    again = read_model(result.write(tmp_path / "bnn.onnx"))
    np.testing.assert_array_equal(again.posterior.variances["0.weight"], variances(result)["0.weight"])
    assert again.likelihood == "categorical"


def test_the_result_is_verified(x):
    result = adapted(nn.Sequential(DrawnLinear(4, 5, -6.0), nn.ReLU(), DrawnLinear(5, 2, -6.0)), x)
    declared = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "X_2", "X_3", "Y_0", "Y_1"))
    box = "".join(f"(assert (<= X_{i} 0.01))(assert (>= X_{i} 0.0))" for i in range(4))
    safe = verify(result.model, parse_property(f"{declared}{box}(assert (>= Y_0 100))"), timeout=120)
    assert safe.verdict.value == "unsat"
    assert safe.p_safe.lower > 0.99


def test_tensors_of_equal_numbers_stay_apart(x):
    # an exporter that merges the two biases of zeros would make one weight of two
    result = adapted(nn.Sequential(DrawnLinear(4, 4), nn.ReLU(), DrawnLinear(4, 4)), x, draws=0)
    assert {"0.bias", "2.bias"} <= set(variances(result))


def test_convolutions_networks_with_a_kl_term_and_single_layers(x):
    images = torch.randn(2, 1, 5, 5)
    net = nn.Sequential(DrawnConv(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), DrawnLinear(18, 2))
    assert set(variances(adapted(net, images))) == {"0.weight", "4.weight", "4.bias"}
    assert set(variances(adapted(WithKl(DrawnLinear(4, 2)), x))) == {"net.weight", "net.bias"}
    assert set(variances(adapted(DrawnLinear(4, 2), x))) == {"weight", "bias"}


def test_the_module_its_modes_and_the_generator_stay_as_they_are(x):
    net = nn.Sequential(DrawnLinear(4, 5), nn.BatchNorm1d(5), DrawnLinear(5, 3))
    net[1].eval()
    net(x)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(11)
    adapted(net, x, draws=200)
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(11)))
    assert [part.training for part in net.modules()] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_scale_that_means_something_else_is_found_by_the_comparison(x):
    with pytest.raises(PosteriorError, match=r"another one: the variance of output .* standard errors"):
        adapted(nn.Sequential(OtherLinear(4, 5), nn.Tanh(), OtherLinear(5, 3)), x)
    right = Layout("drawn_layers", "{}_mu", "{}_rho", "exp")
    result = from_torch(OtherLinear(4, 3), x, likelihood=None, layouts=[right])
    np.testing.assert_allclose(variances(result)["weight"], np.exp(-2), rtol=1e-6)


def test_without_comparison_a_note_says_so(x):
    assert "not compared" in adapted(DrawnLinear(4, 3), x, draws=0).notes[0]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = DrawnLinear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x))


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = DrawnLinear(4, 3), DrawnLinear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = DrawnLinear(4, 3)
        self.last = self.layer(torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def tied() -> nn.Module:
    net = nn.Sequential(DrawnLinear(4, 4), DrawnLinear(4, 4))
    net[1].weight_mu = net[0].weight_mu
    return net


def frozen() -> nn.Module:
    layer = DrawnLinear(4, 3)
    layer.frozen = True
    return nn.Sequential(layer)


def without_scale() -> nn.Module:
    layer = DrawnLinear(4, 3)
    del layer.weight_rho
    return layer


def odd_scale() -> nn.Module:
    layer = DrawnLinear(4, 3)
    layer.weight_rho = nn.Parameter(torch.zeros(1))
    return layer


@pytest.mark.parametrize(
    ("net", "error", "says"),
    [
        (Twice(), PosteriorError, "layer: runs more than once"),
        (Keeps(), ModelError, "cannot be copied"),
        (tied(), PosteriorError, "node 1: shares a parameter with 0"),
        (frozen(), PosteriorError, "node 0: is frozen"),
        (without_scale(), PosteriorError, "has weight_mu but no weight_rho"),
        (odd_scale(), PosteriorError, r"weight_rho has shape \(1,\), expected \(3, 4\)"),
        (DrawnLinear(4, 3).bfloat16(), UnsupportedError, "weight is of type torch.bfloat16"),
        (nn.Linear(4, 3), PosteriorError, "no layer of the module draws"),
        (nn.Sequential(DrawnLinear(4, 2), DrawnRecurrent()), UnsupportedError, "DrawnRecurrent are not known"),
        (nn.Sequential(DrawnLinear(4, 2), Noisy()), UnsupportedError, "still draws random numbers"),
        (nn.Sequential(DrawnLinear(7, 2)), OptionError, r"cannot be run on x of shape \(3, 4\)"),
        (nn.Sequential(DrawnLinear(4, 2), nn.LSTM(2, 2)), InputError, "LSTM"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_cannot_be_taken_over_is_named(net, error, says, x):
    with pytest.raises(error, match=says):
        adapted(net, x)


def test_a_layer_that_does_not_run_is_left_out_with_a_note(x):
    result = adapted(Idle(), x)
    assert set(variances(result)) == {"used.weight", "used.bias"}
    assert any("idle does not run" in note for note in result.notes)


def test_a_weight_that_the_exporter_changes_is_refused(x, monkeypatch):
    from bnn_vnnlib.adapters import torch_layers

    real = torch_layers.exported

    def changed(module: nn.Module, inputs: torch.Tensor) -> object:
        with torch.no_grad():
            module.weight.mul_(2)
        return real(module, inputs)

    monkeypatch.setattr(torch_layers, "exported", changed)
    with pytest.raises(ModelError, match="node weight: was changed by the exporter"):
        adapted(DrawnLinear(4, 3), x)


def test_layouts_are_checked():
    with pytest.raises(OptionError, match="'log' is unknown"):
        Layout("m", "{}_mu", "{}_rho", "log")
    with pytest.raises(OptionError, match=r"need \{\}"):
        Layout("m", "mu", "rho", "exp")


def test_adapters_import_nothing_heavy():
    root = Path(__file__).resolve().parents[2]
    code = "import sys, bnn_vnnlib.adapters; print(sorted({'torch', 'onnx', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
