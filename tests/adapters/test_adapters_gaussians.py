"""Gaussians over one long vector, guides, Laplace approximations and IVON, through stand-ins for libraries' objects.

The libraries themselves are met in test_libraries_docs.py, where they are installed.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, Normal, constraints

from bnn_vnnlib import PosteriorError, UnsupportedError
from bnn_vnnlib.adapters import from_ivon, from_pyro_guide
from bnn_vnnlib.adapters.gaussians import FlatGaussian, successive
from bnn_vnnlib.adapters.laplace_torch import _kronecker
from bnn_vnnlib.model import GaussianDiagonal, GaussianFull, GaussianLowRank

RANDOM = np.random.default_rng(0)
X = torch.tensor(RANDOM.normal(size=(3, 2)), dtype=torch.float32)
SHAPES = {"w": (2, 3), "b": (3,), "noise": (1,)}  # input axis first; the last one is no weight
SIZE = 10
NAMES = {"w": "weight", "b": "bias"}
ROOT = np.tril(RANDOM.normal(size=(SIZE, SIZE))) * 0.3
FACTOR = RANDOM.normal(size=(SIZE, 2)) * 0.3
DEVIATION = RANDOM.uniform(0.1, 0.5, SIZE)
MEAN = RANDOM.normal(size=SIZE)


def covariance(posterior: object, names: list[str]) -> np.ndarray:
    """The covariance of the tensors' entries, one after the other."""
    if isinstance(posterior, GaussianDiagonal):
        return np.diag(np.concatenate([posterior.variances[name].ravel() for name in names]))
    assert isinstance(posterior, GaussianFull | GaussianLowRank)
    rows = np.concatenate([f.reshape(posterior.rank, -1) for f in (posterior.factors[name] for name in names)], 1)
    found = rows.T @ rows
    if isinstance(posterior, GaussianLowRank):
        found += np.diag(np.concatenate([posterior.variances[name].ravel() for name in names]))
    return found


@pytest.mark.parametrize(
    ("deviation", "root", "kind"),
    [(DEVIATION, None, GaussianDiagonal), (None, ROOT, GaussianFull), (DEVIATION, FACTOR, GaussianLowRank)],
)
def test_a_marginal_has_the_rows_of_its_entries(deviation, root, kind):
    gaussian = FlatGaussian(MEAN, deviation, root, successive(SHAPES))
    positions = {"bias": np.array([8, 6, 7]), "weight": np.arange(6).reshape(2, 3).T}
    posterior = gaussian.over(positions)
    assert isinstance(posterior, kind)
    whole = np.zeros((SIZE, SIZE)) if root is None else root @ root.T
    whole = whole + (0 if deviation is None else np.diag(deviation**2))
    order = [8, 6, 7, 0, 3, 1, 4, 2, 5]
    np.testing.assert_allclose(covariance(posterior, ["bias", "weight"]), whole[np.ix_(order, order)], atol=1e-12)


def test_scales_must_belong_to_the_mean():
    with pytest.raises(PosteriorError, match="do not belong"):
        FlatGaussian(MEAN, DEVIATION[1:], None, successive(SHAPES))
    with pytest.raises(PosteriorError, match="do not belong"):
        FlatGaussian(MEAN, None, None, successive(SHAPES))


class Trace:
    def __init__(self, supports: dict[str, constraints.Constraint]) -> None:
        self.sites = {name: {"fn": SimpleNamespace(support=support)} for name, support in supports.items()}

    def iter_stochastic_nodes(self):
        return iter(self.sites.items())


def guide(kind: str, noise: constraints.Constraint = constraints.positive) -> object:
    """A guide as Pyro has it after training, over w, b and a noise."""
    trace = Trace({"w": constraints.real, "b": constraints.real, "noise": noise})
    mean, deviation = torch.tensor(MEAN), torch.tensor(DEVIATION)
    law = {
        "AutoDiagonalNormal": lambda: Normal(mean, deviation),
        "AutoMultivariateNormal": lambda: MultivariateNormal(
            mean, scale_tril=torch.tensor(np.tril(ROOT, -1)) + deviation.diag()
        ),
        "AutoLowRankMultivariateNormal": lambda: LowRankMultivariateNormal(mean, torch.tensor(FACTOR), deviation**2),
    }
    parts = successive(SHAPES)
    fields = {
        "prototype_trace": trace,
        "_unconstrained_shapes": SHAPES,
        "get_posterior": lambda self: law[kind](),
        "locs": SimpleNamespace(**{name: mean[part] for name, part in parts.items()}),
        "scales": SimpleNamespace(**{name: deviation[part] for name, part in parts.items()}),
    }
    return type(kind, (), fields)()


def outputs(draws: int, root: np.ndarray, seed: int = 5) -> np.ndarray:
    """The outputs (draws, 3, 3) of x @ w + b by hand."""
    vectors = MEAN + np.random.default_rng(seed).normal(size=(draws, root.shape[1])) @ root.T
    w, b = vectors[:, :6].reshape(-1, 2, 3), vectors[:, 6:9]
    return X.numpy() @ w + b[:, None]


