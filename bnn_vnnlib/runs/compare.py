"""Several verifiers over the same instances, ours and others', each in a run of its own that resumes.

1. Agreement: what they said of the same questions, who agrees, who contradicts whom, and who is right.
2. Variants: plain networks of a BNN for tools that know no posterior (the mean, draws, the merged network).
3. Comparison: the runs, and the tables that come of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from bnn_vnnlib import __version__
from bnn_vnnlib.certificates.checked import outcome
from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.files.benchmarks import Instance, existing
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.question.options import Guarantee, Options
from bnn_vnnlib.readers import table_text
from bnn_vnnlib.result import Query, Verdict
from bnn_vnnlib.runs.records import Again, AnyTask, Entry, Records
from bnn_vnnlib.runs.run import How, Run
from bnn_vnnlib.runs.task import InstanceTask, run_task
from bnn_vnnlib.runs.tools import Tool, ToolTask, checked_sat, run_tool
from bnn_vnnlib.system.durable import locked

# 1. Agreement

_DECIDED = (Verdict.SAT, Verdict.UNSAT)


@dataclass(frozen=True)
class ToolAnswer:
    """What one tool said.

    Attributes
    ----------
    verdict : its word
    seconds : as measured from outside
    checked : of a sat: the judgement of its witness, replayed in onnxruntime; else None
    reason : why there is no verdict
    certificate : what `bnn-vnnlib-check` said of its certificate, see `certificates.checked`; None: it has none
    confidence : with which the verdict holds; None: with certainty
    """

    verdict: Verdict
    seconds: float
    checked: str | None = None
    reason: str | None = None
    certificate: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Line:
    """One question: a property of one network.

    Attributes
    ----------
    category, onnx, vnnlib : of the instance
    kind, label : of the network, see `_Variant`
    answers : by tool
    """

    category: str
    onnx: str
    vnnlib: str
    kind: str
    label: str
    answers: Mapping[str, ToolAnswer] = field(default_factory=dict)


@dataclass(frozen=True)
class Contradiction:
    """A sat beside an unsat, and what the replay of the witness says about it."""

    line: Line
    sat: str
    unsat: str

    @property
    def statistical(self) -> bool:
        """Whether one of the two holds with a confidence only, so that both may be the answers of sound tools."""
        return any(self.line.answers[tool].confidence is not None for tool in (self.sat, self.unsat))

    @property
    def finding(self) -> str:
        """Who is right, as far as the witness shows it."""
        if self.statistical:
            each = {tool: self.line.answers[tool].confidence for tool in (self.sat, self.unsat)}
            held = (f"{tool} holds with confidence {value:g}" for tool, value in each.items() if value is not None)
            return f"statistical disagreement: {', '.join(held)}"
        checked = self.line.answers[self.sat].checked
        if checked == "valid":
            return f"{self.unsat} is wrong: the witness of {self.sat} holds"
        if checked == "valid within tolerance":
            return f"open: the witness of {self.sat} misses its bounds by up to 1e-4, which {self.unsat} need not allow"
        if self.line.answers[self.unsat].certificate == "accepted":
            return f"{self.sat} is wrong in real arithmetic: the certificate of {self.unsat} was accepted"
        return f"the sat of {self.sat} is not shown (its witness: {checked})"


def contradictions(lines: Sequence[Line]) -> Iterator[Contradiction]:
    """Every pair of tools of which one says sat and the other unsat, line by line."""
    for line in lines:
        saying = {word: [tool for tool, one in line.answers.items() if one.verdict is word] for word in _DECIDED}
        for sat in saying[Verdict.SAT]:
            for unsat in saying[Verdict.UNSAT]:
                yield Contradiction(line, sat, unsat)


AGREEMENT = ("same", "contradict", "statistical disagreement", "only the first", "only the second", "neither")


def agreement(lines: Sequence[Line], tools: Sequence[str]) -> dict[tuple[str, str], Counter[str]]:
    """For every two tools, how often each of AGREEMENT occurs among the lines that both were asked."""
    return {pair: Counter(_compare(line, *pair) for line in lines if set(pair) <= set(line.answers))
            for pair in combinations(tools, 2)}  # fmt: skip


def _compare(line: Line, first: str, second: str) -> str:
    """The word of AGREEMENT for the answers of two tools to one line."""
    one, other = line.answers[first].verdict, line.answers[second].verdict
    match one in _DECIDED, other in _DECIDED:
        case True, True if one is other:
            return "same"
        case True, True:
            return "statistical disagreement" if Contradiction(line, first, second).statistical else "contradict"
        case True, False:
            return "only the first"
        case False, True:
            return "only the second"
        case _:
            return "neither"


def solved(lines: Sequence[Line], tool: str) -> tuple[Counter[Verdict], float]:
    """How often each verdict, and the seconds over all lines that the tool was asked."""
    answers = [line.answers[tool] for line in lines if tool in line.answers]
    return Counter(answer.verdict for answer in answers), sum(answer.seconds for answer in answers)


# 2. Variants

VariantKind = Literal["mean", "sampled", "merged"]


@dataclass(frozen=True)
class _Variant:
    """A plain network.

    Attributes
    ----------
    kind : where it comes from; "plain" for a model without a posterior, which is taken as it is
    label : "mean", "draw_0003", ...
    path : its file
    exact : for "merged": its output is the posterior predictive itself (weight samples), not that of some draws
    """

    kind: Literal["plain", "mean", "sampled", "merged"]
    label: str
    path: Path
    exact: bool = True


def _write_variants(model: Path, folder: Path, kinds: Sequence[VariantKind], draws: int, seed: int) -> list[_Variant]:
    """Write plain networks of a model into a folder.

    Parameters
    ----------
    model : with or without a posterior
    kinds : which are wanted
    draws : how many networks to draw, and to merge where the posterior is Gaussian

    Raises
    ------
    InputError : whatever reading or merging refuses
    """
    from bnn_vnnlib.model import WeightSamples
    from bnn_vnnlib.model.reading import write_readable
    from bnn_vnnlib.posteriors.merge import merge
    from bnn_vnnlib.posteriors.parts import read_parts, write_drawn, write_mean

    if draws < 1:
        raise OptionError(f"at least one network must be drawn, found {draws}")
    parts = read_parts(model)
    if parts.posterior is None:
        return [_Variant("plain", "plain", model)]
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    if "mean" in kinds:
        found.append(_Variant("mean", "mean", write_mean(parts, folder / "mean.onnx")))
    if "sampled" in kinds:
        files = write_drawn(parts, folder, draws, seed)
        found += [_Variant("sampled", file.stem, file) for file in files]
    if "merged" in kinds:
        exact = isinstance(parts.posterior, WeightSamples)
        proto, _ = merge(parts, draws=None if exact else draws, seed=seed)
        found.append(_Variant("merged", "merged", write_readable(proto, folder / "merged.onnx"), exact))
    return found


# 3. Comparison

OURS = "bnn-vnnlib"

SAYS = """\
What these verdicts say: "unsat" on the mean network means that this ONE network never violates the property, "sat" that
it does at a witness. Neither says anything about the BNN: the mean network is not its prediction, and other networks of
the posterior may do otherwise. Verdicts on sampled networks are true of these networks; their share is an estimate of
P_safe, not a bound. A merged network computes the posterior predictive: of weight samples exactly (up to float32
rounding), so that its verdict is about the decision of the BNN; of a Gaussian posterior only that of the networks that
were drawn. Only the queries `probabilistic` and `decision` bound the BNN itself."""


_QUESTION = {
    "category": "the benchmark",
    "network": "the network's cell in instances.csv",
    "property": "the property's cell in instances.csv",
    "kind": "plain (the file's own network), mean, sampled or merged",
    "variant": "which of them: for sampled networks the draw",
}
_SIDES = {"sat": "the tool that says sat", "unsat": "the tool that says unsat"}
TABLES = {
    "comparison.csv": {
        **_QUESTION,
        "TOOL: result": "sat, unsat, unknown, timeout or error; empty where the tool was not asked",
        "TOOL: time": "seconds as seen from outside",
        "TOOL: checked": "of a sat: what the replay of its witness in onnxruntime gave",
        "TOOL: certificate": "accepted, rejected or error: what bnn-vnnlib-check said of it; not checked; empty: none",
    },
    "agreement.csv": {
        "first, second": "two tools",
        "same": "questions that both decided alike",
        "contradict": "questions that one calls sat and the other unsat, both with certainty",
        "statistical disagreement": "questions that one calls sat and the other unsat, one of them with a confidence",
        "only the first": "questions that only the first decided",
        "only the second": "questions that only the second decided",
        "neither": "questions that neither decided",
    },
    "contradictions.csv": {**_QUESTION, **_SIDES, "finding": "who is right, as far as the replayed witness shows it"},
    "disagreements.csv": {**_QUESTION, **_SIDES, "finding": "which of them holds with a confidence"},
    "solved.csv": {
        "tool": "its name",
        **{word.value: "number of questions with this answer" for word in Verdict},
        "seconds": "over all questions that the tool was asked",
    },
}
"""The columns of the tables that `write_comparison` writes; four "TOOL: ..." for each tool."""


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared.

    Attributes
    ----------
    tools : beside ours
    kinds, draws, seed : of the plain networks, see `_write_variants`
    queries : ours on the BNN itself, where there is one
    timeout : replaces every instance's own
    certificates : have ours written
    guarantee, confidence : of ours on the BNN itself
    """

    tools: tuple[Tool, ...]
    kinds: tuple[VariantKind, ...] = ("mean",)
    draws: int = 10
    seed: int = 0
    queries: tuple[str, ...] = ()
    timeout: float | None = None
    certificates: bool = False
    guarantee: Guarantee = "certain"
    confidence: float | None = None

    def __post_init__(self) -> None:
        for query in self.queries or (None,):
            Options(query, **self.given)  # refuses what does not fit
        if self.guarantee == "statistical" and not self.queries:
            raise OptionError("guarantee statistical is about our bounds on the BNN itself: add query, or leave it out")
        names = [tool.name for tool in self.tools]
        if len({*names, OURS}) != len(names) + 1:
            raise OptionError(f"every tool needs a name of its own, other than {OURS}; found {', '.join(names)}")

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from those of a certain answer."""
        every = {"guarantee": self.guarantee, "confidence": self.confidence}
        return {} if self.guarantee == "certain" and self.confidence is None else every


Follow = Callable[[Run, Iterator[Entry], str], None]
"""Takes the entries of the tool's run from the iterator, which does the work, until it ends."""


