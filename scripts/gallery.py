"""Run the examples of docs/gallery and write their figures: make gallery.

    python scripts/gallery.py [NAME ...] [--out FOLDER]

An example whose library is not installed is left out, and said to be.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

GALLERY = Path(__file__).resolve().parents[1] / "docs" / "gallery"
# The ids of paths and the date in a figure would differ from run to run.
SETTINGS = "import matplotlib; matplotlib.use('Agg'); matplotlib.rcParams['svg.hashsalt'] = 'gallery'; "


def examples() -> list[str]:
    """The names of all examples."""
    return sorted(path.stem for path in GALLERY.glob("*.py"))


def missing(name: str) -> list[str]:
    """Libraries that an example imports and that are not installed."""
    text = (GALLERY / f"{name}.py").read_text(encoding="utf-8")
    wanted = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    return sorted(library for library in wanted if find_spec(library) is None)


def run(name: str, out: Path) -> int:
    """The exit code of an example that writes into a folder."""
    path = GALLERY / f"{name}.py"
    code = f"{SETTINGS}import runpy, sys; sys.argv = {[str(path), str(out)]!r}; runpy.run_path({str(path)!r})"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0", "MPLBACKEND": "Agg"}
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode  # noqa: S603


def main() -> None:
    """Run those that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(examples()))
    parser.add_argument("--out", type=Path, default=GALLERY, help="folder for the figures (default docs/gallery)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in arguments.names or examples():
        if name not in examples():
            parser.error(f"no example {name!r}; there are {', '.join(examples())}")
        if lacking := missing(name):
            print(f"== {name}: left out, {', '.join(lacking)} is not installed")
            continue
        print(f"== {name}", flush=True)
        started = time.monotonic()
        failed += [name] if run(name, arguments.out) else []
        print(f"== {name}: {time.monotonic() - started:.0f} s")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
