"""Makes the family: Bayesian networks that advise on collision avoidance, and properties of them.

    python benchmarks/hcas/generate.py --data FOLDER [--seed SEED] [--only MODEL ...]

FOLDER holds the .nnet files of github.com/sisl/HorizontalCAS (networks/). Needs the group
`training` of pyproject.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "digits")]

from catalogue import Instance  # noqa: E402
from families.family import Family, Fitted, Variant, dense  # noqa: E402
from families.questions import robust  # noqa: E402
from families.sources import hcas  # noqa: E402
from training import Settings  # noqa: E402

VARIATIONAL = Settings(
    temperature=1.0,
    prior_sd=0.5**0.5,
    share=0.1,
    eps=0.005,
    box=(-10.0, 10.0),
    steps=6000,
    mean_rate=5e-3,
    start_sd=0.01,
)
SAMPLED = replace(VARIATIONAL, prior_sd=2.5**0.5)
TIMES = (0, 5, 10, 15, 20, 30, 40, 60)
WIDE, DEEP = (3, 125, 5), (3, 50, 50, 5)
STRICT = "tau_safe=0.98 tau_unsafe=0.05"


def variant(kind: str, sizes: tuple[int, ...], advisory: int, time: int) -> Variant:
    """A network for one previous advisory and one time to the loss of vertical separation."""
    layers = "x".join(str(size) for size in sizes[1:-1])
    architecture = dense(f"hcas_{kind}_{layers}_pra{advisory}_tau{time:02d}", sizes, "categorical")
    settings = SAMPLED if kind == "hmc" else VARIATIONAL
    method = "chain" if kind == "hmc" else "variational"
    return Variant(architecture, partial(hcas, advisory=advisory, time=time), settings, method)


SHIPPED = (
    variant("vi", WIDE, 0, 20),
    variant("vi", WIDE, 1, 5),
    variant("vi", DEEP, 0, 20),
    variant("hmc", WIDE, 0, 20),
)
FURTHER = tuple(
    v
    for advisory in range(5)
    for time in TIMES
    for v in (variant("vi", WIDE, advisory, time),)
    if v.architecture.name not in {s.architecture.name for s in SHIPPED}
)


def ask(models: dict[str, Fitted], seed: int) -> Iterable[Instance]:
    """Around test points of the grid: six that the predictive gets right, one that it gets wrong."""
    for fitted in models.values():
        chance = np.random.default_rng(seed)
        right = fitted.outputs(fitted.split.test_x).argmax(axis=1) == fitted.split.test_y
        order = chance.permutation(len(right))
        chosen = [*order[right[order]][:6], *order[~right[order]][:1]]
        for k, index in enumerate(map(int, chosen)):
            x, label = fitted.split.test_x[index], int(fitted.split.test_y[index])
            for radius in ("0.01", "0.025"):
                yield robust(fitted.variant.architecture, f"{index}_{radius}", x, label, radius, STRICT)
            if k < 2:
                options = "query=decision"
                yield robust(fitted.variant.architecture, f"decision_{index}", x, label, "0.025", options)


FAMILY = Family(HERE, SHIPPED, FURTHER, ask)

if __name__ == "__main__":
    FAMILY.main(__doc__)
