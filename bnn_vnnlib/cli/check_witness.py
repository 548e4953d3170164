"""`bnn-vnnlib check-witness`: whether a witness shows what its verdict says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bnn_vnnlib.cli.guard import FAILED, check_positive, guard, stderr_console
from bnn_vnnlib.cli.options import Debug, with_options
from bnn_vnnlib.printable import say
from bnn_vnnlib.question.options import Options


@with_options("query", "tau_safe", "tau_unsafe", "likelihood", "coupling", "guarantee", "confidence", "draws",
              "seed", "outputs", "timeout")  # fmt: skip
def check_witness(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    prop: Annotated[Path, typer.Argument(metavar="PROPERTY", help="The VNN-LIB property.")],
    result: Annotated[Path, typer.Argument(help="The results file; its JSON record is used if it lies beside it.")],
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MODEL", help="The second network, of a property about two; MODEL is the first."),
    ] = None,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Check the witness of a sat from the files alone.

    Standard output holds one line: valid, valid within tolerance, valid with confidence (under --guarantee
    statistical), no witness, unconfirmed (the bounds computed again are not tight enough), or invalid. Exit code: 3 for
    the last two, else 0; 2 refused input, 1 a fault of this program.
    """
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib import read_model, read_property
        from bnn_vnnlib.check_witness import Judgement, check_witness, other_files, question_of
        from bnn_vnnlib.files.benchmarks import Files, named
        from bnn_vnnlib.files.vnncomp import read_result
        from bnn_vnnlib.question.options import refuse_idle
        from bnn_vnnlib.readers import located
        from bnn_vnnlib.setting import of_property, signature_of

        check_positive("--timeout", options["timeout"])
        how = Options(**options)
        found = read_result(result)
        property_ = read_property(located(prop))
        files = Files(prop, (((property_.network if network else None), model), *map(named, network or [])))
        paths = files.of_networks(property_)
        question = question_of(result, property_, files.prop, how)
        models = {path: read_model(path, likelihood=how.likelihood) for path in paths}
        property_ = read_property(files.prop, signature_of([models[path] for path in paths], property_, question.rule))
        loaded = of_property(tuple(models[path] for path in paths), property_, how.coupling)
        refuse_idle(question.query_of(loaded.posterior is not None), how.given, loaded)
        check = check_witness(loaded, property_, found, question, how)
        sys.stdout.write(f"{check.judgement}\n")
        say(console, f"query {check.query}", *check.reasons, *other_files(result, files.by_role))
        if check.judgement in (Judgement.UNCONFIRMED, Judgement.INVALID):
            raise typer.Exit(FAILED)
