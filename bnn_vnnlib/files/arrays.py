"""Named arrays in files: npz and Parquet, read with one message for whatever is wrong, written in one step."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError, OptionError, did_you_mean
from bnn_vnnlib.readers import kinds, parse_json, read_npz, read_start
from bnn_vnnlib.readers.text import RATIO, SMALL
from bnn_vnnlib.system.durable import replacing

Arrays = dict[str, NDArray]

_NOTE = b"bnn-vnnlib"  # key of this package's own entry in a Parquet file's metadata
_PARQUET = b"PAR1"  # the first bytes


def read_arrays(path: str | Path, known: Sequence[str]) -> Arrays:
    """The arrays of an npz file, or the columns of a Parquet file; a column of lists of one length is an array (N, k).

    Parameters
    ----------
    known : names that may occur: a misspelt array that is silently left out would be another question

    Raises
    ------
    InputError : unreadable file, unknown name, lists of different lengths, missing values
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("is a folder, not a table" if path.is_dir() else "no such file", path=path)
    kinds.expect(path, kinds.TABLE)
    start = read_start(path, len(_PARQUET))
    if start != _PARQUET and not start.startswith(b"PK"):
        raise InputError("neither an npz nor a Parquet file", path=path)
    found = _read_parquet(path)[0] if start == _PARQUET else read_npz(path)
    refuse_unknown(found, known, path)
    return found


def _read_parquet(path: Path) -> tuple[Arrays, bytes]:
    """The columns, and this package's own entry in the metadata."""
    pa, pq = parquet()
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            file = pq.ParquetFile(stream)  # read_table would take a folder KEY=VALUE on the way there for a column
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
            unpacked = sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in chunks)
            if unpacked > max(SMALL, RATIO * size):
                message = f"unpacks to {unpacked:,} bytes, more than a file of {size:,} bytes may; it looks like a bomb"
                raise InputError(message, path=path)
            table = file.read()
        table.validate(full=True)
        names = table.column_names
        if len(set(names)) < len(names):
            raise InputError("two columns have the same name", path=path)
        note: bytes = (table.schema.metadata or {}).get(_NOTE, b"{}")
        return {name: _column(pa, table[name].combine_chunks(), name, path) for name in names}, note
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"not a readable Parquet file ({error.strerror or error})", path=path) from None
    except Exception as error:  # pyarrow lets many kinds of them through, and promises none
        raise InputError(f"not a readable Parquet file ({error or type(error).__name__})", path=path) from None


def _column(pa: Any, column: Any, name: str, path: Path) -> NDArray:
    """A column as an array; lists within lists, all of one length, become further axes."""
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1 else column
    if column.null_count:
        raise InputError(f"column {name!r} has missing values", path=path)
    kind, types = column.type, pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _column(pa, column.flatten(), name, path)
        lengths = np.asarray(pa.compute.list_value_length(column))
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            raise InputError(f"column {name!r} holds lists of different lengths", path=path)
        return inner.reshape(len(lengths), width, *inner.shape[1:])
    if types.is_dictionary(kind):
        return _column(pa, column.dictionary_decode(), name, path)
    text = types.is_string(kind) or types.is_large_string(kind)
    if not (text or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputError(f"column {name!r} holds {kind}, expected numbers, text, or lists of them", path=path)
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    return values.astype(str) if text else values


def parquet() -> tuple[Any, Any]:
    """pyarrow and its Parquet module; OptionError where the extra is not installed."""
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
        import_module("pyarrow.compute")
    except ImportError:
        raise OptionError("Parquet files need pyarrow: pip install 'bnn-vnnlib[parquet]'") from None
    return pa, pq


def parquet_bytes(columns: Mapping[str, NDArray], note: Mapping[str, Any] | None = None) -> bytes:
    """Arrays of one length as a Parquet file; the same arrays give the same bytes.

    Parameters
    ----------
    note : JSON values that are kept beside the columns
    """
    pa, pq = parquet()
    table = pa.table({name: _arrow(pa, values) for name, values in columns.items()})
    if note is not None:
        table = table.replace_schema_metadata({_NOTE: json.dumps(note).encode()})
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def write_columns(path: Path, columns: Mapping[str, NDArray]) -> None:
    """Write arrays of one length as Parquet, complete or not at all."""
    data = parquet_bytes(columns)
    with replacing(path) as stream:
        stream.write(data)


def _arrow(pa: Any, values: NDArray) -> Any:
    """The values as an Arrow array: (N,) as numbers or text, (N, k) as lists of k numbers."""
    if values.ndim == 1:
        return pa.array(values.tolist(), pa.string()) if values.dtype.kind in "OU" else pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def read_columns(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """What `parquet_bytes` made: columns and note; InputError as `read_arrays`."""
    found, note = _read_parquet(path)
    try:
        stored = parse_json(note.decode())
    except ValueError as error:
        raise InputError(f"its note cannot be read as JSON ({error})", path=path) from None
    if not isinstance(stored, dict):
        raise InputError("its note is no JSON object", path=path)
    return found, stored


def refuse_unknown(arrays: Collection[str], known: Sequence[str], path: Path | None) -> None:
    """Raise InputError for the first array that has none of the known names."""
    for name in sorted(set(arrays) - set(known)):
        hint = did_you_mean(name, known)
        raise InputError(f"unknown array {name!r}; known are {', '.join(known)}{hint}", path=path)


def number(arrays: Arrays, name: str, path: Path | None, *, dims: int, finite: bool = True) -> NDArray[np.float64]:
    """An array of numbers with `dims` axes as float64, exactly.

    Raises
    ------
    InputError : not there, not numbers, another number of axes, NaN, infinite where it must be finite, whole numbers
        that float64 cannot hold
    """
    if name not in arrays:
        raise InputError(f"array {name!r} is missing", path=path)
    values = arrays[name]
    if values.dtype.kind not in "fiub":
        raise InputError(f"array {name!r} must hold numbers, found {values.dtype}", path=path)
    if values.ndim != dims:
        hint = "; flatten each row in the network's order" if values.ndim > dims == 2 else ""
        raise InputError(f"array {name!r} must have {dims} axes, found shape {values.shape}{hint}", path=path)
    with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused with all others
        converted = values.astype(np.float64)
    if values.dtype.kind in "iu" and ((values > 2**53) | (values < -(2**53))).any():
        raise InputError(f"array {name!r} holds whole numbers beyond 2^53, which float64 would round", path=path)
    bad = ~np.isfinite(converted) if finite else np.isnan(converted)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"array {name!r} holds {converted[where]} at {list(where)}", path=path)
    return converted


def integers(arrays: Arrays, name: str, path: Path | None, length: int) -> NDArray[np.int64]:
    """An array (N,) of whole numbers."""
    values = arrays[name]
    whole = values.dtype.kind in "iu" or (values.dtype.kind == "f" and bool((values == np.round(values)).all()))
    if not whole or values.shape != (length,):
        message = f"array {name!r} must hold {length} integers, found {values.dtype} of shape {values.shape}"
        raise InputError(message, path=path)
    return values.astype(np.int64)
