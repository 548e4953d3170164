"""The two data sets of scikit-learn that the benchmark uses, and their fixed splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 0  # never changed by --seed: test images stay test images


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs (N, d) float64; targets (N,): class labels, or standardised values for regression."""

    train_x: NDArray[np.float64]
    train_y: NDArray[Any]
    test_x: NDArray[np.float64]
    test_y: NDArray[Any]


def digits() -> Split:
    """1,437 training and 360 test images of 8 x 8 pixels; pixels are multiples of 1/16 in [0, 1]."""
    data = load_digits()
    x, test_x, y, test_y = train_test_split(
        data.data / 16, data.target, test_size=360, random_state=SPLIT_SEED, stratify=data.target
    )
    return Split(x, y, test_x, test_y)


def diabetes() -> Split:
    """353 training and 89 test patients; 10 features and the target standardised with the training part."""
    data = load_diabetes(scaled=False)
    x, test_x, y, test_y = train_test_split(data.data, data.target, test_size=89, random_state=SPLIT_SEED)
    mean, sd = x.mean(axis=0), x.std(axis=0)
    return Split((x - mean) / sd, (y - y.mean()) / y.std(), (test_x - mean) / sd, (test_y - y.mean()) / y.std())
