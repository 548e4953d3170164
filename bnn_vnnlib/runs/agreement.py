"""What several verifiers said of the same questions: who agrees, who contradicts whom, who is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bnn_vnnlib.result import Verdict

_DECIDED = (Verdict.SAT, Verdict.UNSAT)


@dataclass(frozen=True)
class Answer:
    """What one tool said.

    Attributes
    ----------
    verdict : its word
    seconds : as measured from outside
    checked : of a sat: the judgement of its witness, replayed in onnxruntime; else None
    reason : why there is no verdict
    """

    verdict: Verdict
    seconds: float
    checked: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Line:
    """One question: a property of one network.

    Attributes
    ----------
    category, onnx, vnnlib : of the instance
    kind, label : of the network, see `Variant`
    answers : by tool
    """

    category: str
    onnx: str
    vnnlib: str
    kind: str
    label: str
    answers: Mapping[str, Answer] = field(default_factory=dict)


@dataclass(frozen=True)
class Contradiction:
    """A sat beside an unsat, and what the replay of the witness says about it."""

    line: Line
    sat: str
    unsat: str

    @property
    def finding(self) -> str:
        """Who is right, as far as the witness shows it."""
        checked = self.line.answers[self.sat].checked
        if checked == "valid":
            return f"{self.unsat} is wrong: the witness of {self.sat} holds"
        if checked == "valid within tolerance":
            return f"open: the witness of {self.sat} misses its bounds by up to 1e-4, which {self.unsat} need not allow"
        return f"the sat of {self.sat} is not shown (its witness: {checked})"


def contradictions(lines: Sequence[Line]) -> Iterator[Contradiction]:
    """Every pair of tools that contradict each other, line by line."""
    for line in lines:
        saying = {word: [tool for tool, one in line.answers.items() if one.verdict is word] for word in _DECIDED}
        for sat in saying[Verdict.SAT]:
            for unsat in saying[Verdict.UNSAT]:
                yield Contradiction(line, sat, unsat)


AGREEMENT = ("same", "contradict", "only the first", "only the second", "neither")


def agreement(lines: Sequence[Line], tools: Sequence[str]) -> dict[tuple[str, str], Counter[str]]:
    """For every two tools how often, among the lines that both were asked, each of AGREEMENT."""
    return {pair: Counter(_compare(line, *pair) for line in lines if set(pair) <= set(line.answers))
            for pair in combinations(tools, 2)}  # fmt: skip


def _compare(line: Line, first: str, second: str) -> str:
    one, other = line.answers[first].verdict, line.answers[second].verdict
    match one in _DECIDED, other in _DECIDED:
        case True, True:
            return "same" if one is other else "contradict"
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
