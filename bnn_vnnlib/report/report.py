"""A report: folders in, the page and its tables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.report import summary
from bnn_vnnlib.report.guarantee import certain
from bnn_vnnlib.report.page import PageTable, check_libraries, library, page_data, render
from bnn_vnnlib.report.pictures import ImageShape, pictures
from bnn_vnnlib.report.source import ReportedFolder, conflicts, instance_keys, read_folder
from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.compare import SAYS


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes
    ----------
    page : the HTML file
    beside : the plots' library, where it is not in the page
    tables : the other files
    verdicts : how often each, over all runs
    conflicts : results that exclude each other
    """

    page: Path
    beside: Path | None
    tables: tuple[Path, ...]
    verdicts: Counter[Verdict]
    conflicts: int


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    against: Path | None = None,
    image: ImageShape | None = None,
    most: int = 200,
    single_file: bool = False,
) -> Report:
    """Write the page and the tables.

    Parameters
    ----------
    folder : of a run or a comparison
    out : the page; None: report.html in the folder. The tables go beside it, into a folder with its name and "_tables"
    against : another such folder, whose instances are put beside those of the same names
    image : shape of the inputs where they are images and the model does not say so
    most : how many instances get pictures
    single_file : put the plots' library, 4.8 MB, into the page, and not into a file beside it

    Raises
    ------
    InputError : a folder that cannot be used, a damaged record, no instance in common, a place that cannot be written
    OptionError : a library is missing; an image of another size than the inputs
    """
    check_libraries()
    out = out or folder / "report.html"
    sources = _sources(folder, against)
    if not out.resolve().parent.is_dir():
        raise OptionError("there is no such folder to write into", path=out)
    beside = None if single_file else out.with_name(f"{out.stem}_plotly.js")
    text, found, conflicting = make_page(sources, image, most, None if beside is None else quote(beside.name))
    tables = _write_tables(out.with_name(f"{out.stem}_tables"), found)
    if beside is not None:
        write_text(beside, library())
    write_text(out, text)
    verdicts = Counter(row.verdict for source in sources for row in source.rows)
    return Report(out, beside, tables, verdicts, conflicting)


def make_page(
    sources: Sequence[ReportedFolder], image: ImageShape | None = None, most: int = 200, plotly: str | None = None
) -> tuple[str, tuple[PageTable, ...], int]:
    """The page of one or two folders, its tables, and how many pairs of results exclude each other.

    Parameters and errors are those of `write_report`; `plotly` as in `render`.
    """
    runs = [run for source in sources for run in source.runs]
    rows = [row for run in runs for row in run.rows]
    keys = instance_keys(runs, {pair: names for source in sources for pair, names in source.same.items()})
    if len(sources) > 1:
        _check_common(sources, keys)
    disagreements = summary.disagreements(list(conflicts(rows, keys)))
    compared = [table for source in sources for table in summary.of_comparison(source.tables)]
    tables = (summary.counts(runs), summary.instances(rows), summary.settings(runs), disagreements, *compared)
    images = pictures(rows, image, most)
    context = {
        **_frame(sources, tables), "problems": summary.problems(rows), "guarantees": summary.guarantees(rows),
        "several": len(runs) > 1, "pictured": len(images), "total": len(rows),
        "verdicts": Counter(row.verdict.value for row in rows),
    }  # fmt: skip
    return render(context, page_data(rows, keys, images), plotly), tables, len(disagreements.rows)


def _sources(folder: Path, against: Path | None) -> list[ReportedFolder]:
    if against is None:
        return [read_folder(folder)]
    if folder.resolve() == against.resolve():
        raise OptionError("--against is the same folder; expected another run", path=against)
    names = [folder.resolve().name, against.resolve().name]
    if names[0] == names[1]:
        names = [str(folder), str(against)]
    return [read_folder(place, name) for place, name in zip((folder, against), names, strict=True)]


def _check_common(sources: Sequence[ReportedFolder], keys: Sequence[int]) -> None:
    first = len(sources[0].rows)
    if not set(keys[:first]) & set(keys[first:]):
        raise InputError("no instance in common: none has the same benchmark, network and property as one of "
                         f"{sources[0].folder}", path=sources[1].folder)  # fmt: skip


def _frame(sources: Sequence[ReportedFolder], tables: Sequence[PageTable]) -> dict[str, Any]:
    """The part of the report's data that does not depend on single instances."""
    by_name = {table.name: table for table in tables}
    return {
        "title": " against ".join(source.folder.resolve().name for source in sources),
        "folders": [str(source.folder) for source in sources],
        "version": __version__,
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "counts": by_name["counts"],
        "settings": by_name["settings"],
        "conflicts": by_name["conflicts"],
        "compared": [table for table in tables if table.name in summary.OF_COMPARISON],
        "comparison": any(source.comparison for source in sources),
        "says": SAYS.replace("\n", " ").replace("`", ""),
        "certain": certain(row for source in sources for row in source.rows),
    }


def _write_tables(folder: Path, tables: Sequence[PageTable]) -> tuple[Path, ...]:
    """Write the tables that hold something; the file of an earlier report's table that would be empty now is taken
    away.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder for the tables cannot be made: {error.strerror}", path=folder) from None
    written = []
    for table in tables:
        for name, text in table.files().items():
            if table.rows:
                write_text(folder / name, text)
                written.append(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    return tuple(written)
