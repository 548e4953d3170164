"""The regression families of the UCI repository: one hidden layer of 100 ReLU, a Gaussian likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
from catalogue import Instance
from training import Settings

from families.family import Family, Fitted, Variant, dense
from families.questions import near_target
from families.sources import uci

FEATURES = {"concrete": 8, "powerplant": 4}
SHARE = 0.25
"""The output may differ from the target by this share of the range of the test targets."""
QUESTION = "tau_safe=0.7 tau_unsafe=0.7"
POINTS = 5


def regression_family(root: Path, name: str, prior_variance: float, radii: tuple[str, ...]) -> Family:
    """Variational posterior with Adam, with IVON, and samples by NUTS."""
    settings = Settings(
        temperature=1.0, prior_sd=math.sqrt(prior_variance), share=0.1, eps=0.02, box=(-10.0, 10.0),
        noise_sd=0.3, steps=4000, mean_rate=5e-3, start_sd=0.01,
    )  # fmt: skip
    read, sizes = partial(uci, name=name), (FEATURES[name], 100, 1)
    variational = Variant(dense(f"{name}_vi_100", sizes, "gaussian"), read, settings)
    natural = Variant(dense(f"{name}_ivon_100", sizes, "gaussian"), read, settings, "natural")
    sampled = Variant(dense(f"{name}_hmc_100", sizes, "gaussian"), read, settings, "chain")
    return Family(root, (variational, natural, sampled), (), partial(ask, radii=radii))


def ask(models: dict[str, Fitted], seed: int, radii: tuple[str, ...]) -> Iterable[Instance]:
    """Around test points whose prediction is good enough; radii are shares of half the range of each feature."""
    for fitted in models.values():
        split, architecture = fitted.split, fitted.variant.architecture
        delta = SHARE * float(np.ptp(split.test_y))
        half = np.ptp(split.test_x, axis=0) / 2
        near = np.abs(fitted.outputs(split.test_x)[:, 0] - split.test_y) < delta
        order = np.random.default_rng(seed).permutation(len(near))
        for k, index in enumerate(map(int, order[near[order]][:POINTS])):
            x, y = split.test_x[index], float(split.test_y[index])
            for radius in radii:
                scaled = [Decimal(radius) * Decimal(f"{float(h):.4f}") for h in half]
                text = (
                    f"Features within {radius} of half their range of test point {index}: "
                    f"the output stays within {SHARE} of the range of the targets around its target."
                )
                asked = partial(near_target, architecture, x=x, target=y, delta=delta, radii=scaled, text=text)
                yield asked(name=f"{index}_{radius}", options=QUESTION)
                if k < 2:
                    yield asked(name=f"decision_{index}_{radius}", options="query=decision")
