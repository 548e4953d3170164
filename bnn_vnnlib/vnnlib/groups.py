"""A property against the signature of a model, by order, counts, shapes and element types; `Groups`, lists as arrays.

1. `match` holds the tensors that a property declares against those of a model, and names what differs.
2. `Groups` keeps many short lists of whole numbers as two arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np

from bnn_vnnlib.arrays import Flags, Ints
from bnn_vnnlib.errors import PropertyError
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.signature import Signature, Variable

# 1. A property against a model

_FLOATS = ("float32", "float64")


def match(property: Property, signature: Signature, path: str | Path | None = None) -> Property:
    """The property, if it fits a model; with a note where a shape is written differently.

    Parameters
    ----------
    property : from `read_property` or `parse_property`
    signature : of the model
    path : the property's file, for messages

    Raises
    ------
    PropertyError : tensors differ in number, size, shape or element type
    """
    notes = compare_signatures(property.version, property.signature, signature, path)
    return replace(property, notes=(*property.notes, *notes)) if notes else property


def compare_signatures(
    version: tuple[int, int], declared: Signature, actual: Signature, path: str | Path | None
) -> list[str]:
    """Notes on shapes that are written differently; PropertyError where the declared tensors are not the model's."""
    every = version[0] > 1 and len(declared.outputs) == len(actual.every_output)
    outputs = actual.every_output if every else actual.outputs
    sides = (("input", declared.inputs, actual.inputs), ("output", declared.outputs, outputs))
    if version[0] == 1:
        for what, (variable,), models in sides:
            _match_flat(what, variable, models, path)
        return []
    for what, variables, models in sides:
        if len(variables) != len(models):
            message = (
                f"the property declares {_count(len(variables), what)} ({_names(variables)}), "
                f"the model has {_count(len(models), what)} ({_names(models)})"
            )
            raise PropertyError(message, path=path)
    pairs = [(what, *pair) for what, variables, models in sides for pair in zip(variables, models, strict=True)]
    return [note for what, variable, model in pairs for note in match_tensor(what, variable, model, path)]


def _match_flat(what: str, declared: Variable, models: tuple[Variable, ...], path: str | Path | None) -> None:
    """Check that the one variable of a 1.0 file fits the one of the model, in type and size."""
    if len(models) != 1:
        message = (
            f"a VNN-LIB 1.0 property needs a model with one {what}, this one has {len(models)} ({_names(models)}); "
            "write the property in VNN-LIB 2.x"
        )
        raise PropertyError(message, path=path)
    model = models[0]
    if model.element_type not in _FLOATS:
        message = f"model {what} {model.name} has element type {model.element_type}, expected float32 or float64"
        raise PropertyError(message, path=path)
    if declared.size != model.size:
        message = (
            f"the property declares {_count(declared.size, what)} {declared.name}_0 to {declared.name}_"
            f"{declared.size - 1}, the model's {what} {model.name} {list(model.shape)} has {model.size} elements"
        )
        raise PropertyError(message, path=path)


