"""Does a witness show what its verdict says? Checked from the files alone, with none of the run's own work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import InputError, OptionError, names_arguments
from bnn_vnnlib.files.sidecar import read_object, sha256, sidecar_path
from bnn_vnnlib.files.vnncomp import ResultsFile
from bnn_vnnlib.question.options import Options, Question
from bnn_vnnlib.question.property import Boxes, HalfSpaces, Property, input_feasible, violated_case
from bnn_vnnlib.result import Query, Result, Verdict
from bnn_vnnlib.signature import Variable
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model


INPUT_TOLERANCE = 1e-4
"""By how much the competition lets an input miss a bound, where no strict reading accepts the witness. Outputs: 0."""


class Judgement(StrEnum):
    """What came of a check; the first four leave nothing to complain of."""

    VALID = "valid"
    TOLERATED = "valid within tolerance"
    CONFIDENT = "valid with confidence"
    NOTHING = "no witness"
    UNCONFIRMED = "unconfirmed"
    INVALID = "invalid"


@dataclass(frozen=True)
class Check:
    """Outcome of a check.

    Attributes
    ----------
    judgement : valid: the check of the verdict was made again and holds; within tolerance: an input misses its bounds
        by at most 1e-4, which the competition allows; with confidence: by drawn networks, as asked; unconfirmed: bounds
        were not tight enough to tell; invalid: the witness does not show what the verdict says
    query : the query whose rules were applied
    reasons : for people
    facts : numbers behind the reasons
    """

    judgement: Judgement
    query: Query
    reasons: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


@names_arguments
@plain_state()
def check_witness(
    model: Model | tuple[Model, ...],
    property: Property,
    result: ResultsFile,
    question: Question,
    options: Options | None = None,
) -> Check:
    """Check the witness of a results file.

    Parameters
    ----------
    model, property : that the verdict is about; of two networks both models, or the first alone, see `verify`
    result : from `read_result`
    question : query and thresholds of the run, see `question_of`
    options : likelihood, outputs and coupling, if the run was given them; the seed of the attack that has to be
        repeated, where the bound rests on more than one point; timeout: seconds for bounding again; guarantee
        statistical, confidence, draws: to count drawn networks at X, fresh ones, which had no part in choosing it

    Method: `deterministic`: by the competition's rules (see `_deterministic`). `probabilistic` and `decision`: X in T
    exactly, and the query asked once more of the property whose input set is {X} alone, from scratch.

    Raises
    ------
    InputError : the witness does not fit the property, or the question cannot be asked of the model
    """
    from bnn_vnnlib.setting import of_property

    model = of_property(model, property, None if options is None else options.coupling)
    model = model.with_outputs_of(property.signature)
    query = question.query_of(model.posterior is not None)
    if result.verdict is not Verdict.SAT:
        return Check(Judgement.NOTHING, query, (f"the verdict is {result.verdict}, which has no witness",))
    if not result.values:
        return Check(Judgement.INVALID, query, ("the verdict is sat, but the file has no witness",))
    x = _values(property.signature.inputs, result)
    if query is Query.DETERMINISTIC:
        return _deterministic(model, property, x, result)
    if not _in_inputs(property, x):
        return Check(Judgement.INVALID, query, ("X is not in the property's input set",))

    how = options or Options()

    def ask(prop: Property) -> Result:
        """The result of asking the run's query of a property once more, from scratch."""
        from bnn_vnnlib.api import verify

        if query is Query.DECISION:
            asked = replace(how, query=query, tau_safe=None, tau_unsafe=None, rule=question.rule)
        else:
            kept = ("seed", "timeout", "guarantee", "confidence", "draws")
            asked = Options(
                query, question.tau_safe, question.tau_unsafe, **{name: getattr(how, name) for name in kept}
            )
        return verify(model, prop, **asked.given)

    at_x = ask(at_point(property, x))
    check = _of_decision(at_x) if query is Query.DECISION else _of_mass(at_x, question)
    if at_x.statistics is not None:
        shown = Judgement.CONFIDENT if check.judgement is Judgement.VALID else Judgement.UNCONFIRMED
        said = f"with confidence {at_x.statistics.confidence!r} over {at_x.statistics.counted} draws, no proof: "
        return replace(check, judgement=shown, reasons=(said + check.reasons[0], *check.reasons[1:]))
    if query is Query.DECISION:
        return check
    if check.judgement is Judgement.VALID or type(model.posterior).__name__ not in ("WeightSamples", "Mixture"):
        return check
    return _of_parts(ask(property), check)


