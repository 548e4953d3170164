"""The largest certified-robust and the smallest certified-unrobust radius of each input (`bnn-vnnlib radius`).

The search, of many inputs at once: a certificate at radius r holds at every smaller radius and a violation at every
larger one, because the balls are nested (`inputs.Balls`). The bounds that give certificates need not be monotone: a
proof can fail at one radius and succeed at a larger one. So what is certified is used at once for all smaller radii,
and a failed proof only steers the search: a bracket is [certified, a radius at which the proof failed], halved until
it is narrower than the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import OptionError, names_arguments
from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.jobs.chunks import carry_out, usual_chunk
from bnn_vnnlib.jobs.parts import Cost, PartsFolder, Step
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.progress import Watch
from bnn_vnnlib.network.network import Floats
from bnn_vnnlib.question.options import CONFIDENCE, OPTIONS, Options
from bnn_vnnlib.result import Query, Verdict
from bnn_vnnlib.sweeps.inputs import Balls, Inputs, Target, make_target
from bnn_vnnlib.sweeps.questions import AskedRows, setting_of, settings_of, with_seed
from bnn_vnnlib.sweeps.source import Source, model_digest
from bnn_vnnlib.sweeps.summary import write_summary
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model


Index = NDArray[np.int64]
Probe = Callable[[Index, Floats], tuple[NDArray[np.bool_], Floats]]
"""rows (K,) and radii (K,) -> certified robust (K,), and the radius from which on it is certified to fail, or inf."""

_STATE = ("robust", "failed", "broken", "spared")

_NOTHING_PROVED = -1.0
"""Radius that stands for one below all others: nothing is proved."""

FINEST = 2.0**-40
"""Tolerances below this share of the largest radius would ask for radii that floats do not tell apart."""


@dataclass(frozen=True)
class Radii:
    """largest : no radius beyond it is tried; first : the first one after 0; tolerance : width of a final bracket."""

    largest: float
    tolerance: float
    first: float | None = None

    def __post_init__(self) -> None:
        for name in ("largest", "tolerance", "first"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise OptionError(f"{name} must be a positive number, found {value}")
        if not FINEST * self.largest <= self.tolerance <= self.largest:
            raise OptionError(f"the tolerance must lie between {FINEST * self.largest:.1g} and the largest radius")
        if self.first is not None and self.first > self.largest:
            raise OptionError("the first radius exceeds the largest one")

    @property
    def start(self) -> float:
        """The first radius after 0."""
        return min(self.largest, max(self.tolerance, self.largest / 32)) if self.first is None else self.first


class Bisection:
    """One search over N inputs.

    Attributes
    ----------
    robust : (N,) the largest radius certified so far, nothing proved (-1) where not even the input itself is
    failed : (N,) the smallest one above at which neither was proved, inf
    broken : (N,) the smallest radius certified to fail, inf
    spared : (N,) the largest one below at which neither was proved, else -1
    rounds : probes of all inputs that were open, so far
    """

    def __init__(self, count: int, radii: Radii) -> None:
        self._radii = radii
        self.robust, self.spared = np.full(count, _NOTHING_PROVED), np.full(count, _NOTHING_PROVED)
        self.failed, self.broken = np.full(count, np.inf), np.full(count, np.inf)
        self.rounds = 0

    def run(self, probe: Probe) -> None:
        """Search until every bracket is narrow, open on its far side beyond the largest radius, or empty at 0."""
        while self.open.any():
            self.step(probe)

    def step(self, probe: Probe) -> None:
        """One probe of every input that is open."""
        index, radius = self._next()
        self.rounds += 1
        self._learn(index, radius, *probe(index, radius))

    @property
    def open(self) -> NDArray[np.bool_]:
        """(N,) whether a bracket of the input is to be probed."""
        index, _ = self._next()
        found = np.zeros(len(self.robust), bool)
        found[index] = True
        return found

    @property
    def state(self) -> dict[str, Floats]:
        """What the next step depends on; with `rounds` it is all there is to know."""
        return {name: getattr(self, name) for name in _STATE}

    @classmethod
    def resumed(cls, radii: Radii, state: Mapping[str, Floats], rounds: int) -> Bisection:
        """The search that goes on from a stored state after so many rounds."""
        search = cls(len(state[_STATE[0]]), radii)
        for name in _STATE:
            setattr(search, name, np.array(state[name]))
        search.rounds = rounds
        return search

    def _next(self) -> tuple[Index, Floats]:
        """One radius for each bracket that is not closed; both of an input may ask for the same."""
        below = self._between(self.robust, np.minimum(self.failed, self.broken))
        above = self._between(np.maximum(self.spared, self.robust), self.broken)
        above[above == below] = np.nan
        radius = np.concatenate([below, above])
        index = np.flatnonzero(~np.isnan(radius))
        return index % len(below), radius[index]

    def _between(self, low: Floats, high: Floats) -> Floats:
        """(N,) the next radius in each bracket, nan where it is closed."""
        radii = self._radii
        further = np.minimum(np.maximum(2 * low, radii.start), radii.largest)
        further[low >= radii.largest] = np.nan
        with np.errstate(invalid="ignore"):  # inf - inf has no middle, and is not used
            inside = np.where(high - low > radii.tolerance, (np.maximum(low, 0) + high) / 2, np.nan)
        radius = np.where(np.isinf(high), further, inside)
        radius[low == _NOTHING_PROVED] = 0.0
        radius[high <= 0] = np.nan
        return radius

    def _learn(self, index: Index, radius: Floats, robust: NDArray[np.bool_], broken: Floats) -> None:
        fails = np.isfinite(broken)
        vain = ~robust & ~fails  # what is decided is in `robust` or `broken`: the brackets are the same until then
        np.maximum.at(self.robust, index[robust], radius[robust])
        np.minimum.at(self.failed, index[vain], radius[vain])
        np.minimum.at(self.broken, index[fails], broken[fails])
        np.maximum.at(self.spared, index[vain], radius[vain])
        # A proof that failed below what is proved now says nothing any more.
        self.failed[self.failed <= self.robust] = np.inf
        self.spared[self.spared >= self.broken] = _NOTHING_PROVED
        again = (self.spared == _NOTHING_PROVED) & np.isfinite(self.broken) & (self.broken > 0)
        self.spared[again] = np.maximum(self.robust[again], 0.0)


_MAX_CHUNK = 256
"""Inputs whose radii are looked for together, at most, where their number is not given."""

_THRESHOLD = 0.7
"""Threshold on P_safe, where none is given."""


@dataclass(frozen=True, eq=False)
class RadiusResult:
    """Radii of N inputs.

    Attributes
    ----------
    robust : (N,) certified: at this radius and every smaller one; nan where not even the input itself is
    unrobust : (N,) certified to fail: at this radius and every larger one; inf where none up to the largest radius is
    robust_gap : (N,) distance to the next radius at which the proof was tried in vain; 0 at the largest radius
    unrobust_gap : (N,) the same below `unrobust`; nan where that is inf, 0 where it is 0
    columns : all that is kept, see docs/sweeps.md
    spent : time and memory
    """

    robust: Floats
    unrobust: Floats
    robust_gap: Floats
    unrobust_gap: Floats
    columns: Arrays
    spent: Cost


@dataclass(frozen=True)
class RadiusSummary:
    """Over N inputs: how many have a robust radius and an unrobust one, and the means over these."""

    inputs: int
    with_robust: int
    robust_mean: float
    with_unrobust: int
    unrobust_mean: float
    gap_mean: float


@dataclass(frozen=True, eq=False)
class _RadiusTask:
    """Some inputs of one network."""

    source: Source
    balls: Balls
    target: Target
    radii: Radii
    bounding: Options
    row: NDArray[np.int64]

    def run(self, earlier: Step | None) -> Arrays | Step:
        """Do one step of the search; after the last one, return the columns of these inputs."""
        model = self.source.model
        asked = self.target.asked(model, self.balls.x)
        if earlier is None:
            search = Bisection(len(self.balls), self.radii)
        else:
            search = Bisection.resumed(self.radii, earlier.columns, earlier.number)
        search.step(lambda index, radius: self._probe(model, asked, index, radius))
        still = search.open
        return Step(search.state, search.rounds, int((~still).sum())) if still.any() else self._columns(search, asked)

    def _columns(self, search: Bisection, asked: AskedRows) -> Arrays:
        """The columns of the table, from what the search knows."""
        some, none = search.robust != _NOTHING_PROVED, np.isinf(search.broken)
        ceiling = np.minimum(search.failed, search.broken)
        floor = np.maximum(search.spared, search.robust).clip(min=0.0)
        columns = {
            "row": self.row,
            "robust_radius": np.where(some, search.robust, np.nan),
            "unrobust_radius": search.broken,
            "robust_gap": np.where(np.isinf(ceiling), 0.0, ceiling - search.robust.clip(min=0.0)),
            "unrobust_gap": np.where(none, np.nan, np.where(none, 0.0, search.broken) - floor),
            "probes": np.full(len(self.row), search.rounds),
        }
        if not self.bounding.certain:
            columns["confidence"] = np.full(len(self.row), self.bounding.confidence or CONFIDENCE)
        if asked.labels is not None:
            columns["label"] = asked.labels
        if asked.lower is not None and asked.upper is not None:
            columns |= {"output_lower": asked.lower, "output_upper": asked.upper}
        return columns

    def _probe(
        self, model: Model, asked: AskedRows, index: NDArray[np.int64], radius: Floats
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Certificates on the balls, and from which radius on they are certified to fail."""
        from bnn_vnnlib.batch import verify_batch

        lower, upper = self.balls.boxes(index, radius)
        arguments = asked.rows(index).arguments(model.network.signature.output_size)
        found = verify_batch(model, lower, upper, **arguments, **self.bounding.given)
        reach = np.maximum(radius, self.balls.reach(index, lower, upper))
        return found.verdicts == Verdict.UNSAT, np.where(found.verdicts == Verdict.SAT, reach, np.inf)


