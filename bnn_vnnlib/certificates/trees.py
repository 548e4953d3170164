"""Boxes split until they are proved, and what the proof of a leaf claims.

1. `FixedSettings`: networks of fixed weights, one or many, by linear bounds.
2. `Tails`: a network with independent Gaussian weights, by bounds 1 and 2 of `bounds.tails`.
3. `grow`: splits the inputs of what is not proved, best first. `preorder`: the trees as the format wants them.
4. `by_signs`: the signs of ReLU neurons are split instead, where many inputs vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.splits import kinks_of
from bnn_vnnlib.bounds.tails import Tail, TailEngine, claimed
from bnn_vnnlib.bounds.tails.engine import ItemRows, tuned
from bnn_vnnlib.bounds.tails.run import Deviations, TailPlan, TailRun
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.gaussian.normal import quantile
from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.network.nodes import params_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.splitting.branch import Pairs
from bnn_vnnlib.splitting.branch_neurons import SignedParts, Trees
from bnn_vnnlib.splitting.frontier import Forest
from bnn_vnnlib.system.clock import Deadline

_CHUNK = 2**9
"""Boxes that are bounded between two looks at the clock."""

_BUDGETS = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 3e-2)
"""Probabilities that the claims of a leaf may fail; the best of them is taken."""

FINE = tuple((10.0 ** np.linspace(-9, -1, 25)).tolist())
"""More probabilities that the claims of a leaf may fail, tried where `_BUDGETS` leave a property open."""

_MARGIN = 1e-7
"""What a row of fixed weights must exceed its bound by, relative to 1 + |bound|: the checker rounds otherwise."""

_GAIN = 0.995
"""Boxes with tails are not doubled again if the last time their failures fell by less."""

_STEPS, _UNUSED = 100, -60.0
"""Gradient steps of the tuning of a box; the logit of the budget's share for an event that no rule claims."""

_EVENTS = 3
"""Claims of an element: below, above, variation."""


