"""The posterior's manifest in an ONNX file (format 1): model metadata under one key, tensors beside the weights.

The SHA-256 of the mean and of the variance say whether a tool changed one without the other: a stale variance is
silently wrong, which is worse than none. A hash is over the little-endian, row-major bytes in the tensor's own type.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError
from bnn_vnnlib.network.families import MIXTURE, STORED, checked_likelihood, refuse_family
from bnn_vnnlib.readers import parse_json
from bnn_vnnlib.signature import Likelihood

KEY = "bnn.posterior"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """Contents of the metadata entry, checked for form.

    Attributes
    ----------
    family : one of `families.FAMILIES`
    params : weight name -> its entry (the tensors' names or their bytes, shapes, hashes)
    probabilities : entry of the probabilities of samples or components, else None
    components : of a mixture, the family and the params of each
    """

    family: str
    likelihood: Likelihood | None
    params: dict[str, dict[str, Any]]
    probabilities: dict[str, Any] | None
    components: tuple[Manifest, ...] = ()

    @property
    def entries(self) -> list[dict[str, Any]]:
        """All entries, those of components and of the probabilities included."""
        found = [*self.params.values(), *(entry for part in self.components for entry in part.entries)]
        return found if self.probabilities is None else [*found, self.probabilities]


def little_endian(array: NDArray[Any]) -> bytes:
    """Row-major bytes, least significant first."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def sha256(array: NDArray[Any]) -> str:
    """Fingerprint of a tensor's bytes."""
    return hashlib.sha256(little_endian(array)).hexdigest()


def embedded(array: NDArray[Any]) -> str:
    """Tensor as text for the manifest."""
    return base64.b64encode(little_endian(array)).decode("ascii")


def extracted(text: Any, element: np.dtype[Any], shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Tensor from the manifest's text."""
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), element.newbyteorder("<"))
        return flat.reshape(shape).astype(element)
    except (TypeError, ValueError, binascii.Error) as error:
        raise PosteriorError(f"the embedded tensor is damaged ({error})", node=name) from error


def write_manifest(proto: ModelProto, content: dict[str, Any]) -> None:
    """Put the manifest into the model's metadata."""
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(content, sort_keys=True)


def read_manifest(proto: ModelProto) -> Manifest | None:
    """The manifest, or None if the file has none.

    Raises
    ------
    PosteriorError : damaged
    UnsupportedError : a later format or a reserved family
    """
    entries = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    if not entries:
        return None
    if len(entries) > 1:
        raise PosteriorError(f"the file has {len(entries)} metadata entries {KEY!r}, expected one")
    try:
        content = parse_json(entries[0])
    except ValueError as error:
        raise _damaged(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _damaged("not a JSON object")
    if content.get("format") != FORMAT:
        raise UnsupportedError(
            f"posterior format {content.get('format')!r} is not supported; this version reads {FORMAT}"
        )
    family = content.get("family")
    refuse_family(family if isinstance(family, str) else repr(family))
    params = _params(content)
    probabilities = content.get("probabilities")
    if family in ("samples", MIXTURE):
        if not isinstance(probabilities, dict):
            raise _damaged("'probabilities' must be an object")
    else:
        probabilities = None
    components = _components(content) if family == MIXTURE else ()
    return Manifest(str(family), _likelihood(content.get("likelihood")), params, probabilities, components)


def _params(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    params = content.get("params")
    if not isinstance(params, dict) or not params or not all(isinstance(entry, dict) for entry in params.values()):
        raise _damaged("'params' must be an object with an entry for each weight")
    return params


def _components(content: dict[str, Any]) -> tuple[Manifest, ...]:
    parts = content.get("components")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise _damaged("'components' must be a list of objects")
    gaussian = [family for family in STORED if family != "samples"]
    for part in parts:
        if part.get("family") not in gaussian:
            raise _damaged(f"a component is of family {part.get('family')!r}, expected one of {', '.join(gaussian)}")
    return tuple(Manifest(str(part["family"]), None, _params(part), None) for part in parts)


def _likelihood(stored: Any) -> Likelihood | None:
    try:
        return checked_likelihood(stored)
    except OptionError as error:
        raise _damaged(error.message) from error


def _damaged(what: str) -> PosteriorError:
    return PosteriorError(f"the metadata entry {KEY!r} is damaged: {what}; attach the posterior again")
