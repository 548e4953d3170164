"""Where a study reads and writes, and the data and networks that studies share.

The data folder, or its subfolders `posteriors` and `sets`, holds the posteriors published with *Adversarial Robustness
Certification for Bayesian Neural Networks* as .npz (scripts/npz_to_onnx.py says how), the HCAS grid and labels, and the
test sets that benchmarks/families/sources.py describes. The project contains none of them; our own networks lie in
benchmarks/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from npz_to_onnx import convert
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.model import Model, model_from_proto, read_model

if TYPE_CHECKING:
    from bnn_vnnlib.signature import Likelihood

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SKLEARN = "this needs scikit-learn: pip install scikit-learn"
MANY = 8
"""Names in a message, at most."""
_PLACE = re.compile(r"pra(\d)_tau(\d\d)")
UCI_FILES = {"concrete": "uci_concrete.npz", "powerplant": "uci_power-plant.npz"}


@dataclass(frozen=True)
class Places:
    """data : folder of public data; out : of tables and figures; limit : at most so many inputs, None: all."""

    data: Path
    out: Path
    limit: int | None = None

    def file(self, name: str) -> Path:
        """A file of the data folder.

        Raises
        ------
        InputError : it is not there; names the places
        """
        for place in self._folders:
            if (place / name).is_file():
                return place / name
        looked = "neither here nor in its subfolders posteriors and sets"
        raise InputError(f"{name} is {looked}; docs/studies/README.md says what the studies read", path=self.data)

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.data, self.data / "posteriors", self.data / "sets"

    def has(self, name: str) -> bool:
        """Whether the data folder has the file."""
        return any((place / name).is_file() for place in self._folders)

    def published(self, name: str, likelihood: Likelihood) -> Model:
        """A published posterior."""
        path = self.file(f"{name}.npz")
        with readable(path, "a posterior as scripts/npz_to_onnx.py describes it"):
            proto = convert(path, likelihood)
        return model_from_proto(proto)

    def arrays(self, name: str, *keys: str) -> list[NDArray]:
        """These arrays of an npz file of the data folder."""
        path = self.file(name)
        with readable(path, f"an npz file with {', '.join(keys)}"), np.load(path, allow_pickle=False) as stored:
            return [stored[key] for key in keys]

    def array(self, name: str) -> NDArray:
        """The array of an npy file of the data folder."""
        path = self.file(name)
        with readable(path, "an npy file"):
            return np.asarray(np.load(path, allow_pickle=False))

    def some(self, count: int) -> NDArray[np.int64]:
        """Rows that are looked at: all of them, or as many as the limit says, drawn by a fixed seed, in their order."""
        if self.limit is None or self.limit >= count:
            return np.arange(count)
        return np.sort(np.random.default_rng(0).choice(count, self.limit, replace=False))

    @property
    def which(self) -> str:
        """For captions."""
        return "all inputs" if self.limit is None else f"{self.limit} inputs drawn at random"


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """One message for a file that is not what it should be."""
    try:
        yield
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(f"expected {what} ({str(error).splitlines()[0]})", path=path) from None


def own_models(family: str) -> dict[str, Path]:
    """Models of a family of benchmarks/ by name."""
    paths = sorted((BENCHMARKS / family / "onnx").glob("*.onnx*"))
    return {path.name.removesuffix(".gz").removesuffix(".onnx"): path for path in paths}


def own(family: str) -> dict[str, Model]:
    """The same, read."""
    return {name: read_model(path) for name, path in own_models(family).items()}


def named(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    """The names that contain one of `parts`; all of them if there are none.

    Raises
    ------
    InputError : there are no names
    OptionError : no name contains any; names what there is
    """
    names = list(names)
    if not names:
        raise InputError("there are no networks to choose from")
    chosen = [name for name in names if not parts or any(part in name for part in parts)]
    if not chosen:
        known = ", ".join(repr(name) for name in names[:MANY]) + (", .." if len(names) > MANY else "")
        raise OptionError(f"no network's name contains {' or '.join(map(repr, parts))}; there are {known}")
    return chosen


@dataclass(frozen=True)
class Net:
    """A network of a study, which is read only when it is looked at; family: hcas, concrete, powerplant, .."""

    name: str
    family: str
    ours: bool

    def read(self, places: Places) -> Model:
        """The model."""
        if self.ours:
            return read_model(own_models(self.family)[self.name])
        return places.published(self.name, "gaussian" if self.family in UCI_FILES else "categorical")


def nets(published: Mapping[str, str], own: Iterable[str], only: Sequence[str]) -> list[Net]:
    """Published networks (name -> family) and those of our own that are there, as far as their names are wanted."""
    families = {name: name.split("_")[0] for name in own}
    found = {name: Net(name, family, False) for name, family in published.items()}
    found |= {name: Net(name, of, True) for name, of in families.items() if name in own_models(of)}
    return [found[name] for name in named(found, only)]


def place_of(name: str) -> tuple[int, int]:
    """Previous advisory and time of a network for collision avoidance, from its name."""
    found = _PLACE.search(name)
    if found is None:
        raise InputError(f"the network {name!r} does not say pra? and tau?? in its name")
    return int(found[1]), int(found[2])


def hcas_grid(places: Places) -> Floats:
    """(53792, 3) scaled inputs: distance, bearing, heading; the distance varies fastest."""
    return places.array("hcas_X.npy").astype(np.float64)


def hcas_labels(places: Places, advisory: int, time: int) -> Labels:
    """(53792,) published labels, -1 where there is none."""
    return places.array(f"hcas_labels_pra{advisory}_tau{time:02d}.npy").astype(np.int64)


def hcas_labels_of(places: Places, name: str) -> Labels:
    """The labels of the place that a network's name says."""
    return hcas_labels(places, *place_of(name))


