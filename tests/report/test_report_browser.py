"""The page in headless Chromium: it loads nothing, runs nothing of strangers, works with keys and on a phone."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bnn_vnnlib.report.report import make_page, write_report
from bnn_vnnlib.report.source import ReportedFolder, ReportedRun
from support.records import WEAK_BOUND, decision, plain, row, safe, write_run

pytest.importorskip("plotly", reason="the extra `report` is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no page can be opened")

EVIL = "</script><script>window.hacked = 1</script><img src='http://127.0.0.1:9/x' onerror='window.hacked=1'>"
NAMES = [("digits", "onnx/a.onnx", f"vnnlib/{name}.vnnlib") for name in "abcdef"]


@pytest.fixture(scope="module")
def browser():
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))]
    program = next((path for path in named if path), None)
    with playwright.sync_playwright() as running:
        if program is None and not Path(running.chromium.executable_path).exists():
            pytest.skip("no Chromium here: install it, or name it in CHROMIUM")
        opened = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def opened(browser, path, width=1280, dark=False):
    """A tab with the page; `heard` are complaints and everything that it asked the network for."""
    scheme = "dark" if dark else "light"
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    tab.heard = []
    tab.on("console", lambda said: tab.heard.append(said.text))
    tab.on("pageerror", lambda error: tab.heard.append(str(error)))
    local = ("file:", "data:", "blob:")
    tab.on("request", lambda asked: asked.url.startswith(local) or tab.heard.append(asked.url))
    tab.goto(Path(path).as_uri())
    tab.wait_for_selector("html[data-ready]")
    return tab


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One of two runs, with a stranger's names, an error and two witnesses."""
    folder = tmp_path_factory.mktemp("report")
    results = [safe("unsat", 0.97, 1.0), safe("sat", 0.0, 0.5),
               replace(safe("timeout", 0.2, 1.0), diagnosis=replace(WEAK_BOUND, advice=EVIL)),
               decision("unsat", [0, -1], [1, 2]), plain("sat"), EVIL]  # fmt: skip
    entries = [*zip(NAMES, results, strict=True), ((EVIL, EVIL, EVIL), safe("unknown", 0.1, 0.99, notes=(EVIL,)))]
    one = write_run(folder / "out", *entries)
    beside = [(NAMES[0], safe("unsat", 0.96, 1.0)), (NAMES[1], plain("unknown"))]
    return write_report(one, against=write_run(folder / "other", *beside, seconds=4.0), image=(1, 2, 2)).page


@pytest.fixture(scope="module")
def wide(browser, page):
    """Opened once, because that takes a second."""
    return opened(browser, page)


@pytest.fixture
def tab(wide):
    """As it was when it was opened, nearly; whatever a test does, the browser has nothing to complain of."""
    wide.evaluate("document.getElementById('detail').close()")
    wide.click("#filter button[type=reset]")
    wide.locator("#shown", has_text="9 of 9").wait_for()
    yield wide
    assert wide.heard == []


def test_names_of_strangers_are_shown_and_not_run(tab):
    tab.evaluate("drawEverything()")
    tab.locator("#list button.name", has_text="hacked").click()
    assert EVIL in tab.locator("#detail-title").inner_text()
    assert EVIL in tab.locator("#detail-body").inner_text()
    assert tab.evaluate("window.hacked") is None
    assert tab.heard == []


def test_a_script_that_got_in_would_not_run(browser, page, tmp_path):
    """The second line of defence: the page's policy."""
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(page.read_text(encoding="utf-8").replace("<main>", f"<main>{EVIL}", 1), encoding="utf-8")
    tab = opened(browser, spoilt)
    assert tab.evaluate("window.hacked") is None
    assert any("Content Security Policy" in said for said in tab.heard)


def test_every_plot_is_drawn(tab):
    tab.evaluate("drawEverything()")
    drawn = tab.evaluate("[...document.querySelectorAll('.canvas .main-svg')].length")
    assert drawn >= 5
    states = tab.locator(".plot .state").all_inner_texts()
    assert states == ["5 shown.", "1 shown.", "5 shown; 4 have no sat or unsat.", "5 shown.", "2 shown."]
    assert tab.heard == []


