"""Many input boxes on one model in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.methods import method as methods
from bnn_vnnlib.methods.method import NONE
from bnn_vnnlib.question.options import OptionFields, Options, takes_options
from bnn_vnnlib.result import Query, Verdict
from bnn_vnnlib.rules import never
from bnn_vnnlib.setting import Answer, Setting, settle_run
from bnn_vnnlib.system.environment import plain_state
from bnn_vnnlib.system.memory import memory_of

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.problem.problem import OutputCases, Problem


@dataclass(frozen=True, eq=False)
class BatchResult:
    """What `verify_batch` returns; N boxes, m outputs, R rows.

    Without the diagnosis of a `Result`: looking at one question takes as long as bounding many boxes of a batch does.

    Attributes
    ----------
    lower, upper : probabilistic: bounds on P_safe (N,); deterministic: 1 where proved safe / 0 where proved unsafe
        (N,); decision: bounds on D, or on the medians (N, m). NaN where the box was skipped.
    row_lower, row_upper : decision only: bounds on the rows a.D(x) of the property (N, R); with labels the rows are
        D_label - D_j for the other classes j in ascending order; None where there are neither labels nor properties
    verdicts : (N,) of `Verdict`
    points : (N, n) the attacked point of each box (NaN where there is none)
    method : the methods that gave the bounds
    confidence : with guarantee statistical, that of each box's bounds and verdict; None: they are certain
    draws : (N, 4) with guarantee statistical: networks counted for each box, of these proved safe, proved to violate,
        and open; a box without any is certain. NaN where the box was skipped, and for safe and violating under decision
    lower_by, upper_by : (N,) of each box: the methods behind its lower and its upper bounds, "none" where there is
        none, None where the box was skipped
    seconds : of the whole call
    query, tau_safe, tau_unsafe : what was asked
    labels : (N,) as they were given
    """

    lower: Floats
    upper: Floats
    verdicts: NDArray[np.object_]
    points: Floats
    method: str
    seconds: float
    row_lower: Floats | None = None
    row_upper: Floats | None = None
    confidence: float | None = None
    draws: Floats | None = None
    lower_by: NDArray[np.object_] | None = None
    upper_by: NDArray[np.object_] | None = None
    query: Query | None = None
    tau_safe: float | None = None
    tau_unsafe: float | None = None
    labels: NDArray[np.int64] | None = None

    def to_dataframe(self) -> Any:
        """One row an input, as a pandas DataFrame: label, verdict, bounds, methods."""
        from bnn_vnnlib.batch_views import dataframe

        return dataframe(self)

    def summary(self) -> str:
        """How many inputs are proved, refuted and open, and what that says, in a few lines."""
        from bnn_vnnlib.batch_views import text

        return text(self)

    def to_latex(self) -> str:
        """The summary as a LaTeX table (booktabs)."""
        from bnn_vnnlib.batch_views import latex

        return latex(self)

    def plot(self, ax: Any = None) -> Any:
        """The bounds of all inputs in one picture; see `bnn_vnnlib.batch_views.plot`."""
        from bnn_vnnlib.batch_views import plot

        return plot(self, ax)

    def _repr_html_(self) -> str:
        """The result as HTML, for notebooks."""
        from bnn_vnnlib.batch_views import html

        return html(self)


@plain_state()
@takes_options(without=("coupling", "outputs", "strict"))
def verify_batch(
    model: Model,
    lower: ArrayLike,
    upper: ArrayLike,
    labels: ArrayLike | None = None,
    properties: OutputCases | Sequence[OutputCases] | None = None,
    query: Query | str | None = None,
    **options: Unpack[OptionFields],
) -> BatchResult:
    """Decide N input boxes; nothing depends on their order or number beyond rounding.

    Parameters
    ----------
    lower, upper : (N, n) in the model's flattened input order, or (N, *shape) of its only input; taken as they are.
        Tensors of torch may lie anywhere
    labels : (N,) whole numbers; a violation is some class j != label with Y_j >= Y_label (ties are unsafe); -1 skips
        the box
    properties : instead of labels, one DNF over the outputs for all boxes, or a list of them, one a box. A DNF is a
        list of cases (A, b, strict), each the conjunction of A y <= b (< where strict), as `bnn_vnnlib.rules` makes it.
        Neither labels nor properties under `decision`: bounds on D alone, every verdict `unknown`
    query : what is asked, as in `verify`
    {options}

    Raises
    ------
    OptionError : shapes that do not fit, empty or infinite boxes, labels out of range
    """
    begun = time.monotonic()
    how = Options(query, **options)
    setting = settle_run(model, how, started=begun)
    low, high = _boxes(model, lower, upper)
    kept, problem = _problem(setting, low, high, labels, properties)
    verdicts = np.full(len(low), None)
    verdicts[:] = Verdict.UNKNOWN  # `np.full` would make a plain string of it
    fields, used = _nothing(setting), NONE
    if len(problem):
        with memory_of(how.memory, setting.device):
            answer = setting.answer(problem, setting.attack(steps=20, restarts=how.restarts))
        fields, used = _arrays(answer), answer.method
        verdicts[kept] = answer.verdicts
    if labels is None and properties is None:  # no question, no answer
        fields = {name: values for name, values in fields.items() if not name.startswith("row_")}
        verdicts[:] = Verdict.UNKNOWN
    full: dict[str, Any] = {name: _spread(values, kept, len(low)) for name, values in fields.items()}
    asked = setting.question
    return BatchResult(
        **full, verdicts=verdicts, method=used, seconds=time.monotonic() - begun, query=setting.query,
        tau_safe=asked.tau_safe, tau_unsafe=asked.tau_unsafe,
        confidence=None if setting.sampling is None else setting.sampling.confidence,
        labels=None if labels is None else _array(labels).astype(np.int64),
    )  # fmt: skip


def _array(values: ArrayLike) -> NDArray:
    """Numbers of numpy or torch; a tensor may need gradients, or lie on another device."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _boxes(model: Model, lower: ArrayLike, upper: ArrayLike) -> tuple[Floats, Floats]:
    """Both ends of the boxes as finite float64 arrays (N, n); OptionError for other shapes."""
    low, high = (np.array(_array(side), dtype=np.float64) for side in (lower, upper))
    signature = model.network.signature
    size = signature.input_size
    if low.ndim > 2 and low.shape == high.shape:
        shapes = [[side for side in variable.shape if side > 1] for variable in signature.inputs]
        # of another order than the network's, such as (N, H, W, C), the numbers would be mixed up
        if len(shapes) > 1 or [side for side in low.shape[1:] if side > 1] != shapes[0]:
            wanted = ", ".join(str(variable.shape) for variable in signature.inputs)
            raise OptionError(
                f"boxes of shape {low.shape} do not fit the model's inputs {wanted}: bring them into its order and "
                f"give (N, {size})"
            )
        low, high = low.reshape(len(low), -1), high.reshape(len(high), -1)
    if low.ndim != 2 or low.shape != high.shape or low.shape[1] != size:
        raise OptionError(f"boxes must be two arrays of shape (N, {size}), found {low.shape} and {high.shape}")
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise OptionError("boxes must be finite")
    if not (low <= high).all():
        raise OptionError(f"box {int(np.argmax((low > high).any(axis=1)))} is empty: lower exceeds upper")
    return low, high


