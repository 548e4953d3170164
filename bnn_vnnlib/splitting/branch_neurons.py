"""Branch and bound over the signs of ReLU neurons, for inputs too many to be split.

Guarantee: sound, rounding included. With all signs known the network is affine on the part that is left, and the
multipliers come from a linear program, so the method is complete up to rounding for networks whose only nonlinear nodes
are Relu and LeakyRelu; what it cannot close stays open.
Method: a target is one case of one pair of a weight setting and an item. It is refuted by closing a tree of parts, in
each of which some neurons have a known sign (`bounds.splits`). The neuron to split is the one, of a few whose
relaxation costs most, whose halves have the best bounds.
Reference: Bunel et al., Branch and Bound for Piecewise Linear Neural Network Verification, JMLR 2020; Wang et al.,
Beta-CROWN, NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.splits import Choice, SplitBounds, SplitEngine, kinks_of
from bnn_vnnlib.bounds.walk import RangeKey, Ranges
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem
from bnn_vnnlib.question.property import row_false
from bnn_vnnlib.splitting.branch import Decided, Pairs, Witnesses, grids, scatter
from bnn_vnnlib.splitting.frontier import Frontier, Items
from bnn_vnnlib.system.memory import at_once

_PART_STEPS, _ROOT_STEPS = 10, 30
"""Steps of the ascent that tunes the bounds of a part, and of the root."""

_LP_SIZE, _PENALTY = 2**20, 1e4
"""Elements of a linear program where nothing is left to split, at most; the price of a sign that is not kept."""

_FAVOURED = 0.9
"""Share of the best row in the first mixture."""

_LOOK_AHEAD = 3
"""Neurons whose halves are bounded before one is chosen."""


@dataclass(frozen=True, eq=False)
class _Whole(Items):
    """P targets of pairs, which own them: target (P,)."""

    target: Tensor


@dataclass(frozen=True, eq=False)
class SignedParts(_Whole):
    """P parts of targets, the cases of the pairs: signs (P, H) int8, alpha and beta (P, H), mixture (P, R)."""

    signs: Tensor
    alpha: Tensor
    beta: Tensor
    mixture: Tensor

    def fixed(self, neuron: Tensor, sign: int) -> SignedParts:
        """The halves on which the neurons (P,) have the given sign."""
        return replace(self, signs=self.signs.scatter(-1, neuron[:, None], sign))


class NeuronBranching:
    """One run over the open pairs; parameters as for `branch.Branching`, without a transform of the outputs."""

    def __init__(
        self, bounds: OutputBounds, weights: WeightBoxes, problem: Problem, open_: Tensor, most: int | None
    ) -> None:
        if bounds.transform != "identity":
            raise ValueError("neurons are split under rows over the outputs themselves")
        self._bounds, self._weights, self._problem, self._most = bounds, weights, problem, most
        self._open = open_

    def run(self) -> Decided:
        """Grow trees until all is decided, or time is up; as many pairs at a time as memory takes."""
        setting, item = torch.nonzero(self._open, as_tuple=True)
        nothing = torch.zeros_like(self._open)
        found = Decided(nothing, nothing.clone(), self._problem.lower.expand(len(nothing), -1, -1).clone())

        def grow(part: Tensor) -> None:
            at = setting[part], item[part]
            pairs = Pairs(self._bounds, self._weights, at[0], self._problem.items(at[1]))
            grown = Trees(pairs, self._most).grown()
            found.safe[at], found.violated[at], found.point[at] = grown.safe, grown.violated, grown.point

        step = at_once(32 * _elements(self._bounds))
        self._bounds.engine.deadline.reached(torch.arange(len(setting), device=setting.device).split(step), grow)
        return found


def _elements(bounds: OutputBounds) -> int:
    return sum(int(torch.Size(node.shape).numel()) for node in bounds.engine.network.nodes)


class Trees:
    """The trees of Q pairs, grown together.

    Parameters
    ----------
    most : parts of one pair, at most; None = no limit but time
    closed : is told of the parts that are closed, with what closes them
    """

    def __init__(self, roots: Pairs, most: int | None, closed: Callable[[SignedParts], None] | None = None) -> None:
        self._roots, self._engine, self._told = roots, roots.bounds.engine, closed
        self._targets, self._kinks = _targets_of(roots.problem), kinks_of(self._engine.network)
        self._batch = min(256, at_once(16 * _elements(roots.bounds)))
        self._ranges = _root_ranges(roots)
        self._witnesses = Witnesses(roots.problem.lower)
        sources = (self._engine.network.nodes[position].inputs[0] for position, _, _ in self._kinks.places)
        inputs = (self._ranges.values[source] for source in sources)
        # (Q, H): the usual choice, the side on which the neuron's range is wider
        self._alpha = torch.cat([(z.upper >= -z.lower).double().flatten(1) for z in inputs], -1)
        root = self._targets.root
        self._all = _Whole(root, torch.arange(len(root), device=root.device))
        nothing = self._unsplit(self._all.pick(slice(0, 0)))
        self._frontier = Frontier(nothing, len(roots.problem), most, self._engine.deadline)

    def grown(self) -> Decided:
        """What is decided of every target: by single rows, then by a long ascent, as most close without any split; then
        by splits.
        """
        frontier = self._frontier
        frontier.sweep(self._all, self._by_single_rows, self._batch)
        frontier.sweep(frontier.taken(), lambda parts: self._step(parts, _ROOT_STEPS), self._batch)
        frontier.run(lambda parts: self._step(parts, _PART_STEPS), self._batch)
        return self._witnesses.decided(~frontier.open)

    def _unsplit(self, some: _Whole) -> SignedParts:
        """Targets as one part each, with their first row alone."""
        alpha = self._alpha[some.owner]
        zero = torch.zeros_like(alpha)
        return SignedParts(some.owner, some.target, zero.to(torch.int8), alpha, zero, self._alone(some.target, 0))

    def _by_single_rows(self, some: _Whole) -> SignedParts:
        """What no row closes for itself, with a mixture that favours the best one."""
        parts = self._unsplit(some)
        bound = self._targets.bound[parts.target]
        margins = [
            self._bound(replace(parts, mixture=self._alone(parts.target, row)), 0).margin
            for row in range(bound.shape[-1])
        ]
        margin = torch.stack(margins, -1)  # (P, R)
        best = torch.nn.functional.one_hot(margin.argmax(-1), margin.shape[-1]).to(margin.dtype)
        closed = self._closed(parts, margin.amax(-1))
        self._tell(replace(parts, mixture=best), closed)
        mixed = torch.where(torch.isfinite(bound), _FAVOURED * best + (1 - _FAVOURED), 0.0)
        mixed = mixed / mixed.sum(-1, keepdim=True).clamp(min=1e-6)
        return replace(parts, mixture=mixed).pick(~closed)

    def _step(self, parts: SignedParts, steps: int) -> SignedParts:
        """The halves of the parts that stay open."""
        found = self._bound(parts, steps)
        closed, choice = self._closed(parts, found.margin), found.choice
        parts = replace(parts, alpha=choice.alpha, beta=choice.beta, mixture=choice.mixture)
        self._tell(parts, closed)
        open_ = torch.nonzero(~closed)[:, 0]
        gain, parts = found.gain[open_], parts.pick(open_)
        if len(parts) == 0:
            return parts
        self._look(parts.owner, found.corner[open_])
        stuck = gain.amax(-1) <= 0
        self._last_resort(parts.pick(stuck))
        return self._halves(parts.pick(~stuck), gain[~stuck])

    def _halves(self, parts: SignedParts, gain: Tensor) -> SignedParts:
        """The two halves of each part at one neuron: of a few candidates, that whose worse half has the best bound.
        Closed halves are left out.
        """
        if len(parts) == 0:
            return parts
        value, neurons = gain.topk(min(_LOOK_AHEAD, gain.shape[-1]))
        margins = [
            torch.stack([self._bound(parts.fixed(column, sign), 0).margin for sign in (-1, 1)], -1)
            for column in neurons.unbind(-1)
        ]
        margin = torch.stack(margins, 1)  # (P, candidates, 2)
        score = torch.where(value > 0, margin.amin(-1) + 1e-3 * margin.amax(-1).clamp(-1e30, 1e30), -torch.inf)
        best = score.argmax(-1, keepdim=True)
        neuron = neurons.gather(-1, best)[:, 0]
        open_ = margin.gather(1, best[..., None].expand(-1, 1, 2))[:, 0] <= 0
        off, on = parts.fixed(neuron, -1), parts.fixed(neuron, 1)
        self._tell(off.join(on), ~open_.mT.flatten())
        return off.pick(open_[:, 0]).join(on.pick(open_[:, 1]))

    def _tell(self, parts: SignedParts, closed: Tensor) -> None:
        if self._told is not None:
            self._told(parts.pick(closed))

    def _alone(self, target: Tensor, row: int) -> Tensor:
        """(P, R): the mixture of one row."""
        mixture = torch.zeros_like(self._targets.bound[target])
        mixture[:, row] = 1.0
        return torch.where(torch.isfinite(self._targets.bound[target]), mixture, 0.0)

    def _last_resort(self, parts: SignedParts) -> None:
        """Solve the linear program that is left of each part whose signs are all known; what that leaves open stays
        open.
        """
        for one in range(len(parts)):
            self._engine.deadline.check()
            part, x = self._solved(parts.pick(slice(one, one + 1)))
            closed = self._closed(part, self._bound(part, 0).margin)
            self._tell(part, closed)
            if not bool(closed):
                self._look(part.owner, x)
                self._frontier.give_up(part.owner)

    def _solved(self, part: SignedParts) -> tuple[SignedParts, Tensor]:
        """Multipliers and mixture from min t, row_r(x) - b_r <= t and sign_j z_j(x) >= -s_j, each s_j at a price."""
        from scipy.optimize import linprog  # loaded here: see `refute`

        problem, root, bound = self._roots.problem, part.owner, self._targets.bound[part.target]
        settings, index = grids(self._roots.setting[root])[0]
        lower, upper = (side[root] for side in (problem.lower, problem.upper))
        rows, count = bound.shape[-1], self._kinks.count
        if (rows + count) * (lower.shape[-1] + count) > _LP_SIZE:
            return part, (lower + upper) / 2
        engine = self._split_engine(settings, part.target[index], root[index])
        form = engine.affine(Choice(part.signs[index], part.alpha[index], part.beta[index], part.mixture[index]))
        slope, offset = form.slope[0, 0].cpu().numpy(), form.offset[0, 0].cpu().numpy()
        signs, b = part.signs[0].cpu().numpy(), bound[0].cpu().numpy()
        real, split = np.flatnonzero(np.isfinite(b)), np.flatnonzero(signs)
        above = np.concatenate([slope[real], -signs[split, None] * slope[rows + split]])
        price = np.zeros((len(above), 1 + len(split)))
        price[: len(real), 0] = -1.0
        price[len(real) :, 1:] = -np.eye(len(split))
        right = np.concatenate([b[real] - offset[real], signs[split] * offset[rows + split]])
        cost = np.concatenate([np.zeros(lower.shape[-1]), [1.0], np.full(len(split), _PENALTY)])
        box = torch.stack([lower[0], upper[0]], -1).cpu().numpy()
        limits = np.concatenate([box, [[-np.inf, np.inf]], np.tile([[0.0, np.inf]], (len(split), 1))])
        found = linprog(cost, A_ub=np.concatenate([above, price], 1), b_ub=right, bounds=limits, method="highs")
        if found.x is None:
            return part, (lower + upper) / 2
        weights = torch.as_tensor(np.maximum(-found.ineqlin.marginals, 0.0), device=bound.device)
        beta, mixture = torch.zeros_like(part.beta), torch.zeros_like(part.mixture)
        mixture[0, real], beta[0, split] = weights[: len(real)], weights[len(real) :]
        x = torch.as_tensor(found.x[None, : lower.shape[-1]], device=bound.device)
        return replace(part, beta=beta, mixture=mixture), x

    def _closed(self, parts: SignedParts, margin: Tensor) -> Tensor:
        """The system has no solution: the mixed rows exceed their bounds, or reach them and all are strict."""
        bound, strict = self._targets.bound[parts.target], self._targets.strict[parts.target]
        return row_false(margin, 0.0, (strict | torch.isinf(bound)).all(-1))

    def _look(self, root: Tensor, x: Tensor) -> None:
        """The corners of the linear functions as witnesses."""
        problem = self._roots.problem.items(root)
        pairs = Pairs(self._roots.bounds, self._roots.weights, self._roots.setting[root], problem)
        self._witnesses.look(pairs, root, x, problem.upper - problem.lower)
        self._frontier.settle(self._witnesses.violated)

    def _bound(self, parts: SignedParts, steps: int) -> SplitBounds:
        """Bounds of the waiting parts, grid by grid."""
        root = parts.owner
        out: list[Tensor | None] = [None] * 6
        for settings, index in grids(self._roots.setting[root]):
            choice = Choice(parts.signs[index], parts.alpha[index], parts.beta[index], parts.mixture[index])
            found = self._split_engine(settings, parts.target[index], root[index]).ascend(choice, steps)
            best = found.choice
            values = (found.margin, best.alpha, best.beta, best.mixture, found.corner, found.gain)
            out = [scatter(old, new, index, len(root)) for old, new in zip(out, values, strict=True)]
        margin, alpha, beta, mixture, corner, gain = (value for value in out if value is not None)
        return SplitBounds(margin, Choice(parts.signs, alpha, beta, mixture), corner, gain)

    def _split_engine(self, settings: Tensor, target: Tensor, root: Tensor) -> SplitEngine:
        network, targets, problem = self._engine.network, self._targets, self._roots.problem
        inputs = None if targets.inputs is None else targets.inputs[target]
        return SplitEngine(
            network, self._kinks, self._roots.weights.boxes(settings), self._ranges.gather(root),
            Interval(problem.lower[root], problem.upper[root]), targets.outputs[target],
            inputs, targets.bound[target],
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Targets:
    """T targets: root (T,), the pair; outputs (T, R, m), inputs (T, R, n) or None, bound, strict (T, R): its rows,
    padded with bound = inf.
    """

    root: Tensor
    outputs: Tensor
    inputs: Tensor | None
    bound: Tensor
    strict: Tensor


def _targets_of(problem: Problem) -> _Targets:
    """Every case of every item (item = root), with the item's constraints on the inputs as further rows."""
    rows, count, extra = problem.rows, len(problem), problem.constraints
    root, case = torch.nonzero(problem.exists.expand(count, -1), as_tuple=True)
    mask = rows.case.expand(count, -1)[root] == case[:, None]
    most = max(1, int(mask.sum(-1).max())) if len(root) else 1
    order = torch.argsort(~mask, dim=-1, stable=True)[:, :most]

    def of_target(tensor: Tensor) -> Tensor:
        picked = tensor.expand(count, *tensor.shape[1:])[root]
        return picked[torch.arange(len(root), device=root.device)[:, None], order]

    outputs, strict = of_target(rows.outputs), of_target(rows.strict)
    bound = torch.where(mask.gather(-1, order), of_target(rows.bound), torch.inf)
    inputs = None if rows.inputs is None else of_target(rows.inputs)
    if extra is None:
        return _Targets(root, outputs, inputs, bound, strict)
    if inputs is None:
        inputs = outputs.new_zeros(*bound.shape, extra.inputs.shape[-1])
    return _Targets(
        root,
        torch.nn.functional.pad(outputs, (0, 0, 0, extra.bound.shape[-1])),
        torch.cat([inputs, extra.inputs[root]], 1),
        torch.cat([bound, extra.bound[root]], 1),
        torch.cat([strict, extra.strict[root]], 1),
    )


def _root_ranges(roots: Pairs) -> Ranges:
    """(Q, *shape): the ranges of every node over the boxes of Q pairs."""
    problem, engine = roots.problem, roots.bounds.engine
    out: dict[RangeKey, Tensor] = {}
    for settings, index in roots.grids:
        for part in index.split(engine.chunk(len(settings), 1), 1):
            engine.deadline.check()
            box = Interval(problem.lower[part], problem.upper[part])
            for key, tensor in engine.ranges(roots.weights.boxes(settings), box).tensors().items():
                out[key] = scatter(out.get(key), tensor, part, len(problem))
    return Ranges.of(out)
