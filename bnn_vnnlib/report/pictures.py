"""Inputs and witnesses as pictures, where inputs are images: pixels of one byte for the page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.sidecar import sha256
from bnn_vnnlib.report.row import ReportRow

ImageShape = tuple[int, int, int]
_MAX_VALUES = 2**18
"""Values of an image at most: a page of larger ones is slow to open."""
_TRIED = 20
"""Instances that are looked at for each picture that is wanted, at most."""


@dataclass(frozen=True, eq=False)
class Picture:
    """An instance's pictures; arrays are flat, in the order channel, row, column.

    Attributes
    ----------
    shape : (C, H, W), C is 1 or 3
    centre : middle of the input box that the witness lies in, or of the only one; None if the property is not there any
        more, has changed, or has several boxes
    witness : X
    """

    shape: ImageShape
    centre: Floats | None
    witness: Floats | None

    def values(self) -> dict[str, Any]:
        """The pictures for the page: bytes as base64, black and white at the least and largest value of both."""
        both = np.concatenate([part for part in (self.centre, self.witness) if part is not None])
        low, high = float(both.min()), float(both.max())
        scale = (high - low) or 1.0
        out: dict[str, Any] = {"shape": list(self.shape), "low": low, "high": high}
        for name, part in (("input", self.centre), ("witness", self.witness)):
            out[name] = None if part is None else _bytes((part - low) / scale)
        if self.centre is not None and self.witness is not None:
            difference = self.witness - self.centre
            largest = float(np.abs(difference).max())
            out |= {"difference": _bytes(0.5 + 0.5 * difference / (largest or 1.0)), "largest": largest}
        return out


def parse_shape(text: str) -> ImageShape:
    """`HxW` or `CxHxW`.

    >>> parse_shape("8x8"), parse_shape("3x32x32")
    ((1, 8, 8), (3, 32, 32))

    Raises
    ------
    OptionError : anything else; C neither 1 nor 3; too large
    """
    parts = [int(part) for part in text.split("x")] if re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6}){1,2}", text) else []
    channels, *plane = parts if len(parts) == 3 else (1, *parts)
    if len(plane) != 2 or channels not in (1, 3) or not 0 < prod(plane) * channels <= _MAX_VALUES:
        raise OptionError(f"--image {text}: expected HEIGHTxWIDTH or CHANNELSxHEIGHTxWIDTH with 1 or 3 channels, "
                          f"such as 8x8 or 3x32x32, and at most {_MAX_VALUES:,} values")  # fmt: skip
    return channels, plane[0], plane[1]


def pictures(rows: Sequence[ReportRow], image: ImageShape | None, most: int) -> dict[int, Picture]:
    """Pictures of the first `most` instances that have any, those with a witness first.

    Parameters
    ----------
    rows : of all runs
    image : shape of the inputs; None: that of the model's only input, where it is (1, C, H, W), (C, H, W) or (H, W)
    most : how many

    Returns
    -------
    by index of the row

    Raises
    ------
    OptionError : no row has inputs of the shape that was asked for
    """
    model_shape = cache(_model_shape)  # many instances share a model
    found: dict[int, Picture] = {}
    sizes: set[int] = set()
    order = sorted(range(len(rows)), key=lambda index: rows[index].x is None)
    for tried, index in enumerate(order):
        if len(found) >= most or tried >= _TRIED * most:  # reading ten thousand properties takes minutes
            break
        row = rows[index]
        shape = image or model_shape(row.files.get("model", ""), row.hashes.get("model", ""))
        if shape is None:
            continue
        picture = _picture(row, shape, sizes)
        if picture is not None:
            found[index] = picture
    if image is not None and most and sizes and prod(image) not in sizes:
        known = ", ".join(map(str, sorted(sizes)))
        raise OptionError(f"--image {'x'.join(map(str, image))} needs {prod(image)} inputs; the instances have {known}")
    return found


def _picture(row: ReportRow, shape: ImageShape, sizes: set[int]) -> Picture | None:
    """None where neither input nor witness has the shape; what sizes there are is added to `sizes`."""
    witness = None if row.x is None else np.array(row.x)
    centre = _centre(row, witness)
    sizes |= {part.size for part in (witness, centre) if part is not None}
    centre, witness = _fitting(centre, shape), _fitting(witness, shape)
    return None if centre is None and witness is None else Picture(shape, centre, witness)


def _fitting(values: Floats | None, shape: ImageShape) -> Floats | None:
    return values if values is not None and values.size == prod(shape) and np.isfinite(values).all() else None


def _centre(row: ReportRow, witness: Floats | None) -> Floats | None:
    """The middle of the instance's box, from the property, if that is there and is the one that was verified."""
    from bnn_vnnlib.vnnlib import read_property

    path = Path(row.files.get("property", ""))
    if not _unchanged(path, row.hashes.get("property", "")):
        return None
    try:
        boxes = read_property(path).boxes
    except InputError:
        return None
    lower, upper = boxes.lower, boxes.upper
    if witness is not None and witness.size == lower.shape[1]:
        inside = ((lower <= witness) & (witness <= upper)).all(1)
        lower, upper = lower[inside], upper[inside]
    return (lower[0] + upper[0]) / 2 if len(lower) == 1 else None


def _unchanged(path: Path, digest: str) -> bool:
    if not (digest and path.name):
        return False
    try:
        there = [place for place in (path, path.with_name(f"{path.name}.gz")) if place.is_file()]
    except (OSError, ValueError):  # a name that no file can have
        return False
    return digest in map(sha256, there)


def _model_shape(path: str, digest: str) -> ImageShape | None:
    """The input's shape, if the model is there, is the one that was verified, and has one input that is an image."""
    from bnn_vnnlib.model.files import read_proto

    if not _unchanged(Path(path), digest):
        return None
    try:
        graph = read_proto(path)[0].graph
    except InputError:
        return None
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [info for info in graph.input if info.name not in stored]
    dims = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim] if len(inputs) == 1 else []
    return _image_shape(dims)


def _image_shape(dims: Sequence[int]) -> ImageShape | None:
    """(C, H, W) of an input of these dimensions (0: not stated), None if it is no image.

    >>> _image_shape([1, 3, 32, 32]), _image_shape([0, 1, 8, 8]), _image_shape([28, 28])
    ((3, 32, 32), (1, 8, 8), (1, 28, 28))
    >>> _image_shape([1, 64]) is None, _image_shape([1, 5, 8, 8]) is None
    (True, True)
    """
    plain = list(dims[1:]) if len(dims) == 4 and dims[0] in (0, 1) else list(dims)
    channels, *plane = plain if len(plain) == 3 else (1, *plain)
    fits = len(plane) == 2 and min(plane) > 1 and channels in (1, 3) and channels * prod(plane) <= _MAX_VALUES
    return (channels, plane[0], plane[1]) if fits else None


def _bytes(shares: Floats) -> str:
    return b64encode(np.rint(np.clip(shares, 0.0, 1.0) * 255).astype(np.uint8).tobytes()).decode()
