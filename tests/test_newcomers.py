"""People who never saw VNN-LIB or this program, as scripts: each gets from what they have to what they want.

The first, from a requirement to a certificate in three commands, is in test_requirements.py; the second, from a torch
module to a table and a figure in ten lines, in test_certify.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.command import call

DIGITS = Path(__file__).resolve().parents[1] / "benchmarks" / "digits"


def test_from_a_benchmark_folder_to_a_comparison_page_in_two_commands(tmp_path):
    """The BNN beside the network of its means; the page says who proved what, and where they differ."""
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    for name in ("onnx", "vnnlib"):
        (tmp_path / "bench" / name).mkdir(parents=True)
    shutil.copy(DIGITS / "onnx" / "digits_vi_mlp.onnx", tmp_path / "bench" / "onnx")
    names = ["digits_vi_mlp_robust_313_0.02.vnnlib", "digits_vi_mlp_robust_291_0.06.vnnlib"]
    for name in names:
        shutil.copy(DIGITS / "vnnlib" / "1.0" / name, tmp_path / "bench" / "vnnlib")
    table = "".join(f"onnx/digits_vi_mlp.onnx,vnnlib/{name},20\n" for name in names)
    (tmp_path / "bench" / "instances.csv").write_text(table)

    call("compare", tmp_path / "bench", "--out", tmp_path / "out", "--query", "probabilistic", "--workers", 1)
    said = call("report", tmp_path / "out").stderr

    assert "report.html" in said
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Tools compared" in page
    assert "No contradictions between tools." in page
    assert all(name in page for name in names)
    assert "comparison.csv" in {path.name for path in (tmp_path / "out").iterdir()}
