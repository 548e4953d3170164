"""The memory of a run, handed out to its steps: how many items one of them may take at once.

Many items (boxes, rows, points, networks) are bounded part by part. Whoever cuts them says how many numbers one item
holds at its peak, all temporary arrays counted, and is told how many items fit: `at_once(numbers)`. Bounds depend on
the answer by rounding alone (and by where a search of neuron signs ends, which takes as many parts a turn as fit), so
it is no argument of a hundred functions but a property of the run, as the number of torch's threads is of the process.

A step gets one part in `MEMORY_PARTS` of the memory, because steps are nested, the allocator keeps what is freed, and
what an item holds is known up to a small factor. On a CPU it gets `NEAR` at most: chunks beyond the caches are no
faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NEAR = 2**24
"""Numbers (float64) of a step on a CPU, at most: 128 MiB. Twice or half as many change times by a few per cent."""

MEMORY_PARTS = 16
"""Parts of the memory of a run, of which a step takes one."""

_NUMBERS: ContextVar[int] = ContextVar("numbers of a step", default=NEAR)


@contextmanager
def memory_of(gib: float | None, device: torch.device) -> Iterator[None]:
    """The steps of the block share so much memory.

    Parameters
    ----------
    gib : GiB of the device; None: half of what a CUDA device has, and on a CPU what makes steps of `NEAR`
    """
    import torch

    real = device.type == "cuda" and torch.cuda.is_available()
    if gib is None and real:
        gib = torch.cuda.get_device_properties(device).total_memory / 2**31
    numbers = NEAR if gib is None else max(1, int(gib * 2**30 / (8 * MEMORY_PARTS)))
    token = _NUMBERS.set(numbers if real else min(NEAR, numbers))
    try:
        yield
    finally:
        _NUMBERS.reset(token)


def at_once(numbers: int) -> int:
    """How many items a step may take together, one at least, where each holds so many numbers (float64).

    `at_once(4 * size)` says that four arrays of `size` numbers an item are alive at the peak.
    """
    return max(1, _NUMBERS.get() // max(1, numbers))
