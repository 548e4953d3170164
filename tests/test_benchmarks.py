"""The shipped benchmark: complete, small, consistent, and as accurate as its README says."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnn_vnnlib import Model, Property, read_model, read_property
from bnn_vnnlib.model import GaussianDiagonal, WeightSamples
from bnn_vnnlib.vnnlib import match

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "digits"
MODULES = ("splits", "networks", "properties", "training", "catalogue", "folder", "generate")
CACHE = re.compile(r"/digits/(.*/)?(\.|__)[^/]*/")  # not shipped
MODELS = ("digits_vi_mlp", "digits_vi_conv", "digits_ensemble", "diabetes_vi_tanh")


def rows_of(name: str) -> list[list[str]]:
    """The rows of an instances file."""
    with (BENCHMARK / name).open(newline="") as stream:
        return list(csv.reader(stream))


V1, V2 = rows_of("instances.csv"), rows_of("instances_2.0.csv")
NAMES = [Path(row[1]).name for row in V1]


@pytest.fixture(scope="module")
def source() -> Iterator[SimpleNamespace]:
    """The generator's own modules, imported as its script would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARK)
        yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """Every model by its path in the instances files."""
    return {row[0]: read_model(BENCHMARK / row[0]) for row in V1}


@pytest.fixture(scope="module")
def instances(source: SimpleNamespace) -> list[Any]:
    """What the generator would write now, for the models as they are."""
    g, digits, diabetes = source.generate, source.splits.digits(), source.splits.diabetes()
    outputs = {a.name: g.mean_network(a) for a in (g.MLP, g.CONV)}
    outputs[g.ENSEMBLE.name] = g.predictive(g.ENSEMBLE)
    patients = source.catalogue.diabetes_instances(diabetes, g.mean_network(g.DIABETES), 0)
    return [*source.catalogue.digits_instances(digits, outputs, 0), *patients]


def test_small() -> None:
    files = [path for path in BENCHMARK.rglob("*") if path.is_file() and not CACHE.search(path.as_posix())]
    assert len(files) > 2 * len(NAMES)
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_both_versions_list_the_same_instances() -> None:
    assert [(row[0], row[1].replace("/1.0/", "/2.0/"), row[2]) for row in V1] == [tuple(row) for row in V2]
    assert len(set(NAMES)) == len(NAMES) >= 36
    assert {Path(row[0]).stem for row in V1} == set(MODELS)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_no_file_is_left_out(version: str) -> None:
    assert sorted(path.name for path in (BENCHMARK / "vnnlib" / version).iterdir()) == sorted(NAMES)
    assert {path.stem for path in (BENCHMARK / "onnx").iterdir()} == set(MODELS)


