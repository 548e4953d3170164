"""Questions about two networks: fairness of a small BNN, copies of classifiers, and both templates on ACAS Xu.

    python scripts/measure/pairs.py fairness
    python scripts/measure/pairs.py copies|noise POSTERIORS --points 10
    python scripts/measure/pairs.py acasxu NETWORKS --count 3 --seconds 20
    python scripts/measure/pairs.py merged POSTERIORS
    python scripts/measure/pairs.py widths

Seconds are processor seconds, except for time limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
import typer
from decision import read
from decision_spread import random_net
from onnx import numpy_helper

from bnn_vnnlib import Bounds, Model, read_model, verify
from bnn_vnnlib import attack as attacks
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.model.reading import model_from_proto
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.network.nodes import Linear, params_of
from bnn_vnnlib.network.pairs import side_by_side
from bnn_vnnlib.posteriors.merge import merge
from bnn_vnnlib.posteriors.parts import FileParts
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.pairs import differences
from bnn_vnnlib.problem.problem import from_property
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.relations import equivalent, fair, monotone

app = typer.Typer(add_completion=False)


def with_weights(model: Model, tensors: dict[str, np.ndarray], posterior: GaussianDiagonal | None = None) -> Model:
    """The model with other weights of the same names and shapes, in the file's own type."""
    proto = onnx.load_model_from_string(model.onnx_bytes)
    for tensor in proto.graph.initializer:
        if tensor.name in tensors:
            old = numpy_helper.to_array(tensor)
            new = np.asarray(tensors[tensor.name]).reshape(old.shape).astype(old.dtype)
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
    return replace(model_from_proto(proto, likelihood=model.likelihood), posterior=posterior)


