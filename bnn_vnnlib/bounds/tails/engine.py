"""The entrance to tail bounds: failure probabilities of rows over the boxes of many items.

1. `Tuning`: what is free in a tail bound (budget, shares, slopes), tuned by gradient on the final probability. Any
choice is sound, so that nothing here is rounded with care; the bound is evaluated again with the plan that comes out.
Every item is tuned by itself: the steps of Adam are elementwise, and an item keeps its own best plan.
2. `TailEngine`: the one entrance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.run import EVENTS, Deviations, TailPlan, TailRun, claimed, powers, stages
from bnn_vnnlib.bounds.tails.shared import Correlation
from bnn_vnnlib.bounds.tails.smoothing import smoothable
from bnn_vnnlib.bounds.tails.tail import Tail
from bnn_vnnlib.bounds.walk import completed, some
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.gaussian.normal import quantile
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation, Constant
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once

# 1. Tuning

_MAX_BUDGET, _MIN_BUDGET = 0.3, 1e-14
"""Ends of the range in which the budget of an item is tuned."""

_RATES = (0.2, 0.2, 0.06)
"""Step sizes of the tuning: for the logarithm of the budget, for the logits of the shares, for slopes and moves."""


@dataclass(eq=False)
class Tuning:
    """The parameters of M items.

    level (M,): logarithm of the budget; shares (M, E): logits of the shares of the E events;
    slopes, moves : activation -> (2, 1, M, *shape) in [0, 1], see `activations` and `smoothing`
    """

    network: Network
    places: list[int]
    level: Tensor
    shares: Tensor
    slopes: dict[int, Tensor]
    moves: dict[int, Tensor]

    def to(self, dtype: torch.dtype) -> Tuning:
        """These parameters in another floating type."""
        slopes, moves = ({p: c.to(dtype) for p, c in part.items()} for part in (self.slopes, self.moves))
        return Tuning(self.network, self.places, self.level.to(dtype), self.shares.to(dtype), slopes, moves)

    @property
    def tensors(self) -> list[Tensor]:
        """All parameters."""
        return [self.level, self.shares, *self.choices]

    @property
    def choices(self) -> list[Tensor]:
        """The parameters between 0 and 1: the slopes and moves of all activations."""
        return [*self.slopes.values(), *self.moves.values()]

    def plan(self, *, rounded: bool) -> tuple[TailPlan, Tensor]:
        """The plan, and what it spends (M,)."""
        share = torch.softmax(self.shares, -1) * self.level.exp()[:, None]
        sizes = [EVENTS * math.prod(self.network.nodes[place].shape) for place in self.places]
        z = _rounded if rounded else _smooth
        found = {}
        for place, part in zip(self.places, share.split(sizes, -1), strict=True):
            size = part.shape[-1] // EVENTS
            sides, middle, near = part.split([2 * size, 2 * size, size], -1)
            levels = [{k: z(p / k) for k in powers(self.network)} for p in (sides, middle)]
            found[place] = Deviations(levels[0], levels[1], z(near))
        return TailPlan(found, dict(self.slopes), dict(self.moves), thorough=True), share.sum(-1) * (1 + 1e-10)


def tuned(
    tuning: Tuning, tail: Callable[[TailPlan], Tail], bound: Tensor, total: Callable[[Tensor], Tensor], steps: int,
    out_of_time: Callable[[], bool],
) -> None:  # fmt: skip
    """Descend on log(total failure of the rows + budget), and keep the best parameters of each item.

    Parameters
    ----------
    tail : from a plan to the tails of the rows
    total : from the rows' failures (1, M, R) to what they add up to (M,)
    """
    parameters = tuning.tensors
    for parameter in parameters:
        parameter.requires_grad_()
    rates = [*_RATES[:2], *[_RATES[2]] * len(tuning.choices)]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    descent = torch.optim.Adam(groups, betas=(0.9, 0.9))
    best, kept = torch.full_like(tuning.level, torch.inf), [p.detach().clone() for p in parameters]
    for step in range(steps + 1):
        plan, spent = tuning.plan(rounded=False)
        value = torch.log(total(tail(plan).log_failure(bound).clamp(max=0).exp()) + spent)
        with torch.no_grad():
            better = value < best
            best = torch.where(better, value, best)
            for parameter, keep in zip(parameters, kept, strict=True):
                keep.copy_(torch.where(_items(better, keep), parameter, keep))
        if step == steps or out_of_time():
            break
        gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient.nan_to_num(0.0, 0.0, 0.0)
        descent.step()
        with torch.no_grad():
            tuning.level.clamp_(math.log(_MIN_BUDGET), math.log(_MAX_BUDGET))
            for choice in tuning.choices:
                choice.clamp_(0, 1)
    with torch.no_grad():
        for parameter, keep in zip(parameters, kept, strict=True):
            parameter.requires_grad_(False).copy_(keep)


def _items(mask: Tensor, parameter: Tensor) -> Tensor:
    """A mask of items (M,) in a shape that broadcasts with a parameter's."""
    if parameter.dim() <= 2:
        return mask.reshape(-1, *(1,) * (parameter.dim() - 1))
    return mask.reshape(1, 1, -1, *(1,) * (parameter.dim() - 3))


