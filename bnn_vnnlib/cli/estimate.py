"""`bnn-vnnlib estimate`: figures from drawn networks and attacks. They prove nothing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import check_positive, guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Likelihood, Seed


def estimate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The property, or the property and the model in any order.")
    ],
    network: Annotated[list[str] | None, typer.Option(metavar="[NAME=]MODEL", help="The ONNX model.")] = None,
    likelihood: Likelihood = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Networks to draw.")] = 200,
    seed: Seed = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which attacks end.", show_default=False)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="JSON file to write.", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Estimate how a posterior does on a property, by attacks on drawn networks and on their mean.

    This proves nothing: a share of broken networks is not a bound on P_safe. `verify` gives bounds.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_estimate
        from bnn_vnnlib.estimate import estimate as estimated
        from bnn_vnnlib.files.benchmarks import find_files
        from bnn_vnnlib.files.sidecar import as_json, to_text
        from bnn_vnnlib.files.vnncomp import check_writable, write_text
        from bnn_vnnlib.model import read_model
        from bnn_vnnlib.system.terminal import Terminal
        from bnn_vnnlib.vnnlib import match, read_property

        check_positive("--timeout", timeout)
        if json_file is not None:
            check_writable(json_file)
        found = find_files(files, network or [])
        model = read_model(found.model, likelihood=likelihood)
        prop = match(read_property(found.prop), model.network.signature, found.prop)
        result = estimated(model, prop, networks=n, seed=seed, likelihood=likelihood, timeout=timeout)
        show_estimate(Terminal(sys.stdout), result)
        if json_file is not None:
            write_text(json_file, to_text(as_json({"guarantee": "estimate", "seed": seed, **asdict(result)})))
