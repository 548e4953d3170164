"""The progress of the long jobs of a study."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rich.console import Console

from bnn_vnnlib.jobs.progress import Watch, shown


def watched(what: str) -> AbstractContextManager[Watch]:
    """Show how far the job is, on standard error."""
    return shown(Console(stderr=True), what)
