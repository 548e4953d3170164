"""Mangled files, from the command line: one message, exit code 2, nothing run, nothing opened that should not be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from hostile import mangled_models, mangled_properties

ROOT = Path(__file__).resolve().parents[2]
PROPERTY = mangled_properties.HEAD + "(assert (<= Y_0 0.5))"
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.connect",
             "socket.getaddrinfo", "pickle.find_class", "urllib.Request", "ctypes.dlopen")  # fmt: skip
WATCHED: list[tuple[str, str]] = []
WATCHING = False


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hooks stay for good, so that this one looks at nothing unless it is told to."""
    if WATCHING and (event in FORBIDDEN or event == "open"):
        WATCHED.append((event, str(arguments[0] if arguments else "")))


sys.addaudithook(_hook)


@pytest.fixture
def events() -> Iterator[list[tuple[str, str]]]:
    global WATCHING
    WATCHED.clear()
    WATCHING = True
    yield WATCHED
    WATCHING = False


def refused(folder: Path, prop: Path, model: Path, words: str, events: list[tuple[str, str]]) -> None:
    results = folder / "results.txt"
    files = [str(prop), "--network", str(model), "--results-file", str(results)]
    events.clear()
    outcome = CliRunner().invoke(app, ["verify", *files, "--query", "deterministic"])
    seen = list(events)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.isprintable()
    assert len(line) < 5000
    assert words in line, line
    assert results.read_text() == "error\n"
    assert [event for event in seen if event[0] in FORBIDDEN] == []
    assert [name for kind, name in seen if kind == "open" and name.endswith(("passwd", "secret", "link"))] == []
    assert not (folder / "gone").exists()


@pytest.mark.parametrize("name", mangled_properties.FILES)
def test_property(tmp_path: Path, identity_model: Path, monkeypatch: pytest.MonkeyPatch,
                  events: list[tuple[str, str]], name: str) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    data, words = mangled_properties.FILES[name]
    path = tmp_path / "case.vnnlib"
    path.write_bytes(data)
    refused(tmp_path, path, identity_model, words, events)


@pytest.mark.parametrize("name", mangled_models.FILES)
def test_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, str]], name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "secret").write_bytes(bytes(64))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "data").write_bytes(bytes(64))
    data, words = mangled_models.FILES[name]
    (folder / "case.onnx").write_bytes(data)
    (folder / "p.vnnlib").write_text(PROPERTY)
    refused(folder, folder / "p.vnnlib", folder / "case.onnx", words, events)


@pytest.mark.parametrize("kind", ["property", "model"])
@pytest.mark.parametrize("what", ["folder", "loop", "broken_link", "pipe", "long_name"])
def test_what_is_no_file(tmp_path: Path, identity_model: Path, events: list[tuple[str, str]], kind: str,
                         what: str) -> None:  # fmt: skip
    path = tmp_path / ("case" * 100 if what == "long_name" else "case")
    match what:
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "broken_link":
            path.symlink_to(tmp_path / "nothing")
        case "pipe":
            os.mkfifo(path)
    words = "folder" if what == "folder" else "no such file"
    if kind == "property":
        refused(tmp_path, path, identity_model, words, events)
        return
    (tmp_path / "p.vnnlib").write_text(PROPERTY)
    refused(tmp_path, tmp_path / "p.vnnlib", path, words, events)


def test_there_are_enough_of_them() -> None:
    assert len(mangled_properties.FILES) + len(mangled_models.FILES) >= 140
