"""Bounds on P_safe from the failure probabilities of `one_layer`, `two_layers` and `moments`.

Lower: 1 - sum over items and cases of the least failure probability among the rows of the case, less what `pairs`
knows to be counted twice. Upper: at one point the rows of one case all have to hold, so that the failures
of their negations add up; cases that exclude each other add up.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from bnn_vnnlib.bounds.dense.exponents import typical
from bnn_vnnlib.methods.safety.large_variance import moments, one_layer, two_layers
from bnn_vnnlib.methods.safety.large_variance.moments import RowsAtPoints
from bnn_vnnlib.methods.safety.large_variance.one_layer import RowsAtBoxes
from bnn_vnnlib.methods.safety.large_variance.pairs import shared
from bnn_vnnlib.methods.safety.tails import lower_of, why_no_tails
from bnn_vnnlib.network.dense_chain import MAX_LAW_DISTANCE, DenseChain, dense_chain
from bnn_vnnlib.network.network import GaussianDiagonal
from bnn_vnnlib.problem.outputs import OutputBounds, over_box
from bnn_vnnlib.problem.problem import Problem, some_case
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.system.clock import Deadline

PIECE, _ITEMS = 2**14, 16
"""Weights times items that are looked at together, at most, and items: those of large networks take seconds each."""

_MAX_WIDTH = 1024
"""Neurons, and inputs, at most: matrices of that size are decomposed for every row."""

_NARROW = 3.0
"""Inputs that move a row by more than that many of its standard deviations: a narrow posterior."""

LARGE_VARIANCE = "large variance"
"""Name of the method, for people and the record."""

SPARE = 1e-6
"""Left of the mass at a point, which is bounded once more for its item alone before a `sat`: other items shift it."""


class LargeVarianceBounds:
    """Bounds for one network and posterior: over boxes if it has one or two hidden layers, else at points."""

    def __init__(self, chain: DenseChain, deadline: Deadline) -> None:
        self._chain, self._deadline = chain, deadline
        self._shallow = chain if len(chain.layers) == 2 else None
        self._boxes = self._shallow is not None or two_layers.serves(chain)
        self._at_once = min(max(1, PIECE // sum(layer.mean.numel() for layer in chain.layers)), _ITEMS)

    @property
    def quick(self) -> bool:
        """Whether an item takes less than a second, or so."""
        return self._shallow is not None

    def serves(self, problem: Problem) -> Tensor:
        """(N,): items that a lower bound can be had for."""
        return self._at_points(problem) | self._boxes

    def _at_points(self, problem: Problem) -> Tensor:
        """(N,): items that are a single point of floats."""
        return (problem.lower == problem.upper).all(-1)

    def pays(self, problem: Problem) -> Tensor:
        """(N,): items whose most endangered row is moved by the weights about as much as by the inputs, or more. Else
        tails lose little and splits of the inputs gain more. A guess at the centre, on which nothing rests.
        """
        rows, center = problem.rows, (problem.lower + problem.upper) / 2
        layers = typical(self._chain, center)
        outputs = rows.outputs.expand(len(problem), -1, -1)
        spread = torch.sqrt((outputs**2 * (layers[-1].v + layers[-1].m_spread ** 2)[:, None]).sum(-1)) + 1e-300
        gradient = outputs @ self._chain.layers[-1].mean
        for layer, at in reversed(list(zip(self._chain.layers[:-1], layers[:-1], strict=True))):
            gradient = (gradient * (at.m > 0)[:, None]) @ layer.mean
        moved = (gradient.abs() @ ((problem.upper - problem.lower) / 2)[..., None])[..., 0]
        spare = ((outputs * layers[-1].m[:, None]).sum(-1) - rows.bound - moved) / spread
        worst = spare.masked_fill(rows.case >= problem.cases, torch.inf).argmin(-1, keepdim=True)
        return (moved <= _NARROW * spread).gather(-1, worst)[:, 0]

    def lower(self, problem: Problem) -> Tensor:
        """(I,) lower bounds on P_safe."""
        return lower_of(problem, self.item_failures(problem))

    def item_failures(self, problem: Problem) -> Tensor:
        """(N,) upper bounds on P_w(some x of the item violates some case), at most 1; 1 where not served, or where time
        is up before.
        """
        found = torch.ones(len(problem), dtype=torch.float64, device=problem.lower.device)
        point, served = self._at_points(problem), self.serves(problem)

        def bounded(index: Tensor) -> None:
            """Lower `found` of these items as far as any of the ways allows."""
            part = problem.items(index)
            rows = part.rows
            ways = self._failures(part, part.lower, part.upper, rows.outputs, rows.inputs, rows.bound)
            for delta, values in ways:
                total = torch.where(part.exists, part.least(values), 0.0).sum(-1) + delta
                found[index] = torch.minimum(found[index], _added(total, part))
                if self._shallow is not None:
                    outputs, bound, _ = _asked(part, part.lower, part.upper, rows.outputs, rows.inputs, rows.bound)
                    less = shared(self._shallow, part, outputs, bound, values, self._deadline)
                    found[index] = torch.minimum(found[index], _added(total, part, less))

        pieces = itertools.chain(*(self._pieces(served & kind) for kind in (point, ~point)))
        self._deadline.reached(pieces, bounded)
        return (found + self._chain.law_distance).clamp(max=1.0)

    def unsafe(self, problem: Problem, lower: Tensor, upper: Tensor) -> Tensor:
        """(N,) lower bounds on P_w(some case holds at the point), the point given as a box of size (nearly) zero; 0
        where time is up before.
        """
        found = torch.zeros(len(problem), dtype=torch.float64, device=lower.device)

        def bounded(index: Tensor) -> None:
            part = problem.items(index)
            rows = part.rows
            inputs, bound = None if rows.inputs is None else -rows.inputs, -rows.inner_bound
            ways = self._failures(part, lower[index], upper[index], -rows.outputs, inputs, bound, point=True)
            for delta, values in ways:
                found[index] = torch.maximum(found[index], some_case(part, part.total(values) + delta))

        self._deadline.reached(self._pieces(torch.ones_like(found, dtype=torch.bool)), bounded)
        return (found - self._chain.law_distance * (1 + 4 * UNIT)).clamp(min=0.0)

    def _pieces(self, chosen: Tensor) -> list[Tensor]:
        """Indices of the chosen items (N,), in parts to be looked at together."""
        return [piece for piece in torch.nonzero(chosen)[:, 0].split(self._at_once) if len(piece)]

    def _failures(
        self, problem: Problem, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, bound: Tensor,
        *, point: bool | None = None,
    ) -> list[tuple[float, Tensor]]:  # fmt: skip
        """Pairs: delta once an item, and (N, R) bounds on P_w(outputs . f(x) + inputs . x <= bound for some x).

        point : whether one x is asked for, of which the box is a bound; None: if the boxes are points
        """
        outputs, bound, real = _asked(problem, lower, upper, outputs, inputs, bound)
        if self._shallow is None and (bool((lower == upper).all()) if point is None else point):
            points = RowsAtPoints(lower, upper, outputs, torch.where(real, bound, 0.0))
            ways = moments.failures_by_budget(self._chain, points, self._deadline)
            return [(delta, torch.where(real, values, 1.0)) for delta, values in ways]
        item, row = torch.nonzero(real, as_tuple=True)
        question = RowsAtBoxes(lower, upper, outputs[item, row], bound[item, row], item)
        found = torch.ones_like(bound)
        if self._shallow is not None:
            found[item, row] = one_layer.failures(self._shallow, question, self._deadline)
        else:
            found[item, row] = two_layers.failures(self._chain, question, self._deadline)
        return [(0.0, found)]


def _asked(
    problem: Problem, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None, bound: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(N, R, m), (N, R), (N, R): rows outputs . f(x) <= bound that are implied by those with a part in x, and which of
    them are no padding.
    """
    count, height = len(problem), outputs.shape[1]
    bound, outputs = bound.expand(count, height), outputs.expand(count, height, -1)
    if inputs is not None:
        bound = torch.nextafter(bound - over_box(inputs, lower, upper)[0], bound.new_tensor(torch.inf))
    real = (problem.rows.case < problem.cases).expand(count, height) & torch.isfinite(bound)
    return outputs, bound, real


