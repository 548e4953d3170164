"""Bytes on disk <-> `onnx.ModelProto`: compression, external data and files that only look like a model."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto

from bnn_vnnlib.errors import ModelError, OptionError
from bnn_vnnlib.model.attributes import subgraphs
from bnn_vnnlib.readers import is_gzip, kinds, located, read_bytes

_MAX_BYTES = 2**31 - 1  # protobuf cannot hold more
_MAX_PARTS = 1_000_000  # messages and texts in one file: some megabytes of empty nodes fill any memory


def read_proto(path: str | Path) -> tuple[ModelProto, Path]:
    """Read a model and inline its external data.

    Accepts `.onnx`, `.onnx.gz`, gzip without the suffix, and a missing file of which `<path>.gz` exists.

    Returns
    -------
    the model, and the file that was read

    Raises
    ------
    ModelError : no such file; not an ONNX model (says what it seems to be); external data missing or outside
    """
    path = located(path, ModelError, "an ONNX model")
    if path.suffix == ".gz" and not is_gzip(path):
        raise ModelError("not an ONNX model: the name ends in .gz but the file is not gzip", path=path)
    proto = _parse(path)
    total = 0
    for tensor in _external_tensors(proto):
        total += _byte_size(tensor, path)
        if total > _MAX_BYTES:
            raise ModelError("the external data are larger than 2 GiB in all, which is not supported", path=path)
        _inline(tensor, path)
    return proto, path


def data_files(path: Path) -> list[Path]:
    """The files beside a model that hold its external data, each once, in the order of their names.

    Raises
    ------
    ModelError : as `read_proto`
    """
    proto = _parse(path)
    found = set()
    for tensor in _external_tensors(proto):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        found.add(_beside(entries.get("location", ""), tensor.name, path))
    return sorted(found)


def write_model(proto: ModelProto, path: str | Path, check: Callable[[Path], object] | None = None) -> Path:
    """Write a model (gzip if the name ends in .gz), complete or not at all.

    Parameters
    ----------
    check : called with the file while it has another name; what it raises goes on, and nothing is left behind
    """
    path = Path(path)
    data = serialised(proto)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(data)
        if check is not None:
            check(unfinished)
        unfinished.replace(path)
    except OSError as error:
        raise ModelError(f"cannot write the model: {error.strerror}", path=path) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return path


def keep_inputs(target: str | Path, *sources: str | Path | None) -> None:
    """Refuse, before any work, to write over a file that is read: nothing would be left to go back to.

    Raises
    ------
    OptionError : the target is one of the sources, under whatever name
    """
    written = Path(target)
    for source in sources:
        if source is not None and written.exists() and Path(source).exists() and written.samefile(source):
            raise OptionError("this file is read: write to another one", path=written)


def serialised(proto: ModelProto) -> bytes:
    """The model as one block of bytes."""
    if proto.ByteSize() > _MAX_BYTES:
        raise ModelError("the model is larger than 2 GiB, which ONNX cannot hold in one file")
    return bytes(proto.SerializeToString())


def _parse(path: Path) -> ModelProto:
    """The ONNX model in a file, of bounded size and with valid texts."""
    data = read_bytes(path, _MAX_BYTES, ModelError)
    kinds.refuse_other(data[: kinds.START_BYTES], kinds.MODEL, path, ModelError)
    try:
        proto = onnx.load_model_from_string(data)
        del data  # as large as the model
        parts = _check_texts(proto)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError("not an ONNX model, or a truncated one: its bytes do not parse", path=path) from error
    if parts > _MAX_PARTS:
        raise ModelError(f"the file has more than {_MAX_PARTS:,} parts; no real model has", path=path)
    if proto.ir_version == 0 or not proto.graph.output:
        raise ModelError("not an ONNX model: no IR version or no graph with outputs in it", path=path)
    return proto


def _check_texts(message: Message, counted: int = 0) -> int:
    """Count the parts; raise if a name is not UTF-8: protobuf hands it out as bytes, or fails when asked for it.

    Bytes are left alone: to look at the data of a tensor is to copy them.
    """
    counted += 1
    if isinstance(message, TensorProto):
        texts = [field for field in message.DESCRIPTOR.fields if field.name != "raw_data"]
        fields = [(field, getattr(message, field.name)) for field in texts]
    else:
        fields = message.ListFields()
    for field, value in fields:
        parts = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if field.message_type is not None:
            for part in parts:
                counted = _check_texts(part, counted)
                if counted > _MAX_PARTS:
                    return counted
        elif field.type == field.TYPE_STRING:
            counted += len(parts)
            for part in parts:
                if not isinstance(part, str):
                    raise DecodeError(f"{field.name} {part!r} is not text")
    return counted


def _external_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Tensors whose data lie in another file, those of functions and of subgraphs included."""
    pending: list[GraphProto | FunctionProto] = [proto.graph, *proto.functions]
    tensors: list[TensorProto] = []
    while pending:
        body = pending.pop()
        if isinstance(body, GraphProto):
            tensors += body.initializer
            tensors += (part for sparse in body.sparse_initializer for part in (sparse.values, sparse.indices))
        for node in body.node:
            tensors += (attribute.t for attribute in node.attribute if attribute.HasField("t"))
            pending += subgraphs(node)
    return (tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL)


def _inline(tensor: TensorProto, model: Path) -> None:
    """Replace a reference into a file beside the model by the bytes themselves."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = _beside(entries.get("location", ""), tensor.name, model)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
    except ValueError:
        raise ModelError(f"tensor {tensor.name!r}: external offset or length is not a number", path=model) from None
    expected = _byte_size(tensor, model)
    if length not in (-1, expected) or offset < 0 or offset + expected > file.stat().st_size:
        wanted = f"bytes {offset} to {offset + expected} of {file.name!r} ({file.stat().st_size} bytes)"
        raise ModelError(f"tensor {tensor.name!r}: external data do not fit, needs {wanted}", path=model)
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            tensor.raw_data = stream.read(expected)
    except OSError as error:
        raise ModelError(f"tensor {tensor.name!r}: cannot read {file.name!r}: {error.strerror}", path=model) from None
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


def _byte_size(tensor: TensorProto, model: Path) -> int:
    try:
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"tensor {tensor.name!r}: unknown element type {tensor.data_type}", path=model) from error
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r}: negative dimensions {list(tensor.dims)}", path=model)
    return math.prod(tensor.dims) * int(itemsize)


def _beside(location: str, tensor: str, model: Path) -> Path:
    """The data file, which must lie in the model's folder, symbolic links followed."""
    folder = model.parent.resolve()
    try:
        file = (folder / location).resolve()
        exists = file.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, a loop of links
        raise ModelError(f"tensor {tensor!r}: external data {location!r} is no file name", path=model) from None
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        message = f"tensor {tensor!r}: external data {location!r} would leave the model's folder; refused"
        raise ModelError(message, path=model)
    if not exists:
        message = f"tensor {tensor!r}: external data file {location!r} is missing; put it beside the model"
        raise ModelError(message, path=model)
    return file
