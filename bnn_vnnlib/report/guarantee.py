"""What a verdict guarantees and what it leaves open, in the words of docs/semantics.md. Nothing here computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bnn_vnnlib.report.row import ReportRow
from bnn_vnnlib.result import Query, Rule, Verdict

_CERTAIN = (
    "The bounds of bnn-vnnlib hold with certainty, except those with the guarantee statistical: nothing in them is "
    "estimated, and rounding errors are included. V is the set of violations that the property describes, T the set of "
    "its inputs. ",
    "The posterior is taken as the model file has it; nobody examines whether it fits any data. ",
    "A verdict is about exactly the files whose SHA-256 the record holds. This page repeats the records and proves "
    "nothing; bnn-vnnlib check-witness checks a sat again, and bnn-vnnlib verify decides any instance again.",
)


@dataclass(frozen=True)
class GuaranteeWords:
    """Words for one kind of certificate.

    Attributes
    ----------
    says : what holds
    open : what does not follow
    how : how the bounds were made
    """

    says: str
    open: str
    how: str


_EXPECTED = (
    "D(x) is the expected prediction over the posterior: the expected softmax or sigmoid of logits, else the expected "
    "output."
)
_DECISION = {
    Verdict.UNSAT: "Proved: no input x of T has (x, D(x)) in V; the decision of the BNN violates the property nowhere "
    "in T.",
    Verdict.SAT: "Proved: at the witness X, which lies in T, (X, D(X)) is in V; D(X) was bounded again before the "
    "verdict.",
}
_NOT_THE_BNN = (
    "nothing follows for the BNN, neither for P_safe nor for its decision: the mean network is not its prediction, and "
    "other networks of the posterior may do otherwise."
)
_ONE_NETWORK = (
    "the network examined",
    f"Where the model has a posterior, this is the mean network, and {_NOT_THE_BNN}",
)
_OF_VARIANT = {
    "mean": ("the network of the posterior's means", f"N{_NOT_THE_BNN[1:]}"),
    "draw": (
        "this one network drawn from the posterior",
        "Nothing follows for the BNN: the share of drawn networks with this verdict is an estimate of P_safe, not a "
        "bound.",
    ),
    "merged": (
        "the merged network, which averages networks of the posterior,",
        "Of weight samples the merged network computes the posterior predictive (up to float32 rounding), so that this "
        "is about the decision of the BNN. Of a Gaussian posterior it averages the drawn networks alone, and nothing "
        "follows for the BNN. Nothing follows for P_safe.",
    ),
}
_BOXES = (
    "all networks in a box are shown to be safe, or all to violate at one input, and the probability of what is "
    "covered is bounded; what no box covers counts against the bound."
)
_HOW = {
    Query.PROBABILISTIC: {
        "weight samples": "Each weight sample is bounded by itself; the probabilities of those shown to be safe are "
        "added.",
        "components of a mixture": "Each component is bounded by itself; the bounds are added with the components' "
        "probabilities.",
        "tails": "Tails: the probability that a row of the property fails is bounded through the network, without "
        "boxes of weights.",
        "drawn networks": "Networks are drawn and verified one by one; a martingale turns their number into bounds.",
        "large variance": "Large variances: the law of the rows' values is bounded through the network, neuron "
        "by neuron.",
        "cells of weights": "Cells of weights: the space of the few random numbers is split; cells have exact masses.",
        "last layer": "Last layer: it alone is random. What is in front of it is bounded as a fixed network, and the "
        "law of the noise behind it is known.",
        "boxes around samples": f"Boxes of weights around sampled weights: {_BOXES} Sampling chooses the boxes; no "
        "bound rests on it.",
        "centred boxes": f"Boxes of weights around the mean: {_BOXES}",
    },
    Query.DECISION: {
        "weight samples": "D averages the weight samples, whose bounds are added with their probabilities.",
        "components of a mixture": "D averages the components, whose bounds are added with their probabilities.",
        "drawn networks": "Networks are drawn and bounded one by one; a martingale bounds the mean or the median of "
        "what is proved of them.",
        "cells of weights": "Cells of weights: the space of few random numbers is split, and the cells' means add up.",
        "Gaussian logits": "Gaussian logits: the last layer alone is random, so that a probability is at most the "
        "expected sigmoid of one Gaussian number, which is known.",
        "closed forms": "Closed forms: the expectation over a layer's weights is known, and bounded over the inputs.",
        "moments": "Moments of the layers' values bound the expectation.",
        "tails": "Tails: the probability that an output leaves a range bounds its expectation.",
        "P_safe": "P_safe: one class leads by a margin in so many networks that its expected probability follows.",
        "ranges": "The last activations have ranges, in which expectations and medians lie.",
        "complement": "What the lower bounds of the other classes leave bounds a class from above.",
        "comparison of classes": "Classes are compared on the mean network, with what the random weights may change.",
        "boxes": "Boxes of weights: outputs are bounded over all networks of a box; what no box covers is bounded "
        "apart.",
    },
    Query.DETERMINISTIC: {
        "attack": "An attack found the violation, which was then replayed in onnxruntime.",
        "branch and bound": "Branch and bound: inputs and neurons are split until every part is proved or a violation "
        "is found, which is then replayed in onnxruntime.",
    },
}


def certain(rows: Iterable[ReportRow]) -> str:
    """What all bounds have in common; a sentence about posteriors where some network may have one."""
    start, of_posteriors, rest = _CERTAIN
    return start + (of_posteriors if any(not _plain(row) for row in rows) else "") + rest


def _plain(row: ReportRow) -> bool:
    """The network is known to have no posterior: of a run of ours, the question in words says so."""
    if row.variant is not None:
        return row.variant == "plain"
    return row.query is Query.DETERMINISTIC and row.unsat_means is not None and "posterior" not in row.unsat_means


def guarantee(row: ReportRow) -> GuaranteeWords:
    """The words for a row. Thresholds are among them, numbers that differ from row to row (the bounds) are not."""
    if row.tool is not None:
        return _of_tool(row)
    how = _how(row)
    if row.confidence is not None:
        return _statistical(row, how)
    if row.verdict is Verdict.ERROR:
        return GuaranteeWords(
            "Nothing: the input was refused, or the program failed.", "An error is no hint in either direction.", how
        )
    if not row.decided:
        return _undecided(row, how)
    if row.vacuous is not None:
        return GuaranteeWords(
            "Nothing about this model: nothing can violate the property, whatever the network. Usually the property is "
            "a mistake.",
            "Everything.",
            how,
        )
    how = f"{how} {_certificate(row)}".strip()
    match row.query:
        case Query.PROBABILISTIC:
            return _probabilistic(row, how)
        case Query.DECISION:
            return _decision(row, how)
        case Query.DETERMINISTIC:
            return _deterministic(row, how)
        case None:
            return GuaranteeWords(
                f"The record says {row.verdict.value}, but not of which query: nothing follows.", "", how
            )


def _certificate(row: ReportRow) -> str:
    """What the certificate beside the answer claims, if there is one."""
    found = row.details.get("certificate")
    claim = found.get("verdict") if isinstance(found, Mapping) else None
    if claim not in ("unsat", "sat", "bound"):
        return ""
    less = ", which is less than the answer" if claim == "bound" else ""
    said = {"accepted": "accepted it", "rejected": "rejected it", "error": "could not read it"}.get(
        row.certificate or ""
    )
    checked = f"bnn-vnnlib-check {said}" if said else "bnn-vnnlib-check accepts or rejects it"
    return f"A certificate claims {claim}{less}; {checked}, without this program."


def _statistical(row: ReportRow, how: str) -> GuaranteeWords:
    """The guarantee behind a statistical answer, none of whose words is among those of certain bounds."""
    over = f"With confidence {row.confidence!r} over the drawn networks, not with certainty: "
    left = (
        "The confidence is that of the procedure: of many such runs, at most so small a share is wrong, whatever the "
        "posterior. It says nothing of a run that was repeated until its answer was liked."
    )
    if not row.decided:
        return GuaranteeWords(f"{over}the bounds so far hold. They do not decide.", left, how)
    if row.query is Query.PROBABILISTIC:
        bound = f">= {_threshold(row.tau_safe)}" if row.verdict is Verdict.UNSAT else f"< {_threshold(row.tau_unsafe)}"
        said = "Every draw was verified on all of T; what was not proved of one counted against the bound."
        return GuaranteeWords(f"{over}P_safe {bound}. {said}", left, how)
    value = _value(row)
    where = "(x, D(x)) is in V for no x of T" if row.verdict is Verdict.UNSAT else "(X, D(X)) is in V at the witness X"
    return GuaranteeWords(f"{over}{where}. {value}", left, how)


def _value(row: ReportRow) -> str:
    """What D(x) is."""
    if row.rule in (None, Rule.MEAN):
        return _EXPECTED
    if (row.rule or "").startswith("probability-below"):
        return f"D(x) is the probability, over the posterior and the noise, of rule {row.rule}."
    return f"D(x) is a {(row.rule or '').replace(':', ' ')} of each output over the posterior."


def _how(row: ReportRow) -> str:
    """The method by its recorded name, and what of it this version can explain."""
    if row.method is None or row.query is None:
        return ""
    known = " ".join(text for word, text in _HOW[row.query].items() if word in row.method)
    return f"Method: {row.method}. {known}".rstrip()


def _undecided(row: ReportRow, how: str) -> GuaranteeWords:
    if row.between:
        return GuaranteeWords(
            f"Proved: {_threshold(row.tau_unsafe)} <= P_safe < {_threshold(row.tau_safe)}. That lies between the "
            "thresholds, where neither verdict applies.",
            "No method and no time would change this; other thresholds would.",
            how,
        )
    why = "the time limit came first" if row.verdict is Verdict.TIMEOUT else "the bounds do not decide"
    bounded = row.p_safe is not None or row.decision is not None
    held = "The bounds so far hold with certainty all the same." if bounded else "There are no bounds."
    return GuaranteeWords(f"No verdict: {why}. {held}", f"{row.verdict.value} is no hint in either direction.", how)


def _probabilistic(row: ReportRow, how: str) -> GuaranteeWords:
    """The guarantee behind a verdict on P_safe."""
    if row.verdict is Verdict.UNSAT:
        return GuaranteeWords(
            f"Proved: P_safe >= {_threshold(row.tau_safe)}. A network drawn from the posterior violates the property "
            "at no input of T with at least this probability, and with at least the lower bound of P_safe, which is no "
            "smaller.",
            "The other networks of the posterior may violate. Nothing follows for the expected prediction (query "
            "decision), for the mean network, or for inputs outside of T.",
            how,
        )
    if "weight samples" in (row.method or ""):
        witness = "Each violating sample may violate at an input of its own; X is one at which most of them do."
    elif "components of a mixture" in (row.method or ""):
        witness = "The components may violate at inputs of their own; X is one at which most of the probability does."
    else:
        witness = "X is an input at which that many violate; the bound there was made again before the verdict."
    return GuaranteeWords(
        f"Proved: P_safe < {_threshold(row.tau_unsafe)}. A network drawn from the posterior violates the property "
        f"somewhere in T with a probability of at least 1 minus the upper bound of P_safe. {witness}",
        "Y beside X is the output of the mean network and need not violate: this is no counterexample in the "
        "competition's sense. Neither the expected prediction nor the mean network need violate.",
        how,
    )


def _decision(row: ReportRow, how: str) -> GuaranteeWords:
    value = _value(row)
    left = (
        "inputs outside of T were not examined."
        if row.verdict is Verdict.UNSAT
        else "Y beside X is the output of the mean network, which need not violate."
    )
    single = "Single networks of the posterior may do otherwise (that is the query probabilistic); "
    return GuaranteeWords(f"{_DECISION[row.verdict]} {value}", f"{single}{left}", how)


def _deterministic(row: ReportRow, how: str) -> GuaranteeWords:
    """The guarantee behind a verdict on one network."""
    if _plain(row):
        subject, left = "the network", "Inputs outside of T were not examined." if row.verdict is Verdict.UNSAT else ""
    else:
        subject, left = _ONE_NETWORK if row.variant is None else _OF_VARIANT[row.variant.partition("_")[0]]
    if row.verdict is Verdict.UNSAT:
        return GuaranteeWords(f"Proved: {subject} violates the property at no input of T.", left, how)
    return GuaranteeWords(
        f"Shown: {subject} violates the property at the witness X: (X, Y) was replayed in onnxruntime and lies in V by "
        "exact comparison.",
        left,
        how,
    )


def _of_tool(row: ReportRow) -> GuaranteeWords:
    """Another verifier's word is repeated, not vouched for."""
    says = f"{row.tool} says {row.verdict.value}. This is its word; bnn-vnnlib proved nothing here."
    if row.verdict is Verdict.SAT:
        says += f" Its witness, replayed in onnxruntime: {row.checked or 'not checked'}."
    left = _deterministic(row, "").open if row.decided else "No verdict is no hint in either direction."
    return GuaranteeWords(says, left, "")


def _threshold(value: float | None) -> str:
    """A threshold in all its digits: it is quoted, never rounded."""
    return "its threshold, which is not recorded" if value is None else repr(value)
