"""Bounds on the decision of every item of a problem, its cases refuted, and a point where it violates one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.engine import RowBounds
from bnn_vnnlib.methods.decision.method import RowMethod
from bnn_vnnlib.methods.decision.portfolio import Portfolio
from bnn_vnnlib.methods.decision.softmax.method import SoftmaxRows
from bnn_vnnlib.methods.decision.softmax.one_layer import MeanNetwork
from bnn_vnnlib.methods.outcome import DecisionOutcome
from bnn_vnnlib.network.families import sample
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.problem import Problem, feasible, point_box
from bnn_vnnlib.problem.refute import refuted_by
from bnn_vnnlib.rounding import gamma
from bnn_vnnlib.system.memory import at_once

_PREDICTIVE = 32
"""Weight samples that stand for the predictive in an attack."""


_ALIVE = 8
"""Arrays of the size of a row that a method keeps at once, in units of the outputs."""

_TOGETHER = 256
"""So many rows and outputs are bounded together, however little memory there is: in parts bounds differ a little."""

_RANGES = "ranges"
"""Name in the place of a method's: for a bound that the closed ranges of the last activations give."""

_COMPLEMENT = "complement"
"""Name in the place of a method's: for the upper bound that the lower bounds of the other classes leave."""


def decide(expect: Portfolio, problem: Problem, settings: Attack) -> DecisionOutcome:
    """Bound D over every item, refute its cases, and look for a point whose decision is proved to be a violation."""
    run = _Run(expect, problem, settings)
    expect.task.bounds.engine.deadline.reached(run.steps(), lambda step: step())
    run.complete()
    row_low, row_high, out_low, out_high = run.sides
    return DecisionOutcome(row_low, row_high, out_low, out_high, run.refuted, run.violated, run.point, *run.used)