@pytest.mark.parametrize("row", [*V1, *V2], ids=lambda row: row[1].removeprefix("vnnlib/"))
def test_instance_fits_its_model(row: list[str], models: dict[str, Model]) -> None:
    path = BENCHMARK / row[1]
    prop = read_property(path, models[row[0]].network.signature)
    assert match(prop, models[row[0]].network.signature).notes == ()
    assert f"{prop.version[0]}.{prop.version[1]}" == path.parent.name
    assert prop.num_cases > 0
    lower, upper = prop.boxes.inner_lower, prop.boxes.inner_upper
    fixed = lower[lower == upper]
    assert (lower <= upper).all()  # some float64 lies inside, and a fixed input is a float32: witnesses can exist
    assert (fixed == fixed.astype(np.float32)).all()
    assert 20 <= float(row[2]) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_versions_have_one_normal_form(name: str) -> None:
    first, second = (read_property(BENCHMARK / "vnnlib" / version / name) for version in ("1.0", "2.0"))
    for mine, other in zip(arrays(first), arrays(second), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert first.options == second.options


def arrays(prop: Property) -> list[Any]:
    """The normal form, as a flat list of arrays (or None)."""
    boxes = [prop.boxes.lower, prop.boxes.upper, prop.boxes.inner_lower, prop.boxes.inner_upper, prop.case_box]
    halves = [
        [part.outputs, part.inputs, part.bound, part.inner_bound, part.strict, part.owner]
        for part in (prop.constraints, prop.rows)
    ]
    return [*boxes, *halves[0], *halves[1]]


def test_files_are_what_the_generator_writes(instances: list[Any]) -> None:
    assert [f"{instance.spec.name}.vnnlib" for instance in instances] == NAMES
    for instance in instances:
        for version, text in (("1.0", instance.spec.v1()), ("2.0", instance.spec.v2())):
            assert (BENCHMARK / "vnnlib" / version / f"{instance.spec.name}.vnnlib").read_text() == text


@pytest.mark.parametrize("name", [name for name in NAMES if "_robust_" in name])
def test_robust_means_what_its_name_says(name: str, source: SimpleNamespace) -> None:
    index, radius = re.fullmatch(r".*_robust_(\d+)_([\d.]+)\.vnnlib", name).groups()
    split = source.splits.digits()
    image, label = split.test_x[int(index)], split.test_y[int(index)]
    prop = read_property(BENCHMARK / "vnnlib" / "1.0" / name)
    np.testing.assert_allclose(prop.boxes.lower, [np.maximum(image - float(radius), 0)], rtol=0, atol=1e-15)
    np.testing.assert_allclose(prop.boxes.upper, [np.minimum(image + float(radius), 1)], rtol=0, atol=1e-15)
    for scores in np.random.default_rng(0).integers(-2, 3, (50, 10)):
        held = prop.rows.outputs @ scores <= prop.rows.bound
        violated = any(held[prop.rows.owner == case].all() for case in range(prop.num_cases))
        assert violated == (np.delete(scores, label).max() >= scores[label])


def test_kinds_of_property() -> None:
    props = [read_property(BENCHMARK / row[1]) for row in V1]
    assert {prop.options.get("query") for prop in props} == {None, "probabilistic", "decision", "deterministic"}
    assert any("tau_unsafe" in prop.options for prop in props)
    assert any(len(prop.constraints) for prop in props)
    assert any(len(prop.boxes) > 1 for prop in props)
    assert any(len(prop.rows) > prop.num_cases > 1 for prop in props)
    assert any(prop.rows.inputs is not None and prop.rows.inputs.any() for prop in props)


@pytest.mark.parametrize("name", MODELS)
def test_models_carry_their_posterior(name: str, models: dict[str, Model]) -> None:
    model = models[f"onnx/{name}.onnx"]
    assert model.likelihood == ("gaussian" if name.startswith("diabetes") else "categorical")
    if name == "digits_ensemble":
        assert isinstance(model.posterior, WeightSamples)
        assert len(model.posterior.probabilities) == 16
        tensors = model.posterior.samples
        assert all((np.ptp(values, axis=0) > 0).any() for values in tensors.values())
    else:
        assert isinstance(model.posterior, GaussianDiagonal)
        tensors = model.posterior.variances
        assert all((values > 0).all() for values in tensors.values())
    assert set(tensors) == set(model.network.tensors)


def figures() -> dict[str, list[str]]:
    """The table in README.md: {model: [predictive, mean network]}."""
    text = (BENCHMARK / "README.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- figures -->(.*)<!-- end of figures -->", text, re.DOTALL)[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {row[0]: row[-2:] for row in cells}


def test_the_readme_lists_every_model() -> None:
    assert set(figures()) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_mean_network_scores_as_stated(name: str, source: SimpleNamespace) -> None:
    architecture = {a.name: a for a in (*source.generate.DIGITS_MODELS, source.generate.DIABETES)}[name]
    split = source.splits.diabetes() if name.startswith("diabetes") else source.splits.digits()
    outputs = source.generate.mean_network(architecture)(split.test_x)
    same_measure(source.generate.score(architecture, split, outputs), figures()[name][1])


def test_ensemble_predicts_as_stated(source: SimpleNamespace) -> None:
    g, split = source.generate, source.splits.digits()
    outputs = g.predictive(g.ENSEMBLE)(split.test_x)
    np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-5)
    same_measure(g.score(g.ENSEMBLE, split, outputs), figures()[g.ENSEMBLE.name][0])
    assert float(figures()[g.ENSEMBLE.name][0].split()[1]) > 0.9


def same_measure(measured: str, stated: str) -> None:
    """Equal up to one of the 360 test images (sums may be ordered otherwise on another machine)."""
    (kind, value), (stated_kind, stated_value) = measured.split(), stated.split()
    assert kind == stated_kind
    assert float(value) == pytest.approx(float(stated_value), abs=1 / 360)


def test_torch_and_onnxruntime_agree(source: SimpleNamespace) -> None:
    """The trained function is the exported one: the layouts and paddings of both agree."""
    import torch

    split = source.splits.digits()
    architecture = source.networks.CONV
    tensors = read_model(BENCHMARK / "onnx" / "digits_vi_conv.onnx").network.tensors
    weights = {name: torch.tensor(values, dtype=torch.float32) for name, values in tensors.items()}
    computed = architecture.forward(weights, torch.as_tensor(split.test_x[:20]).float()).numpy()
    replayed = source.generate.mean_network(architecture)(split.test_x[:20])
    np.testing.assert_allclose(computed, replayed, atol=1e-4)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-100, max_value=100, places=6))
def test_number_is_exact(value: Decimal) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARK)
        from properties import number
    text = number(value)
    assert re.fullmatch(r"-?\d+\.\d+", text)
    assert Decimal(text) == value
    assert text != "-0.0"
