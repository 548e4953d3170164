"""The page of a report: its tables, its data and its HTML.

1. Tables as CSV, Markdown and LaTeX. Cells are text of strangers in all three.
2. Rows as columns of JSON values, for the page's scripts. Bounds are rounded outward here too.
3. Everything of a report -> an HTML page that needs no network. The page carries a content security policy: scripts run
   only if they have the hash of those that are put in here, or, for the plots' library in a file beside the page, a
   number that is drawn for this page alone. Nothing else may be loaded. Should text of strangers ever get past the
   escaping, the browser still runs none of it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from math import isinf
from secrets import token_urlsafe
from typing import Any

from bnn_vnnlib.display import digits
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.files.sidecar import as_json
from bnn_vnnlib.printable import printable
from bnn_vnnlib.readers import table_text
from bnn_vnnlib.report.guarantee import guarantee
from bnn_vnnlib.report.pictures import Picture
from bnn_vnnlib.report.row import ReportRow

_TEXTS = ("run", "category", "network", "verdict", "query", "rule", "guarantee", "method", "reason", "shows",
          "violation", "unsat_means", "vacuous")  # fmt: skip
_MOST_INPUTS = 10
"""Longer witnesses are in the records; the page shows them as pictures only."""


def page_data(rows: Sequence[ReportRow], keys: Sequence[int], images: Mapping[int, Picture]) -> dict[str, Any]:
    """Everything that scripts need.

    Returns
    -------
    rows : how many
    texts : by name {values: distinct texts, codes: index into them of each row, -1 for none}
    numbers : by name a list; null where there is none
    bounds : p_safe and decision as {lower, upper}; a decision's are lists, with "Infinity" and "-Infinity"
    guarantees : {values: [says, open, how], codes}
    more : by index of the row, what few of them have: witness, notes, diagnosis, details
    pictures : by index of the row
    """
    words = [guarantee(row) for row in rows]
    distinct = list(dict.fromkeys(words))
    places = {one: place for place, one in enumerate(distinct)}
    return {
        "rows": len(rows),
        "texts": {name: _coded(getattr(row, name) for row in rows) for name in _TEXTS} | {
            "checked": _coded(row.checks for row in rows), "property": _coded(row.prop for row in rows),
            "place": _coded(row.place for row in rows)},
        "numbers": {
            "key": list(keys),
            "seconds": [float(f"{row.seconds:.4g}") for row in rows],
            "timeout": [row.timeout for row in rows],
            "tau_safe": [row.tau_safe for row in rows],
            "tau_unsafe": [row.tau_unsafe for row in rows],
            "confidence": [row.confidence for row in rows],
            "gap": [None if row.gap is None or isinf(row.gap) else _out(row.gap, down=False) for row in rows],
        },
        "bounds": {"p_safe": [_interval(row) for row in rows], "decision": [_vectors(row) for row in rows]},
        "guarantees": {
            "values": [[one.says, one.open, one.how] for one in distinct], "codes": [places[one] for one in words]},
        "more": {str(index): more for index, row in enumerate(rows) if (more := _more(row))},
        "pictures": {str(index): picture.values() for index, picture in images.items()},
    }  # fmt: skip


def _coded(values: Iterable[str | None]) -> dict[str, list[Any]]:
    """Texts by number, because few of many are distinct.

    >>> _coded(["a", None, "b", "a"])
    {'values': ['a', 'b'], 'codes': [0, -1, 1, 0]}
    """
    numbers: dict[str, int] = {}
    codes = [-1 if value is None else numbers.setdefault(str(value), len(numbers)) for value in values]
    return {"values": list(numbers), "codes": codes}


def _interval(row: ReportRow) -> list[float] | None:
    return None if row.p_safe is None else [_out(row.p_safe[0], down=True), _out(row.p_safe[1], down=False)]


def _vectors(row: ReportRow) -> list[list[Any]] | None:
    if row.decision is None:
        return None
    lower, upper = row.decision
    return [as_json([_out(value, down=True) for value in lower]), as_json([_out(value, down=False) for value in upper])]


def _more(row: ReportRow) -> dict[str, Any]:
    """What a row shows when it is opened."""
    more: dict[str, Any] = {}
    if row.x is not None and len(row.x) <= _MOST_INPUTS:
        more["x"] = as_json(row.x)
    if row.y is not None and len(row.y) <= _MOST_INPUTS:
        more["y"] = as_json(row.y)
    if row.y is not None and len(row.y) > 1:
        more["largest"] = max(range(len(row.y)), key=row.y.__getitem__)
    if row.notes and row.method is not None:
        more["notes"] = list(row.notes)
    if row.diagnosis:
        more["diagnosis"] = list(row.diagnosis)
    facts = [f"{name} {_fact(value)}" for name, value in row.details.items() if value not in (None, [], {}, "")]
    return more | ({"details": facts} if facts else {})


def _fact(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _out(value: float, *, down: bool) -> float:
    """Six digits, so that no digit of the page claims more than was proved."""
    return float(digits(value, down=down))


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~$#&])")
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", **{letter: f"\\{letter}" for letter in "&%$#_{}"},
})  # fmt: skip
_LONG = 40
"""Rows from which a LaTeX table has to go over several pages."""


@dataclass(frozen=True)
class PageTable:
    """A table of texts.

    Attributes
    ----------
    name : of its files
    title : for people
    head, rows : cells; every row is as long as the head
    numbers : indices of the columns that hold numbers
    """

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()

    def files(self) -> dict[str, str]:
        """{name of the file: text}"""
        return {f"{self.name}.csv": self.csv(), f"{self.name}.md": self.markdown(), f"{self.name}.tex": self.latex()}

    def csv(self) -> str:
        """The cells as CSV text, unchanged but for characters that no program can show."""
        return table_text([self.head, *self.rows])

    def markdown(self) -> str:
        """A table of GitHub's Markdown under its title."""
        rule = ["---:" if index in self.numbers else "---" for index in range(len(self.head))]
        head, *rows = ([markdown(cell) for cell in row] for row in (self.head, *self.rows))
        lines = [_line(head), _line(rule), *map(_line, rows)]
        return "\n".join([f"## {markdown(self.title)}", "", *lines]) + "\n"

    def latex(self) -> str:
        """The table in LaTeX, to be read with \\input: with booktabs, and as a longtable where it is long."""
        columns = "".join("r" if index in self.numbers else "l" for index in range(len(self.head)))
        environment = "longtable" if len(self.rows) > _LONG else "tabular"
        head = _latex_line(self.head)
        packages = "booktabs and longtable" if environment == "longtable" else "booktabs"
        return "\n".join([
            f"% {printable(self.title)}; needs {packages}",
            f"\\begin{{{environment}}}{{{columns}}}", r"\toprule", head, r"\midrule",
            *([r"\endhead"] if environment == "longtable" else []),
            *(_latex_line(row) for row in self.rows), r"\bottomrule", f"\\end{{{environment}}}",
        ]) + "\n"  # fmt: skip


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line.

    >>> markdown("<b>a|b</b>")
    '\\\\<b\\\\>a\\\\|b\\\\</b\\\\>'
    """
    return _MARKDOWN.sub(r"\\\1", printable(text))


def latex_text(text: str) -> str:
    """Text that LaTeX shows as it is, on one line.

    >>> latex_text("a_b & 50%")
    'a\\\\_b \\\\& 50\\\\%'
    """
    return printable(text).translate(_LATEX)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


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


def render(context: Mapping[str, Any], data: Mapping[str, Any], plotly: str | None = None) -> str:
    """The page.

    Parameters
    ----------
    context : what the template shows
    data : JSON values for the scripts, see `page_data`
    plotly : the file of the plots' library, relative to the page; None: in the page (`library`)
    """
    jinja2 = _library("jinja2")
    loader = jinja2.DictLoader({name: _asset(name) for name in ("page.html", "parts.html")})
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_visible,
    )  # fmt: skip
    scripts = [*([_script(library())] if plotly is None else []), _script(_own_scripts())]
    nonce = token_urlsafe(18)
    allowed = [*map(_hash, scripts), *([f"'nonce-{nonce}'"] if plotly else [])]
    policy = _POLICY.format(scripts=" ".join(allowed))
    markup = _library("markupsafe").Markup
    page: str = environment.get_template("page.html").render(
        context,
        policy=policy,
        nonce=nonce,
        plotly=plotly,
        style=markup("\n".join(map(_asset, _STYLES))),
        scripts=[markup(script) for script in scripts],
        data=markup(_json(data)),
    )
    return page


def library() -> str:
    """The script of the plots' library."""
    text: str = _library("plotly.offline").get_plotlyjs()
    return text


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise OptionError(f"report needs {name.partition('.')[0]}: pip install 'bnn-vnnlib[report]'") from None


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _own_scripts() -> str:
    """The page's own scripts in one function, so that nothing but what it hands out is global."""
    return "\n".join(['"use strict";', "(() => {", *map(_asset, _SCRIPTS), "})();"])


def _script(text: str) -> str:
    """The script as a browser reads it, whose hash the page needs: lines ended by \\n, no end of its own element."""
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
