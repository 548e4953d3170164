"""Measure the page of `bnn-vnnlib report`: its size, and how long Chromium takes to show it.

    python scripts/measure/report.py instances FOLDER --count 1000
    bnn-vnnlib run FOLDER --out RUN --timeout 3
    python scripts/measure/report.py repeat RUN MANY --count 10000
    python scripts/measure/report.py load PAGE.html --pictures FOLDER

`instances` writes a benchmark: boxes around images of scikit-learn's digits for the networks of benchmarks/digits,
some asked about P_safe and some about the decision. `repeat` copies the records of a run under other names until there
are enough: a page of that size, not a run. `load` needs playwright and a Chromium; CHROMIUM names another than that on
PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parents[2]
KINDS = (("digits_vi_conv", "probabilistic"), ("digits_vi_mlp", "probabilistic"),
         ("digits_ensemble", "probabilistic"), ("digits_vi_mlp", "decision"))  # fmt: skip
RADII = (0.01, 0.02, 0.04, 0.06, 0.1)
SIZES = {"wide": (1280, 900), "narrow": (360, 740)}

app = typer.Typer(add_completion=False)


@app.command()
def instances(folder: Path, count: int = 1000) -> None:
    """Write a benchmark of `count` instances."""
    data = load_digits()
    (folder / "vnnlib").mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "benchmarks/digits/onnx", folder / "onnx", dirs_exist_ok=True)
    lines = []
    for number in range(count):
        model, query = KINDS[number % len(KINDS)]
        radius = RADII[number // len(KINDS) % len(RADII)]
        name = f"vnnlib/{model}_{query}_{number}_{radius}.vnnlib"
        (folder / name).write_text(_robust(data.data[number] / 16, int(data.target[number]), radius, query))
        lines.append(f"onnx/{model}.onnx,{name},30\n")
    (folder / "instances.csv").write_text("".join(lines))


def _robust(image: list[float], label: int, radius: float, query: str) -> str:
    """No other digit may score as much as the label, nowhere in the box."""
    declared = [f"(declare-const X_{i} Real)" for i in range(64)] + [f"(declare-const Y_{j} Real)" for j in range(10)]
    box = [f"(assert (>= X_{i} {max(0.0, pixel - radius):.4f})) (assert (<= X_{i} {min(1.0, pixel + radius):.4f}))"
           for i, pixel in enumerate(image)]  # fmt: skip
    cases = " ".join(f"(and (>= Y_{j} Y_{label}))" for j in range(10) if j != label)
    return "\n".join([f"; bnn-vnnlib: query={query}", *declared, *box, f"(assert (or {cases}))"]) + "\n"


@app.command()
def repeat(run: Path, target: Path, count: int = 10_000) -> None:
    """Copy the records of a run under other names until there are `count`."""
    records = sorted(run.glob("instances/*/*.txt.json"))
    shutil.copy(run / "run.json", _made(target) / "run.json")
    for number in range(count):
        source = records[number % len(records)]
        record = json.loads(source.read_text(encoding="utf-8"))
        record["run"]["property"] = f"copy {number // len(records)} of {record['run']['property']}"
        place = _made(target / "instances" / source.parent.name) / f"{number:06}_{source.name}"
        place.write_text(json.dumps(record), encoding="utf-8")
        shutil.copy(source.with_suffix(""), place.with_suffix(""))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@app.command()
def load(
    page: Path,
    repeats: int = 5,
    pictures: Annotated[Path | None, typer.Option(help="Folder for screenshots at two widths.")] = None,
) -> None:
    """Print the page's size, and the seconds until it can be used and until all of its plots are drawn.

    Both by the clock and of processor time of the page's main thread, which another load on the machine disturbs less.
    """
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    console = Console()
    console.print(f"{page.stat().st_size:,} bytes")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            times = []
            for number in range(repeats):
                tab = browser.new_page(viewport={"width": width, "height": height})
                times.append(_timed(tab, page))
                if pictures is not None and number == 0:
                    tab.screenshot(path=_made(pictures) / f"{page.stem}_{name}.png", full_page=True)
                tab.close()
            spreads = [_spread(list(column)) for column in zip(*times, strict=True)]
            console.print(f"{name} ({width} x {height}): ready after {spreads[0]}, processor {spreads[1]}; all plots "
                          f"after {spreads[2]}, processor {spreads[3]}")  # fmt: skip
        browser.close()


def _timed(tab: Any, page: Path) -> tuple[float, float, float, float]:
    """(seconds until ready, of processor time, until all is drawn, of processor time)"""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def processor() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    begun = time.perf_counter()
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("html[data-ready]")
    ready = time.perf_counter() - begun, processor()
    tab.evaluate("drawEverything()")
    return *ready, time.perf_counter() - begun, processor()


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    app()
