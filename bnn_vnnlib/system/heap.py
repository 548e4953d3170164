"""How the C library's heap treats freed memory: a process of ours keeps it.

A pass over a network allocates arrays of a few MiB and frees them again, thousands of times a second. glibc gives such
memory back to the kernel each time, and each page of the next array is then a fault of its own and is cleared: up to
two fifths of a pass' time.
"""

from __future__ import annotations

import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (malloc.h)."""

_KEPT = 2**29
"""Bytes at the end of the heap that stay with the process when they are free."""

_MAPPED = 2**25
"""Arrays from this size on (bytes) are mapped one by one, and given back when they are freed: so no hole of that size
stays in the heap. It is the largest threshold to which glibc's own adaptation goes."""

ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Environment variables by which a user has said otherwise."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; whether that was possible.

    The command line and its workers do this for themselves; a program that uses the package decides for its own
    process. Nothing is done without glibc, or where one of the environment variables `ASKED` is set.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in ASKED):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in ((_TRIM_THRESHOLD, _KEPT), (_MMAP_THRESHOLD, _MAPPED)))
