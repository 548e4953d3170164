"""What a process of ours does with freed memory: it keeps it, and looks for cycles of objects rarely.

A pass over a network allocates arrays of a few MiB and frees them again, thousands of times a second. glibc gives such
memory back to the kernel each time, and each page of the next array is then a fault of its own and is cleared: up to
two fifths of a pass' time. And Python looks for cycles after every 700 new objects, of which the imports alone make
hundreds of thousands: an eighth of the time until a small question is answered.
"""

from __future__ import annotations

import gc
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (malloc.h)."""

_KEPT = 2**29
"""Bytes at the end of the heap that stay with the process when they are free."""

_MAPPED = 2**25
"""Arrays from this size on (bytes) are mapped one by one, and given back when they are freed: so no hole of that size
stays in the heap. It is the largest threshold to which glibc's own adaptation goes."""

_OBJECTS = 50_000
"""New objects between two looks for cycles. Arrays are freed by their counts, and wait for none."""

ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Environment variables by which a user has said otherwise."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, and look for cycles rarely; whether the first was possible.

    The command line and its workers do this for themselves; a program that uses the package decides for its own
    process. Nothing is done without glibc, or where one of the environment variables `ASKED` is set.
    """
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    if not sys.platform.startswith("linux") or any(name in os.environ for name in ASKED):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in ((_TRIM_THRESHOLD, _KEPT), (_MMAP_THRESHOLD, _MAPPED)))
