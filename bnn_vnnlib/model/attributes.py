"""Reading a NodeProto: its label in messages, its attributes with defaults and types."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import NodeProto

from bnn_vnnlib.errors import ModelError, UnsupportedError

T = TypeVar("T", int, float, str)


def label(node: NodeProto) -> str:
    """Name and operator; an unnamed node goes by its first output."""
    name = node.name or (node.output[0] if node.output else "?")
    return f"{name} ({node.op_type})"


def unsupported(node: NodeProto, message: str) -> UnsupportedError:
    """Valid ONNX that this version does not handle."""
    return UnsupportedError(message, node=label(node))


def inconsistent(node: NodeProto, message: str) -> ModelError:
    """Not valid ONNX."""
    return ModelError(message, node=label(node))


def raw_attribute(node: NodeProto, name: str) -> Any | None:
    """Value of an attribute; None if it is absent."""
    for attribute in node.attribute:
        if attribute.name == name:
            value = onnx.helper.get_attribute_value(attribute)
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return None


def attribute(node: NodeProto, name: str, default: T) -> T:
    """A scalar attribute of the default's type."""
    value = raw_attribute(node, name)
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise inconsistent(node, f"attribute {name} must be {type(default).__name__}, not {value!r}")
    return value


def float_attribute(node: NodeProto, name: str, default: float) -> float:
    """A float attribute, exactly as the file holds it (float32); so is the default."""
    value = attribute(node, name, float(np.float32(default)))
    if not np.isfinite(value):
        raise inconsistent(node, f"attribute {name} is {value}")
    return value


def ints_attribute(node: NodeProto, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """A list of integers, of the default's length if the default has one."""
    value = raw_attribute(node, name)
    if value is None:
        return default
    if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
        raise inconsistent(node, f"attribute {name} must be a list of integers, not {value!r}")
    if default and len(value) != len(default):
        raise inconsistent(node, f"attribute {name} must have {len(default)} entries, not {len(value)}")
    return tuple(value)
