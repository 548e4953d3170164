"""Try to catch a bound on the decision D(x) = E_w[s(f^w(x))] on the wrong side of the truth, on random small networks.

    python scripts/measure/decision_soundness.py [--nets 1000] [--seed 0]

Each network has one to four hidden layers of relu, tanh, sigmoid or leaky relu, one to six wide, sd/|mean| from .01
to 1, a categorical, bernoulli or gaussian likelihood, and Gaussian weights or weight samples. Checked are
`verify_batch`, each method of the portfolio by itself, over the boxes and at points of them, and each criterion. The
truth at those points is the sum over the samples, a fine quadrature where one or two weights are random, else an
estimate: a comparison that 20,000 drawn networks put half a standard error on the wrong side is repeated with a million
others, and counts as a violation if it is beyond six standard errors. Lower bounds over a box must also not exceed any
method's upper bound at a point of it, which needs no estimate. `--nets 1 --first I` runs network I alone. The exit code
is 1 where anything was violated.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bnn_vnnlib import Model, verify_batch
from bnn_vnnlib.attack import transformed
from bnn_vnnlib.batch import BatchResult
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.methods import decision
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
from bnn_vnnlib.problem.outputs import OutputBounds, Transform
from bnn_vnnlib.problem.problem import OutputCases, from_cases
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.system.clock import Deadline
from dense import dense_network

BOXES, FEW, MANY, BATCH = 2, 20_000, 1_000_000, 10_000
"""Boxes a network; drawn networks at first, where in doubt, and at a time."""

SUSPICIOUS, ERRORS = 0.5, 6.0
"""Standard errors that ask for more networks, and that are a violation (one chance in 10^9)."""

TRANSFORMS: dict[str, Transform] = {"categorical": "softmax", "bernoulli": "sigmoid", "gaussian": "identity"}


@dataclass(frozen=True, eq=False)
class Trial:
    """A network, boxes (BOXES, n), rows (R, m) of D and a DNF over them."""

    model: Model
    transform: Transform
    lower: Tensor
    upper: Tensor
    rows: Tensor
    cases: OutputCases
    label: str


def trial(rng: np.random.Generator) -> Trial:
    """Everything about one random network."""
    likelihood = str(rng.choice(["categorical", "categorical", "gaussian", "gaussian", "bernoulli"]))
    outputs = {"categorical": int(rng.integers(2, 6)), "bernoulli": 1, "gaussian": int(rng.integers(1, 4))}[likelihood]
    depth = int(rng.choice([1, 1, 2, 2, 3, 4]))
    kind = str(rng.choice(["relu", "relu", "tanh", "sigmoid", "leaky_relu"], p=[0.3, 0.2, 0.2, 0.2, 0.1]))
    sizes = (int(rng.integers(1, 5)), *rng.integers(1, 7, size=depth).tolist(), outputs)
    layers = [
        (rng.normal(size=(after, before)) * np.sqrt(2 / before), 0.5 * rng.normal(size=after))
        for before, after in itertools.pairwise(sizes)
    ]
    network = dense_network(layers, kind, 0.1 if kind == "leaky_relu" else 0.0)  # type: ignore[arg-type]
    ratio = float(10 ** rng.uniform(-2, 0))
    posterior = samples(network, ratio, rng) if rng.random() < 0.2 else gaussian(network, ratio, rng)
    model = Model(network, posterior, likelihood, None, b"")  # type: ignore[arg-type]
    center = torch.as_tensor(rng.normal(size=(BOXES, sizes[0])))
    radius = torch.as_tensor(rng.choice([0.0, 1e-3, 1e-2, 0.1, 0.3, 1.0], size=(BOXES, 1)))
    radius = radius * torch.as_tensor(rng.random((BOXES, sizes[0])) < 0.8)  # some inputs do not vary
    transform = TRANSFORMS[likelihood]
    cases = questions(network, transform, center, rng)
    rows = torch.cat([torch.eye(outputs, dtype=torch.float64), *(torch.as_tensor(a) for a, _, _ in cases)])
    label = f"{kind} {sizes} {likelihood} {type(posterior).__name__} sd/mean {ratio:.3f}"
    return Trial(model, transform, center - radius, center + radius, rows, cases, label)


def gaussian(network: Network, ratio: float, rng: np.random.Generator) -> GaussianDiagonal:
    """Deviations of ratio |mean|; in some networks only of a few weights, of one or two, or of no bias."""
    share = rng.choice([0.0, 0.5, 1.0], p=[0.2, 0.1, 0.7])
    variances = {}
    for name, mean in network.tensors.items():
        random = rng.random(mean.shape) < share
        variances[name] = (ratio * mean) ** 2 * random * (rng.random() < 0.9)
    if not any(v.any() for v in variances.values()):
        for name in rng.choice(list(variances), size=2):
            place = tuple(rng.integers(0, size) for size in variances[name].shape)
            variances[name][place] = (ratio * network.tensors[name][place]) ** 2
    return GaussianDiagonal(variances)


def samples(network: Network, ratio: float, rng: np.random.Generator) -> WeightSamples:
    """Up to five weight settings with unequal probabilities, one of them perhaps 0."""
    count = int(rng.integers(1, 6))
    drawn = {n: w + ratio * np.abs(w) * rng.normal(size=(count, *w.shape)) for n, w in network.tensors.items()}
    weights = rng.dirichlet(np.ones(count))
    if count > 1 and rng.random() < 0.3:
        weights[0] = 0.0
    return WeightSamples(drawn, weights / weights.sum())


def questions(network: Network, transform: Transform, center: Tensor, rng: np.random.Generator) -> OutputCases:
    """One or two cases of one or two rows, which about hold or fail at the first centre."""
    m = network.signature.output_size
    y = transformed(evaluate(network, center[:1]), transform)[0].numpy()
    cases = []
    for _ in range(int(rng.integers(1, 3))):
        count = int(rng.integers(1, 3))
        a, b = np.zeros((count, m)), np.zeros(count)
        for r in range(count):
            if transform == "softmax" and rng.random() < 0.5:
                i, j = rng.permutation(m)[:2]
                a[r, i], a[r, j] = 1.0, -1.0
            else:
                a[r] = rng.normal(size=m)
                b[r] = a[r] @ y + 0.2 * rng.normal() * np.abs(a[r] * y).sum()
        cases.append((a, b, np.zeros(count, bool)))
    return cases


@dataclass(frozen=True, eq=False)
class Weights:
    """Weight settings and their probabilities; exact: there is nothing to estimate."""

    params: dict[str, Tensor]
    share: Tensor
    exact: bool


def weights_of(trial: Trial, seed: int, count: int) -> Iterator[Weights]:
    """The samples, a grid, or `count` drawn networks in parts of BATCH."""
    posterior, network = trial.model.posterior, trial.model.network
    if isinstance(posterior, WeightSamples):
        drawn = {name: torch.as_tensor(values) for name, values in posterior.samples.items()}
        yield Weights(drawn, torch.as_tensor(posterior.probabilities), True)
        return
    if not isinstance(posterior, GaussianDiagonal):
        raise TypeError("a posterior is missing")
    random = [(name, place) for name, v in posterior.variances.items() for place in zip(*np.nonzero(v), strict=True)]
    if len(random) <= 2:
        yield _grid(network, posterior, random)
        return
    if trial.transform == "identity":  # linear in the last layer, which is independent of what is below
        last = sorted(network.tensors)[-1][1:]
        posterior = GaussianDiagonal({name: v for name, v in posterior.variances.items() if name[1:] != last})
    generator = torch.Generator().manual_seed(seed)
    for _ in range(0, count, BATCH):
        yield Weights(sample(network, posterior, BATCH, generator), torch.full((BATCH,), 1 / count).double(), False)


def _grid(network: Network, posterior: GaussianDiagonal, random: list[tuple[str, tuple[int, ...]]]) -> Weights:
    """The trapezoidal rule on up to two weights."""
    t = torch.linspace(-8.5, 8.5, {0: 1, 1: 8001, 2: 301}[len(random)], dtype=torch.float64)
    grids = torch.meshgrid(*(t for _ in random), indexing="ij") if random else (torch.zeros(1, dtype=torch.float64),)
    share = torch.exp(-0.5 * torch.stack([grid.flatten() ** 2 for grid in grids]).sum(0))
    params = {}
    for name in posterior.variances:
        params[name] = torch.as_tensor(network.tensors[name]).expand(len(share), *network.tensors[name].shape).clone()
    for (name, place), grid in zip(random, grids, strict=False):
        flat = int(np.ravel_multi_index(place, network.tensors[name].shape))
        params[name].view(len(share), -1)[:, flat] += float(np.sqrt(posterior.variances[name][place])) * grid.flatten()
    return Weights(params, share / share.sum(), True)


def truth(trial: Trial, points: Tensor, seed: int, count: int) -> tuple[Tensor, Tensor, bool]:
    """Rows of D at points (N, n), and what they may be off: (N, R) each; and whether that is not left to chance."""
    total = torch.zeros(len(points), len(trial.rows), dtype=torch.float64)
    square, exact, number = total.clone(), True, 1
    for weights in weights_of(trial, seed, count):
        y = transformed(evaluate(trial.model.network, points, weights.params), trial.transform) @ trial.rows.T
        share = weights.share[:, None, None]
        total, square = total + (share * y).sum(0), square + (share * y**2).sum(0)
        exact, number = weights.exact, len(weights.share)
    if exact:
        allowed = 1e-9 + (3e-4 if number > 8001 else 1e-6 if number > 5 else 0.0)  # kinks between the nodes
        return total, allowed * (1 + total.abs() + square.clamp(min=0).sqrt()), True
    return total, ERRORS * ((square - total**2).clamp(min=0) / count).sqrt() + 1e-9, False


@dataclass(frozen=True, eq=False)
class Claim:
    """Bounds on the rows (P, R) at points, by one way; the infinite ones claim nothing."""

    name: str
    lower: Tensor
    upper: Tensor

    @property
    def number(self) -> int:
        """Claims in it."""
        return int(torch.isfinite(self.lower).sum() + torch.isfinite(self.upper).sum())

    def wrong(self, value: Tensor, allowed: Tensor) -> Tensor:
        """(P,): some bound is beyond the value by more than that."""
        return (~((self.lower <= value + allowed) & (self.upper >= value - allowed))).any(-1)


def claims(trial: Trial, points: Tensor, owner: Tensor, limit: float) -> Iterator[Claim]:
    """Every method over the boxes that hold the points, then at the points."""
    for place, (low, high) in {"box": (trial.lower, trial.upper), "point": (points, points)}.items():
        of_point = owner if place == "box" else torch.arange(len(points))
        bounds = OutputBounds(
            Engine(trial.model.network, "linear", Deadline(time.monotonic() + limit)), trial.transform
        )
        expect = _expectation(bounds, trial)
        for number, method in enumerate(expect.steps.rows):
            lower, upper = (s * method.lower(low, high, s * trial.rows[None])[of_point] for s in (1, -1))
            yield Claim(f"{number} {type(method).__name__} {place}", lower, upper)


def _expectation(bounds: OutputBounds, trial: Trial) -> decision.Portfolio:
    posterior = trial.model.posterior
    if not isinstance(posterior, GaussianDiagonal | WeightSamples):
        raise TypeError("neither independent Gaussians nor samples")
    return decision.portfolio(decision.DecisionTask(bounds, posterior, torch.device("cpu")))


def points_of(trial: Trial, found: BatchResult, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Points (P, n) and their boxes (P,): attacked points, up to eight corners, the centre and points between."""
    low, high = trial.lower, trial.upper
    n = low.shape[1]
    corners = torch.as_tensor(rng.permutation(np.array(list(itertools.product((0.0, 1.0), repeat=n))))[:8])
    shares = torch.cat([corners, torch.full((1, n), 0.5).double(), torch.as_tensor(rng.random((3, n)))])
    x = (low + shares[:, None] * (high - low)).clamp(low, high)
    attacked = torch.as_tensor(found.points)[None].clamp(low, high)
    x = torch.cat([attacked, x])
    return x.flatten(0, 1), torch.arange(len(low)).repeat(len(x))


