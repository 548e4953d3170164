"""Colours of verdicts: they can be read, and told apart by people who see fewer of them."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from bnn_vnnlib.report import page

VERDICTS = ("unsat", "sat", "unknown", "timeout", "error")
# Machado, Oliveira and Fernandes (2009), severity 1: what is left of a colour, in linear RGB.
SEEN = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def themes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root(\[data-theme=.dark.\])? \{(.*?)\}", page._asset("style.css"), re.DOTALL)
    return {"dark" if dark else "light": dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", text)) for dark, text in blocks}


def linear(color: str) -> np.ndarray:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE Lab, where a distance of about 2 can just be seen."""
    ratio = XYZ @ np.clip(rgb, 0, None) / XYZ.sum(1)
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", list(SEEN))
def test_verdicts_can_be_told_apart(theme, eye):
    colors = themes()[theme]
    seen = {word: lab(SEEN[eye] @ linear(colors[word])) for word in VERDICTS}
    distances = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(VERDICTS, 2)}
    assert min(distances.values()) >= 20, distances


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme):
    """A contrast of 4.5 (WCAG 2.2, level AA) on everything that text stands on."""
    colors = themes()[theme]
    light = {name: float((XYZ @ linear(color))[1]) + 0.05 for name, color in colors.items()}
    for name in (*VERDICTS, "ink", "faint", "link"):
        for ground in ("paper", "panel", "warn"):
            dim, bright = sorted((light[name], light[ground]))
            assert bright / dim >= 4.5, (name, ground)
