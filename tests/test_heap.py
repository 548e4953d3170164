"""Freed memory stays with the process, which is what a pass' time depends on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from bnn_vnnlib.system.heap import ASKED

GLIBC = platform.libc_ver()[0] == "glibc"
PROGRAM = """
import resource
import numpy as np
from bnn_vnnlib.system.heap import keep_freed_memory
print(keep_freed_memory())
for turn in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        many = [np.ones(2**18) for _ in range(8)]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and page faults of the last round, which allocates 336 MB in arrays of 2 MiB."""
    clean = {name: value for name, value in os.environ.items() if name not in ASKED}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=clean | environment, capture_output=True, text=True, check=True
    )
    kept, *counts = found.stdout.split()
    return kept == "True", int(counts[-1])


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc, whose heap this is about")
def test_freed_memory_is_used_again() -> None:
    kept, count = faults()
    assert kept
    assert count < 500


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc, whose heap this is about")
@pytest.mark.parametrize("name", ASKED)
def test_what_a_user_asks_for_holds(name: str) -> None:
    value = "glibc.malloc.trim_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    kept, count = faults(**{name: value})
    assert not kept
    assert count > 5000


def test_cycles_are_looked_for_rarely_whatever_the_heap_allows() -> None:
    program = "import gc; from bnn_vnnlib.system.heap import keep_freed_memory as f; f(); print(gc.get_threshold())"
    found = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {ASKED[0]: "1"}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "(50000, 10, 10)"