def wrong_verdicts(
    trial: Trial, verdicts: Sequence[Verdict], owner: Tensor, attacked: Tensor, value: Tensor, allowed: Tensor
) -> Tensor:
    """(P,): `unsat` though the point violates, `sat` though the attacked one does not, by more than is allowed."""
    start, holds, fails = trial.rows.shape[1], [], []  # behind the outputs
    for _, b, _ in trial.cases:
        some, bound = slice(start, start + len(b)), torch.as_tensor(b)
        holds.append((value[:, some] + allowed[:, some] < bound).all(-1))
        fails.append((value[:, some] - allowed[:, some] > bound).any(-1))
        start += len(b)
    unsat, sat = (torch.tensor([v == word for v in verdicts])[owner] for word in (Verdict.UNSAT, Verdict.SAT))
    return (unsat & torch.stack(holds).any(0)) | (sat & attacked & torch.stack(fails).all(0))


def examine(seed: int, index: int, limit: float, counts: Counter[str]) -> list[str]:
    """Violations of one network, in words."""
    rng = np.random.default_rng([seed, index])
    some = trial(rng)
    found = verify_batch(some.model, some.lower, some.upper, properties=[some.cases], query="decision", timeout=limit)
    points, owner = points_of(some, found, rng)
    whole = Claim("verify_batch", *(
        torch.cat([torch.as_tensor(out), torch.as_tensor(row)], 1)[owner]
        for out, row in ((found.lower, found.row_lower), (found.upper, found.row_upper))
    ))  # fmt: skip
    made = [whole, *claims(some, points, owner, limit)]
    verdicts = {"verify_batch": list(found.verdicts), **_by_criteria(some)}
    counts["claims"] += sum(claim.number for claim in made) + sum(len(v) for v in verdicts.values())
    counts.update(f"verdict {verdict}" for verdict in found.verdicts)
    wrong = [f"{a.name} crosses {b.name}" for a in made for b in made if bool((a.lower > b.upper).any())]

    def judged(at: Tensor, value: Tensor, allowed: Tensor) -> dict[str, Tensor]:
        parts = {claim.name: Claim("", claim.lower[at], claim.upper[at]).wrong(value, allowed) for claim in made}
        for name, words in verdicts.items():
            parts[f"verdicts of {name}"] = wrong_verdicts(some, words, owner[at], at < BOXES, value, allowed)
        return parts

    everything = torch.arange(len(points))
    value, allowed, exact = truth(some, points, index, FEW)
    found_wrong = judged(everything, value, allowed if exact else allowed * SUSPICIOUS / ERRORS)
    doubtful = torch.stack(list(found_wrong.values())).any(0).nonzero()[:, 0]
    if len(doubtful) and not exact:
        counts["repeated with more networks"] += 1
        value, allowed, _ = truth(some, points[doubtful], 10**6 + index, MANY)
        found_wrong = judged(doubtful, value, allowed)
    wrong += [name for name, mask in found_wrong.items() if bool(mask.any())]
    return [f"network {index} ({some.label}): {what}" for what in wrong]


