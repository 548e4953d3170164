"""One hidden layer of wide Gaussian weights: exact infima by kinks, the lines weight by weight, laws, moments,
tails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats

from bnn_vnnlib import Model, verify, verify_batch
from bnn_vnnlib.gaussian.relu import log_half_moment, mean_abs
from bnn_vnnlib.methods.safety.large_variance import chaos as squares
from bnn_vnnlib.methods.safety.large_variance import law, one_layer, output_layer
from bnn_vnnlib.methods.safety.large_variance import lines as hidden
from bnn_vnnlib.methods.safety.large_variance.law import Terms
from bnn_vnnlib.methods.safety.large_variance.lines import EXCESS_LEVELS, LineTerms, Neurons
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.output_layer import Weights
from bnn_vnnlib.methods.safety.tails import TailBounds
from bnn_vnnlib.model import GaussianDiagonal
from bnn_vnnlib.network.dense_chain import DenseChain, DenseLayer
from bnn_vnnlib.system.clock import Deadline
from support.builders import model, problem, properties, rows
from support.large_variance import dense, in_numpy, least_margins, network, sampled

ROW = np.array([1.0, -1.0])

rows_at_boxes, failures, last_weights = map(in_numpy, (RowsAtBoxes, one_layer.failures, output_layer.last_weights))
neurons, lines, chaos, local = map(in_numpy, (hidden.neurons, hidden.lines, squares.chaos, squares._local))
terms, spread, below, far_below = map(in_numpy, (law.terms, law.lattice_terms, law.below, law.far_below))
envelope, bias_of, errors = map(in_numpy, (law.envelope, law._bias, law.errors))


def asked(net: DenseChain, x0: np.ndarray, eps: float, bound: float) -> RowsAtBoxes:
    return rows_at_boxes(x0[None] - eps, x0[None] + eps, ROW[None], np.array([bound]), np.array([0]))


def parts(net: DenseChain, question: RowsAtBoxes) -> tuple[Neurons, Weights, LineTerms]:
    layer = neurons(net.first, question.lower, question.upper)
    weights = last_weights(net.last, question.outputs, question.bound)[0]
    return layer, weights, lines(layer, weights)


def placed(net: DenseChain, x0: np.ndarray, share: float) -> float:
    """A bound that the margin at x0 stays below with about this probability."""
    return float(np.quantile(least_margins(net, ROW, 0.0, x0, x0, 4000, 7), share))


def of(
    seed: int, hidden: int, deviation: float, eps: float = 0.0, share: float = 0.1
) -> tuple[DenseChain, RowsAtBoxes]:
    net, x0 = network(seed, 2, hidden, 2, deviation), np.random.default_rng(1000 + seed).normal(size=2)
    return net, asked(net, x0, eps, placed(net, x0, share))


def terms_of(net: DenseChain, question: RowsAtBoxes, times: float = 1.0) -> Terms:
    layer, weights, found = parts(net, question)
    return terms(layer, weights, found, times / found.scale)


@pytest.mark.parametrize(("hidden", "deviation", "eps"), [(2, 1.2, 0.02), (4, 0.7, 0.1), (8, 0.7, 0.05)])
@pytest.mark.parametrize("share", [0.02, 0.4])
def test_no_more_networks_fail_than_the_bound_says(hidden: int, deviation: float, eps: float, share: float) -> None:
    net, question = of(hidden, hidden, deviation, eps, share)
    count = 20_000
    least = least_margins(net, ROW, float(question.bound[0]), question.lower[0], question.upper[0], count, 3)
    failed = int((least <= 0).sum())
    assert stats.binom.sf(failed - 1, count, float(failures(net, question, Deadline())[0])) > 1e-9


@pytest.mark.parametrize(("seed", "deviation"), [(0, 0.3), (2, 1.2)])
def test_a_row_at_a_point_is_nearly_exact(seed: int, deviation: float) -> None:
    net, question = of(seed, 24, deviation)
    count = 160_000
    rng = np.random.default_rng(5)
    v, b = sampled(net.first, count // 8, rng)
    x0, hits = question.lower[0], 0
    hidden = np.maximum(v @ x0 + b, 0.0)
    for _ in range(8):
        w, c = sampled(net.last, count // 8, rng)
        hits += int((((ROW @ w) * hidden).sum(1) + c @ ROW <= question.bound[0]).sum())
    truth, found = hits / count, float(failures(net, question, Deadline())[0])
    assert found > truth - 5 * np.sqrt(truth / (count // 8))
    assert found < truth + 5 * np.sqrt(truth / (count // 8)) + 1e-3


@pytest.mark.parametrize("bias", [1.0, 2.5])
@pytest.mark.parametrize("neuron", [(0.3, 0.8, -1.0, 0.5), (-1.0, 0.5, 0.4, 1.0), (2.0, 0.1, -0.7, 0.02)])
def test_one_neuron_is_exact_by_quadrature(neuron: tuple[float, float, float, float], bias: float) -> None:
    """P(B + D relu(z) <= 0) for z ~ N(m, s^2), D ~ N(mu, d^2), B ~ N(bias, .8^2) at a point."""
    m, s, mu, d = neuron
    node = np.linspace(-9, 9, 2401)
    mass = np.exp(-(node**2) / 2) * (node[1] - node[0]) / np.sqrt(2 * np.pi)
    z, out = np.maximum(m + s * node, 0.0), mu + d * node
    truth = float(mass @ special.ndtr(-(bias + out[:, None] * z) / 0.8) @ mass)
    parts = (((m,),), (0.0,), ((s**2,),), (0.0,)), (((mu,),), (bias,), ((d**2,),), (0.64,))
    net = DenseChain.relu(
        *(DenseLayer.exact(*(torch.tensor(part, dtype=torch.float64) for part in side)) for side in parts)
    )
    one = np.ones((1, 1))
    found = float(failures(net, rows_at_boxes(one, one, one, np.zeros(1), np.zeros(1, dtype=int)), Deadline())[0])
    assert truth <= found <= 1.01 * truth


def test_ranges_that_depend_on_the_noise_are_not_taken_as_independent() -> None:
    """One neuron that is 0 at x0 = 0, V ~ N(2, 1): the form with noise inside Y claims 6e-8 at -6; the truth is
    3e-5."""
    tiny = torch.tensor([[1e-10]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    net = DenseChain.relu(DenseLayer.exact(2 * one, zero, one, tiny[0]), DenseLayer.exact(-one, zero, tiny, tiny[0]))
    question = rows_at_boxes(np.array([[-1.0]]), np.array([[1.0]]), np.ones((1, 1)), np.array([-6.0]), np.array([0]))
    assert failures(net, question, Deadline())[0] >= special.ndtr(-4.0)


def test_the_lines_hold_for_every_network_and_every_x() -> None:
    """B + sum D relu(zeta + v) >= (1 + t) (B - |B| share + sum D p - L), with p of the smallest level above R'."""
    for seed in range(4):
        net, question = of(seed, 6, 0.8, 0.3)
        layer, _, _ = parts(net, question)
        rng = np.random.default_rng(seed)
        v, b = sampled(net.first, 300, rng)
        w, c = sampled(net.last, 300, rng)
        d, shift, x0 = ROW @ w, c @ ROW - question.bound[0], (question.lower[0] + question.upper[0]) / 2
        variance, s2 = net.first.variance.numpy(), layer.s[0] ** 2
        zeta = v @ x0 + b
        kappa = variance * x0 / s2[:, None]
        noise = v - layer.nu[0] - zeta[..., None] * kappa
        reach = (np.abs(layer.nu[0] + noise) * layer.radius[0]).sum(-1)
        place = (reach[..., None] > layer.levels[0] * (1 - 1e-12)).sum(-1)
        inside = (place < len(EXCESS_LEVELS)).all(1)
        level = np.take_along_axis(layer.levels[0][None].repeat(len(v), 0), np.minimum(place, 3)[..., None], -1)[..., 0]
        ramp, rho = layer.ramp[0], layer.rho[0]
        a = np.where(d > 0, (zeta > 0) * 1.0, np.clip((zeta + ramp) / (2 * ramp), 0, 1))
        bend = np.minimum(level, ramp) * np.minimum(a, 1 - a)
        bend = bend + np.where(np.abs(zeta) < layer.reach[0], np.maximum(level - ramp, 0.0) * np.maximum(a, 1 - a), 0.0)
        p = np.where(d > 0, a * zeta - rho * a * np.abs(zeta), np.maximum(zeta, 0) + bend + rho * a * np.abs(zeta))
        gradient = np.einsum("sh,shi->si", d * a, layer.nu[0] + noise)
        lost = np.abs(gradient) @ layer.radius[0]
        least = shift - np.abs(shift) * layer.share[0] + (d * p).sum(1) - lost
        for _ in range(40):
            x = x0 + 0.3 * np.sign(rng.normal(size=2)) * rng.choice([1.0, rng.uniform()])
            margin = (d * np.maximum(v @ x + b, 0.0)).sum(1) + shift
            assert inside.any()
            assert not (inside & (least > 1e-9) & (margin <= 0)).any()
            share = layer.share[0]  # rb / (1 - rb), so that 1 / (1 + t) lies between these two
            scaled = np.maximum(margin * (1 + share) / (1 + 2 * share), margin * (1 + share))
            assert (scaled >= least - 1e-9)[inside].all()


