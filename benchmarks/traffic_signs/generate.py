"""Makes the family: a Bayesian network with two convolutions that tells two traffic signs apart, and properties of it.

    python benchmarks/traffic_signs/generate.py --data FOLDER [--seed SEED]

FOLDER holds gtsrb_50kmh_roadwork_28.npz (see benchmarks/families/sources.py). Needs the
group `training` of pyproject.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "digits")]

from catalogue import Instance  # noqa: E402
from families.family import Family, Fitted, Variant  # noqa: E402
from families.questions import robust  # noqa: E402
from families.sources import traffic_signs  # noqa: E402
from networks import Architecture, Layer  # noqa: E402
from training import Settings  # noqa: E402

LAYERS = (Layer("conv1", "conv", 3, 8), Layer("conv2", "conv", 8, 8), Layer("dense", "dense", 392, 2))
NETWORK = Architecture("traffic_signs_ivon_conv", (1, 3, 28, 28), LAYERS, "Relu", "categorical")
SETTINGS = Settings(
    temperature=0.003,
    prior_sd=0.5**0.5,
    share=0.25,
    eps=0.01,
    box=(0.0, 1.0),
    steps=500,
)
RADII = ("0.007843", "0.031373")
"""2 / 255 and 8 / 255."""
SIGNS = ("50", "road_work")


def ask(models: dict[str, Fitted], seed: int) -> Iterable[Instance]:
    """Around the mean of all training images of a sign, so that no image of the data is in the files."""
    for fitted in models.values():
        split, architecture = fitted.split, fitted.variant.architecture
        for label, sign in enumerate(SIGNS):
            x = split.train_x[split.train_y == label].mean(axis=0)
            for radius in RADII:
                yield robust(architecture, f"{sign}_{radius}", x, label, radius, unit=True)
                yield robust(architecture, f"decision_{sign}_{radius}", x, label, radius, "query=decision", unit=True)


FAMILY = Family(HERE, (Variant(NETWORK, traffic_signs, SETTINGS, "natural"),), (), ask, packed=True)

if __name__ == "__main__":
    FAMILY.main(__doc__)
