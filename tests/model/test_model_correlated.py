"""Correlated posteriors and mixtures: in files, in archives, sampled, and refused where they are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_helpers import small_net
from onnx import ModelProto, numpy_helper

from bnn_vnnlib.errors import PosteriorError, UnsupportedError
from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianFull,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Posterior,
    attach,
    describe,
    from_covariance,
    from_factor,
    from_low_rank,
    model_from_proto,
    read_posterior_npz,
    sample,
)
from bnn_vnnlib.network.families import entries_of, family_of, marginal_variances, names_of, only
from bnn_vnnlib.posteriors.parts import read_parts, without_posterior
from bnn_vnnlib.posteriors.simplify import simplified

SHAPES = {"W1": (5, 4), "b1": (5,), "W2": (5, 3), "b2": (3,)}


def low_rank(seed: int = 1) -> GaussianLowRank:
    rng = np.random.default_rng(seed)
    return from_low_rank(0.3 * rng.normal(size=(23, 3)), rng.uniform(0, 0.1, 23), {"W1": (5, 4), "b2": (3,)})


def full() -> GaussianFull:
    root = np.random.default_rng(2).normal(size=(18, 18))
    return from_covariance(root @ root.T, {"W2": (5, 3), "b2": (3,)})


def kron() -> GaussianKron:
    """A joint bias as a last column, one as a last row, with factors that are not square."""
    rng = np.random.default_rng(3)
    first = KronLayer("W1", rng.normal(size=(5, 5)), rng.normal(size=(5, 5)), rng.uniform(0, 1, (5, 5)), "b1", 1)
    second = KronLayer("W2", rng.normal(size=(6, 2)), rng.normal(size=(3, 3)), rng.uniform(0, 1, (2, 3)), "b2", 0)
    return GaussianKron((first, second))


def separate() -> GaussianKron:
    """A bias of its own."""
    rng = np.random.default_rng(4)
    bias = KronLayer("b1", rng.normal(size=(5, 5)), np.ones((1, 1)), rng.uniform(0, 1, (5, 1)))
    return GaussianKron((bias, KronLayer("W2", rng.normal(size=(5, 5)), rng.normal(size=(3, 3)), np.ones((5, 3)))))


def mixture() -> Mixture:
    rng = np.random.default_rng(5)

    def means() -> dict[str, np.ndarray]:
        return {name: rng.normal(size=SHAPES[name]) for name in ("W1", "b1", "b2")}

    diagonal = GaussianDiagonal({"b1": rng.uniform(0, 1, 5)})
    return Mixture((Component(means(), diagonal), Component(means(), low_rank())), np.array([0.25, 0.75]))


def mixed_kron() -> Mixture:
    means = {name: np.random.default_rng(6).normal(size=SHAPES[name]) for name in ("W2", "b1")}
    return Mixture((Component(means, separate()),), np.ones(1))


FAMILIES = {
    "lowrank": low_rank(), "full": full(), "kron": kron(), "separate": separate(), "mixture": mixture(),
    "mixed kron": mixed_kron(),
}  # fmt: skip


def dense(posterior: Posterior, names: list[str]) -> np.ndarray:
    """The covariance (n, n) of these tensors, by definition; n entries in the order of the names."""
    size = sum(int(np.prod(SHAPES[name])) for name in names)
    starts = dict(zip(names, np.cumsum([0, *(int(np.prod(SHAPES[name])) for name in names)])[:-1], strict=True))
    found = np.zeros((size, size))

    def place(root: Mapping[str, np.ndarray]) -> np.ndarray:
        """(r, n) from {name: (r, ..)}."""
        columns = np.zeros((len(next(iter(root.values()))), size))
        for name, values in root.items():
            flat = values.reshape(len(values), -1)
            columns[:, starts[name] : starts[name] + flat.shape[1]] = flat
        return columns

    match posterior:
        case GaussianDiagonal(variances=variances):
            return np.diag(place({n: v[None] for n, v in variances.items()})[0])
        case GaussianFull(factors=factors):
            return (root := place(factors)).T @ root
        case GaussianLowRank(factors=factors, variances=variances):
            diagonal = sum(place({name: v[None]})[0] for name, v in variances.items())
            return (root := place(factors)).T @ root + np.diag(diagonal)
        case GaussianKron(layers=layers):
            for layer in layers:
                for a, b in np.ndindex(layer.spectrum.shape):
                    matrix = np.sqrt(layer.spectrum[a, b]) * np.outer(layer.left[:, a], layer.right[:, b])
                    row = place({name: part[None] for name, part in layer.split(matrix).items()})
                    found += row.T @ row
            return found
        case Mixture(components=components, probabilities=weights):
            flat = [np.concatenate([part.means[name].ravel() for name in names]) for part in components]
            mean = np.tensordot(weights, np.array(flat), 1)
            for weight, own, part in zip(weights, flat, components, strict=True):
                found += weight * (dense(part.posterior, names) + np.outer(own - mean, own - mean))
            return found
        case _:
            raise TypeError(type(posterior).__name__)


def tensors(posterior: Posterior) -> dict[str, np.ndarray]:
    """Every number of a posterior, with where it belongs."""
    if isinstance(posterior, Mixture):
        found = {"probabilities": posterior.probabilities}
        for i, part in enumerate(posterior.components):
            found |= {f"{i} mean {name}": mean for name, mean in part.means.items()}
            found |= {f"{i} {key}": value for key, value in tensors(part.posterior).items()}
        return found
    entries = entries_of(posterior).items()
    found = {f"{name} {what}": value for name, entry in entries for what, value in entry.tensors.items()}
    links = {f"{name} bias": np.array([entry.bias, entry.bias_axis]) for name, entry in entries if entry.bias}
    return found | links


def same(found: Posterior | None, expected: Posterior, element: Any = np.float64) -> None:
    assert found is not None
    assert family_of(found) == family_of(expected)
    ours, theirs = tensors(found), tensors(expected)
    assert sorted(ours) == sorted(theirs)
    for key, value in theirs.items():
        if value.dtype.kind == "f" and key != "probabilities":
            value = value.astype(element).astype(np.float64)
        np.testing.assert_array_equal(ours[key], value, err_msg=key)


def without(proto: ModelProto, *parts: str) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(proto)
    kept = [tensor for tensor in proto.graph.initializer if not any(part in tensor.name for part in parts)]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy


def stored_names(proto: ModelProto) -> list[str]:
    plain = set(SHAPES)
    return [tensor.name for tensor in proto.graph.initializer if tensor.name not in plain]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("element", "embed"), [(np.float32, False), (np.float64, True)])
def test_round_trip(name: str, element: Any, embed: bool) -> None:
    """What is stored, in the weight's own type, is what is read; embedded, it survives a simplifier."""
    plain = small_net(element)
    proto = attach(plain, FAMILIES[name], likelihood="categorical", embed=embed)
    assert set(names_of(FAMILIES[name])) <= set(SHAPES)
    model = model_from_proto(proto)
    same(model.posterior, FAMILIES[name], element)
    assert not [note for note in model.notes if "shape" not in note]
    if embed:
        bare = without(proto, *stored_names(proto))
        assert len(bare.graph.initializer) == len(plain.graph.initializer)
        same(model_from_proto(bare).posterior, FAMILIES[name])
    left = without_posterior(proto, model.posterior)
    assert sorted(t.name for t in left.graph.initializer) == sorted(SHAPES)
    assert not left.metadata_props


