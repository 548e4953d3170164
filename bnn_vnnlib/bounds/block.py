"""Rows over a node whose coefficients are 0 outside of a window: what a backward walk carries.

A row that starts at one unit of a convolution reads a small part of what is below, its receptive field. Each row of a
block has its own window, a box of indices of the node; all windows of a block have the same size, so that they are one
tensor. Coefficients outside of a window are exactly 0: a bound that is computed from windows differs from that of whole
rows by the order of its sums alone, which every payment for rounding covers.

1. Products of whole rows with vectors. 2. `Place`: where the windows of a block lie. 3. `Block`: coefficients at a
place, or whole rows. 4. How each linear node takes a block back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bnn_vnnlib.network import maps
from bnn_vnnlib.network.nodes import Conv, Linear, Scale, Select, WeightedMap

# 1. Products


def common(*leads: Sequence[int]) -> tuple[int, int]:
    """K and M of (K or 1, M or 1): torch.broadcast_shapes takes longer than the products of a small network."""
    k = m = 1
    for one, other in leads:
        k, m = one if k == 1 else k, other if m == 1 else m
    return k, m


def dot(a: Tensor, z: Tensor) -> Tensor:
    """Sum over the node of a (K, M, R, *shape) times z (K or 1, M or 1, *shape) -> (K, M, R)."""
    r, lead = a.shape[2], a.shape[:2]
    if z.shape[:2] == (1, 1):  # one vector for all rows
        return torch.mv(a.reshape(lead.numel() * r, -1), z.reshape(-1)).reshape(*lead, r)
    if lead == (1, 1):  # the same rows for all vectors
        return (z.reshape(z.shape[:2].numel(), -1) @ a.reshape(r, -1).mT).reshape(*z.shape[:2], r)
    k, m = common(lead, z.shape[:2])
    rows, column = (tensor.expand(k, m, *tensor.shape[2:]) for tensor in (a, z))
    return torch.bmm(rows.reshape(k * m, r, -1), column.reshape(k * m, -1, 1)).reshape(k, m, r)


def _dots(a: Tensor, vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`dot` with each of several vectors: the rows are read once."""
    if len(vectors) == 1:
        return (dot(a, vectors[0]),)
    if a.shape[:2] == (1, 1):  # the same rows for all vectors
        return tuple(dot(a, z) for z in vectors)
    (k, m), r = common(a.shape[:2], *(z.shape[:2] for z in vectors)), a.shape[2]
    columns = torch.stack([z.expand(k, m, *z.shape[2:]).reshape(k * m, -1) for z in vectors], 1)
    rows = a.expand(k, m, *a.shape[2:]).reshape(k * m, r, -1)
    return torch.bmm(rows, columns.mT).reshape(k, m, r, -1).unbind(-1)


