"""A property against the signature of a model: by order, counts, shapes and element types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bnn_vnnlib.errors import PropertyError
from bnn_vnnlib.property import Property
from bnn_vnnlib.signature import Signature, Variable

_FLOATS = ("float32", "float64")


def match(property: Property, signature: Signature, path: str | Path | None = None) -> Property:  # noqa: A002
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
    if property.version[0] == 1:
        _match_flat(property, signature, path)
        return property
    pairs = []
    for what, declared, actual in (
        ("input", property.signature.inputs, signature.inputs),
        ("output", property.signature.outputs, signature.outputs),
    ):
        if len(declared) != len(actual):
            message = (
                f"the property declares {_count(len(declared), what)} ({_names(declared)}), "
                f"the model has {_count(len(actual), what)} ({_names(actual)})"
            )
            raise PropertyError(message, path=path)
        pairs += zip([what] * len(declared), declared, actual, strict=True)
    notes = [note for what, one, other in pairs for note in _match_tensor(what, one, other, path)]
    return replace(property, notes=(*property.notes, *notes))


def _match_flat(property: Property, signature: Signature, path: str | Path | None) -> None:  # noqa: A002
    for what, letter, declared, actual in (
        ("input", "X", property.signature.inputs[0], signature.inputs),
        ("output", "Y", property.signature.outputs[0], signature.outputs),
    ):
        if len(actual) != 1:
            message = (
                f"a VNN-LIB 1.0 property needs a model with one {what}, this one has {len(actual)} ({_names(actual)}); "
                "write the property in VNN-LIB 2.x"
            )
            raise PropertyError(message, path=path)
        model = actual[0]
        if model.element_type not in _FLOATS:
            message = f"model {what} {model.name} has element type {model.element_type}, expected float32 or float64"
            raise PropertyError(message, path=path)
        if declared.size != model.size:
            message = (
                f"the property declares {_count(declared.size, what)} {letter}_0 to {letter}_{declared.size - 1}, the "
                f"model's {what} {model.name} {list(model.shape)} has {model.size} elements"
            )
            raise PropertyError(message, path=path)


def _match_tensor(what: str, declared: Variable, actual: Variable, path: str | Path | None) -> list[str]:
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