def test_what_is_left_of_the_first_layer_does_not_know_the_centre() -> None:
    """E = V - nu - zeta kappa: mean 0, uncorrelated with zeta, variances at most those of V."""
    net, question = of(2, 6, 0.8, 0.3)
    layer, _, _ = parts(net, question)
    count = 40_000
    v, b = sampled(net.first, count, np.random.default_rng(0))
    x0, variance = (question.lower[0] + question.upper[0]) / 2, net.first.variance.numpy()
    zeta = v @ x0 + b
    noise = v - layer.nu[0] - zeta[..., None] * (variance * x0 / layer.s[0][:, None] ** 2)
    size = np.sqrt(variance / count)
    assert (np.abs(noise.mean(0)) < 5 * size).all()
    assert (np.abs((((zeta - layer.m[0]) / layer.s[0])[..., None] * noise).mean(0)) < 6 * size).all()
    assert (noise.var(0) < variance * (1 + 6 / np.sqrt(count))).all()


@pytest.mark.parametrize("q", [0.3, 1.0, 7.0])
def test_mean_of_an_absolute_value(q: float) -> None:
    g = np.linspace(-4, 4, 17)
    x = np.linspace(-60, 60, 200_001)
    density = np.exp(-((x - g[:, None]) ** 2) / (2 * q)) / np.sqrt(2 * np.pi * q)
    found = in_numpy(mean_abs)(g, np.full_like(g, np.sqrt(q)))
    assert np.allclose(found, (np.abs(x) * density).sum(1) * (x[1] - x[0]), rtol=1e-7)
    assert (found**2 <= g**2 + 2 * q / np.pi + 1e-12).all()
    assert in_numpy(mean_abs)(np.zeros(1), np.array([np.sqrt(q)]))[0] ** 2 > 2 * q / np.pi - 1e-12


