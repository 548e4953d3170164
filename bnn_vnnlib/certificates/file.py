"""The certificate's file: a zip archive of a JSON manifest and .npy arrays."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib import __version__
from bnn_vnnlib.system.durable import replacing

_FORMAT = 1
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time that stands in for the time of day, so that equal proofs are equal files."""


@dataclass
class StoredArrays:
    """Arrays by the names under which the manifest refers to them."""

    stored: dict[str, NDArray[Any]] = field(default_factory=dict)
    count: int = 0

    def name(self, values: NDArray[Any]) -> str:
        """Store an array."""
        name = f"{self.count}.npy"
        self.count += 1
        self.stored[name] = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        return name


def write_certificate(path: Path, files: Mapping[str, Path], content: Mapping[str, Any], arrays: StoredArrays) -> int:
    """Write a certificate; its size in bytes.

    Parameters
    ----------
    files : model and property, which it is bound to
    content : query, thresholds, claim, proof and info
    """
    bound = {role: _fingerprint(files[role]) for role in ("model", "property")}
    manifest = {"format": _FORMAT, "producer": f"bnn-vnnlib {__version__}", **bound, **content}
    with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(archive, "manifest.json", json.dumps(manifest, allow_nan=False).encode())
        for name, values in arrays.stored.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, values, (1, 0), allow_pickle=False)
            _put(archive, name, data.getvalue())
    return path.stat().st_size


def _put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)


def _fingerprint(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
