"""Tables as CSV, Markdown and LaTeX: what is in them, and that names cannot break them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnn_vnnlib import Verdict
from bnn_vnnlib.errors import printable
from bnn_vnnlib.report.page import PageTable, latex_text, markdown, page_data
from bnn_vnnlib.report.source import ReportedRun
from bnn_vnnlib.report.summary import counts, instances, problems, settings
from support.records import decision, plain, row, safe

ROWS = (row(safe("unsat", 0.9999999, 1.0)), row(safe("sat", 0.0, 1e-9)), row(plain("unsat")), row("a reason"),
        row(decision("timeout", [-1.23456789], [2.3456789])))  # fmt: skip


def test_counts_by_query():
    table = counts([ReportedRun("run", {}, ROWS)])
    assert table.rows == (
        ("run", "c", "probabilistic", "1", "1", "0", "0", "0", "2", "3.0"),
        ("run", "c", "deterministic", "1", "0", "0", "0", "0", "1", "1.5"),
        ("run", "c", "not known", "0", "0", "0", "0", "1", "1", "1.5"),
        ("run", "c", "decision", "0", "0", "0", "1", "0", "1", "1.5"),
    )


def test_bounds_are_rounded_outward():
    first, second, _, _, last = instances(ROWS).rows
    assert first[7:9] == ("0.999999", "1")
    assert second[7:9] == ("0", "1e-09")
    assert last[9:11] == ("-1.23457", "2.34568")


def test_the_page_rounds_outward_too():
    data = page_data(ROWS, range(5), {})
    assert data["bounds"]["p_safe"][:2] == [[0.999999, 1.0], [0.0, 1e-9]]
    assert data["bounds"]["decision"][4] == [[-1.23457], [2.34568]]
    assert data["numbers"]["gap"] == [1e-07, 1e-9, None, None, 3.58025]
    between = page_data([row(safe("unknown", 0.12345678, 0.87654321))], [0], {})
    assert between["bounds"]["p_safe"] == [[0.123456, 0.876544]]
    unbounded = page_data([row(decision("unknown", [-math.inf], [0.5]))], [0], {})
    assert (unbounded["bounds"]["decision"], unbounded["numbers"]["gap"]) == ([[["-Infinity"], [0.5]]], [None])


def test_errors_come_first_and_alike_ones_together():
    found = problems((*ROWS, row("a reason"), row("another")))
    assert [(one.verdict, one.reason, one.count) for one in found] == [
        (Verdict.ERROR, "a reason", 2), (Verdict.ERROR, "another", 1),
        (Verdict.TIMEOUT, "the time limit came before a verdict; the bounds so far are valid", 1),
    ]  # fmt: skip


def test_a_timeout_without_bounds_claims_none():
    (one,) = problems([replace(ROWS[0], verdict=Verdict.TIMEOUT, p_safe=None)])
    assert one.reason == "the time limit came before a verdict"


def test_settings_show_all_values_that_occur():
    values = {what: value for _, what, value in settings([ReportedRun("run", {"method": "auto"}, ROWS)]).rows}
    assert values["method"] == '"auto"'
    assert values["tau_unsafe"] == "0.9, 0.95"
    assert values["timeout"] == "5"
    assert "version of torch" in values


HOSTILE = "a|b `c` <script>x</script>\n\\input{/etc/passwd} & 50% $ # _ {} ~ ^ [l](http://x)"


def test_markdown_shows_names_as_they_are():
    text = PageTable("t", "T", ("name", "n"), ((HOSTILE, "1"),), frozenset({1})).markdown()
    lines = text.splitlines()
    assert lines[3] == "| --- | ---: |"
    assert len(lines) == 5
    assert r"a\|b \`c\` \<script\>" in lines[4]
    assert r"\[l\]" in lines[4]


def test_latex_shows_names_as_they_are():
    text = PageTable("t", "T", ("name",), ((HOSTILE,),)).latex()
    assert r"\input" not in text
    assert r"\textbackslash{}input\{/etc/passwd\} \& 50\% \$ \# \_ \{\} \textasciitilde{} \textasciicircum{}" in text
    assert r"\begin{tabular}{l}" in text
    assert r"\begin{longtable}{l}" in PageTable("t", "T", ("name",), (("a",),) * 41).latex()


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_any_text_keeps_its_place(cells):
    table = PageTable("t", "T", tuple(cells), (tuple(cells),))
    shown = [printable(cell, lines=True) for cell in cells]
    assert list(csv.reader(io.StringIO(table.csv(), newline=""))) == [shown, shown]
    assert len(table.markdown().splitlines()) == 5
    assert all("\n" not in escape(cell) for cell in cells for escape in (markdown, latex_text))


@pytest.mark.parametrize("cell", ["=1+1", "a,b", 'say "x"', "two\nlines"])
def test_csv_keeps_every_letter(cell):
    assert list(csv.reader(io.StringIO(PageTable("t", "T", ("h",), ((cell,),)).csv(), newline=""))) == [["h"], [cell]]
