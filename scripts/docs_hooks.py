"""Of mkdocs: what a page of docs/ needs to become one of the site."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Files of the repository outside of docs/ are no pages: they are named, with their path, in place of a link."""
    folder = posixpath.dirname(page.file.src_uri)

    def named(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2].partition("#")[0]))
        if not target.startswith("../"):
            return found[0]
        path = target.removeprefix("../")
        text = found[1].strip("`")
        return f"`{path}`" if text.strip("/") in path or path in text else f"{found[1]} (`{path}`)"

    return LINK.sub(named, markdown)
