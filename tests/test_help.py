"""The help: what people read first is complete, whole and true."""

from __future__ import annotations

import inspect
import re
import shlex
from typing import Annotated, Literal, get_args, get_origin

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from bnn_vnnlib.cli import app
from bnn_vnnlib.cli.commands import COMMANDS, EXAMPLES
from bnn_vnnlib.question.options import OPTIONS
from support.command import call

NAMES = [function.__name__ for function in COMMANDS]


def shown(name: str) -> str:
    environment = {"COLUMNS": "80", "TERM": "dumb"}
    return CliRunner().invoke(app, [name.replace("_", "-"), "--help"], env=environment).stdout


def test_every_command_has_an_example():
    assert set(EXAMPLES) == set(NAMES)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_parse(line):
    """Every option of an example exists, and takes the values that it is given."""
    name, *words = shlex.split(line)
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, list(words), resilient_parsing=False)
    assert context.params


def choices(function: object) -> list[str]:
    """Words of all options and arguments that have a choice of them."""
    found: list[str] = []
    for one in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        kind = get_args(one.annotation)[0] if get_origin(one.annotation) is Annotated else one.annotation
        for part in (kind, *get_args(kind)):
            found += map(str, get_args(part)) if get_origin(part) is Literal else []
    return found


@pytest.mark.parametrize("function", COMMANDS, ids=NAMES)
def test_no_word_of_a_choice_is_broken_at_80_columns(function):
    text = shown(function.__name__)
    assert [word for word in choices(function) if not re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text)] == []


def test_the_choices_are_seen():
    assert len(choices(COMMANDS[NAMES.index("verify")])) > 10


def test_options_of_verify_are_in_groups():
    text = shown("verify")
    panels = re.findall(r"^╭─ (.+?) ─", text, re.MULTILINE)
    assert {"What is asked", "How it is bounded", "Time, memory, machines", "Files"} <= set(panels)
    alone = text.split("─ Options ─")[1].split("╰")[0]
    assert [name for name in OPTIONS if f"--{name.replace('_', '-')} " in alone] == []


def test_quiet_says_nothing_but_errors(tmp_path):
    (tmp_path / "p.vnnlib").write_text(
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1))(assert (>= X_0 0))(assert (>= Y_0 2))"
    )
    arguments = ["property", "within", "--lower", 0, "--upper", 1, "--least", 0, "--outputs", 1]
    assert call(*arguments, "-o", tmp_path / "q.vnnlib", "--quiet").stderr == ""
    assert call(*arguments, "-o", tmp_path / "q.vnnlib").stderr != ""
    assert call("explain", tmp_path / "p.vnnlib", "--quiet").stdout.startswith("property")
    assert "no such file" in call("explain", tmp_path / "none.vnnlib", "--quiet", code=2).stderr
    assert all("quiet" in inspect.signature(function).parameters for function in COMMANDS)


def test_shells_complete_words():
    environment = {"_BNN_VNNLIB_COMPLETE": "complete_bash", "COMP_WORDS": "bnn-vnnlib property rob", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, [], env=environment, prog_name="bnn-vnnlib")
    assert "robust" in done.stdout.split()
