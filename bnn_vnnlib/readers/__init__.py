"""Files that strangers made -> bytes, text, tables, arrays and JSON values.

One reader of each kind, used wherever this package opens a file. Whatever is in the file, a reader hands out what it
claims to hold, or raises one InputError that names the file and what is wrong with it, before it has taken more memory
than a file of that size can need. Nothing of a file is ever run: no pickles, no names that are looked up.
"""

from bnn_vnnlib.readers.archives import read_npz
from bnn_vnnlib.readers.text import (
    is_gzip,
    located,
    parse_json,
    read_bytes,
    read_rows,
    read_start,
    read_text,
    table_text,
)

__all__ = [
    "is_gzip",
    "located",
    "parse_json",
    "read_bytes",
    "read_npz",
    "read_rows",
    "read_start",
    "read_text",
    "table_text",
]
