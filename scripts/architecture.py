"""Draw docs/architecture.svg, the packages and their imports, from the code alone.

    python scripts/architecture.py            # write
    python scripts/architecture.py --check    # exit code 1 if the picture is stale, write nothing

Each package stands above all that it imports. An arrow that follows from two others is left out. Imports that only a
type checker sees do not count; those inside functions do.
"""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bnn_vnnlib"
PICTURE = ROOT / "docs" / "architecture.svg"
WIDTH, HEIGHT, GAP, ROW = 108, 30, 14, 74
"""Pixels: of a box, between boxes, from row to row."""


def imports() -> dict[str, set[str]]:
    """{package or module at the top: what it imports of the others}."""
    names = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir()} - {"__init__", "__main__"}
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own in ("__init__", "__main__"):
            continue
        found.setdefault(own, set()).update(_imported(ast.parse(path.read_text(encoding="utf-8"))) & names - {own})
    return found


def _imported(tree: ast.AST) -> set[str]:
    """First names behind `bnn_vnnlib.` that are imported for more than types."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE.name}."):
            found.add((node.module or "").split(".")[1])
        else:
            found |= _imported(node)
    return found


def rows(graph: dict[str, set[str]]) -> list[list[str]]:
    """From the top: every package above what it imports. Raises `graphlib.CycleError` if that cannot be."""
    depth: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        depth[name] = 1 + max((depth[below] for below in graph[name]), default=-1)
    return [sorted(name for name in depth if depth[name] == level) for level in range(max(depth.values()), -1, -1)]


def needed(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others (the transitive reduction)."""
    reached: dict[str, set[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        reached[name] = graph[name].union(*(reached[below] for below in graph[name]))
    return {
        (name, below)
        for name, all_below in graph.items()
        for below in all_below
        if not any(below in reached[other] for other in all_below - {below})
    }


def picture(graph: dict[str, set[str]]) -> str:
    """The picture as SVG."""
    levels = rows(graph)
    width = max(len(level) for level in levels) * (WIDTH + GAP) + GAP
    height = len(levels) * ROW
    place = {
        name: (width / 2 + (i - (len(level) - 1) / 2) * (WIDTH + GAP), k * ROW + ROW / 2)
        for k, level in enumerate(levels)
        for i, name in enumerate(level)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#667"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for name, below in sorted(needed(graph)):
        (x, y), (to_x, to_y) = place[name], place[below]
        lines.append(
            f'<line x1="{x:.0f}" y1="{y + HEIGHT / 2:.0f}" x2="{to_x:.0f}" y2="{to_y - HEIGHT / 2:.0f}" '
            'stroke="#99a" marker-end="url(#tip)"/>'
        )
    for name, (x, y) in place.items():
        lines.append(
            f'<rect x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="4" '
            'fill="#eef2f8" stroke="#446"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{escape(name)}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    """Write the picture, or check it."""
    text = picture(imports())
    if "--check" in sys.argv[1:]:
        return 0 if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == text else 1
    PICTURE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
