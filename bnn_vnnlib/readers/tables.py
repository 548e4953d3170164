"""Tables of comma-separated values, read and written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.printable import printable
from bnn_vnnlib.readers.packed import read_text

MAX_BYTES = 2**26
"""Bytes of a table, unpacked, at most."""

_CELLS = 4_000_000  # a table of commas has as many cells as bytes, and a cell takes sixty


def read_rows(path: Path, *, skip_blanks: bool = False) -> list[tuple[int, list[str]]]:
    """(line, cells) of each row of a CSV file, plain or gzip.

    `line` is that of the row's last line, which is where an unbalanced quotation mark shows.

    Parameters
    ----------
    skip_blanks : leave out blanks behind a comma

    Raises
    ------
    InputError : missing, unreadable, too large, no text, no CSV (with the line)
    """
    rows = csv.reader(io.StringIO(read_text(path, MAX_BYTES, what="a table"), newline=""), skipinitialspace=skip_blanks)
    found, cells = [], 0
    try:
        for row in rows:
            cells += max(1, len(row))
            if cells > _CELLS:
                raise InputError(f"the table has more than {_CELLS:,} cells", path=path)
            found.append((rows.line_num, row))
    except csv.Error as error:
        raise InputError(f"not a CSV file ({error})", path=path, line=rows.line_num) from None
    return found


def table_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV that any program can show: what is not printable in a cell is written as its escape."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [printable(cell, lines=True) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()
