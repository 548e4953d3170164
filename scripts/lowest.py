"""The lowest versions that pyproject.toml allows, as requirements; for `make test-lowest`.

    python scripts/lowest.py [PACKAGE ...]

The packages that are named are left out.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(*but: str) -> None:
    """Print them: one line, since the shell takes them as arguments."""
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    lowest = (requirement.split(">=") for requirement in project["project"]["dependencies"])
    print(*(f"{name}=={version}" for name, version in lowest if name not in but))


if __name__ == "__main__":
    main(*sys.argv[1:])