def _smooth(probability: Tensor) -> Tensor:
    return -torch.special.ndtri(probability.clamp(1e-290, 0.5))[None]


def _rounded(probability: Tensor) -> Tensor:
    """The share may be off by a few units of roundoff, which the sum of what is spent makes up for."""
    return quantile(probability * (1 - 1e-12))[None]


# 2. The entrance


@dataclass(frozen=True)
class TailEngine:
    """Bounds rows of one network under a Gaussian, for all x of each item's box.

    Parameters
    ----------
    network : the graph
    deadline : looked at between chunks; items that it does not suffice for fail with probability 1 (`clock`)
    search : floating type in which bounds are tuned; the tuned bound itself is computed in float64
    correlation : what weights share, beside the independent noise that `deviations` describe; None: nothing
    """

    network: Network
    deadline: Deadline = Deadline()
    search: torch.dtype = torch.float64
    correlation: Correlation | None = None

    def failures(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        inputs: Tensor | None, bound: Tensor, budgets: Tensor, *, thorough: bool = False,
    ) -> Tensor:  # fmt: skip
        """Upper bounds (K, N, R) on P(C y + G x <= bound for some x, on G), apart from P(not G) <= budgets.

        Parameters
        ----------
        means, deviations : one box each, at the posterior mean without and with spreads
        box : lower, upper (N, n)
        outputs, inputs : C (N or 1, R, m), G (N or 1, R, n) or None, exact
        bound : (N or 1, R)
        budgets : (K,) or (K, N) probabilities that the ranges of an item may fail
        thorough : see `TailPlan`
        """
        self.check(deviations)
        budgets = budgets[:, None] if budgets.dim() == 1 else budgets

        def failing(part: slice) -> Tensor:
            plan = self._plan(budgets if budgets.shape[1] == 1 else budgets[:, part], thorough)
            rows = self._rows(means, deviations, box, outputs, inputs, len(budgets), part)
            return rows.tail(plan).failure(some(bound, part))

        return self._in_parts((len(budgets), len(box[0]), outputs.shape[1]), failing, box[0])

    def levels(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        thresholds: Tensor, budgets: Tensor,
    ) -> Tensor:  # fmt: skip
        """`failures` (K, N, R, T) of every row at several thresholds (T,) or (N or 1, R, T): one walk for all."""
        self.check(deviations)

        def failing(part: slice) -> Tensor:
            rows = self._rows(means, deviations, box, outputs, None, len(budgets), part)
            tail = rows.tail(self._plan(budgets[:, None], False))
            own = thresholds if thresholds.dim() == 1 else some(thresholds, part)
            return torch.stack([tail.failure(value) for value in own.unbind(-1)], -1)

        shape = (len(budgets), len(box[0]), outputs.shape[1], thresholds.shape[-1])
        return self._in_parts(shape, failing, box[0])

    def expectations(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        sure: Tensor, off: Tensor, budgets: Tensor, *, thorough: bool = False,
    ) -> Tensor:  # fmt: skip
        """Lower bounds (K, N, R) on E[C y(x)] for all x, one for each budget (K,); -inf where time does not suffice.

        sure (N, R), off (K, N, R) : of `Tail.expectation`; the rest as in `failures`
        """
        self.check(deviations)

        def bounded(part: slice) -> Tensor:
            rows = self._rows(means, deviations, box, outputs, None, len(budgets), part)
            tail = rows.tail(self._plan(budgets[:, None], thorough))
            return tail.expectation(budgets[:, None, None], sure[part], off[:, part])

        return self._in_parts((len(budgets), len(box[0]), outputs.shape[1]), bounded, box[0], -torch.inf)

    def tuned(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        inputs: Tensor | None, bound: Tensor, budgets: Tensor, total: Callable[[Tensor, slice], Tensor], steps: int,
    ) -> Tensor:  # fmt: skip
        """(N,) upper bounds on the total failure of each item, its budget included, after `steps` of tuning (`Tuning`).

        Items that time does not suffice for get 1.

        Parameters
        ----------
        budgets : (N,) to start from
        total : from the rows' failures (1, M, R) of some items to what they add up to (M,), differentiable
        """
        self.check(deviations)

        def improved(part: slice) -> Tensor:
            """Failures of the items of a part, with budgets tuned for them."""
            rows = self._rows(means, deviations, box, outputs, inputs, 1, part)
            least, rounded = some(bound, part), rows.to(self.search)
            tuning = self.start(rounded, budgets[part].to(self.search))

            def sum_up(failures: Tensor) -> Tensor:
                return total(failures, part)

            tuned(tuning, rounded.tail, least.to(self.search), sum_up, steps, lambda: self.deadline.passed)
            with torch.no_grad():
                plan, spent = tuning.to(box[0].dtype).plan(rounded=True)
                return sum_up(rows.tail(plan).failure(least)) + spent

        step = self.chunk(2, outputs.shape[1])  # a graph is kept: smaller chunks
        parts = (slice(start, start + step) for start in range(0, len(box[0]), step))
        return completed(self.deadline.reached(parts, improved), box[0].shape[:1], 1.0, box[0])

    def _rows(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        inputs: Tensor | None, budgets: int, part: slice,
    ) -> ItemRows:  # fmt: skip
        groups = self.correlation
        return ItemRows(self.network, means, deviations, box, outputs, inputs, budgets, part, groups, self.deadline)

    def _plan(self, budgets: Tensor, thorough: bool) -> TailPlan:
        """The plan that gives all events equal shares of the budgets (K, M or 1)."""
        share = budgets / max(self.events, 1) * (1 - 1e-12)
        levels = {k: quantile(share / k)[:, :, None] for k in powers(self.network)}
        return TailPlan(dict.fromkeys(claimed(self.network), Deviations(levels, levels, levels[1])), thorough=thorough)

    def start(self, rows: ItemRows, budgets: Tensor) -> Tuning:
        """Equal shares, and from the lines that would be guessed (about: of curves, from the middle)."""
        slopes, moves = {}, {}
        first = rows.run(self._plan(budgets[None], False))
        for position in first.ranges.lines:
            node = self.network.nodes[position]
            z = first.ranges.values[node.inputs[0]]
            choice = z.lower.new_full((2, *z.lower.shape), 0.5)
            if smoothable(node):
                moves[position] = choice
                choice = (z.upper >= -z.lower).to(choice.dtype).expand_as(choice).clone()
            slopes[position] = choice
        level = budgets.clamp(_MIN_BUDGET, _MAX_BUDGET).log()
        shares = level.new_zeros(len(level), self.events)
        return Tuning(self.network, claimed(self.network), level, shares, slopes, moves)

    @property
    def events(self) -> int:
        """One-sided events of an item; none: no budget needs to be spent."""
        return EVENTS * sum(math.prod(self.network.nodes[position].shape) for position in claimed(self.network))

    def _in_parts(
        self, shape: tuple[int, ...], bounded: Callable[[slice], Tensor], like: Tensor, fill: float = 1.0
    ) -> Tensor:
        """Failures (K, N, R, ..), or other bounds, from those of some items; `fill` where time does not suffice."""
        step = self.chunk(shape[0], shape[2])
        parts = (slice(start, start + step) for start in range(0, shape[1], step))
        return completed(self.deadline.reached(parts, bounded), shape, fill, like, 1)

    def check(self, deviations: WeightBoxes) -> None:
        """Refuse what tails do not serve, and make sure that the claims are in the order of the proofs."""
        stages(self.network)
        for node in self.network.nodes:
            shared = self.correlation is not None and isinstance(node, Constant) and self.correlation.of(node.value)
            if shared or (isinstance(node, Constant) and node.value.source in deviations.spreads):
                raise UnsupportedError(
                    "tails do not serve a random tensor that is a branch of the graph", node=node.name
                )

    def chunk(self, budgets: int, rows: int) -> int:
        """Number of items that are bounded at a time, by what memory allows."""
        sizes = [math.prod(node.shape) for node in self.network.nodes]
        later = [p for p in claimed(self.network) if any(isinstance(n, Activation) for n in self.network.nodes[:p])]
        need = max([rows * max(sizes), *(2 * sizes[p] * max(sizes[: max(1, p - 1)]) for p in later)])
        if self.correlation is not None:
            need = max([need, *(rows * group.latents for group in self.correlation.groups)])
        return at_once(32 * budgets * need)


