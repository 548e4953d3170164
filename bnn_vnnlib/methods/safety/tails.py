"""Bounds on P_safe from the tails of the rows (`bounds.tails`), which do not pay for every weight at once.

Lower: 1 - sum over items of (delta + sum over the cases of the least failure probability of their rows), where delta is
the budget of the item's own event. Upper: at one point x* the failures of the rows of one case add up, because all of
them have to hold: P_safe <= delta + sum of failures. A plain pass with a small budget settles what is easy; the rest
gets thorough ones, with a budget of the size of what the rows fail with. `improved` tunes all that is free. Cases that
exclude each other add up at x* (`problem.some_case`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from bnn_vnnlib.bounds import exact
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails import TailEngine
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.methods.method import Method
from bnn_vnnlib.methods.safety.safety import Pass, SafetyBounds, SafetyTask, at_points
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.network.network import Gaussian, GaussianDiagonal, Network
from bnn_vnnlib.network.nodes import Constant
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds, only_compares_classes
from bnn_vnnlib.problem.problem import Problem, point_box, some_case
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.system.clock import Deadline

FIRST, _SECOND = 1e-8, 1e-3
"""Probabilities spent on the ranges of one item: in the first pass, and in the first thorough one."""

_LEAST, _MOST = 1e-10, 0.1
"""Between them: in the second thorough one, by what the rows have failed with."""

_NEGLIGIBLE = 1e-7
"""An item with a smaller failure probability is left alone."""

SETTLED = 0.999
"""No upper bound is looked for where the lower bound exceeds this."""


@dataclass(frozen=True, eq=False)
class _Question:
    """Rows over boxes, and how their failures add up.

    total : from the failures (N, R) of the problem's rows, and the probability (N,) that is spent on the ranges
        besides, to the failure (N,) of all
    certain : (N,) items whose total rests on no row, so that no budget is spent
    """

    problem: Problem
    lower: Tensor
    upper: Tensor
    outputs: Tensor
    inputs: Tensor | None
    bound: Tensor
    total: Callable[[Problem, Tensor, Tensor], Tensor]
    certain: Tensor

    def items(self, index: Tensor) -> _Question:
        """The question about these items only."""

        def pick(rows: Tensor) -> Tensor:
            return rows if len(rows) == 1 else rows[index]

        inputs = None if self.inputs is None else pick(self.inputs)
        return _Question(
            self.problem.items(index), self.lower[index], self.upper[index], pick(self.outputs), inputs,
            pick(self.bound), self.total, self.certain[index],
        )  # fmt: skip


class TailBounds:
    """Tail bounds of one network and posterior; `search` is the floating type in which they are tuned."""

    name: ClassVar[str] = "tails"

    def __init__(
        self, network: Network, posterior: Gaussian, device: torch.device, deadline: Deadline,
        search: torch.dtype = torch.float64,
    ) -> None:  # fmt: skip
        self._engine = TailEngine(network, deadline, search, correlation(network, posterior, device))
        noise = weight_sets.centred(network, independent(posterior), device)
        self._weights = weight_sets.mean_weights(network, device), noise
        self._random = weight_sets.random_names(network, posterior)

    def lower(self, problem: Problem) -> Tensor:
        """(I,) lower bounds on P_safe."""
        return lower_of(problem, self.item_failures(problem))

    def item_failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some x of the item violates some case), the item's budget included; at most 1."""
        return self._bounded(_violations(problem))

    def improved(self, problem: Problem, failures: Tensor, steps: int, goal: float) -> Tensor:
        """(N,) bounds no larger than `failures` (N,), of `item_failures`, after some steps of optimisation.

        Parameters
        ----------
        steps : at most
        goal : items whose bound is not above it are left alone
        """
        return self._tuned(_violations(problem), failures, steps, goal)

    def unsafe(self, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,) lower bounds on P_w(some case holds at the point), the point given as a box of size (nearly) zero.

        0 where the network may be undefined: then no case holds, whatever the ranges of what comes behind say.
        """
        mass = _remaining(self._bounded(_all_rows(problem, lower, upper)), problem.rows.outputs.shape[1])
        box = Interval(lower[None], upper[None])
        return torch.where(exact.defined(self._engine.network, self._weights[0], box, self._random)[0], mass, 0.0)

    def _bounded(self, question: _Question) -> Tensor:
        """(N,): one plain pass, then two thorough ones over what it leaves open."""
        found = self._total(question, torch.full_like(question.lower[:, 0], FIRST), thorough=False)
        index = torch.nonzero(found > _NEGLIGIBLE)[:, 0]
        if len(index) == 0:
            return found
        part, best = question.items(index), found[index]
        budgets = torch.full_like(best, _SECOND)
        for _ in range(2):
            value = self._total(part, budgets, thorough=True)
            best = torch.minimum(best, value)
            budgets = ((value - budgets) / 3).clamp(_LEAST, _MOST)
        return found.index_copy(0, index, best)

    def _total(self, question: _Question, budgets: Tensor, *, thorough: bool) -> Tensor:
        """(N,) failures of the items with their budgets (N,), at most 1."""
        budgets = torch.where(question.certain, 0.0, budgets) if self._engine.events else torch.zeros_like(budgets)
        rows = self._engine.failures(
            *self._weights, (question.lower, question.upper), question.outputs, question.inputs, question.bound,
            budgets[None], thorough=thorough,
        )  # fmt: skip
        return _up(question.total(question.problem, rows[0], budgets), question).clamp(max=1.0)

    def _tuned(self, question: _Question, failures: Tensor, steps: int, goal: float) -> Tensor:
        """Failures of the items, after tuning for those that exceed the goal."""
        index = torch.nonzero(failures > goal)[:, 0]
        if len(index) == 0 or not self._engine.events:
            return failures
        part, start = question.items(index), (failures[index] / 3).clamp(_LEAST, _MOST)

        def total(rows: Tensor, some: slice) -> Tensor:
            items = torch.arange(len(index), device=index.device)[some]
            return part.total(part.problem.items(items), rows[0], torch.zeros_like(rows[0, :, 0]))

        box, (outputs, inputs, bound) = (part.lower, part.upper), _padded_by_real(part)
        found = self._engine.tuned(*self._weights, box, outputs, inputs, bound, start, total, steps)
        return failures.index_copy(0, index, torch.minimum(failures[index], _up(found, part)))


def _padded_by_real(question: _Question) -> tuple[Tensor, Tensor | None, Tensor]:
    """Rows, their input parts and bounds, with a real row in place of each padding one, on which nothing depends.

    A row of zeros has no noise, and the derivative of its root is infinite: it would spoil that of the other rows.
    """
    real = question.problem.rows.case < question.problem.cases
    place = torch.arange(real.shape[1], device=real.device)
    place = torch.where(real, place, real.to(torch.int8).argmax(-1, keepdim=True))

    def pick(part: Tensor) -> Tensor:
        count = max(len(part), len(place))
        index = place.reshape(*place.shape, *(1,) * (part.dim() - 2)).expand(count, *part.shape[1:])
        return part.expand(count, *part.shape[1:]).gather(1, index)

    inputs = None if question.inputs is None else pick(question.inputs)
    return pick(question.outputs), inputs, pick(question.bound)


def _violations(problem: Problem) -> _Question:
    """The question how likely a violation is: in every case one row has to fail, so that the rows' least failure
    probability counts, and those of the cases add up.
    """
    rows = problem.rows

    def total(problem: Problem, failures: Tensor, budgets: Tensor) -> Tensor:
        return torch.where(problem.exists, problem.least(failures), 0.0).sum(-1) + budgets

    certain = ~problem.exists.any(-1).expand(len(problem))
    return _Question(problem, problem.lower, problem.upper, rows.outputs, rows.inputs, rows.bound, total, certain)


def _all_rows(problem: Problem, lower: Tensor, upper: Tensor) -> _Question:
    """The negated rows at a point: those of one case add up. The best case counts, or cases that exclude each other."""
    rows = problem.rows

    def total(problem: Problem, failures: Tensor, budgets: Tensor) -> Tensor:
        return 1.0 - some_case(problem, problem.total(failures) + budgets[:, None])  # each case pays for the ranges

    inputs = None if rows.inputs is None else -rows.inputs
    rowless = ~problem.any_row(torch.ones_like(rows.strict)) & problem.exists  # such a case holds anywhere
    certain = rowless.any(-1).expand(len(problem))
    return _Question(problem, lower, upper, -rows.outputs, inputs, -rows.inner_bound, total, certain)


def _up(total: Tensor, question: _Question) -> Tensor:
    """A sum of probabilities, moved up by what adding its terms may have lost; 1 where it is undefined."""
    terms = question.problem.cases + question.outputs.shape[1]
    return (total * (1 + 4 * (terms + 8) * UNIT)).nan_to_num(1.0, 1.0, 1.0)


def why_no_tails(bounds: OutputBounds, posterior: Gaussian, problem: Problem) -> str | None:
    """None where tails serve the graph and the rows, or why not, in words.

    They bound rows over the graph's outputs before a Softmax: enough for differences compared with 0. A random tensor
    that is a branch of the graph is not served.
    """
    network = bounds.engine.network
    random: Sequence[str] = names_of(posterior)
    if isinstance(posterior, GaussianDiagonal):
        random = weight_sets.random_sources(network, posterior)
    if any(isinstance(node, Constant) and node.value.source in random for node in network.nodes):
        return "a random tensor is a branch of the graph"
    if bounds.transform == "identity" or (bounds.transform == "softmax" and only_compares_classes(problem)):
        return None
    return "the property compares probabilities with something else than each other"


def _serves(task: SafetyTask) -> str | None:
    network, posterior = task.bounds.engine.network, task.posterior
    if not isinstance(posterior, Gaussian):
        return "the posterior is no Gaussian"
    if isinstance(posterior, GaussianDiagonal) and task.boxes == "sampled":
        return "boxes around samples are asked for"
    if task.means == "boxes":
        return "boxes of weights are asked for, by method or margin"
    if isinstance(posterior, GaussianDiagonal) and weight_sets.random_count(network, posterior) == 0:
        return "no weight is random, so that a box is exact"
    return why_no_tails(task.bounds, posterior, task.problem)


def _bounds(task: SafetyTask, known: SafetyBounds | None) -> SafetyBounds:
    """Over T for the lower bound; for the upper bound at the attacked points that are in T, where the lower bound
    leaves something open.
    """
    problem, (points, _, usable) = task.problem, task.attacked
    tails = tails_of(task)
    lower = tails.lower(problem)
    mass = torch.zeros(len(problem), dtype=torch.float64, device=points.device)
    index = torch.nonzero(usable & (lower < SETTLED)[problem.instance])[:, 0]
    if len(index):
        part = problem.items(index)
        mass[index] = tails.unsafe(part, *point_box(part, points[index]))
    return (known or task.nothing).better(at_points(problem, points, mass, lower).named(TAILS.name))


TAILS: Method[SafetyTask, Pass] = Method(TailBounds.name, _serves, _bounds)


def tails_of(task: SafetyTask) -> TailBounds:
    """The tail bounds of the task's network and Gaussian posterior."""
    posterior, device = cast("Gaussian", task.posterior), task.problem.lower.device
    return TailBounds(task.bounds.engine.network, posterior, device, task.deadline, task.attack.precision)


def lower_of(problem: Problem, failures: Tensor) -> Tensor:
    """(I,) lower bounds on P_safe from upper bounds (N,) on the items' failures, which add up."""
    spent = failures.new_zeros(problem.instances).index_add(0, problem.instance, failures)
    return _remaining(spent, len(problem))


def _remaining(spent: Tensor, terms: int) -> Tensor:
    """1 - spent, rounded down; the terms of the sum were added with roundings."""
    spent = spent * (1 + 4 * (terms + 8) * UNIT)
    value = torch.nextafter(1.0 - spent, spent.new_tensor(-torch.inf))
    return value.nan_to_num(0.0).clamp(0.0, 1.0)
