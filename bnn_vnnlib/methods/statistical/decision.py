"""The decision with a stated confidence: rows over expected outputs, or over quantiles, from drawn networks.

Every draw i gives certified lower bounds L_i of rows a.Y + g.x over all x of an item, for all weights of its box
(`network.draws`), with Y the outputs, probabilities included, of that network. Negated rows give upper bounds.

1. Mean. Let [lo, hi] hold the row for every x and all weights (`OutputBounds.closed`), and q = E (min row - lo) /
   (hi - lo). At every x, E row(x) >= E min row = lo + (hi - lo) q. Of draw i, y_i = (L_i - lo) / (hi - lo), rounded
   down and at least 0, is no more than the number whose mean is q. So a lower bound m on q (`martingale`) gives
   lo + (hi - lo) m. A row without such a range has no bound: draws do not tell how much the tails of its law weigh.
   Where what is asked has none, the question is refused.
2. Quantiles. Let the row be an output, and P(min row >= t) > m = 1 - alpha. At every x every alpha-quantile q is at
   least t: were q < t, then P(row <= q) >= alpha and P(row >= t) <= 1 - alpha. If that holds for all t < t_0, then
   q >= t_0, which is at least the order statistic of the L_i that step 4 of `martingale` names. Of the negated output
   -q is a quantile at 1 - alpha, and m = alpha. A row a Y_j + g.x takes the m of its sign.
3. A draw that is not known, or whose bound time cut off, has y_i = 0, and L_i = -inf.
4. Each side of m outputs has delta / (2 m), so that all their intervals together hold with the stated confidence; each
   side of a row has half of delta, so that every row's interval does by itself. A case is refuted if one of its rows is
   proved false; if it has r rows, the lower sides have delta / (2 r). Cases need no share: were a violation possible,
   one certain case would have been refuted wrongly.
5. A violation is shown at one point x* of one item, for one case, chosen before the counted draws by an attack on
   draws of another stream. All rows of the case must hold there, each at half of delta: if it does not, one certain
   row was proved wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib import attack
from bnn_vnnlib.arrays import Floats, Ints
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.martingale import LEVELS, exceeds, levels_of, lower_bounds, ones_needed
from bnn_vnnlib.methods.outcome import DecisionOutcome
from bnn_vnnlib.methods.safety.safety import DRAWN, last_of_each
from bnn_vnnlib.methods.statistical.sampling import DrawnNetworks, Sampling
from bnn_vnnlib.network.draws import Draws
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.network import Posterior
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible, point_box
from bnn_vnnlib.result import Rule
from bnn_vnnlib.rounding import TINY, UNIT, down, up

_PILOT = 32
"""Draws that the points are chosen by, none of which is counted."""

_COUNTS = 2**24
"""Counts of levels that are kept for all rows, at most."""


def decide(
    bounds: OutputBounds, posterior: Posterior, rule: Rule, problem: Problem, settings: Attack, sampling: Sampling,
    gap: float | None = None,
) -> DecisionOutcome:  # fmt: skip
    """Bound D over every item, refute its cases, or show a violation at a point chosen before.

    Parameters
    ----------
    gap : the work ends where all outputs have such bounds; None: where all is decided

    Raises
    ------
    UnsupportedError : expected outputs that have no certain range; rows over quantiles of several outputs
    """
    run = _Run(bounds, posterior, rule, problem, settings, sampling, gap)
    run.work()
    return run.outcome()


@dataclass(frozen=True, eq=False)
class _Rows:
    """S rows of each of N items, over boxes: what is bounded, and by which levels of confidence.

    outputs (N, S, m), inputs (N, S, n) or None; lower, upper (N, n) the boxes; low, high (N, S) the certain ranges;
    delta (N, S)
    """

    outputs: Tensor
    inputs: Tensor | None
    lower: Tensor
    upper: Tensor
    low: Tensor
    high: Tensor
    delta: Floats

    @property
    def width(self) -> Tensor:
        """(N, S): of the certain ranges, rounded up; inf where there is none."""
        return up(self.high - self.low).nan_to_num(torch.inf, torch.inf)


class _Evidence:
    """What the draws show of rows: counts of levels for means, the bounds themselves for quantiles."""

    def __init__(self, bounds: OutputBounds, rows: _Rows, rule: Rule) -> None:
        self._bounds, self._rows, self._rule = bounds, rows, rule
        size = rows.delta.size
        self._levels = min(LEVELS, 2 ** max(6, int(np.log2(_COUNTS / max(1, size)))))
        self._counts: Ints = np.zeros((size, self._levels + 1 if rule.level is None else 1), np.int64)
        self._kept: list[Floats] = []

    def add(self, weights: WeightBoxes, known: Tensor) -> Tensor:
        """Count draws (K,); which of them say something of some row of every item (K,)."""
        rows = self._rows
        found = self._bounds.rows(weights, rows.lower, rows.upper, rows.outputs, rows.inputs).lower
        found = torch.where(known[:, None, None], found.nan_to_num(-torch.inf, torch.inf, -torch.inf), -torch.inf)
        found = found.expand(len(known), -1, -1)
        if self._rule.level is None:
            share = (down(found - rows.low).clamp(min=0.0) / rows.width * (1 - 4 * UNIT)).nan_to_num(0.0, 0.0, 0.0)
            self._counts += levels_of(share.clamp(max=1.0).flatten(1).cpu().numpy(), self._levels)
        else:
            self._kept.append(found.flatten(1).cpu().numpy())
        return torch.isfinite(found).any(-1).all(-1)

    def lower(self) -> Tensor:
        """Lower bounds (N, S) that the draws so far show."""
        rows, shape = self._rows, self._rows.low.shape
        if self._rule.level is None:
            share = torch.as_tensor(lower_bounds(self._counts, rows.delta.ravel())).to(rows.low).reshape(shape)
            gain = torch.where(share > 0, rows.width * share, 0.0)
            paid = 4 * UNIT * (gain + rows.low.abs()) + TINY
            return torch.maximum(rows.low, rows.low + gain - paid)
        every = np.concatenate(self._kept) if self._kept else np.zeros((0, rows.delta.size))
        return torch.maximum(
            rows.low, torch.as_tensor(self._quantiles(every, self._rule.level)).to(rows.low).reshape(shape)
        )

    def shown(self, threshold: Tensor) -> Tensor:
        """(N, S): the mean, or every quantile, of the row is proved to exceed the threshold (N, S)."""
        rows = self._rows
        if self._rule.level is not None:
            return self.lower() > threshold
        m = up(up(threshold - rows.low) / rows.width).nan_to_num(1.0, 1.0, 1.0)
        exceeded = exceeds(self._counts, m.flatten().cpu().numpy(), rows.delta.ravel())
        return torch.as_tensor(exceeded, device=m.device).reshape(m.shape) | (rows.low > threshold)

    def _quantiles(self, every: Floats, level: float) -> Floats:
        """(N S,) order statistics of bounds (n, N S)."""
        found = np.full(every.shape[1], -np.inf)
        negated = (self._rows.outputs < 0).any(-1).expand(self._rows.low.shape).flatten().cpu().numpy()
        shares = np.where(negated, level, np.nextafter(1.0 - level, 1.0))
        for delta, share in {*zip(self._rows.delta.ravel().tolist(), shares.tolist(), strict=True)}:
            needed = ones_needed(len(every), share, delta) if len(every) else None
            if needed is not None and needed > 0:
                columns = (self._rows.delta.ravel() == delta) & (shares == share)
                place = len(every) - needed
                found[columns] = np.partition(every[:, columns], place, axis=0)[place]
        return found


class _Run:
    """Evidence over all items (rows, negated rows, outputs, negated outputs), and at chosen points (negated rows)."""

    def __init__(
        self, bounds: OutputBounds, posterior: Posterior, rule: Rule, problem: Problem, settings: Attack,
        sampling: Sampling, gap: float | None,
    ) -> None:  # fmt: skip
        self._gap, self._narrow = gap, False
        self._bounds, self._posterior, self._rule = bounds, posterior, rule
        self._problem, self._settings, self._sampling = problem, settings, sampling
        device = problem.lower.device
        self._networks = DrawnNetworks(bounds.engine, posterior, sampling, device)
        self._height, self._outputs = problem.rows.outputs.shape[1:]
        self._real = (problem.rows.case < problem.cases).expand(len(problem), -1)
        over = self._over()
        self._refuse(over)
        self._point, self._item, self._case, usable = self._chosen()
        self._over_low, self._over_evidence = over.low, _Evidence(bounds, over, rule)
        self._at_evidence = _Evidence(bounds, self._at(), rule)
        self._usable = usable
        self._counted = self._open = 0
        self._refuted = self._violated = torch.zeros(len(problem), dtype=torch.bool, device=device)
        self._judge()

    def work(self) -> None:
        """Draw networks until all instances are decided, all draws are counted, or time is up; all draws where nothing
        is asked.
        """
        deadline, looked = self._bounds.engine.deadline, 0
        rows = 2 * (self._height + self._outputs)
        for index in self._networks.batches(rows):
            if deadline.passed or self._done:
                break
            weights, known = self._networks.take(index)
            says = self._over_evidence.add(weights, known)
            self._at_evidence.add(weights, known)
            self._counted += len(index)
            self._open += int((~says).sum())
            self._judge()
            if self._gap is not None and self._counted >= 1.2 * looked:
                low, looked = self._over_evidence.lower()[:, 2 * self._height :], self._counted
                self._narrow = bool((-low[:, self._outputs :] - low[:, : self._outputs] <= self._gap).all())

    def outcome(self) -> DecisionOutcome:
        """The outcome that the draws so far show."""
        low, rows = self._over_evidence.lower(), self._problem.rows
        height = self._height
        passed = torch.where(self._false & self._real, rows.bound, -torch.inf)
        low[:, :height] = torch.maximum(low[:, :height], passed)
        high = -low[:, height : 2 * height]
        lower, upper = low[:, 2 * height : -self._outputs], -low[:, -self._outputs :]
        told = [torch.isfinite(side).any(-1)[:, None] for side in (low, -high)]
        return DecisionOutcome(
            low[:, :height], high, lower, upper, self._refuted, self._violated, self._point, (DRAWN,),
            (told[0], told[1]), draws=(self._counted, self._open),
        )  # fmt: skip

    @property
    def _done(self) -> bool:
        if self._gap is not None:
            return self._narrow
        problem = self._problem
        settled = problem.all_items(self._refuted) | problem.any_item(self._violated)
        return bool(settled.all()) and bool(problem.exists.any())

    def _judge(self) -> None:
        """Refute cases, and look at the chosen points (steps 4 and 5)."""
        problem, rows, height = self._problem, self._problem.rows, self._height
        threshold = self._over_low.new_full(self._over_low.shape, torch.inf)
        threshold[:, :height] = rows.bound
        self._false = self._over_evidence.shown(threshold)[:, :height]
        self._refuted = problem.refuted(self._false & self._real).all(-1)
        held = self._at_evidence.shown(-rows.inner_bound.expand(len(problem), -1))
        case = rows.case.expand(len(problem), -1)
        others = case != self._case[:, None]
        met = (held | others).all(-1) & (case == self._case[:, None]).any(-1)
        chosen = torch.zeros_like(met)
        chosen[self._item] = True
        self._violated = met & chosen & self._usable & ~self._refuted

    def _over(self) -> _Rows:
        """The rows, the negated rows, the outputs and the negated outputs, over all of each item."""
        problem, rows = self._problem, self._problem.rows
        count = len(problem)
        unit = torch.eye(self._outputs, dtype=torch.float64, device=problem.lower.device).expand(count, -1, -1)
        given = rows.outputs.expand(count, -1, -1)
        outputs, inputs = torch.cat([given, -given, unit, -unit], 1), None
        if rows.inputs is not None:
            own = rows.inputs.expand(count, -1, -1)
            inputs = torch.cat([own, -own, own.new_zeros(count, 2 * self._outputs, own.shape[-1])], 1)
        case = rows.case.expand(count, -1)
        tried = (case[:, :, None] == case[:, None]).sum(-1).cpu().numpy()  # rows of the row's case
        delta = np.full((count, outputs.shape[1]), self._sampling.side)
        delta[:, : self._height] /= tried
        delta[:, 2 * self._height :] /= self._outputs
        return self._rows(outputs, inputs, problem.lower, problem.upper, delta * (1 - 2.0**-50))

    def _at(self) -> _Rows:
        """The negated rows at the chosen points."""
        rows, count = self._problem.rows, len(self._problem)
        lower, upper = point_box(self._problem, self._point)
        outputs = -rows.outputs.expand(count, -1, -1)
        inputs = None if rows.inputs is None else -rows.inputs.expand(count, -1, -1)
        return self._rows(outputs, inputs, lower, upper, np.full(outputs.shape[:2], self._sampling.side))

    def _rows(self, outputs: Tensor, inputs: Tensor | None, lower: Tensor, upper: Tensor, delta: Floats) -> _Rows:
        """The rows over their boxes, with ranges that they have for certain, whatever the random weights are."""
        network = self._bounds.engine.network
        mean = weight_sets.mean_weights(network, lower.device)
        random = weight_sets.random_names(network, self._posterior)
        both = torch.cat([outputs, -outputs], 1)
        twice = None if inputs is None else torch.cat([inputs, -inputs], 1)
        low, high = self._bounds.closed(mean, lower, upper, both, twice, random)[0].chunk(2, -1)
        return _Rows(outputs, inputs, lower, upper, low, -high, delta)

    def _refuse(self, over: _Rows) -> None:
        """Refuse a question that draws alone cannot answer, by name."""
        if self._rule.level is None:
            bounded = torch.isfinite(over.low) & torch.isfinite(over.high)
            asked = bounded[:, : self._height][self._real] if bool(self._real.any()) else bounded[:, -self._outputs :]
            if not bool(asked.all()):
                raise UnsupportedError(
                    "the mean of an output without a certain range cannot be bounded from draws alone, however many: "
                    "ask --rule median or quantile:Q, end the graph in Sigmoid, Tanh or Clip, or ask for --guarantee "
                    "certain"
                )
        elif bool(((self._problem.rows.outputs != 0).sum(-1) > 1)[self._real[: len(self._problem.rows.outputs)]].any()):
            told = f"rule {self._rule} with guarantee statistical compares one output at a time with a bound"
            raise UnsupportedError(told)

    def _chosen(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A point of each item (N, n), the one item of each instance (I,) and its case (N,) that are tried, and whether
        the points surely lie in the items, with the network defined there (N,)."""
        problem, network = self._problem, self._bounds.engine.network
        pilot = Draws(network, self._posterior, self._sampling.seed, stream=1).take(np.arange(_PILOT))
        params = {name: values.to(problem.lower.device) for name, values in pilot.centers.items()}
        settings = self._settings
        smaller = replace(settings, restarts=min(settings.restarts, 8), pool=min(settings.pool, 8))
        aim: attack.AttackAim = "mean" if self._rule.level is None else self._rule.level
        x, values = attack.run(network, problem, params, smaller, self._bounds.transform, aim=aim)
        point, value = x[0], values[0]
        item = last_of_each(problem, torch.argsort(value, descending=True, stable=True))
        y = attack.transformed(evaluate(network, point, params), self._bounds.transform)
        y = attack.over_networks(y, aim)[0]
        rows = problem.rows
        left = (y[:, None] * rows.outputs).sum(-1) - rows.inner_bound
        left = left if rows.inputs is None else left + (point[:, None] * rows.inputs).sum(-1)
        worst = torch.where(problem.exists, problem.worst(left), torch.inf)
        lower, upper = point_box(problem, point)
        random = weight_sets.random_names(network, self._posterior)
        mean = weight_sets.mean_weights(network, point.device)
        defined = self._bounds.defined(mean, lower, upper, random)[0].expand(len(problem))
        return point, item, worst.argmin(-1), defined & feasible(problem, point)
