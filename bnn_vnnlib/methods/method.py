"""What a method is, and what is said of methods.

1. `Method`: one entry of the registry of its query.
2. What gave the bounds of a run, for people and for the record: what was used, not what the options allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from bnn_vnnlib.question.options import is_correlated

if TYPE_CHECKING:
    from bnn_vnnlib.methods.outcome import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import SafetyBounds
    from bnn_vnnlib.setting import Setting


# 1. Methods

NONE = "none"
"""Name in the place of a method's: for a side without a bound that says anything."""

_Task = TypeVar("_Task")
_Bounds = TypeVar("_Bounds")


@dataclass(frozen=True)
class Method(Generic[_Task, _Bounds]):
    """One way to bound P_safe (`safety.portfolio.METHODS`) or the decision (`decision.portfolio.METHODS`).

    Whatever a method says is sound, rounding included, and an item's bound does not depend on its neighbours, up to
    rounding. `tests/contract` holds every registered method to that.

    Attributes
    ----------
    name : for people and for the record
    serves : None, or why the method does not serve the task, in words that go behind "NAME does not serve: "
    bounds : bounds a task that it serves, see the registry
    """

    name: str
    serves: Callable[[_Task], str | None]
    bounds: _Bounds


def reasons(methods: tuple[Method[_Task, _Bounds], ...], task: _Task) -> dict[str, str]:
    """By name, why methods do not serve the task; those that serve are not listed."""
    found = {method.name: method.serves(task) for method in methods}
    return {name: reason for name, reason in found.items() if reason is not None}


# 2. Names

BRANCHING = "branch and bound"
"""Name of the method that decides about fixed weights."""


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
    """The methods behind both sides, in words; named once where they agree."""
    below, above = ", ".join(dict.fromkeys(lower)), ", ".join(dict.fromkeys(upper))
    return below if below == above else f"lower bound: {below}; upper bound: {above}"
