"""The pages of docs/libraries, run: versions, agreement with the libraries' own predictions, and verdicts.

    python scripts/measure/libraries.py [PAGE ...]

One line of a table for each posterior that a page takes over; a page whose library is not installed is 'not run'.
`make test-libraries` makes environments that have them.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from importlib import metadata, util
from io import StringIO
from pathlib import Path
from typing import Any

from bnn_vnnlib import verify
from bnn_vnnlib.adapters import Adapted
from bnn_vnnlib.display import interval
from bnn_vnnlib.errors import BnnVnnlibError
from bnn_vnnlib.network.families import family_of

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "libraries"
# page -> modules that its code imports, distributions whose versions count
PAGES = {
    "README": ((), ("torch",)),
    "torchbnn": (("torchbnn",), ("torchbnn",)),
    "bayesian-torch": (("bayesian_torch",), ("bayesian-torch",)),
    "blitz": (("blitz",), ("blitz-bayesian-pytorch",)),
    "torch-uncertainty": (("torch_uncertainty", "lightning"), ("torch-uncertainty",)),
    "fastbnns": (("fastbnns",), ("fastbnns",)),
    "pyro": (("pyro",), ("pyro-ppl",)),
    "numpyro": (("numpyro",), ("numpyro", "jax")),
    "blackjax": (("blackjax",), ("blackjax", "jax")),
    "laplace-torch": (("laplace",), ("laplace-torch",)),
    "ivon": (("ivon",), ("ivon-opt",)),
    "swag": (("swag",), ("swa-gaussian",)),
    "tensorflow-probability": (("tensorflow_probability", "tf_keras"), ("tensorflow-probability", "tensorflow")),
    "ensembles": ((), ("torch",)),
}


@dataclass(frozen=True, eq=False)
class Row:
    """One posterior of a page.

    name : its variable or key; seconds : of the whole page
    """

    page: str
    name: str
    adapted: Adapted
    property: Any
    seconds: float


def missing(page: str) -> list[str]:
    """Modules of the page that are not installed."""
    return [name for name in PAGES[page][0] if util.find_spec(name) is None]


def run_page(page: str) -> list[Row]:
    """Run the code of a page in a folder of its own; the posteriors that it took over."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": f"page_{page.replace('-', '_')}"}
    start = time.monotonic()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder, chdir(folder), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # the libraries' own
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, f"docs/libraries/{page}.md", "exec"), names)  # noqa: S102
    seconds = time.monotonic() - start
    found = {name: value for name, value in names.items() if isinstance(value, Adapted)}
    found |= {name: part for value in names.values() if isinstance(value, dict) for name, part in _adapted(value)}
    return [Row(page, name, adapted, names.get("property"), seconds) for name, adapted in found.items()]


def _adapted(values: dict[str, Any]) -> Iterator[tuple[str, Adapted]]:
    return ((name, value) for name, value in values.items() if isinstance(value, Adapted))


def main() -> None:
    """Print the table of docs/measurements.md."""
    print("| library | version | posterior | agreement with the library | verdict, bounds on P_safe |")
    print("|---|---|---|---|---|")
    for page in sys.argv[1:] or PAGES:
        if lacking := missing(page):
            print(f"| {page} | - | not run: {', '.join(lacking)} not installed | | |", flush=True)
            continue
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in PAGES[page][1])
        for row in run_page(page):
            print(f"| {page} | {versions} | {described(row)} |", flush=True)


def described(row: Row) -> str:
    """Family, agreement and verdict."""
    agreement, posterior = row.adapted.agreement, row.adapted.model.posterior
    family = "-" if posterior is None else family_of(posterior)
    return f"{row.name}: {family} | {agreement or 'not compared'} | {verdict(row)}"


def verdict(row: Row) -> str:
    """What `verify` says about the page's property."""
    if row.property is None:
        return "-"
    try:
        result = verify(row.adapted.model, row.property, timeout=20)
    except BnnVnnlibError as error:
        return f"refused: {error}"
    bounds = "-" if result.p_safe is None else interval(result.p_safe)
    return f"{result.verdict.value} {bounds}"


if __name__ == "__main__":
    main()