class Leaves(Protocol):
    """What bounds boxes."""

    def failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some case is violated in the item); those of fixed weights are 0 or 1."""
        ...

    def steepness(self, problem: Problem) -> Tensor:
        """(N, n) how much the rows that are open vary along each input."""
        ...


# 1. Fixed weights


@dataclass(frozen=True, eq=False)
class FixedSettings:
    """K settings of the weights; the setting of an item is its instance."""

    bounds: OutputBounds
    weights: WeightBoxes

    def failures(self, problem: Problem) -> Tensor:
        """Whether items (N,) stay open: 0 where every case has a row that is false everywhere, else 1."""
        return self.look(problem)[0]

    def steepness(self, problem: Problem) -> Tensor:
        """The steepest slope of the rows of open cases."""
        return self.look(problem)[1]

    def look(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """`failures` and `steepness` by one pass."""
        pairs, rows = Pairs(self.bounds, self.weights, problem.instance, problem), problem.rows
        lower, form = pairs.lower(problem.lower, problem.upper, rows.outputs, rows.inputs, forms=True)
        spare = _MARGIN * (1 + rows.bound.abs().nan_to_num(0.0, 0.0))
        open_ = ~problem.refuted(rows.excluded(lower - spare))
        failures = open_.any(-1).to(problem.lower.dtype)
        if form is None:
            return failures, torch.ones_like(problem.lower)
        live = torch.nn.functional.pad(open_, (0, 1)).gather(-1, rows.case.expand(lower.shape))
        return failures, torch.where(live[..., None], form[0].abs(), 0.0).amax(1).nan_to_num(0.0, 0.0, 0.0)


# 2. Tails


@dataclass(frozen=True, eq=False)
class Claims:
    """Claims about N boxes, (N, width) for each claimed layer.

    slopes : (N, 2, width), none where they are the usual ones
    """

    lower: list[NDArray[np.float64]]
    upper: list[NDArray[np.float64]]
    near: list[NDArray[np.float64]]
    slopes: list[NDArray[np.float64]] = field(default_factory=list)

    def of(self, index: int) -> Claims:
        """The claims about one box."""
        return Claims(*([one[index : index + 1] for one in part] for part in vars(self).values()))


class Tails:
    """Bounds 1 and 2 of one network under independent Gaussians.

    Parameters
    ----------
    bounds : of the mean network, whose linear functions choose where to split
    """

    def __init__(self, bounds: OutputBounds, posterior: GaussianDiagonal, device: torch.device) -> None:
        self.budgets = _BUDGETS
        self._network, self._bounds = bounds.engine.network, bounds
        self._means = weight_sets.mean_weights(self._network, device)
        self._noise = weight_sets.centred(self._network, posterior, device)
        self._places = _random_claims(self._network, posterior)
        sizes = sum(math.prod(self._network.nodes[place].shape) for place in self._places)
        self._events = _EVENTS * max(1, sizes)

    def failures(self, problem: Problem) -> Tensor:
        """Failure probabilities (N,) of the items, under the best budget of each."""
        return self.best(problem, self.of_cases)[0]

    def of_cases(self, problem: Problem, rows: Tensor) -> Tensor:
        """(K, N) from the failures (K, N, R) of the rows: of every case one row has to fail."""
        return torch.where(problem.exists, problem.least(rows), 0.0).sum(-1)

    def best(self, problem: Problem, total: Callable[[Problem, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """(N,) the least of `total` plus what is spent, at most 1, and the budget (N,) behind it."""
        budgets = problem.lower.new_tensor(self.budgets if self._places else (0.0,))[:, None].expand(-1, len(problem))
        parts = [budgets[:, :0]]
        for index in torch.arange(len(problem), device=budgets.device).split(_CHUNK) if len(problem) else ():
            part = problem.items(index)
            run = self._run(part.lower, part.upper, budgets[:, index])
            tail = run.tail(part.rows.outputs, part.rows.inputs)
            found = Tail(tail.bounds).failure(part.rows.bound)  # without bound 3, which has no rule
            parts.append(total(part, found))
        spent = torch.cat(parts, 1) + budgets
        value, which = spent.clamp(max=1.0).min(0)
        return value, budgets.gather(0, which[None])[0]

    def claims(self, lower: Tensor, upper: Tensor, budgets: Tensor) -> Claims:
        """What boxes (N, n) claim under their budgets (N,)."""
        parts = []
        for index in torch.arange(len(lower), device=lower.device).split(_CHUNK):
            parts.append(self._claims(self._run(lower[index], upper[index], budgets[None, index])))
        joined = (zip(*(getattr(part, name) for part in parts), strict=True) for name in vars(parts[0]))
        return Claims(*([np.concatenate(layer) for layer in layers] for layers in joined))

    def _claims(self, run: TailRun) -> Claims:
        """What the run of one plan claims: its ranges, its variations and the slopes of its lines, which are hints."""
        z = [run.ranges.values[place] for place in self._places]
        near = [] if run.variation is None else [run.variation.known[place] for place in self._places]
        found = [
            [part[0].flatten(1).cpu().numpy() for part in side]
            for side in ([one.lower for one in z], [one.upper for one in z], near)
        ]
        lines = [run.ranges.lines.get(place + 1) for place in self._places]
        slopes = [
            one.lower.new_ones(*one.lower.shape[:2], 2, 1)
            if line is None
            else torch.stack(line.parts[::2], 2).flatten(3)
            for one, line in zip(z, lines, strict=True)
        ]
        return Claims(found[0], found[1], found[2], [part[0].cpu().numpy() for part in slopes])

    def tuned(self, problem: Problem, failures: Tensor, deadline: Deadline) -> tuple[Tensor, Claims]:
        """(N,) failures of items that are not split, after a descent on budgets, their shares and slopes; the claims.

        Parameters
        ----------
        failures : (N,) to start from
        """
        box, rows = (problem.lower, problem.upper), problem.rows
        engine = TailEngine(self._network, deadline)
        asked = ItemRows(self._network, self._means, self._noise, box, rows.outputs, rows.inputs, 1, slice(None))
        tuning = engine.start(asked, (failures / 3).clamp(_BUDGETS[0], 0.1))
        start = 0
        for place in tuning.places:  # no rule claims the mean given the earlier layers
            size = math.prod(self._network.nodes[place].shape)
            tuning.shares[:, start + 2 * size : start + 4 * size] = _UNUSED
            start += 5 * size

        def tail(plan: TailPlan) -> Tail:
            return Tail(asked.tail(_usual(plan)).bounds)

        def total(found: Tensor) -> Tensor:
            return self.of_cases(problem, found)[0]

        tuned(tuning, tail, rows.bound, total, _STEPS, lambda: deadline.passed)
        with torch.no_grad():
            plan, spent = tuning.plan(rounded=True)
            value = total(tail(plan).failure(rows.bound)) + spent
            run = asked.run(_usual(plan))
        return value.clamp(max=1.0), self._claims(run)

    def steepness(self, problem: Problem) -> Tensor:
        """Slopes that hint how the mean network's rows vary."""
        return FixedSettings(self._bounds, self._means).steepness(
            replace(problem, instance=torch.zeros_like(problem.instance))
        )

    def _run(self, lower: Tensor, upper: Tensor, budgets: Tensor) -> TailRun:
        share = (budgets / self._events * (1 - 1e-12))[:, :, None]
        levels = {k: quantile(share / k) for k in (1, 2)}
        plan = TailPlan(dict.fromkeys(claimed(self._network), Deviations(levels, levels, levels[1])))
        box = Interval(*(side[None].expand(len(budgets), -1, -1) for side in (lower, upper)))
        return TailRun(self._network, self._means, self._noise, box, plan)