def compare(
    instances: Sequence[Instance],
    plan: ComparisonPlan,
    folder: Path,
    where: Slots,
    again: Again,
    follow: Follow,
) -> list[Line]:
    """Run everything and write the tables; a comparison that was ended goes on.

    The folder gets a run for each tool (runs/TOOL), the plain networks (networks/) and comparison.csv, agreement.csv,
    contradictions.csv, disagreements.csv, solved.csv.

    Raises
    ------
    InputError : an instance cannot be compared, a tool is not there, another process is at work in the folder
    """
    for tool in plan.tools:
        tool.check()
    with locked(folder):
        variants = _variants(instances, plan, folder)
        asked = [(one, variant) for one in instances for variant in variants[_model(one)]]
        files = [(variant.path, existing(one.prop) or one.prop) for one, variant in asked]
        answers: list[dict[str, ToolAnswer]] = [{} for _ in asked]
        for name, entries in _runs(asked, plan, folder, where, again, follow):
            for answer, entry, (model, prop) in zip(answers, entries, files, strict=True):
                if entry is not None:
                    answer[name] = _answer(entry, model, prop)
        lines = [
            Line(one.category, one.onnx, one.vnnlib, variant.kind, variant.label, answer)
            for (one, variant), answer in zip(asked, answers, strict=True)
        ]
        write_comparison(folder, lines)
        return lines


