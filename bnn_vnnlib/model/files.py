"""Bytes on disk <-> `onnx.ModelProto`: compression, external data and files that only look like a model."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from bnn_vnnlib.errors import ModelError

_LARGEST = 2**31 - 1  # protobuf cannot hold more
_GZIP = b"\x1f\x8b"
_LFS = b"version https://git-lfs"


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
    path = _existing(Path(path))
    proto = _parse(_decompressed(_read(path), path), path)
    for tensor in _external_tensors(proto):
        _inline(tensor, path)
    return proto, path


def write_model(proto: ModelProto, path: str | Path) -> Path:
    """Write a model (gzip if the name ends in .gz), complete or not at all."""
    path = Path(path)
    data = serialised(proto)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ModelError(f"cannot write the model: {error.strerror}", path=path) from error
    return path


def serialised(proto: ModelProto) -> bytes:
    """The model as one block of bytes."""
    if proto.ByteSize() > _LARGEST:
        raise ModelError("the model is larger than 2 GiB, which ONNX cannot hold in one file")
    return bytes(proto.SerializeToString())


def _existing(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    if not path.exists() and packed.exists():
        return packed
    if not path.is_file():
        what = "is a folder, not an ONNX model" if path.is_dir() else "no such file"
        raise ModelError(what, path=path)
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read the model: {error.strerror}", path=path) from error


def _decompressed(data: bytes, path: Path) -> bytes:
    if not data.startswith(_GZIP):
        if path.suffix == ".gz":
            raise ModelError("not an ONNX model: the name ends in .gz but the file is not gzip", path=path)
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(data, _LARGEST)
    except zlib.error as error:
        raise ModelError(f"damaged gzip file ({error}); copy it again", path=path) from error
    if unpacker.unconsumed_tail:
        raise ModelError("the unpacked file is larger than 2 GiB", path=path)
    if not unpacker.eof:
        raise ModelError("damaged gzip file (it ends too early); copy it again", path=path)
    return plain


def _impostor(data: bytes) -> str | None:
    """What a file that is no model seems to be."""
    if not data:
        return "the file is empty"
    if data.startswith(_LFS):
        return "it is a Git-LFS pointer; run `git lfs pull` where it came from to get the model itself"
    if data[257:262] == b"ustar":
        return "it holds a tar archive; unpack it and name the model inside"
    if data.startswith(b"PK\x03\x04"):
        return "it is a zip archive; unpack it and name the model inside"
    if data.lstrip()[:1] in (b"<", b"{", b"("):
        return "it holds text"
    return None


def _parse(data: bytes, path: Path) -> ModelProto:
    suspicion = _impostor(data)
    if suspicion is not None:
        raise ModelError(f"not an ONNX model: {suspicion}", path=path)
    try:
        proto = onnx.load_model_from_string(data)
        _check_texts(proto)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError("not an ONNX model, or a truncated one: its bytes do not parse", path=path) from error
    if proto.ir_version == 0 or not proto.graph.output:
        raise ModelError("not an ONNX model: no IR version or no graph with outputs in it", path=path)
    return proto


def _check_texts(message: Message) -> None:
    """Raise if a name is not UTF-8: protobuf hands such a text out as bytes, or fails when it is first asked for."""
    for field, value in message.ListFields():
        parts = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if field.message_type is not None:
            for part in parts:
                _check_texts(part)
        elif field.type == field.TYPE_STRING:
            for part in parts:
                if not isinstance(part, str):
                    raise DecodeError(f"{field.name} {part!r} is not text")


def _external_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Tensors of the main graph whose data lie in another file."""
    tensors = [*proto.graph.initializer]
    tensors += [part for sparse in proto.graph.sparse_initializer for part in (sparse.values, sparse.indices)]
    tensors += [attribute.t for node in proto.graph.node for attribute in node.attribute if attribute.HasField("t")]
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
    with file.open("rb") as stream:
        stream.seek(offset)
        tensor.raw_data = stream.read(expected)
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


def _byte_size(tensor: TensorProto, model: Path) -> int:
    try:
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"tensor {tensor.name!r}: unknown element type {tensor.data_type}", path=model) from error
    return math.prod(tensor.dims) * int(itemsize)


def _beside(location: str, tensor: str, model: Path) -> Path:
    """The data file, which must lie in the model's folder, symbolic links followed."""
    folder = model.parent.resolve()
    file = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        message = f"tensor {tensor!r}: external data {location!r} would leave the model's folder; refused"
        raise ModelError(message, path=model)
    if not file.is_file():
        message = f"tensor {tensor!r}: external data file {location!r} is missing; put it beside the model"
        raise ModelError(message, path=model)
    return file
