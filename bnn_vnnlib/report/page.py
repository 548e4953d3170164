"""Everything of a report -> one HTML page that needs no network.

The page carries a content security policy: scripts run only if they have the hash of those that are put in here, and
nothing at all may be loaded. Should text of strangers ever get past the escaping, the browser still runs none of it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from typing import Any

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.printable import printable

_UNSEEN = re.compile(r"\\u[0-9a-f]{4}|\\.|[^\x20-\x7e]")
_ASSETS = files("bnn_vnnlib.report") / "assets"
_SCRIPTS = ("data.js", "filter.js", "figures.js", "plots.js", "table.js", "detail.js", "main.js")
_STYLES = ("style.css", "media.css")
_POLICY = ("default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
           "form-action 'none'")  # fmt: skip


def check_libraries() -> None:
    """OptionError if what a page is made with is not installed; said before any work starts."""
    for name in ("jinja2", "plotly"):
        _library(name)


def render(context: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The page.

    Parameters
    ----------
    context : what the template shows
    data : JSON values for the scripts, see `page_data`
    """
    jinja2 = _library("jinja2")
    loader = jinja2.DictLoader({name: _asset(name) for name in ("page.html", "parts.html")})
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_visible,
    )  # fmt: skip
    scripts = [_script(_library("plotly.offline").get_plotlyjs()), _script(_own_scripts())]
    policy = _POLICY.format(scripts=" ".join(_hash(script) for script in scripts))
    markup = _library("markupsafe").Markup
    page: str = environment.get_template("page.html").render(
        context,
        policy=policy,
        style=markup("\n".join(map(_asset, _STYLES))),
        scripts=[markup(script) for script in scripts],
        data=markup(_json(data)),
    )
    return page


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise OptionError(f"report needs {name.partition('.')[0]}: pip install 'bnn-vnnlib[report]'") from None


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _own_scripts() -> str:
    """One function, so that nothing but what it hands out is global."""
    return "\n".join(['"use strict";', "(() => {", *map(_asset, _SCRIPTS), "})();"])


def _script(text: str) -> str:
    """As a browser will read it, which is what its hash is of: lines ended by \\n, no end of its own element."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _visible(value: Any) -> Any:
    """What the template puts in, with escapes and halves of letters shown; markup of our own passes."""
    return printable(value, lines=True) if type(value) is str else value


def _json(values: Mapping[str, Any]) -> str:
    """JSON that cannot end the element that it stands in, and whose texts hold nothing that cannot be shown."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", r"\u003c")
    return _UNSEEN.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    """An escape of JSON, or a letter, that stands for what is not printable: its own escape as text."""
    letter = json.loads(f'"{found[0]}"', strict=False)
    shown = printable(letter, lines=True)
    return found[0] if shown == letter else shown.replace("\\", "\\\\")
