"""`bnn-vnnlib attack`: a witness by gradients, as a file that `check-witness` reads."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bnn_vnnlib.cli.guard import check_positive, guard, stderr_console
from bnn_vnnlib.cli.options import Debug, with_options
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.result import Query


@with_options("query", "tau_safe", "tau_unsafe", "likelihood", "coupling", "rule", "outputs", "guarantee", "confidence",
              "draws", "seed", "timeout")  # fmt: skip
def attack(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The property, or the property and the model in any order.")
    ],
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]MODEL", help="The ONNX model; of a property about two networks once for each."),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Networks to draw for the attack.")] = 64,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Witness to write, for check-witness; its record goes beside it.",
                     show_default=False),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="JSON record to write.", show_default="OUT.json")
    ] = None,
    debug: Debug = False,
    **options: Any,
) -> None:  # fmt: skip
    """Look for the input at which the posterior violates the property the most, and say what fails there.

    Standard output begins with what check-witness says of that input: valid (it proves sat), valid with confidence
    (under --guarantee statistical), unconfirmed or invalid (it does not). All other figures are estimates. The witness
    is written without a verdict: it claims nothing by itself. Exit code: 0 whatever is found, 2 refused input, 1 a
    fault of this program.
    """
    started = context.obj if isinstance(context.obj, float) else time.monotonic()
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_found, show_notes
        from bnn_vnnlib.estimate import find_witness
        from bnn_vnnlib.files.benchmarks import find_files
        from bnn_vnnlib.files.sidecar import as_json, sha256, sidecar_path, to_text
        from bnn_vnnlib.files.vnncomp import check_writable, witness_lines, write_text
        from bnn_vnnlib.model import read_model
        from bnn_vnnlib.setting import signature_of
        from bnn_vnnlib.system.terminal import Terminal
        from bnn_vnnlib.vnnlib import match, read_property

        check_positive("--timeout", options["timeout"])
        how = Options(**options).seeded
        record = json_file if json_file is not None or out is None else sidecar_path(out)
        for path in (out, record):
            if path is not None:
                check_writable(path)
        found = find_files(files, network or [])
        prop = read_property(found.prop)
        paths = found.of_networks(prop)
        models = {path: read_model(path, likelihood=how.likelihood) for path in paths}
        rule = how.question(prop.options, found.prop).rule
        prop = match(prop, signature_of([models[path] for path in paths], prop, rule), found.prop)
        if how.timeout is not None:
            how = Options(**{**how.given, "timeout": max(0.1, how.timeout - (time.monotonic() - started))})
        result = find_witness(tuple(models[path] for path in paths), prop, networks=n, **how.given)
        if out is not None:
            write_text(out, "\n".join(witness_lines(result.witness, prop)) + "\n")
        if record is not None:
            question = how.question(prop.options, found.prop)
            values = {
                "guarantee": "estimate", "query": result.query,
                "rule": str(question.rule) if result.query is Query.DECISION else None, "seed": how.seed or 0,
                "tau_safe": question.tau_safe, "tau_unsafe": question.tau_unsafe, "judgement": result.check.judgement,
                "reasons": result.check.reasons, "x": result.witness.x, "y": result.witness.y,
                **{name: getattr(result, name) for name in ("networks", "fresh", "share", "error", "decision", "spread",
                                                            "fails", "seconds")},
                "sha256": {role: sha256(path) for role, path in found.by_role.items()},
            }  # fmt: skip
            write_text(record, to_text(as_json(values)))
        show_found(Terminal(sys.stdout), result)
        show_notes(console, () if out is None else (f"wrote {out} and {record}",))
