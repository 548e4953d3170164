"""Anytime refinement of bounds on P_safe: pieces of work in turn until the question is decided or nothing is left.

Guarantee: bounds only ever improve, since each piece of work yields valid bounds of its own and the tighter one is
kept; whatever has been reached when time is up stays. A stage treats the instances independently of each other, so
that nothing depends on the neighbours or the order, except for where time is cut off.

1. `refine`: the stages take turns.
2. `MorePoints`: upper bounds from more points, where most networks of the posterior violate, not the mean one alone.
3. `BoxSplitting`: bounds from a box of weights by splitting the inputs.
Lower: all parts are proved for the same box of weights, and so its mass holds for their union: splits cost no
probability. Upper: a point of T that violates for all weights of the box violates with at least its mass.
As the standard deviations vanish, the box of a given mass shrinks to the mean network, and this to branch and bound of
the deterministic question.
4. `InputSplitting`: the inputs are split under tail bounds, best first; failures of the parts add up.
5. `TunedItems`: budgets, shares and slopes of single items are tuned by gradient on their tail bounds.
6. `LargeVarianceItems`: the bounds for large variances, where tails have left something open.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.by_weights import CENTRED, ROUNDED_ZERO, CentredBoxes, mass_at
from bnn_vnnlib.methods.safety.large_variance.rows import LARGE_VARIANCE, SPARE, LargeVarianceBounds, chain_of
from bnn_vnnlib.methods.safety.safety import (
    Goal,
    Pass,
    SafetyBounds,
    SafetyTask,
    at_points,
    from_masses,
    last_of_each,
    nothing_known,
)
from bnn_vnnlib.methods.safety.tails import TAILS, TailBounds, lower_of
from bnn_vnnlib.network.dense_chain import DenseChain
from bnn_vnnlib.network.families import names_of, sample
from bnn_vnnlib.network.network import GaussianDiagonal, Network
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import outside
from bnn_vnnlib.problem.problem import Problem, feasible, point_box
from bnn_vnnlib.problem.refute import before_softmax
from bnn_vnnlib.problem.weight_sets import margin_of
from bnn_vnnlib.splitting.branch import Branching, Decided, constrained
from bnn_vnnlib.splitting.frontier import Forest, paired
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

# 1. Turns

_GAIN = 0.01
"""What a turn has to gain on a side that leads to no verdict, for the next one to ask for it again."""


class Stage(Protocol):
    """A kind of work that comes in pieces of limited size."""

    def due(self, turn: int) -> bool:
        """Whether the stage has a piece in that turn (0, 1, ...), while others have."""

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """The next piece for the instances whose lower (I,) or upper (I,) bound is wanted; None: nothing is left.

        A piece that time cuts off returns what it has.
        """


def refine(found: SafetyBounds, goal: Goal, stages: Sequence[Stage], deadline: Deadline) -> SafetyBounds:
    """Better bounds: the stages take turns.

    Parameters
    ----------
    found : the bounds so far, of all instances
    stages : in the order of their turns
    """
    left, course = list(stages), _Course()
    hopeful = torch.ones_like(found.lower, dtype=torch.bool)  # that the side without a verdict ends the work
    for turn in itertools.count():
        before = found
        for stage in [stage for stage in left if stage.due(turn)] or left:
            open_ = goal.open(found)
            course.add(found)
            if deadline.passed or not bool(open_.any()):
                return course.ended(found)
            both = hopeful if goal.gap is None else torch.ones_like(hopeful)
            below, above = (found.upper >= goal.safe) | both, (found.lower < goal.unsafe) | both
            news = stage.step(open_ & below, open_ & above)
            if news is None:
                left = [other for other in left if other is not stage]
            else:
                found = found.better(news)
        if not left:
            break
        no_sat, no_unsat = before.lower >= goal.unsafe, before.upper < goal.safe
        gained = torch.where(no_sat, before.upper - found.upper, found.lower - before.lower) > _GAIN
        hopeful = hopeful & (gained | ~(no_sat | no_unsat))
    return course.ended(found)


class _Course:
    """When the bounds of a single instance were what, for whoever asks whether more time would help."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float, float]] = []

    def add(self, found: SafetyBounds) -> None:
        """Note the bounds, where they are new."""
        if len(found.lower) == 1:
            now = time.monotonic(), float(found.lower), float(found.upper)
            if not self._marks or now[1:] != self._marks[-1][1:]:
                self._marks.append(now)

    def ended(self, found: SafetyBounds) -> SafetyBounds:
        """The bounds in the end, with those when three quarters of the time were used."""
        if not self._marks:
            return found
        first = self._marks[0][0]
        then = first + 0.75 * (time.monotonic() - first)
        return replace(found, three_quarters=[(low, high) for at, low, high in self._marks if at <= then][-1])