def _usual(plan: TailPlan) -> TailPlan:
    """The plan without those parts for which the checker has no rule."""
    return replace(plan, moves={}, thorough=False)


def _random_claims(network: Network, posterior: GaussianDiagonal) -> list[int]:
    """The claimed nodes with noise behind them, which are those that the checker wants claims of."""
    random: set[int] = set()
    for position, node in enumerate(network.nodes):
        sources = {param.source for param in params_of(node)}
        if sources & set(posterior.variances) or random.intersection(node.inputs):
            random.add(position)
    return [position for position in claimed(network) if position in random]


# 3. Trees


def grow(leaves: Leaves, problem: Problem, most: int, enough: Callable[[Tensor], Tensor], deadline: Deadline) -> Forest:
    """Split the items until `enough` is true of their failures; less far if time, `most` boxes, or the gain ends it.

    Parameters
    ----------
    most : boxes of all items together
    enough : failures (N,) of the items -> (instances,) which ones are proved
    """
    known = list[Tensor]()

    def failures(boxes: Problem) -> Tensor:
        if not isinstance(leaves, FixedSettings):
            return leaves.failures(boxes)
        found, steepness = leaves.look(boxes)  # of every box, in the order of the forest's nodes
        known[:] = [torch.cat([*known, steepness])]
        return found

    forest = Forest(problem, failures(problem))
    size = _CHUNK if isinstance(leaves, FixedSettings) else 2**5
    looked, total = 2**10, forest.roots().sum()
    while len(forest) < most and not deadline.passed:
        if len(forest) > looked and isinstance(leaves, Tails):
            looked, before, total = 2 * looked, total, forest.roots().sum()
            if total > _GAIN * before:
                break
        open_ = ~enough(forest.roots())
        index = forest.worst(open_, torch.full_like(open_, size, dtype=torch.int64))[:_CHUNK]
        if len(index) == 0:
            break
        steepness = known[0][index] if known else leaves.steepness(forest.boxes(index))
        forest.split(index, steepness, failures)
    return forest


@dataclass(frozen=True, eq=False)
class Tree:
    """One item's tree: inputs (-1 for a leaf) and cuts in preorder; leaves : its leaves among the forest's nodes."""

    inputs: NDArray[np.int32]
    cuts: NDArray[np.float64]
    leaves: Tensor


