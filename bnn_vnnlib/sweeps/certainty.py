"""How uncertain a network is around inputs, by proof (`bnn-vnnlib uncertainty`).

Classification, over the ball B(r) of an input, D_i(x) the expected probability of class i:
    uncertain      no class above tau: D_i(x) <= tau for all i and all x of B(r)
    decided        one class is the decision at every x of B(r)
    aleatoric      max_i of the upper bounds of D_i: no x of B(r) has a more confident decision
    epistemic      P_w(class i is the output's largest at every x of B(r)) < threshold for every i: the networks of the
                   posterior do not agree on any class
Regression: bounds on the expected outputs (for a heteroscedastic likelihood also on the expected log-variances, which
is the aleatoric reading) and P_w(the output stays within delta at every x of B(r)), the epistemic one.

1. Readings: columns and shares that are read off bounds on the decision.
2. The job: the questions of each input, their bounds, and the table.
Reference: Wicker et al., Adversarial Robustness Certification for Bayesian Neural Networks, appendix A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib import __version__, rules
from bnn_vnnlib.arrays import Flags
from bnn_vnnlib.errors import OptionError, names_arguments
from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.jobs.chunks import carry_out, growing, usual_chunk
from bnn_vnnlib.jobs.parts import Cost, PartsFolder, Step
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.progress import Watch
from bnn_vnnlib.network.network import Floats
from bnn_vnnlib.question.options import CONFIDENCE, OPTIONS, Options
from bnn_vnnlib.result import Query, Verdict
from bnn_vnnlib.setting import Setting
from bnn_vnnlib.sweeps.inputs import Balls, Inputs, Target, make_target, mean_output
from bnn_vnnlib.sweeps.questions import draw_columns, setting_of, settings_of, with_seed
from bnn_vnnlib.sweeps.source import Source, model_digest
from bnn_vnnlib.sweeps.summary import write_summary
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from bnn_vnnlib.batch import BatchResult
    from bnn_vnnlib.network.network import Model


# 1. Readings

_YES, _NO, _OPEN = "yes", "no", "unknown"


def _yes_or_no(yes: Flags, no: Flags) -> NDArray[np.str_]:
    """The word for each row: proved, refuted, or neither."""
    return np.where(yes, _YES, np.where(no, _NO, _OPEN))


def nested(found: BatchResult, count: int) -> BatchResult:
    """Bounds of balls around each input, `count` radii in increasing order: what holds on a ball holds inside it."""
    low, high = (side.reshape(-1, count, side.shape[-1])[:, ::-1] for side in (found.lower, found.upper))
    lower, upper = np.maximum.accumulate(low, axis=1), np.minimum.accumulate(high, axis=1)
    return replace(
        found, lower=lower[:, ::-1].reshape(found.lower.shape), upper=upper[:, ::-1].reshape(found.upper.shape)
    )


def _class_columns(found: BatchResult, tau: float, *, quick: bool, single: bool, count: int) -> Arrays:
    """Readings of a classifier's balls.

    Parameters
    ----------
    found : bounds on D, with verdicts on "uncertain" unless `quick`
    single : one probability; the opposite event is a class as well
    count : of radii; rows are inputs times radii, these in increasing order

    Proofs: D_i <= upper_i <= tau for all i is what "uncertain" says; lower_i > tau refutes it at every point. Where
    lower_i > upper_j for all j != i, D_i > D_j everywhere, so i is the decision. What is proved of every x of a ball
    holds in the balls inside it, and what some x of a ball refutes is refuted in the balls around it.
    """
    lower, upper = found.lower, found.upper
    if single:
        # 1 - D, rounded outward
        opposite_low, opposite_high = np.nextafter(1 - upper, -np.inf), np.nextafter(1 - lower, np.inf)
        lower, upper = np.concatenate([opposite_low, lower], 1), np.concatenate([opposite_high, upper], 1)
    yes, no = np.asarray((upper <= tau).all(1)), np.asarray((lower > tau).any(1))
    if not quick:
        yes, no = yes | (found.verdicts == Verdict.UNSAT), no | (found.verdicts == Verdict.SAT)
    yes = np.logical_or.accumulate(yes.reshape(-1, count)[:, ::-1], axis=1)[:, ::-1].ravel()
    no = np.logical_or.accumulate(no.reshape(-1, count), axis=1).ravel()
    best = lower.argmax(1)
    rest = np.where(np.arange(lower.shape[1]) == best[:, None], -np.inf, upper).max(1)
    decided = np.where(lower.max(1) > rest, best, -1)
    return {"uncertain": _yes_or_no(yes, no), "decided": decided, "aleatoric": upper.max(1)}


@dataclass(frozen=True)
class RadiusReading:
    """Over all inputs at one radius; nan where it is not asked.

    Attributes
    ----------
    uncertain, not_uncertain : shares proved and refuted
    decided : share of balls on which one class is proved to be the decision; correct : and it is the label
    lower, upper : mean bounds on D: of the label's class, or of the only output
    deviation : standard deviation of the lower bounds over the inputs
    aleatoric : mean of the largest probability that any class can reach
    epistemic, not_epistemic : shares proved and refuted
    """

    radius: float
    inputs: int
    uncertain: float
    not_uncertain: float
    decided: float
    correct: float
    lower: float
    upper: float
    deviation: float
    aleatoric: float
    epistemic: float
    not_epistemic: float


def _readings(columns: Arrays) -> tuple[RadiusReading, ...]:
    """The readings of a table, one for each radius."""
    return tuple(
        _reading(float(radius), {name: values[columns["radius"] == radius] for name, values in columns.items()})
        for radius in np.unique(columns["radius"])
    )


def _reading(radius: float, some: Arrays) -> RadiusReading:
    """The reading of one radius from its rows."""

    def share(name: str, word: str | int) -> float:
        return float((some[name] == word).mean()) if name in some else float("nan")

    lower, upper = some.get("label_lower"), some.get("label_upper")
    if lower is None and some["decision_lower"].shape[1] == 1:
        lower, upper = some["decision_lower"][:, 0], some["decision_upper"][:, 0]
    decided = some.get("decided")
    label = some.get("label")
    return RadiusReading(
        radius=radius,
        inputs=len(some["row"]),
        uncertain=share("uncertain", _YES),
        not_uncertain=share("uncertain", _NO),
        decided=float("nan") if decided is None else float((decided >= 0).mean()),
        correct=float("nan") if decided is None or label is None else float((decided == label).mean()),
        lower=float("nan") if lower is None else float(lower.mean()),
        upper=float("nan") if upper is None else float(upper.mean()),
        deviation=float("nan") if lower is None else float(lower.std()),
        aleatoric=float(some["aleatoric"].mean()) if "aleatoric" in some else float("nan"),
        epistemic=share("epistemic", _YES),
        not_epistemic=share("epistemic", _NO),
    )


# 2. The job

_MAX_CHUNK = 64
"""Inputs whose balls are bounded together, at most, where their number is not given."""

_TAU = 0.4
"""Certified uncertain: no class above this, where it is not given."""


@dataclass(frozen=True)
class Reading:
    """What is asked of each ball.

    Attributes
    ----------
    tau : classification: no class's expected probability exceeds it; None: .4
    epistemic : threshold on P_safe of every class (or, with delta, of the output); None: not asked
    quick : only bound D; nothing is searched for that decides the questions at tau
    """

    tau: float | None = None
    epistemic: float | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        for name in ("tau", "epistemic"):
            value = getattr(self, name)
            if value is not None:
                OPTIONS["tau_safe"].check(name, value)


@dataclass(frozen=True, eq=False)
class UncertaintyResult:
    """N inputs, K radii.

    Attributes
    ----------
    columns : (N K, ..) by name, sorted by row and radius: see docs/sweeps.md
    readings : shares and means by radius
    spent : time and memory
    """

    columns: Arrays
    readings: tuple[RadiusReading, ...]
    spent: Cost


@dataclass(frozen=True, eq=False)
class _UncertaintyTask:
    """Some inputs of one network, with every radius."""

    source: Source
    balls: Balls
    target: Target
    radii: tuple[float, ...]
    reading: Reading
    bounding: Options
    row: NDArray[np.int64]

    def run(self, earlier: Step | None) -> Arrays:
        """The columns of these inputs."""
        from bnn_vnnlib.batch import verify_batch

        model = self.source.model
        classes = _is_classifier(setting_of(self.bounding, model))
        index = np.repeat(np.arange(len(self.balls)), len(self.radii))
        radius = np.tile(np.array(self.radii), len(self.balls))
        lower, upper = self.balls.boxes(index, radius)
        violation = self._violation(model, classes)
        found = verify_batch(model, lower, upper, properties=[violation], **self.bounding.given)
        found = nested(found, len(self.radii))
        columns: Arrays = {"row": self.row[index], "radius": radius}
        columns |= {"decision_lower": found.lower, "decision_upper": found.upper}
        if found.draws is not None:
            said = draw_columns(self.bounding, found.draws)
            columns |= {name: said[name] for name in ("confidence", "draws_counted", "draws_open")}
        if classes:
            tau = self.reading.tau if self.reading.tau is not None else _TAU
            single, count = found.lower.shape[1] == 1, len(self.radii)
            columns |= _class_columns(found, tau, quick=self.reading.quick, single=single, count=count)
            columns |= self._of_label(model, found.lower, found.upper, index)
        if self.reading.epistemic is not None:
            columns |= self._epistemic(model, lower, upper, index, classes=classes)
        return columns

    def _violation(self, model: Model, classes: bool) -> rules.Cases:
        outputs = model.network.signature.output_size
        if not classes or self.reading.quick:
            return rules.never(outputs)
        tau = self.reading.tau if self.reading.tau is not None else _TAU
        return _uncertain_within(outputs, tau) if outputs == 1 else rules.uncertain(outputs, tau)

    def _of_label(self, model: Model, lower: Floats, upper: Floats, index: NDArray[np.int64]) -> Arrays:
        """Bounds on the class of the label, or on that of the mean network."""
        if lower.shape[1] == 1:
            return {}
        labels = self.target.labels
        label = (mean_output(model, self.balls.x).argmax(-1) if labels is None else labels)[index]
        each = np.arange(len(index))
        return {"label": label, "label_lower": lower[each, label], "label_upper": upper[each, label]}

    def _epistemic(
        self, model: Model, lower: Floats, upper: Floats, index: NDArray[np.int64], *, classes: bool
    ) -> Arrays:
        """Bounds on P_safe of every class, or of the output's range."""
        from bnn_vnnlib.batch import verify_batch

        threshold, count = self.reading.epistemic, model.network.signature.output_size if classes else 1
        how = replace(
            _shared(self.bounding, count), query=Query.PROBABILISTIC, tau_safe=threshold, tau_unsafe=threshold,
            rule=None, likelihood=None,
        )  # fmt: skip
        asked: list[Mapping[str, Any]]
        if classes:
            asked = [{"labels": np.full(len(index), c)} for c in range(model.network.signature.output_size)]
        else:
            asked = [self.target.asked(model, self.balls.x).rows(index).arguments(0)]
        found = [verify_batch(model, lower, upper, **each, **how.given) for each in asked]
        unsure = np.all([one.verdicts == Verdict.SAT for one in found], axis=0)
        sure = np.any([one.verdicts == Verdict.UNSAT for one in found], axis=0)
        return {
            "p_safe_lower": np.stack([one.lower for one in found], 1),
            "p_safe_upper": np.stack([one.upper for one in found], 1),
            "epistemic": _yes_or_no(unsure, sure),
        }


