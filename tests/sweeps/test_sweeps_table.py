"""Tables and inputs: both formats say the same, and whatever is wrong is named."""

from __future__ import annotations

import numpy as np
import pytest

from bnn_vnnlib import InputError
from bnn_vnnlib.files import arrays
from bnn_vnnlib.files.arrays import write_columns
from bnn_vnnlib.sweeps import make_inputs, make_table, read_inputs, read_table
from sweeps.sweep_models import boxes

WITHOUT = "pyarrow (extra `parquet`) is not installed"
GOOD = boxes(6, 3, 4)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"label": None},
        {"network": np.array(["a", "b"] * 3), "group": np.arange(6)},
        {"label": None, "output_lower": np.full((6, 2), -np.inf), "output_upper": np.ones((6, 2))},
        {"label": None, "a": np.ones((6, 2, 4)), "b": np.zeros((6, 2)), "case": np.zeros((6, 2), int)},
    ],
)
def test_npz_and_parquet_are_the_same_table(tmp_path, more):
    pytest.importorskip("pyarrow", reason=WITHOUT)
    arrays = {name: values for name, values in (GOOD | more).items() if values is not None}
    np.savez(tmp_path / "table.npz", **arrays)
    nested = dict(arrays)
    if "a" in arrays:  # lists of lists are written by pyarrow itself
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: values.tolist() for name, values in arrays.items()}), tmp_path / "table.parquet")
    else:
        write_columns(tmp_path / "table.parquet", nested)
    first, second = read_table(tmp_path / "table.npz"), read_table(tmp_path / "table.parquet")
    assert first.digests == second.digests
    assert set(first.digests) == set(arrays)


def wrong(**changes):
    return {name: values for name, values in (GOOD | changes).items() if values is not None}