def match_tensor(what: str, declared: Variable, actual: Variable, path: str | Path | None) -> list[str]:
    """Notes on the shape of one tensor, which must be the model's (PropertyError); `what` it is, for the message."""
    if declared.element_type not in ("real", actual.element_type):
        message = (
            f"{what} {declared.name} is declared {declared.element_type}, the model's {actual.name} is "
            f"{actual.element_type}; declare that, or real for all tensors"
        )
        raise PropertyError(message, path=path)
    if declared.shape == actual.shape:
        return []
    shapes = f"{what} {declared.name} is declared {list(declared.shape)}, the model's {actual.name} is "
    shapes += f"{list(actual.shape)}"
    same = [size for size in declared.shape if size != 1] == [size for size in actual.shape if size != 1]
    flat = len(declared.shape) == 1 and declared.size == actual.size
    if not (same or flat):
        raise PropertyError(f"{shapes}; the shapes must agree", path=path)
    return [f"{shapes}: matched element by element, row-major"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _names(variables: tuple[Variable, ...]) -> str:
    return ", ".join(variable.name for variable in variables)


# 2. Many short lists as two arrays


def first_and_number(keys: Ints) -> tuple[Ints, Ints]:
    """Index of the first occurrence of each distinct key, in the order of the keys; for each key its number among
    these.

    What np.unique gives for return_index and return_inverse; most properties are so small that its overhead counts.
    """
    order = keys.argsort(kind="stable")
    new = _new(keys[order])
    number = np.empty(len(keys), np.int64)
    number[order] = new.cumsum() - 1
    return order[new], number


def _counted(flags: Flags) -> Ints:
    """How many of the flags before each place are true (len(flags) + 1,)."""
    counted = np.zeros(len(flags) + 1, np.int64)
    np.add.accumulate(flags, out=counted[1:])
    return counted


def _new(ordered: Ints) -> Flags:
    """Which entries of a sorted array differ from the one before."""
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return new


@dataclass(frozen=True, eq=False)
class Groups:
    """G lists: list g is items[starts[g] : starts[g + 1]].

    Attributes
    ----------
    starts : (G + 1,) nondecreasing, from 0
    items : (starts[-1],)
    """

    starts: Ints
    items: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Groups:
        """Groups with the items of these lists."""
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        return cls.of_lengths(lengths, np.array([item for one in lists for item in one], np.int64))

    @classmethod
    def one(cls, items: Ints) -> Groups:
        """Groups of a single list."""
        return cls(np.array([0, len(items)]), items)

    @classmethod
    def of_lengths(cls, lengths: Ints, items: Ints) -> Groups:
        """Groups from the lengths of the lists (G,) and their items, one list after the other."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.add.accumulate(lengths, out=starts[1:])
        return cls(starts, items)

    @classmethod
    def chain(cls, parts: Sequence[Groups]) -> Groups:
        """All lists of all parts."""
        if len(parts) == 1:
            return parts[0]
        lengths = [part.lengths for part in parts]
        empty = np.zeros(0, np.int64)
        return cls.of_lengths(np.concatenate([empty, *lengths]), np.concatenate([empty, *(p.items for p in parts)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        """Lengths (G,) of the lists."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def owner(self) -> Ints:
        """The list of each item."""
        return np.arange(len(self)).repeat(self.lengths)

    def part(self, start: int, stop: int) -> Groups:
        """Those of the lists that have the numbers start, ..., stop - 1."""
        starts = self.starts[start : stop + 1]
        return Groups(starts - starts[0], self.items[starts[0] : starts[-1]])

    def places(self, which: Ints) -> Groups:
        """Positions in `items` of the items of the lists with these numbers, a list for each."""
        lengths = self.lengths[which]
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.add.accumulate(lengths, out=starts[1:])
        return Groups(starts, np.arange(starts[-1]) + (self.starts[which] - starts[:-1]).repeat(lengths))

    def take(self, which: Ints) -> Groups:
        """The lists with these numbers, in this order; a list may be taken several times."""
        places = self.places(which)
        return Groups(places.starts, self.items[places.items])

    def copies(self, count: int) -> Groups:
        """Groups in which all lists occur `count` times, one copy of them after the other."""
        if count == 1:
            return self
        lengths, items = np.empty((count, len(self)), np.int64), np.empty((count, len(self.items)), np.int64)
        lengths[:], items[:] = self.lengths, self.items
        return Groups.of_lengths(lengths.reshape(-1), items.reshape(-1))

    def where(self, keep: Flags) -> Groups:
        """The items for which `keep` (of the length of `items`) is true."""
        return Groups(_counted(keep)[self.starts], self.items[keep])

    def count(self, flags: Flags) -> Ints:
        """Numbers (G,) of items of each list for which `flags` (of the length of `items`) is true."""
        ends = _counted(flags)[self.starts]
        return ends[1:] - ends[:-1]

    def beside(self, other: Groups) -> Groups:
        """List g of this followed by list g of the other."""
        if not len(self.items) or not len(other.items):
            return self if len(self.items) else other
        items = np.empty(len(self.items) + len(other.items), np.int64)
        items[np.arange(len(self.items)) + other.starts[:-1].repeat(self.lengths)] = self.items
        items[np.arange(len(other.items)) + self.starts[1:].repeat(other.lengths)] = other.items
        return Groups(self.starts + other.starts, items)

    def times(self, other: Groups) -> Groups:
        """Each list followed by each of the other's lists."""
        if len(self) == 1:
            return self.copies(len(other)).beside(other)
        first = np.arange(len(self)).repeat(len(other))
        return self.take(first).beside(other.copies(len(self)))

    def distinct(self) -> Groups:
        """Each list without repetitions, in the order of first appearance."""
        keep = np.zeros(len(self.items), np.bool_)
        keep[first_and_number(self._keys())[0]] = True
        return self if keep.all() else self.where(keep)

    def numbered(self, labels: Ints | None = None) -> Ints:
        """A number for each list (G,), by first use: equal where the labels (G,) and the sets of items are equal."""
        if len(self) == 1:
            return np.zeros(1, np.int64)
        keys = np.sort(self._keys())
        keys = keys[_new(keys)]
        owner, items = np.divmod(keys, self._span)
        ends = (8 * np.bincount(owner, minlength=len(self)).cumsum()).tolist()
        data = items.tobytes()
        numbers: dict[tuple[int, bytes], int] = {}
        spans = zip(repeat(0) if labels is None else labels.tolist(), [0, *ends], ends, strict=False)
        return np.array([numbers.setdefault((label, data[a:b]), len(numbers)) for label, a, b in spans], np.int64)

    @property
    def _span(self) -> int:
        return int(self.items.max(initial=0)) + 1

    def _keys(self) -> Ints:
        """One number for each item and its list; lists and items are fewer than 2^31, so that it fits."""
        return self.owner * self._span + self.items
