"""Ends process groups whose keeper is gone: `python watchdog.py`, on nothing but the standard library.

Standard input has a line for each change: "+ID" a group has begun, "-ID" it is over. The input ends when the keeper
does, SIGKILL included, because the system closes the pipe; then whatever is left is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Listen until the keeper is gone."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
