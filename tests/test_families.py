"""The benchmark families beside digits: complete, small, consistent; and the code that makes them."""

from __future__ import annotations

import csv
import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bnn_vnnlib import read_model, read_property
from bnn_vnnlib.files.benchmarks import existing
from bnn_vnnlib.vnnlib import match

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FAMILIES = ("hcas", "concrete", "powerplant", "mnist", "traffic_signs")
DIGITS = ("splits", "networks", "properties", "training", "catalogue", "folder")
OURS = ("sources", "natural", "chains", "family", "questions", "regression")
PACKAGE = {"README.md", "generate.py", "instances.csv", "onnx", "vnnlib"}


def rows_of(family: str) -> list[list[str]]:
    with (BENCHMARKS / family / "instances.csv").open(newline="") as stream:
        return list(csv.reader(stream))


@pytest.fixture(scope="module")
def source() -> Iterator[SimpleNamespace]:
    """The modules of benchmarks/digits and benchmarks/families, imported as a generator would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.syspath_prepend(BENCHMARKS / "digits")
        modules = {name: __import__(f"families.{name}", fromlist=[name]) for name in OURS}
        yield SimpleNamespace(**modules, **{name: __import__(name) for name in DIGITS})
    for name in [*DIGITS, *(name for name in sys.modules if name.split(".")[0] == "families")]:
        sys.modules.pop(name)


def generator(family: str) -> Any:
    """The generate.py of a family as a module."""
    path = sys.path.copy()
    spec = importlib.util.spec_from_file_location(f"generate_{family}", BENCHMARKS / family / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_complete_and_small(family: str) -> None:
    folder = BENCHMARKS / family
    assert {path.name for path in folder.iterdir() if not path.name.startswith((".", "__"))} == PACKAGE
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    rows = rows_of(family)
    named = {existing(folder / name) for row in rows for name in row[:2]}
    assert None not in named
    assert named == {path for part in ("onnx", "vnnlib") for path in (folder / part).rglob("*") if path.is_file()}
    assert all(0 < float(row[2]) <= 60 for row in rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_property_fits_its_model(family: str) -> None:
    models = {}
    for onnx, vnnlib, _ in rows_of(family):
        if onnx not in models:
            models[onnx] = read_model(existing(BENCHMARKS / family / onnx))
        model = models[onnx]
        assert model.posterior is not None
        assert model.likelihood in ("categorical", "gaussian")
        prop = read_property(existing(BENCHMARKS / family / vnnlib), model.network.signature)
        assert match(prop, model.network.signature).notes == ()
        assert (prop.boxes.inner_lower <= prop.boxes.inner_upper).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_readme_names_the_source_and_every_model(family: str) -> None:
    text = (BENCHMARKS / family / "README.md").read_text()
    assert "\nData: " in text
    assert f"python benchmarks/{family}/generate.py --data FOLDER" in text
    table = text.split("<!-- figures -->")[1].split("<!-- end of figures -->")[0]
    named = re.findall(r"^\| (\w+) \| \d+ \|", table, re.MULTILINE)
    assert set(named) == {Path(row[0]).stem for row in rows_of(family)}
    assert set(named) == {variant.architecture.name for variant in generator(family).FAMILY.shipped}


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1), st.integers(2, 20))
def test_shortened_numbers_are_near_and_short(source: SimpleNamespace, values: list[float], bits: int) -> None:
    array = np.array(values, np.float32)
    short = source.family.shortened(array, bits)
    normal = np.abs(array) > 1e-30
    assert (np.abs(short - array)[normal] <= np.abs(array)[normal] * 2.0 ** -(bits + 1)).all()
    mantissa = np.frexp(short)[0] * 2.0 ** (bits + 1)
    assert (mantissa[normal] == np.round(mantissa[normal])).all()


def test_a_teacher_is_read(source: SimpleNamespace, tmp_path: Path) -> None:
    text = "// a comment\n1,2,1,2,\n2,2,1,\n0,\n-4,-4,\n4,4,\n1,0,5,\n2,1,7,\n1,0,\n0,-1,\n.5,\n0,\n3,1,\n-1,\n"
    path = tmp_path / "small.nnet"
    path.write_text(text)
    teacher = source.sources.read_nnet(path)
    x = np.array([[9.0, -2.0], [0.0, 3.0]])
    z = (np.clip(x, -4, 4) - [1, 0]) / [2, 1]
    hidden = np.maximum(z @ np.array([[1, 0], [0, -1]]).T + [0.5, 0], 0)
    np.testing.assert_allclose(teacher.scores(x)[:, 0], hidden @ [3, 1] - 1)


def test_the_grid_is_the_published_one(source: SimpleNamespace, shared: Path) -> None:
    published = np.load(shared / "data" / "posteriors" / "hcas_X.npy")
    np.testing.assert_allclose(source.sources.hcas_grid(), published, atol=1e-7)


@pytest.mark.parametrize(("advisory", "time"), [(0, 20), (2, 60)])
def test_the_teacher_mostly_says_what_the_table_says(
    source: SimpleNamespace, shared: Path, advisory: int, time: int
) -> None:
    labels = np.load(shared / "data" / "posteriors" / f"hcas_labels_pra{advisory}_tau{time:02d}.npy")
    split = source.sources.hcas(shared / "data", advisory, time)
    grid = source.sources.hcas_grid()
    order = np.lexsort(grid.T)
    x, y = np.concatenate([split.train_x, split.test_x]), np.concatenate([split.train_y, split.test_y])
    mine = np.lexsort(x.T)
    assert (x[mine] == grid[order]).all()
    assert (y[mine] == labels[order]).mean() > 0.95


def test_a_missing_file_is_named(source: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"uci_concrete.npz is in none of"):
        source.sources.uci(tmp_path, "concrete")


@pytest.fixture(scope="module")
def regression_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up set in the place of `concrete`."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8))
    y = x[:, 0] - x[:, 1] + 0.1 * rng.normal(size=60)
    np.savez(folder / "uci_concrete.npz", X=x, y=y)
    split = {"train": np.arange(45), "test": np.arange(45, 60), "x_mean": np.zeros(8), "x_std": np.ones(8),
             "y_mean": np.array(0.0), "y_std": np.array(1.0)}  # fmt: skip
    np.savez(folder / "uci_split1.npz", **{f"concrete_{name}": values for name, values in split.items()})
    return folder


def test_a_generator_writes_models_that_can_be_read(regression_data: Path, tmp_path: Path) -> None:
    module = generator("concrete")
    arguments = ["--data", str(regression_data), "--out", str(tmp_path), "--steps", "3", "--only", "concrete_vi_100"]
    module.FAMILY.main(module.__doc__, arguments)
    again = tmp_path / "again"
    module.FAMILY.main(module.__doc__, [*arguments[:3], str(again), *arguments[4:]])
    model = read_model(tmp_path / "onnx" / "concrete_vi_100.onnx")
    assert model.posterior is not None
    assert model.network.signature.input_size == 8
    first, second = (folder / "onnx" / "concrete_vi_100.onnx" for folder in (tmp_path, again))
    assert first.read_bytes() == second.read_bytes()


def test_properties_are_asked_of_whatever_was_fitted(
    source: SimpleNamespace, regression_data: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    family = generator("concrete").FAMILY
    variant = replace(family.shipped[0], settings=replace(family.shipped[0].settings, steps=100))
    fitted = source.family.fit(variant, regression_data, 0)
    instances = list(family.ask({"m": fitted}, 0))
    assert len(instances) == 14  # five points, two radii, and the decision at two of the points
    folder = source.folder.Folder(tmp_path, ("1.0",))
    folder.write_properties(instances)
    source.family.write(fitted, folder, "test")
    model = read_model(folder.model_path(variant.architecture.name))
    for path in (tmp_path / "vnnlib").rglob("*.vnnlib"):
        prop = read_property(path, model.network.signature)
        assert prop.num_cases == 2


def linear_regression(source: SimpleNamespace) -> tuple[Any, Any, Any, float, float]:
    """One weight, known noise: the posterior is Gaussian in closed form."""
    rng = np.random.default_rng(1)
    x, prior, noise = rng.normal(size=(200, 1)), 0.5, 0.7
    y = 1.3 * x[:, 0] + noise * rng.normal(size=200)
    split = source.splits.Split(x, y, x, y)
    settings = source.training.Settings(
        temperature=1.0, prior_sd=prior, share=0.0, eps=0.0, box=(-9.0, 9.0), noise_sd=noise, steps=1000, start_sd=0.1
    )
    ones = np.concatenate([x, np.ones_like(x)], 1)
    precision = ones.T @ ones / noise**2 + np.eye(2) / prior**2
    mean = np.linalg.solve(precision, ones.T @ y / noise**2)
    layer = source.networks.Layer("dense", "dense", 1, 1)
    architecture = source.networks.Architecture("line", (1, 1), (layer,), "Relu", "gaussian")
    return architecture, split, settings, float(mean[0]), 1 / math.sqrt(precision[0, 0])


def test_natural_gradients_find_the_posterior_of_a_line(source: SimpleNamespace) -> None:
    pytest.importorskip("ivon", reason="needs ivon-opt (group `training`)")
    architecture, split, settings, mean, sd = linear_regression(source)
    natural = source.natural.Natural(rate=0.05, memory=0.98, clip=1e9)
    fitted = source.natural.fit_natural(architecture, split, settings, 0, natural)
    assert float(fitted.mean["dense_weight"][0, 0]) == pytest.approx(mean, abs=sd)
    assert float(fitted.sd["dense_weight"][0, 0]) == pytest.approx(sd, rel=0.25)


def test_a_chain_finds_the_posterior_of_a_line(source: SimpleNamespace) -> None:
    pytest.importorskip("numpyro", reason="needs NumPyro (group `training`)")
    architecture, split, settings, mean, sd = linear_regression(source)
    chain = source.chains.Chain(points=200, warmup=100, kept=150, thinning=1, depth=4)
    begin = architecture.initial(torch.Generator().manual_seed(0))
    drawn = (
        source.chains.draw_samples(architecture, split, settings.prior_sd, settings.noise_sd, chain, begin, 0)[
            "dense_weight"
        ]
        .double()
        .numpy()[:, 0, 0]
    )
    assert drawn.shape == (150,)
    assert drawn.mean() == pytest.approx(mean, abs=sd / 2)
    assert drawn.std() == pytest.approx(sd, rel=0.3)


def test_only_dense_layers_are_sampled(source: SimpleNamespace) -> None:
    pytest.importorskip("numpyro", reason="needs NumPyro (group `training`)")
    with pytest.raises(ValueError, match="only dense layers"):
        source.chains.draw_samples(source.networks.CONV, None, 1.0, 1.0, source.chains.Chain(), {}, 0)