@pytest.mark.parametrize("name", FAMILIES)
def test_every_missing_or_changed_tensor_is_refused(name: str) -> None:
    """Whatever tensor is gone or changed, the file is not read as something else."""
    proto = attach(small_net(), FAMILIES[name])
    for stored in stored_names(proto):
        with pytest.raises(PosteriorError, match="stripped"):
            model_from_proto(without(proto, stored))
        changed = ModelProto()
        changed.CopyFrom(proto)
        (tensor,) = [t for t in changed.graph.initializer if t.name == stored]
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, stored))
        with pytest.raises(PosteriorError, match="changed after it was attached"):
            model_from_proto(changed)
    for weight in names_of(FAMILIES[name]):
        changed = ModelProto()
        changed.CopyFrom(proto)
        (tensor,) = [t for t in changed.graph.initializer if t.name == weight]
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, weight))
        with pytest.raises(PosteriorError, match=r"stale now"):
            model_from_proto(changed)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_its_manifest_a_correlated_posterior_is_refused(name: str) -> None:
    """By name alone a part would be taken for the whole, or the network for a deterministic one."""
    proto = attach(small_net(), FAMILIES[name])
    del proto.metadata_props[:]
    with pytest.raises(PosteriorError, match="manifest is missing"):
        model_from_proto(proto)


