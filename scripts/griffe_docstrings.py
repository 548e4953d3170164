"""Of mkdocstrings: the docstrings of this package, whose entries are `name : what it is`, as Markdown.

`{options}`, which the program fills in when it runs, becomes a line that points to the fields of `Options`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe  # type: ignore[import-not-found]  # of the environment that builds the site alone

SECTIONS = ("Parameters", "Attributes", "Returns", "Raises")
OPTIONS = "**options : any field of `Options`, by its name"


def as_markdown(text: str) -> str:
    """Underlined sections become bold lines, and their entries a list.

    Entries stand at the left margin; what continues one is indented.
    """
    lines, written, listing = text.replace("{options}", OPTIONS).split("\n"), [], False
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line in SECTIONS and re.fullmatch("-{3,}", following.strip()):
            listing = True
            written += ["", f"**{line}**", ""]
        elif listing and re.fullmatch("-{3,}", line.strip()):
            continue
        elif listing and line and not line.startswith(" "):
            name, found, rest = line.partition(" : ")
            written.append(f"- `{name}`: {rest}" if found else f"- {line}")
        else:
            written.append(f"  {line.strip()}" if listing and line.strip() else line)
    return "\n".join(written)


class HouseDocstrings(griffe.Extension):  # type: ignore[misc]
    """Rewrites every docstring as it is read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Of griffe."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
