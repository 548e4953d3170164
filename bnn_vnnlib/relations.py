"""Questions about two networks, or two inputs of one, written as VNN-LIB 2.0: may it fall, may it tell them apart?

Each function gives a `Relation`: what must hold in words, and the property whose violation is its negation, for
`verify((f, g), relation.property)`. Numbers are decimals, written as one reads them (0.1 is a tenth).

1. `monotone`: an output never falls (or rises) as one input grows and all others stay.
2. `fair`: outputs differ by at most delta where the sensitive inputs differ, and all others by at most eps.
3. `global_robustness`: the same without sensitive inputs, for all inputs of a box and not at one point.
4. `equivalent`: two networks differ by at most delta at every input of a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from numpy.typing import ArrayLike

from bnn_vnnlib.errors import OptionError, names_arguments
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.requirements import Number, decimal, declared, numbers
from bnn_vnnlib.signature import Signature

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model


@dataclass(frozen=True)
class Relation:
    """What must hold of two networks.

    Attributes
    ----------
    says : in words
    text : VNN-LIB 2.0; it describes the violation
    """

    says: str
    text: str

    @cached_property
    def property(self) -> Property:
        """The text, read."""
        from bnn_vnnlib.vnnlib import parse_property

        return parse_property(self.text)


@names_arguments
def monotone(
    model: Model, lower: ArrayLike, upper: ArrayLike, input: int, output: int = 0, *, decreasing: bool = False  # noqa: A002
) -> Relation:  # fmt: skip
    """Output `output` never falls as input `input` grows in the box and all others stay (`decreasing`: never rises).

    Parameters
    ----------
    lower, upper : of the inputs, n numbers each or one for all

    Raises
    ------
    OptionError : numbers or places that do not fit the model
    """
    pair = _Pair.of(model.network.signature, lower, upper)
    x, u = pair.inputs
    _check("input", input, len(x))
    _check("output", output, len(pair.outputs[0]))
    asserts = [*pair.same(i for i in range(len(x)) if i != input), f"(>= {x[input]} {u[input]})"]
    asserts.append(f"(>= {u[input]} {pair.lower[input]:f})")
    y, v = (side[output] for side in pair.outputs)
    says = f"output {output} never {'rises' if decreasing else 'falls'} as input {input} grows and all others stay"
    return pair.relation(says, "equal-to", asserts, [f"({'>' if decreasing else '<'} {y} {v})"])


@names_arguments
def fair(
    model: Model, lower: ArrayLike, upper: ArrayLike, sensitive: int | Sequence[int], eps: Number | ArrayLike,
    delta: Number, outputs: Sequence[int] | None = None,
) -> Relation:  # fmt: skip
    """Two inputs of the box that differ anyhow in the sensitive ones, and by at most `eps` in each other one, have
    outputs that differ by at most `delta`: individual fairness.

    Parameters
    ----------
    eps : one number, or n of which those of sensitive inputs do not count
    outputs : which; None: all

    Raises
    ------
    OptionError : numbers or places that do not fit the model
    """
    pair = _Pair.of(model.network.signature, lower, upper)
    free = [sensitive] if isinstance(sensitive, int) else list(sensitive)
    for i in free:
        _check("input", i, len(pair.lower))
    differ = (
        f"in {', '.join(map(str, free))}, and by at most {_shown(eps)} elsewhere"
        if free
        else f"by at most {_shown(eps)}"
    )
    says = f"inputs that differ {differ} have outputs that differ by at most {delta}"
    rest = [i for i in range(len(pair.lower)) if i not in free]
    return pair.relation(says, "equal-to", [*pair.box(), *pair.near(rest, eps)], pair.apart(delta, outputs))


@names_arguments
def global_robustness(
    model: Model, lower: ArrayLike, upper: ArrayLike, eps: Number | ArrayLike, delta: Number,
    outputs: Sequence[int] | None = None,
) -> Relation:  # fmt: skip
    """Any two inputs of the box that differ by at most `eps` in each number have outputs that differ by at most
    `delta`; parameters as of `fair`."""
    return fair(model, lower, upper, (), eps, delta, outputs)


@names_arguments
def equivalent(
    first: Model, second: Model, lower: ArrayLike, upper: ArrayLike, delta: Number,
    outputs: Sequence[int] | None = None, *, relation: Literal["isomorphic-to", "equal-to", None] = "isomorphic-to",
) -> Relation:  # fmt: skip
    """Two networks have outputs that differ by at most `delta`, at every input of the box.

    Parameters
    ----------
    relation : as VNN-LIB has it; None for graphs that do not correspond
    outputs : which; None: all

    Raises
    ------
    OptionError : numbers that do not fit the models, or models of different shapes
    """
    one, other = (
        [variable.shape for variable in (*model.network.signature.inputs, *model.network.signature.outputs)]
        for model in (first, second)
    )
    if one != other:
        raise OptionError(f"the networks have inputs and outputs of other shapes: {one} and {other}")
    pair = _Pair.of(first.network.signature, lower, upper)
    says = f"both networks have outputs that differ by at most {delta} at every input"
    return pair.relation(says, relation, pair.same(range(len(pair.lower))), pair.apart(delta, outputs))


@dataclass(frozen=True)
class _Pair:
    """Names of the inputs and outputs of both networks, and the box of x_f."""

    declarations: tuple[list[str], list[str]]
    inputs: tuple[list[str], list[str]]
    outputs: tuple[list[str], list[str]]
    lower: list
    upper: list

    @classmethod
    def of(cls, signature: Signature, lower: ArrayLike, upper: ArrayLike) -> _Pair:
        """Two copies of a network's variables over one box of inputs; refuses ends that do not fit."""
        n, m = signature.input_size, signature.output_size
        low, high = numbers(lower, n, "the lower end of the inputs"), numbers(upper, n, "the upper end of the inputs")
        for i, (a, b) in enumerate(zip(low, high, strict=True)):
            if a > b:
                raise OptionError(f"input {i} must lie between {a} and {b}: there is no such number")
        found = [declared(signature, n, m, name) for name in ("f", "g")]
        lines, names = zip(*found, strict=True)
        return cls((lines[0], lines[1]), (names[0][0], names[1][0]), (names[0][1], names[1][1]), low, high)

    def box(self) -> list[str]:
        """x_g is in the box of x_f."""
        ends = zip(self.inputs[1], self.lower, self.upper, strict=True)
        return [text for name, low, high in ends for text in (f"(>= {name} {low:f})", f"(<= {name} {high:f})")]

    def same(self, which: object) -> list[str]:
        """These inputs are equal."""
        x, u = self.inputs
        return [f"(== {x[i]} {u[i]})" for i in which]  # type: ignore[attr-defined]

    def near(self, which: Sequence[int], eps: Number | ArrayLike) -> list[str]:
        """These inputs differ by at most eps."""
        x, u = self.inputs
        size = numbers(eps, len(x), "eps")
        if min(size) < 0:
            raise OptionError(f"eps must not be negative, found {min(size)}")
        found = [
            (f"(<= (- {x[i]} {u[i]}) {size[i]:f})", f"(<= (- {u[i]} {x[i]}) {size[i]:f})") for i in which if size[i]
        ]
        return [*self.same(i for i in which if not size[i]), *(text for pair in found for text in pair)]

    def apart(self, delta: Number, outputs: Sequence[int] | None) -> list[str]:
        """Some of these outputs differ by more than delta."""
        y, v = self.outputs
        size, which = decimal(delta, "delta"), range(len(y)) if outputs is None else outputs
        if size < 0:
            raise OptionError(f"delta must not be negative, found {size}")
        for i in which:
            _check("output", i, len(y))
        return [f"(> (- {a[i]} {b[i]}) {size:f})" for i in which for a, b in ((y, v), (v, y))]

    def relation(self, says: str, word: str | None, inputs: Sequence[str], cases: Sequence[str]) -> Relation:
        """The whole text: the box of x_f, what the inputs have to do with each other, and the cases of V."""
        lines = ["(vnnlib-version <2.0>)", f"; Required: {says}.", "; This is the violation.", *self.declarations[0]]
        second = list(self.declarations[1])
        if word is not None:
            second.insert(1, f"    ({word} f)")
        lines += second
        ends = zip(self.inputs[0], self.lower, self.upper, strict=True)
        lines += [f"(assert (and (>= {name} {low:f}) (<= {name} {high:f})))" for name, low, high in ends]
        lines += [f"(assert {text})" for text in inputs]
        lines.append(f"(assert {cases[0] if len(cases) == 1 else f'(or {chr(32).join(cases)})'})")
        return Relation(says, "\n".join(lines) + "\n")


def _shown(eps: Number | ArrayLike) -> str:
    """A size in words: one number, or the range of several."""
    sizes = numbers(eps, None, "eps")
    return f"{sizes[0]:f}" if len(sizes) == 1 else f"{min(sizes):f} to {max(sizes):f}"


def _check(what: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise OptionError(f"there is no {what} {index}: the network has {size}, numbered from 0")