def pruned(tensors: dict[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Without this share of the entries of each matrix, those of the least size."""
    return {
        name: np.where(np.abs(t) <= np.quantile(np.abs(t), share), 0, t) if t.ndim > 1 else t
        for name, t in tensors.items()
    }


def trained(seed: int = 0, hidden: int = 24, decay: float = 1e-4) -> Model:
    """A 2-24-2 network for y_0 = sin(2 x_1) / 2 + x_0 / 20 and y_1 = x_0 - x_1 / 2 on [0, 1]^2, float64."""
    x = torch.rand(2000, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = torch.stack([torch.sin(2 * x[:, 1]) / 2 + x[:, 0] / 20, x[:, 0] - x[:, 1] / 2], 1)
    return fitted(x, y, seed, hidden, decay)


def fitted(x: torch.Tensor, y: torch.Tensor, seed: int, hidden: int, decay: float) -> Model:
    """A network of one hidden layer for data x (N, n), y (N, m), by 3,000 steps on the mean squared error."""
    kind: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed + 1), "dtype": torch.float64}
    n, m = x.shape[1], y.shape[1]
    weights = [torch.randn(hidden, n, **kind) / (n / 2) ** 0.5, 0.5 * torch.randn(hidden, **kind),
               torch.randn(m, hidden, **kind) / 5, torch.zeros(m, dtype=torch.float64)]  # fmt: skip
    for weight in weights:
        weight.requires_grad_()
    descent = torch.optim.Adam(weights, lr=0.01)
    for _ in range(3000):
        w, b, v, c = weights
        loss = ((torch.relu(x @ w.T + b) @ v.T + c - y) ** 2).mean() + decay * sum((p**2).sum() for p in weights)
        descent.zero_grad()
        loss.backward()
        descent.step()
    values = dict(zip(("W0", "b0", "W1", "b1"), (p.detach().numpy() for p in weights), strict=True))
    return with_weights(random_net([n, hidden, m], "gaussian"), values)


def relative(model: Model, deviation: float) -> Model:
    """Independent Gaussian weights with this share of their size as standard deviation."""
    return replace(
        model, posterior=GaussianDiagonal({n: (deviation * t) ** 2 for n, t in model.network.tensors.items()})
    )


def most_apart(
    model: Model, posterior: GaussianDiagonal | None, prop: Property, output: int, draws: int = 200
) -> np.ndarray:
    """(draws,) the largest |f - g| that random pairs of T show, for drawn networks (one copy for both)."""
    rng, n = np.random.default_rng(1), prop.signature.input_size // 2
    x = rng.random((20_000, n))
    u = rng.random((20_000, n))
    u[:, 1] = np.clip(x[:, 1] + rng.uniform(-0.05, 0.05, len(x)), 0, 1)
    drawn = {} if posterior is None else sample(model.network, posterior, draws, torch.Generator().manual_seed(0))
    values = [evaluate(model.network, torch.as_tensor(part), drawn)[..., output] for part in (x, u)]
    return (values[0] - values[1]).abs().amax(-1).reshape(-1).numpy()


@app.command()
def fairness(seconds: float = 30.0) -> None:
    """P_safe of |y_f0 - y_g0| <= 0.3 for |x_f1 - x_g1| <= 0.05 and any x_f0, x_g0 in [0, 1]; and by the product."""
    net = trained()
    print("deviation  largest: mean, of 200 draws  P_safe                  CPU s   product: P_safe  CPU s")
    for deviation in (0.01, 0.05):
        model = relative(net, deviation)
        asked = fair(model, 0, 1, 0, 0.05, 0.3, [0]).property
        shown = (
            most_apart(net, None, asked, 0).max(),
            most_apart(model, cast("GaussianDiagonal", model.posterior), asked, 0).max(),
        )
        row = []
        for way in (model, by_itself(model)):
            begun = time.process_time()
            found = verify(way, asked if way is model else one_network(asked), timeout=seconds)
            shares = found.p_safe or Bounds(0.0, 1.0)
            row += [f"[{shares.lower:.6g}, {shares.upper:.6g}]", f"{time.process_time() - begun:.1f}"]
        print(f"{deviation:9}  {shown[0]:.4f}  {shown[1]:.4f}", *row, sep="   ")


@app.command()
def tabular(points: int = 10, seconds: float = 6.0) -> None:
    """Diabetes progression (442 patients, 10 features, ships with scikit-learn), a 10-16-1 network with 1 % deviations:
    around patients, is it fair to the sexes, and does the prediction never fall as the body mass index grows?"""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    x, y = data.data, (data.target - data.target.mean()) / data.target.std()
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    net = fitted(torch.as_tensor(x), torch.as_tensor(y)[:, None], 0, 16, 3e-3)
    model = relative(net, 0.01)
    residual = (evaluate(net.network, torch.as_tensor(x))[:, 0].numpy() - y) ** 2
    print(f"R^2 {1 - residual.mean():.2f}; features {data.feature_names}")
    tally: dict[str, list[str]] = {}
    begun = time.process_time()
    for centre in x[:: len(x) // points][:points]:
        lower, upper = np.clip(centre - 0.02, 0, 1).round(6), np.clip(centre + 0.02, 0, 1).round(6)
        lower[1], upper[1] = 0.0, 1.0  # either sex
        questions = {f"fair, {delta} sd": fair(model, lower, upper, 1, 0.01, delta) for delta in (1, 0.7, 0.4)}
        lower, upper = lower.copy(), upper.copy()
        lower[2], upper[2] = max(0.0, centre[2].round(6) - 0.1), min(1.0, centre[2].round(6) + 0.1)
        questions["monotone in bmi"] = monotone(model, lower, upper, 2)
        for name, asked in questions.items():
            tally.setdefault(name, []).append(verify(model, asked.property, timeout=seconds).verdict)
    for name, verdicts in tally.items():
        print(name, {str(word): verdicts.count(word) for word in sorted(set(verdicts))})
    print(f"CPU s a question {(time.process_time() - begun) / (4 * points):.1f}")


def by_itself(model: Model, second: Model | None = None) -> Model:
    """The product network as a network by itself, for which the program knows no differences."""
    found = side_by_side(model, second or model, "independent", same=second is None)
    return replace(found, pair=None, onnx_bytes=b"")


def one_network(prop: Property) -> Property:
    """A property of two networks as one of their product."""
    return replace(prop, second=None)


@app.command()
def copies(posteriors: Path, points: int = 10, radius: float = 0.01, seconds: float = 10.0) -> None:
    """The least eps for which a digits classifier and its float16, pruned and mean forms are proved to agree, over the
    largest difference that an attack finds: in the query that the form is about."""
    model = read(posteriors / "digits_vi_64x1.npz", "categorical")
    own = dict(model.network.tensors)
    half = {name: tensor.astype(np.float16).astype(np.float64) for name, tensor in own.items()}
    forms = {
        "float16": with_weights(model, half),
        **{f"pruned {s:.0%}": with_weights(model, pruned(own, s)) for s in (0.1, 0.3)},
    }
    fixed = replace(model, posterior=None)
    inputs = np.load(posteriors / "digits_vi_64x1.npz")["X"][:points]
    for name, form in forms.items():
        ratios, begun = [], time.process_time()
        for x in inputs:
            ends = np.clip(x - radius, 0, 1).round(9), np.clip(x + radius, 0, 1).round(9)
            found = largest(fixed, form, *ends)
            ratios.append(next((ratio for ratio in (1.01, 1.05, 1.1, 1.2, 1.5, 2, 3, 5) if verify(
                (fixed, form), equivalent(fixed, form, *ends, repr(ratio * found)).property, timeout=seconds
            ).verdict == "unsat"), np.inf))  # fmt: skip
        spent = (time.process_time() - begun) / points
        print(f"{name}: deterministic, proved / attacked {ratios}; CPU s a point {spent:.1f}")


@app.command()
def noise(posteriors: Path, points: int = 10, radius: float = 0.01, seconds: float = 8.0) -> None:
    """The same with common noise, under `probabilistic`: the least eps for which P_safe >= 0.95 is proved, certain and
    with confidence 0.99, over the 0.95 quantile of the differences that attacks on 200 drawn pairs find."""
    model = read(posteriors / "digits_vi_64x1.npz", "categorical")
    own, inputs = dict(model.network.tensors), np.load(posteriors / "digits_vi_64x1.npz")["X"][:points]
    half = {name: tensor.astype(np.float16).astype(np.float64) for name, tensor in own.items()}
    statistical: dict[str, Any] = {"guarantee": "statistical", "confidence": 0.99}
    for name, tensors in (("float16", half), ("pruned 10%", pruned(own, 0.1))):
        form = replace(with_weights(model, tensors), posterior=model.posterior)
        for x in inputs:
            ends = np.clip(x - radius, 0, 1).round(9), np.clip(x + radius, 0, 1).round(9)
            way = differences(
                side_by_side(model, form, "noise"), equivalent(model, form, *ends, "0.000000001").property
            )[0]
            law = cast("GaussianDiagonal", way.model.posterior)
            drawn = sample(way.model.network, law, 200, torch.Generator().manual_seed(0))
            how = attacks.Attack(steps=12, restarts=2, deepest=True)
            values = attacks.run(way.model.network, from_property(way.inner), drawn, how)[1]
            unit, told = float(np.quantile(-values[:, 0].numpy(), 0.95)), []
            for options, ratios in (({}, (2, 2.5, 3, 4, 5)), (statistical, (1.05, 1.2, 1.5))):
                begun = time.process_time()
                least = next((ratio for ratio in ratios if verify(
                    (model, form), equivalent(model, form, *ends, repr(round(ratio * unit, 9))).property,
                    coupling="noise", timeout=seconds, **options,
                ).verdict == "unsat"), np.inf)  # fmt: skip
                told.append(f"{options.get('guarantee', 'certain')} {least} (CPU {time.process_time() - begun:.1f} s)")
            print(f"{name}: attacked {unit:.3g}, proved at {', '.join(told)}", flush=True)


@app.command()
def merged(posteriors: Path, radius: float = 0.01, seconds: float = 8.0) -> None:
    """8 drawn networks beside their merged one, under `decision`, first input: by how much they differ at most."""
    model = read(posteriors / "digits_vi_64x1.npz", "categorical")
    x = np.load(posteriors / "digits_vi_64x1.npz")["X"][0]
    ends = np.clip(x - radius, 0, 1).round(9), np.clip(x + radius, 0, 1).round(9)
    several = sample(model.network, cast("GaussianDiagonal", model.posterior), 8, torch.Generator().manual_seed(0))
    eight = WeightSamples({name: value.numpy() for name, value in several.items()}, np.full(8, 1 / 8))
    first = replace(model, posterior=eight, likelihood="gaussian")
    parts = FileParts(onnx.load_model_from_string(model.onnx_bytes), eight, "gaussian", first)
    second = model_from_proto(merge(parts, average="outputs")[0], likelihood="gaussian")
    found = verify((first, second), equivalent(first, second, *ends, 1).property, query="decision", timeout=seconds)
    rows = () if found.decision is None else found.decision.row_lower
    print("merged, decision: differences of at most", -min(rows, default=-np.inf))


def largest(first: Model, second: Model, lower: np.ndarray, upper: np.ndarray) -> float:
    """The largest |f - g| over a box that signed gradients find, from the centre and 16 corners, for every output."""
    low, high = torch.as_tensor(lower), torch.as_tensor(upper)
    rng, best = torch.Generator().manual_seed(0), 0.0
    outputs = first.network.signature.output_size
    start = torch.cat([(low + high)[None] / 2, torch.where(torch.rand(16, len(low), generator=rng) < 0.5, low, high)])
    for sign in (1, -1):
        x = start.repeat(outputs, 1)
        which = torch.arange(outputs).repeat_interleave(len(start))[:, None]
        for _ in range(6):
            x = x.detach().requires_grad_()
            value = sign * (evaluate(first.network, x) - evaluate(second.network, x)).gather(1, which)
            best = max(best, float(value.detach().max()))
            (slope,) = torch.autograd.grad(value.sum(), x)
            x = torch.where(slope > 0, high, low)
    return best


def templates(folder: Path, count: int) -> Iterator[tuple[str, str, tuple[Model, ...], Property]]:
    """`count` instances of each kind of both official templates, over the networks of ACAS Xu in turn: kind, name,
    models, property. Every other one asks for more than the network seems to keep: against its slope at the centre, or
    for nine tenths of the difference that an attack finds."""
    rng = np.random.default_rng(0)
    nets = [(path.stem[14:17], read_model(path)) for path in sorted(folder.glob("ACASXU_*.onnx"))]
    for k in range(count):
        label, net = nets[k % len(nets)]
        lower = rng.uniform(-0.3, 0.25, 5).round(3)
        upper = lower + np.where(rng.random(5) < 0.6, 0.05, 0.0)
        upper[0] = lower[0] + 0.05
        output, ends = int(rng.integers(5)), torch.as_tensor((lower + upper) / 2).repeat(2, 1)
        ends[0, 0], ends[1, 0] = lower[0], upper[0]
        falls = bool(torch.diff(evaluate(net.network, ends)[:, output]) < 0)
        relation = monotone(net, lower, upper.round(3), 0, output, decreasing=falls ^ bool(k % 2))
        yield "monotone", f"{label} {k}", (net,), relation.property
    for kind, share in (("noise 1e-3", 0.0), ("pruned 5%", 0.05), ("pruned 10%", 0.1), ("pruned 30%", 0.3)):
        for k in range(count):
            label, net = nets[k % len(nets)]
            tensors = dict(net.network.tensors)
            noise = {name: t * (1 + 1e-3 * rng.standard_normal(t.shape)) for name, t in tensors.items()}
            changed = pruned(tensors, share) if share else noise
            form = with_weights(net, {key: np.asarray(value, np.float32) for key, value in changed.items()})
            lower = rng.uniform(-0.3, 0.25, 5).round(3)
            upper = (lower + 0.05).round(3)
            eps = largest(net, form, lower, upper) * (0.9 if k % 2 else 1.3)
            yield kind, f"{label} {k}", (net, form), equivalent(net, form, lower, upper, f"{eps:.9f}").property


@app.command()
def acasxu(networks: Path, count: int = 10, seconds: float = 60.0, export: Path | None = None) -> None:
    """Verdicts on generated instances of both templates, each beside 100,000 random pairs of T.

    `export` names a folder for the instances as arrays, which `pairs_marabou.py` hands to another verifier.
    """
    tally: dict[str, list[str]] = {}
    for kind, name, models, prop in templates(networks, count):
        if export is not None:
            exported(export / f"{kind} {name}.npz".replace(" ", "_"), models, prop)
        begun, clock = time.process_time(), time.monotonic()
        found = verify(models, prop, timeout=seconds)
        wrong = found.verdict == "unsat" and violated_by_chance(models, prop)
        tally.setdefault(kind, []).append(found.verdict)
        spent = f"{time.monotonic() - clock:5.1f} s, CPU {time.process_time() - begun:5.1f} s"
        print(f"{kind:12} {name:8} {found.verdict:8} {spent}{' CONTRADICTED' if wrong else ''}", flush=True)
    for kind, verdicts in tally.items():
        print(kind, {word: verdicts.count(word) for word in sorted(set(verdicts))})


def layers_of(network: Network) -> list[list[np.ndarray]]:
    """Weight (o, i) and bias (o,) of each layer of a chain (shift,) linear, shift, relu, ..."""
    shift = np.zeros(network.signature.input_size)
    layers: list[list[np.ndarray]] = []
    for node in network.nodes:
        for param in params_of(node):
            values = network.tensors[param.source].reshape(-1)[param.index] * param.factor
            if isinstance(node, Linear):
                layers.append([values, np.zeros(len(values))])
            elif layers:
                layers[-1][1] = values.reshape(-1)
            else:
                shift = values.reshape(-1)
    layers[0][1] = layers[0][1] + layers[0][0] @ shift
    return layers


def exported(path: Path, models: tuple[Model, ...], prop: Property) -> None:
    """Both networks as dense layers of Relu, and the property over (x_f, x_g) and (y_f, y_g), as arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for side, model in zip("fg", (models[0], models[-1]), strict=True):
        for i, (weight, bias) in enumerate(layers_of(model.network)):
            arrays |= {f"{side}_weight_{i}": weight, f"{side}_bias_{i}": bias}
    constraints, rows = prop.constraints, prop.rows
    arrays |= {
        "lower": prop.boxes.lower[0], "upper": prop.boxes.upper[0], "constraints": np.asarray(constraints.inputs),
        "constraint_bounds": constraints.bound, "rows": rows.outputs, "bounds": rows.bound, "cases": rows.owner,
    }  # fmt: skip
    np.savez(path, allow_pickle=False, **arrays)


def violated_by_chance(models: tuple[Model, ...], prop: Property, count: int = 100_000) -> bool:
    """A random pair of T, or nearly, violates the property by more than rounding."""
    rng, n = np.random.default_rng(2), prop.signature.input_size // 2
    low, high = prop.boxes.lower[0], prop.boxes.upper[0]
    x = low[:n] + rng.random((count, n)) * (high - low)[:n]
    equal = np.isclose(low[:n], low[n:]) & np.isclose(high[:n], high[n:])
    u = np.where(equal, x, low[n:] + rng.random((count, n)) * (x - low[n:]))
    if prop.second is not None and prop.second.relation == "equal-to":
        u[:, 0] = low[n] + rng.random(count) * (x[:, 0] - low[n])
    y = np.concatenate(
        [evaluate(m.network, torch.as_tensor(z)).numpy() for m, z in ((models[0], x), (models[-1], u))], 1
    )
    left = y @ prop.rows.outputs.T - prop.rows.bound
    return any(bool((left[:, prop.rows.owner == case] < -1e-9).all(1).any()) for case in range(prop.num_cases))


@app.command()
def widths() -> None:
    """Ranges of y_f - y_g from differences and from the product, of random networks with weights in boxes."""
    print("network        |d| <=   differences   product   ratio   CPU ms: differences, product")
    for sizes in ([4, 32, 2], [4, 64, 64, 2], [8, 64, 64, 64, 2]):
        model = random_net(sizes, "gaussian")
        for eps in (0.01, 0.05, 0.2):
            prop = fair(model, -0.5, 0.5, (), eps, 1).property
            joined = side_by_side(model, model, "independent", same=True)
            asked = differences(joined, prop)[0]
            found, spent = [], []
            for network, posed in ((asked.model.network, asked.inner), (joined.network, prop)):
                items = from_property(posed)
                weights = weight_sets.centred(network, cast("GaussianDiagonal", model.posterior), "cpu").scaled(
                    torch.full((1, 1), 0.1).double()
                )
                begun = time.process_time()
                low = Engine(network).rows(weights, items.lower, items.upper, items.rows.outputs).lower
                spent.append(1000 * (time.process_time() - begun))
                found.append(-float(low.min()))
            row = f"{found[0]:11.4f} {found[1]:9.4f} {found[1] / found[0]:7.1f}   {spent[0]:.0f}, {spent[1]:.0f}"
            print(f"{'-'.join(map(str, sizes)):14} {eps:6}   {row}")


if __name__ == "__main__":
    app()
