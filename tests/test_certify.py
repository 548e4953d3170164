"""One call from a network of any kind to a table and a picture: the bounds as by hand, and honest views of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bnn_vnnlib import BatchResult, Query, Verdict, certify, read_model, to_torch, verify_batch
from bnn_vnnlib.adapters import from_samples
from bnn_vnnlib.errors import InputError, OptionError, PosteriorError
from bnn_vnnlib.model import GaussianDiagonal, model_from_proto, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.posteriors.torch_module import cross_check
from support.command import call

DIGITS = Path(__file__).resolve().parents[1] / "benchmarks" / "digits" / "onnx"


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def deviations(net: nn.Module, size: float = 1e-3) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(p, size) for name, p in net.named_parameters()}


def test_newcomer_from_a_torch_module_to_a_table_and_a_figure(tmp_path):
    """Ten lines, imports included."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    script = f"""
import torch
from torch import nn
from bnn_vnnlib import certify
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
sd = {{name: 0.001 * torch.ones_like(p) for name, p in net.named_parameters()}}
result = certify(net, torch.randn(5, 4), eps=0.01, posterior=sd)
result.to_dataframe().to_csv({str(tmp_path / "table.csv")!r})
result.plot().figure.savefig({str(tmp_path / "figure.png")!r})
"""
    assert len(script.strip().splitlines()) <= 10
    exec(script, {"__name__": "newcomer"})
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 6
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_bounds_as_by_hand(net, x):
    y = net(x).argmax(1)
    found = certify(net, x, y, eps=[0.02, 0.0, 0.02, 0.02], posterior=deviations(net))
    proto = from_samples(net, {"0.weight": net[0].weight.detach()[None]}, likelihood="categorical", x=x).proto
    names = {name: (p.detach().numpy() * 0 + 1e-3) ** 2 for name, p in net.named_parameters()}
    model = model_from_proto(proto)
    by_hand = verify_batch(
        type(model)(model.network, GaussianDiagonal(names), "categorical", None, model.onnx_bytes),
        x.double().numpy() - np.array([0.02, 0, 0.02, 0.02]), x.double().numpy() + np.array([0.02, 0, 0.02, 0.02]), y,
    )  # fmt: skip
    assert found.lower == pytest.approx(by_hand.lower, rel=1e-9)
    assert (found.verdicts == by_hand.verdicts).all()
    assert (found.labels == y.numpy()).all()


def test_the_box_holds_every_input_within_eps(net, x, monkeypatch):
    """In exact arithmetic: the interval is not a hair smaller than x - eps to x + eps, cut to the valid range."""
    from fractions import Fraction

    import bnn_vnnlib.certification as module

    seen = []
    monkeypatch.setattr(module, "verify_batch", lambda model, lower, upper, **_: seen.append((lower, upper)))
    eps, low, high = 0.1, -2.5, float(x.max())
    certify(net, x, eps=eps, clip=(low, high))
    for row, lower, upper in zip(x.double().numpy(), *seen[0], strict=True):
        for value, a, b in zip(row, lower, upper, strict=True):
            assert Fraction(a) <= max(Fraction(value) - Fraction(eps), Fraction(low))
            assert Fraction(b) >= min(Fraction(value) + Fraction(eps), Fraction(high))
            assert low <= a <= b <= high


def test_every_kind_of_posterior(net, x):
    others = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        others.append(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in (net, *others)])
        for name, _ in net.named_parameters()
    }
    one, two = certify(net, x, eps=0.01, posterior=others), certify(net, x, eps=0.01, posterior=stacked)
    assert one.query is two.query is Query.PROBABILISTIC
    assert one.lower == pytest.approx(two.lower)
    assert set(np.round(3 * one.lower).tolist()) <= {0, 1, 2, 3}  # of three networks
    plain = certify(net, x, eps=0.0)
    assert plain.query is Query.DETERMINISTIC
    assert (plain.verdicts == Verdict.UNSAT).all()
    file = certify(DIGITS / "digits_vi_mlp.onnx", np.full((2, 8, 8), 0.5), eps=0.0)
    assert file.query is Query.PROBABILISTIC
    again = certify(read_model(DIGITS / "digits_vi_mlp.onnx"), np.full((2, 64), 0.5), eps=0.0)
    assert (again.lower == file.lower).all()


def test_regression_stays_near(x):
    torch.manual_seed(3)
    net = nn.Linear(4, 1)
    y = net(x).detach()[:, 0] + torch.tensor([0.0] * 5 + [5.0])  # the last one is far from what the network says
    found = certify(net, x, y, eps=0.01, delta=0.5, posterior=deviations(net), query="decision")
    assert found.verdicts.tolist() == [Verdict.UNSAT] * 5 + [Verdict.SAT]
    assert (found.lower <= net(x).detach().numpy() + 1e-6).all()


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"posterior": {"0.wieght": np.ones((8, 4))}}, PosteriorError, "did you mean '0.weight'"),
        ({"posterior": {"0.weight": np.ones((4, 8))}}, PosteriorError, "has shape (4, 8), expected (8, 4)"),
        ({"posterior": {"0.bias": -np.ones(8)}}, PosteriorError, "not negative"),
        (
            {"posterior": {"0.weight": np.ones((3, 8, 4)), "0.bias": np.ones((2, 8))}},
            PosteriorError,
            "the same number of samples",
        ),
        ({"posterior": {"0.weight": np.ones((3, 8, 4)), "0.bias": np.ones(8)}}, PosteriorError, "the same number"),
        ({"eps": -1}, OptionError, "eps must be"),
        ({"eps": [0.1, 0.2]}, OptionError, "eps must be one number, or 4"),
        ({"x": np.zeros((2, 5))}, InputError, "(1x5 and 4x8)"),
        ({"net": DIGITS / "digits_vi_mlp.onnx"}, InputError, "N inputs of 64 numbers"),
        ({"y": [0, 1]}, InputError, "6 integers"),
        ({"clip": (0, 0.1)}, InputError, "outside of the valid range"),
        ({"delta": -1}, OptionError, "delta must be"),
        ({"epsilon": 0.1}, OptionError, "did you mean 'eps'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(net, x, change, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        certify(**{"net": net, "x": x, "eps": 0.01, **change})


# Views


def batch(**change: object) -> BatchResult:
    values = {
        "lower": np.array([0.9999999, 0.123456789, np.nan, 0.0]), "upper": np.array([1.0, 0.2, np.nan, 0.987654321]),
        "verdicts": np.array([Verdict.UNSAT, Verdict.SAT, Verdict.UNKNOWN, Verdict.TIMEOUT], dtype=object),
        "points": np.zeros((4, 1)), "method": "tails", "seconds": 1.5, "query": Query.PROBABILISTIC, "tau_safe": 0.95,
        "tau_unsafe": 0.9, "labels": np.array([0, 1, -1, 1]),
        "lower_by": np.array(["tails", "tails", None, "<script>"], dtype=object),
    }  # fmt: skip
    return BatchResult(**{**values, **change})  # type: ignore[arg-type]


def test_the_summary_counts_and_rounds_outward():
    said = batch().summary()
    lines = {line.split("  ")[0]: line for line in said.splitlines()}
    assert "3" in lines["inputs"]
    assert "1 more were skipped" in lines["inputs"]
    assert "P_safe >= 0.95" in lines["unsat"]
    assert "P_safe < 0.9" in lines["sat"]
    assert "33.33 to 66.67 %" in lines["certified share"]  # 1/3 down, 2/3 up
    assert "0.3744 to 0.7293" in lines["mean P_safe"]  # .374485 and .729218
    table = batch().to_latex()
    assert table.startswith("\\begin{tabular}")
    assert "33.33 to 66.67 \\%" in table
    assert "P_safe" not in table


def test_a_notebook_shows_bounds_rounded_outward_and_escapes_names():
    page = batch()._repr_html_()
    assert "<td>0.999999</td><td>1</td>" in page  # .9999999 is not shown as 1
    assert "<td>0.123456</td><td>0.2</td>" in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    many = batch(
        **{
            name: np.repeat(getattr(batch(), name), 5, axis=0)
            for name in ("lower", "upper", "verdicts", "points", "labels", "lower_by")
        }
    )
    assert "and 10 more inputs" in many._repr_html_()


def test_the_table_has_every_input():
    pytest.importorskip("pandas", reason="pandas is not installed")
    table = batch().to_dataframe()
    assert table["verdict"].tolist() == ["unsat", "sat", "unknown", "timeout"]
    assert table["label"].tolist() == [0, 1, -1, 1]
    assert np.array_equal(table["lower"].to_numpy(), batch().lower, equal_nan=True)
    wide = batch(query=Query.DECISION, lower=np.zeros((4, 2)), upper=np.ones((4, 2)))
    assert {"lower_0", "upper_0", "lower_1", "upper_1"} <= set(wide.to_dataframe().columns)
    assert json.loads(table.to_json())


def test_the_picture_shows_what_was_proved():
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    axes = batch().plot()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["proved to hold (1)", "proved to fail (1)", "open (1)"]
    assert sorted(line.get_ydata()[0] for line in axes.lines) == [0.9, 0.95]
    green = axes.collections[0].get_segments()[0]
    assert green[0, 1] <= 0.9999999
    assert green[1, 1] >= 1.0
    with pytest.raises(OptionError, match="no single number to plot"):
        batch(query=Query.DECISION, lower=np.zeros((4, 2)), upper=np.ones((4, 2)), labels=None).plot()
    lead = batch(query=Query.DECISION, lower=np.zeros((4, 2)), upper=np.ones((4, 2)),
                 row_lower=np.full((4, 1), -0.25), row_upper=np.full((4, 1), 0.5)).plot()  # fmt: skip
    assert lead.get_ylabel().startswith("lead of the label")
    matplotlib.pyplot.close("all")


# As a torch module


@pytest.fixture(scope="module")
def as_module():
    pytest.importorskip("onnx2torch", reason="onnx2torch is not installed (the extra torch-tools)")


@pytest.mark.parametrize("name", ["digits_vi_mlp", "digits_vi_conv", "digits_ensemble"])
@pytest.mark.filterwarnings("ignore")
def test_a_module_computes_and_draws_what_the_file_says(as_module, name):
    model = read_model(DIGITS / f"{name}.onnx")
    module = to_torch(model)
    shape = model.network.signature.inputs[0].shape
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    flat = x.double().reshape(1, -1)

    def ours(weights: dict | None = None) -> np.ndarray:
        return np.asarray(evaluate(model.network, flat, weights, softmax=True).reshape(-1))

    with torch.no_grad():
        assert module(x).numpy().ravel() == pytest.approx(ours(), abs=1e-5)
        drawn = sample(model.network, model.posterior, 1, torch.Generator().manual_seed(7))
        assert module.sample(seed=7)(x).numpy().ravel() == pytest.approx(ours(drawn), abs=1e-5)
        assert np.abs(ours(drawn) - ours()).max() > 1e-3  # the draw is another network
        assert module.reset()(x).numpy().ravel() == pytest.approx(ours(), abs=1e-5)
    assert {f"graph.{n}" for n, _ in module.graph.named_parameters()} >= set(module.weights)


@pytest.mark.filterwarnings("ignore")
def test_two_readings_are_compared(as_module, monkeypatch):
    found = cross_check(read_model(DIGITS / "digits_vi_conv.onnx"))
    assert found.agrees
    assert 0 <= found.difference < 1e-4 < found.scale
    said = call("inspect", DIGITS / "digits_vi_mlp.onnx", "--cross-check")
    assert "agree" in said.stderr
    assert "2 dense layers, 32 ReLU" in said.stdout
    import bnn_vnnlib.network.evaluate as module

    real = module.evaluate  # a reading that takes the outputs in another order
    monkeypatch.setattr(module, "evaluate", lambda *args, **more: real(*args, **more).flip(-1))
    assert not cross_check(read_model(DIGITS / "digits_vi_mlp.onnx")).agrees
    assert "DIFFER" in call("inspect", DIGITS / "digits_vi_mlp.onnx", "--cross-check", code=1).stderr