def test_the_mean_of_the_left_over_gradient_is_below_its_tangent() -> None:
    """E[sum r |G_i|] given D, zeta, by its closed form, against the tangents that enter Y and Q."""
    net, question = of(3, 5, 0.8, 0.2)
    layer, _, found = parts(net, question)
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2000, 5)) * rng.choice([0.1, 1.0, 3.0], (2000, 1))
    mean, square = a @ layer.nu[0], (a**2) @ layer.variance
    truth = in_numpy(mean_abs)(mean, np.sqrt(square)) @ layer.radius[0]
    c = found.coefficient[0]
    gradient = found.slope_mean[0] @ layer.nu[0]
    bound = found.constant[0] + a @ found.tilt[0] + (a**2) @ found.curvature[0] + (c * (mean - gradient) ** 2).sum(1)
    assert (truth <= bound).all()


def test_the_moment_of_the_left_over_noise() -> None:
    """E e^{theta (L - E L)} <= e^{theta^2 H / 2} given D, zeta: sampled, at a theta where that is close to 1."""
    net, question = of(3, 5, 0.8, 0.2)
    layer, _, found = parts(net, question)
    rng = np.random.default_rng(1)
    a = rng.normal(size=5)
    noise = np.sqrt(layer.variance) * rng.standard_normal((100_000, 5, 2))
    total = np.abs(np.einsum("h,shi->si", a, layer.nu[0] + noise)) @ layer.radius[0]
    h = float((a**2) @ (2 * found.per_rate[0]))
    theta = 1.5 / np.sqrt(h)
    assert np.exp(theta * (total - total.mean())).mean() <= np.exp(theta**2 * h / 2)
    assert total.var() > 0.2 * h


