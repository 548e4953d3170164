"""`bnn-vnnlib explain`: a property in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.cli.options import Debug, with_options

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.question.options import Question
    from bnn_vnnlib.question.property import Property

REMARKS = 12
"""Lines of the author's own comment that are shown, at most."""


@with_options("query", "tau_safe", "tau_unsafe", "rule", "likelihood", "coupling")
def explain(
    property: Annotated[Path, typer.Argument(help="The VNN-LIB file.")],
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]MODEL",
            help="The ONNX model, or two: do they fit, and what do they do in the middle of the region?",
        ),
    ] = None,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Say in words what a property requires and forbids, for which inputs, and what the answers would mean."""
    console = stderr_console()
    with guard(console, debug):
        from bnn_vnnlib.display import show_facts
        from bnn_vnnlib.question.options import Options
        from bnn_vnnlib.result import Query
        from bnn_vnnlib.system.terminal import Terminal
        from bnn_vnnlib.vnnlib import match, parse_property
        from bnn_vnnlib.vnnlib.parse import read_property_text

        text, found = read_property_text(property)
        prop = parse_property(text, found)
        how = Options(**options)
        question = how.question(prop.options, found)
        facts = _facts(prop, text)
        if not network:
            facts += _answers(prop, question, [question.query] if question.query else [], None)
        else:
            from bnn_vnnlib.files.benchmarks import find_files
            from bnn_vnnlib.model import read_model
            from bnn_vnnlib.setting import of_property, signature_of

            paths = find_files([property], network).of_networks(prop)
            models = {path: read_model(path, likelihood=how.likelihood) for path in paths}
            each = tuple(models[path] for path in paths)
            prop = match(prop, signature_of(list(each), prop, question.rule), found)
            model = of_property(each, prop, how.coupling)
            query = question.query_of(model.posterior is not None)
            facts += _answers(prop, question, [query], model)
            if query is not Query.DECISION:
                facts += _middle(prop, model)
        facts += [("note", note) for note in prop.notes]
        show_facts(Terminal(sys.stdout), facts)


def _facts(prop: Property, text: str) -> list[tuple[str, str]]:
    """What the file says by itself."""
    import numpy as np

    from bnn_vnnlib.question.statement import inputs_in_words, requirement_in_words, vacuous, violation_in_words

    n, m = prop.signature.input_size, prop.signature.output_size
    version = ".".join(map(str, prop.version))
    facts = [("property", f"VNN-LIB {version}, {n} input{'s' * (n != 1)}, {m} output{'s' * (m != 1)}")]
    lines = [line.strip().lstrip(";").strip() for line in text.splitlines()]
    marked = [line.lstrip().startswith(";") for line in text.splitlines()]
    remarks = [line for line, mark in zip(lines, marked, strict=True) if mark and line and "bnn-vnnlib:" not in line]
    facts += [("its author says", line) for line in remarks[:REMARKS]]
    if (required := requirement_in_words(prop)) is not None:
        boxes = len(np.unique(prop.case_box))
        more = f", and in {boxes - 1} more input sets" if boxes > 1 else ""
        facts.append(("required", f"{required}, for all {inputs_in_words(prop)}{more}"))
    facts.append(("forbidden", violation_in_words(prop)))
    if (reason := vacuous(prop)) is not None:
        facts.append(("WARNING", f"nothing can violate this property, whatever the network: {reason}"))
    return facts


def _answers(prop: Property, question: Question, queries: list[Any], model: Model | None) -> list[tuple[str, str]]:
    """What `unsat` and `sat` would mean."""
    from bnn_vnnlib.question.statement import what_unsat_means
    from bnn_vnnlib.result import Query
    from bnn_vnnlib.setting import gives_probabilities

    facts = []
    by = "set by the file" if "query" in prop.options else "by default"
    if model is not None:
        probabilities = gives_probabilities(model.network, queries[0], model.likelihood)
        facts.append(
            ("query", f"{queries[0]} ({by if question.query is None or 'query' in prop.options else 'given'})")
        )
        facts.append(
            ("unsat means", what_unsat_means(queries[0], question, model.posterior is not None, probabilities))
        )
        return facts
    for query in queries or list(Query):
        posterior = query is not Query.DETERMINISTIC
        facts.append((f"unsat ({query})", what_unsat_means(query, question, posterior, "outputs" in prop.options)))
    return facts


def _middle(prop: Property, model: Model) -> list[tuple[str, str]]:
    """What the mean network does in the middle of the first input set; an example, which proves nothing."""
    import numpy as np

    from bnn_vnnlib.question.property import input_feasible, violated_case
    from bnn_vnnlib.question.statement import case_in_words
    from bnn_vnnlib.sweeps.inputs import mean_output

    if prop.num_cases == 0:
        return []
    box = int(prop.case_box[0])
    x = prop.boxes.lower[box] / 2 + prop.boxes.upper[box] / 2
    if not input_feasible(prop, x, box):
        return []
    y = mean_output(model, x[None])[0]
    network = "the network" if model.posterior is None else "the network of the mean weights"
    shown = ", ".join(f"{value:.4g}" for value in y[:10]) + (", ..." if len(y) > 10 else "")
    largest = f" (the largest is output {int(np.argmax(y))})" if len(y) > 1 else ""
    case = violated_case(prop, x, y)
    judged = "nothing forbidden" if case is None else f"forbidden: {case_in_words(prop, case)}"
    return [("for example", f"in the middle of the {'first ' if len(prop.boxes) > 1 else ''}box {network} gives "
                            f"{shown}{largest}: {judged}")]  # fmt: skip
