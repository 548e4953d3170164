"""Text of strangers, as a terminal, a page or a table can show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def say(console: Console, *lines: str) -> None:
    """Print lines as they are: without markup or colours, and not broken at the terminal's width."""
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def printable(text: str, *, lines: bool = False) -> str:
    r"""Every character that is not printable, written as its escape: `\x1b` for the ESC that starts a terminal's codes.

    Names in files, files' names and cells of tables hold what their authors like: codes that recolour, overwrite or
    retitle a terminal, letters that turn the direction of writing, halves of letters that no file can hold. All of
    these are not `str.isprintable`. Other text comes back as it is.

    Parameters
    ----------
    lines : leave line breaks and tabs as they are, for text that has several lines

    >>> printable("\x1b[2Jnet\n.onnx"), printable("a\n\tb\x07", lines=True)
    ('\\x1b[2Jnet\\n.onnx', 'a\n\tb\\x07')
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        letter if letter.isprintable() or letter in kept else letter.encode("unicode_escape").decode()
        for letter in text
    )