@pytest.mark.parametrize("seed", range(3))
def test_moments_of_squares(seed: int) -> None:
    net, question = of(seed, 12, 0.7, 0.1)
    layer, weights, found = parts(net, question)
    square = chaos(layer, weights, found)
    rng = np.random.default_rng(seed)
    z = layer.m + layer.s * rng.standard_normal((100_000, 12))
    d = weights.mean + weights.dev * rng.standard_normal(z.shape)
    a = d * np.where(d > 0, z > 0, np.clip((z + layer.ramp) / (2 * layer.ramp), 0, 1))
    gap = (a - found.slope_mean) @ layer.nu[0]
    q = gap**2 @ found.coefficient[0]
    assert (np.abs(gap @ (layer.nu[0] * found.coefficient).T).max(0) <= square.bound[0] * 1.2).all()
    for times in (0.05, 0.2):
        theta = np.array([times / q.mean()])
        truth, bound = np.exp(theta * q).mean(), float(square.log_moment(theta)[0])
        assert np.log(truth) <= bound + 0.01
        assert bound < np.log(truth) + 0.1 + 3 * times


def test_generating_functions_of_single_terms() -> None:
    """u_j: no smaller than what E e^{y a_j} needs for any |y| <= y_j, and not far from the variance for small y_j."""
    net, question = of(1, 12, 0.7, 0.1)
    layer, weights, found = parts(net, question)
    rng = np.random.default_rng(0)
    z = layer.m + layer.s * rng.standard_normal((60_000, 12))
    d = weights.mean + weights.dev * rng.standard_normal(z.shape)
    a = d * np.where(d > 0, z > 0, np.clip((z + layer.ramp) / (2 * layer.ramp), 0, 1))
    for near in (0.1, 0.7):
        u = local(weights, found, np.full_like(found.up, near))
        for y in (-near, near / 2, near):
            centred = y * (a - a.mean(0))
            assert (np.log(np.exp(centred).mean(0)) * 2 / y**2 <= u[0] * 1.03 + 0.01).all()
    assert (local(weights, found, np.full_like(found.up, 0.1))[0] <= a.var(0) * 1.5 + 0.1).all()


def test_characteristic_functions_and_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    net, question = of(2, 6, 0.8, 0.2)
    coarse = terms_of(net, question)
    waves = np.arange(1, 41, 2)[None] * (0.6 / coarse.lines.spread[:, None])
    lattice = spread(coarse)
    rough = lattice.at(waves)
    claims = np.stack([errors(coarse, w) + lattice.error(w) for w in waves.T], -1)
    fine = {count: np.polynomial.legendre.leggauss(3 * count) for count in law._RULES}
    monkeypatch.setattr(law, "_RULES", fine)
    monkeypatch.setattr(law, "FINE", 400)
    true = spread(terms_of(net, question)).at(waves)
    gap = np.abs(true - rough)
    assert (gap <= claims).all()
    assert claims[..., 0].max() < 1e-6
    assert gap.max() > 1e-13