def rarely(turn: int) -> bool:
    """Whether the turn is 0, 1, 2, 4, 8, ...: for work that is mostly tried again in vain, or grows from piece to
    piece.
    """
    return turn & (turn - 1) == 0


def _owned(chosen: Tensor, instance: Tensor) -> Tensor:
    """Indices of the items whose instance is chosen (I,)."""
    return torch.nonzero(chosen[instance])[:, 0]


# 2. More points

_POINT_PIECES = 3
"""Number of pieces of work on more points where no time limit is given."""

_NETWORKS, _FEWEST_NETWORKS, _WEIGHTS = 64, 8, 2**20
"""Networks that are sampled to choose points by: the most, the least, and how many weights they have in all."""

_ALONE = 8
"""Sampled networks, at most, that are attacked each for itself."""

_STARTS = 16
"""Starting points of another attack on the mean network, the best of as many times as many."""

_ATTACKED_ITEMS = 64
"""Items of one instance that are attacked, at most: those nearest to a violation."""

_ATTACK_CHUNK = 2**8
"""Items attacked and bounded between two looks at the clock."""

LATE = 4
"""Pieces without the bounds for large variances, if items take them seconds, several instances are open and time is
limited: then they look at the most promising instance only.
"""

_SLIGHT = 1e-12
"""Weight of the attack's values beside masses that are ranked: they only decide between equal ones."""


class BoundedItems(Protocol):
    """Failures of single items, by tails or by the law of the last layer; see `TailBounds`. name : of the method."""

    name: ClassVar[str]

    def item_failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some x of the item violates some case)."""

    def unsafe(self, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,) lower bounds on P_w(some case holds at the point), the point given as a box of size (nearly) zero."""