def test_a_manifest_at_odds_with_itself_is_refused() -> None:
    proto = attach(small_net(), kron())
    content = json.loads(proto.metadata_props[0].value)
    for weight, key in (("W1", "bias"), ("b1", "layer")):
        broken = json.loads(json.dumps(content))
        del broken["params"][weight][key]
        proto.metadata_props[0].value = json.dumps(broken)
        with pytest.raises(PosteriorError):
            model_from_proto(proto)
    proto = attach(small_net(), mixture())
    content = json.loads(proto.metadata_props[0].value)
    for components in (None, [], [{"family": "samples", "params": {"W1": {}}}], [3], [{"family": "mixture"}]):
        proto.metadata_props[0].value = json.dumps(content | {"components": components})
        with pytest.raises(PosteriorError, match="damaged"):
            model_from_proto(proto)


ONE = np.ones((1, 1))
BAD = {
    "rank": (lambda: GaussianFull({"W1": np.ones((2, 5, 4)), "b1": np.ones((3, 5))}), "b1.*3 columns"),
    "no factor": (lambda: GaussianFull({}), "names no tensor"),
    "rank 0": (lambda: GaussianFull({"b1": np.ones((0, 5))}), "b1"),
    "nan": (lambda: GaussianFull({"b1": np.full((2, 5), np.nan)}), "b1.*NaN"),
    "one side": (lambda: GaussianLowRank({"b1": np.ones((2, 5))}, {"b2": np.ones(3)}), "b1, b2"),
    "shapes": (lambda: GaussianLowRank({"b1": np.ones((2, 5))}, {"b1": np.ones(3)}), "b1.*expected"),
    "negative": (lambda: from_low_rank(np.ones((3, 1)), [1, -1, 1], {"b2": (3,)}), "b2.*not positive semi-definite"),
    "spectrum": (lambda: GaussianKron((KronLayer("b1", ONE, ONE, -ONE),)), "b1.*not positive semi-definite"),
    "spectrum shape": (lambda: GaussianKron((KronLayer("b1", ONE, ONE, np.ones((1, 2))),)), "b1.*spectrum"),
    "twice": (lambda: GaussianKron((KronLayer("b1", ONE, ONE, ONE),) * 2), "b1.*two layers"),
    "own bias": (lambda: KronLayer("b1", ONE, ONE, ONE, "b1"), "b1.*itself"),
    "not psd": (
        lambda: from_covariance([[1, 2, 0], [2, 1, 0], [0, 0, 1]], {"b2": (3,)}),
        "not positive semi-definite.*-1",
    ),
    "not symmetric": (lambda: from_covariance([[1, 1], [0, 1]], {"b": (2,)}), "not symmetric"),
    "not square": (lambda: from_covariance(np.ones((2, 3)), {"b": (2,)}), "square"),
    "infinite": (lambda: from_covariance([[np.inf]], {"b": (1,)}), "NaN or infinite"),
    "size": (lambda: from_covariance(np.eye(4), {"b2": (3,)}), r"\(4, 4\).*\(3, k\)"),
    "no component": (lambda: Mixture((), np.ones(0)), "at least one"),
    "means": (
        lambda: Mixture((Component({"b1": np.ones(5)}, low_rank()), Component({"b2": np.ones(3)}, low_rank())), ONE[0]),
        "b1, b2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_posterior_is_refused_when_it_is_made(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(PosteriorError, match=message):
        make()


UNFIT = {
    "unknown": (from_factor(np.eye(3), {"b9": (3,)}), "no weight 'b9'; it has W1, b1, W2, b2"),
    "shape": (from_factor(np.eye(3), {"b1": (3,)}), r"b1.*\(3, 3\), expected \(3, 5\)"),
    "left": (GaussianKron((KronLayer("W1", np.eye(4), np.eye(4), np.ones((4, 4))),)),
    r"W1.*left.*\(4, 4\).*\(5, 4\)"),
    "right": (GaussianKron((KronLayer("W1", np.eye(5), np.eye(5), np.ones((5, 5))),)), r"W1.*right.*\(5, 5\).*\(4"),
    "bias": (
        GaussianKron((KronLayer("W1", np.eye(5), np.eye(5), np.ones((5, 5)), "b2"),)), r"b2.*\(3,\), expected \(5,\)",
    ),
    "axis": (GaussianKron((KronLayer("W1", np.eye(5), np.eye(5), np.ones((5, 5)), "b1", 0),)), "b1"),
    "probabilities": (Mixture(mixture().components, np.array([1.0])), "1 entries for 2 components"),
    "sum": (Mixture(mixture().components, np.array([0.5, 0.6])), "sum to 1"),
    "component": (Mixture((Component({"b1": np.ones(5)}, low_rank()),), np.ones(1)), "no mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_a_posterior_that_does_not_fit_is_refused_by_name(name: str) -> None:
    posterior, message = UNFIT[name]
    with pytest.raises(PosteriorError, match=message):
        attach(small_net(), posterior)


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_weights_have_the_covariance(name: str) -> None:
    posterior, count = FAMILIES[name], 40000
    network = model_from_proto(attach(small_net(np.float64), posterior)).network
    drawn = sample(network, posterior, count, torch.Generator().manual_seed(0))
    names = list(names_of(posterior))
    assert list(drawn) == names
    assert all(drawn[name].shape == (count, *SHAPES[name]) for name in names)
    flat = torch.cat([drawn[name].reshape(count, -1) for name in names], 1).numpy()
    mean = np.concatenate([network.tensors[name].ravel() for name in names])
    expected = dense(posterior, names)
    sd = np.sqrt(np.diag(expected))
    assert (np.abs(flat.mean(0) - mean) <= 5 * sd / np.sqrt(count) + 1e-12).all()
    error = np.abs(np.cov(flat.T) - expected) / (np.outer(sd, sd) + 1e-12)
    assert error.max() <= 6 * np.sqrt(2 / count)
    # and what reports say of single weights
    marginal = marginal_variances(posterior)
    found = np.concatenate([np.ravel(marginal[n]) for n in names])
    np.testing.assert_allclose(found, np.diag(expected), rtol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kept", [["b2"], ["b1"], ["W1", "b2"], ["W2"], ["W1"]])
def test_marginals(name: str, kept: list[str]) -> None:
    posterior = FAMILIES[name]
    names = [n for n in names_of(posterior) if n in kept]
    found = only(posterior, kept)
    if not names:
        assert found is None
        return
    assert found is not None
    assert sorted(names_of(found)) == sorted(names)
    everything = list(names_of(posterior))
    sizes = [int(np.prod(SHAPES[n])) for n in everything]
    chosen = np.concatenate([np.full(size, n in names) for n, size in zip(everything, sizes, strict=True)])
    np.testing.assert_allclose(dense(found, names), dense(posterior, everything)[np.ix_(chosen, chosen)], rtol=1e-12)


def test_constructors_keep_the_covariance() -> None:
    """Also a singular one, whose root is lower triangular all the same."""
    rng = np.random.default_rng(0)
    shapes = {"W1": (5, 4), "b2": (3,)}
    for root in (rng.normal(size=(23, 23)), rng.normal(size=(23, 4)), np.zeros((23, 1))):
        covariance = root @ root.T
        found = from_covariance(covariance, shapes)
        np.testing.assert_allclose(dense(found, list(shapes)), covariance, atol=1e-12 * max(covariance.max(), 1))
        flat = np.concatenate([found.factors[n].reshape(found.rank, -1) for n in shapes], 1)
        assert not np.tril(flat, -1).any()
        np.testing.assert_allclose(dense(from_factor(root, shapes), list(shapes)), covariance, rtol=1e-12, atol=1e-12)
    diagonal = rng.uniform(0, 1, 23)
    expected = root @ root.T + np.diag(diagonal)
    np.testing.assert_allclose(dense(from_low_rank(root, diagonal, shapes), list(shapes)), expected, rtol=1e-12)


def archive_of(posterior: Posterior) -> dict[str, np.ndarray]:
    if isinstance(posterior, Mixture):
        found = {"posterior_probabilities": posterior.probabilities}
        for i, part in enumerate(posterior.components):
            found |= {f"component{i}/{name}_mean": mean for name, mean in part.means.items()}
            found |= {f"component{i}/{key}": value for key, value in archive_of(part.posterior).items()}
        return found
    found = {}
    for name, entry in entries_of(posterior).items():
        found |= {f"{name}_{what}": value for what, value in entry.tensors.items()}
        if entry.bias is not None:
            found[f"{name}_bias"] = np.array(entry.bias)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_archives(name: str, tmp_path: Path) -> None:
    arrays, path = archive_of(FAMILIES[name]), tmp_path / "p.npz"
    np.savez(path, **arrays)
    same(read_posterior_npz(path, small_net()), FAMILIES[name])


ARCHIVES = {
    "part of a family": ({"W1_left": np.eye(5)}, "no family"),
    "two families": ({"b1_factor": np.ones((2, 5)), "b1_variance": np.ones(5)}, "no family"),
    "not for all": (
        {"b1_factor": np.ones((2, 5)), "b2_factor": np.ones((2, 3)), "b1_diagonal": np.ones(5)}, "b2.*_diagonal",
    ),
    "bias of nothing": ({"b1_variance": np.ones(5), "W1_bias": np.array("b1")}, "no family"),
    "bias as numbers": ({"W1_bias": np.ones(5)}, "expected the name"),
    "gap": ({"component1/b1_mean": np.ones(5), "posterior_probabilities": np.ones(1)}, "without a gap"),
    "outside": ({"component0/b1_mean": np.ones(5), "b1_variance": np.ones(5)}, "belongs to no component"),
    "number without end": ({"component0/b1_mean": np.ones(5), f"component{'9' * 5000}/b1_mean": np.ones(5)},
    "belongs to no"),
    "another zero": ({"component0/b1_mean": np.ones(5), "component00/b1_std": np.ones(5)}, "belongs to no component"),
    "variance beyond float64": ({"b1_std": np.full(5, 1e200)}, "b1"),
    "no probabilities": ({"component0/b1_mean": np.ones(5), "component0/b1_std": np.ones(5)}, "needs posterior_prob"),
    "samples inside": (
        {"component0/b1_samples": np.ones((2, 5)), "posterior_probabilities": np.ones(1)}, "is a Gaussian",
    ),
    "variance and std": ({"b1_variance": np.ones(5), "b1_std": np.ones(5)}, "b1.*mixes"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHIVES)
def test_bad_archives(name: str, tmp_path: Path) -> None:
    arrays, message = ARCHIVES[name]
    path = tmp_path / "p.npz"
    np.savez(path, **arrays)
    with pytest.raises(PosteriorError, match=message) as caught:
        read_posterior_npz(path, small_net())
    assert caught.value.path == path


@pytest.mark.parametrize("name", FAMILIES)
def test_described(name: str) -> None:
    found = describe(model_from_proto(attach(small_net(np.float64), FAMILIES[name])))
    assert found.family == family_of(FAMILIES[name])
    assert {t.name for t in found.tensors if t.uncertain} <= set(names_of(FAMILIES[name]))


@pytest.mark.parametrize("name", ["lowrank", "full", "mixture"])
def test_entries_follow_their_weights_through_a_clean_up(name: str, tmp_path: Path) -> None:
    """onnxruntime transposes weights of Gemm; the covariance goes along."""
    path = tmp_path / "m.onnx"
    path.write_bytes(attach(small_net(np.float64), FAMILIES[name]).SerializeToString())
    before = read_parts(path)
    proto, _ = simplified(before)
    after = model_from_proto(proto)
    assert after.posterior is not None
    assert before.posterior is not None
    generator = torch.Generator().manual_seed(1)
    old = {n: v.numpy() for n, v in sample(before.model.network, before.posterior, 4, generator).items()}
    new = {n: v.numpy() for n, v in sample(after.network, after.posterior, 4, generator.manual_seed(1)).items()}
    if name == "full":  # else independent noise is drawn in the order of the entries
        for left, right in zip(old.values(), new.values(), strict=True):
            np.testing.assert_allclose(np.sort(left.reshape(4, -1)), np.sort(right.reshape(4, -1)), rtol=1e-12)
    totals = [
        np.sort(np.concatenate([v.ravel() for v in marginal_variances(p).values()]))
        for p in (before.posterior, after.posterior)
    ]
    np.testing.assert_allclose(*totals, rtol=1e-12)


def test_kronecker_factors_do_not_follow_moved_entries(tmp_path: Path) -> None:
    from bnn_vnnlib.posteriors.simplify import Fingerprints, Moves, moved_posterior

    marks = Fingerprints(small_net(np.float64), list(SHAPES))
    places = {
        name: start + np.arange(int(np.prod(shape))).reshape(shape) for name, (start, shape) in marks.spans.items()
    }
    own = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    assert moved_posterior(kron(), Moves(marks, places, own)) is not None
    places["W1"] = places["W1"].T
    with pytest.raises(UnsupportedError, match="Kronecker factors cannot follow"):
        moved_posterior(kron(), Moves(marks, places, own))


def test_a_covariance_near_the_largest_float() -> None:
    """It is made symmetric without an overflow."""
    found = from_covariance([[1.7e308]], {"b": (1,)})
    assert found.factors["b"].tolist() == [[pytest.approx(1.7e308**0.5)]]
