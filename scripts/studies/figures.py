"""Figures that are readable in print: one size, one set of colours that black-and-white printing keeps apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bnn_vnnlib.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAFE, UNSAFE, OPEN = "#1b6ca8", "#d1495b", "#d9d9d9"
SERIES = ("#1b6ca8", "#e08e1b", "#2f7d4f", "#8a4f9e", "#d1495b", "#555555")
MARKS = ("o", "s", "^", "D", "v", "P")
WIDTH = 3.4
"""Inches of a panel: the column of a printed page; two of them fill the page."""

STYLE: Any = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "axes.grid": True, "grid.linewidth": 0.4, "grid.color": "#cccccc", "axes.axisbelow": True,
    "lines.linewidth": 1.3, "lines.markersize": 4, "savefig.dpi": 200, "pdf.fonttype": 42, "svg.hashsalt": "studies",
}  # fmt: skip


_WORDS = {
    "mnist": "MNIST", "hcas": "collision avoidance", "signs": "traffic signs", "concrete": "concrete",
    "powerplant": "power plant", "vi": "variational", "vogn": "VOGN", "ivon": "IVON", "hmc": "HMC",
    "rob": "robust likelihood", "conv": "convolutional", "gtsrb": "traffic signs",
}  # fmt: skip


def in_words(name: str) -> str:
    """The name of a network's file as a title; what is not known of it stays.

    >>> in_words("mnist_vogn_128x1_eps0.1"), in_words("mine")
    ('MNIST, VOGN, 1 x 128, trained with eps 0.1', 'mine')
    """
    said = []
    for part in name.split("_"):
        layers = re.fullmatch(r"(\d+)x(\d+)", part)
        number = re.fullmatch(r"(eps|pra|tau)([\d.]+)", part)
        if layers:
            said.append(f"{layers[2]} x {layers[1]}" if int(layers[2]) < 10 else f"{layers[1]}, {layers[2]}")
        elif number:
            said.append(
                {"eps": "trained with eps {}", "pra": "advisory {} before", "tau": "{} s"}[number[1]].format(number[2])
            )
        else:
            said.append(_WORDS.get(part, part))
    return ", ".join(said)


def panels(columns: int = 1, rows: int = 1, width: float = WIDTH, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, and its axes row by row.

    Raises
    ------
    OptionError : matplotlib is not installed
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise OptionError("figures need matplotlib: pip install matplotlib") from None
    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(
        rows, columns, figsize=(columns * width, rows * height), layout="constrained", squeeze=False
    )
    return figure, list(axes.ravel())


def grid(count: int, columns: int = 3, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """So many panels, in rows that are at most as wide as a page; returns the axes that are used."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure, axes = panels(columns, rows, min(WIDTH, 2 * WIDTH / columns), height)
    for one in axes[count:]:
        one.set_axis_off()
    return figure, axes[:count]


def boxplot(axes: Axes, data: Sequence[NDArray], names: Sequence[str]) -> None:
    """Boxes from the first quartile to the third; the first and the last, which are proved, have colours."""
    plot = axes.boxplot(
        list(data), tick_labels=list(names), patch_artist=True, medianprops={"color": "black"}, widths=0.6
    )
    colours = [SERIES[0], *["#dddddd"] * (len(data) - 2), SERIES[4]]
    for patch, colour in zip(plot["boxes"], colours, strict=True):
        patch.set_facecolor(colour)


def save(figure: Figure, out: Path, name: str) -> None:
    """Write NAME.png, and NAME.pdf and NAME.svg, which are vector files but for the cells of maps."""
    from matplotlib import pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    for suffix, extra in (
        ("png", {}),
        ("pdf", {"metadata": {"CreationDate": None}}),
        ("svg", {"metadata": {"Date": None}}),
    ):
        options: dict[str, Any] = extra
        figure.savefig(out / f"{name}.{suffix}", **options)
    plt.close(figure)
