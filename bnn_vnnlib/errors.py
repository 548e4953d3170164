"""Every error that the package raises on purpose.

One root, so that a caller can catch all of them; each is also the builtin kind that it resembles. A message
says where (file, line and column, or node), what is wrong, what was expected and what to do about it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from bnn_vnnlib.printable import printable

_LONGEST, _LONGEST_NAME = 4000, 200
_LONG_WORD = re.compile(r"(\S{200})\S{50,}")
_P = ParamSpec("_P")
_R = TypeVar("_R")


class BnnVnnlibError(Exception):
    """Root of all errors of this package."""


class InputError(BnnVnnlibError, ValueError):
    """The user's input cannot be used as it is.

    Parameters
    ----------
    message : what is wrong, what was expected, what to do
    path : the file, where there is one
    line, column : 1-based place in a text file
    node : name (and operator) of the ONNX node or initializer
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        column: int | None = None,
        node: str | None = None,
    ) -> None:
        self.message = _shown(message, _LONGEST)
        self.path = None if path is None else Path(path)
        self.line = line
        self.column = column
        self.node = node
        super().__init__(self.message)

    @property
    def node(self) -> str | None:
        """Name (and operator) of the node, as a terminal can show it; whoever the error passes may set it, too."""
        return self._node

    @node.setter
    def node(self, name: str | None) -> None:
        self._node = None if name is None else _shown(name, _LONGEST_NAME)

    def __str__(self) -> str:
        place = [str(part) for part in (self.path, self.line, self.column) if part is not None]
        where = printable(":".join(place))
        if self.node is not None:
            where = f"{where}: node {self.node}" if where else f"node {self.node}"
        return f"{where}: {self.message}" if where else self.message


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context in which an error about input that names no file gets this path."""
    try:
        yield
    except InputError as error:
        error.path = error.path or path
        raise


class VnnlibSyntaxError(InputError):
    """The text is not VNN-LIB."""


class PropertyError(InputError):
    """The text is VNN-LIB but means nothing, or nothing for this model (scopes, types, shapes, bounds)."""


class ModelError(InputError):
    """The ONNX file is unreadable or inconsistent."""


class PosteriorError(InputError):
    """The posterior in (or beside) the ONNX file is missing, stale or invalid."""


class OptionError(InputError):
    """An option's value, or a combination of options, is not usable."""


class UnsupportedError(InputError, NotImplementedError):
    """Valid input that this version does not handle; raised before any work starts."""


class SoundnessError(BnnVnnlibError, RuntimeError):
    """An internal check on a bound failed: a bug here, never the user's fault."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """What to add to a message about a word that is nearly one of those known; whatever a file holds in its place.

    >>> did_you_mean("desicion", ["probabilistic", "decision"]), did_you_mean("none", ["decision"])
    ("; did you mean 'decision'?", '')
    """
    from difflib import get_close_matches

    close = get_close_matches(str(word).lower(), list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def names_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator: a call that does not fit the signature is an OptionError that says what the function takes.

    >>> names_arguments(lambda lower, upper: None)(lower=0, uper=1)
    Traceback (most recent call last):
    bnn_vnnlib.errors.OptionError: <lambda> has no option 'uper'; did you mean 'upper'?
    """
    signature, name = inspect.signature(function), function.__qualname__.removesuffix(".__init__")
    known = [one for one in signature.parameters if one != "self"]

    @wraps(function)
    def checked(*args: _P.args, **given: _P.kwargs) -> _R:
        """Call the function; OptionError, which names the options, where the arguments do not fit its signature."""
        try:
            signature.bind(*args, **given)
        except TypeError as error:
            for word in given:
                if word not in known:
                    hint = did_you_mean(word, known) or f"; it takes {', '.join(known)}"
                    raise OptionError(f"{name} has no option {word!r}{hint}") from None
            raise OptionError(f"{name}: {error}; it takes {', '.join(known)}") from None
        return function(*args, **given)

    return checked


def _shown(text: str, longest: int) -> str:
    """Text on one line that a terminal can show, and no longer than a person would read."""
    text = _LONG_WORD.sub(r"\1...", printable(text))
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
