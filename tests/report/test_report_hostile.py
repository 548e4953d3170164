"""Records that somebody else wrote: each is refused with one message, or becomes a page that a browser can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.report import page as pages
from bnn_vnnlib.report.page import page_data
from bnn_vnnlib.report.pictures import pictures
from bnn_vnnlib.report.row import read_row
from bnn_vnnlib.report.source import ReportedRun
from bnn_vnnlib.report.summary import counts, guarantees, instances, problems
from bnn_vnnlib.report.summary import settings as settings_of
from support.records import decision, plain, safe, values, write_run

NAMES = {"category": "c", "network": "n", "property": "p", "run_time": 1.0}
RECORDS = [values(result, {}) | {"run": NAMES} for result in
           (safe("sat", 0.1, 0.2), decision("unknown", [0.0], [1.0]), plain("unsat"), "a reason")]  # fmt: skip
FIELDS = sorted({*RECORDS[0], *(f"{outer}.{inner}" for outer, inner in
                 (("run", "run_time"), ("run", "property"), ("p_safe", "upper"), ("decision", "lower"),
                  ("witness", "x"), ("files", "property"), ("sha256", "model")))})  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=8), st.just("Infinity"),
    st.sampled_from(["\ud800", "a" * 5000, "\0/x", 10**400]),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(RECORDS), st.lists(st.tuples(st.sampled_from(FIELDS), ANYTHING), min_size=1, max_size=3))
def test_any_record_is_refused_or_shown(record, changes):
    changed = json.loads(json.dumps(record))
    for field, value in changes:
        outer, _, inner = field.partition(".")
        if inner and isinstance(changed.get(outer), dict):
            changed[outer][inner] = value
        elif not inner:
            changed[outer] = value
    try:
        row = read_row("run", "place", changed, Path("record"))
    except InputError:
        return
    rows = [row]
    text = pages._json(page_data(rows, [0], pictures(rows, (1, 2, 2), 1) if row.x and len(row.x) == 4 else {}))
    assert json.loads(text)["rows"] == 1
    assert "<" not in text
    for table in (
        counts([ReportedRun("run", {}, (row,))]),
        instances(rows),
        settings_of([ReportedRun("run", {}, (row,))]),
    ):
        assert all(len(line) == len(table.head) for line in table.rows)
        table.files()
    assert len(guarantees(rows)) == 1
    assert len(problems(rows)) <= 1


def test_halves_of_letters_and_names_that_no_file_has(tmp_path):
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    from bnn_vnnlib.report.report import write_report

    folder = write_run(tmp_path / "out", (("c", "n", "p\ud800"), safe("sat", 0.0, 0.1, notes=("\udfff",))))
    (record,) = folder.glob("instances/*/*.json")
    changed = json.loads(record.read_text()) | {"files": {"property": "a" * 5000, "model": "\0"}}
    record.write_text(json.dumps(changed | {"sha256": {"property": "1", "model": "1"}}))
    report = write_report(folder, image=(1, 2, 2))
    assert r"p\\ud800" in report.page.read_text(encoding="utf-8")
    assert all(path.read_text(encoding="utf-8") for path in report.tables)