def question_of(results: Path, property: Property, path: Path, options: Options | None = None) -> Question:
    """Query and thresholds of a run: the options, else the record beside the results file, else as in `verify`."""
    record = _read_record(results) or {}
    own = {key: record[key] for key in ("query", "tau_safe", "tau_unsafe", "rule") if record.get(key) is not None}
    comment = {**property.options, **{key: str(value) for key, value in own.items()}}
    return (options or Options()).question(comment, path)


def _read_record(results: Path) -> dict[str, Any] | None:
    """The record beside a results file, None if there is none (other tools write none); InputError if it is broken."""
    path = sidecar_path(results)
    if not path.is_file():
        return None
    return read_object(path, "run the instance again, or remove the record")


def other_files(results: Path, files: Mapping[str, Path]) -> list[str]:
    """Remarks where the record was made for files with other contents."""
    hashes = (_read_record(results) or {}).get("sha256")
    if not isinstance(hashes, Mapping):
        return []
    return [
        f"the record was made for another {role}: the SHA-256 of {path} is not the recorded one"
        for role, path in files.items()
        if hashes.get(role) not in (None, sha256(path))
    ]


def at_point(property: Property, x: Floats) -> Property:
    """The property with {x} as its only input: the cases whose input part x (n,) meets, at x."""
    feasible = [box for box in range(len(property.boxes)) if input_feasible(property, x, box)]
    cases = np.flatnonzero(np.isin(property.case_box, feasible))
    rows = property.rows
    kept = np.isin(rows.owner, cases)
    number = np.cumsum(np.isin(np.arange(property.num_cases), cases)) - 1  # of a case among those that are kept
    inputs = None if rows.inputs is None else rows.inputs[kept]
    some = HalfSpaces(rows.outputs[kept], inputs, rows.bound[kept], rows.inner_bound[kept], rows.strict[kept],
                      number[rows.owner[kept]])  # fmt: skip
    none = np.zeros(0, dtype=np.int64)
    no_rows = HalfSpaces(np.zeros((0, 0)), None, np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool), none)
    point = [x[None].copy() for _ in range(4)]
    return replace(property, boxes=Boxes(*point), constraints=no_rows, case_box=0 * cases, rows=some,
                   polynomials=())  # fmt: skip


def _values(variables: tuple[Variable, ...], result: ResultsFile) -> Floats:
    """Values of these variables, flattened and joined; InputError where the file lacks some."""
    parts = []
    for variable in variables:
        values = result.values.get(variable.name)
        if values is None:
            raise InputError(f"the witness has no values for {variable.name}; it has {', '.join(result.values)}")
        if values.size != variable.size:
            raise InputError(f"the witness has {values.size} values for {variable.name}, expected {variable.size}")
        parts.append(np.asarray(values, np.float64).reshape(-1))
    return np.concatenate(parts)


def _in_inputs(property: Property, x: Floats) -> bool:
    return any(input_feasible(property, x, box) for box in np.unique(property.case_box).tolist())


def _deterministic(model: Model, property: Property, x: Floats, result: ResultsFile) -> Check:
    """The competition's rules: X as the model's own type holds it, Y as onnxruntime computes it, first to the letter,
    then with a tolerance on the inputs. The file's own Y decides nothing."""
    from bnn_vnnlib.model.replay import replay

    rounded = _as_stored(model.network.signature.inputs, x)
    y = replay(model, rounded[None])[0]
    facts: dict[str, Any] = {"y_replayed": y.tolist()}
    reasons = []
    if any(variable.name in result.values for variable in property.signature.outputs):
        facts["y_deviation"] = deviation = float(np.abs(_values(property.signature.outputs, result) - y).max(initial=0))
        reasons.append(f"Y in the file and Y of onnxruntime differ by at most {deviation:.3g}")
    reasons += [*_of_hidden(model, property, rounded, result), *_irregular(property, result)]
    for judgement, tolerance in ((Judgement.VALID, 0.0), (Judgement.TOLERATED, INPUT_TOLERANCE)):
        case = violated_case(property, rounded, y, tolerance=tolerance)
        if case is not None:
            how = f"with input tolerance {tolerance:g}" if tolerance else "to the letter"
            said = f"(X, Y) satisfies case {case + 1} of {property.num_cases} of the property {how}"
            return Check(judgement, Query.DETERMINISTIC, (said, *reasons), {**facts, "case": case})
    inside = any(
        input_feasible(property, rounded, box, tolerance=INPUT_TOLERANCE) for box in range(len(property.boxes))
    )
    where = "X is in the input set" if inside else f"X is not in the input set, not even within {INPUT_TOLERANCE:g}"
    said = f"{where}; (X, Y) satisfies no case of the property"
    return Check(Judgement.INVALID, Query.DETERMINISTIC, (said, *reasons), facts)


