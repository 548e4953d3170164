"""`bnn-vnnlib check-certificates`: all certificates of a run, by the checker."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import FAILED, guard, stderr_console
from bnn_vnnlib.cli.options import Debug
from bnn_vnnlib.printable import say


def check_certificates(
    folder: Annotated[Path, typer.Argument(help="Folder that run or compare wrote with --certificates.")],
    debug: Debug = False,
) -> None:
    """Have bnn-vnnlib-check check every certificate of a run, and keep what it says beside each.

    report and compare then show which answers carry an accepted certificate. Standard output holds the counts. Exit
    code: 0 if all were accepted, 3 if not, 2 refused input, 1 a fault of this program.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.certificates.checked import OUTCOMES, check_all

        counts: Counter[str] = Counter()
        for path, line in check_all(folder):
            word = line.partition(":")[0]
            counts[word if word in OUTCOMES else "error"] += 1
            if word != "accepted":
                say(console, f"{path}: {line}")
        sys.stdout.write(", ".join(f"{counts[word]} {word}" for word in OUTCOMES) + "\n")
        if counts.total() > counts["accepted"]:
            raise typer.Exit(FAILED)