def test_characteristic_functions_are_those_of_the_terms() -> None:
    """Against samples of zeta, D and the level; rho is made large enough to be seen."""
    near, last, _ = parts(*of(2, 6, 0.8, 0.2))
    near = in_numpy(replace)(near, rho=np.full_like(near.rho, 0.3))
    drawn = lines(near, last)
    found = terms(near, last, drawn, 1.0 / drawn.scale)
    layer, weights, rng, count = found.layer, found.weights, np.random.default_rng(0), 100_000
    z = layer.m + layer.s * rng.standard_normal((count, 6))
    d = weights.mean + weights.dev * rng.standard_normal(z.shape)
    place = (rng.standard_normal(z.shape)[..., None] > EXCESS_LEVELS[:-1]).sum(-1)
    level = np.take_along_axis(layer.levels.repeat(count, 0), place[..., None], -1)[..., 0]
    a = np.where(d > 0, (z > 0) * 1.0, np.clip((z + layer.ramp) / (2 * layer.ramp), 0, 1))
    low = np.minimum(level, layer.ramp) * np.minimum(a, 1 - a)
    low = low + (np.abs(z) < layer.reach) * np.maximum(level - layer.ramp, 0) * np.maximum(a, 1 - a)
    p = np.where(d > 0, a * z * (1 - layer.rho), np.maximum(z, 0) + low + layer.rho * a * np.abs(z))
    x = d * p - found.lines.tilt * a * d - found.k * (a * d) ** 2
    waves = np.array([[0.2, 0.7, 1.3]]) / x.std()
    sample = np.exp(1j * waves[0] * x[..., None]).mean(0)
    assert np.abs(spread(found).at(waves)[0] - sample).max() < 6 / np.sqrt(count)


@pytest.mark.parametrize("seed", range(3))
def test_envelopes_bound_all_larger_waves(seed: int) -> None:
    found = terms_of(*of(seed, 4, 1.0, 0.1))
    waves = np.linspace(0.5, 12.0, 60)[None] / found.lines.spread[:, None]
    size = np.abs(spread(found).at(waves)).prod(1) * np.abs(bias_of(found, waves))
    largest = np.maximum.accumulate(size[:, ::-1], 1)[:, ::-1]
    assert (envelope(found, waves) >= largest - 1e-6).all()


@pytest.mark.parametrize("seed", range(3))
def test_far_tails_are_above_nearer_ones(seed: int) -> None:
    found = terms_of(*of(seed, 16, 0.7, 0.01))
    for times in (1.0, 2.0, 3.0):
        target = found.lines.center - times * found.lines.spread
        assert far_below(found, target, found.lines.spread)[0] >= below(found, target[:, None])[0, 0]


@pytest.mark.parametrize(
    ("m", "s", "ramp"), [(0.0, 1e-5, 3.0), (0.5, 1.0, 0.3), (-2.0, 0.7, 2.5), (0.1, 2.0, 1e-7), (3.0, 1e-3, 1.0)]
)
def test_mean_of_a_ramp(m: float, s: float, ramp: float) -> None:
    z = m + s * np.linspace(-9, 9, 400_001)
    weight = np.exp(-(((z - m) / s) ** 2) / 2) * 18 / 400_000 / np.sqrt(2 * np.pi)
    truth = (np.clip((z + ramp) / (2 * ramp), 0, 1) * weight).sum()
    assert abs(in_numpy(hidden._ramp_mean)(np.array([m]), np.array([s]), np.array([ramp]))[0] - truth) < 2e-5


def test_half_lines() -> None:
    m, s = np.array([0.3, -1.0]), np.array([0.7, 2.0])
    x = np.linspace(0, 60, 600_001)
    density = np.exp(0.4 * x - ((x - m[:, None]) / s[:, None]) ** 2 / 2) / (s[:, None] * np.sqrt(2 * np.pi))
    found = in_numpy(log_half_moment)(np.full(2, 0.4), np.zeros(2), m, s)
    assert np.allclose(np.exp(found), np.trapezoid(density, x), rtol=1e-6)


