"""Plain and gzip files, tables and JSON: what they hold, or one message."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bnn_vnnlib.errors import InputError, ModelError, printable
from bnn_vnnlib.readers import located, parse_json, read_bytes, read_rows, read_start, read_text, table_text
from bnn_vnnlib.readers import text as packed
from bnn_vnnlib.readers import text as tables

TEXT = b"a,b\n" * 10


def zipped(data: bytes) -> bytes:
    """As gzip, without the time: every process has to find tests of the same names."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize("data", [TEXT, zipped(TEXT), zipped(TEXT[:8]) + zipped(TEXT[8:]) + bytes(9)])
def test_the_content_is_unpacked_whatever_the_name(tmp_path, data):
    """Also of several gzip members, as bgzip writes them, and with zeros behind, as tapes do."""
    (tmp_path / "file").write_bytes(data)
    assert read_bytes(tmp_path / "file", 1000) == TEXT
    assert read_start(tmp_path / "file", 5) == TEXT[:5]
    assert read_text(tmp_path / "file", 1000) == TEXT.decode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(41), "the file has 41 bytes, more than the 40 that are read"),
        (zipped(bytes(41)), "unpacks to more than 40 bytes"),
        (zipped(TEXT)[:-9], r"damaged gzip file \(it ends too early\)"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 30, "damaged gzip file"),
        (zipped(b"a")[:-8] + bytes(8), "damaged gzip file"),
        (zipped(b"a") + b"junk", "damaged gzip file"),
    ],
)
def test_files_that_are_not_read(tmp_path, data, words):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ModelError, match=words) as caught:
        read_bytes(tmp_path / "file", 40, ModelError)
    assert caught.value.path == tmp_path / "file"


def test_a_bomb_is_one_by_its_ratio(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "SMALL", 1000)
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(2**20)))
    with pytest.raises(InputError, match="if it is no gzip bomb, unpack it yourself"):
        read_bytes(tmp_path / "bomb", 2**30)
    (tmp_path / "plain").write_bytes(bytes(2**20))
    assert len(read_bytes(tmp_path / "plain", 2**30)) == 2**20


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "make", [Path.mkdir, _pipe, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/dev/zero"), None]
)
def test_what_is_no_file(tmp_path, make: Callable[[Path], Any] | None):
    path = tmp_path / "x"
    if make is not None:
        make(path)
    for read in (
        lambda: read_bytes(path, 10),
        lambda: read_start(path, 1),
        lambda: located(path),
        lambda: read_rows(path),
    ):
        with pytest.raises(InputError, match="is a folder" if path.is_dir() else "no such file"):
            read()


@pytest.mark.parametrize("name", ["a" * 5000, "\0", "a\udc80"])
def test_names_that_no_file_has(tmp_path, name):
    with pytest.raises(InputError, match=r"no such file|cannot be read") as caught:
        located(tmp_path / name)
    assert str(caught.value).isprintable()
    with pytest.raises(InputError):
        read_bytes(tmp_path / name, 10)


def test_the_packed_file_stands_for_the_plain_one(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x"))
    assert located(tmp_path / "a") == tmp_path / "a.gz"
    (tmp_path / "a").write_bytes(b"y")
    assert located(tmp_path / "a") == tmp_path / "a"


def test_text_that_is_none_is_named_with_its_line(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\nb\xff")
    with pytest.raises(ModelError, match="expected a poem in UTF-8") as caught:
        read_text(tmp_path / "a", 100, "a poem", ModelError)
    assert caught.value.line == 2
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa")
    assert read_text(tmp_path / "a", 100) == "a"


def test_rows_have_their_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b'a, b\r\n\n"c\nd",e\n'))
    assert read_rows(tmp_path / "a.csv") == [(1, ["a", " b"]), (2, []), (4, ["c\nd", "e"])]
    assert read_rows(tmp_path / "a.csv", skip_blanks=True)[0] == (1, ["a", "b"])


@pytest.mark.parametrize(
    ("data", "words"), [(b"a,b\n" + b"c" * 200_000, "not a CSV file"), (b"a\xff", "expected a table in UTF-8")]
)
def test_tables_that_are_none(tmp_path, data, words):
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_rows(tmp_path / "a.csv")
    assert caught.value.line in (1, 2)


def test_a_table_of_commas_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_CELLS", 50)
    (tmp_path / "a.csv").write_bytes(b",,,,\n" * 11)
    with pytest.raises(InputError, match="more than 50 cells"):
        read_rows(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(b"\n" * 51)
    with pytest.raises(InputError, match="more than 50 cells"):
        read_rows(tmp_path / "a.csv")


def test_a_table_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 2**16)
    (tmp_path / "a.csv").write_bytes(gzip.compress(bytes(2**17)))
    with pytest.raises(InputError, match="unpacks to more than 65,536 bytes"):
        read_rows(tmp_path / "a.csv")


def test_tables_are_written_so_that_a_terminal_can_show_them():
    assert table_text([("a", 1.5, None), ("\x1b[2J", "b,\nc", "\u202e")]) == 'a,1.5,\n\\x1b[2J,"b,\nc",\\u202e\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1, column 2"),
        ('{"a": NaN}', "NaN is no number in JSON"),
        ("[-Infinity]", "-Infinity is no number in JSON"),
        ("[1e999]", "1e999 is infinite as float64"),
        ("[" + "9" * 5000 + "]", "a whole number of 5000 digits"),
        ("[-" + "9" * 399 + "]", "a whole number of 400 digits"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' is there twice"),
        ("[" * 65 + "]" * 65, "nested too deep, more than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested too deep"),
        ("[" * 100_000, "nested too deep"),
        ("[1] 2", "Extra data"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_refused(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_json(text)
    assert len(str(caught.value)) < 200


def test_json_that_is_read():
    text = '{"a": [1, -2.5e-3, true, null, "\\u001b", {}], "b": ' + "[" * 62 + "]" * 62 + ', "c": ' + "9" * 300 + "}"
    found = parse_json(text)
    assert found["a"] == [1, -0.0025, True, None, "\x1b", {}]
    assert found["c"] == int("9" * 300)


@pytest.mark.parametrize(
    "letter", ["\x1b", "\x9b", "\x07", "\r", "\x7f", "\u202e", "\u2028", "\ud800", "\x00", "\n", "\t"]
)
def test_nothing_that_moves_a_cursor_is_printable(letter):
    shown = printable(f"a{letter}b")
    assert shown.isprintable()
    assert shown == f"a{letter.encode('unicode_escape').decode()}b"
    assert printable(f"a{letter}b", lines=True) == (f"a{letter}b" if letter in "\n\t" else shown)


def test_other_text_is_left_alone():
    assert printable("n\u00e9t [\u03c3] \\x1b") == "n\u00e9t [\u03c3] \\x1b"
