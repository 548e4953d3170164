"""Tables as CSV, Markdown and LaTeX. Cells are text of strangers in all three."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bnn_vnnlib.printable import printable
from bnn_vnnlib.readers import table_text

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~$#&])")
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", **{letter: f"\\{letter}" for letter in "&%$#_{}"},
})  # fmt: skip
_LONG = 40
"""Rows from which a LaTeX table has to go over several pages."""


@dataclass(frozen=True)
class Table:
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
        """As it is, but for what no program can show."""
        return table_text([self.head, *self.rows])

    def markdown(self) -> str:
        """A table of GitHub's Markdown under its title."""
        rule = ["---:" if index in self.numbers else "---" for index in range(len(self.head))]
        head, *rows = ([markdown(cell) for cell in row] for row in (self.head, *self.rows))
        lines = [_line(head), _line(rule), *map(_line, rows)]
        return "\n".join([f"## {markdown(self.title)}", "", *lines]) + "\n"

    def latex(self) -> str:
        """For booktabs, and longtable where it is long; \\input it."""
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


def latex(text: str) -> str:
    """Text that LaTeX shows as it is, on one line.

    >>> latex("a_b & 50%")
    'a\\\\_b \\\\& 50\\\\%'
    """
    return printable(text).translate(_LATEX)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"