@pytest.mark.parametrize(
    ("kind", "root"),
    [
        ("AutoNormal", np.diag(DEVIATION)),
        ("AutoDiagonalNormal", np.diag(DEVIATION)),
        ("AutoMultivariateNormal", np.tril(ROOT, -1) + np.diag(DEVIATION)),
        ("AutoLowRankMultivariateNormal", np.concatenate([FACTOR, np.diag(DEVIATION)], 1)),
    ],
)
def test_guides_predict_what_their_gaussian_predicts(kind, root):
    given = {"likelihood": "gaussian", "names": NAMES, "ignore": ["noise"], "x": X}
    result = from_pyro_guide(guide(kind), nn.Linear(2, 3), outputs=outputs(2000, root), **given)
    assert result.agreement.errors <= result.agreement.allowed
    expected = (root @ root.T)[:9, :9]
    order = [0, 3, 1, 4, 2, 5, 6, 7, 8]
    found = covariance(result.model.posterior, ["weight", "bias"])
    np.testing.assert_allclose(found, expected[np.ix_(order, order)], atol=1e-6)
    np.testing.assert_allclose(result.model.network.tensors["weight"], MEAN[:6].reshape(2, 3).T, rtol=1e-6)
    with pytest.raises(PosteriorError, match="another one"):
        from_pyro_guide(guide(kind), nn.Linear(2, 3), outputs=outputs(2000, 1.3 * root), **given)


def test_a_site_on_a_part_of_the_reals_is_refused_unless_ignored():
    with pytest.raises(PosteriorError, match="noise: does not range over all reals"):
        from_pyro_guide(guide("AutoNormal"), nn.Linear(2, 3), likelihood=None, names=NAMES, x=X)
    real = guide("AutoNormal", constraints.real)
    with pytest.raises(PosteriorError, match="noise: belongs to no tensor"):
        from_pyro_guide(real, nn.Linear(2, 3), likelihood=None, names=NAMES, x=X)


def test_other_guides_and_untrained_ones_are_refused():
    with pytest.raises(UnsupportedError, match="guide SimpleNamespace is not known"):
        from_pyro_guide(SimpleNamespace(), nn.Linear(2, 3), likelihood=None, x=X)
    untrained = guide("AutoNormal")
    untrained.prototype_trace = None
    with pytest.raises(PosteriorError, match="has not seen its model"):
        from_pyro_guide(untrained, nn.Linear(2, 3), likelihood=None, x=X)


@pytest.mark.parametrize("damping", [False, True])
def test_kronecker_factors_give_the_inverse_of_the_precision(damping):
    def factor(size: int) -> tuple[np.ndarray, np.ndarray]:
        root = RANDOM.normal(size=(size, size))
        values, vectors = np.linalg.eigh(root @ root.T)
        return values, vectors

    parts = [[factor(3), factor(4)], [factor(3)]]
    precision = SimpleNamespace(
        eigenvalues=[[values for values, _ in part] for part in parts],
        eigenvectors=[[vectors for _, vectors in part] for part in parts],
        deltas=np.array([0.5, 0.7]),
        damping=damping,
    )
    weight, bias = _kronecker(precision, {"weight": (3, 2, 2), "bias": (3,)}).layers
    (l1, q1), (l2, q2) = parts[0]
    add = np.sqrt(0.5)
    spectrum = np.outer(l1 + add, l2 + add) if damping else np.outer(l1, l2) + 0.5
    whole = np.kron(q1, q2) @ np.diag(1 / spectrum.ravel()) @ np.kron(q1, q2).T
    ours = np.einsum("ia,ka,ab,jb,lb->ijkl", weight.left, weight.left, weight.spectrum, weight.right, weight.right)
    np.testing.assert_allclose(ours.reshape(12, 12), whole, rtol=1e-8, atol=1e-10)
    values, vectors = parts[1][0]
    left = vectors @ np.diag(1 / (values + 0.7)) @ vectors.T
    np.testing.assert_allclose((bias.left * bias.spectrum[:, 0]) @ bias.left.T, left, rtol=1e-8, atol=1e-10)
    with pytest.raises(UnsupportedError, match="share their factors"):
        _kronecker(precision, {"weight": (3, 2, 2)})


class Ivon:
    """The state of ivon.IVON, and its way to draw."""

    def __init__(self, module: nn.Module, hess: torch.Tensor, factor: float = 1.0) -> None:
        self.module, self.factor = module, factor
        group = {"ess": 50.0, "hess_init": 1.0, "weight_decay": 0.1, "hess": hess}
        self.param_groups = [group | {"params": list(module.parameters())}]

    @contextmanager
    def sampled_params(self):
        (group,) = self.param_groups
        kept = [part.detach().clone() for part in group["params"]]
        scale = self.factor / (group["ess"] * (group["hess"] + group["weight_decay"])).sqrt()
        noise, start = torch.randn_like(scale) * scale, 0
        for part in group["params"]:
            part.data = part.data + noise[start : start + part.numel()].view_as(part)
            start += part.numel()
        yield
        for part, value in zip(group["params"], kept, strict=True):
            part.data = value


def test_ivon():
    module = nn.Linear(2, 3)
    hess = torch.rand(9) + 0.5
    result = from_ivon(Ivon(module, hess), module, X, likelihood=None)
    expected = 1 / (50 * (hess.numpy() + 0.1))
    np.testing.assert_allclose(result.model.posterior.variances["weight"].ravel(), expected[:6], rtol=1e-5)
    np.testing.assert_allclose(result.model.posterior.variances["bias"], expected[6:], rtol=1e-5)
    with pytest.raises(PosteriorError, match="another one"):
        from_ivon(Ivon(module, hess, 1.4), module, X, likelihood=None)
    with pytest.raises(PosteriorError, match="still has its initial value"):
        from_ivon(Ivon(module, torch.ones(9)), module, X, likelihood=None)
    with pytest.raises(PosteriorError, match="not the module's"):
        from_ivon(Ivon(module, hess), nn.Linear(2, 3), X, likelihood=None)
    plain = SimpleNamespace(param_groups=[{"params": list(module.parameters())}])
    with pytest.raises(PosteriorError, match="keeps no Hessian"):
        from_ivon(plain, module, X, likelihood=None)
