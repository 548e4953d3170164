"""TEXT -> PROPERTY: VNN-LIB 1.0 and 2.x, from a file to the normal form.

The street: parse (file to tree), check (declarations), linear (comparisons), dnf (and/or),
assemble (arrays); match compares the result with a model.
"""

from __future__ import annotations

from pathlib import Path

from bnn_vnnlib.errors import names_arguments
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.signature import Signature
from bnn_vnnlib.system.environment import plain_state
from bnn_vnnlib.vnnlib.assemble import normalise
from bnn_vnnlib.vnnlib.groups import match
from bnn_vnnlib.vnnlib.parse import looks_like_vnnlib, parse, read_property_text
from bnn_vnnlib.vnnlib.tree import SourceText

__all__ = ["looks_like_vnnlib", "match", "parse_property", "read_property"]


@names_arguments
def read_property(path: str | Path, signature: Signature | None = None) -> Property:
    """Read a property from a .vnnlib file, plain or gzip.

    Parameters
    ----------
    path : the file; if it is missing, path.gz
    signature : of the model, if the property is to be checked against it

    Returns
    -------
    Property : the normal form

    Raises
    ------
    InputError : the file is missing, broken or too large
    VnnlibSyntaxError, PropertyError, UnsupportedError : as `parse_property`
    """
    text, found = read_property_text(path)
    return parse_property(text, found, signature)


@plain_state()
def parse_property(text: str, path: str | Path | None = None, signature: Signature | None = None) -> Property:
    """Read a property from its text.

    Parameters
    ----------
    text : VNN-LIB 1.0 or 2.x
    path : where the text came from, for messages
    signature : of the model, if the property is to be checked against it

    Raises
    ------
    VnnlibSyntaxError : the text is not VNN-LIB
    PropertyError : it means nothing, an input is unbounded, or it does not fit the model
    UnsupportedError : it uses what this version does not handle
    """
    source = SourceText(text, None if path is None else Path(path))
    return normalise(parse(source), source, signature)
