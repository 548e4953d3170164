"""Balls, and what may not be written in this program."""

from __future__ import annotations

import ast
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from flint import arb

import bnn_vnnlib_check
from bnn_vnnlib_check.balls import (
    above,
    at_most_one,
    below,
    matrix,
    normal_below,
    positive,
    root,
    surely_at_least,
    surely_less,
)

SOURCES = sorted(Path(bnn_vnnlib_check.__file__).parent.glob("*.py"))


def test_comparisons_are_sure() -> None:
    wide, nan = arb(0, 1), arb.nan()
    assert surely_less(arb(1), arb(2))
    assert not surely_less(arb(2), arb(2))
    assert surely_at_least(arb(2), arb(2))
    for one, other in ((wide, arb(0.5)), (arb(0.5), wide), (nan, arb(1)), (arb(1), nan), (arb(1), arb.pos_inf())):
        assert not surely_less(one, other)
        assert not surely_at_least(one, other)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.1, 1e300, 1e-310, -1e-310])
def test_floats_around_a_ball(value: float) -> None:
    assert below(arb(value)) == above(arb(value)) == value
    third = arb(value) / 3
    assert not surely_less(third, arb(below(third)))
    assert not surely_less(arb(above(third)), third)
    assert above(third) - below(third) <= 2 * max(2.0**-52 * abs(value), 2.0**-1000)
    assert below(arb(value, 1)) <= value - 1
    assert above(arb(value, 1)) >= value + 1
    assert (below(arb.nan()), above(arb.pos_inf())) == (-math.inf, math.inf)
    assert (below(arb(10) ** 400), above(-(arb(10) ** 400))) == (sys.float_info.max, -sys.float_info.max)


@pytest.mark.parametrize("z", [0.1, 1.0, 3.0, 8.0, 20.0])
def test_tails_of_the_normal_law(z: float) -> None:
    """At most a few units above erfc, and never below."""
    exact = (arb(z) / arb(2).sqrt()).erfc() / 2
    found = normal_below(arb(z), arb(1))
    assert not surely_less(found, exact)
    assert surely_less(found, exact * (1 + arb(1e-20)))


def test_tails_without_a_gap_or_a_spread() -> None:
    assert float(normal_below(arb(0), arb(1))) == 1
    assert float(normal_below(arb(-1), arb(0))) == 1
    assert float(normal_below(arb(1, 2), arb(1))) == 1
    assert float(normal_below(arb(1), arb(0))) == 0
    assert float(normal_below(arb(1), arb.pos_inf())) == 1
    assert float(normal_below(arb.nan(), arb(1))) == 1
    assert [float(at_most_one(q)) for q in (arb(0.5), arb(2), arb.nan(), arb(0.5, 1))] == [0.5, 1, 1, 1]


@pytest.mark.parametrize("unknown", [arb.nan(), arb.pos_inf(), arb(0, 1) * arb.pos_inf()])
def test_a_spread_that_is_not_known_is_not_zero(unknown: arb) -> None:
    assert normal_below(arb(1), root(unknown)) == 1
    assert root(arb(0)) == root(arb(-1)) == 0


def test_a_root_is_above_the_roots_of_all_numbers_of_a_ball() -> None:
    assert root(arb(4, 1)).upper() >= arb(5).sqrt().lower()


def test_numbers_above_a_ball_and_0() -> None:
    for x, least in ((arb(1, 2), 3), (arb(-1, 2), 1), (arb(0), 0), (arb(2), 2)):
        assert positive(x).is_exact()
        assert least <= float(positive(x)) <= least + 1e-6
    assert positive(arb(-3, 1)) == 0
    assert not positive(arb.nan()).is_finite()
    assert not positive(arb.pos_inf()).is_finite()


def test_matrices_are_exact() -> None:
    values = np.array([[0.1, -1e300], [1e-310, 3.0]])
    assert all(x.is_exact() for x in matrix(values).entries())
    assert [float(x) for x in matrix(values).entries()] == values.ravel().tolist()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_imports(path: Path) -> None:
    """The standard library, numpy, onnx and its protobuf, flint, and this program; neither bnn_vnnlib nor torch."""
    known = {
        "argparse", "ast", "collections", "dataclasses", "flint", "fractions", "functools", "google", "gzip", "hashlib",
        "io", "json", "math", "numpy", "onnx", "pathlib", "re", "sys", "time", "typing", "zipfile", "zlib",
        "__future__", "bnn_vnnlib_check",
    }  # fmt: skip
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).partition(".")[0])
    assert found <= known


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_balls_are_compared_by_two_functions_alone(path: Path) -> None:
    """No method min or max of a ball, whose result depends on the order, and no fractions made of decimal literals."""
    text = path.read_text()
    if path.stem == "balls":
        text = text.partition("def surely_less")[0] + text.partition("def below")[2]
    assert not re.search(r"\.(lower|upper|mid|rad)\(\)\s*(<|>|==|!=)", text)
    assert not re.search(r"\barb\([^()]*\)\s*(<|>|==|!=)", text)


def test_it_is_small() -> None:
    """What an acceptance rests on must be readable in a day."""
    assert sum(len(path.read_text().splitlines()) for path in SOURCES) <= 2200