def test_weights_that_are_not_random_are_not_served() -> None:
    net, question = of(1, 4, 0.7, 0.1)
    still = replace(net.last, variance=torch.zeros_like(net.last.variance))
    assert failures(DenseChain.relu(net.first, still), question, Deadline())[0] == 1.0


def _wide_model(seed: int) -> tuple[Model, DenseChain, np.ndarray]:
    rng = np.random.default_rng(seed)
    net = network(seed, 6, 24, 3, 0.8)
    layers = [(part.mean.numpy(), part.bias.numpy()) for part in (net.first, net.last)]
    variances = [(part.variance.numpy(), part.bias_variance.numpy()) for part in (net.first, net.last)]
    return model(layers, variances), net, rng.normal(size=6)


@pytest.mark.parametrize(("share", "verdict"), [(0.1, "unsat"), (0.9, "sat")])
def test_the_portfolio_decides_what_tails_do_not(share: float, verdict: str) -> None:
    net, layers, x0 = _wide_model(3)
    rng = np.random.default_rng(0)
    v, b = sampled(layers.first, 2000, rng)
    w, c = sampled(layers.last, 2000, rng)
    row = np.array([1.0, -1.0, 0.0])
    margin = ((row @ w) * np.maximum(v @ x0 + b, 0.0)).sum(1) + c @ row
    case = (row[None], np.array([np.quantile(margin, share)]))
    options: dict[str, Any] = {
        "properties": [[rows(*case)]],
        "query": "probabilistic",
        "tau_safe": 0.88,
        "tau_unsafe": 0.12,
    }
    both = verify_batch(net, [x0], [x0], **options)
    assert both.verdicts[0] == verdict
    assert isinstance(net.posterior, GaussianDiagonal)
    question = problem([x0], [x0], rows(*case), outputs=3)
    tails = TailBounds(net.network, net.posterior, torch.device("cpu"), Deadline())
    assert tails.lower(question)[0] < 0.88
    assert tails.unsafe(question, question.lower, question.upper)[0] < 0.88
    assert both.lower[0] <= 1 - share + 0.05
    violation = properties(net, [(x0, x0)], [(0, [([1, -1, 0], None, float(case[1][0]), False)])])
    alone = verify(net, violation, query="probabilistic", tau_safe=0.88, tau_unsafe=0.12)
    assert alone.verdict == verdict
    assert alone.details["lower_by" if verdict == "unsat" else "upper_by"] == "large variance"
    assert both.upper[0] >= 1 - share - 0.05


def test_rows_of_very_different_size_do_not_disturb_each_other() -> None:
    """A batch costs no more memory than its rows, and the numbers are the same."""
    rng = np.random.default_rng(0)
    net = DenseChain.relu(dense(rng, 8, 3, spread=0.5), dense(rng, 2, 8, spread=0.5))
    x = rng.normal(size=(1, 3))
    scaled = np.concatenate([x, 1e-5 * x])
    row, bound = np.array([[1.0, -1.0], [1e5, -1e5]]), np.array([-1.0, -1.0])
    together = failures(net, rows_at_boxes(scaled, scaled, row, bound, np.array([0, 1])), Deadline())
    for i in range(2):
        alone = rows_at_boxes(scaled[[i]], scaled[[i]], row[[i]], bound[[i]], np.array([0]))
        assert failures(net, alone, Deadline())[0] == pytest.approx(together[i], abs=1e-6)


def test_moments_that_overflow_leave_nothing_known() -> None:
    rng = np.random.default_rng(0)
    first, last = dense(rng, 4, 2, spread=0.5), dense(rng, 1, 4, spread=0.5)
    huge = DenseLayer.exact(last.mean * 1e160, last.bias, last.variance * 1e300, last.bias_variance)
    x = np.ones((1, 2))
    found = failures(
        DenseChain.relu(first, huge), rows_at_boxes(x, x, np.ones((1, 1)), np.zeros(1), np.array([0])), Deadline()
    )
    assert found.tolist() == [1.0]
