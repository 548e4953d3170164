"""Of mkdocs: what a page of docs/ needs to become one of the site: links, formulas as MathML, a menu of versions.

Browsers draw MathML themselves, so the site needs no script for it.
"""

from __future__ import annotations

import os
import posixpath
import re
from html import unescape
from importlib import import_module
from typing import Any


def on_config(config: Any) -> Any:
    """One version among others has the menu; a site alone would look for a list of versions that is not there."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    return config


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


PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>(&#x0203[23];)</mi></msup>")
# Bars are brackets here, no relations.
BAR = re.compile(r"<mo (?:fence=\"false\" )?stretchy=\"false\">(&#x0007C;|&#x02016;)</mo>")
# latex2mathml takes these relations for names, without space around them.
RELATION = re.compile(r"<mi>(&#x0007E;|&#x0223C;|&#x02AAF;)</mi>")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """LaTeX as MathML: no script, and nothing to load."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        converted: str = import_module("latex2mathml.converter").convert(unescape(found[2]), display=display)
        converted = PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">\2</mo></mrow>', converted)  # raised once, not twice
        converted = BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', converted)
        converted = RELATION.sub(r'<mo lspace="0.28em" rspace="0.28em">\1</mo>', converted)
        return f'<{found[1]} class="formula">{converted}</{found[1]}>'

    return FORMULA.sub(drawn, html)
