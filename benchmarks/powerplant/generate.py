"""Makes the family: a Bayesian network that predicts the output of a power plant, and properties of it.

    python benchmarks/powerplant/generate.py --data FOLDER [--seed SEED]

FOLDER holds uci_power-plant.npz and uci_split1.npz (see benchmarks/families/sources.py). Needs the
group `training` of pyproject.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "digits")]

from families.regression import regression_family  # noqa: E402

FAMILY = regression_family(HERE, "powerplant", prior_variance=0.25, radii=("0.1", "0.3"))

if __name__ == "__main__":
    FAMILY.main(__doc__)
