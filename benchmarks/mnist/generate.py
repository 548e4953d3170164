"""Makes the family: Bayesian networks that read handwritten digits, and properties of them.

    python benchmarks/mnist/generate.py --data FOLDER [--seed SEED] [--only MODEL ...]

FOLDER holds mnist_t10k.npz (see benchmarks/families/sources.py). Needs the group `training` of pyproject.toml. Without
--only the shipped model is made; the others, of several widths and depths, are for the studies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "digits")]

from catalogue import Instance  # noqa: E402
from families.family import Family, Fitted, Variant, dense  # noqa: E402
from families.questions import robust  # noqa: E402
from families.sources import mnist  # noqa: E402
from training import Settings  # noqa: E402

SETTINGS = Settings(
    temperature=0.01, prior_sd=2.0**0.5, share=0.25, eps=0.1, box=(0.0, 1.0), steps=4000, mean_rate=2e-3, start_sd=0.002
)
SHAPES = ((128,), (32,), (64,), (32, 32), (64, 64), (32, 32, 32))
RADII = ("0.01", "0.05", "0.1")


def variant(hidden: tuple[int, ...]) -> Variant:
    """A network with these hidden layers."""
    name = "mnist_ivon_" + "x".join(str(size) for size in hidden)
    return Variant(dense(name, (784, *hidden, 10), "categorical"), mnist, SETTINGS, "natural", bits=(9, 4))


SHIPPED = (variant(SHAPES[0]),)
FURTHER = tuple(variant(hidden) for hidden in SHAPES[1:])


def ask(models: dict[str, Fitted], seed: int) -> Iterable[Instance]:
    """Around three test images that the predictive gets right, and one that it gets wrong."""
    for fitted in models.values():
        split, architecture = fitted.split, fitted.variant.architecture
        right = fitted.outputs(split.test_x).argmax(axis=1) == split.test_y
        order = np.random.default_rng(seed).permutation(len(right))
        for index in map(int, [*order[right[order]][:3], *order[~right[order]][:1]]):
            x, label = split.test_x[index], int(split.test_y[index])
            for radius in RADII:
                yield robust(architecture, f"{index}_{radius}", x, label, radius, unit=True)
            yield robust(architecture, f"decision_{index}", x, label, RADII[1], "query=decision", unit=True)


FAMILY = Family(HERE, SHIPPED, FURTHER, ask, packed=True)

if __name__ == "__main__":
    FAMILY.main(__doc__)
