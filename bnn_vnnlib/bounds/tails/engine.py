"""The one entrance to tail bounds: failure probabilities of rows over the boxes of many items."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.tails.run import EVENTS, Deviations, Plan, Run, claimed, powers, stages
from bnn_vnnlib.bounds.tails.shared import Correlation
from bnn_vnnlib.bounds.tails.smoothing import smoothable
from bnn_vnnlib.bounds.tails.tail import Tail, deviations_of
from bnn_vnnlib.bounds.tails.tuning import LARGEST, SMALLEST, Tuning, tuned
from bnn_vnnlib.bounds.walk import completed, some
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import Activation, Constant
from bnn_vnnlib.system.clock import Deadline
from bnn_vnnlib.system.memory import at_once


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
        thorough : see `Plan`
        """
        self.check(deviations)
        budgets = budgets[:, None] if budgets.dim() == 1 else budgets

        def failing(part: slice) -> Tensor:
            plan = self._plan(budgets if budgets.shape[1] == 1 else budgets[:, part], thorough)
            rows = Rows(self.network, means, deviations, box, outputs, inputs, len(budgets), part, self.correlation)
            return rows.tail(plan).failure(some(bound, part))

        return self._in_parts((len(budgets), len(box[0]), outputs.shape[1]), failing, box[0])

    def levels(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        thresholds: Tensor, budgets: Tensor,
    ) -> Tensor:  # fmt: skip
        """`failures` (K, N, R, T) of every row at several thresholds (T,): one walk, whatever their number."""
        self.check(deviations)

        def failing(part: slice) -> Tensor:
            rows = Rows(self.network, means, deviations, box, outputs, None, len(budgets), part, self.correlation)
            tail = rows.tail(self._plan(budgets[:, None], False))
            return torch.stack([tail.failure(value) for value in thresholds], -1)

        return self._in_parts((len(budgets), len(box[0]), outputs.shape[1], len(thresholds)), failing, box[0])

    def tuned(
        self, means: WeightBoxes, deviations: WeightBoxes, box: tuple[Tensor, Tensor], outputs: Tensor,
        inputs: Tensor | None, bound: Tensor, budgets: Tensor, total: Callable[[Tensor, slice], Tensor], steps: int,
    ) -> Tensor:  # fmt: skip
        """(N,) upper bounds on the total failure of each item, its budget included, after `steps` of `tuning`.

        Items that time does not suffice for get 1.

        Parameters
        ----------
        budgets : (N,) to start from
        total : from the rows' failures (1, M, R) of some items to what they add up to (M,), differentiable
        """
        self.check(deviations)
        found = torch.ones_like(box[0][:, 0])
        step = self.chunk(2, outputs.shape[1])  # a graph is kept: smaller chunks
        for start in range(0, len(found), step):
            if self.deadline.passed:
                break
            part = slice(start, start + step)
            rows = Rows(self.network, means, deviations, box, outputs, inputs, 1, part, self.correlation)
            least, rounded = some(bound, part), rows.to(self.search)
            tuning = self._tuning(rounded, budgets[part].to(self.search))

            def sum_up(failures: Tensor, part: slice = part) -> Tensor:
                return total(failures, part)

            tuned(tuning, rounded.tail, least.to(self.search), sum_up, steps, lambda: self.deadline.passed)
            with torch.no_grad():
                plan, spent = tuning.to(found.dtype).plan(rounded=True)
                found[part] = sum_up(rows.tail(plan).failure(least)) + spent
        return found

    def _plan(self, budgets: Tensor, thorough: bool) -> Plan:
        """Equal shares of the budgets (K, M or 1) for all events."""
        share = budgets.cpu().numpy() / max(self.events, 1) * (1 - 1e-12)
        levels = {k: budgets.new_tensor(deviations_of(share / k))[:, :, None] for k in powers(self.network)}
        return Plan(dict.fromkeys(claimed(self.network), Deviations(levels, levels, levels[1])), thorough=thorough)

    def _tuning(self, rows: Rows, budgets: Tensor) -> Tuning:
        """Start from equal shares, and from the lines that would be guessed (about: of curves, from the middle)."""
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
        level = budgets.clamp(SMALLEST, LARGEST).log()
        shares = level.new_zeros(len(level), self.events)
        return Tuning(self.network, claimed(self.network), level, shares, slopes, moves)

    @property
    def events(self) -> int:
        """One-sided events of an item; none: no budget needs to be spent."""
        return EVENTS * sum(math.prod(self.network.nodes[position].shape) for position in claimed(self.network))

    def _in_parts(self, shape: tuple[int, ...], failing: Callable[[slice], Tensor], like: Tensor) -> Tensor:
        """Failures (K, N, R, ..) from those of some items; 1 for the items that time does not suffice for."""
        step = self.chunk(shape[0], shape[2])
        parts = (slice(start, start + step) for start in range(0, shape[1], step))
        return completed(self.deadline.reached(parts, failing), shape, 1.0, like, 1)

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
        """Items at a time."""
        sizes = [math.prod(node.shape) for node in self.network.nodes]
        later = [p for p in claimed(self.network) if any(isinstance(n, Activation) for n in self.network.nodes[:p])]
        need = max([rows * max(sizes), *(2 * sizes[p] * max(sizes[: max(1, p - 1)]) for p in later)])
        if self.correlation is not None:
            need = max([need, *(rows * group.latents for group in self.correlation.groups)])
        return at_once(32 * budgets * need)


@dataclass(frozen=True, eq=False)
class Rows:
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

    def to(self, dtype: torch.dtype) -> Rows:
        """Rounded to another floating type: for searches only."""
        box, inputs = (self.box[0].to(dtype), self.box[1].to(dtype)), self.inputs
        return replace(
            self, means=self.means.to(dtype), deviations=self.deviations.to(dtype), box=box,
            outputs=self.outputs.to(dtype), inputs=None if inputs is None else inputs.to(dtype),
            correlation=None if self.correlation is None else self.correlation.to(dtype),
        )  # fmt: skip

    def run(self, plan: Plan) -> Run:
        """Ranges with that plan."""
        lower, upper = (side[None, self.part].expand(self.budgets, -1, -1) for side in self.box)
        return Run(self.network, self.means, self.deviations, Interval(lower, upper), plan, self.correlation)

    def tail(self, plan: Plan) -> Tail:
        """Their tails."""
        inputs = None if self.inputs is None else some(self.inputs, self.part)
        return self.run(plan).tail(some(self.outputs, self.part), inputs)
