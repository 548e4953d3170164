"""A text and where it came from; turns an offset into a located error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bnn_vnnlib.errors import InputError

Error = TypeVar("Error", bound=InputError)


@dataclass(frozen=True)
class Source:
    """The text of a property and the path it was read from, if any."""

    text: str
    path: Path | None = None

    def line(self, at: int) -> int:
        """1-based line of the offset `at`."""
        return self.text.count("\n", 0, at) + 1

    def error(self, kind: type[Error], message: str, at: int | None = None) -> Error:
        """An error of this kind, with path, line and column."""
        if at is None:
            return kind(message, path=self.path)
        column = at - self.text.rfind("\n", 0, at)
        return kind(message, path=self.path, line=self.line(at), column=column)

    def find(self, atom: str, start: int, length: int = 100_000) -> int:
        """Offset of a number or variable at or after `start`; `start` itself if it is written with blanks inside."""
        if len(atom) > 10_000:  # a pattern of that length takes seconds
            return start
        found = re.compile(r"(?<![\w.\-+])" + re.escape(atom) + r"(?![\w.])").search(self.text, start, start + length)
        return found.start() if found else start
