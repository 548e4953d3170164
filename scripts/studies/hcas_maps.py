"""Maps of encounters: the own aircraft at the origin flying to the right, the intruder at each point of the grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.figures import OPEN, SAFE, UNSAFE, in_words, panels, save
from studies.places import Floats, Labels

if TYPE_CHECKING:
    from matplotlib.patches import Patch

CENTRE, SPAN = np.array([11423.75, 0.0, 0.0]), np.array([56000.0, 2 * np.pi, 2 * np.pi])
REACH = 25.0
"""Thousand feet that the maps show."""
NAMES = ("clear of conflict", "weak left", "weak right", "strong left", "strong right")
COLOURS = ("#ffffff", "#f4c95d", "#8fd0f0", "#c7761b", "#1d5f99")
STATES = ("safe: at least 0.98", "between", "unsafe: below 0.05", "undecided", "no label")
NO_LABEL = "#777777"
STATE_COLOURS = (SAFE, "#f4c95d", UNSAFE, OPEN, NO_LABEL)


def state(lower: Floats, upper: Floats, labels: Labels) -> Labels:
    """0 safe, 1 proved to lie between the thresholds, 2 unsafe, 3 undecided, 4 without a label."""
    between = (lower >= 0.05) & (upper < 0.98)
    found = np.select([labels < 0, lower >= 0.98, upper < 0.05, between], [4, 0, 2, 1], 3)
    return found.astype(np.int64)


def draw_map(
    out: Path, name: str, grid: Floats, labels: Labels, advised: Labels, bounds: tuple[Floats, Floats]
) -> None:
    """Three maps: the label, the mean network's advisory, and what is proved about P_safe in each cell.

    Parameters
    ----------
    grid : (R * B, 3) scaled inputs of one heading, distance fastest
    """
    import matplotlib.colors as colours

    places = grid * SPAN + CENTRE
    distance, bearing = np.unique(places[:, 0]), np.unique(places[:, 1])
    radius, angle = edges(distance) / 1000, edges(bearing)
    x, y = radius[None] * np.cos(angle)[:, None], radius[None] * np.sin(angle)[:, None]
    figure, axes = panels(2, 2, height=3.5)
    contents = ((labels, COLOURS, "advisory of the table"),
                (advised, COLOURS, "advisory of the mean network"),
                (state(*bounds, labels), STATE_COLOURS, "P_safe of the table's advisory"))  # fmt: skip
    for one, (values, colour, title) in zip(axes[:3], contents, strict=True):
        shown = values.reshape(len(bearing), len(distance))
        scale = colours.ListedColormap(list(colour)), colours.BoundaryNorm(np.arange(6) - 0.5, 5)
        one.pcolormesh(x, y, np.ma.masked_less(shown, 0), cmap=scale[0], norm=scale[1], rasterized=True)
        one.annotate("", (0.12 * REACH, 0), (0, 0), arrowprops={"arrowstyle": "-|>", "color": "black"})
        one.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xlabel="ahead (1,000 ft)", ylabel="left (1,000 ft)")
        one.set(title=title, aspect="equal", facecolor=NO_LABEL)
        one.grid(visible=False)
    axes[3].set_axis_off()
    legend = axes[3].legend(handles=_marks(NAMES, COLOURS), title="advisory", loc="upper left", frameon=False)
    axes[3].add_artist(legend)  # a second legend would take its place
    axes[3].legend(handles=_marks(STATES, STATE_COLOURS), title="P_safe", loc="lower left", frameon=False)
    heading = np.degrees(places[0, 2])
    figure.suptitle(
        f"{in_words(name)}, relative heading {heading:.0f} degrees\nown aircraft at 0, flying to the right", fontsize=9
    )
    save(figure, out, f"hcas_map_{name}")


def _marks(names: tuple[str, ...], colours: tuple[str, ...]) -> list[Patch]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=c, edgecolor="#777777", label=n) for c, n in zip(colours, names, strict=True)]


def edges(values: Floats) -> Floats:
    """Midpoints between neighbours, and both ends."""
    return np.concatenate([values[:1], (values[:-1] + values[1:]) / 2, values[-1:]])