def _model(instance: Instance) -> Path:
    if len(instance.models) != 1:
        raise UnsupportedError(f"{instance.onnx}: instances with several networks cannot be compared")
    path = instance.models[0][1]
    return existing(path) or path


def _variants(instances: Sequence[Instance], plan: ComparisonPlan, folder: Path) -> dict[Path, list[_Variant]]:
    found: dict[Path, list[_Variant]] = {}
    for instance in instances:
        model = _model(instance)
        if model not in found:
            place = folder / "networks" / f"{len(found)}_{model.name.split('.')[0]}"
            found[model] = _write_variants(model, place, plan.kinds, plan.draws, plan.seed)
    return found


_Asked = Sequence[tuple[Instance, _Variant]]


def _runs(
    asked: _Asked,
    plan: ComparisonPlan,
    folder: Path,
    where: Slots,
    again: Again,
    follow: Follow,
) -> Iterator[tuple[str, list[Entry | None]]]:
    """Every tool with its entries, one for each question (None: not asked)."""
    how = How(queries=("deterministic",), timeout=plan.timeout, seed=plan.seed)

    def ours(instance: Instance, variant: _Variant, query: str) -> InstanceTask:
        """Our own answer: on the plain network, or a query on the BNN itself."""
        model = variant.path if query == "deterministic" else _model(instance)
        prop = existing(instance.prop) or instance.prop
        limit = plan.timeout or instance.timeout
        # Whatever the property's comment says: the merged network computes the mean.
        rule = ("--rule=mean",) if query == Query.DECISION else ()
        mixed = ("--mixed",) if plan.certificates else ()  # some have no rule for certificates
        given = () if query == "deterministic" else (f"--{k}={v}" for k, v in plan.given.items() if v is not None)
        arguments = (f"--query={query}", f"--seed={plan.seed}", *rule, *mixed, *given)
        name = f"{instance.onnx}@{variant.label}" if query == "deterministic" else instance.onnx
        return InstanceTask(instance.category, name, instance.vnnlib, ((None, str(model)),), str(prop), limit,
                            arguments, query, plan.seed, where.threads, certificates=plan.certificates,
                    own_timeout=instance.timeout)  # fmt: skip

    def through(
        name: str, tasks: Sequence[AnyTask], settings: Mapping[str, object], call: Callable
    ) -> list[Entry | None]:
        """The entries of one tool's own run, in the order of its tasks."""
        with Run.opened(tasks, Records(folder / "runs" / name, again), settings) as run:
            follow(run, run.go(where, call), name)
            return [run.records.entry(task) for task in run.tasks]

    yield OURS, through(OURS, [ours(*pair, "deterministic") for pair in asked], how.settings, run_task)
    for tool in plan.tools:
        theirs = [_tool_task(instance, variant, tool, plan, where.threads) for instance, variant in asked]
        settings = {"version": __version__, "command": tool.command, "timeout": plan.timeout}
        yield tool.name, through(tool.name, theirs, settings, run_tool)
    for query in plan.queries:
        firsts = {_line(one): (one, variant) for one, variant in asked if variant.kind != "plain"}
        found = through(f"{OURS} {query}", [ours(*pair, query) for pair in firsts.values()],
                        {**how.settings, "queries": [query], **plan.given}, run_task)  # fmt: skip
        of_line = dict(zip(firsts, found, strict=True))
        yield f"{OURS} {query}", [
            of_line[_line(one)] if _same_question(variant, query) else None for one, variant in asked
        ]  # fmt: skip