def nan_at(row, column):
    values = GOOD["lower"].copy()
    values[row, column] = np.nan
    return values


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (wrong(lower=None), "array 'lower' is missing"),
        (wrong(labels=GOOD["label"]), "unknown array 'labels'; known are lower, upper, label"),
        (wrong(lower=GOOD["lower"][:, :2]), r"lower has shape \(6, 2\) and upper \(6, 3\)"),
        (wrong(lower=GOOD["lower"][0]), r"array 'lower' must have 2 axes, found shape \(3,\)"),
        (wrong(lower=nan_at(4, 1)), r"array 'lower' holds nan at \[4, 1\]"),
        (wrong(upper=np.full((6, 3), np.inf)), r"array 'upper' holds inf at \[0, 0\]"),
        (wrong(lower=GOOD["upper"] + 1), "row 0 is empty: lower exceeds upper in input 0"),
        (wrong(lower=GOOD["lower"].astype(str)), "array 'lower' must hold numbers"),
        (wrong(label=GOOD["label"] + 0.5), "array 'label' must hold 6 integers, found float64"),
        (wrong(labels=GOOD["label"]), "unknown array 'labels'.*did you mean 'label'"),
        (wrong(lower=GOOD["lower"][None]), "must have 2 axes, .*flatten each row in the network's order"),
        (wrong(label=GOOD["label"][:5]), r"array 'label' must hold 6 integers, found int64 of shape \(5,\)"),
        (wrong(a=np.ones((6, 1, 4)), b=np.ones((6, 1))), "'label' and 'a' both say what is asked"),
        (wrong(case=np.zeros(2, int)), "'case' goes with 'a' and 'b'"),
        (wrong(label=None, a=np.ones((6, 1, 4))), "array 'b' is missing"),
        (wrong(label=None, a=np.ones((6, 1, 4)), b=np.ones((6, 2))), "a must be"),
        (
            wrong(label=None, a=np.ones((6, 2, 4)), b=np.ones((6, 2)), case=np.zeros(3, int)),
            "case must hold 2 integers",
        ),
        (wrong(label=None, output_lower=np.ones((6, 1))), "array 'output_upper' is missing"),
        (wrong(label=None, output_lower=np.ones((6, 1)), output_upper=np.zeros((6, 1))), "row 0 allows no output"),
        (wrong(label=None, output_lower=np.full((6, 1), np.nan), output_upper=np.zeros((6, 1))), "holds nan"),
        (wrong(network=np.array(["a"])), "array 'network' must hold 6 names"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(arrays, words):
    with pytest.raises(InputError, match=words):
        make_table(arrays)


INPUTS = {"x": np.zeros((4, 2)), "label": np.zeros(4, int)}


@pytest.mark.parametrize(
    ("arrays", "clip", "words"),
    [
        ({"label": np.zeros(4, int)}, None, "array 'x' is missing"),
        ({"x": np.zeros((0, 2))}, None, "no inputs"),
        (INPUTS | {"scale": np.ones(3)}, None, "array 'scale' must hold 2 numbers, found 3"),
        (INPUTS | {"valid_lower": np.ones(2)}, None, "input 0 of row 0 is 0.0, outside of the valid range"),
        (INPUTS | {"valid_lower": -np.ones(2)}, (0, 1), "a valid range is in the file and among the options"),
        (INPUTS, (1, 0), "is empty"),
        (INPUTS | {"y": np.zeros(3)}, None, "array 'y' must have a row for each of 4 inputs"),
        (INPUTS | {"radius": np.zeros(3)}, None, "unknown array 'radius'"),
    ],
)
def test_what_is_wrong_with_inputs_is_named(arrays, clip, words):
    with pytest.raises(InputError, match=words):
        make_inputs(arrays, clip)


def test_files_that_are_no_tables(tmp_path):
    for content, words in (
        (b"nonsense", "expected a table .*: it holds text"),
        (b"\xff\xfenonsense", "neither an npz nor a Parquet file"),
        (b"PAR1nonsense", "not a readable Parquet"),
    ):
        (tmp_path / "table").write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_table(tmp_path / "table")
    np.savez(tmp_path / "pickled.npz", lower=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"member 'lower.npy' holds object"):
        read_table(tmp_path / "pickled.npz")
    with pytest.raises(InputError, match="no such file"):
        read_inputs(tmp_path / "nowhere.npz")
    with pytest.raises(InputError, match="is a folder"):
        read_inputs(tmp_path)


def test_parquet_columns_that_are_no_arrays(tmp_path):
    pa, pq = (pytest.importorskip(name, reason=WITHOUT) for name in ("pyarrow", "pyarrow.parquet"))
    pq.write_table(pa.table({"lower": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged")
    with pytest.raises(InputError, match="lists of different lengths"):
        read_table(tmp_path / "ragged")
    pq.write_table(pa.table({"lower": [[1.0], None]}), tmp_path / "missing")
    with pytest.raises(InputError, match="missing values"):
        read_table(tmp_path / "missing")


def test_whole_numbers_that_float64_would_round_are_refused():
    good = {"lower": np.array([[2**53, -(2**53)]]), "upper": np.array([[2**53, 2**53]])}
    assert make_table(good).lower.tolist() == [[2.0**53, -(2.0**53)]]
    with pytest.raises(InputError, match=r"array 'upper' holds whole numbers beyond 2\^53"):
        make_table({**good, "upper": np.array([[2**53, 2**53 + 1]])})
    with pytest.raises(InputError, match=r"array 'lower' holds whole numbers beyond 2\^53"):
        make_table({**good, "lower": np.array([[0, -(2**53) - 1]])})
    assert make_table({"lower": np.uint8([[1]]), "upper": np.int8([[1]])}).upper.tolist() == [[1.0]]


def test_parquet_files_that_lie(tmp_path, monkeypatch):
    pa, pq = (pytest.importorskip(name, reason=WITHOUT) for name in ("pyarrow", "pyarrow.parquet"))
    folder = tmp_path / "label=3"  # a Parquet data set would take the folder's name for a column
    folder.mkdir()
    path = folder / "t.parquet"
    boxes = pa.array([[0.0], [0.5]])
    pq.write_table(pa.table({"lower": boxes, "upper": boxes}), path)
    assert read_table(path).asked.labels is None
    pq.write_table(pa.table([boxes, boxes, boxes], names=["lower", "upper", "lower"]), path)
    with pytest.raises(InputError, match="two columns have the same name"):
        read_table(path)
    for column in ([b"a", b"b"], [{"a": 1}] * 2, pa.array([1, 2], pa.timestamp("ns"))):
        pq.write_table(pa.table({"lower": boxes, "upper": boxes, "group": column}), path)
        with pytest.raises(InputError, match=r"column 'group' holds .*, expected numbers, text"):
            read_table(path)
    zeros = pa.array(np.zeros(100_000))
    pq.write_table(pa.table({"lower": zeros, "upper": zeros}), path)
    monkeypatch.setattr(arrays, "SMALL", 2**16)
    with pytest.raises(InputError, match="looks like a bomb"):
        read_table(path)


def test_labels_may_be_whole_numbers_of_a_floating_type() -> None:
    labels = make_table({**GOOD, "label": GOOD["label"].astype(np.float32)}).asked.labels
    np.testing.assert_array_equal(labels, GOOD["label"])
