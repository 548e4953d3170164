"""Bounds of a network's rows over input boxes x weight boxes: the one entrance to this package.

A network is a graph of nodes, a method is a table of rules, and this module walks the graph with the tables.
"""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward, interval, linear
from bnn_vnnlib.bounds.activations import ACTIVATIONS, KINKED
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import Rules
from bnn_vnnlib.bounds.walk import LinearForm, Ranges, Walk, some
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.evaluate import node_values
from bnn_vnnlib.network.network import Network
from bnn_vnnlib.network.nodes import (
    Activation,
    Broadcast,
    Constant,
    Conv,
    Gap,
    Input,
    Linear,
    Max,
    Product,
    Reshape,
    Scale,
    Select,
    Sum,
    Transpose,
)
from bnn_vnnlib.system.clock import Deadline, OutOfTime
from bnn_vnnlib.system.memory import at_once

RangeMethod = Literal["interval", "linear"]


@dataclass(frozen=True, eq=False)
class RowBounds:
    """Lower bounds of rows C y + G x.

    lower (K, N, R); form : linear functions below the rows, if asked for; magnitude (K, N, m) : upper bound on |y|.
    """

    lower: Tensor
    form: LinearForm | None
    magnitude: Tensor


@dataclass(frozen=True)
class Engine:
    """Bounds one network.

    Parameters
    ----------
    network : the graph
    method : "interval", or "linear" (backward linear bounds, met with the intervals)
    deadline : looked at between chunks; nothing is known of the items that it does not suffice for (`clock`)
    """

    network: Network
    method: RangeMethod = "linear"
    deadline: Deadline = Deadline()

    def rows(
        self,
        weights: WeightBoxes,
        lower: Tensor,
        upper: Tensor,
        outputs: Tensor,
        inputs: Tensor | None = None,
        *,
        forms: bool = False,
    ) -> RowBounds:
        """Lower bounds on C y + G x for all x of each item's box and all weights of each box.

        Parameters
        ----------
        weights : K boxes
        lower, upper : (N, n) input boxes, or (K or 1, N, n) if they differ between weight boxes
        outputs : C (N or 1, R, m), exact; or (K, N, R, m) if the rows differ between weight boxes
        inputs : G (N or 1, R, n), exact, or None; or (K, N, R, n)
        forms : keep the linear forms (memory K * N * R * n)

        Guarantee: sound, rounding included. Chunked over items so that memory stays bounded. Items that time does not
        suffice for have bounds of -inf.
        """
        lower, upper = (side if side.dim() == 3 else side[None] for side in (lower, upper))
        n_items = lower.shape[1]
        k = max(weights.count, len(lower))
        step = self.chunk(k, outputs.shape[1])

        def bounded(start: int) -> RowBounds:
            part = slice(start, start + step)
            return self._rows(
                weights.items(part), Interval(lower[:, part], upper[:, part]), some(outputs, part),
                None if inputs is None else some(inputs, part), forms,
            )  # fmt: skip

        parts = self.deadline.reached(range(0, n_items, step), bounded)
        left = n_items - sum(part.lower.shape[1] for part in parts)
        if left or not parts:
            parts.append(_unknown((k, left, outputs.shape[-2]), outputs, lower.shape[-1] if forms else None))
        return _joined(parts)

    def ranges(self, weights: WeightBoxes, box: Interval) -> Ranges:
        """Enclosures of every node, forwards; with the linear method those of what activations, gaps, products
        and maxima read are tightened."""
        ranges = Ranges()
        later = _read_later(self.network) if self.method == "linear" else {}
        for position, node in enumerate(self.network.nodes):
            if isinstance(node, Input):
                ranges.values[position] = interval.inputs(node, box)
                continue
            if isinstance(node, Gap):
                source = node.inputs[2]
                if self.method == "linear" and not isinstance(self.network.nodes[source], Input):
                    ranges.values[source] = self._tightened(weights, ranges, box, position, source)
            if isinstance(node, Activation):
                (source,) = node.inputs
                known = isinstance(self.network.nodes[source], Input) or source in later
                if self.method == "linear" and not known:
                    ranges.values[source] = self._tightened(weights, ranges, box, position, source)
                z = ranges.values[source]
                if self.method == "linear":
                    ranges.lines[position] = ACTIVATIONS[node.kind].lines(node.alpha, z.lower, z.upper)
            arguments = (ranges.values[source] for source in node.inputs)
            result = interval.RULES[type(node)](node, weights, *arguments)
            ranges.values[position], ranges.magnitudes[position] = result
            if position in later:
                ranges.values[position] = self._tightened(weights, ranges, box, later[position], position)
        return ranges

    def _tightened(self, weights: WeightBoxes, ranges: Ranges, box: Interval, reader: int, position: int) -> Interval:
        """Linear bounds of what the node at `reader` reads (an activation, gap, product or maximum), met with its
        interval.

        A dense layer is bounded whole, unless it is large (`backward.lengthy`). Of any other node only the elements
        whose bounds matter are, side by side (`backward.sides`): to Relu and LeakyRelu those with both signs, and
        rivals behind a maximum; to a maximum its rivals. None are where a single map leads from the input here, because
        the interval of one map loses no more than the product of both radii: there a dense layer is bounded by
        intervals, too, if its inputs are many, since lines would store outputs x inputs for every item. Elements that
        time does not suffice for keep their intervals.
        """
        known, node = ranges.values[position], self.network.nodes[position]
        first = self._maps_below(position) <= 1
        if first and (box.lower.shape[-1] > linear.MANY_INPUTS or not weights.spreads):
            return known
        items, n = box.lower.shape[1:]
        form = None
        if not backward.lengthy(self.network, position):
            form = backward.dense_units(self.network, weights, ranges, position, items, n)
        if form is not None:
            lower, upper = form.minimum(box).unflatten(2, (2, -1)).unbind(2)
            return known.meet(Interval(lower.unflatten(2, node.shape), -upper.unflatten(2, node.shape)))
        if first:
            return known
        shape = max(weights.count, len(box.lower)), items, *node.shape
        levels = torch.stack([_flat(side.expand(shape)) for side in (known.lower, -known.upper)], 2)
        for sides in backward.sides(self.network, position):
            known = Interval(levels[:, :, 0].reshape(shape), -levels[:, :, 1].reshape(shape))
            matters = self._matters(weights, known, reader, position)[:, :, None]
            index = matters.flatten(0, 2).any(0).nonzero()[:, 0]
            rows = torch.tensor(sides, device=index.device)[:, None]
            start, step = 0, 1
            while start < len(index):
                part = index[start : start + step]
                try:
                    walk, found = backward.unit_walk(
                        self.network, weights, ranges, position, part, items, self.deadline, sides
                    )
                except OutOfTime:
                    break
                start, step = start + step, at_once(16 * len(sides) * weights.count * items * walk.largest)
                # what matters to a neighbour only would make bounds depend on the batch
                own = found.minimum(box).unflatten(2, (len(sides), -1)).where(matters[..., part], -torch.inf)
                levels[:, :, rows, part] = torch.maximum(levels[:, :, rows, part], own)
        return Interval(levels[:, :, 0].reshape(shape), -levels[:, :, 1].reshape(shape))

    def _matters(self, weights: WeightBoxes, known: Interval, reader: int, position: int) -> Tensor:
        """(K or 1, M, size): the elements of the node at `position` whose bounds matter to the node at `reader`."""
        reading, low, high = self.network.nodes[reader], _flat(known.lower), _flat(known.upper)
        if isinstance(reading, Max):
            rival = backward.rivals(self.network, weights, position, known)
            return torch.ones_like(low, dtype=torch.bool) if rival is None else _flat(rival)
        if not isinstance(reading, Activation) or reading.kind not in KINKED:
            return torch.ones_like(low, dtype=torch.bool)
        behind = interval.activation(reading, weights, known)[0]
        rival = backward.rivals(self.network, weights, reader, behind)
        matters = (low < 0) & (high > 0)
        return matters if rival is None else matters | (_flat(rival) & (high > 0))

    def _maps_below(self, position: int) -> int:
        """Weighted maps, activations and meeting branches between the input and a node, that node included."""
        seen, stack, count = set(), [position], 0
        while stack:
            place = stack.pop()
            if place not in seen:
                seen.add(place)
                node = self.network.nodes[place]
                count += isinstance(node, Linear | Conv | Scale | Activation | Sum | Product | Max)
                stack.extend(node.inputs)
        return count

    def _rows(
        self, weights: WeightBoxes, box: Interval, outputs: Tensor, inputs: Tensor | None, forms: bool
    ) -> RowBounds:
        """Bounds of rows over boxes by the engine's method, with their linear forms if asked for.

        `backward.LAST_ROWS` after the deadline the walk of the rows is cut off; without folded intervals, which take
        next to no time, OutOfTime is raised.
        """
        ranges = self.ranges(weights, box)
        k, items = max(weights.count, len(box.lower)), box.lower.shape[1]
        outputs = outputs if outputs.dim() == 4 else outputs[None]
        seeds = backward.seeds_of(self.network, outputs)
        sizes = [_flat(ranges.values[position].magnitude) for position in self.network.outputs]
        magnitude = torch.cat([size.expand(k, items, -1) for size in sizes], -1)
        until = self.deadline.later(backward.LAST_ROWS)
        walk = backward.begin(self.network, weights, ranges, seeds, (k, items), deadline=until)
        last, form = backward.common_walk(walk), None
        found = []
        # either method can be the better one on a row, and the folded intervals cost next to nothing
        folds = self.method == "interval" or any(not isinstance(self.network.nodes[p], Input) for p in walk.pending)
        if self.method == "linear":
            with suppress(OutOfTime) if folds else nullcontext():
                form = self._form(walk.copy(), last, box, inputs, linear.LINEAR)
                found = [form.minimum(box)]
        if folds:
            walk.deadline = Deadline()
            folded = self._form(walk, last, box, inputs, linear.INTERVAL)
            form, found = form or folded, [*found, folded.minimum(box)]
        return RowBounds(functools.reduce(torch.maximum, found), form if forms else None, magnitude)

    def _form(self, walk: Walk, last: int, box: Interval, inputs: Tensor | None, rules: Rules) -> LinearForm:
        form = backward.finish(walk, last, box.lower.shape[-1], rules)
        return form if inputs is None else form.plus(inputs, box)

    def losses(
        self, weights: WeightBoxes, box: Interval, outputs: Tensor, inputs: Tensor | None = None
    ) -> dict[int, Tensor]:
        """What linear bounds of one row an item lose at each node, (K, M) by position: a guide, not a bound.

        Let x be where the linear function below the row is least. What the walk knows of the row at x falls from the
        row's own value there to its bound, and it falls where a node is replaced by lines that are not exact at x.

        Parameters
        ----------
        weights : K settings without spreads
        box, outputs, inputs : (1, M, n), (1, M, 1, m) and (1, M, 1, n), as `rows` takes them
        """
        ranges = self.ranges(weights, box)
        seeds = backward.seeds_of(self.network, outputs)
        walk = backward.begin(self.network, weights, ranges, seeds, (weights.count, box.lower.shape[1]))
        slope = self._form(walk.copy(), max(walk.pending), box, inputs, linear.LINEAR).slope[:, :, 0]
        drawn = {name: center for name, center in weights.centers.items() if len(center) == weights.count}
        at = node_values(self.network, torch.where(slope >= 0, box.lower, box.upper), drawn)

        def known() -> Tensor:
            rows = (a.dot(at[position])[..., 0] for position, a in walk.pending.items())
            return sum(rows, (walk.constant - walk.error)[..., 0])

        found, before = dict[int, Tensor](), known()
        for position in range(max(walk.pending), -1, -1):
            node = self.network.nodes[position]
            if position in walk.pending and not isinstance(node, Input):
                self.deadline.check()
                linear.LINEAR[type(node)](walk, node, position, walk.pending.pop(position))
                found[position], before = before - known(), known()
        return found

    def chunk(self, boxes: int, rows: int) -> int:
        """Items per chunk: the largest tensors hold rows (of the property, or of a tightened layer) x elements."""
        nodes = self.network.nodes
        need = rows * self._widest
        if self.method == "linear":
            wide = self.network.signature.input_size > linear.MANY_INPUTS
            sources = [node.inputs[0] for node in nodes if isinstance(node, Activation)]
            sources = [s for s in sources if not (wide and self._maps_below(s) <= 1)]
            below = (2 * math.prod(nodes[s].shape) * max(self._sizes[: max(1, s - 1)]) for s in sources)
            need = max(need, *below, 1)
        return at_once(32 * boxes * need)

    @property
    def _sizes(self) -> list[int]:
        """Number of elements of each node."""
        return [math.prod(node.shape) for node in self.network.nodes]

    @property
    def _widest(self) -> int:
        """Number of elements of the largest node."""
        return max(self._sizes)


