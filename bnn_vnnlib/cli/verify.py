"""`bnn-vnnlib verify`: one property of one model."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.cli.guard import check_positive, guard, in_time, stderr_console
from bnn_vnnlib.cli.options import Debug, Mixed, Serialise, Shrink, with_options
from bnn_vnnlib.errors import InputError, OptionError, PropertyError, UnsupportedError
from bnn_vnnlib.question.options import Options, Question
from bnn_vnnlib.result import Query

if TYPE_CHECKING:
    from bnn_vnnlib.files.outlet import Outlet
    from bnn_vnnlib.model import Model
    from bnn_vnnlib.question.property import Property
    from bnn_vnnlib.result import Result
    from bnn_vnnlib.signature import Signature


@with_options(without=("restarts",))
def verify(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The property, or the property and the model in any order.")
    ],
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]MODEL", help="The ONNX model; for a property about two networks, once for each."),
    ] = None,
    results_file: Annotated[Path | None, typer.Option(help="VNN-COMP results file to write.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="JSON record to write.", show_default="RESULTS_FILE.json")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="Certificate to write: a proof of the answer that bnn-vnnlib-check accepts or rejects."),
    ] = None,
    serialise_assignments: Serialise = None,
    shrink: Shrink = None,
    mixed: Mixed = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Decide one property of one model.

    Standard output holds the verdict word and, for sat, the witness; everything else goes to standard error.
    Exit code: 0 for any verdict, 2 for refused input, 1 for a fault of this program.
    """
    started = context.obj if isinstance(context.obj, float) else time.monotonic()
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.files.outlet import Outlet
        from bnn_vnnlib.files.vnncomp import make_writable_folder, write_assignments

        timeout = options["timeout"]
        check_positive("--timeout", timeout)
        if serialise_assignments is not None:
            make_writable_folder(serialise_assignments)
        if certificate is not None:
            make_writable_folder(certificate.parent)
        how = Options(**options).seeded
        outlet = Outlet(results_file, json_file, how.seed or 0, timeout, started)
    with guard(console, debug, outlet), in_time(console, outlet) as disarm:
        result, prop, signature = _result(files, network or [], how, mixed, shrink, outlet, certificate)
        disarm()
        failures = outlet.finish(result, prop)
        if serialise_assignments is not None and result.witness is not None:
            try:
                write_assignments(serialise_assignments, result.witness, prop, signature)
            except InputError as error:
                failures.append(error)
        from bnn_vnnlib.display import show_result

        show_result(console, result)
        if failures:
            raise InputError("; ".join(map(str, failures)))


def _result(
    files: list[Path], network: list[str], options: Options, mixed: bool, shrink: float | None, outlet: Outlet,
    certificate: Path | None,
) -> tuple[Result, Property, Signature]:  # fmt: skip
    """Read and decide; what is known of the run is left in the outlet on the way, for when it fails or is ended.

    Parameters
    ----------
    mixed : leave out those that do not apply
    shrink : the boxes, to this share of their widths
    certificate : where to write one
    """
    from bnn_vnnlib.files.benchmarks import find_files
    from bnn_vnnlib.setting import of_property, signature_of
    from bnn_vnnlib.vnnlib import match, read_property

    found = find_files(files, network)
    outlet.read(found.by_role)
    prop = read_property(found.prop)
    prop = outlet.prop = prop if shrink is None else prop.shrunk(shrink)
    paths = found.of_networks(prop)
    question = options.question(prop.options, found.prop)
    outlet.query = question.query

    import bnn_vnnlib

    models = {path: bnn_vnnlib.read_model(path, likelihood=options.likelihood) for path in paths}
    prop = match(prop, signature_of([models[path] for path in paths], prop, question.rule), found.prop)
    model = of_property(tuple(models[path] for path in paths), prop, None if mixed else options.coupling)
    idle = _idle(model, question, options) if mixed else {}
    query = question.query_of(model.posterior is not None)
    if certificate is not None:
        from bnn_vnnlib.certificates.prove import refuse

        if shrink is not None:
            raise OptionError("a certificate is about the property's file, and --shrink changes it: leave one out")
        try:
            refuse(model.with_outputs_of(prop.signature), query, options.guarantee, prop)
        except UnsupportedError as error:
            if not mixed:
                raise
            idle, certificate = {**idle, "certificate": error.message}, None
    _load(query)
    outlet.solving = time.monotonic()
    try:
        result = bnn_vnnlib.verify(model, prop, started=outlet.started, **options.without(idle).given)
    except PropertyError as error:
        error.path = error.path or found.prop
        raise
    if certificate is not None:
        from bnn_vnnlib.certificates.prove import certified

        result = certified(certificate, found.by_role, model, prop, options.without(idle), result, outlet.started)
    if result.diagnosis is not None:
        result = replace(result, diagnosis=result.diagnosis.with_files(found.prop, found.model))
    if idle:
        notes = (*result.notes, *(f"{name} is left out: {reason}" for name, reason in idle.items()))
        result = replace(result, notes=notes, details={**result.details, "left_out": list(idle)})
    signature = model.with_outputs_of(prop.signature).network.signature
    return result, prop, signature if question.rule.event is None else prop.signature


def _load(query: Query) -> None:
    """What solving needs and would load by itself: a second that says nothing about the instance."""
    names = {Query.PROBABILISTIC: "safety.portfolio", Query.DECISION: "decision", Query.DETERMINISTIC: "deterministic"}
    import_module(f"bnn_vnnlib.methods.{names[query]}")


def _idle(model: Model, question: Question, options: Options) -> dict[str, str]:
    """Options that do not apply to the instance, and why."""
    from bnn_vnnlib.question.options import idle_options
    from bnn_vnnlib.setting import gives_probabilities

    query = question.query_of(model.posterior is not None)
    likelihood = options.likelihood or model.likelihood
    probabilities = gives_probabilities(model.network, query, likelihood)
    return idle_options(query, options.given, model, probabilities=probabilities)
