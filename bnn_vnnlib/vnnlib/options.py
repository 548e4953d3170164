"""Options in comment lines, which other tools ignore: `; bnn-vnnlib: query=probabilistic tau_safe=0.98`."""

from __future__ import annotations

import re

from bnn_vnnlib.errors import PropertyError
from bnn_vnnlib.vnnlib.tree import Source

_COMMENT = re.compile(r"^[^;\r\n]*;[; \t]*bnn-vnnlib(?![\w.\-/])(?P<rest>[^\r\n]*)", re.MULTILINE)
_ITEM = re.compile(r"(?P<key>[a-z][a-z0-9_]*)=(?P<value>[^\s=]+)")


def read_options(source: Source) -> dict[str, str]:
    """The options of a text; a malformed or contradictory one is a PropertyError with its line."""
    options: dict[str, str] = {}
    if "bnn-vnnlib" not in source.text:
        return options
    for comment in _COMMENT.finditer(source.text):
        at = comment.start("rest")
        if not comment["rest"].startswith(":"):
            if _ITEM.search(comment["rest"]):
                raise source.error(PropertyError, "expected ':' after bnn-vnnlib", at)
            continue
        for word in comment["rest"][1:].split():
            item = _ITEM.fullmatch(word)
            if item is None:
                message = f"found '{word}', expected options such as query=probabilistic tau_safe=0.98"
                raise source.error(PropertyError, message, source.text.find(word, at))
            if options.setdefault(item["key"], item["value"]) != item["value"]:
                message = f"option {item['key']} is given twice: {options[item['key']]} and {item['value']}"
                raise source.error(PropertyError, message, source.text.find(word, at))
    return options