def _by_criteria(trial: Trial) -> dict[str, list[Verdict]]:
    """What each criterion refutes by itself, as verdicts."""
    question = from_cases(trial.lower, trial.upper, [trial.cases], trial.rows.shape[1])
    bounds = OutputBounds(Engine(trial.model.network, "linear", Deadline()), trial.transform)
    found = {}
    for criterion in _expectation(bounds, trial).steps.criteria:
        refuted = criterion.refuted(question) | question.any_row(criterion.false_rows(question)).all(-1)
        found[type(criterion).__name__] = [Verdict.UNSAT if held else Verdict.UNKNOWN for held in refuted.tolist()]
    return found


def main(
    nets: Annotated[int, typer.Option(help="How many networks.")] = 1000,
    seed: Annotated[int, typer.Option(help="Another seed, other networks.")] = 0,
    first: Annotated[int, typer.Option(help="The number of the first one.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds for one call; what is proved by then counts.")] = 2.0,
) -> None:
    """Print what was checked and every violation."""
    torch.set_num_threads(1)
    console, counts, wrong = Console(), Counter[str](), list[str]()
    for index in track(range(first, first + nets), console=Console(stderr=True)):
        for what in examine(seed, index, limit, counts):
            console.print(what)
            wrong.append(what)
    console.print(f"{nets} networks, {counts.pop('claims')} bounds compared, {len(wrong)} violations")
    console.print(", ".join(f"{name}: {number}" for name, number in sorted(counts.items())))
    raise typer.Exit(code=bool(wrong))


if __name__ == "__main__":
    typer.run(main)