def test_the_filter_counts_for_all(tab):
    tab.select_option("#filter-verdict", label="sat")
    assert tab.locator("#shown").inner_text() == "2 of 9 instances are shown."
    assert tab.locator("#list tbody tr").count() == 2
    tab.fill("#filter-text", "A.ONNX vnn")
    tab.locator("#shown", has_text="0 of 9").wait_for()
    assert "No instance passes" in tab.locator("#list").inner_text()
    tab.click("#filter button[type=reset]")
    tab.locator("#shown", has_text="9 of 9").wait_for()
    assert tab.heard == []


def test_with_the_keyboard_alone(tab):
    tab.locator(".skip").focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "instances"
    tab.locator('#list button[data-column="Seconds"]').focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Enter")
    assert tab.locator('#list th[aria-sort="descending"]').inner_text().startswith("Seconds")
    assert tab.evaluate("document.activeElement.dataset.column") == "Seconds"
    assert tab.locator("#list tbody tr").first.locator("[data-label=Seconds]").inner_text() == "4"
    tab.locator("#list button.name").first.focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.getElementById('detail').open")
    tab.keyboard.press("Escape")
    assert not tab.evaluate("document.getElementById('detail').open")
    assert tab.evaluate("document.activeElement.className") == "name"
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px"


def test_a_row_in_full_says_why_there_is_no_verdict(tab):
    tab.locator("#list button.name", has_text="c.vnnlib").click()
    told = tab.locator("#detail-body").inner_text()
    assert "Why no verdict" in told
    assert all(line in told for line in WEAK_BOUND.lines[:-1])
    assert EVIL in told
    assert tab.evaluate("window.hacked") is None


def test_plots_with_the_keyboard(tab):
    canvas = tab.locator("#plot-safe .canvas")
    canvas.scroll_into_view_if_needed()
    tab.wait_for_selector("#plot-safe .main-svg")
    canvas.focus()
    tab.keyboard.press("Enter")  # at no point yet
    assert not tab.evaluate("document.getElementById('detail').open")
    tab.keyboard.press("End")
    assert "a.vnnlib" in tab.locator("#plot-safe .spoken").inner_text()
    assert tab.locator("#plot-safe .hoverlayer").text_content()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.getElementById('detail').open")
    assert "Proved: P_safe >= 0.95." in tab.locator("#detail-body").inner_text()
    assert tab.heard == []


def test_hovering_and_clicking_a_point(tab):
    tab.locator("#plot-gap .canvas").scroll_into_view_if_needed()
    tab.wait_for_selector("#plot-gap .point")
    tab.locator("#plot-gap .point").first.hover(force=True)
    tab.wait_for_selector("#plot-gap .hovertext")
    assert "P_safe" in tab.locator("#plot-gap .hovertext").text_content()
    tab.mouse.down()
    tab.mouse.up()
    tab.wait_for_selector("#detail[open]")


@pytest.mark.parametrize("dark", [False, True])
def test_a_narrow_screen_light_and_dark(browser, page, dark):
    tab = opened(browser, page, width=360, dark=dark)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the instances"
    tab.evaluate("drawEverything()")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    for scrolled in (0, 1000):  # titles of tables that are wider than the screen
        sides = tab.evaluate(f"""[...document.querySelectorAll('caption span')].map((title) => {{
            title.closest('.scroll').scrollLeft = {scrolled};
            return [title.getBoundingClientRect().left, title.getBoundingClientRect().right];
        }})""")
        assert sides
        assert all(left >= 0 and right <= 360 for left, right in sides)
    colors = tab.evaluate("(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))")
    ink, paper = (sum(map(int, color[4:-1].split(","))) for color in colors)
    assert (ink > paper) is dark
    tab.locator("#list button.name").first.click()
    assert tab.evaluate("document.getElementById('detail').scrollWidth") <= 360
    assert tab.heard == []


