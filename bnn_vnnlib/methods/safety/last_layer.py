"""P_safe where the last dense layer alone is random: bounds on a deterministic body, a Gaussian law behind it.

A row over the outputs is m_r(x) + N_r(h(x)) (`methods.last_layer`). On a box of x with centre c and radii d:

1. Linear bounds of the features, once for all rows: h(x) = z + A (x - c) + v, |v_j| <= e_j, with z, A, e numbers. So
       N_r(h(x)) >= N_r(z) - sum_i d_i |N'_r(A_i)| - sum_j e_j |delta_rj|,
   N' being N without the biases, and A_i the column of the i-th input. Features that move together with the inputs pay
   for |N'_r(A_i)|, whose mean is sqrt(2 / pi) times the length of a vector over the features, and not for the sum of
   its entries, as the tails of `bounds.tails` do.
2. With a linear function l . (x - c) + k below m_r the row is at least
       F_r = k + N_r(z) - sum_i d_i |l_i + N'_r(A_i)| - sum_j e_j |delta_rj|   for all x of the box.
   F_r is concave in the noise, and E F_r = k - sum_i d_i E|N(l_i, v_i^2)| - sqrt(2 / pi) sum_j e_j s_j, where v_i and
   s_j are the standard deviations of N'_r(A_i) and of delta_rj.
3. F_r is the least of affine functions of the noise that have the gradients of the N_r(h), h of the form in 1. So it is
   Lipschitz with L_r = (standard deviation of N_r(z)) + the lesser of sum_i d_i v_i + sum_j e_j s_j and
   sum_j s_j (sum_i d_i |A_ji| + e_j), by the triangle inequality; and of independent noise also with the deviation of
   N_r at the vector of the largest |h_j|, which grows with every entry.
4. P(F_r <= b) <= Phi(-(E F_r - b) / L_r) where that is positive: bound 1 of `bounds.tails.tail`. A case is violated
   only where all its rows fail: the least of these counts, and the cases add up.
5. The same without m_r: off an event of probability Phi(-(t_r - q_r) / L_r), q_r = sqrt(2 / pi) (sum_i d_i v_i +
   sum_j e_j s_j), N_r(h(x)) > -t_r for all x of the box. So let branch and bound prove that the mean network
   satisfies no case of which all bounds are raised by t_r. Then P_safe >= 1 - sum_r Phi(-(t_r - q_r) / L_r). However
   many parts it takes, of the inputs or of the signs of neurons: the noise is paid for once, on the whole box. As the
   deviations vanish, so does t, and P_safe is what the deterministic query decides.
6. At a point h is known up to a radius e, and row_r is Gaussian but for |sum_j delta_rj (h_j - z_j)| <= sum_j e_j
   |delta_rj|, which exceeds _FAR sum_j e_j s_j with a probability below the least number, as in 4. So the rows fail
   with known probabilities, whichever side of its mean the threshold is on. Of cases with one row each, none holds with
   the probability of an orthant (`gaussian.orthant`), which is exact for differences of independent logits.

Every failure is rounded up; what the linear bounds round is in k and e.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.run import at
from bnn_vnnlib.bounds.tails.tail import FOLD, Normal
from bnn_vnnlib.bounds.walk import LinearForm, Ranges, completed
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.gaussian.normal import ABSOLUTE, cdf_above
from bnn_vnnlib.gaussian.orthant import all_above
from bnn_vnnlib.gaussian.relu import mean_abs
from bnn_vnnlib.methods.deterministic import by_neurons
from bnn_vnnlib.methods.last_layer import LastLayerNoise, forms_of_rows, last_layer
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.safety import Pass, SafetyBounds, SafetyTask, at_points
from bnn_vnnlib.methods.safety.tails import SETTLED, lower_of, why_no_tails
from bnn_vnnlib.network.network import Gaussian, Posterior
from bnn_vnnlib.network.nodes import Input, Linear, Reshape, Shift
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, point_box, some_case
from bnn_vnnlib.problem.refute import before_softmax
from bnn_vnnlib.rounding import TINY, UNIT, gamma
from bnn_vnnlib.splitting.branch import Branching
from bnn_vnnlib.splitting.branch_neurons import NeuronBranching
from bnn_vnnlib.system.memory import at_once

LAST_LAYER = "last layer"
"""The name of the method."""

# 1. One pass

_FAR = 41.0
"""A Gaussian mean, and 40 standard deviations beyond: less than the least positive number is left."""


@dataclass(frozen=True, eq=False)
class RowNoise:
    """Rows of N items over their boxes, (N, R) each.

    mean, spread : E F_r, rounded down, and L_r (steps 2 and 3); cost : q_r (step 5); least : m_r >= least
    """

    mean: Tensor
    spread: Tensor
    cost: Tensor
    least: Tensor

    def failures(self, bound: Tensor) -> Tensor:
        """Upper bounds on the probability that F_r is at most the bound (step 4)."""
        return Normal(self.mean, self.spread).failure(bound)

    def beyond(self, margin: Tensor) -> Tensor:
        """Upper bounds on the probability that N_r(h(x)) <= -margin for some x (step 5)."""
        return Normal(-self.cost, self.spread).failure(-margin)


@dataclass(frozen=True, eq=False)
class LastLayerBounds:
    """The network of a task, its features and the law of its last layer."""

    bounds: OutputBounds
    posterior: Gaussian
    noise: LastLayerNoise
    means: WeightBoxes

    name: ClassVar[str] = LAST_LAYER

    @staticmethod
    def over(bounds: OutputBounds, posterior: Posterior, problem: Problem) -> LastLayerBounds | str:
        """The bounds of a network and a posterior that they serve; or why they do not, in words."""
        network, device = bounds.engine.network, problem.lower.device
        if not isinstance(posterior, Gaussian):
            return "the posterior is no Gaussian"
        layer = last_layer(network, posterior)
        if layer is None:
            return "not the last dense layer alone is random"
        if bounds.engine.method != "linear":
            return "linear bounds are not asked for"
        if (reason := why_no_tails(bounds, posterior, problem)) is not None:
            return reason
        noise = LastLayerNoise.of(network, posterior, layer, device)
        return LastLayerBounds(
            before_softmax(bounds, problem), posterior, noise, weight_sets.mean_weights(network, device)
        )

    @staticmethod
    def of(task: SafetyTask) -> LastLayerBounds | str:
        """The bounds of a task, alike."""
        if task.boxes == "sampled" or task.means != "both":
            return "other methods are asked for"
        return LastLayerBounds.over(task.bounds, task.posterior, task.problem)

    @property
    def linear(self) -> bool:
        """Whether the features are an affine function of the input."""
        nodes = self.bounds.engine.network.nodes
        return all(isinstance(node, Input | Linear | Shift | Reshape) for node in nodes)

    def item_failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some x of the item violates some case); at most 1."""
        failures = self.rows(problem).failures(problem.rows.bound)
        return _up(torch.where(problem.exists, problem.least(failures), 0.0).sum(-1), problem)

    def unsafe(self, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,) lower bounds on P_w(some case holds at the point), the point given as a box of size (nearly) zero;
        step 6. 0 where the network may be undefined."""
        parts = self._parts(problem)
        part = replace(problem, lower=lower, upper=upper)
        found = self.bounds.engine.deadline.reached(parts, lambda index: self._at_points(part.items(index)))
        mass = completed(found, (len(problem),), 0.0, lower)
        return torch.where(self.bounds.defined(self.means, lower, upper)[0], mass, 0.0)

    def _at_points(self, problem: Problem) -> Tensor:
        engine, rows, count = self.bounds.engine, problem.rows, len(problem)
        box = Interval(problem.lower[None], problem.upper[None])
        ranges = engine.ranges(self.means, box)
        outputs = rows.outputs.expand(count, -1, -1)
        inputs = None if rows.inputs is None else -rows.inputs
        most = -forms_of_rows(engine, self.means, ranges, box, -outputs, inputs).minimum(box)[0]
        known = ranges.values[self.noise.node.inputs[0]]
        center, radius = (side[0].flatten(1).expand(count, -1) for side in known.center_radius)
        rest = _dot(self.noise.marginals(outputs), radius) * (1 + gamma(2 * radius.shape[-1])) + TINY
        covariance, error = self.noise.covariances(outputs, center)
        least, largest = (
            torch.sqrt((c.diagonal(dim1=-2, dim2=-1)).clamp(min=0)) for c in (covariance - error, covariance + error)
        )
        least, largest = least * (1 - 4 * UNIT), largest * (1 + 4 * UNIT)
        gap = most - rows.inner_bound
        gap = gap + 4 * UNIT * (most.abs() + rows.inner_bound.abs()) + _FAR * rest
        k = torch.where(gap > 0, gap / least, gap / largest)
        k = (k + 8 * UNIT * k.abs()).nan_to_num(torch.inf, torch.inf, -torch.inf)
        real = rows.case.expand(count, -1) < problem.cases
        failures = cdf_above(torch.where(real, k, 0.0)) * (1 + 4 * UNIT) + TINY
        mass = some_case(problem, _up(problem.total(failures), problem))
        alone = problem.total(torch.ones_like(failures)) == 1  # cases of one row
        alone = real & torch.nn.functional.pad(alone, (0, 1)).gather(-1, rows.case.expand(count, -1))
        correlation = (covariance + error) / (least[:, :, None] * least[:, None]) * (1 + 8 * UNIT)
        none = all_above(torch.where(alone, k, torch.inf), correlation) * (1 + 4 * UNIT) + TINY
        return torch.maximum(mass, torch.nextafter(1 - none, none.new_tensor(-torch.inf)).clamp(min=0))

    def rows(self, problem: Problem) -> RowNoise:
        """The rows of all items; of those that time does not suffice for nothing is known."""
        count, height = len(problem), problem.rows.outputs.shape[1]
        parts = self._parts(problem)
        found = self.bounds.engine.deadline.reached(parts, lambda index: self._rows(problem.items(index)))
        fills = {"mean": -torch.inf, "spread": torch.inf, "cost": torch.inf, "least": -torch.inf}
        joined = {
            name: completed([getattr(part, name) for part in found], (count, height), fill, problem.lower)
            for name, fill in fills.items()
        }
        return RowNoise(**joined)

    def _parts(self, problem: Problem) -> list[Tensor]:
        """Indices of the items that are bounded at a time, by what memory allows; none where there are no items."""
        engine, rows = self.bounds.engine, problem.rows.outputs.shape[1]
        size = engine.network.signature.input_size * (math.prod(self.noise.shape) + rows)
        step, device = min(engine.chunk(1, rows), at_once(8 * size)), problem.lower.device
        return [
            torch.arange(start, min(start + step, len(problem)), device=device)
            for start in range(0, len(problem), step)
        ]

    def _rows(self, problem: Problem) -> RowNoise:
        engine, rows, count = self.bounds.engine, problem.rows, len(problem)
        box = Interval(problem.lower[None], problem.upper[None])
        center, radius = (side[0] for side in box.center_radius)  # (N, n)
        ranges = engine.ranges(self.means, box)
        outputs = rows.outputs.expand(count, -1, -1)
        form = forms_of_rows(engine, self.means, ranges, box, outputs, rows.inputs)
        z, a, e, most = self._features(ranges, box)  # step 1
        length, slope = a.shape[1] + a.shape[2], form.slope[0]
        v = self.noise.lengths(outputs, a.mT, biases=False).mT  # (N, R, n)
        s = self.noise.marginals(outputs)  # (N, R, d)
        apart = _dot(s, e) * (1 + gamma(2 * length)) + TINY
        moved = _dot(v, radius) * (1 + gamma(2 * length)) + TINY
        reach = _dot(a.abs(), radius) + e
        along = torch.minimum(moved + apart, _dot(s, reach) * (1 + gamma(2 * length)) + TINY)
        spread = (self.noise.lengths(outputs, z[:, None], biases=True)[:, 0] + along) * (1 + 4 * UNIT)  # step 3
        if self.noise.shared is None:
            largest = torch.minimum(most, (z.abs() + reach) * (1 + gamma(2 * length)) + TINY)
            spread = torch.minimum(spread, self.noise.lengths(outputs, largest[:, None], biases=True)[:, 0])
        middle = at(form, center[None])[0]
        lost = _dot(mean_abs(slope, v) * (1 + 16 * ABSOLUTE), radius) + FOLD * apart  # step 2
        mean = middle - lost * (1 + gamma(2 * length)) - 2 * UNIT * (middle.abs() + lost) - TINY
        cost = FOLD * (moved + apart) * (1 + 4 * UNIT)
        return RowNoise(mean.nan_to_num(-torch.inf, torch.inf, -torch.inf), spread, cost, form.minimum(box)[0])

    def _features(self, ranges: Ranges, box: Interval) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """z (N, d), A (N, d, n), e (N, d), rounded up, and the largest |h_j| (N, d)."""
        engine, place = self.bounds.engine, self.noise.node.inputs[0]
        known = ranges.values[place]
        low, high = (side[0].flatten(1).expand(box.lower.shape[1], -1) for side in (known.lower, known.upper))
        size, found, start, step = low.shape[1], [], 0, 1
        while start < size:
            index = torch.arange(start, min(start + step, size), device=low.device)
            walk, descent = backward.unit_walk(
                engine.network, self.means, ranges, place, index, len(low), engine.deadline
            )
            found.append(self._parallel(descent.form(box.lower.shape[-1]), box))
            start, step = start + step, at_once(32 * len(low) * walk.largest)
        a, below, above = (torch.cat(part, 1) for part in zip(*found, strict=True))
        level = ~((above - below) < (high - low))  # no line is better than the interval
        a = torch.where(level[..., None], 0.0, a)
        below, above = torch.where(level, low, below), torch.where(level, high, above)
        offset, center = (below + above) / 2, box.center_radius[0][0]
        e = torch.maximum(above - offset, offset - below) * (1 + 4 * UNIT)
        z = _dot(a, center) + offset
        paid = gamma(2 * center.shape[-1] + 8) * (_dot(a.abs(), center.abs()) + offset.abs()) + TINY
        return z, a, (e + paid) * (1 + 4 * UNIT), torch.maximum(low.abs(), high.abs())

    def _parallel(self, form: LinearForm, box: Interval) -> tuple[Tensor, Tensor, Tensor]:
        """From linear functions below h_j, then -h_j: A (N, d, n), and bounds of h_j - A_j x (N, d)."""
        below, above = form.slope[0].chunk(2, 1)
        a = (below - above) / 2
        least, negated = form.plus(torch.cat([-a, a], 1), box).minimum(box)[0].chunk(2, -1)
        return a, least, -negated


def _dot(a: Tensor, z: Tensor) -> Tensor:
    """(N, R): rows a (N, R, n) times vectors z (N, n)."""
    return (a @ z[..., None])[..., 0]


def _up(total: Tensor, problem: Problem) -> Tensor:
    """Sums of probabilities of rows or cases, moved up by what adding may have lost; at most 1."""
    terms = problem.cases + problem.rows.outputs.shape[1]
    return (total * (1 + 4 * (terms + 8) * UNIT)).nan_to_num(1.0, 1.0, 1.0).clamp(max=1.0)


def _serves(task: SafetyTask) -> str | None:
    found = LastLayerBounds.of(task)
    return found if isinstance(found, str) else None


def _bounds(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    problem, (points, _, usable), found = task.problem, task.attacked, cast(LastLayerBounds, LastLayerBounds.of(task))
    lower = lower_of(problem, found.item_failures(problem))
    mass = torch.zeros(len(problem), dtype=torch.float64, device=points.device)
    index = torch.nonzero(usable & (lower < SETTLED)[problem.instance])[:, 0]
    if len(index):
        part = problem.items(index)
        mass[index] = found.unsafe(part, *point_box(part, points[index]))
    return (known or task.nothing).better(at_points(problem, points, mass, lower).named(LAST_LAYER))


BY_LAST_LAYER: Method[SafetyTask, Pass] = Method(LAST_LAYER, _serves, _bounds)


def last_layer_of(task: SafetyTask) -> LastLayerBounds | None:
    """The bounds of a task that they serve."""
    found = LastLayerBounds.of(task)
    return None if isinstance(found, str) else found


# 2. Branch and bound of the body

_FIRST_PARTS, _ROUNDS = 2**6, 2
"""Parts that an item may take at first, four times as many in each further round; and rounds where no time limit is
given. A round ends when no mass is left to try."""

_MASS = 0.01
"""Masses are not tried any closer to each other."""


class LastLayerSplitting:
    """A stage of `refine`: the mean network with raised bounds, for the wanted mass and then for others (step 5).

    Parameters
    ----------
    found : of the task
    """

    def __init__(self, task: SafetyTask, found: LastLayerBounds) -> None:
        self._task, self._found = task, found
        nothing = torch.zeros(task.problem.instances, dtype=torch.float64, device=task.problem.lower.device)
        self._proved, self._refuted, self._most = nothing, nothing + 1, nothing + 1
        self._round, self._begun = 0, torch.zeros_like(nothing, dtype=torch.bool)

    @cached_property
    def _rows(self) -> RowNoise:
        return self._found.rows(self._task.problem)

    def due(self, turn: int) -> bool:
        """Whether it is the stage's turn: always."""
        return True

    def step(self, below: Tensor, above: Tensor) -> SafetyBounds | None:
        """One mass for each instance whose lower bound is wanted."""
        open_ = below & (self._most - self._proved > _MASS)
        if not bool(open_.any()):
            self._round += 1
            open_ = below & (self._refuted - self._proved > _MASS)
            if not bool(open_.any()) or (self._round >= _ROUNDS and self._task.deadline.at is None):
                return None
            self._most = torch.where(open_, self._refuted, self._most)
        problem = self._task.problem
        mass = torch.where(self._begun, (self._proved + self._most) / 2, self._task.goal.safe)
        self._begun = self._begun | open_
        index = torch.nonzero(open_[problem.instance])[:, 0]
        failures, violated = torch.ones_like(problem.lower[:, 0]), torch.zeros(len(problem), dtype=torch.bool)
        violated = violated.to(index.device)
        failures[index], violated[index] = self._split(index, mass)
        lower = lower_of(problem, failures)
        self._proved = torch.where(open_, torch.maximum(self._proved, lower), self._proved)
        reached = self._proved >= mass
        self._refuted = torch.where(open_ & problem.any_item(violated), mass, self._refuted)
        self._most = torch.where(open_ & ~reached, mass, self._most)
        return replace(self._task.nothing, lower=lower).named(LAST_LAYER)

    def _split(self, index: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Failures (P,) of some items, 1 where nothing is proved; and whether a point shows that nothing can be."""
        problem, weights = self._task.problem.items(index), self._found.means
        margin, failures = self._margins(index, problem, mass)
        rows, count = problem.rows, len(problem)
        bound = rows.bound.expand(count, -1)
        raised = torch.where(torch.isfinite(bound), torch.nextafter(bound + margin, bound.new_tensor(torch.inf)), bound)
        inner = rows.inner_bound.expand(count, -1) + margin
        problem = replace(problem, rows=replace(rows, bound=raised, inner_bound=inner))
        neurons, most = by_neurons(self._found.bounds, problem), _FIRST_PARTS * 4**self._round
        safe, violated = torch.zeros_like(neurons), torch.zeros_like(neurons)
        for method, chosen in ((Branching, ~neurons), (NeuronBranching, neurons)):
            if bool(chosen.any()):
                found = method(self._found.bounds, weights, problem, chosen[None], most).run()
                safe, violated = safe | (found.safe[0] & chosen), violated | found.violated[0]
        return torch.where(safe, failures, 1.0), violated

    def _margins(self, index: Tensor, problem: Problem, mass: Tensor) -> tuple[Tensor, Tensor]:
        """t_r (P, R) of the rows, so that the failures (P,) add up to what the mass of the item's instance allows.

        A row whose margin is known to be larger takes that; the others share what is left: the same number of L_r.
        """
        known = RowNoise(*(part[index] for part in vars(self._rows).values()))
        real = problem.rows.case.expand(known.mean.shape) < problem.cases
        spare = torch.where(real, (known.least - problem.rows.bound) * (1 - 1e-9), -torch.inf)
        items = torch.bincount(self._task.problem.instance, minlength=len(mass))
        allowed = ((1 - mass) / items)[problem.instance] * (1 - 1e-6)
        low, high = torch.zeros_like(allowed), torch.full_like(allowed, 38.0)

        def of(z: Tensor) -> tuple[Tensor, Tensor]:
            margin = torch.maximum(known.cost + z[:, None] * known.spread, spare).clamp(min=0)
            margin = torch.where(real, margin, 0.0).nan_to_num(0.0)
            failing = torch.where(real, known.beyond(margin), 0.0)
            return margin, failing.sum(-1) * (1 + 4 * (failing.shape[-1] + 8) * UNIT)

        for _ in range(40):
            middle = (low + high) / 2
            enough = of(middle)[1] <= allowed
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return of(high)
