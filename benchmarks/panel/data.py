"""The panel's data: sets that come with scikit-learn, one that is computed, and two that are read from a folder.

Inputs are scaled as people scale them: pixels to [0, 1], features of tables to mean 0 and standard deviation 1, the
state of the controller to [-1, 1]. Targets of a regression are standardised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split

Floats = NDArray[np.float32]

SEED = 0
"""Of the splits; the inputs that are verified are the first ones of the test part."""


@dataclass(frozen=True, eq=False)
class Data:
    """A set, split in two.

    Attributes
    ----------
    x, test_x : (N, d) inputs, as the network reads them
    y, test_y : (N,) classes (int64), or targets (float32)
    radii : of the boxes around test inputs, in the unit of the inputs: a point, a small one, a medium one
    clip : the range that the boxes are cut to, or None
    """

    x: Floats
    y: NDArray
    test_x: Floats
    test_y: NDArray
    radii: tuple[float, float, float]
    clip: tuple[float, float] | None

    @property
    def classes(self) -> int | None:
        """Number of classes; None for a regression."""
        return int(self.y.max()) + 1 if self.y.dtype.kind == "i" else None

    @property
    def span(self) -> float:
        """Largest minus smallest target of the test part: what errors of a regression are measured by."""
        return float(self.test_y.max() - self.test_y.min())


def digits() -> Data:
    """Digits of 8 x 8 pixels (scikit-learn)."""
    whole = datasets.load_digits()
    return _split(whole.data / 16, whole.target, (0.0, 0.01, 0.05), (0.0, 1.0))


def mnist(folder: Path) -> Data:
    """The 10,000 test images of MNIST, split 8,000 / 2,000 as `mnist_t10k.npz` says."""
    with np.load(_found(folder, "mnist_t10k.npz")) as stored:
        x, y = stored["x"].reshape(-1, 784).astype(np.float32) / 255, stored["y"].astype(np.int64)
        train, test = stored["train_idx"], stored["test_idx"]
    return Data(x[train], y[train], x[test], y[test], (0.0, 0.01, 0.05), (0.0, 1.0))


def concrete(folder: Path) -> Data:
    """Compressive strength of concrete (UCI)."""
    with np.load(_found(folder, "uci_concrete.npz")) as stored:
        return _table(stored["X"], stored["y"])


def diabetes() -> Data:
    """Progression of diabetes (scikit-learn)."""
    return _table(*datasets.load_diabetes(return_X_y=True))


def breast_cancer() -> Data:
    """Breast cancer, malignant or benign (scikit-learn)."""
    return _table(*datasets.load_breast_cancer(return_X_y=True))


def control() -> Data:
    """The force that a controller applies to a cart with two poles, by its six states, with some noise.

    A smooth function of the kind that controllers are trained to imitate: linear feedback in the positions and
    velocities, saturated at the actuator's limit.
    """
    random = np.random.default_rng(SEED)
    x = random.uniform(-1, 1, (2400, 6))
    gain = np.array([0.5, 0.8, 2.0, 0.6, -1.5, -0.4])
    y = np.tanh(x @ gain + 0.8 * np.sin(2 * x[:, 2]) * x[:, 3]) + 0.05 * random.normal(size=len(x))
    whole = _split(x, y, (0.0, 0.01, 0.05), (-1.0, 1.0))
    return _with_targets(whole)


def _table(x: NDArray, y: NDArray) -> Data:
    """Features standardised by the training part; radii are shares of a standard deviation."""
    whole = _split(x, y, (0.0, 0.02, 0.1), None)
    mean, sd = whole.x.mean(0), whole.x.std(0)
    scaled = [((part - mean) / sd).astype(np.float32) for part in (whole.x, whole.test_x)]
    return _with_targets(Data(scaled[0], whole.y, scaled[1], whole.test_y, whole.radii, whole.clip))


def _with_targets(whole: Data) -> Data:
    """Targets of a regression standardised; classes as they are."""
    if whole.classes is not None:
        return whole
    mean, sd = whole.y.mean(), whole.y.std()
    y, test_y = ((part - mean) / sd for part in (whole.y, whole.test_y))
    return Data(whole.x, y.astype(np.float32), whole.test_x, test_y.astype(np.float32), whole.radii, whole.clip)


def _split(x: NDArray, y: NDArray, radii: tuple[float, float, float], clip: tuple[float, float] | None) -> Data:
    target = y.astype(np.int64) if y.dtype.kind in "iu" else y.astype(np.float64)
    parts = train_test_split(x.astype(np.float32), target, test_size=0.25, random_state=SEED)
    return Data(parts[0], parts[2], parts[1], parts[3], radii, clip)


def _found(folder: Path, name: str) -> Path:
    for place in (folder, folder / "sets"):
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(f"{name} is neither in {folder} nor in its subfolder sets")