class MorePoints:
    """New points of the items nearest to a violation.

    First, from each known point the one that most sampled networks violate. Then the same from points of single
    networks and of the predictive one, the best of which is taken. Then again from where this led, with other starts.

    Parameters
    ----------
    task : its attacked points are where the search begins
    tails, boxes, large_variance : what bounds the mass that violates at a point; any may be missing. The last one is
        dear: it looks at one item of an instance in a piece, the one with the largest mass by tails, then the least
        value
    """

    def __init__(
        self, task: SafetyTask, tails: BoundedItems | None, boxes: CentredBoxes | None,
        large_variance: LargeVarianceBounds | None = None,
    ) -> None:  # fmt: skip
        points, values, _ = task.attacked
        self._task, self._bounds, self._problem, self._deadline = task, task.bounds, task.problem, task.deadline
        self._points, self._values = points.clone(), values
        self._tails, self._boxes, self._large_variance = tails, boxes, large_variance
        self._mass = torch.zeros(len(values), dtype=torch.float64, device=points.device)
        self._settings = replace(task.attack, restarts=4, pool=1)
        self._pieces = 0

    def due(self, turn: int) -> bool:
        """Less and less often: what a few attacks do not find, further ones rarely do."""
        return rarely(turn)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """New points for the items that are the nearest to a violation, and what they give."""
        if not bool(above.any()) or (self._pieces >= _POINT_PIECES and self._deadline.at is None):
            return None
        index = self._nearest(above)
        piece, self._pieces = self._pieces, self._pieces + 1
        params = self._networks(piece)
        found = nothing_known(self._problem, self._points)
        for part in index.split(_ATTACK_CHUNK):
            if self._deadline.passed:
                return found
            self._points[part] = self._attacked(part, params, piece)
            found = found.better(self._bounded(part, above))
        if self._large_variance is None:
            return found
        dear = not self._large_variance.quick and self._deadline.at is not None and int(above.sum()) > 1
        if dear and piece < LATE:
            return found
        most = 1 if dear else len(above)
        return found.better(self._by_large_variance(self._large_variance, index, above, most))

    def _by_large_variance(self, tight: LargeVarianceBounds, index: Tensor, above: Tensor, most: int) -> SafetyBounds:
        """Bounds at the most promising of the points just found, one for each instance, so many instances at most."""
        problem, points = self._problem, self._points
        rank = torch.full_like(self._mass, -torch.inf)
        rank[index] = self._mass[index] - _SLIGHT * self._values[index].to(rank)
        best = last_of_each(problem, torch.argsort(rank, stable=True))
        chosen = best[above & torch.isfinite(rank[best])]
        chosen = chosen[tight.pays(problem.items(chosen))] if len(chosen) else chosen
        chosen = chosen[feasible(problem.items(chosen), points[chosen])] if len(chosen) else chosen
        chosen = chosen[torch.argsort(rank[chosen], descending=True, stable=True)[:most]]
        if len(chosen) == 0:
            return nothing_known(problem, points)
        part = problem.items(chosen)
        mass = torch.zeros_like(self._mass)
        mass[chosen] = (tight.unsafe(part, *point_box(part, points[chosen])) - SPARE).clamp(min=0.0)
        return at_points(problem, points, mass).named(LARGE_VARIANCE)

    def _nearest(self, above: Tensor) -> Tensor:
        """Indices of the items with the least values of the attack, _ATTACKED_ITEMS of each chosen instance at most."""
        instance = self._problem.instance
        index = _owned(above, instance)
        index = index[torch.argsort(self._values[index], stable=True)]
        index = index[torch.argsort(instance[index], stable=True)]
        count = torch.bincount(instance[index], minlength=len(above))
        rank = torch.arange(len(index), device=index.device) - (count.cumsum(0) - count)[instance[index]]
        return index[rank < _ATTACKED_ITEMS]

    def _networks(self, piece: int) -> attack.Params:
        """Sampled weights, others in each piece."""
        network = self._bounds.engine.network
        size = sum(network.tensors[name].size for name in names_of(self._task.posterior))
        count = min(_NETWORKS, max(_FEWEST_NETWORKS, _WEIGHTS // max(size, 1)))
        generator = torch.Generator().manual_seed(self._settings.seed + piece)
        drawn = sample(network, self._task.posterior, count, generator)
        return {name: values.to(self._points.device) for name, values in drawn.items()}

    def _attacked(self, index: Tensor, params: attack.Params, piece: int) -> Tensor:
        """Points (P, n) of some items."""
        network, transform = self._bounds.engine.network, self._bounds.transform
        part, start = self._problem.items(index), self._points[index]
        settings = replace(self._settings, seed=self._settings.seed + piece)
        if piece == 1:
            few = {name: values[:_ALONE] for name, values in params.items()}
            broad = replace(settings, restarts=_STARTS, pool=_STARTS)
            found = [
                attack.run(network, part, few, settings, transform)[0],
                attack.run(network, part, {}, broad, transform)[0],
                attack.run(network, part, params, settings, transform, "mean")[0],
            ]
            start = _most_violated(network, part, params, torch.cat([start[None], *found]), transform)
        return attack.run(network, part, params, settings, transform, "common", start=start)[0][0]

    def _bounded(self, index: Tensor, above: Tensor) -> SafetyBounds:
        """Bounds at the points of some items."""
        problem, points = self._problem, self._points
        part, x = problem.items(index), points[index]
        usable = feasible(part, x)
        found = nothing_known(problem, points)
        if self._tails is not None:
            mass = torch.zeros_like(self._mass)
            mass[index] = torch.where(usable, self._tails.unsafe(part, *point_box(part, x)), 0.0)
            self._mass[index] = mass[index]
            found = at_points(problem, points, mass).named(self._tails.name)
        if self._boxes is not None:
            value = attack.violation(self._bounds.engine.network, part, {}, x[None, None], self._bounds.transform)
            hopeful = torch.zeros(len(problem), dtype=torch.bool, device=points.device)
            hopeful[index] = usable & (value[0, 0] <= ROUNDED_ZERO)
            found = found.better(self._boxes.unsafe(points, hopeful, above))
        return found


def _most_violated(network: Network, problem: Problem, params: attack.Params, x: Tensor, transform: str) -> Tensor:
    """The points (N, n): for each item the one of x (S, N, n) that is violated the most over all the networks."""
    with torch.no_grad():
        value = attack.violation(network, problem, params, x[None], transform, "common")[0]
    return x[value.argmin(0), torch.arange(x.shape[1], device=x.device)]


# 3. Boxes of weights

FIRST_BOXES = 2**6
"""Boxes of inputs spent on an item in the first piece of work; four times as many in each further one."""

_BOX_PIECES, _MOST_BOX_PIECES = 2, 20
"""Pieces where no time limit is given, and where one is: the last of them is longer than anybody waits, unless there is
nothing to split."""

LIKELY_INPUTS = 20
"""Inputs that vary, at most, where only what is likely is tried: parts of more of them stay large."""


class BoxSplitting:
    """Branch and bound over inputs for the box of weights whose mass is just the wanted lower bound, or the given one.

    Parameters
    ----------
    boxes : at the posterior mean
    points : (N, n) attacked points, in their boxes
    mass : the lower bound that is wanted
    only_likely : only the instances that pass `_likely`
    """

    def __init__(self, boxes: CentredBoxes, points: Tensor, mass: float, *, only_likely: bool = False) -> None:
        self._boxes, self._points, self._pieces = boxes, points, 0
        self._only_likely, self._chosen = only_likely, torch.ones(boxes.problem.instances, dtype=torch.bool)
        if boxes.count == 0:
            self._margin = 0.0
        elif boxes.margin is not None:
            self._margin = boxes.margin
        else:  # a little more, so that the mass that is computed from the margin does not fall short
            wanted = torch.tensor(mass + 1e-3 * (1 - mass), dtype=torch.float64)
            self._margin = float(margin_of(wanted, boxes.count)) if wanted < 1 else float("inf")

    def due(self, turn: int) -> bool:
        """Whether it is the stage's turn: less and less often, since the pieces grow."""
        return rarely(turn)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """Branch and bound over the items of each instance, from the start, with more boxes each time."""
        most_pieces = _BOX_PIECES if self._boxes.deadline.at is None else _MOST_BOX_PIECES
        if not math.isfinite(self._margin) or self._pieces >= most_pieces:
            return None
        if self._only_likely and self._pieces == 0 and bool(below.any()):
            self._chosen = self._likely(below)
        below = below & self._chosen.to(below.device)
        if not bool(below.any()):
            return None
        index = _owned(below, self._boxes.problem.instance)
        part = self._boxes.problem.items(index)
        every = torch.ones(1, len(part), dtype=torch.bool, device=index.device)
        bounds = before_softmax(self._boxes.bounds, part)
        most = FIRST_BOXES * 4**self._pieces
        self._pieces += 1
        weights = self._boxes.weights.scaled(self._scale(index))
        return self._proved(below, index, Branching(bounds, weights, part, every, most).run())

    def _scale(self, index: Tensor) -> Tensor:
        return torch.full((1, 1), self._margin, dtype=torch.float64, device=index.device)

    def _proved(self, below: Tensor, index: Tensor, found: Decided) -> SafetyBounds:
        """Bounds from what is proved of the items `index` for the box."""
        problem = self._boxes.problem
        safe = torch.ones(len(problem), dtype=torch.bool, device=index.device)
        violated, points = torch.zeros_like(safe), self._points.clone()
        safe[index], violated[index], points[index] = found.safe[0], found.violated[0], found.point[0]
        nothing = torch.full_like(below, torch.nan, dtype=torch.float64)
        above = torch.where(problem.any_item(violated), self._margin, nothing)
        mass = mass_at(above, self._boxes.count)
        # each instance's point is that of its last violated item, if there is one
        which = last_of_each(problem, torch.argsort(violated.to(torch.int8), stable=True))
        from_above = replace(
            nothing_known(problem, points), upper=from_masses(mass, mass)[1], point=points[which], point_mass=mass,
            unsafe_margin=above,
        ).named(CENTRED.name)  # fmt: skip
        below_margin = torch.where(problem.all_items(safe) & below, self._margin, nothing)
        return from_above.better(self._boxes.proved(self._points, below_margin))

    def _likely(self, below: Tensor) -> Tensor:
        """(I,): few inputs vary, and no item's attacked point alone violates a case for any weights of the box.

        Where it fails no part with that point is ever refuted, however small. No bound rests on it.
        """
        problem = self._boxes.problem
        few = (problem.lower < problem.upper).sum(-1) <= LIKELY_INPUTS
        index = _owned(below & problem.all_items(few), problem.instance)
        refuted = torch.zeros_like(few)
        if len(index):
            part = problem.items(index)
            lower, upper = point_box(part, self._points[index])
            bounds, weights = before_softmax(self._boxes.bounds, part), self._boxes.weights.scaled(self._scale(index))
            rows = part.rows
            least = bounds.rows(weights, lower, upper, rows.outputs, rows.inputs).lower
            refuted[index] = part.refuted(rows.excluded(least)).all(-1)[0]
        return problem.all_items(refuted)


# 4. Inputs split under tails

SPLITS, _FEWEST_SPLITS, _SPLIT_INPUTS = 256, 16, 64
"""Splits of one instance before the next ones have their turn; four times as many in each further round. With more
inputs than SPLIT_INPUTS proportionally fewer, since halving one of many changes little; but no fewer than
FEWEST_SPLITS."""

SPLIT_ROUND = 32
"""Splits of one instance in one piece of work, at most; later an eighth of those made before."""

_SPLIT_CHUNK = 2**10
"""Boxes that are bounded between two looks at the clock."""

_COORDINATES = 2**24
"""Coordinates of the boxes of one instance, at most: beyond, it is not split on."""


class InputSplitting:
    """The inputs of open instances, split best first under tail bounds.

    Parameters
    ----------
    task : the linear functions below the mean network's rows choose where to split
    tails : of its network
    """

    def __init__(self, task: SafetyTask, tails: BoundedItems) -> None:
        problem = task.problem
        self._bounds, self._tails, self._problem = before_softmax(task.bounds, problem), tails, problem
        self._nothing, self._deadline = task.nothing, task.deadline
        self._means = weight_sets.mean_weights(task.bounds.engine.network, problem.lower.device)
        self._forest: Forest | None = None
        self._spent = torch.zeros(problem.instances, dtype=torch.int64, device=problem.lower.device)
        self._limit, self._alone = 0, False
        self._queue: list[Tensor] = []

    def due(self, turn: int) -> bool:
        """Whether it is the stage's turn: always."""
        return True

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """Split the leaves that matter most of each instance."""
        while self._forest is None or len(index := self._due(self._forest, below)) == 0:
            if not self._advance(below):
                return None
        forest = self._forest
        self._spent += torch.bincount(forest.instance[index], minlength=len(below))

        def split(part: Tensor) -> None:
            forest.split(part, self._steepness(forest.boxes(part)), self._failures)

        self._deadline.reached(index.split(_SPLIT_CHUNK), split)
        known = torch.zeros_like(below).index_fill(0, forest.problem.instance, True)
        lower = torch.where(known, lower_of(forest.problem, forest.roots()), 0.0)
        return replace(self._nothing, lower=lower).named(self._tails.name)

    def _due(self, forest: Forest, below: Tensor) -> Tensor:
        """Indices of the leaves to split next."""
        return forest.worst(below & (self._spent < self._limit), (self._spent // 8).clamp(min=SPLIT_ROUND))

    def _advance(self, below: Tensor) -> bool:
        """Take up the next instances, or go round again with more splits for each; False: nothing is left.

        The boxes of instances that leave are forgotten. A single group stays.
        """
        if not self._queue:
            if self._limit and self._deadline.at is None:
                return False
            inputs = self._problem.lower.shape[1]
            self._limit = 4 * self._limit or min(SPLITS, max(_FEWEST_SPLITS, SPLITS * _SPLIT_INPUTS // inputs))
            each = 2 * self._limit * inputs
            if each > _COORDINATES or not bool(below.any()):
                return False
            self._queue = list(torch.nonzero(below)[:, 0].split(at_once(each)))
            if self._alone:
                self._queue = []
                return True
            self._alone = len(self._queue) == 1
        chosen = torch.zeros_like(below).index_fill(0, self._queue.pop(0), True) & below
        part = self._problem.items(_owned(chosen, self._problem.instance))
        self._forest = Forest(part, self._failures(part)) if len(part) else None
        self._spent = torch.zeros_like(self._spent)
        return True

    def _failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on the probability that the item is violated; a box outside the constraints is not."""
        none = outside(problem, problem.lower, problem.upper)
        if problem.constraints is not None:
            lower, upper = constrained(problem.constraints, problem.lower, problem.upper)
            empty = (lower > upper).any(-1, keepdim=True)
            lower, upper = torch.where(empty, problem.lower, lower), torch.where(empty, problem.upper, upper)
            problem, none = replace(problem, lower=lower, upper=upper), none | empty[:, 0]
        return torch.where(none, 0.0, self._tails.item_failures(problem))

    def _steepness(self, problem: Problem) -> Tensor:
        """(N, n): slopes of the linear function below the row that decides: the best one of the most violated case."""
        rows = problem.rows
        found = self._bounds.rows(self._means, problem.lower, problem.upper, rows.outputs, rows.inputs, forms=True)
        if found.form is None:
            return torch.ones_like(problem.lower)
        gap = found.lower[0] - rows.bound
        case = rows.case.expand(gap.shape)
        best = torch.where(problem.exists, problem.worst(gap), torch.inf).argmin(-1, keepdim=True)
        row = torch.where(case == best, gap, -torch.inf).argmax(-1)
        slope = found.form.slope[0][torch.arange(len(row), device=row.device), row]
        return paired(self._bounds.engine.network, slope.abs().nan_to_num(0.0, 0.0, 0.0))


# 5. Tails tuned

_TUNING_STEPS = (10, 30, 100)
"""Gradient steps of the pieces, each from the start."""

FEW_INPUTS, LATER = 16, 32
"""Inputs up to which the first piece waits, and turns that it waits: splits of so few inputs decide most of it sooner.
"""

_SHARE = 0.01
"""Items that lose less than this share of what their instance has lost are left alone."""


class TunedItems:
    """Tail bounds of single items, tuned.

    Parameters
    ----------
    tails : of the network
    nothing : bounds [0, 1] of all instances
    """

    def __init__(self, tails: TailBounds, problem: Problem, nothing: SafetyBounds) -> None:
        self._tails, self._problem, self._nothing = tails, problem, nothing
        self._failures: Tensor | None = None
        self._left = list(_TUNING_STEPS)

    def due(self, turn: int) -> bool:
        """Whether it is the stage's turn: rarely, since each piece takes longer than all before."""
        first = LATER if self._problem.lower.shape[1] <= FEW_INPUTS else 0
        return turn >= first and rarely(turn - first)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """Tune the items of the instances whose lower bound is wanted."""
        if not self._left or not bool(below.any()):
            return None
        problem = self._problem
        if self._failures is None:
            self._failures = self._tails.item_failures(problem)
        failures = self._failures
        lost = torch.zeros(problem.instances, dtype=failures.dtype, device=failures.device)
        lost = lost.index_add(0, problem.instance, failures)
        index = _owned(below, problem.instance)
        index = index[failures[index] > _SHARE * lost[problem.instance[index]]]
        better = self._tails.improved(problem.items(index), failures[index], self._left.pop(0), 0.0)
        self._failures = failures.index_copy(0, index, better)
        lower = lower_of(problem, self._failures)
        return replace(self._nothing, lower=lower).named(TAILS.name)


# 6. Large variances

TIGHT_CHUNK = 16
"""Items of one piece of work, with one hidden layer."""

PACE = 8
"""Turns that other stages have for each item with more hidden layers: it takes 1 to 30 s."""

JUDGED = 256
"""Items of which it is found out at once whether they pay; some arrays hold 15 numbers a neuron of each."""


class LargeVarianceItems:
    """Each item's lower bound once, then its upper bound at the attacked point.

    Parameters
    ----------
    tight : of the network
    points, usable : (N, n), (N,) attacked points, and which of them surely lie in their item
    """

    def __init__(self, tight: LargeVarianceBounds, problem: Problem, points: Tensor, usable: Tensor) -> None:
        self._tight, self._problem, self._points = tight, problem, points
        self._failures = torch.ones(len(problem), dtype=torch.float64, device=points.device)
        self._mass = torch.zeros_like(self._failures)
        self._safe, self._unsafe = ~tight.serves(problem), ~usable
        self._judged = torch.zeros_like(usable)
        self._chunk, self._steps = TIGHT_CHUNK if tight.quick else 1, 0

    def due(self, turn: int) -> bool:
        """Whether it is the stage's turn: at first and then rarely, as it is soon done; if an item takes long, after
        others.
        """
        if self._tight.quick:
            return turn < 2 or rarely(turn)
        return turn >= PACE * (self._steps + 1)

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """The next items that are wanted and have not been looked at."""
        problem = self._problem
        for wanted, seen, look in ((below, self._safe, self._lower), (above, self._unsafe, self._upper)):
            index = _owned(wanted, problem.instance)
            self._judge(index[~seen[index] & ~self._judged[index]])
            index = index[~seen[index]][: self._chunk]
            if len(index):
                self._steps += 1
                look(index)
                seen[index] = True
                return self._bounds()
        return None

    def _judge(self, index: Tensor) -> None:
        """Leave out the items that do not pay."""
        for part in index.split(JUDGED):
            idle = part[~self._tight.pays(self._problem.items(part))]
            self._safe[idle] = self._unsafe[idle] = True
        self._judged[index] = True

    def _lower(self, index: Tensor) -> None:
        self._failures[index] = self._tight.item_failures(self._problem.items(index))

    def _upper(self, index: Tensor) -> None:
        part = self._problem.items(index)
        mass = self._tight.unsafe(part, *point_box(part, self._points[index]))
        self._mass[index] = (mass - SPARE).clamp(min=0.0)

    def _bounds(self) -> SafetyBounds:
        lower = lower_of(self._problem, self._failures)
        return at_points(self._problem, self._points, self._mass, lower).named(LARGE_VARIANCE)


def _chain(task: SafetyTask) -> DenseChain | str:
    reason = TAILS.serves(task)
    if reason is None and not isinstance(task.posterior, GaussianDiagonal):
        reason = "the posterior's weights are not independent"
    if reason is None and task.means == "tails":
        reason = "tails alone are asked for"
    return chain_of(task.bounds, cast(GaussianDiagonal, task.posterior), task.problem) if reason is None else reason


def _large_variance_serves(task: SafetyTask) -> str | None:
    found = _chain(task)
    return found if isinstance(found, str) else None


def large_variance_of(task: SafetyTask) -> LargeVarianceBounds | None:
    """The bounds of a task that they serve."""
    found = _chain(task)
    return None if isinstance(found, str) else LargeVarianceBounds(found, task.deadline)


def _large_variance(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Bounds for large variances on all items of the instances that are open, one after the other."""
    found, (points, _, usable) = large_variance_of(task), task.attacked
    stages = [] if found is None else [LargeVarianceItems(found, task.problem, points, usable)]
    return refine(known or task.nothing, task.goal, stages, task.deadline)


BY_LARGE_VARIANCE: Method[SafetyTask, Pass] = Method(LARGE_VARIANCE, _large_variance_serves, _large_variance)
