"""The console that all commands print on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from bnn_vnnlib.printable import printable


class Terminal(Console):
    """A console on which text is text: only this program's own styles become codes of the terminal.

    What is printed may come from files: names of nodes, cells of tables, names of files themselves. All of it comes by
    here, in a line, a table or a bar: escapes are shown, line breaks kept (a line that must stay one is made
    `printable` before), and neither rich's markup nor its emoji mean anything.
    """

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file=file, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments as rich renders them, with everything that is not its own made printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, lines=True), segment.style)
