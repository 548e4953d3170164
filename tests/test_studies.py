"""The studies: each one on a few inputs of generated networks and data, and their helpers against simple truths."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
pytest.importorskip("matplotlib", reason="needs matplotlib (group `dev`)")
pytest.importorskip("pyarrow", reason="needs pyarrow (extra `parquet`)")


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    """The scripts' own folder, as when one of them is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("studies", "study", "npz_to_onnx")]:
        sys.modules.pop(name)


def dense(folder: Path, name: str, sizes: tuple[int, ...], activation: str, scale: float = 1.0) -> None:
    """A published posterior, made up."""
    rng = np.random.default_rng(len(name))
    arrays = {"arch_json": np.array(json.dumps({"activation": activation}))}
    for k in range(len(sizes) - 1):
        weight = scale * rng.normal(size=sizes[k : k + 2]).astype(np.float32) / math.sqrt(sizes[k])
        arrays |= {f"mean_{2 * k}": weight, f"std_{2 * k}": np.full_like(weight, 1e-3)}
        bias = np.zeros(sizes[k + 1], np.float32)
        arrays |= {f"mean_{2 * k + 1}": bias, f"std_{2 * k + 1}": np.full_like(bias, 1e-3)}
    np.savez(folder / f"{name}.npz", **arrays)