def over_rows(move: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """Apply a function of (K, M, *shape) to (K, M, R, *shape)."""
    return move(a.flatten(1, 2)).unflatten(1, a.shape[1:3])


# 2. Places


@dataclass(frozen=True, eq=False)
class Place:
    """The windows of R rows over a node.

    shape : of the node; window : size along each of its axes; start (R, axes): the first index of each window, which
    may lie outside of the node, as padding does
    """

    shape: tuple[int, ...]
    window: tuple[int, ...]
    start: Tensor

    @cached_property
    def index(self) -> Tensor:
        """Flat indices (R, *window) of the node's elements; one behind the last where there is none."""
        return _flat(self.start, self.window, self.shape)

    @cached_property
    def inside(self) -> bool:
        """Whether no window leaves the node."""
        sizes = self.start.new_tensor(self.shape)
        return bool(((self.start >= 0) & (self.start + self.start.new_tensor(self.window) <= sizes)).all())

    def same(self, other: Place) -> bool:
        """Whether the windows of both lie at the same indices."""
        return self.window == other.window and torch.equal(self.start, other.start)

    def over(self, axes: Sequence[int]) -> Tensor:
        """`index` along some axes alone: (R, *window)."""
        shape, window = ([sizes[axis] for axis in axes] for sizes in (self.shape, self.window))
        return _flat(self.start[:, list(axes)], window, shape)

    def see(self, z: Tensor) -> Tensor:
        """What of z (K or 1, M or 1, *shape, that broadcasts) is in the windows: (K or 1, M or 1, R, *window).

        Outside of the node it is 0. One number, whatever its axes, is (K or 1, M or 1, 1, 1, ..).
        """
        if z.shape[2:].numel() == 1:
            return z[:, :, None]
        flat = z.expand(*z.shape[:2], *self.shape).reshape(*z.shape[:2], -1)
        if not self.inside:
            flat = torch.cat([flat, flat.new_zeros(*flat.shape[:2], 1)], -1)
        index = self.index.reshape(-1)
        if flat.shape[:2] == (1, 1):  # three times as fast
            return flat.reshape(-1).index_select(0, index).reshape(1, 1, *self.index.shape)
        return flat.index_select(-1, index).reshape(*z.shape[:2], *self.index.shape)

    def moved(self, axes: Sequence[int]) -> Place:
        """The windows in the transposed node whose axis i is this node's axis `axes[i]`."""
        shape, window = (tuple(sizes[axis] for axis in axes) for sizes in (self.shape, self.window))
        return Place(shape, window, self.start[:, list(axes)])

    def replaced(self, axis: int, size: int, window: int, start: Tensor | int) -> Place:
        """These windows where one axis of the node has another size, windows of another size, and other starts."""
        moved = self.start.clone()
        moved[:, axis] = start
        shape, sizes = list(self.shape), list(self.window)
        shape[axis], sizes[axis] = size, window
        return Place(tuple(shape), tuple(sizes), moved)


def _flat(start: Tensor, window: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Row-major indices (R, *window) into an array of that shape; its size where an index is out of range."""
    rank, everything = len(shape), math.prod(shape)
    small = torch.int32 if rank * everything < 2**31 else torch.int64  # gathers are twice as fast
    flat = start.new_zeros((), dtype=small)
    for axis, (size, count) in enumerate(zip(shape, window, strict=True)):
        step = start[:, axis, None] + torch.arange(count, device=start.device)
        part = torch.where((step >= 0) & (step < size), step * math.prod(shape[axis + 1 :]), everything)
        flat = flat + part.to(small).reshape(len(start), *(1,) * axis, count, *(1,) * (rank - axis - 1))
    return flat.clamp_(max=everything).expand(len(start), *window)


def _unravelled(index: Tensor, shape: Sequence[int]) -> Tensor:
    """The index along each axis (.., axes) of row-major indices (..) into an array of that shape."""
    strides = index.new_tensor([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])
    return index[..., None].div(strides, rounding_mode="floor") % index.new_tensor(shape)


# 3. Blocks


@dataclass(frozen=True, eq=False)
class Block:
    """Rows over a node: values (K, M, R, *window) at a place, or (K, M, R, *shape of the node) if there is none.

    Values at indices that the node does not have are 0.
    """

    values: Tensor
    place: Place | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the node that the rows are over."""
        return tuple(self.values.shape[3:]) if self.place is None else self.place.shape

    @property
    def whole(self) -> Tensor:
        """The rows themselves, (K, M, R, *shape of the node)."""
        return self.values if self.place is None else self._within(_everything(self.place))

    @property
    def flat(self) -> Tensor:
        """The rows themselves, (K, M, R, elements of the node)."""
        return self.whole.reshape(*self.values.shape[:3], -1)

    def holding(self, values: Tensor) -> Block:
        """A block with other values at the same place."""
        return replace(self, values=values)

    def abs(self) -> Block:
        """The block of the absolute values."""
        return self.holding(self.values.abs())

    def see(self, z: Tensor) -> Tensor:
        """What of z (K or 1, M or 1, *shape, that broadcasts) each row meets, to be multiplied with the values."""
        return z[:, :, None] if self.place is None else self.place.see(z)

    def dot(self, z: Tensor) -> Tensor:
        """(K, M, R): the rows at z (K or 1, M or 1, *shape)."""
        return self.dots([z])[0]

    def dots(self, vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`dot` with each of several vectors."""
        if self.place is None:
            return _dots(self.values, vectors)
        return tuple((self.values * self.see(z)).flatten(3).sum(-1) for z in vectors)

    def plus(self, other: Block) -> Block:
        """The sum of two blocks over one node."""
        mine, theirs = self.place, other.place
        if mine is theirs or (mine and theirs and mine.same(theirs)):
            return self.holding(self.values + other.values)
        if mine is None or theirs is None:
            return Block(self.whole + other.whole)
        start = torch.minimum(mine.start, theirs.start)
        ends = (place.start + place.start.new_tensor(place.window) for place in (mine, theirs))
        window = tuple((torch.maximum(*ends) - start).amax(0).tolist())
        place = Place(mine.shape, window, start)
        return _zeroed_outside(self._within(place) + other._within(place), place)

    def over(self, shape: torch.Size) -> Block:
        """Sum over the axes along which `shape` (of the same rank) was broadcast."""
        axes = [axis for axis, (full, part) in enumerate(zip(self.shape, shape, strict=True)) if part == 1 != full]
        if not axes:
            return self
        values, place = self.values.sum([3 + axis for axis in axes], keepdim=True), self.place
        for axis in axes:
            place = None if place is None else place.replaced(axis, 1, 1, 0)
        return Block(values, place)

    def spanning(self, axis: int) -> Block:
        """The block with windows that span all of an axis of the node, and zeros where the rows had none."""
        place = self.place
        if place is None or (place.window[axis] == place.shape[axis] and not bool(place.start[:, axis].any())):
            return self
        wider = place.replaced(axis, place.shape[axis], place.shape[axis], 0)
        return _zeroed_outside(self._within(wider), wider)

    def with_last(self, values: Tensor) -> Block:
        """Rows over a node that has one axis more, its last: values (K, M, R, *window, its size)."""
        if self.place is None:
            return Block(values)
        size, place = values.shape[-1], self.place
        start = torch.cat([place.start, torch.zeros_like(place.start[:, :1])], 1)
        return Block(values, Place((*place.shape, size), (*place.window, size), start))

    def _within(self, place: Place) -> Tensor:
        """Values at a place that holds all indices of this one that the node has."""
        if self.place is None:
            raise TypeError("whole rows are within no window")
        index = _flat(self.place.start - place.start, self.place.window, place.window).flatten(1).long()
        lead, size = self.values.shape[:3], math.prod(place.window)
        index = index.expand(*lead, -1)
        return (
            self.values.new_zeros(*lead, size + 1)
            .scatter(-1, index, self.values.flatten(3))[..., :size]
            .reshape(*lead, *place.window)
        )


def _everything(place: Place) -> Place:
    return Place(place.shape, place.shape, torch.zeros_like(place.start))


WHOLE_SHARE = 0.5
"""Largest share of a node that windows may have; beyond, they become whole rows."""


def _zeroed_outside(values: Tensor, place: Place) -> Block:
    """A block of values some of which may be at indices that the node does not have: they are 0 there."""
    if not place.inside:
        values = torch.where(place.index < math.prod(place.shape), values, 0.0)
    block = Block(values, place)
    return Block(block.whole) if math.prod(place.window) > WHOLE_SHARE * math.prod(place.shape) else block


def units(
    index: Tensor, shape: tuple[int, ...], lead: tuple[int, int], like: Tensor, sides: Sequence[int] = (0, 1)
) -> Block:
    """The rows e_i for elements i of a node of that shape (side 0), and -e_i (side 1): windows of one element."""
    one = like.new_tensor([1.0, -1.0])[list(sides)].repeat_interleave(len(index))
    if not shape:
        return Block(one.expand(*lead, -1))
    start = _unravelled(index, shape).repeat(len(sides), 1)
    values = one.reshape(1, 1, -1, *(1,) * len(shape)).expand(*lead, *[-1] * (1 + len(shape)))
    return _zeroed_outside(values, Place(shape, (1,) * len(shape), start))


# 4. Maps, backwards


def single(node: WeightedMap, a: Block) -> bool:
    """Rows that start at one unit of a convolution each: they use every weight once."""
    return isinstance(node, Conv) and a.place is not None and math.prod(a.place.window) == 1


def adjoint(node: WeightedMap, weight: Tensor, a: Block, shape: tuple[int, ...]) -> Block:
    """The transposed map of a weight (K or 1, *parameter shape): rows over the input, which has that shape."""
    if a.place is None:
        return Block(over_rows(lambda flat: maps.adjoint(node, weight, flat, shape), a.values))
    match node:
        case Scale():
            return a.holding(a.values * a.see(weight.reshape(len(weight), 1, *_aligned(weight, len(node.shape)))))
        case Linear():
            if (a := a.spanning(node.axis)).place is None:
                return adjoint(node, weight, a, shape)
            size = shape[node.axis]
            values = over_rows(lambda flat: maps.adjoint(node, weight, flat, shape), a.values)
            return _zeroed_outside(values, a.place.replaced(node.axis, size, size, 0))
        case Conv():
            return _from_units(node, weight, a, shape) if single(node, a) else _convolved_back(node, weight, a, shape)


def _aligned(weight: Tensor, rank: int) -> tuple[int, ...]:
    return (*(1,) * (rank - weight.dim() + 1), *weight.shape[1:])


def _convolved_back(node: Conv, weight: Tensor, a: Block, shape: tuple[int, ...]) -> Block:
    """Every window becomes that of all inputs that it reads."""
    if (a := a.spanning(1)).place is None:
        return adjoint(node, weight, a, shape)
    values = over_rows(lambda flat: maps.spread_window(node, weight, flat), a.values)
    place = _below(node, a.place, shape)
    start = place.start.clone()
    start[:, 1] = 0
    return _zeroed_outside(values, Place(shape, tuple(values.shape[3:]), start))


def _from_units(node: Conv, weight: Tensor, a: Block, shape: tuple[int, ...]) -> Block:
    """A row at one unit: its coefficients are the kernel of its channel, times its coefficient."""
    if a.place is None:
        raise TypeError("whole rows are no units")
    kernel = weight
    if node.dilations != (1, 1):
        high, wide = ((size - 1) * step + 1 for size, step in zip(weight.shape[-2:], node.dilations, strict=True))
        kernel = weight.new_zeros(*weight.shape[:3], high, wide)
        kernel[..., :: node.dilations[0], :: node.dilations[1]] = weight
    channel = a.place.start[:, 1].clamp(0, len(weight[0]) - 1)  # what is outside of the node is 0, whatever the kernel
    rows = kernel[:, channel][:, None, :, None]  # (K or 1, 1, R, 1, C / groups, height, width)
    place = _below(node, a.place, shape)
    return _zeroed_outside(a.values * rows, Place(shape, (1, *kernel.shape[2:]), place.start))


def _below(node: Conv, place: Place, shape: tuple[int, ...]) -> Place:
    """Windows over a convolution's input, starting where windows over its output begin to read; they keep the size of
    the latter, which the caller replaces.
    """
    batch, channel, *at = place.start.unbind(-1)
    outputs, inputs = node.weight.shape[:2]
    first = channel.div(outputs // node.groups, rounding_mode="floor") * inputs
    rows, columns = (side * stride - pad for side, stride, pad in zip(at, node.strides, node.pads[:2], strict=True))
    return Place(shape, place.window, torch.stack([batch, first, rows, columns], -1))


def select_back(node: Select, a: Block, shape: tuple[int, ...]) -> Block:
    """Each entry gets the sum of what its copies have. The window is the box around the entries that are read."""
    if a.place is None:
        return Block(maps.select_back(node, a.values, shape))
    table = torch.as_tensor(node.index, device=a.values.device).reshape(-1)
    read = torch.cat([table, table.new_tensor([-1])])[a.place.index.flatten(1).long()]  # (R, window); -1: nothing
    known = read >= 0
    at = _unravelled(read.clamp(min=0), shape)
    far = torch.tensor(shape, device=at.device)
    least = torch.where(known[..., None], at, far).amin(1)
    least = torch.where(known.any(1, keepdim=True), least, 0)
    most = torch.where(known[..., None], at, least[:, None]).amax(1)
    place = Place(shape, tuple((most - least + 1).amax(0).tolist()), least)
    strides = [math.prod(place.window[axis + 1 :]) for axis in range(len(shape))]
    size = math.prod(place.window)
    index = torch.where(known, ((at - least[:, None]) * at.new_tensor(strides)).sum(-1), size)
    lead = a.values.shape[:3]
    values = a.values.new_zeros(*lead, size + 1).scatter_add(-1, index.expand(*lead, -1), a.values.flatten(3))
    return _zeroed_outside(values[..., :size].reshape(*lead, *place.window), place)


def reshaped(a: Block, shape: tuple[int, ...]) -> Block:
    """Rows over the node before it was reshaped. Windows stay if of one element, or if axes of length 1 come or go."""
    place = a.place
    if place is None:
        return Block(a.values.reshape(*a.values.shape[:3], *shape))
    if math.prod(place.window) == 1 and place.inside:
        start = _unravelled(place.index.flatten().long(), shape)
        return Block(a.values.reshape(*a.values.shape[:3], *(1,) * len(shape)), Place(shape, (1,) * len(shape), start))
    mine = [axis for axis, size in enumerate(place.shape) if size != 1]
    if [place.shape[axis] for axis in mine] != [size for size in shape if size != 1] or not place.inside:
        return Block(a.whole.reshape(*a.values.shape[:3], *shape))
    kept = iter(mine)
    order = [next(kept) if size != 1 else -1 for size in shape]
    window = tuple(place.window[axis] if axis >= 0 else 1 for axis in order)
    none = torch.zeros_like(place.start[:, :1])
    start = torch.cat([place.start, none], 1)[:, order]
    return Block(a.values.reshape(*a.values.shape[:3], *window), Place(shape, window, start))


def transposed(a: Block, perm: Sequence[int]) -> Block:
    """Rows over the node before its axes were permuted."""
    inverse = sorted(range(len(perm)), key=perm.__getitem__)
    values = a.values.permute(0, 1, 2, *(axis + 3 for axis in inverse))
    return Block(values, None if a.place is None else a.place.moved(inverse))


def parted(a: Block, axis: int, shapes: Sequence[tuple[int, ...]]) -> list[Block]:
    """The parts of rows over a concatenation that go to its branches, which have these shapes."""
    place, sizes = a.place, [shape[axis] for shape in shapes]
    if place is None:
        return [Block(part) for part in a.values.split(sizes, axis + 3)]
    parts, first = [], 0
    for size, shape in zip(sizes, shapes, strict=True):
        moved = place.replaced(axis, size, place.window[axis], place.start[:, axis] - first)
        parts.append(_zeroed_outside(a.values, Place(shape, moved.window, moved.start)))
        first += size
    return parts


def broadcast_back(a: Block, shape: tuple[int, ...]) -> Block:
    """Sum over the copies of a node of that shape."""
    new = len(a.shape) - len(shape)
    tied = a.over(torch.Size((1,) * new + shape))
    values = tied.values.reshape(*tied.values.shape[:3], *tied.values.shape[3 + new :])
    place = tied.place
    return Block(values, None if place is None else Place(shape, place.window[new:], place.start[:, new:]))