def preorder(forest: Forest) -> list[Tree]:
    """The trees of all items, without splits that do not pay."""
    nodes, count = forest.nodes, len(forest)
    first, value, size = nodes.first.clone(), nodes.own.clone(), torch.ones(count, dtype=torch.int64)
    deepest = int(nodes.depth.max()) if count else 0
    for depth in range(deepest - 1, -1, -1):
        split = torch.nonzero((nodes.depth == depth) & (first >= 0))[:, 0]
        one = first[split]
        pays = value[one] + value[one + 1] < value[split]
        first[split[~pays]] = -1
        split, one = split[pays], one[pays]
        value[split] = value[one] + value[one + 1]
        size[split] = 1 + size[one] + size[one + 1]
    place = torch.full((count,), -1, dtype=torch.int64)
    place[: len(forest.problem)] = 0
    for depth in range(deepest):
        split = torch.nonzero((nodes.depth == depth) & (first >= 0) & (place >= 0))[:, 0]
        one = first[split]
        place[one], place[one + 1] = place[split] + 1, place[split] + 1 + size[one]
    kept = torch.nonzero(place >= 0)[:, 0]
    child = first[kept].clamp(min=0)
    changed = nodes.upper[child] != nodes.upper[kept]
    axis = torch.where(first[kept] >= 0, changed.to(torch.int8).argmax(-1), -1)
    cut = nodes.upper[child].gather(-1, axis.clamp(min=0)[:, None])[:, 0]
    trees = []
    for owner in range(len(forest.problem)):
        mine = torch.nonzero(nodes.owner[kept] == owner)[:, 0]
        mine = mine[place[kept[mine]].argsort()]
        leaf = axis[mine] < 0
        cuts = torch.where(leaf, 0.0, cut[mine])
        trees.append(Tree(axis[mine].to(torch.int32).numpy(), cuts.numpy(), kept[mine][leaf]))
    return trees


# 4. Signs


@dataclass(frozen=True, eq=False)
class Signs:
    """One case of an item: neurons (-1 for a leaf) in preorder, of all Relu and LeakyRelu in one vector of H; the half
    below 0 comes first. Of the leaves: slopes of the lines below and multipliers beta (L, H), and those of the case's
    rows, and then of the input constraints (L, R)."""

    neurons: NDArray[np.int32]
    slopes: NDArray[np.float64]
    beta: NDArray[np.float64]
    rows: NDArray[np.float64]


def by_signs(leaves: FixedSettings, problem: Problem, most: int) -> list[list[Signs]] | None:
    """The trees of every case of every item, under one setting of the weights; None where some case stays open.

    Parameters
    ----------
    most : parts of an item
    """
    network, found = leaves.bounds.engine.network, list[SignedParts]()
    setting = torch.zeros(len(problem), dtype=torch.int64, device=problem.lower.device)
    if not bool(Trees(Pairs(leaves.bounds, leaves.weights, setting, problem), most, found.append).grown().safe.all()):
        return None
    parts = found[0].join(*found[1:])
    kinks = kinks_of(network)
    leak = parts.alpha.new_zeros(kinks.count)
    for place, start, size in kinks.places:
        leak[start : start + size] = getattr(network.nodes[place], "alpha", 0.0)
    slopes = leak + parts.alpha.clamp(0, 1) * (1 - leak)
    # a target is a case of an item, in this order
    owner, _ = torch.nonzero(problem.exists.expand(len(problem), -1), as_tuple=True)
    extra = 0 if problem.constraints is None else problem.constraints.bound.shape[-1]
    trees: list[list[Signs]] = [[] for _ in range(len(problem))]
    for target, item in enumerate(owner.tolist()):
        mine = torch.nonzero(parts.target == target)[:, 0]
        signs = parts.signs[mine].cpu().numpy()
        neurons, order = _tree_of(signs)
        mine = mine[torch.as_tensor(order, device=mine.device)]
        count = int((problem.rows.case.expand(len(problem), -1)[item] == len(trees[item])).sum())
        mixture = parts.mixture[mine]
        rows = torch.cat([mixture[:, :count], mixture[:, mixture.shape[-1] - extra :]], -1)
        beta = parts.beta[mine] * (parts.signs[mine] != 0)
        trees[item].append(Signs(neurons, *(part.cpu().numpy() for part in (slopes[mine], beta, rows))))
    return trees


def _tree_of(signs: NDArray[np.int8]) -> tuple[NDArray[np.int32], list[int]]:
    """The tree whose leaves (L, H) have these signs, in preorder, and the order of the leaves in it."""
    neurons, order, waiting = list[int](), list[int](), [(np.arange(len(signs)), np.zeros(signs.shape[-1], bool))]
    while waiting:
        mine, known = waiting.pop()
        if len(mine) == 1:
            neurons.append(-1)
            order.append(int(mine[0]))
            continue
        split = int(((signs[mine] != 0).all(0) & ~known).argmax())
        known = known.copy()
        known[split] = True
        neurons.append(split)
        waiting += [(mine[signs[mine, split] > 0], known), (mine[signs[mine, split] < 0], known)]
    return np.array(neurons, np.int32), order