def _of_hidden(model: Model, property: Property, x: Floats, result: ResultsFile) -> list[str]:
    """How far the file's values of hidden nodes are from those of onnxruntime; they decide nothing, as its Y."""
    if not property.hidden:
        return []
    from bnn_vnnlib.model.replay import hidden_nodes

    reasons = []
    for one, value in zip(property.hidden, hidden_nodes(model, property)(x), strict=True):
        theirs = result.values.get(one.name)
        if theirs is not None and theirs.size == one.size:
            off = np.abs(theirs.reshape(-1) - value.reshape(-1).astype(np.float64)).max(initial=0)
            reasons.append(f"{one.name} in the file and {one.name} of onnxruntime differ by at most {off:.3g}")
    return reasons


def _irregular(property: Property, result: ResultsFile) -> list[str]:
    """A remark if a 2.x file is none to the competition's reader, which wants all variables in order and shape."""
    signature = property.signature
    every = {"input": signature.inputs, "hidden": property.hidden, "output": signature.outputs}
    declared = [(every[kind][i].name, every[kind][i].shape) for kind, i in property.declared]
    found = [(name, values.shape) for name, values in result.values.items()]
    if property.version[0] == 1 or found == declared:
        return []
    wanted, had = (", ".join(f"{name} {list(shape)}" for name, shape in listed) for listed in (declared, found))
    return [f"the competition's reader would refuse the file: it lists {had}; declared are, in this order, {wanted}"]


def _as_stored(variables: tuple[Variable, ...], x: Floats) -> Floats:
    sizes = np.cumsum([variable.size for variable in variables])[:-1]
    pieces = zip(np.split(x, sizes), variables, strict=True)
    return np.concatenate([piece.astype(variable.element_type).astype(np.float64) for piece, variable in pieces])


def _of_decision(at_x: Result) -> Check:
    if at_x.decision is None:
        raise OptionError("the decision at X could not be bounded")
    facts = {"decision_lower": at_x.decision.lower.tolist(), "decision_upper": at_x.decision.upper.tolist()}
    match at_x.verdict:
        case Verdict.SAT:
            return Check(Judgement.VALID, Query.DECISION, ("X is in T and (X, D(X)) violates the property",), facts)
        case Verdict.UNSAT:
            return Check(Judgement.INVALID, Query.DECISION, ("(X, D(X)) does not violate the property",), facts)
        case _:
            said = "the bounds on D(X) are too wide to tell whether (X, D(X)) violates the property"
            return Check(Judgement.UNCONFIRMED, Query.DECISION, (said,), facts)


def _of_mass(at_x: Result, question: Question) -> Check:
    """P_safe of the property at X alone is 1 - P_w((X, f(X)) in V)."""
    if at_x.p_safe is None:
        raise OptionError("the probability at X could not be bounded")
    low, high = max(0.0, 1 - at_x.p_safe.upper), 1 - at_x.p_safe.lower
    facts = {"violation_lower": low, "violation_upper": high}
    needed = f"P_w((X, f(X)) violates the property) in [{low:.6g}, {high:.6g}]; needed: more than "
    needed += f"{1 - question.tau_unsafe:.6g}"
    if at_x.p_safe.upper < question.tau_unsafe:
        judgement = Judgement.VALID
    else:
        judgement = Judgement.INVALID if at_x.p_safe.lower >= question.tau_unsafe else Judgement.UNCONFIRMED
    return Check(judgement, Query.PROBABILISTIC, (f"X is in T; {needed}",), facts)


def _of_parts(again: Result, at_x: Check) -> Check:
    """A sat may rest on an input of its own for each sample, or component of a mixture: X alone need not show it."""
    if again.verdict is Verdict.SAT:
        samples = again.details.get("violating_samples")
        part, which = ("component", "") if samples is None else ("violating sample", f": samples {samples}")
        said = f"the verdict rests on an input for each {part}; they were attacked again{which}"
        return Check(Judgement.VALID, Query.PROBABILISTIC, (*at_x.reasons, said), at_x.facts)
    return replace(at_x, judgement=Judgement.UNCONFIRMED)