def _problem(
    setting: Setting, low: Floats, high: Floats, labels: ArrayLike | None,
    properties: OutputCases | Sequence[OutputCases] | None,
) -> tuple[NDArray[np.int64], Problem]:  # fmt: skip
    """The boxes that are not skipped, and the question about them."""
    import torch

    from bnn_vnnlib.problem.problem import from_cases, from_labels

    classes = setting.model.network.signature.output_size
    everything = np.arange(len(low))
    if labels is None and properties is None:
        if setting.query is not Query.DECISION:
            raise OptionError(
                f"query {setting.query} needs either labels or properties; with neither there are bounds on the "
                "decision alone, query='decision'"
            )
        properties = never(classes)
    if labels is not None and properties is not None:
        raise OptionError("give either labels or properties, not both")
    if properties is not None:
        lower, upper = (torch.tensor(side, device=setting.device) for side in (low, high))
        return everything, from_cases(lower, upper, _dnfs(properties, classes), classes)
    label = _array([] if labels is None else labels)
    whole = label.dtype.kind in "iu" or (label.dtype.kind == "f" and bool((label == np.round(label)).all()))
    if label.shape != (len(low),) or not whole:
        raise OptionError(f"labels must be {len(low)} integers, found {label.dtype} of shape {label.shape}")
    if (label >= classes).any() or (label < -1).any():
        raise OptionError(f"labels must lie in -1 (skip) .. {classes - 1}")
    if classes < 2:
        raise OptionError("labels need a model with at least two outputs")
    kept = everything[label >= 0]
    lower, upper = (torch.tensor(side[kept], device=setting.device) for side in (low, high))
    chosen = torch.tensor(label[kept].astype(np.int64), device=setting.device)
    return kept, from_labels(lower, upper, chosen, classes)


