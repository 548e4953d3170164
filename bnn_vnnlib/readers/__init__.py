"""Files that strangers made -> bytes, text, tables, arrays and JSON values.

One reader of each kind, used wherever this package opens a file. Whatever is in the file, a reader hands out what it
claims to hold, or raises one InputError that names the file and what is wrong with it, before it has taken more memory
than a file of that size can need. Nothing of a file is ever run: no pickles, no names that are looked up.
"""

from bnn_vnnlib.readers.archives import read_npz
from bnn_vnnlib.readers.json_values import parse_json
from bnn_vnnlib.readers.packed import is_gzip, located, read_bytes, read_start, read_text
from bnn_vnnlib.readers.tables import read_rows, table_text

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