def _added(total: Tensor, problem: Problem, less: Tensor | float = 0.0) -> Tensor:
    """A sum of probabilities, moved up by what adding its terms may have lost, less `less`; at most 1."""
    terms = problem.cases + problem.rows.outputs.shape[1]
    return (total * (1 + 4 * (terms + 8) * UNIT) - less).nan_to_num(1.0, 1.0, 1.0).clamp(max=1.0)


def chain_of(bounds: OutputBounds, posterior: GaussianDiagonal, problem: Problem) -> DenseChain | str:
    """The network as dense layers with ReLU and independent Gaussian weights, or why it is served as none, in words."""
    reason = why_no_tails(bounds, posterior, problem)
    if reason is not None:
        return reason
    found = dense_chain(bounds.engine.network, posterior, problem.lower.device)
    if found is None or found.kinds != {"relu"} or found.law_distance > MAX_LAW_DISTANCE:
        return "the network is no chain of dense layers with ReLU and independent Gaussian weights"
    if any(max(layer.mean.shape) > _MAX_WIDTH for layer in found.layers):
        return f"a layer has more than {_MAX_WIDTH} neurons or inputs"
    last = found.layers[-1]
    if not bool(((last.variance > 0) | (last.mean == 0)).all()):
        return "a weight of the last layer is not random"
    if not bool((found.layers[0].variance > 0).any(-1).all()):
        return "a neuron of the first layer has no random weight"
    return found
