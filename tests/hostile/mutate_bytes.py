"""Bytes changed at random, as damage on the way changes them."""

from __future__ import annotations

from random import Random


def bytes_changed(rng: Random, data: bytes) -> bytes:
    """A few places changed, left out or put in; sometimes cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                del changed[place : place + rng.randrange(1, 9)]
            case 1:
                changed[place:place] = rng.randbytes(rng.randrange(1, 9))
            case _ if place < len(changed):
                changed[place] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.1 else changed)


def few_bytes_changed(rng: Random, data: bytes) -> bytes:
    """One to three bytes changed; sometimes cut off."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.3 else changed)
