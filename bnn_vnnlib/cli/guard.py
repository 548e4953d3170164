"""What every command runs under: one message an error, the right exit code, a backstop for the time limit."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import typer

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError, OptionError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.files.outlet import Outlet

NAME = "bnn-vnnlib"
FAULT, REFUSED, FAILED, INTERRUPTED = 1, 2, 3, 130
# The engine keeps the limit itself; a run that has not come back this many seconds later is ended. Short limits are
# mostly start-up, so they get more.
GRACE, SHORT, SHORT_GRACE = 1.5, 10.0, 5.0


@contextmanager
def in_time(console: Console, outlet: Outlet) -> Iterator[Callable[[], None]]:
    """Run the block under a backstop for the time limit; yields what disarms it. Errors disarm it as well."""
    if outlet.timeout is None:
        yield lambda: None
        return
    from bnn_vnnlib.system.clock import Backstop

    def last_words() -> None:
        for error in outlet.expire():
            _complain(console, str(error), refused=True)
        console.print("the time limit ended the run before there were any bounds", soft_wrap=True)

    grace = GRACE if outlet.timeout >= SHORT else SHORT_GRACE
    backstop = Backstop(outlet.started + outlet.timeout + grace - time.monotonic(), last_words)
    try:
        yield backstop.disarm
    finally:
        backstop.disarm()


@contextmanager
def guard(console: Console, debug: bool, outlet: Outlet | None = None) -> Iterator[None]:
    """Turn every exception into one message and the right exit code, and leave `error` in the results file."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        refused = isinstance(error, InputError)
        reason = str(error) if refused else f"{type(error).__name__}: {error}"
        if debug:
            console.quiet = False
            console.print_exception()
        _complain(console, reason, refused)
        if outlet is not None:
            _record_failure(console, outlet, reason)
        raise typer.Exit(REFUSED if refused else FAULT) from None


def _record_failure(console: Console, outlet: Outlet, reason: str) -> None:
    for error in outlet.fail(reason):
        _complain(console, str(error), refused=True)


def _complain(console: Console, reason: str, refused: bool) -> None:
    console.quiet = False
    if refused:
        console.print(f"error: {reason}", markup=False, highlight=False, soft_wrap=True)
        return
    console.print(f"internal fault: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"This is a bug in {NAME} {__version__}, not in your input. Please report it with both input files and the "
        "traceback that --debug shows.",
        highlight=False,
        soft_wrap=True,
    )


def in_plain_words(message: str) -> str:
    """What the parser of options says of a value, without the names of its libraries, and with a likely spelling."""
    text = message.removeprefix("Value error, ")
    text = re.sub(r", unable to parse .*", "", text).rstrip(".")
    for theirs, ours in (
        (r"(Input should be|'.*' is not) a valid int(eger)?\b", "expected a whole number"),
        (r"(Input should be|'.*' is not) a valid float\b", "expected a number"),
        (r"Input should be a valid ", "expected a "),
        (r"Input should be greater than or equal to", "expected at least"),
        (r"Input should be", "expected a number"),
    ):
        text = re.sub(theirs, ours, text)
    found = re.match(r"'(.*?)' is not one of (.*)", text)
    return text + did_you_mean(found[1], re.findall(r"'(.*?)'", found[2])) if found else text


def check_positive(option: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise OptionError(f"{option} must be a positive number, found {value}")


_SILENT = ContextVar("silent", default=False)


@contextmanager
def silent(asked: bool) -> Iterator[None]:
    """Consoles on standard error that say nothing but errors, if that is asked for."""
    token = _SILENT.set(asked)
    try:
        yield
    finally:
        _SILENT.reset(token)


def stderr_console() -> Console:
    from bnn_vnnlib.system.terminal import Terminal

    console = Terminal(sys.stderr)
    console.quiet = _SILENT.get()
    return console
