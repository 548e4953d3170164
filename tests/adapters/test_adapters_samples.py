"""from_samples and from_ensemble: names, layouts, and the comparison sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bnn_vnnlib import PosteriorError, read_model
from bnn_vnnlib.adapters import from_ensemble, from_samples
from bnn_vnnlib.adapters.samples import places
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.model import WeightSamples

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 3))


def architecture() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))


def by_hand(s: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Outputs (S, N, 2) of a network that is written as x @ W + b, input axis first."""
    hidden = np.tanh(x @ s["w1"] + s["b1"][:, None])
    hidden = np.tanh(hidden @ s["w2"] + s["b2"][:, None])
    return hidden @ s["w3"] + s["b3"]  # b3 has a unit axis of its own


def drawn(count: int = 7) -> dict[str, np.ndarray]:
    shapes = {"w1": (3, 5), "b1": (5,), "w2": (5, 5), "b2": (5,), "w3": (5, 2), "b3": (1, 2)}
    return {name: RANDOM.normal(size=(count, *shape)) for name, shape in shapes.items()}


NAMES = {"w1": "0.weight", "b1": "0.bias", "w2": "2.weight", "b2": "2.bias", "w3": "4.weight", "b3": "4.bias"}


def test_every_sample_computes_what_the_library_computes(tmp_path):
    samples = drawn()
    weights = RANDOM.dirichlet(np.ones(7))
    given_ = {"likelihood": "gaussian", "names": NAMES, "x": X, "outputs": by_hand(samples, X)}
    result = from_samples(architecture(), samples, weights, transposed=["w1", "w2", "w3"], **given_)
    assert result.agreement.errors is None
    assert result.agreement.difference < 1e-5
    posterior = read_model(result.write(tmp_path / "samples.onnx")).posterior
    assert isinstance(posterior, WeightSamples)
    np.testing.assert_array_equal(posterior.probabilities, weights)
    np.testing.assert_allclose(posterior.samples["0.weight"], samples["w1"].transpose(0, 2, 1), rtol=1e-6)
    np.testing.assert_allclose(posterior.samples["4.bias"], samples["b3"][:, 0], rtol=1e-6)


def test_a_square_matrix_is_never_guessed():
    samples = drawn()
    with pytest.raises(
        PosteriorError, match=r"w2: has shape \(5, 5\), which fits 2.weight with its input axis first and"
    ):
        from_samples(architecture(), samples, likelihood=None, names=NAMES, x=X)
    wrong = {key: samples[key] for key in ("w2", "b2")}
    with pytest.raises(PosteriorError, match="another function"):
        from_samples(
            architecture(),
            samples | {"w1": samples["w1"].transpose(0, 2, 1), "w3": samples["w3"].transpose(0, 2, 1)} | wrong,
            likelihood=None,
            names=NAMES,
            transposed=False,
            x=X,
            outputs=by_hand(samples, X),
        )


def test_names_of_torch_need_no_map_and_other_weights_stay():
    net = architecture()
    stacks = {"2.weight": torch.randn(4, 5, 5), "2.bias": torch.randn(4, 5)}
    result = from_samples(net, stacks, likelihood=None, transposed=False, x=X)
    assert set(result.model.posterior.samples) == set(stacks)
    assert any("4.weight" in note and "without posterior" in note for note in result.notes)
    assert any("not compared" in note for note in result.notes)
    np.testing.assert_array_equal(result.model.network.tensors["0.weight"], net[0].weight.detach().numpy())


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({}, {"names": NAMES | {"w9": "0.weight"}}, "names speaks of 'w9'"),
        ({}, {"names": {}}, "w1: belongs to no tensor"),
        ({}, {"names": NAMES | {"b2": "0.bias"}}, "b2: and b1 both belong to 0.bias"),
        ({}, {"transposed": ["w8"]}, "transposed speaks of 'w8'"),
        ({}, {"transposed": False}, r"w1: has shape \(3, 5\), which does not fit 0.weight .* as it is"),
        ({"noise": np.ones(7)}, {}, "noise: belongs to no tensor .*ignore=\\['noise'\\]"),
        ({}, {"ignore": ["noise"]}, "ignore speaks of 'noise'"),
        ({"b1": np.ones((6, 5))}, {}, "same number of samples"),
        ({"b1": np.ones((7, 4))}, {}, r"b1: has shape \(4,\), which does not fit 0.bias of shape \(5,\)"),
        ({"w2": np.full((7, 5, 5), np.nan)}, {}, "NaN"),
        ({}, {"probabilities": np.full(7, 0.5)}, "must sum to 1"),
        ({}, {"probabilities": np.full(6, 1 / 6)}, "shape"),
    ],
)
def test_what_does_not_fit_is_named(change, options, says):
    given_ = {"names": NAMES, "transposed": ["w1", "w2", "w3"], "x": X, "likelihood": None}
    probabilities = options.pop("probabilities", None)
    with pytest.raises(PosteriorError, match=says):
        from_samples(architecture(), drawn() | change, probabilities, **(given_ | options))


