"""Benchmark folders and instances.csv."""

from __future__ import annotations

import gzip

import pytest

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.benchmarks import existing, read_benchmarks
from bnn_vnnlib.runs.run import selected


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["instances.csv", "instances.csv.gz"])
def test_a_folder_a_table_and_a_folder_of_benchmarks_are_the_same(tmp_path, name):
    table = write(
        tmp_path / "all" / "acas" / name, "onnx/a.onnx,vnnlib/p.vnnlib,116\nonnx/b.onnx, vnnlib/p.vnnlib ,1e1\n"
    )
    ways = [read_benchmarks([way]) for way in (table, table.parent, tmp_path / "all", tmp_path)]
    assert all(way == ways[0] for way in ways)
    first, second = ways[0]
    assert (first.category, first.onnx, first.vnnlib, first.timeout) == ("acas", "onnx/a.onnx", "vnnlib/p.vnnlib", 116)
    assert second.vnnlib == "vnnlib/p.vnnlib"
    assert second.timeout == 10
    assert first.models == ((None, table.parent.resolve() / "onnx/a.onnx"),)


def test_a_table_that_lies_both_packed_and_plain_counts_once(tmp_path):
    write(tmp_path / "b" / "instances.csv", "a.onnx,p.vnnlib,1\n")
    write(tmp_path / "b" / "instances.csv.gz", "other.onnx,p.vnnlib,1\n")
    assert [instance.onnx for instance in read_benchmarks([tmp_path])] == ["a.onnx"]


def test_both_version_folders(tmp_path):
    for version in ("1.0", "2.0"):
        write(tmp_path / "acas" / version / "instances.csv", "a.onnx,p.vnnlib,1\n")
    found = read_benchmarks([tmp_path / "acas"])
    assert [instance.category for instance in found] == ["acas/1.0", "acas/2.0"]
    assert found[0].prop != found[1].prop


def test_other_tables_of_a_folder_have_names_of_their_own(tmp_path):
    one = write(tmp_path / "b" / "instances.csv", "a.onnx,p.vnnlib,1\n")
    two = write(tmp_path / "b" / "instances_2.0.csv", "a.onnx,p.vnnlib,1\n")
    assert [instance.category for instance in read_benchmarks([one, two])] == ["b", "b_2.0"]
    assert len(read_benchmarks([one, one])) == 1


def test_a_quoted_list_of_networks(tmp_path):
    table = write(tmp_path / "b" / "instances.csv", "\"[('f', 'a.onnx'), ('g', 'b.onnx')]\",p.vnnlib,1\n")
    (instance,) = read_benchmarks([table])
    folder = table.parent.resolve()
    assert instance.models == (("f", folder / "a.onnx"), ("g", folder / "b.onnx"))
    assert instance.onnx == "[('f', 'a.onnx'), ('g', 'b.onnx')]"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a.onnx,p.vnnlib\n", 1, "found 2 cells"),
        ("\na.onnx,p.vnnlib,1\n[('f', 'a.onnx'), ('g', 'b.onnx')],p.vnnlib,1\n", 3, "must be quoted"),
        ("a.onnx,p.vnnlib,soon\n", 1, "positive number of seconds, found 'soon'"),
        ("a.onnx,p.vnnlib,-1\n", 1, "found '-1'"),
        ("a.onnx,p.vnnlib,nan\n", 1, "found 'nan'"),
        ('"[1, 2]",p.vnnlib,1\n', 1, "expected a path or a list"),
        ('"[f: a]",p.vnnlib,1\n', 1, "expected a path or a list"),
        ("[],p.vnnlib,1\n", 1, "expected a path or a list"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, line, message):
    table = write(tmp_path / "b" / "instances.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        read_benchmarks([table])
    assert caught.value.line == line
    assert caught.value.path == table


def test_tables_that_cannot_be_read(tmp_path):
    broken = write(tmp_path / "b" / "instances.csv.gz", "a.onnx,p.vnnlib,1\n")
    broken.write_bytes(broken.read_bytes()[:-6])
    with pytest.raises(InputError, match="damaged gzip file"):
        read_benchmarks([broken])
    with pytest.raises(InputError, match="no such file or folder"):
        read_benchmarks([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no instances.csv in this folder"):
        read_benchmarks([tmp_path / "empty"])


def test_two_benchmarks_of_one_name_are_refused(tmp_path):
    tables = [write(tmp_path / year / "acas" / "instances.csv", "a.onnx,p.vnnlib,1\n") for year in ("y1", "y2")]
    with pytest.raises(OptionError, match="two benchmarks are called 'acas'"):
        read_benchmarks(tables)


def test_a_file_or_its_packed_twin(tmp_path):
    write(tmp_path / "packed.onnx.gz", "x")
    write(tmp_path / "plain.onnx", "x")
    assert existing(tmp_path / "packed.onnx") == tmp_path / "packed.onnx.gz"
    assert existing(tmp_path / "plain.onnx.gz") == tmp_path / "plain.onnx"
    assert existing(tmp_path / "gone.onnx") is None


def test_selection_by_pattern(tmp_path):
    text = (
        "onnx/a.onnx,vnnlib/prop_1.vnnlib,1\nonnx/b.onnx,vnnlib/prop_1.vnnlib,1\nonnx/b.onnx,vnnlib/prop_2.vnnlib,1\n"
    )
    instances = read_benchmarks([write(tmp_path / "acas" / "instances.csv", text)])
    assert selected(instances, []) == instances
    assert selected(instances, ["b.onnx*prop_1"]) == instances[1:2]
    assert selected(instances, ["prop_2", "a.onnx"]) == [instances[0], instances[2]]
    assert selected(instances, ["nothing"]) == []


def test_a_table_is_no_bomb(tmp_path):
    (tmp_path / "instances.csv.gz").write_bytes(gzip.compress(b"a" * (2**26 + 1), 1))
    with pytest.raises(InputError, match="unpacks to more than 67,108,864 bytes"):
        read_benchmarks([tmp_path / "instances.csv.gz"])


@pytest.mark.parametrize(
    "cell", ["[" * 9000, "[('a', '" + "b" * 10_000 + "')]", "[" + "-" * 5000 + "1]", "['\\\\d', 2]"]
)
def test_lists_of_networks_that_are_none(tmp_path, cell):
    table = write(tmp_path / "b" / "instances.csv", f'"{cell}",p.vnnlib,1\n')
    with pytest.raises(InputError, match="expected a path or a list") as caught:
        read_benchmarks([table])
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("name", ["a" * 5000, "\0"])
def test_a_name_that_no_file_has_is_missing(tmp_path, name):
    (one,) = read_benchmarks([write(tmp_path / "b" / "instances.csv", f"{name},p.vnnlib,1\n")])
    assert len(one.missing) == 2
