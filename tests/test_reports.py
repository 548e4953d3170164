"""Small inputs of the kind that people report, through the command line: what each should come to.

The files lie in ../shared/cases/reports, and EXPECTED.md there says the same in words. A row whose mending belongs to
other work fails on purpose; the reason names that work, which takes the mark away.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bnn_vnnlib import read_model, verify_batch
from bnn_vnnlib.cli import app
from bnn_vnnlib.model import WeightSamples, replay
from bnn_vnnlib.network.evaluate import evaluate
from support.command import call

EXPORTS = ("e_plain_bnn", "e_gather_bnn", "e_transpose_bnn")


@dataclass(frozen=True)
class Row:
    """One report.

    Attributes
    ----------
    command : what is typed, in the folder of the files; OUT is a folder to write into. Of several commands (`;`) all
        but the last must succeed
    says : a pattern of what the last one prints, to standard output and then to standard error
    codes : the exit codes that it may have
    fails : why the row is not met yet
    """

    name: str
    command: str
    says: str
    codes: tuple[int, ...] = (0,)
    fails: str = ""


REFUSED, EITHER = (2,), (0, 2)
UNSAT = r"\Aunsat$"
FAR = "p2_3.vnnlib --timeout 60"
"""Y_0 >= 1000 on [-1, 1]^2: far from what any of these networks can reach."""
ENSEMBLE = "--likelihood categorical --member g01_member1.onnx --member g01_member2.onnx"
SPREAD = "--sd 0.01 --likelihood gaussian"

ROWS = [
    # nodes of constants only
    *(
        Row(name, f"verify {name}.onnx {FAR}", UNSAT)
        for name in (
            "k_wn_ts", "k_pos_ts", "j01_exp_of_constant_weight", "j02_softplus_weight", "j03_weightnorm_g_v",
            "j05_relu_weight", "j06_pow2_weight", "j10_softmax_weight", "d13_weight_only_dq", "d15_if_constant",
        )
    ),
    # what other exporters write
    Row("d12_local_function", f"verify d12_local_function.onnx {FAR}", UNSAT),
    Row("d23_einsum_dense", f"verify d23_einsum_dense.onnx {FAR}", UNSAT),
    Row("o5_skl_pipe_reg", "inspect o5_skl_pipe_reg.onnx", r"output +variable float32 \[1, 1\]"),
    Row("o1_skl_cls_zipmap", "inspect o1_skl_cls_zipmap.onnx", r"output_label \(int64\).*out_activations_result"),
    Row("o1_skl_cls_zipmap, verified", f"verify o1_skl_cls_zipmap.onnx {FAR}", UNSAT),
    Row("d19_int64_input", f"verify d19_int64_input.onnx {FAR}", "input of type int64; only float", REFUSED),
    # outputs that depend on no input
    *(Row(name, f"verify {name}.onnx {FAR}", UNSAT) for name in ("k_kl_ts", "k_kl_dyn")),
    Row("d20_unity_const_outputs, declared", "verify f13_unity.vnnlib d20_unity_const_outputs.onnx", UNSAT),
    Row("d20_unity_const_outputs, not declared", f"verify d20_unity_const_outputs.onnx {FAR}", UNSAT),
    # commands that write
    Row("k_wn_ts, simplified", "simplify k_wn_ts.onnx OUT/s.onnx --tool onnxruntime; inspect OUT/s.onnx",
        "2 dense layers"),
    Row("g08_bt_kl_ts", "recover g08_bt_kl_ts.onnx OUT/r.onnx; inspect OUT/r.onnx", r"posterior +gaussian_diag"),
    Row("g08_bt_kl_ts, verified", f"recover g08_bt_kl_ts.onnx OUT/r.onnx; verify OUT/r.onnx {FAR}", UNSAT),
    Row("g01_member0..2", f"convert g01_member0.onnx OUT/e.onnx {ENSEMBLE}; inspect OUT/e.onnx", "3 samples"),
    Row("n3.counterexample", "check-witness id2.onnx m_id_sat.vnnlib n3.counterexample.gz", r"\Avalid"),
    # the exact range of the last activation
    *(
        Row(f"{name}, {query}", f"convert {name}.onnx OUT/c.onnx {SPREAD};"
            f"verify p1_neg.vnnlib OUT/c.onnx --query {query} --timeout 10", UNSAT)
        for name in ("l_relu_unstable", "l_relu_dead") for query in ("probabilistic", "decision", "deterministic")
    ),
    # readings other than onnxruntime's
    Row("maxpool_valid_ceil", "verify maxpool_valid_ceil.vnnlib maxpool_valid_ceil.onnx --timeout 10",
        r"\Asat$|ceil_mode", EITHER),
    Row("pad_wrap", "verify pad_wrap2.vnnlib pad_wrap.onnx --timeout 10", r"\Asat$|wrap", EITHER),
    Row("slice_neg", "verify slice_neg.vnnlib slice_neg.onnx --timeout 10", UNSAT),
    Row("declared_shape", "inspect declared_shape.onnx", r"shape.*\[1, 4\]|ceil_mode", REFUSED),
    # files that are something else, and other work
    Row("e20_marabou_txt", "verify e20_marabou_txt.vnnlib id2.onnx", "Marabou's text format", REFUSED),
    Row("d07_mcdropout_dynamo, certain", f"verify d07_mcdropout_dynamo.onnx {FAR}", "MC dropout", REFUSED),
    Row("d09_radial_ts, certain", f"verify d09_radial_ts.onnx {FAR}", "not a Gaussian posterior", REFUSED),
    Row("d07_mcdropout_dynamo", f"verify d07_mcdropout_dynamo.onnx {FAR} --guarantee statistical",
        r"\Aunknown$.*unsat +with confidence 0.999999"),
    Row("d09_radial_ts", f"verify d09_radial_ts.onnx {FAR} --guarantee statistical",
        r"\Aunknown$.*unsat +with confidence 0.999999"),
    Row("k_het_interval_b", "verify p_hetv.vnnlib k_het_interval_b.onnx --query decision --timeout 10",
        r"decision\[1\] +\[-?\d"),
    Row("f04_monotone_equal", "verify f04_monotone_equal.vnnlib --network f=id2.onnx --timeout 10", UNSAT),
]  # fmt: skip


def row(one: Row) -> object:
    mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=one.fails)
    return pytest.param(one, id=one.name, marks=[mark] if one.fails else [])


@pytest.fixture
def reports(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shared / "cases" / "reports"
    if not folder.is_dir():
        pytest.skip("../shared/cases/reports is not here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "400")
    return folder


@pytest.mark.parametrize("one", [row(one) for one in ROWS])
def test_report(one: Row, reports: Path, tmp_path: Path) -> None:
    *first, last = (shlex.split(command.replace("OUT", str(tmp_path))) for command in one.command.split(";"))
    for arguments in first:
        call(*arguments)
    outcome = CliRunner().invoke(app, last)
    assert outcome.exit_code in one.codes, outcome.stderr
    assert re.search(one.says, f"{outcome.stdout}\n{outcome.stderr}", re.MULTILINE | re.DOTALL)


def test_every_file_is_in_the_table(reports: Path) -> None:
    names = {path.name.split(".")[0] for path in reports.iterdir()}
    text = " ".join(one.command for one in ROWS)
    assert {name for name in names if name not in text} == {"EXPECTED", "p1_pos", *EXPORTS}


def test_members_keep_their_own_statistics(reports: Path, tmp_path: Path) -> None:
    """Three samples, each the network of one member: its weights and its running mean and variance."""
    files = [f"g01_member{i}.onnx" for i in range(3)]
    call("convert", files[0], tmp_path / "e.onnx", *shlex.split(ENSEMBLE))
    model = read_model(tmp_path / "e.onnx")
    assert isinstance(model.posterior, WeightSamples)
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32).astype(np.float64)
    params = {name: torch.tensor(values) for name, values in model.posterior.samples.items()}
    y = evaluate(model.network, torch.tensor(x), params).numpy()
    assert y.shape == (3, 20, 3)
    for found, file in zip(y, files, strict=True):
        np.testing.assert_allclose(found, replay(read_model(file), x), rtol=1e-5, atol=1e-5)


def test_one_function_three_exports(reports: Path) -> None:
    """The same bounds, however the inputs come in."""
    x = np.array([[0.5, -0.3, 0.8, 0.1]])
    for query in ("probabilistic", "decision"):
        found = []
        for name in EXPORTS:
            model = read_model(f"{name}.onnx")
            label = replay(model, x).argmax(-1)
            result = verify_batch(model, x - 0.02, x + 0.02, labels=label, query=query)
            found.append(np.concatenate([np.ravel(result.lower), np.ravel(result.upper)]))
        for bounds in found[1:]:
            np.testing.assert_array_equal(bounds, found[0])