def test_what_is_missing_is_asked_for(tmp_path):
    with pytest.raises(OptionError, match="exported for an example"):
        from_samples(architecture(), drawn(), likelihood=None)
    result = from_samples(architecture(), drawn(), likelihood=None, names=NAMES, transposed=["w1", "w2", "w3"], x=X)
    file = result.write(tmp_path / "net.onnx")
    with pytest.raises(PosteriorError, match="carries a posterior already"):
        from_samples(file, drawn(), likelihood=None, names=NAMES, transposed=["w1", "w2", "w3"])


def test_an_ensemble_is_compared_member_by_member(tmp_path):
    torch.manual_seed(1)
    nets = [architecture().train() for _ in range(3)]
    for net in nets[1:]:  # what all members share needs no posterior
        net[0].load_state_dict(nets[0][0].state_dict())
    result = from_ensemble(nets, torch.tensor(X, dtype=torch.float32), [0.5, 0.25, 0.25], likelihood="categorical")
    assert set(result.model.posterior.samples) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    assert result.agreement.difference < 1e-5
    assert all(net.training for net in nets)


def test_ensembles_that_are_none_are_refused():
    x = torch.zeros(2, 3)
    net, other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(PosteriorError, match="two modules"):
        from_ensemble([net], x, likelihood=None)
    with pytest.raises(PosteriorError, match="the same weights"):
        from_ensemble([net, net], x, likelihood=None)
    with pytest.raises(PosteriorError, match="member 1 has other parameters"):
        from_ensemble([net, nn.Linear(3, 2)], x, likelihood=None)
    other[1].running_mean += 1
    with pytest.raises(PosteriorError, match="running_mean: differs between member 0 and member 1"):
        from_ensemble([net, other], x, likelihood=None)


def test_kernels_of_other_layouts():
    kernels = RANDOM.normal(size=(2, 3, 3, 4, 5))  # height, width, in, out
    (place,) = places({"K": (5, 4, 3, 3)}, {"k": (3, 3, 4, 5)}, {"k": "K"}, None).values()
    np.testing.assert_array_equal(place.put(kernels, 1)[:, 1, 2, 0, 1], kernels[:, 0, 1, 2, 1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
def test_an_array_is_placed_without_loss_or_it_is_refused(shape, turn):
    """Whatever the shapes: the placed array is the array itself, or turned around, and never the one for the other."""
    shape = tuple(shape)
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}.get(len(shape), (0,))
    target = tuple(shape[axis] for axis in order) if turn else shape
    values = np.arange(np.prod(shape)).reshape(shape)
    truth = values.transpose(order) if turn else values
    given_ = {"W": target}, {"w": shape}, {"w": "W"}
    if len(shape) > 1 and tuple(shape[axis] for axis in order) == shape and sum(n > 1 for n in shape) > 1:
        with pytest.raises(PosteriorError, match="input axis first and with its output axis first"):
            places(*given_, None)
        (place,) = places(*given_, turn).values()
    else:
        (place,) = places(*given_, None).values()
    np.testing.assert_array_equal(place.put(values), truth)
