"""ONNX files, mangled: by bytes, and by the fields of the protobuf messages."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from random import Random

import numpy as np
from google.protobuf.message import Message
from onnx import ModelProto, TensorProto, numpy_helper

from hostile.mutate_bytes import bytes_changed

SIZES = (0, 1, 2, 3, 5, -1, -7, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
FLOATS = (0.0, -1.0, 1e38, 1e-38, float("nan"), float("inf"), float("-inf"), 0.5)
TEXTS = ("", "x", "y", "W", "\u00e9", "../x", "/etc/passwd", "Relu", "Gemm", "Conv", "Reshape", "Slice", "Loop", "If",
         "Pad", "ConstantOfShape", "Expand", "Tile", "Range", "Resize", "ScatterND", "ai.onnx.ml", "axes", "pads",
         "W_variance", "bnn.posterior", "a" * 5000)  # fmt: skip


def mangled_model(rng: Random, seeds: list[bytes]) -> bytes:
    """An ONNX file that is more or less broken."""
    data = rng.choice(seeds)
    if rng.random() < 0.75:
        proto = ModelProto.FromString(data)
        for _ in range(1 + int(rng.expovariate(0.7))):
            with contextlib.suppress(IndexError):  # nothing of this kind is left to change
                rng.choice(_CHANGES)(rng, proto)
        data = proto.SerializeToString()
    if rng.random() < 0.3:
        data = bytes_changed(rng, data)
    if rng.random() < 0.03:
        data = gzip.compress(data, 1, mtime=0)
        data = bytes_changed(rng, data) if rng.random() < 0.5 else data
    return data


def _messages(message: Message) -> list[Message]:
    """The message and all that it holds, raw tensors' data aside."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "add") else [value]:
                found.extend(_messages(part))
    return found


def _field(rng: Random, proto: ModelProto) -> None:
    """Some scalar field of some message."""
    message = rng.choice(_messages(proto))
    fields = [field for field, _ in message.ListFields() if field.message_type is None]
    if not fields:
        return
    field = rng.choice(fields)
    kinds: dict[int, Callable[[], object]] = {
        field.TYPE_STRING: lambda: rng.choice(TEXTS), field.TYPE_FLOAT: lambda: rng.choice(FLOATS),
        field.TYPE_DOUBLE: lambda: rng.choice(FLOATS), field.TYPE_BYTES: lambda: rng.randbytes(rng.randrange(20)),
        field.TYPE_INT32: lambda: rng.choice([0, 1, 2, 7, 9, 11, 22, 99, -1, 2**31 - 1]),
        field.TYPE_UINT64: lambda: rng.choice([0, 1, 2**63]),
    }  # fmt: skip
    value = kinds.get(field.type, lambda: rng.choice(SIZES))()
    current = getattr(message, field.name)
    try:
        if hasattr(current, "append"):
            place = rng.randrange(len(current))
            rng.choice([lambda: current.append(value), lambda: current.pop(place),
                        lambda: current.__setitem__(place, value)])()  # fmt: skip
        else:
            setattr(message, field.name, value)
    except (TypeError, ValueError):  # an enumeration that does not have this value
        message.ClearField(field.name)


def _lists(rng: Random, proto: ModelProto) -> None:
    """Parts of a repeated message dropped, repeated or moved: nodes, attributes, initializers, inputs."""
    owners = [m for m in _messages(proto) if any(f.message_type and hasattr(v, "add") for f, v in m.ListFields())]
    message = rng.choice(owners)
    field, parts = rng.choice([(f, v) for f, v in message.ListFields() if f.message_type and hasattr(v, "add")])
    kept = list(parts)
    i, j = rng.randrange(len(kept)), rng.randrange(len(kept))
    match rng.randrange(4):
        case 0:
            del kept[i]
        case 1:
            kept.insert(j, kept[i])
        case 2:
            kept[i], kept[j] = kept[j], kept[i]
        case _:
            kept.reverse()
    copies = [type(part).FromString(part.SerializeToString()) for part in kept]
    message.ClearField(field.name)
    getattr(message, field.name).extend(copies)


def _edge(rng: Random, proto: ModelProto) -> None:
    """An operand of a node becomes another value: cycles, wrong kinds, wrong shapes."""
    names = [name for node in proto.graph.node for name in (*node.input, *node.output)]
    names += [tensor.name for tensor in proto.graph.initializer]
    node = rng.choice(proto.graph.node)
    operands = rng.choice([node.input, node.input, node.output])
    if operands:
        operands[rng.randrange(len(operands))] = rng.choice([*names, "", "nowhere"])


def _operator(rng: Random, proto: ModelProto) -> None:
    from onnx.defs import get_all_schemas

    node = rng.choice(proto.graph.node)
    node.op_type = rng.choice(sorted({schema.name for schema in get_all_schemas()}))


def _tensor(rng: Random, proto: ModelProto) -> None:
    """The numbers of a tensor, or its shape."""
    tensors = [*proto.graph.initializer, *(a.t for node in proto.graph.node for a in node.attribute if a.HasField("t"))]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    if rng.random() < 0.4:
        if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
        return
    try:
        array = numpy_helper.to_array(tensor).copy()
    except Exception:  # broken by an earlier change
        return
    if array.size and array.dtype.kind == "f":
        array.flat[rng.randrange(array.size)] = rng.choice(FLOATS)
    elif array.size and array.dtype.kind == "i":
        array.flat[rng.randrange(array.size)] = np.array(rng.choice(SIZES)).astype(array.dtype)
    shapes = [array.shape, (), (1, *array.shape), array.shape[::-1], (array.size,)]
    array = np.resize(array, rng.choice(shapes))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _manifest(rng: Random, proto: ModelProto) -> None:
    """The posterior's record: its JSON, as text or as a structure."""
    entries = [entry for entry in proto.metadata_props if entry.key == "bnn.posterior"]
    if not entries:
        proto.metadata_props.add(
            key="bnn.posterior", value=rng.choice(["", "{", "[]", "null", "[" * 100_000, '{"a":1}'])
        )
        return
    entry = rng.choice(entries)
    try:
        content = json.loads(entry.value)
        place = content
        while isinstance(place, dict) and place and rng.random() < 0.7:
            key = rng.choice(sorted(place))
            if not isinstance(place[key], dict) or rng.random() < 0.3:
                place[key] = rng.choice([None, -1, 1e400, "", "x", [], {}, [10**20], "AAAA", True, 2])
                break
            place = place[key]
        entry.value = json.dumps(content)
    except (ValueError, RecursionError):
        entry.value = entry.value[: rng.randrange(len(entry.value) + 1)]


def _external(rng: Random, proto: ModelProto) -> None:
    """A tensor that claims to lie elsewhere."""
    if not proto.graph.initializer:
        return
    tensor = rng.choice(proto.graph.initializer)
    tensor.data_location = TensorProto.EXTERNAL
    for key, values in (("location", TEXTS), ("offset", SIZES), ("length", SIZES)):
        if rng.random() < 0.7:
            tensor.external_data.add(key=key, value=str(rng.choice(values)))


_CHANGES = (_field, _field, _field, _lists, _lists, _edge, _edge, _operator, _tensor, _tensor, _manifest, _external)