def _read_later(network: Network) -> dict[int, int]:
    """The nodes whose elements a product multiplies or a maximum compares, with such a reader each.

    Between the two are only nodes that move or repeat elements. Inputs, constants and activations are left out, where
    nothing is to be gained, and what an activation reads as well before it is compared.
    """
    found: dict[int, int] = {}
    read = {node.inputs[0] for node in network.nodes if isinstance(node, Activation)}
    for position, node in enumerate(network.nodes):
        for source in node.inputs if isinstance(node, Product | Max) else ():
            while isinstance(moved := network.nodes[source], Reshape | Transpose | Broadcast | Select):
                (source,) = moved.inputs
            if isinstance(moved, Input | Activation | Constant):
                continue
            if isinstance(node, Product):
                found[source] = position
            elif source not in read:
                found.setdefault(source, position)
    return found


def _flat(z: Tensor) -> Tensor:
    """(K, M, *shape) -> (K, M, elements); unlike flatten(2) also for a shape without axes."""
    return z.reshape(*z.shape[:2], -1)


def _unknown(shape: tuple[int, int, int], outputs: Tensor, inputs: int | None) -> RowBounds:
    """Bounds that say nothing of (K, N, R) rows; with linear forms over so many inputs, or None for no forms."""
    lower = outputs.new_full(shape, -torch.inf)
    form = None if inputs is None else LinearForm(outputs.new_zeros(*shape, inputs), lower)
    return RowBounds(lower, form, outputs.new_full((*shape[:2], outputs.shape[-1]), torch.inf))


def _joined(parts: list[RowBounds]) -> RowBounds:
    if len(parts) == 1:
        return parts[0]
    forms = [part.form for part in parts if part.form is not None]
    form = None
    if forms:
        form = LinearForm(torch.cat([f.slope for f in forms], 1), torch.cat([f.offset for f in forms], 1))
    return RowBounds(
        torch.cat([part.lower for part in parts], 1), form, torch.cat([part.magnitude for part in parts], 1)
    )