class _Run:
    """What is known so far; low (N, 2 (R + m)): the rows, the negated rows, the outputs and the negated outputs.

    It starts from the closed ranges of the last activations, in which expectations and quantiles lie, too.
    """

    def __init__(self, expect: Portfolio, problem: Problem, settings: Attack) -> None:
        self._expect, self._problem, self._settings = expect, problem, settings
        self._rows, self._outputs = problem.rows.outputs.shape[1:]
        n, device = len(problem), problem.lower.device
        bounds, everything = expect.task.bounds, torch.arange(n, device=device)
        network = bounds.engine.network
        random = weight_sets.random_names(network, expect.task.posterior)
        y = bounds.ranges(weight_sets.mean_weights(network, device), problem.lower, problem.upper, random)
        rows = bounds.over_ranges(y, problem.lower, problem.upper, *self._both_signs(everything))
        self.low = torch.cat([rows, y.lower, -y.upper], -1)[0].nan_to_num(-torch.inf, neginf=-torch.inf)
        self._false = torch.zeros(n, self._rows, dtype=torch.bool, device=device)
        self.refuted = ~problem.exists.any(-1).expand(n)  # without a case there is nothing to prove, nor time to lose
        self.violated = torch.zeros_like(self.refuted)
        self.point = attack.inner_box(problem)[0]
        self._by = torch.full(self.low.shape, -1, dtype=torch.int16, device=device)
        self._names: list[str] = []
        if bounds.transform == "identity" and bool(torch.isfinite(self.low).any()):  # else they say nothing
            self._names.append(_RANGES)
            self._by[torch.isfinite(self.low)] = 0
        self._compared: list[tuple[str, Tensor]] = []

    @property
    def sides(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lower and upper bounds of the rows (N, R), then of the outputs (N, m)."""
        r, m = self._rows, self._outputs
        row, negated_row, out, negated_out = self.low.split([r, r, m, m], -1)
        return row, -negated_row, out, -negated_out

    @property
    def used(self) -> tuple[tuple[str, ...], tuple[Tensor, Tensor]]:
        """`names` and `by` of the outcome; padding rows do not count."""
        r, m = self._rows, self._outputs
        real = (self._problem.rows.case < self._problem.cases).expand(len(self.low), -1)
        row, negated_row, out, negated_out = self._by.split([r, r, m, m], -1)
        compared = torch.stack([items for _, items in self._compared], 1) if self._compared else self.low.new_zeros(
            len(self.low), 0, dtype=torch.bool
        )  # fmt: skip

        def used(rows: Tensor, outputs: Tensor) -> Tensor:
            place = torch.cat([torch.where(real, rows, -1), outputs], 1).long() + 1
            found = torch.zeros(len(place), len(self._names) + 1, dtype=torch.bool, device=place.device)
            return found.scatter(1, place, True)[:, 1:]

        names = (*self._names, *(name for name, _ in self._compared))
        lower, upper = used(row, out), used(negated_row, negated_out)
        return names, (torch.cat([lower, compared], 1), torch.cat([upper, torch.zeros_like(compared)], 1))

    def steps(self) -> Iterator[Callable[[], None]]:
        """The cheapest methods first; the dearer ones for what is open; then the bounds themselves."""
        steps = self._expect.steps
        everything = torch.arange(len(self._problem), device=self.low.device)
        yield from (partial(self._bound, method, everything) for method in steps.quick or steps.any_graph)
        yield from (partial(self._bound, method, self._open) for method in steps.second if len(self._open))
        yield from (partial(self._compare, criterion) for criterion in steps.criteria)
        yield self._attack
        yield from (partial(self._aim, aimed) for aimed in steps.aimed)
        yield from (partial(self._bound, method, everything) for method in steps.thorough)
        yield from (partial(self._top, method) for method in steps.last)
        yield from (partial(self._criterion, criterion) for criterion in steps.criteria)
        if steps.quick:
            yield from (partial(self._bound, method, self._open) for method in steps.any_graph if len(self._open))
        yield from (partial(self._top, method) for method in steps.longest)
        yield from (partial(self._bound, aimed, wide) for aimed in steps.aimed if len(wide := self._wide(aimed)))

    def _wide(self, aimed: SoftmaxRows) -> Tensor:
        """The items with an output whose bounds are so far apart that the method would split inputs for it."""
        low, high = self.sides[2:]
        apart = 0.0 if aimed.effort is None else aimed.effort.tolerance
        return torch.nonzero((high - low > apart).any(-1))[:, 0]

    def complete(self) -> None:
        """Outputs of a softmax sum to 1: none exceeds what the lower bounds of the others leave."""
        if self._expect.task.bounds.transform != "softmax" or self._outputs < 2:
            return
        low = self.sides[2].clamp(min=0)
        most = 1 - (low.sum(-1, keepdim=True) - low) + 2 * gamma(self._outputs + 4)
        found = self.low.clone()
        found[:, -self._outputs :] = torch.maximum(found[:, -self._outputs :], -most)
        self._improve(torch.arange(len(low), device=low.device), found, _COMPLEMENT)

    @property
    def _open(self) -> Tensor:
        """The items that better bounds are wanted of."""
        gap = self._expect.task.gap
        if gap is None:
            return torch.nonzero(~(self.refuted | self.violated))[:, 0]
        low, high = self.sides[2:]
        return torch.nonzero(((high - low) > gap).any(-1))[:, 0]

    def _bound(self, method: RowMethod, index: Tensor) -> None:
        """The rows and the outputs of some items: in one pass over the network or, of very many outputs, in several."""
        part, (outputs, inputs) = self._problem.items(index), self._both_signs(index)
        n, rows, m = len(index), 2 * self._rows, self._outputs
        found = torch.full_like(self.low[index], -torch.inf)
        fits = max(_TOGETHER, at_once(_ALIVE * n * m))  # rows over the outputs

        def work(columns: Tensor) -> None:
            """Bounds of rows and outputs, by their places in `low`."""
            units = columns[columns >= rows] - rows
            unit = torch.nn.functional.one_hot(units % m, m).to(outputs) * torch.where(units < m, 1.0, -1.0)[:, None]
            asked = torch.cat([outputs, unit.expand(len(outputs), -1, -1)], 1) if columns[0] < rows else unit[None]
            moved = inputs if inputs is None or columns[0] < rows else inputs[:, :0]
            if moved is not None:
                moved = torch.nn.functional.pad(moved, (0, 0, 0, len(units)))
            found[:, columns] = method.lower(part.lower, part.upper, asked, moved)

        places = torch.arange(rows + 2 * m, device=index.device)
        parts = [places] if rows + 2 * m <= fits else [places[:rows], *places[rows:].split(fits)]
        parts = [one for one in parts if len(one)]
        self._expect.task.bounds.engine.deadline.reached(parts, work)
        self._improve(index, found, method.name)
        self._refute(index)

    def _both_signs(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows of some items and the negated rows, over the outputs and over the inputs."""
        rows = self._problem.items(index).rows
        inputs = None if rows.inputs is None else torch.cat([rows.inputs, -rows.inputs], 1)
        return torch.cat([rows.outputs, -rows.outputs], 1), inputs

    def _improve(self, index: Tensor, found: Tensor, name: str) -> None:
        """Take over what is better (K, 2 (R + m)) of some items, and note whose it is."""
        known = self.low[index]
        self._names.append(name)
        self._by[index] = torch.where(found > known, len(self._names) - 1, self._by[index])
        self.low[index] = torch.maximum(known, found)

    def _aim(self, method: SoftmaxRows) -> None:
        """The rows of the open items, as far as it takes to refute them."""
        index = self._open
        if len(index) == 0:
            return
        part, rows = self._problem.items(index), self._rows
        padding = part.rows.case >= part.cases
        goal = torch.where(self._false[index] | padding, -torch.inf, part.rows.bound)
        low = self.low[index]
        found = method.towards(part.lower, part.upper, part.rows.outputs, part.rows.inputs, goal)
        low[:, :rows] = torch.maximum(low[:, :rows], found)
        self._improve(index, low, method.name)
        self._refute(index)

    def _top(self, method: RowMethod) -> None:
        """The rows of the open items, and the output that each of them counts most; all outputs, if all are wanted."""
        index = self._open
        if len(index) == 0:
            return
        if self._expect.task.gap is not None:
            self._bound(method, index)
            return
        part, r = self._problem.items(index), self._rows
        outputs = part.rows.outputs.expand(len(index), -1, -1)
        top = outputs.argmax(-1)
        both = torch.cat([outputs, torch.nn.functional.one_hot(top, self._outputs).to(outputs)], 1)
        inputs = part.rows.inputs
        if inputs is not None:
            inputs = torch.cat([inputs, torch.zeros_like(inputs)], 1)
        found = method.lower(part.lower, part.upper, both, inputs)
        low = self.low[index]
        low[:, :r] = torch.maximum(low[:, :r], found[:, :r])
        self._improve(index, low.scatter_reduce(1, 2 * r + top, found[:, r:], "amax"), method.name)
        self._refute(index)

    def _compare(self, criterion: MeanNetwork) -> None:
        """Refute open items by what the criterion says at no more cost than a bound."""
        index = self._open
        if len(index):
            false = criterion.false_rows(self._problem.items(index))
            self._proved(criterion, index, false.any(-1))
            self._false[index] |= false
            self._refute(index)

    def _criterion(self, criterion: MeanNetwork) -> None:
        """Refute open items by the criterion, whatever time that takes."""
        index = self._open
        if len(index):
            proved = criterion.refuted(self._problem.items(index))
            self._proved(criterion, index, proved)
            self.refuted[index] |= proved

    def _proved(self, criterion: MeanNetwork, index: Tensor, proved: Tensor) -> None:
        items = torch.zeros_like(self.refuted)
        items[index] = proved
        self._compared.append((criterion.name, items))

    def _refute(self, index: Tensor) -> None:
        """Refute the items `index` by their bounds and by the rows that are known to be false."""
        part = self._problem.items(index)
        row, _, low, high = (side[index] for side in self.sides)
        magnitude = torch.maximum(low.abs(), high.abs()).nan_to_num(torch.inf, torch.inf)
        known = RowBounds(row.masked_fill(self._false[index], torch.inf)[None], None, magnitude[None])
        self.refuted[index] |= refuted_by(part, known, self._expect.task.bounds.engine.deadline)[0].all(-1)

    def _attack(self) -> None:
        """Attack the sampled predictive on the items that are left, then bound D at the points found."""
        index = self._open
        if len(index) == 0:
            return
        part, task = self._problem.items(index), self._expect.task
        network = task.network
        generator = torch.Generator().manual_seed(self._settings.seed)
        drawn = sample(network, task.posterior, _PREDICTIVE, generator)
        params = {name: value.to(self.point) for name, value in drawn.items()}
        smaller = _smaller(self._settings)
        aim: attack.AttackAim = "mean" if task.rule.level is None else task.rule.level
        x = attack.run(network, part, params, smaller, task.bounds.transform, aim=aim)[0][0]
        self.point[index] = x
        self.violated[index] = violates(self._expect, part, x)


def _smaller(settings: Attack) -> Attack:
    """The attack with fewer restarts and a smaller pool: each step on the predictive costs _PREDICTIVE networks."""
    return replace(settings, restarts=min(settings.restarts, 8), pool=min(settings.pool, 8))


def violates(expect: Portfolio, problem: Problem, x: Tensor) -> Tensor:
    """(N,): x (N, n) lies in its item and all rows of one case hold for D(x), proved."""
    rows, bounds, network = problem.rows, expect.task.bounds, expect.task.network
    lower, upper = point_box(problem, x)
    mean = weight_sets.mean_weights(network, x.device)
    known = bounds.defined(mean, lower, upper, weight_sets.random_names(network, expect.task.posterior))[0]
    held = torch.zeros(len(problem), dtype=torch.bool, device=x.device)
    for above in _above(expect, lower, upper, rows.outputs, rows.inputs):
        held = problem.met(rows.implied(above)).any(-1)
        if bool(held.all()):
            break
    return held & known & feasible(problem, x)


def _above(expect: Portfolio, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> Iterator[Tensor]:
    """Upper bounds of the rows, method by method, each at least as good as the one before."""
    best = lower.new_full((len(lower), outputs.shape[1]), torch.inf)
    for method in expect.steps.rows:
        best = torch.minimum(best, -method.lower(lower, upper, -outputs, None if inputs is None else -inputs))
        yield best
