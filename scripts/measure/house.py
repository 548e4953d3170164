"""Count what a newcomer has to hold: `python scripts/measure/house.py [FOLDER ...]`, each the root of a checkout.

lines, files      of the package
public names      functions and classes of modules whose names do not begin with an underscore
classes           all of them
constants         names that modules assign
complex           functions with a cyclomatic complexity above 10, and their share
a box             modules and functions of the package that are entered between a file and its verdict (the first
                  instance of benchmarks/digits, query probabilistic); all modules are imported before, since an import
                  enters class bodies, too
tests below       places in tests that reach below public names: private names of the package, patched modules, and
                  modules imported that are not the package's front doors (FRONT_DOORS)
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "bnn_vnnlib"
DOORS = ("model", "vnnlib", "rules", "posteriors", "adapters", "errors", "jobs")
"""Modules whose public names users import, beside the package itself."""
FRONT_DOORS = {PACKAGE, *(f"{PACKAGE}.{name}" for name in DOORS)}
MOST_COMPLEX = 10
"""Cyclomatic complexity up to which a function is simple (the default of ruff's C901)."""

TRACED = """
import importlib, json, os, sys
for module in json.loads(sys.argv[3]):
    importlib.import_module(module)
entered = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and (os.sep + "bnn_vnnlib" + os.sep) in code.co_filename and code.co_name != "<module>":
        entered.add((code.co_filename, code.co_qualname))
import numpy as np
from bnn_vnnlib import read_model, verify_batch
model = read_model(sys.argv[1])
center = np.full((1, model.network.signature.input_size), 0.5)
sys.setprofile(note)
verify_batch(model, center - 0.001, center + 0.001, [3], query="probabilistic")
sys.setprofile(None)
loaded = [name for name in sys.modules if name.split(".")[0] == "bnn_vnnlib"]
print(json.dumps([len({file for file, _ in entered}), len(entered), loaded]))
"""


@dataclass(frozen=True)
class Counts:
    """See the module's docstring."""

    files: int
    lines: int
    functions: int
    public_names: int
    classes: int
    constants: int
    complex_functions: int
    box_modules: int
    box_functions: int
    tests_below: int


def counts(root: Path) -> Counts:
    """All counts of one checkout."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / PACKAGE).rglob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    modules, entered = _box(root)
    return Counts(
        len(texts),
        sum(text.count("\n") for text in texts),
        len(functions),
        sum(not node.name.startswith("_") for tree in trees for node in _defined(tree)),
        sum(isinstance(node, ast.ClassDef) for tree in trees for node in ast.walk(tree)),
        sum(1 for tree in trees for _ in _assigned(tree)),
        sum(_complexity(function) > MOST_COMPLEX for function in functions),
        modules,
        entered,
        sum(_below(ast.parse(path.read_text(encoding="utf-8"))) for path in (root / "tests").rglob("*.py")),
    )


def _defined(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))


def _assigned(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for name in (part for target in targets for part in ast.walk(target)):
            if isinstance(name, ast.Name):
                yield name.id


BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.With, ast.Assert, ast.comprehension, ast.match_case,
)  # fmt: skip


def _complexity(function: ast.FunctionDef) -> int:
    """McCabe's number: 1 plus the places where the flow may branch, of nested functions, too."""
    places = sum(
        isinstance(node, BRANCHES) and not isinstance(node, ast.With | ast.Assert) for node in ast.walk(function)
    )
    return 1 + places + sum(len(node.values) - 1 for node in ast.walk(function) if isinstance(node, ast.BoolOp))


def _box(root: Path) -> tuple[int, int]:
    """How many modules and functions one box passes, in a process of its own."""
    folder = root / "benchmarks" / "digits"
    network, property_file = (folder / "instances.csv").read_text(encoding="utf-8").splitlines()[0].split(",")[:2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    found, loaded = (0, 0), list[str]()
    for _ in range(2):  # the first run says what has to be imported
        command = [
            sys.executable, "-c", TRACED, str(folder / network), str(folder / property_file), json.dumps(loaded),
        ]  # fmt: skip
        shown = subprocess.run(  # noqa: S603  (our own interpreter)
            command, capture_output=True, text=True, env=environment, cwd=root, check=True
        )
        *found, loaded = json.loads(shown.stdout)
    return found[0], found[1]


def _below(tree: ast.Module) -> int:
    """Places of one test file that reach below public names."""
    imported: set[str] = set()
    places = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            places += node.module not in FRONT_DOORS
            places += sum(alias.name.startswith("_") and not alias.name.startswith("__") for alias in node.names)
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            places += not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            first = node.args[0] if node.args else None
            places += isinstance(first, ast.Name) and first.id in imported
            places += isinstance(first, ast.Constant) and str(first.value).startswith(PACKAGE)
    return places


def main() -> None:
    """A column each checkout."""
    roots = [Path(argument) for argument in sys.argv[1:]] or [Path(__file__).parents[2]]
    found = [counts(root.resolve()) for root in roots]
    for name in Counts.__dataclass_fields__:
        print(f"{name.replace('_', ' '):20}", *(f"{getattr(each, name):>10,}" for each in found))
    print(f"{'complex share':20}", *(f"{each.complex_functions / each.functions:>10.1%}" for each in found))


if __name__ == "__main__":
    main()