def _dnfs(properties: OutputCases | Sequence[OutputCases], outputs: int) -> list[OutputCases]:
    """One DNF, or many, as a list of checked arrays."""
    shape = f"a case must be arrays A (R, {outputs}), b (R,), strict (R,)"
    try:
        entries: list[Any] = list(properties)
        one = bool(entries) and _is_case(entries[0])
        dnfs = [[tuple(_array(part) for part in case) for case in dnf] for dnf in ([entries] if one else entries)]
    except (TypeError, ValueError, IndexError):
        raise OptionError(f"properties must be a list of cases, or such a list for each box; {shape}") from None
    if not entries:
        raise OptionError("properties is empty: give one for all boxes, or one a box ([[]] is one without cases)")
    for case in (case for dnf in dnfs for case in dnf):
        if [part.ndim for part in case] != [2, 1, 1]:
            raise OptionError(shape)
        a, b, strict = case
        if a.shape != (len(b), outputs) or strict.shape != b.shape:
            raise OptionError(shape)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise OptionError("a property row holds NaN or infinite numbers")
    return cast("list[OutputCases]", dnfs)


def _is_case(entry: Any) -> bool:
    """Whether this is a case (A, b, strict) and not a list of cases: its first part is a matrix, not a case."""
    if len(entry) == 0:
        return False
    first = entry[0]
    if isinstance(first, tuple | list):
        return len(first) > 0 and np.ndim(_array(first[0])) == 1
    return np.ndim(_array(first)) == 2


def _arrays(answer: Answer) -> dict[str, NDArray]:
    """The bounds and points of a `BatchResult`, and the methods behind them."""
    import torch

    from bnn_vnnlib.methods.outcome import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import SafetyBounds

    found = answer.found
    if isinstance(found, SafetyBounds | DecisionOutcome):
        tensors = {"lower": found.lower, "upper": found.upper, "points": found.point}
        lower_by, upper_by = found.methods
        if isinstance(found, SafetyBounds) and found.draws is not None:
            parts = (found.draws.counted, found.draws.safe, found.draws.violating, found.draws.open)
            tensors |= {"draws": torch.stack(parts, 1)}
        if isinstance(found, DecisionOutcome):
            tensors |= {"row_lower": found.row_lower, "row_upper": found.row_upper}
            if found.draws is not None:
                counted, open_ = found.draws
                row = torch.tensor([counted, torch.nan, torch.nan, open_], dtype=torch.float64)
                tensors |= {"draws": row.expand(len(found.lower), -1)}
    else:
        safe, unsafe = found.safe[0], found.violated[0]
        tensors = {"lower": safe.double(), "upper": 1.0 - unsafe.double(), "points": found.point[0]}
        lower_by, upper_by = ([methods.BRANCHING if proved else NONE for proved in side] for side in (safe, unsafe))
    names = {"lower_by": np.array(lower_by, dtype=object), "upper_by": np.array(upper_by, dtype=object)}
    return {name: values.cpu().numpy() for name, values in tensors.items()} | names


def _nothing(setting: Setting) -> dict[str, NDArray]:
    """Empty arrays of results, for a batch all boxes of which were skipped."""
    size, outputs = setting.model.network.signature.input_size, setting.model.network.signature.output_size
    if setting.query is Query.DECISION:
        rows = np.zeros((0, outputs - 1))
        empty = np.zeros((0, outputs))
        return {"lower": empty, "upper": empty, "row_lower": rows, "row_upper": rows, "points": np.zeros((0, size))}
    return {"lower": np.zeros(0), "upper": np.zeros(0), "points": np.zeros((0, size))}


def _spread(values: NDArray, kept: NDArray[np.int64], count: int) -> NDArray:
    """Put the results of the kept boxes at their places among all; NaN, or None, elsewhere."""
    empty = None if values.dtype == object else np.nan
    out = np.full((count, *values.shape[1:]), empty, dtype=values.dtype if empty is None else np.float64)
    out[kept] = values
    return out
