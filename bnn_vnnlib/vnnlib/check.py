"""What a property may refer to: its declarations, checked, and its constraints as arrays.

1. `ConstraintTable`: the constraints of a property, each distinct one once.
2. `Scope`: the names, shapes and element types that are declared; what each variable of an assertion stands for.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from bnn_vnnlib.arrays import Flags, Floats, Ints
from bnn_vnnlib.errors import PropertyError, UnsupportedError
from bnn_vnnlib.question.property import Polynomial, Second
from bnn_vnnlib.signature import Hidden, Signature, Variable
from bnn_vnnlib.vnnlib.groups import Groups
from bnn_vnnlib.vnnlib.tree import DeclaredNetwork, DeclaredTensor, Error, SourceText, SyntaxTree, read_literal

# 1. Constraints


@dataclass(frozen=True, slots=True)
class Constraint:
    """sum of values * variables <= exact (or < exact); down <= exact <= up.

    The only coefficient of a bound on one input is 1 or -1. `errors` holds, for input columns whose coefficient
    float64 cannot hold, how far the value is off at most. A constraint with products of inputs is its `polynomial`
    alone, and has no columns.
    """

    columns: tuple[int, ...]
    values: tuple[float, ...]
    strict: bool
    down: float
    up: float
    exact: Fraction
    errors: tuple[tuple[int, Fraction], ...] = ()
    polynomial: Polynomial | None = None


@dataclass(frozen=True, eq=False)
class ConstraintTable:
    """N constraints: values . variables <= b (or < b), down <= b <= up.

    Attributes
    ----------
    columns : the variables of each constraint
    values : of the length of `columns.items`
    strict, down, up : (N,)
    sides : b as written: the number of a literal where it is the constraint's whole right side, else -1; (N,)
    literals : the literals
    exact : b of the constraints without a literal
    errors, polynomials : as in `Constraint`, of the constraints that have some
    """

    columns: Groups
    values: Floats
    strict: Flags
    down: Floats
    up: Floats
    sides: Ints
    literals: Sequence[str]
    exact: Mapping[int, Fraction]
    errors: Mapping[int, tuple[tuple[int, Fraction], ...]]
    polynomials: Mapping[int, Polynomial] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.strict)

    def with_rows(self, rows: Sequence[Constraint]) -> ConstraintTable:
        """The table and these further constraints."""
        if not rows:
            return self
        first = len(self)
        return ConstraintTable(
            Groups.chain([self.columns, Groups.of([row.columns for row in rows])]),
            np.concatenate([self.values, np.array([value for row in rows for value in row.values], np.float64)]),
            np.concatenate([self.strict, np.array([row.strict for row in rows], np.bool_)]),
            np.concatenate([self.down, np.array([row.down for row in rows], np.float64)]),
            np.concatenate([self.up, np.array([row.up for row in rows], np.float64)]),
            np.concatenate([self.sides, np.full(len(rows), -1)]),
            self.literals,
            {first + i: row.exact for i, row in enumerate(rows)},
            {first + i: row.errors for i, row in enumerate(rows) if row.errors},
            {first + i: row.polynomial for i, row in enumerate(rows) if row.polynomial is not None},
        )

    def on_inputs(self, n: int) -> Flags:
        """Whether a constraint concerns nothing but the columns 0, ..., n - 1 (N,)."""
        return self.columns.count(self.columns.items >= n) == 0

    def right_side(self, i: int) -> Fraction:
        """b of a bound, exactly."""
        if self.sides[i] < 0:
            return self.exact[i]
        value = read_literal(self.literals[self.sides[i]])
        return value if self.values[self.columns.starts[i]] > 0 else -value


# 2. Declarations

_MAX_ELEMENTS = 10_000_000
_SPELLED = 100_000
_SUPPORTED_TYPES = ("real", "float32", "float64")
# The other element types of ONNX, so that a message can tell "not supported" from "unknown".
_OTHER_TYPE = re.compile(r"b?float\d+(e\d+m\d+(fn)?(uz)?)?|u?int\d+|bool|string|complex(64|128)")


@dataclass(frozen=True, eq=False)
class Scope(ABC):
    """The declared variables. A column numbers every scalar: all inputs 0..n-1, then all outputs n..n+m-1.

    Attributes
    ----------
    version, network, signature, second : as in `Property`
    notes : remarks for the user
    columns : column of each variable met so far, by its spelling
    hidden : hidden nodes
    """

    source: SourceText
    version: tuple[int, int]
    network: str | None
    signature: Signature
    notes: tuple[str, ...] = ()
    columns: dict[str, int] = field(default_factory=dict)
    hidden: tuple[Hidden, ...] = ()
    second: Second | None = None

    def column(self, atom: str, at: int) -> int:
        """Column of a variable, met in a comparison at the offset `at`; PropertyError or UnsupportedError."""
        found = self.columns.get(atom)
        if found is None:
            found = self.columns[atom] = self._resolve(atom, at)
        return found

    def name(self, column: int) -> str:
        """How a file spells the variable of this column."""
        offset = 0
        for variable in (*self.signature.inputs, *self.signature.outputs):
            if column < offset + variable.size:
                return self._spell(variable, column - offset)
            offset += variable.size
        raise IndexError(f"no variable has column {column}")

    def check_types(self, columns: set[int], at: int) -> None:
        """Refuse a comparison between tensors of different element types."""
        types = {variable.element_type for variable in map(self._variable, columns)}
        if len(types) > 1:
            listed = " and ".join(sorted(types))
            raise self.source.error(PropertyError, f"a comparison mixes the element types {listed}", at)

    @property
    def has_one_type(self) -> bool:
        """Whether all tensors have the same element type."""
        return len({variable.element_type for variable in (*self.signature.inputs, *self.signature.outputs)}) == 1

    def _variable(self, column: int) -> Variable:
        for variable in (*self.signature.inputs, *self.signature.outputs):
            if column < variable.size:
                return variable
            column -= variable.size
        raise IndexError("no variable has this column")

    def _error(self, kind: type[Error], message: str, atom: str, at: int) -> Error:
        return self.source.error(kind, message, self.source.find(atom, at))

    @abstractmethod
    def _resolve(self, atom: str, at: int) -> int:
        """Column of a variable that has not been met before."""

    @abstractmethod
    def _spell(self, variable: Variable, index: int) -> str:
        """Name of the element with this flat index."""


def check(query: SyntaxTree, source: SourceText) -> Scope:
    """Check the declarations of a file.

    Raises
    ------
    PropertyError : names, indices, shapes or element types are wrong or missing, or nothing is declared or asserted
    UnsupportedError : more than two networks, element types other than real, float32 and float64
    """
    if not query.assertions and not query.symbols and not query.networks:
        raise source.error(PropertyError, "no declarations and no assertions: the file is empty")
    if not query.assertions:
        raise source.error(PropertyError, "no assertions: the file says nothing about the network")
    return _check_symbols(query, source) if query.version[0] == 1 else _check_networks(query, source)


# VNN-LIB 1.0: X_0 ... X_{n-1} and Y_0 ... Y_{m-1}


class _Symbols(Scope):
    def _resolve(self, atom: str, at: int) -> int:
        inputs, outputs = (variable.size for variable in (self.signature.inputs[0], self.signature.outputs[0]))
        declared = f"X_0 to X_{inputs - 1} and Y_0 to Y_{outputs - 1} are"
        raise self._error(PropertyError, f"{atom} is not declared ({declared})", atom, at)

    def _spell(self, variable: Variable, index: int) -> str:
        return f"{variable.name}_{index}"


_SYMBOL = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})")


def _check_symbols(query: SyntaxTree, source: SourceText) -> Scope:
    """The scope of a 1.0 file; PropertyError where a constant is no X_i or Y_i, or one is missing."""
    indices: dict[str, dict[int, int]] = {"X": {}, "Y": {}}
    for symbol in query.symbols:
        match = _SYMBOL.fullmatch(symbol.name)
        if match is None:
            message = f"{symbol.name} is neither an input X_i nor an output Y_i; VNN-LIB 1.0 knows no other variables"
            raise source.error(PropertyError, message, symbol.at)
        if symbol.sort.lower() != "real":
            message = f"{symbol.name} is declared {symbol.sort}, expected Real"
            raise source.error(PropertyError, message, symbol.at)
        places, index = indices[match[1]], int(match[2])
        if index in places:
            message = f"{symbol.name} is declared twice, first in line {source.line(places[index])}"
            raise source.error(PropertyError, message, symbol.at)
        places[index] = symbol.at
    for letter, what in (("X", "input"), ("Y", "output")):
        _check_contiguous(letter, what, indices[letter], source)
    n, m = len(indices["X"]), len(indices["Y"])
    columns = {f"X_{i}": i for i in range(n)} | {f"Y_{i}": n + i for i in range(m)}
    signature = Signature((Variable("X", "real", (n,)),), (Variable("Y", "real", (m,)),))
    return _Symbols(source, (1, 0), None, signature, columns=columns)


def _check_contiguous(letter: str, what: str, places: dict[int, int], source: SourceText) -> None:
    if not places:
        raise source.error(PropertyError, f"no {what} is declared: expected (declare-const {letter}_0 Real) and so on")
    last = max(places)
    if last + 1 == len(places):
        return
    missing = next(index for index in range(last) if index not in places)
    message = f"{letter}_{last} is declared but {letter}_{missing} is not: the {what}s must be numbered 0, 1, 2, ..."
    raise source.error(PropertyError, message, places[last])


# VNN-LIB 2.x: one or two networks of named tensors


@dataclass(frozen=True, eq=False)
class _Tensors(Scope):
    """The scope of a 2.x file, whose variables are elements of declared tensors."""

    tensors: dict[str, tuple[DeclaredTensor, int]] = field(default_factory=dict)  # with the column of the first element

    def _resolve(self, atom: str, at: int) -> int:
        """Column of an element of a tensor; PropertyError where no such element is declared."""
        name, _, rest = atom.partition("[")
        if name not in self.tensors:
            declared = ", ".join(self.tensors)
            raise self._error(PropertyError, f"{name} is not declared (declared: {declared})", atom, at)
        tensor, offset = self.tensors[name]
        if tensor.kind == "hidden":
            message = f"{name} is a hidden node; only inputs and outputs may be constrained (theory NH)"
            raise self._error(UnsupportedError, message, atom, at)
        indices = rest.rstrip("]").split(",") if rest else []
        if len(indices) != len(tensor.shape):
            few = "NotEnoughIndices" if len(indices) < len(tensor.shape) else "TooManyIndices"
            shape = list(tensor.shape)
            count = f"{len(indices)} {'index' if len(indices) == 1 else 'indices'}"
            message = f"{few}: {atom} has {count}, {name} {shape} needs {len(shape)}"
            raise self._error(PropertyError, message, atom, at)
        flat = 0
        for text, size in zip(indices, tensor.shape, strict=True):
            index = int(text[:19])
            if len(text) > 19 or index >= size:
                message = f"IndexOutOfBounds: {atom}, but {name} has shape {list(tensor.shape)} (indices start at 0)"
                raise self._error(PropertyError, message, atom, at)
            flat = flat * size + index
        return offset + flat

    def _spell(self, variable: Variable, index: int) -> str:
        indices = []
        for size in reversed(variable.shape):
            index, rest = divmod(index, size)
            indices.append(str(rest))
        return f"{variable.name}[{','.join(reversed(indices))}]" if indices else variable.name


def _check_networks(query: SyntaxTree, source: SourceText) -> Scope:
    """The scope of a 2.x file, from the tensors of its networks."""
    _check_relations(query.networks, source)
    names = {network.name for network in query.networks}
    tensors: dict[str, tuple[DeclaredTensor, int]] = {}
    variables: dict[str, list[Variable]] = {"input": [], "output": [], "hidden": []}
    for network in query.networks:
        for tensor in network.tensors:
            if tensor.name in tensors or tensor.name in names:
                raise source.error(PropertyError, f"the name {tensor.name} is declared twice", tensor.at)
            variables[tensor.kind].append(_check_tensor(tensor, source))
            tensors[tensor.name] = (tensor, 0)
    offset = 0  # columns number the inputs of all networks before any output
    for variable, tensor in ((one, tensors[one.name][0]) for kind in ("input", "output") for one in variables[kind]):
        tensors[variable.name] = (tensor, offset)
        offset += variable.size
        if offset > _MAX_ELEMENTS:
            message = f"inputs and outputs have more than {_MAX_ELEMENTS} elements"
            raise source.error(UnsupportedError, message, tensor.at)
    signature = Signature(tuple(variables["input"]), tuple(variables["output"]))
    _check_mixture(query.networks[0], signature, source)
    hidden = tuple(
        Hidden(one.name, one.element_type, one.shape, tensors[one.name][0].node) for one in variables["hidden"]
    )
    second = _second(query.networks[0], query.networks[1], source) if len(query.networks) > 1 else None
    version = query.version
    notes = () if version[1] in (0, 1) else (f"VNN-LIB version 2.{version[1]} is read as 2.1",)
    name = query.networks[0].name
    return _Tensors(source, version, name, signature, notes, _spelled(tensors), hidden, second, tensors=tensors)


def _check_relations(networks: tuple[DeclaredNetwork, ...], source: SourceText) -> None:
    """A relation must lead to an earlier network without one; more than two networks are refused."""
    earlier: dict[str, DeclaredNetwork] = {}
    for network in networks:
        if network.name in earlier:
            raise source.error(PropertyError, f"the name {network.name} is declared twice", network.at)
        relation = network.relation
        if relation is not None:
            other = earlier.get(relation.name)
            if other is None or other.relation is not None:
                what = "is not declared before it" if other is None else "has a relation of its own"
                message = f"{network.name} is {relation.word} {relation.name}, which {what}"
                raise source.error(PropertyError, message, relation.at)
        earlier[network.name] = network
    if len(networks) > 2:
        names = ", ".join(network.name for network in networks)
        message = f"{len(networks)} networks ({names}) are not supported: two at most; write one file for each pair"
        raise source.error(UnsupportedError, message, networks[2].at)


def _second(first: DeclaredNetwork, network: DeclaredNetwork, source: SourceText) -> Second:
    """What is declared of the second network; PropertyError where it cannot be what its relation says."""

    def of_kind(network: DeclaredNetwork, kind: str) -> list[DeclaredTensor]:
        return [tensor for tensor in network.tensors if tensor.kind == kind]

    word = None if network.relation is None else network.relation.word
    if network.relation is not None:
        for kind in ("input", "output"):
            sides = [[_declared(tensor, word) for tensor in of_kind(one, kind)] for one in (first, network)]
            if sides[0] != sides[1]:
                shown = " and ".join(", ".join(side) or "none" for side in sides)
                message = f"{network.name} is {word} {first.name}, but their {kind}s differ: {shown}"
                raise source.error(PropertyError, message, network.relation.at)
    if word == "equal-to":
        nodes = {tensor.node: _declared(tensor, word) for tensor in of_kind(first, "hidden")}
        for tensor in of_kind(network, "hidden"):
            if nodes.get(tensor.node, _declared(tensor, word)) != _declared(tensor, word):
                message = f"{tensor.name} is {_declared(tensor, word)}, but {first.name} declares {tensor.node!r} "
                raise source.error(PropertyError, f"{message}as {nodes[tensor.node]}", tensor.at)
    return Second(network.name, word, *(len(of_kind(network, kind)) for kind in ("input", "hidden", "output")))


def _declared(tensor: DeclaredTensor, word: str | None) -> str:
    """What two related networks must have in common: shapes, and if they are equal the element types."""
    shape = str(list(tensor.shape))
    return f"{tensor.element_type} {shape}" if word == "equal-to" else shape


def _spelled(tensors: dict[str, tuple[DeclaredTensor, int]]) -> dict[str, int]:
    """Columns of the elements as files spell them nearly always; those of giant tensors are worked out when met."""
    columns: dict[str, int] = {}
    for name, (tensor, offset) in tensors.items():
        if tensor.kind != "hidden" and tensor.shape and math.prod(tensor.shape) <= _SPELLED:
            starts = [f"{name}["]
            for size in tensor.shape[:-1]:
                starts = [f"{start}{index}," for start in starts for index in range(size)]
            last = [f"{index}]" for index in range(tensor.shape[-1])]
            names = [start + end for start in starts for end in last]
            columns.update(zip(names, range(offset, offset + len(names)), strict=True))
    return columns


def _check_tensor(tensor: DeclaredTensor, source: SourceText) -> Variable:
    """The variable that a declared tensor stands for; refuses shapes and types that are not supported."""
    if tensor.initialized:
        message = f"{tensor.name}: inputs with an initial value (initialized) are not supported"
        raise source.error(UnsupportedError, message, tensor.at)
    if 0 in tensor.shape:
        message = f"{tensor.name} has shape {list(tensor.shape)}; every dimension must be at least 1"
        raise source.error(PropertyError, message, tensor.at)
    word = tensor.element_type.lower()
    known = f"{', '.join(_SUPPORTED_TYPES[:-1])} or {_SUPPORTED_TYPES[-1]}"
    if word not in _SUPPORTED_TYPES and _OTHER_TYPE.fullmatch(word):
        message = f"{tensor.name} has element type {tensor.element_type}, which is not supported; expected {known}"
        raise source.error(UnsupportedError, message, tensor.at)
    if word not in _SUPPORTED_TYPES or (word != "real" and word != tensor.element_type):
        message = f"{tensor.name} has unknown element type {tensor.element_type}; expected {known}"
        raise source.error(PropertyError, message, tensor.at)
    return Variable(tensor.name, word, tensor.shape)


def _check_mixture(network: DeclaredNetwork, signature: Signature, source: SourceText) -> None:
    types = {variable.element_type for variable in (*signature.inputs, *signature.outputs)}
    if "real" in types and len(types) > 1:
        message = "real must be the element type of all tensors or of none"
        raise source.error(PropertyError, message, network.at)
