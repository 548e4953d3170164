"""What gave the bounds of a run, for people and for the record: what was used, not what the options allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bnn_vnnlib.methods.method import NONE
from bnn_vnnlib.question.served import is_correlated

if TYPE_CHECKING:
    from bnn_vnnlib.methods.decision import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import SafetyBounds
    from bnn_vnnlib.setting import Setting


BRANCHING = "branch and bound"
"""What decides about fixed weights."""


def of_safety(setting: Setting, found: SafetyBounds) -> str:
    """The methods behind bounds on P_safe; of several instances, the most frequent first."""
    counts = (Counter(sorted(side, key=NONE.__eq__)) for side in found.methods)  # of equally many, none last
    lower, upper = ([name for name, _ in count.most_common()] for count in counts)
    return _sides(*([_label(setting, name) for name in side] for side in (lower, upper)))


def of_decision(setting: Setting, outcome: DecisionOutcome) -> str:
    """The methods behind bounds on the decision, in order of their cost."""
    engine = setting.bounds.engine.method
    sides = ([_of_weights(name, engine) for name in names] or [NONE] for names in outcome.together)
    return _sides(*sides)


def of_network(setting: Setting, attacked: bool) -> str:
    """The method behind a deterministic verdict: an attack alone, or branch and bound."""
    return "attack" if attacked else f"{setting.bounds.engine.method}, {BRANCHING}"


def _label(setting: Setting, name: str) -> str:
    """The name of a method of P_safe, with the family of a posterior whose weights depend on each other."""
    from bnn_vnnlib.network.families import family_of
    from bnn_vnnlib.network.network import Mixture

    posterior = setting.posterior
    if isinstance(posterior, Mixture):
        kinds = dict.fromkeys(family_of(part.posterior) for part in posterior.components)
        return f"{name} ({', '.join(kinds)})" if name != NONE else NONE
    if is_correlated(posterior) and name != NONE:
        return f"{name} ({family_of(posterior)})"
    return _of_weights(name, setting.bounds.engine.method)


def _of_weights(name: str, engine: str) -> str:
    """Boxes of weights and weight samples go through the network by interval or linear bounds."""
    return f"{name} ({engine})" if name in ("weight samples", "centred boxes", "boxes around samples") else name


def _sides(lower: Iterable[str], upper: Iterable[str]) -> str:
    """Both sides, once where they agree."""
    below, above = ", ".join(dict.fromkeys(lower)), ", ".join(dict.fromkeys(upper))
    return below if below == above else f"lower bound: {below}; upper bound: {above}"
