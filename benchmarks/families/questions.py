"""Properties that several families ask."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from catalogue import Instance
from networks import Architecture
from properties import Spec, box, exact, image_box, other_class, outside

Scale = list[Decimal]


def instance(
    architecture: Architecture, name: str, text: str, assertions: list[str], options: str, timeout: int
) -> Instance:
    """An instance whose file says in a comment what it asks, and with which options."""
    comments = (text, f"bnn-vnnlib: {options}") if options else (text,)
    shapes = architecture.input_shape, (1, architecture.outputs)
    return Instance(architecture, Spec(f"{architecture.name}_{name}", comments, tuple(assertions), *shapes), timeout)


def robust(
    architecture: Architecture,
    name: str,
    x: np.ndarray,
    label: int,
    radius: str,
    options: str = "",
    timeout: int = 30,
    unit: bool = False,
) -> Instance:
    """Around a point no other class may score as much as the label; `unit` clips the ball to [0, 1]."""
    where = f"the point with label {label}" + (", clipped to [0, 1]" if unit else "")
    text = f"Every input within {radius} of {where}: no other class may score as much."
    centre = exact(x, 6)
    rows = image_box(centre, Decimal(radius)) if unit else box(centre, [Decimal(radius)] * len(centre))
    assertions = [*rows, other_class(label, architecture.outputs)]
    return instance(architecture, name, text, assertions, options, timeout)


def near_target(
    architecture: Architecture,
    name: str,
    x: np.ndarray,
    target: float,
    delta: float,
    radii: list[Decimal],
    text: str,
    options: str = "",
    timeout: int = 30,
) -> Instance:
    """Around a point the output may not leave target +- delta."""
    low, high = exact(np.array([target - delta, target + delta]))
    assertions = [*box(exact(x, 6), radii), outside(low, high)]
    return instance(architecture, name, text, assertions, options, timeout)
