"""Inputs in the files that people have: arrays, tables and pictures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.arrays import Arrays, read_arrays
from bnn_vnnlib.readers import located, read_rows, read_start

_TARGETS = ("label", "y")
_NAMES = ("x", *_TARGETS, "radius", "scale", "valid_lower", "valid_upper", "mean", "std")
"""What an archive may hold: inputs (N, n), labels (N,), true values (N, m), and one number for each input (n,)."""

_PICTURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"BM": "bmp", b"GIF8": "gif", b"P5": "pgm", b"P6": "ppm"}
_MOST = 2**31
"""Bytes of a .npy file, at most."""


def read_examples(path: str | Path, shape: tuple[int, ...] | None = None) -> Arrays:
    """The arrays of a file, of which `x` (N, n) are the inputs, one a row.

    - .npz and .parquet: arrays of the names above
    - .npy: the inputs
    - .csv: one input a row. With a first line of names, a column `label` holds the classes, a column `y` the true
      values, and all others, in their order, are the inputs
    - a picture (needs pillow): one input of height x width values from 0 to 1, or 3 x height x width in colour, in the
      order (colour, row, column) that networks take

    Parameters
    ----------
    shape : of the network's input: an array of that shape is one input, and one of another order of the dimensions
        is refused, since its numbers would be mixed up. None: the first dimension counts the inputs

    Raises
    ------
    InputError : unreadable, of another kind, without inputs, with values that are not finite numbers
    """
    path = located(path)
    start = read_start(path, 8)
    if start.startswith(b"\x93NUMPY"):
        found: Arrays = {"x": _npy(path)}
    elif any(start.startswith(magic) for magic in _PICTURES):
        found = {"x": _picture(path)}
    elif path.name.endswith((".csv", ".csv.gz", ".txt")):
        found = _csv(path)
    else:
        found = read_arrays(path, _NAMES)
    if "x" not in found:
        raise InputError(f"holds {', '.join(found) or 'nothing'}; expected the inputs as array 'x'", path=path)
    x = found["x"]
    if x.dtype.kind not in "iufb" or x.size == 0 or not np.isfinite(x).all():
        raise InputError("the inputs must be finite numbers, at least one", path=path)
    found["x"] = _rows(x, shape, path)
    return found


def _rows(x: NDArray, shape: tuple[int, ...] | None, path: Path) -> NDArray:
    if shape is None:
        return x.reshape(1, -1) if x.ndim < 2 else x.reshape(len(x), -1)
    size, wanted = math.prod(shape), [side for side in shape if side > 1]
    if x.ndim <= 2 and x.shape[-1] == size:
        return x.reshape(-1, size)
    for sides in (x.shape, x.shape[1:]):
        if [side for side in sides if side > 1] == wanted or (len(wanted) <= 1 and math.prod(sides) == size):
            return x.reshape(-1, size)
    raise InputError(
        f"inputs of shape {x.shape} do not fit the network's, {shape}: bring them into that order", path=path
    )


def read_vector(text: str, what: str) -> NDArray | list[str]:
    """Numbers from the command line, `0.1` or `0.1,0.2`, or from a file that holds them."""
    if Path(text).is_file():
        return read_examples(text)["x"].ravel()
    parts = [part for part in text.replace(",", " ").split() if part]
    if not parts:
        raise InputError(f"{what}: expected a number, several with commas between them, or a file")
    try:
        np.array(parts, dtype=float)
    except ValueError:
        raise InputError(f"{what}: {text!r} is neither numbers with commas between them nor a file") from None
    return parts


def _npy(path: Path) -> NDArray:
    if path.stat().st_size > _MOST:
        raise InputError(f"larger than {_MOST:,} bytes; keep the inputs that are meant in a smaller file", path=path)
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"not a NumPy array of numbers, or a damaged one ({error})", path=path) from None


def _picture(path: Path) -> NDArray[np.float64]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError("pictures are read by pillow, which is not installed: pip install pillow", path=path) from None
    try:
        with Image.open(path) as image:
            grey = image.mode in ("1", "L", "I;16", "I", "F", "LA")
            values = np.asarray(image.convert("L" if grey else "RGB"), np.float64)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"not a picture that can be read ({error})", path=path) from None
    return (values if values.ndim == 2 else values.transpose(2, 0, 1)).reshape(1, -1) / 255


def _csv(path: Path) -> Arrays:
    """The columns of a table of numbers, with or without a line of names."""
    rows = [(line, [cell.strip() for cell in cells]) for line, cells in read_rows(path, skip_blanks=True)]
    rows = [(line, cells) for line, cells in rows if any(cells)]
    if not rows:
        raise InputError("the table is empty", path=path)
    names = [] if _number(rows[0][1][0]) is not None else rows.pop(0)[1]
    width = len(names) or len(rows[0][1])
    table = np.empty((len(rows), width))
    for index, (line, cells) in enumerate(rows):
        values = [_number(cell) for cell in cells]
        if len(values) != width or None in values:
            bad = next((cell for cell, value in zip(cells, values, strict=True) if value is None), None)
            found = f"{len(values)} cells" if bad is None else f"{bad!r}"
            raise InputError(f"expected {width} finite numbers, found {found}", path=path, line=line)
        table[index] = values
    if len(set(names)) < len(names):
        raise InputError("two columns have the same name", path=path, line=1)
    own = {name: table[:, names.index(name)] for name in _TARGETS if name in names}
    if "label" in own:
        if (own["label"] != np.round(own["label"])).any():
            raise InputError("column 'label' must hold whole numbers, the classes", path=path)
        own["label"] = own["label"].astype(np.int64)
    inputs = [k for k in range(width) if not names or names[k] not in _TARGETS]
    return {"x": table[:, inputs], **own}


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
