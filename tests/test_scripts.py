"""The competition's three scripts, driven as its runner drives them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 0.0)) (assert (<= X_0 1.0)) (assert (>= X_1 0.0)) (assert (<= X_1 1.0))
(assert (>= Y_0 {bound}))
"""


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def echo_tool(tmp_path):
    """Stands for bnn-vnnlib: prints its arguments, one a line."""
    return program(tmp_path / "echo_tool", 'printf "%s\\n" "$@"')


@pytest.fixture
def tool(tmp_path):
    """The real program, from this checkout."""
    return program(tmp_path / "tool", f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m bnn_vnnlib "$@"')


@pytest.fixture
def instance(tmp_path, identity_model):
    """Model and property, packed as benchmarks are, in a folder whose name has a blank."""
    folder = tmp_path / "a benchmark"
    folder.mkdir()
    with gzip.open(folder / "model.onnx.gz", "wb") as stream:
        stream.write(identity_model.read_bytes())
    for name, bound in {"holds": 1.5, "fails": 0.5}.items():
        with gzip.open(folder / f"{name}.vnnlib.gz", "wt") as stream:
            stream.write(PROPERTY.format(bound=bound))
    return folder


def call(script: str, *args: object, tool: Path | None, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BNN_VNNLIB": str(tool or "")}
    if path is not None:
        environment["PATH"] = path
    command = ["bash", str(SCRIPTS / script), *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, stdin=subprocess.DEVNULL
    )


def test_run_passes_everything_on_and_finds_packed_files(tmp_path, echo_tool, instance):
    results = tmp_path / "results.txt"
    model, prop = instance / "model.onnx", instance / "holds.vnnlib"
    done = call("run_instance.sh", "v1", "digits", model, prop, results, "300.0", tool=echo_tool)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (
        ["verify", f"{prop}.gz", "--network", f"{model}.gz", "--timeout", "300.0", "--results-file", str(results)]
    )


def test_a_file_named_packed_may_lie_unpacked(tmp_path, echo_tool, identity_model, instance):
    named = f"{identity_model}.gz"
    results = tmp_path / "r.txt"
    done = call("run_instance.sh", "v1", "c", named, instance / "holds.vnnlib", results, "1", tool=echo_tool)
    assert str(identity_model) in done.stdout.splitlines()


@pytest.mark.parametrize("entry", ["[('f', '{}')]", '[("f", "{}")]', "[('f','{}'),]"])
def test_the_network_list_of_version_2(tmp_path, echo_tool, instance, entry):
    listed = entry.format(instance / "model.onnx")
    prop = instance / "holds.vnnlib"
    done = call("run_instance.sh", "v1", "c", listed, prop, tmp_path / "r.txt", "60.5", tool=echo_tool)
    assert f"f={instance / 'model.onnx.gz'}" in done.stdout.splitlines(), done.stderr
    assert call("prepare_instance.sh", "v1", "c", listed, prop, tool=echo_tool).returncode == 0


@pytest.mark.parametrize(
    ("model", "prop", "message"),
    [
        ("nowhere.onnx", "holds.vnnlib", "no such file: nowhere.onnx"),
        ("model.onnx", "nowhere.vnnlib", "no such file: nowhere.vnnlib"),
        ("[('f', 'model.onnx'), ('g', 'model.onnx')]", "holds.vnnlib", "several networks are not supported"),
        ("[f: model.onnx]", "holds.vnnlib", "expected a path or a list"),
    ],
)
def test_what_cannot_be_run_leaves_error_and_a_reason(tmp_path, echo_tool, instance, monkeypatch, model, prop, message):
    monkeypatch.chdir(instance)
    results = tmp_path / "r.txt"
    results.write_text("sat\n")
    done = call("run_instance.sh", "v1", "c", model, prop, results, "10", tool=echo_tool)
    assert done.returncode == 2
    assert results.read_text() == "error\n"
    assert message in done.stderr
    prepared = call("prepare_instance.sh", "v1", "c", model, prop, tool=echo_tool)
    assert prepared.returncode != 0
    assert message in prepared.stderr


def test_prepare_checks_and_analyses_nothing(tmp_path, instance):
    broken = program(tmp_path / "broken", "exit 3")
    args = ("v1", "c", instance / "model.onnx", instance / "holds.vnnlib")
    done = call("prepare_instance.sh", *args, tool=broken)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_tool_is_named(tmp_path, instance):
    args = ("v1", "c", instance / "model.onnx", instance / "holds.vnnlib")
    done = call("prepare_instance.sh", *args, tool=tmp_path / "gone")
    assert done.returncode != 0
    assert "bnn-vnnlib is not installed" in done.stderr


@pytest.mark.parametrize("script", ["install_tool.sh", "prepare_instance.sh", "run_instance.sh"])
def test_other_versions_of_the_interface_are_refused(script, echo_tool):
    done = call(script, "v2", "c", "m", "p", "r", "1", tool=echo_tool)
    assert done.returncode == 2
    assert "must be 'v1', found 'v2'" in done.stderr


@pytest.mark.parametrize(
    ("script", "args"), [("prepare_instance.sh", ["v1", "c"]), ("run_instance.sh", ["v1", "c", "m"])]
)
def test_missing_arguments_show_the_usage(script, args, echo_tool):
    done = call(script, *args, tool=echo_tool)
    assert done.returncode == 2
    assert f"usage: {script} v1 CATEGORY ONNX VNNLIB" in done.stderr


@pytest.fixture
def unpacked(tmp_path):
    """A copy of the scripts, so that installing leaves nothing in the checkout."""
    shutil.copytree(SCRIPTS, tmp_path / "project" / "scripts", ignore=shutil.ignore_patterns(".venv"))
    return tmp_path / "project" / "scripts"


def test_install_makes_what_the_other_scripts_find(tmp_path, unpacked, instance):
    # Stands for Python: a virtual environment is a folder with these two programs; the calls are written down.
    log = tmp_path / "calls"
    python = program(
        tmp_path / "python",
        f"""echo "$@" >>'{log}'
if [[ "$1" == -m && "$2" == venv ]]; then
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/bnn-vnnlib"
fi""",
    )
    environment = {**os.environ, "BNN_VNNLIB": "", "PYTHON": str(python), "PATH": "/usr/bin:/bin"}

    def script(name: str, *args: object) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(unpacked / name), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)

    args = ("v1", "c", instance / "model.onnx", instance / "holds.vnnlib")
    assert "not installed" in script("prepare_instance.sh", *args).stderr
    done = script("install_tool.sh", "v1")
    assert done.returncode == 0, done.stderr
    assert f"-m pip install --quiet {unpacked}/.." in log.read_text()
    assert script("prepare_instance.sh", *args).returncode == 0
    assert script("run_instance.sh", *args, tmp_path / "r.txt", "1.5").returncode == 0
    assert f"--timeout 1.5 --results-file {tmp_path}/r.txt" in log.read_text().splitlines()[-1]


def test_install_wants_a_recent_python(tmp_path, unpacked):
    old = program(tmp_path / "python", "exit 1")
    environment = {**os.environ, "PYTHON": str(old)}
    command = ["bash", str(unpacked / "install_tool.sh"), "v1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert "Python 3.11 or later is needed" in done.stderr


def test_the_scripts_reach_a_verdict(tmp_path, tool, instance):
    for name, verdict in {"holds": "unsat", "fails": "sat"}.items():
        results = tmp_path / f"{name}.txt"
        args = ("v1", "identity", instance / "model.onnx", instance / f"{name}.vnnlib")
        assert call("prepare_instance.sh", *args, tool=tool).returncode == 0
        done = call("run_instance.sh", *args, results, "60.0", tool=tool)
        assert done.returncode == 0, done.stderr
        assert results.read_text().splitlines()[0] == verdict
        assert json.loads((tmp_path / f"{name}.txt.json").read_text())["verdict"] == verdict


def test_refused_input_leaves_error(tmp_path, tool, instance):
    (instance / "bad.vnnlib").write_text("(declare-const X_0 Real")
    results = tmp_path / "r.txt"
    args = ("v1", "identity", instance / "model.onnx", instance / "bad.vnnlib")
    done = call("run_instance.sh", *args, results, "60.0", tool=tool)
    assert done.returncode == 2
    assert results.read_text() == "error\n"
    assert "Traceback" not in done.stderr