def regression(places: Places, name: str) -> tuple[Floats, Floats]:
    """Test inputs (N, d) and targets (N,), standardised by the training part of split 1."""
    x, y = places.arrays(UCI_FILES[name], "X", "y")
    parts = [f"{name}_{part}" for part in ("test", "x_mean", "x_std", "y_mean", "y_std")]
    rows, x_mean, x_std, y_mean, y_std = places.arrays("uci_split1.npz", *parts)
    x, y = (x[rows] - x_mean) / x_std, (y[rows] - y_mean) / y_std
    return x.astype(np.float64), y.astype(np.float64)


def mnist(places: Places) -> tuple[Floats, Labels]:
    """The 10,000 test images (N, 784) in [0, 1] in their order, and labels."""
    x, y = places.arrays("mnist_t10k.npz", "x", "y")
    return x.reshape(-1, 784) / 255.0, y.astype(np.int64)


def mnist_held_out(places: Places) -> NDArray[np.int64]:
    """Rows of `mnist` that our own networks were not trained on."""
    return places.arrays("mnist_t10k.npz", "test_idx")[0].astype(np.int64)


def signs(places: Places) -> tuple[Floats, Labels]:
    """Images (N, 28, 28, 3) in [0, 1] of two signs; 50 km/h is 0, road work is 1."""
    x, y = places.arrays("gtsrb_50kmh_roadwork_28.npz", "x", "y")
    return x / 255.0, (y == 25).astype(np.int64)


def signs_held_out(labels: Labels) -> Labels:
    """Rows of `signs` that our own networks were not trained on (benchmarks/families/sources.py)."""
    return _held_out(labels, 0.25)


def digits() -> tuple[Floats, Labels]:
    """Test images (360, 64) of 8 x 8 pixels in [0, 1] and labels (benchmarks/digits/splits.py)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise OptionError(SKLEARN) from None
    stored = load_digits()
    rows = _held_out(stored.target, 360)
    return stored.data[rows] / 16, stored.target[rows].astype(np.int64)


def _held_out(labels: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Rows of the test part, in their order."""
    try:
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise OptionError(SKLEARN) from None
    split = train_test_split(np.arange(len(labels)), test_size=share, random_state=0, stratify=labels)
    return np.sort(np.asarray(split[1], np.int64))
