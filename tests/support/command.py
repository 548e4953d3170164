"""The command line, called in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from bnn_vnnlib.cli import app


def call(*args: object, code: int = 0) -> Any:
    """What a command did that ended with this exit code, and without a traceback."""
    outcome = CliRunner().invoke(app, [str(arg) for arg in args])
    assert outcome.exit_code == code, outcome.stderr
    assert "Traceback" not in outcome.stderr
    return outcome