@dataclass(frozen=True, eq=False)
class ItemRows:
    """The rows of some items, under K budgets."""

    network: Network
    means: WeightBoxes
    deviations: WeightBoxes
    box: tuple[Tensor, Tensor]
    outputs: Tensor
    inputs: Tensor | None
    budgets: int
    part: slice
    correlation: Correlation | None = None
    deadline: Deadline = Deadline()

    def to(self, dtype: torch.dtype) -> ItemRows:
        """These rows, rounded to another floating type: for searches only."""
        box, inputs = (self.box[0].to(dtype), self.box[1].to(dtype)), self.inputs
        return replace(
            self, means=self.means.to(dtype), deviations=self.deviations.to(dtype), box=box,
            outputs=self.outputs.to(dtype), inputs=None if inputs is None else inputs.to(dtype),
            correlation=None if self.correlation is None else self.correlation.to(dtype),
        )  # fmt: skip

    def run(self, plan: TailPlan) -> TailRun:
        """Ranges with that plan."""
        lower, upper = (side[None, self.part].expand(self.budgets, -1, -1) for side in self.box)
        box = Interval(lower, upper)
        return TailRun(self.network, self.means, self.deviations, box, plan, self.correlation, self.deadline)

    def tail(self, plan: TailPlan) -> Tail:
        """Lower tails of the rows under a plan, as `TailRun.tail` makes them."""
        inputs = None if self.inputs is None else some(self.inputs, self.part)
        return self.run(plan).tail(some(self.outputs, self.part), inputs)