@dataclass(frozen=True, eq=False)
class _RadiusJob:
    """The chunks: inputs in their order."""

    source: Source
    inputs: Inputs
    target: Target
    radii: Radii
    bounding: Options
    chunk: int

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options, and hashes of the network and the arrays."""
        model = self.source.model
        settings: dict[str, Any] = {"job": "radius", "version": __version__, **settings_of(self.bounding)}
        settings |= {**asdict(self.radii), "chunk": self.chunk, "network model": model_digest(model)}
        settings["delta"] = None if self.target.delta is None else self.target.delta.tolist()
        settings["target"] = "given" if self.target.labels is not None or self.target.center is not None else "own"
        return settings | self.inputs.digests

    def __len__(self) -> int:
        return -(-len(self.inputs) // self.chunk)

    def _rows(self, chunk: int) -> NDArray[np.int64]:
        return np.arange(chunk * self.chunk, min((chunk + 1) * self.chunk, len(self.inputs)))

    def size(self, chunk: int) -> int:
        """Number of inputs in a chunk."""
        return len(self._rows(chunk))

    def task(self, chunk: int) -> _RadiusTask:
        """The work of a chunk."""
        rows = self._rows(chunk)
        balls, target = self.inputs.balls.rows(rows), self.target.rows(rows)
        return _RadiusTask(self.source, balls, target, self.radii, self.bounding, rows)


@names_arguments
@plain_state()
def radii(
    source: Source, inputs: Inputs, search: Radii, *, threshold: float | None = None, delta: ArrayLike | None = None,
    own: bool = False, bounding: Options | None = None, out: str | Path | None = None, chunk: int | None = None,
    workers: int = 1, threads: int | None = None, scheduler: str | None = None, watch: Watch | None = None,
) -> RadiusResult:  # fmt: skip
    """MaxRR and MinUR in l-infinity balls around each input, by bisection over all inputs together.

    Robust: P_safe >= tau_safe (or, under `decision`, no input of the ball has a decision in violation). Unrobust:
    P_safe < tau_unsafe (or some input of the ball has one).

    With guarantee statistical the two radii of an input hold with the stated confidence. Its balls are nested and are
    asked of the same draws: of all balls with P_safe < tau_safe, "safe on one of them" is the union of nested events,
    of probability tau_safe at most. What is proved of any such ball is at most that event, draw by draw, so that one
    martingale, with one delta, bounds all of them. So it is with violations of the balls with P_safe >= tau_unsafe.

    Parameters
    ----------
    threshold : both of them; None: those of `bounding`, else .7
    delta : regression: each output must stay within delta of y, or, without y, of the mean network's output; None:
        classification, the class must stay that of the label, or, without labels, of the mean network
    own : what the mean network says counts, though there are labels or y
    bounding : query, thresholds and methods
    out : folder for radii.parquet and summary.csv, in which a run goes on that was ended
    chunk : inputs that are searched together; None: that of the job that goes on, else as many as make all workers
        busy. When the process is killed, each worker loses one step of the search at most
    others : see `sweep`

    Raises
    ------
    InputError : arrays and options that do not fit, before any work
    """
    model = source.model
    how = _with_thresholds(bounding or Options(), threshold, model)
    if chunk is not None and chunk < 1:
        raise OptionError(f"a chunk holds at least one input, not {chunk}")
    where, folder = Slots(workers, threads, scheduler), None if out is None else PartsFolder(Path(out))
    chunk = chunk or (folder and folder.chunk) or usual_chunk(len(inputs), workers, _MAX_CHUNK)
    inputs.fit(model)
    labels, center = (None, None) if own else (inputs.labels, inputs.y)
    target = make_target(model, len(inputs), labels, center, delta)
    job = _RadiusJob(source, inputs, target, search, with_seed(how, folder), chunk)
    columns, spent = carry_out(job, folder, where, watch, file="radii.parquet", order=("row",))
    result = RadiusResult(
        columns["robust_radius"], columns["unrobust_radius"], columns["robust_gap"], columns["unrobust_gap"], columns,
        spent,
    )  # fmt: skip
    if folder is not None:
        write_summary(folder.path / "summary.csv", [radius_summary(result)])
    return result


def _with_thresholds(how: Options, threshold: float | None, model: Model) -> Options:
    """The options with one threshold for both sides, unless there are two; with none where P_safe is not asked for."""
    given = [value for value in (how.tau_safe, how.tau_unsafe) if value is not None]
    if threshold is not None and given:
        raise OptionError("--threshold sets both --tau-safe and --tau-unsafe: give either it or those two")
    if threshold is not None:
        OPTIONS["tau_safe"].check("threshold", threshold)
    query = setting_of(how, model).query  # refuses `given` where they do not apply
    if query is not Query.PROBABILISTIC:
        if how.guarantee == "statistical":
            raise OptionError("radii with guarantee statistical are those of P_safe: query probabilistic")
        if threshold is not None:
            raise OptionError(f"thresholds are on P_safe, which query {query} does not ask for: leave them out")
        return how
    both = threshold if threshold is not None else given[0] if given else _THRESHOLD
    return replace(how, tau_safe=both, tau_unsafe=both) if len(given) < 2 else how


def radius_summary(result: RadiusResult) -> RadiusSummary:
    """Means over the inputs that have the radius in question."""
    robust, unrobust = ~np.isnan(result.robust), np.isfinite(result.unrobust)
    both = robust & unrobust

    def mean(values: Floats) -> float:
        return float(values.mean()) if len(values) else float("nan")

    return RadiusSummary(
        len(robust), int(robust.sum()), mean(result.robust[robust]), int(unrobust.sum()),
        mean(result.unrobust[unrobust]), mean((result.unrobust - result.robust)[both]),
    )  # fmt: skip