def _shared(how: Options, count: int) -> Options:
    """The options for each of several classes, one of which is enough for an answer: each has its share of what may
    fail.
    """
    if how.guarantee == "certain":
        return how
    delta = (1 - Decimal(repr(how.confidence or CONFIDENCE))) / count
    return replace(how, confidence=float(np.nextafter(float(1 - delta), 1.0)))


def _uncertain_within(outputs: int, tau: float) -> rules.Cases:
    """Cases where neither an event nor its opposite is above tau: 1 - tau <= Y <= tau; 1 - tau is rounded up."""
    least = float(np.nextafter(1.0 - tau, np.inf))
    if least > tau:
        raise OptionError(f"of an event and its opposite one has at least .5: tau must exceed that, found {tau}")
    return rules.within(np.full(outputs, least), np.full(outputs, tau))


def _is_classifier(setting: Setting) -> bool:
    """Whether D is made of probabilities."""
    return setting.likelihood in ("categorical", "bernoulli") or setting.model.network.softmax_axis is not None


@dataclass(frozen=True, eq=False)
class _UncertaintyJob:
    """The chunks: inputs in their order, each with every radius."""

    source: Source
    inputs: Inputs
    target: Target
    radii: tuple[float, ...]
    reading: Reading
    bounding: Options
    chunk: int

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options, and hashes of the network and the arrays."""
        settings: dict[str, Any] = {"job": "uncertainty", "version": __version__, **settings_of(self.bounding)}
        settings |= {**vars(self.reading), "radii": list(self.radii), "chunk": self.chunk}
        settings["delta"] = None if self.target.delta is None else self.target.delta.tolist()
        settings["target"] = "given" if self.target.labels is not None or self.target.center is not None else "own"
        return settings | {"network model": model_digest(self.source.model)} | self.inputs.digests

    @cached_property
    def _cuts(self) -> list[NDArray[np.int64]]:
        rows, cuts = np.arange(len(self.inputs)), []
        for size in growing(self.chunk):
            if not len(rows):
                break
            cuts.append(rows[:size])
            rows = rows[size:]
        return cuts

    def __len__(self) -> int:
        return len(self._cuts)

    def size(self, chunk: int) -> int:
        """Number of balls in a chunk."""
        return len(self._cuts[chunk]) * len(self.radii)

    def task(self, chunk: int) -> _UncertaintyTask:
        """The work of a chunk."""
        rows = self._cuts[chunk]
        some = self.target.rows(rows)
        balls = self.inputs.balls.rows(rows)
        return _UncertaintyTask(self.source, balls, some, self.radii, self.reading, self.bounding, rows)


@names_arguments
@plain_state()
def uncertainty(
    source: Source, inputs: Inputs, radii: Sequence[float], reading: Reading | None = None, *,
    delta: ArrayLike | None = None, own: bool = False, bounding: Options | None = None,
    out: str | Path | None = None, chunk: int | None = None, workers: int = 1, threads: int | None = None,
    scheduler: str | None = None, watch: Watch | None = None,
) -> UncertaintyResult:  # fmt: skip
    """Bound the decision over balls of several radii around each input, and read uncertainty from the bounds.

    Parameters
    ----------
    radii : not negative, increasing
    reading : thresholds and effort
    delta, own : as in `radius.radii`; delta goes with `epistemic` and regression
    out : folder for uncertainty.parquet and summary.csv, in which a run goes on that was ended
    chunk : inputs at a time, the first chunks being smaller; None: that of the job that goes on, else as many as make
        all workers busy
    others : see `sweep`

    Raises
    ------
    InputError : arrays and options that do not fit, before any work
    """
    reading, how = reading or Reading(), bounding or Options()
    sizes = tuple(float(radius) for radius in radii)
    if not sizes or not all(0 <= radius < np.inf for radius in sizes) or list(sizes) != sorted(set(sizes)):
        raise OptionError(f"radii must be finite, not negative and increasing, found {list(sizes)}")
    if chunk is not None and chunk < 1:
        raise OptionError(f"a chunk holds at least one input, not {chunk}")
    if how.query not in (None, Query.DECISION):
        raise OptionError("uncertainty bounds the decision: leave out the query")
    how = replace(how, query=Query.DECISION)
    model = source.model
    setting = setting_of(how, model)
    inputs.fit(model)
    target = _target(setting, inputs, reading, delta, own)
    where, folder = Slots(workers, threads, scheduler), None if out is None else PartsFolder(Path(out))
    chunk = chunk or (folder and folder.chunk) or usual_chunk(len(inputs), workers, _MAX_CHUNK)
    job = _UncertaintyJob(source, inputs, target, sizes, reading, with_seed(how, folder), chunk)
    columns, spent = carry_out(job, folder, where, watch, file="uncertainty.parquet", order=("radius", "row"))
    result = UncertaintyResult(columns, _readings(columns), spent)
    if folder is not None:
        write_summary(folder.path / "summary.csv", result.readings)
    return result


def _target(setting: Setting, inputs: Inputs, reading: Reading, delta: ArrayLike | None, own: bool) -> Target:
    """What the readings need; refuses what does not belong to the kind of network."""
    outputs = setting.model.network.signature.output_size
    if _is_classifier(setting):
        if delta is not None:
            raise OptionError("delta is for regression, and the model is a classifier")
        if outputs == 1:
            _uncertain_within(1, _TAU if reading.tau is None else reading.tau)
            if reading.epistemic is not None:
                raise OptionError("epistemic needs at least two outputs to compare")
            return Target()
        return make_target(setting.model, len(inputs), None if own else inputs.labels)
    if reading.tau is not None:
        raise OptionError("tau is for classifiers, and the model is a regression")
    if (reading.epistemic is None) != (delta is None):
        raise OptionError("for a regression epistemic needs delta, and delta is for epistemic")
    return Target() if delta is None else make_target(
        setting.model, len(inputs), None, None if own else inputs.y, delta
    )  # fmt: skip
