"""Witnesses as serialised tensors, a file a variable: what `--serialise-assignments` of VNN-LIB 2.x asks for."""

from __future__ import annotations

from pathlib import Path

from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.vnncomp import check_writable
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.result import Witness
from bnn_vnnlib.signature import Signature


def make_folder(folder: Path) -> None:
    """Make sure, before any work, that files can be written there; InputError if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made: {error.strerror}", path=folder) from None
    check_writable(folder / "X.pb")


def write_assignments(folder: Path, witness: Witness, prop: Property, model: Signature) -> list[Path]:
    """Write VARIABLE.pb (an ONNX TensorProto) for every declared variable.

    Parameters
    ----------
    folder : see `make_folder`
    witness : x and y, flattened in the order of declaration
    prop : declares the names and shapes
    model : has the element types, which a property with `real` variables leaves open

    Raises
    ------
    InputError : a file cannot be written
    """
    from onnx import numpy_helper

    written = []
    sides = ((witness.x, prop.signature.inputs, model.inputs), (witness.y, prop.signature.outputs, model.outputs))
    tensors: dict[str, NDArray] = dict(zip((node.name for node in prop.hidden), witness.hidden, strict=True))
    for values, declared, actual in sides:
        start = 0
        for variable, tensor in zip(declared, actual, strict=True):
            piece = values[start : start + variable.size].reshape(variable.shape)
            tensors[variable.name] = piece.astype(tensor.element_type)
            start += variable.size
    for name, piece in tensors.items():
        written.append(folder / f"{name}.pb")
        data = numpy_helper.from_array(piece, name).SerializeToString()
        try:
            written[-1].write_bytes(data)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", path=written[-1]) from None
    return written