def _line(instance: Instance) -> tuple[str, str, str, float]:
    return instance.category, instance.onnx, instance.vnnlib, instance.timeout


def _tool_task(
    instance: Instance, variant: _Variant, tool: Tool, plan: ComparisonPlan, threads: int | None
) -> ToolTask:
    prop = existing(instance.prop) or instance.prop
    return ToolTask(instance.category, f"{instance.onnx}@{variant.label}", instance.vnnlib, tool, str(variant.path),
                    str(prop), plan.timeout or instance.timeout, threads, plan.seed, instance.timeout)  # fmt: skip


def _same_question(variant: _Variant, query: str) -> bool:
    """The decision of weight samples is what their merged network computes; nothing else has the same answer."""
    return query == Query.DECISION and variant.kind == "merged" and variant.exact


def _answer(entry: Entry, model: Path, prop: Path) -> ToolAnswer:
    confidence = entry.record.get("confidence")
    shown = entry.verdict is Verdict.SAT and confidence is None  # with a confidence there is no witness to replay
    checked = checked_sat(entry.results, model, prop) if shown else None
    certificate = outcome(entry.record, entry.results)
    return ToolAnswer(
        entry.verdict, float(entry.record["run"]["run_time"]), checked, entry.reason, certificate, confidence
    )


def write_comparison(folder: Path, lines: Sequence[Line]) -> None:
    """Write the files of TABLES into the folder."""
    tools = list(dict.fromkeys(tool for line in lines for tool in line.answers))
    names = ("category", "network", "property", "kind", "variant")
    parts = ("result", "time", "checked", "certificate")
    head = [*names, *(f"{tool}: {part}" for tool in tools for part in parts)]
    rows = [[line.category, line.onnx, line.vnnlib, line.kind, line.label,
             *(cell for tool in tools for cell in _cells(line.answers.get(tool)))] for line in lines]  # fmt: skip
    _write(folder / "comparison.csv", [head, *rows])
    counts = agreement(lines, tools)
    _write(folder / "agreement.csv", [["first", "second", *AGREEMENT],
           *([*pair, *(count[word] for word in AGREEMENT)] for pair, count in counts.items())])  # fmt: skip
    for name, statistical in (("contradictions.csv", False), ("disagreements.csv", True)):
        _write(folder / name, [[*names, "sat", "unsat", "finding"], *(
            [one.line.category, one.line.onnx, one.line.vnnlib, one.line.kind, one.line.label, one.sat, one.unsat,
             one.finding] for one in contradictions(lines) if one.statistical is statistical)])  # fmt: skip
    totals = [(tool, *solved(lines, tool)) for tool in tools]
    _write(folder / "solved.csv", [["tool", *(word.value for word in Verdict), "seconds"],
           *([tool, *(count[word] for word in Verdict), f"{taken:.2f}"] for tool, count, taken in totals)])  # fmt: skip


def _cells(answer: ToolAnswer | None) -> list[str]:
    if answer is None:
        return [""] * 4
    return [answer.verdict.value, f"{answer.seconds:.6f}", answer.checked or "", answer.certificate or ""]


def _write(path: Path, rows: Sequence[Sequence[object]]) -> None:
    write_text(path, table_text(rows))
