"""`bnn-vnnlib report`: a page that people can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug
from bnn_vnnlib.printable import say

if TYPE_CHECKING:
    from bnn_vnnlib.report.report import Report


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that run or compare wrote.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The page.", show_default="DIR/report.html")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another such folder, shown beside this one.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="Inputs are images: 8x8, 3x32x32.", show_default="as the model says"),
    ] = None,
    pictures: Annotated[int, typer.Option(min=0, help="The most instances that get pictures.")] = 200,
    single_file: Annotated[
        bool,
        typer.Option(
            "--single-file", help="Put the plots' library (4.8 MB) into the page, and not into a file beside it."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Make one HTML page of a run or a comparison, and its tables as CSV, Markdown and LaTeX.

    The page needs no network. The tables go beside it, into FILE_tables, and so does
    the library that draws its plots (FILE_plotly.js), unless --single-file is given.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.report.pictures import parse_shape
        from bnn_vnnlib.report.report import write_report

        shape = None if image is None else parse_shape(image)
        with console.status("reading and writing"):
            written = write_report(folder, out, against=against, image=shape, most=pictures, single_file=single_file)
        say(console, *_told(written))


def _told(written: Report) -> list[str]:
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in written.verdicts.most_common())
    lines = [f"{written.verdicts.total()} instances: {counts}"]
    if written.conflicts:
        lines.append(f"results that exclude each other: {written.conflicts} pairs, at the top of the page")
    size = written.page.stat().st_size / 2**20
    beside = "" if written.beside is None else f", {written.beside.name} (its plots)"
    return [*lines, f"wrote {written.page} ({size:.2g} MiB){beside} and {len(written.tables)} tables beside it"]
