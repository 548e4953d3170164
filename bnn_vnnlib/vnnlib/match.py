"""A property against the signature of a model: by order, counts, shapes and element types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bnn_vnnlib.errors import PropertyError
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.signature import Signature, Variable

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
    """As `compare_signatures`, for one tensor; `what` it is, for the message."""
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