def sampled(folder: Path, name: str, like: str, count: int = 3) -> None:
    """Weight samples around another network."""
    rng = np.random.default_rng(1)
    with np.load(folder / f"{like}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files if not key.startswith("std_")}
    for key in [key for key in arrays if key.startswith("mean_")]:
        noise = 0.05 * rng.normal(size=(count, *arrays[key].shape))
        arrays[key.replace("mean", "samples")] = (arrays[key] + noise).astype(np.float32)
    np.savez(folder / f"{name}.npz", **arrays, freq=np.ones(count, np.int64))


def image_net(folder: Path, name: str) -> None:
    """A convolution, a pool, and a dense layer, as published for traffic signs."""
    rng = np.random.default_rng(2)
    layers = [
        {"cls": "InputLayer", "batch_input_shape": [None, 28, 28, 3]},
        {"cls": "Conv2D", "strides": [4, 4], "padding": "valid", "activation": "relu"},
        {"cls": "MaxPooling2D", "strides": [2, 2], "pool_size": [2, 2], "padding": "valid"},
        {"cls": "Flatten"}, {"cls": "Dense", "activation": "softmax"},
    ]  # fmt: skip
    shapes = ((4, 4, 3, 2), (2,), (18, 2), (2,))
    arrays = {f"mean_{i}": 0.2 * rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}
    arrays |= {f"std_{i}": np.full(shape, 1e-3, np.float32) for i, shape in enumerate(shapes)}
    np.savez(folder / f"{name}.npz", **arrays, arch_json=np.array(json.dumps(layers)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with everything that the studies read, small and made up."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    axes = (np.linspace(-0.2, 0.8, 4), np.linspace(-0.5, 0.5, 11), np.linspace(-0.5, 0.5, 11))
    mesh = np.meshgrid(*axes[::-1], indexing="ij")
    np.save(folder / "hcas_X.npy", np.stack([part.ravel() for part in mesh[::-1]], 1).astype(np.float32))
    dense(folder, "hcas_rob_pra0_tau20", (3, 8, 5), "relu", 3.0)
    sampled(folder, "hcas_hmc_pra0_tau20", "hcas_rob_pra0_tau20")
    np.save(folder / "hcas_labels_pra0_tau20.npy", rng.integers(-1, 5, 4 * 11 * 11))
    split = {}
    for name, stem, count in (("concrete", "uci_concrete", 8), ("powerplant", "uci_power-plant", 4)):
        np.savez(folder / f"{stem}.npz", X=rng.normal(size=(40, count)), y=rng.normal(size=40))
        dense(folder, f"uci_vogn32tanh_{name}1", (count, 6, 1), "tanh", 0.3)
        parts = {"test": np.arange(30, 40), "train": np.arange(30), "x_mean": np.zeros(count), "x_std": np.ones(count)}
        parts |= {"y_mean": np.zeros(()), "y_std": np.ones(())}
        split |= {f"{name}_{part}": values for part, values in parts.items()}
    np.savez(folder / "uci_split1.npz", **split)
    images = rng.integers(0, 256, (20, 28, 28)).astype(np.uint8)
    digits = rng.integers(0, 10, 20).astype(np.uint8)
    np.savez(folder / "mnist_t10k.npz", x=images, y=digits, train_idx=np.arange(10), test_idx=np.arange(10, 20))
    for trained in ("0.05", "0.1"):
        for shape in ("32x1", "64x1", "128x1", "32x2", "64x2", "32x3"):
            width, depth = (int(part) for part in shape.split("x"))
            dense(folder, f"mnist_vogn_{shape}_eps{trained}", (784, *[width // 16] * depth, 10), "relu")
    signs = rng.integers(0, 256, (12, 28, 28, 3)).astype(np.uint8)
    np.savez(folder / "gtsrb_50kmh_roadwork_28.npz", x=signs, y=rng.choice([2, 25], 12))
    for posterior in (0, 5):
        image_net(folder, f"gtsrb_VOGN_small_Posterior_{posterior}")
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: None) -> None:
    """The families of benchmarks/ belong to other data; and what takes long is done coarsely."""
    from bnn_vnnlib.attack import Attack
    from bnn_vnnlib.sweeps import Radii
    from studies import mnist, places, radius_validation, regression, validation

    monkeypatch.setattr(places, "BENCHMARKS", tmp_path)
    for module in (mnist, regression):
        monkeypatch.setattr(module, "SEARCH", Radii(largest=0.5, tolerance=0.2))
    monkeypatch.setattr(mnist, "SHAPES", ("32x1", "64x1", "32x2"))
    for module, name, value in (
        (validation, "FRESH", 200), (validation, "NETWORKS", 10), (radius_validation, "NETWORKS", 20),
        (radius_validation, "ATTACK", Attack(steps=5, restarts=3)), (radius_validation, "HALVINGS", 3),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def study(*arguments: object) -> str:
    """Run a study as the command line does, and return what it prints."""
    import study as script

    result = CliRunner().invoke(script.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


STUDIES = (
    ("hcas", 30, ["--network", "pra0_tau20"], ["hcas_cubes", "hcas_cubes_networks"], ["hcas_cubes"]),
    ("decision", 4, [], ["decision_pra0_tau20"], ["decision_pra0_tau20"]),
    ("regression", 3, [], ["regression"], ["regression"]),
    ("mnist", 3, [], ["mnist_decision", "mnist_radii"], ["mnist_decision", "mnist_radii"]),
    ("recipe", 2, [], ["recipe", "recipe_ablation", "recipe_shortcuts"], ["recipe"]),
    ("validation", 2, [], ["validation", "validation_radii"], ["validation", "validation_radii"]),
    ("outliers", 2, [], ["outliers"], ["outliers"]),
    ("signs", 2, [], ["signs"], ["signs"]),
)


@pytest.mark.parametrize(("name", "limit", "options", "tables", "figures"), STUDIES, ids=[case[0] for case in STUDIES])
def test_a_study_writes_its_tables_and_figures(
    data: Path, tmp_path: Path, name: str, limit: int, options: list[str], tables: list[str], figures: list[str]
) -> None:
    arguments = [name, "--data", data, "--out", tmp_path / "out", "--limit", limit, *options]
    said = study(*arguments)
    assert said.count("|") > 10
    for stem in tables:
        rows = table(tmp_path / "out" / f"{stem}.csv")
        assert rows
        assert (tmp_path / "out" / f"{stem}.md").read_text().count("\n") >= len(rows)
    for stem in figures:
        assert (tmp_path / "out" / f"{stem}.png").stat().st_size > 5000
        assert (tmp_path / "out" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "work").rglob("*/parts/*")}
    first = {stem: (tmp_path / "out" / f"{stem}.csv").read_text() for stem in tables}
    study(*arguments)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # nothing is computed twice
    assert {stem: (tmp_path / "out" / f"{stem}.csv").read_text() for stem in tables} == first


def test_no_attack_gets_past_a_bound(data: Path, tmp_path: Path) -> None:
    study("validation", "--data", data, "--out", tmp_path, "--limit", 3)
    for row in table(tmp_path / "validation.csv"):
        assert [row[name] for name in row if "violations" in name] == ["0", "0", "0"]
    rows = table(tmp_path / "validation_radii.csv")
    assert [row["violations"] for row in rows] == ["0", "0", "0"]
    assert sum(int(row["inputs"]) for row in rows) > 0


@pytest.fixture
def own(data: Path, tmp_path: Path) -> None:
    """Three networks of our own in what the studies take for benchmarks/: hcas, concrete (wide), digits."""
    from npz_to_onnx import convert
    from onnx import save_model

    for name, sizes, activation, likelihood in (
        ("hcas_vi_125_pra0_tau20", (3, 6, 5), "relu", "categorical"),
        ("concrete_vi_100", (8, 5, 1), "relu", "gaussian"),
        ("digits_vi_mlp", (64, 6, 10), "relu", "categorical"),
    ):
        dense(tmp_path, name, sizes, activation)
        folder = tmp_path / name.split("_")[0] / "onnx"
        folder.mkdir(parents=True)
        save_model(convert(tmp_path / f"{name}.npz", likelihood), folder / f"{name}.onnx")


def test_our_own_networks_are_attacked_as_well(data: Path, tmp_path: Path, own: None) -> None:
    """A regression, whose output is attacked instead of a probability, and a classifier of other digits."""
    chosen = ["--network", "concrete_vi_100", "--network", "digits_vi_mlp"]
    study("validation", "--data", data, "--out", tmp_path / "out", "--limit", 2, "--only", "bounds", *chosen)
    rows = table(tmp_path / "out" / "validation.csv")
    assert [row["network"] for row in rows] == ["concrete_vi_100", "digits_vi_mlp"]
    assert {row[name] for row in rows for name in row if "violations" in name} == {"0"}
    assert all(float(row["D: mean gap"]) > float(row["D: mean attacked least - lower"]) > 0 for row in rows)
    study("validation", "--data", data, "--out", tmp_path / "out", "--limit", 2, "--only", "radii", *chosen)
    rows = table(tmp_path / "out" / "validation_radii.csv")
    assert [row["network"] for row in rows] == ["concrete_vi_100", "digits_vi_mlp"]
    assert [row["violations"] for row in rows] == ["0", "0"]


def test_the_recipe_on_our_own_networks(data: Path, tmp_path: Path, own: None) -> None:
    study("recipe", "--data", data, "--out", tmp_path / "out", "--limit", 2, "--network", "_vi_")
    rows = table(tmp_path / "out" / "recipe.csv")
    assert [row["network"] for row in rows] == ["hcas_vi_125_pra0_tau20", "concrete_vi_100", "digits_vi_mlp"]
    assert [row["weights"] for row in rows] == ["59", "51", "460"]
    assert (tmp_path / "out" / "recipe_own.png").is_file()
    assert not (tmp_path / "out" / "recipe.png").exists()


def test_how_far_a_mean_may_be_off() -> None:
    """Of bounded values by the inequality; of others by Student's t, for which normal values are drawn here."""
    from studies import validation

    chance = np.random.default_rng(0)
    values = chance.normal(3.0, 2.0, (4000, validation.FRESH))
    off = np.abs(values.mean(1) - 3.0)
    allowed = validation.slack(values.var(1, ddof=1), bounded=False)
    assert (off <= allowed).all()
    quantile = stats.norm.isf(validation.LEVEL / 2)
    np.testing.assert_allclose(allowed, quantile * 2 / math.sqrt(validation.FRESH), rtol=0.25)
    assert (validation.slack(values.var(1), bounded=True) > allowed).all()


def test_a_bound_that_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that cut off what the attack reaches, or claim more than the share of the networks, are violations."""
    from studies import validation
    from studies.validation import Outcome

    monkeypatch.setattr(validation, "NETWORKS", 100)
    one, slack = np.ones(3), (np.full(3, 0.01), np.full(3, 0.01))
    least, most, share = 0.3 * one, 0.6 * one, 0.5 * one

    def outcome(low: float, high: float, p_low: float, p_high: float) -> Outcome:
        return Outcome(low * one, high * one, least, most, p_low * one, p_high * one, share, share, slack, exact=False)

    fine = outcome(0.3, 0.6, 0.5, 0.5)
    assert not (fine.outside | fine.too_few | fine.too_many).any()
    assert outcome(0.32, 0.6, 0.5, 0.5).outside.all()
    assert outcome(0.3, 0.58, 0.5, 0.5).outside.all()
    assert outcome(0.3, 0.6, 0.8, 0.9).too_few.all()
    assert outcome(0.3, 0.6, 0.1, 0.2).too_many.all()


def test_the_empirical_radius_is_where_too_few_networks_are_left() -> None:
    """Threshold .7: the least radius within which more than .3 of the networks were broken."""
    from studies.radius_validation import empirical

    least = np.array([0.4, 0.1, np.inf, 0.2, 0.3, np.inf, np.inf, 0.6, 0.5, np.inf])
    assert empirical(least, np.full(10, 0.1)) == 0.4  # .1, .2, .3 are still .3 of the networks
    assert empirical(least, np.array([0.02, 0.4, *[0.58 / 8] * 8])) == 0.1
    assert empirical(np.array([0.1, 0.2, np.inf, np.inf]), np.array([0.1, 0.1, 0.4, 0.4])) == np.inf


def test_a_radius_that_is_too_large_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 of 200 networks may be broken within a certified radius, about 95 cannot; of samples no share above .3 may."""
    from studies import radius_validation
    from studies.radius_validation import Outcome

    monkeypatch.setattr(radius_validation, "NETWORKS", 200)
    radius, broken = np.full(4, 0.1), np.array([0.0, 0.3, 0.35, 0.475])
    drawn = Outcome(radius, radius, radius, broken, exact=False)
    assert drawn.too_many.tolist() == [False, False, False, True]
    assert Outcome(radius, radius, radius, broken, exact=True).too_many.tolist() == [False, False, True, True]


def test_attacks_find_the_radius_of_a_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """y = w x with two samples w of weights 1/4 and 3/4, within 1 of 0 around 0: broken from 1 / |w| on."""
    from dataclasses import replace

    from bnn_vnnlib.model import WeightSamples
    from bnn_vnnlib.sweeps import Radii, make_inputs
    from studies import radius_validation
    from studies.places import Places

    places = Places(data, tmp_path, 1)
    dense(data, "line", (1, 1), "tanh")
    line = places.published("line", "gaussian")
    names = [name for name, tensor in line.network.tensors.items() if tensor.size == 1]
    samples = {name: np.zeros((2, *line.network.tensors[name].shape)) for name in names}
    weight = next(name for name in names if line.network.tensors[name].ndim == 2)
    samples[weight][:, 0, 0] = 4.0, 2.0
    model = replace(line, posterior=WeightSamples(samples, np.array([0.25, 0.75])))
    inputs = make_inputs({"x": np.zeros((1, 1)), "y": np.zeros(1)})
    subject = radius_validation.Subject("line", model, inputs, Radii(largest=1.0, tolerance=0.01), delta=1.0)
    monkeypatch.setattr(radius_validation, "HALVINGS", 8)
    found = radius_validation.validated(places, subject)
    assert 0.49 <= found.robust[0] <= 0.5 <= found.unrobust[0] <= 0.51
    assert found.reached[0] == pytest.approx(0.5, abs=0.01)
    assert found.broken[0] == 0.25


def test_the_cells_are_a_partition() -> None:
    from studies.hcas import cells

    axes = (np.array([0.0, 1.0, 5.0]), np.array([-1.0, 1.0]), np.array([0.0, 0.5, 2.0]))
    grid = np.stack([part.ravel() for part in np.meshgrid(*axes, indexing="ij")], 1)
    lower, upper = cells(grid)
    assert np.prod(upper - lower, axis=1).sum() == pytest.approx(5 * 2 * 2)
    assert ((lower <= grid) & (grid <= upper)).all()
    points = np.random.default_rng(0).uniform([0, -1, 0], [5, 1, 2], (200, 3))
    inside = ((lower <= points[:, None]) & (points[:, None] <= upper)).all(-1)
    assert (inside.sum(1) == 1).all()


def test_shortcuts_claim_what_is_not_true_and_our_bounds_hold() -> None:
    from studies.shortcuts import counterexamples

    wide, away, kernel = counterexamples()
    for row in (wide, away, kernel):
        assert float(row["our lower bound"]) <= float(row["truth"]) + 1e-12
        assert float(row["truth"]) <= float(row["our upper bound"]) + 1e-12
    assert float(wide["truth"]) == pytest.approx(stats.norm.cdf(2))
    assert float(str(wide["it claims"]).split(">= ")[1]) > float(wide["truth"])
    assert float(str(away["it claims"]).split("<= ")[1]) < float(away["truth"])
    assert float(str(kernel["it claims"]).split(">= ")[1]) > float(kernel["truth"])


def test_masses_of_sampled_boxes(data: Path, tmp_path: Path) -> None:
    """Against the exact union of one box, and twice the margin against a box twice as wide."""
    from studies.places import Places
    from studies.recipe import log_masses, sampled, setups

    setup = next(setups(Places(data, tmp_path, 2)))
    one, two = sampled(setup, 4, 2.0), sampled(setup, 4, 4.0)
    for family, log_mass in zip((one, two), log_masses(setup, one, (2.0, 4.0)), strict=True):
        np.testing.assert_allclose(10**log_mass, family.union.single_lower.numpy(), rtol=1e-6)


def test_shuffled_patches_keep_every_pixel() -> None:
    from studies.outliers import shuffled

    x = np.random.default_rng(0).random((3, 28, 28))
    moved = shuffled(x, np.random.default_rng(1))
    assert (np.sort(moved.reshape(3, -1)) == np.sort(x.reshape(3, -1))).all()
    corners = {moved[0, 7 * i, 7 * j] for i in range(4) for j in range(4)}
    assert corners == {x[0, 7 * i, 7 * j] for i in range(4) for j in range(4)}
    assert (moved != x).mean() > 0.5


HCAS_NAMES = "there are " + ", ".join(f"'hcas_rob_pra0_tau{time:02d}'" for time in (0, 5, 10, 15, 20, 30, 40, 60))
REGRESSION_MESSAGE = (
    "no network's name contains 'a b' or 'x y'; "
    "there are 'published concrete, 32 tanh', 'published powerplant, 32 tanh'"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hcas", "--data", "DATA", "--out", "OUT", "--network", "nowhere"], f"contains 'nowhere'; {HCAS_NAMES}, .."),
        (
            ["decision", "--data", "DATA", "--out", "OUT", "--network", "nix"],
            "there are 'hcas_rob_pra0_tau20', 'hcas_hmc",
        ),
        (
            ["mnist", "--data", "DATA", "--out", "OUT", "--network", "32x1"],
            "with --network say --only",
        ),
        (["recipe", "--data", "DATA", "--out", "OUT", "--network", "nix"], "there are 'hcas_rob_pra0_tau20', 'uci_"),
        (["validation", "--data", "DATA", "--out", "OUT", "--network", "hcas"], "with --network say --only"),
        (
            ["validation", "--data", "DATA", "--out", "OUT", "--only", "radii", "--network", "mnist"],
            "no network's name contains 'mnist'; there are 'uci_vogn32tanh_concrete1', 'hcas_rob_pra0_tau20'",
        ),
        (["outliers", "--data", "DATA", "--out", "OUT", "--network", "nix"], "there are 'mnist_vogn_32x1_eps0.1'"),
        (["signs", "--data", "DATA", "--out", "OUT", "--network", "nix"], "there are 'gtsrb_VOGN_small_Posterior_0'"),
        (["decision", "--data", "OUT", "--out", "OUT"], "hcas_rob_pra0_tau20.npz is neither here nor"),
        (["hcas", "--data", "DATA", "--out", "OUT", "--own"], "there are no networks to choose from"),
        (["regression", "--data", "DATA", "--out", "OUT", "--network", "a b", "--network", "x y"], REGRESSION_MESSAGE),
        (["regression", "--data", "OUT", "--out", "OUT"], "uci_vogn32tanh_concrete1.npz is neither here nor"),
        (["hcas", "--data", "DATA", "--out", "OUT", "--bounds", "OUT/none.parquet"], "none.parquet"),
        (["decision", "--data", "DATA", "--out", "OUT", "--own"], "benchmarks/hcas has no network of pra0_tau20"),
    ],
)
def test_wrong_input_is_one_message(data: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    import study as script

    (tmp_path / "out").mkdir()
    words = [word.replace("DATA", str(data)).replace("OUT", str(tmp_path / "out")) for word in arguments]
    result = CliRunner().invoke(script.app, words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("hcas_X.npy", b"no array", ["hcas"], "hcas_X.npy: expected an npy file"),
        ("hcas_rob_pra0_tau20.npz", b"cut off", ["decision"], "expected a posterior as scripts/npz_to_onnx.py"),
        ("mnist_t10k.npz", None, ["outliers"], "mnist_t10k.npz: expected an npz file with x, y ("),
        ("uci_split1.npz", b"", ["regression"], "uci_split1.npz: expected an npz file with concrete_test, concrete_x"),
        ("gtsrb_50kmh_roadwork_28.npz", b"x", ["signs"], "expected an npz file with x, y"),
    ],
)
def test_a_broken_file_is_one_message(
    data: Path, tmp_path: Path, name: str, content: bytes | None, arguments: list[str], message: str
) -> None:
    """A file that was cut off, or (None) an archive with other arrays."""
    import study as script

    folder = tmp_path / "broken"
    shutil.copytree(data, folder)
    if content is None:
        np.savez(folder / name, other=np.zeros(2))
    else:
        (folder / name).write_bytes(content)
    words = [*arguments, "--data", str(folder), "--out", str(tmp_path / "out"), "--limit", "1"]
    result = CliRunner().invoke(script.app, words)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


def test_images_of_another_kind_are_refused(tmp_path: Path) -> None:
    from bnn_vnnlib.errors import InputError
    from studies.outliers import read

    bad = {"no_x": {"z": np.zeros(3)}, "shape": {"x": np.zeros((2, 5))}, "range": {"x": np.full((2, 784), 300.0)}}
    for name, arrays in bad.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(InputError):
            read(tmp_path / f"{name}.npz")
    np.savez(tmp_path / "good.npz", x=np.full((2, 28, 28), 255, np.uint8))
    assert (read(tmp_path / "good.npz") == 1).all()


def test_titles_of_figures_are_words():
    from studies.figures import in_words

    assert in_words("mnist_vogn_128x1_eps0.1") == "MNIST, VOGN, 1 x 128, trained with eps 0.1"
    assert in_words("hcas_vi_50x50_pra0_tau20") == "collision avoidance, variational, 50, 50, advisory 0 before, 20 s"
    assert in_words("mine") == "mine"