def test_pictures_of_witnesses(tab):
    assert tab.locator("#gallery canvas").count() == 2  # two witnesses, no inputs: there are no files
    label = tab.locator("#gallery canvas").first.get_attribute("aria-label")
    assert label.startswith("witness X of vnnlib/")
    pixels = tab.evaluate(
        "[...document.querySelector('#gallery canvas').getContext('2d').getImageData(0, 0, 2, 2).data]"
    )
    assert pixels[::4] == [0, 85, 170, 255]


def test_on_paper_everything_is_drawn_and_light(tab):
    tab.click("#theme")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.documentElement.dataset.theme") == "light"
    assert tab.evaluate(
        "[...document.querySelectorAll('.plot:not([hidden]) .canvas')].every((one) => one.children.length)"
    )
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") == "light"


def test_ten_thousand_rows(browser, tmp_path):
    base = [row(safe("unsat", 0.97, 1.0)), row(safe("sat", 0.0, 0.4)), row(decision("unsat", [0.0, 0.1], [0.5, 0.9]))]
    rows = tuple(replace(base[i % 3], prop=f"p{i}", seconds=0.01 * (i % 700)) for i in range(10_000))
    path = tmp_path / "many.html"
    path.write_text(make_page([ReportedFolder(tmp_path, (ReportedRun("run", {}, rows),))])[0], encoding="utf-8")
    tab = opened(browser, path)
    assert tab.locator("#list tbody tr").count() == 50
    tab.locator("#list button.last").click()
    assert "9951 to 10000 of 10000" in tab.locator("#list .place").inner_text()
    tab.fill("#filter-text", "p999")
    tab.locator("#shown", has_text="11 of 10000 instances are shown.").wait_for()
    tab.fill("#filter-text", "")
    tab.locator("#shown", has_text="10000 of 10000").wait_for()
    tab.evaluate("drawEverything()")
    assert tab.locator("#plot-safe .state").inner_text() == "6667 shown."
    assert tab.heard == []


def test_two_instances_on_a_phone(browser, tmp_path):
    """Whole numbers count instances, the axes of times and gaps have ticks as people write them, the legend is free."""
    results = [safe("unsat", 1 - 1e-8, 1.0), safe("sat", 0.0, 1e-8)]
    folder = write_run(tmp_path / "few", *zip(NAMES, results, strict=False), seconds=1.2)
    tab = opened(browser, write_report(folder).page, width=400)
    tab.evaluate("drawEverything()")

    def ticks(plot, axis):
        return tab.eval_on_selector_all(f"#{plot} .{axis}tick text", "all => all.map((one) => one.textContent)")

    assert ticks("plot-cactus", "x") == ["1", "2"]
    assert len(ticks("plot-cactus", "y")) >= 2
    gaps = ticks("plot-gap", "y")
    assert len(gaps) >= 2
    assert not any("n" in tick or "μ" in tick for tick in gaps)
    assert tab.locator(".modebar-btn").count() == 0
    assert tab.heard == []
    tab.close()


def test_a_page_without_its_plots_says_what_is_missing(browser, tmp_path):
    report = write_report(write_run(tmp_path / "few", *zip(NAMES[:1], [safe("unsat", 0.97, 1.0)], strict=True)))
    report.beside.unlink()
    tab = opened(browser, report.page)
    assert "need the file report_plotly.js" in tab.locator("#plots-missing").inner_text()
    assert tab.locator("#list tbody tr").count() == 1
    tab.close()


def test_a_difference_has_a_colour_key_and_the_class_that_won(wide):
    wide.click("#filter button[type=reset]")
    wide.evaluate("document.querySelector('#pictures').scrollIntoView()")
    keys = wide.locator("#gallery .key .ends")
    for index in range(keys.count()):
        low, middle, high = keys.nth(index).locator("span").all_inner_texts()
        assert (low[0], middle, high[0]) == ("-", "0", "+")
        assert low[1:] == high[1:]
    assert "is the largest" in wide.locator("#gallery").inner_text()
