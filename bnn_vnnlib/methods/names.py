"""What gave the bounds of a run, for people and for the record: what was used, not what the options allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bnn_vnnlib.question.served import is_correlated, is_sampled

if TYPE_CHECKING:
    from torch import Tensor

    from bnn_vnnlib.methods.decision import DecisionOutcome
    from bnn_vnnlib.methods.safety.safety import SafetyBounds
    from bnn_vnnlib.setting import Setting

NONE = "none"
"""Of a side without a bound that says anything."""


def of_safety(setting: Setting, found: SafetyBounds) -> str:
    """The methods behind bounds on P_safe; of several instances, the most frequent first."""
    return _sides(*(_names(setting, found, side) for side in (0, 1)))


def of_decision(setting: Setting, outcome: DecisionOutcome) -> str:
    """The methods behind bounds on the decision, in order of their cost."""
    engine = setting.bounds.engine.method
    sides = ([_of_weights(name, engine) for name in names] or [NONE] for names in (outcome.lower_by, outcome.upper_by))
    return _sides(*sides)


def of_network(setting: Setting, attacked: bool) -> str:
    """The method behind a deterministic verdict: an attack alone, or branch and bound."""
    return "attack" if attacked else f"{setting.bounds.engine.method}, branch and bound"


def _names(setting: Setting, found: SafetyBounds, side: int) -> list[str]:
    """By how many instances they serve; a bound of 0 or 1 that is no news has none."""
    told: Tensor = found.upper < 1 if side else found.lower > 0
    served = Counter({
        "wide": int((told & found.by_wide[side]).sum()),
        "tails": int((told & found.by_tails[side] & ~found.by_wide[side]).sum()),
        "boxes": int((told & ~found.by_tails[side] & ~found.by_wide[side]).sum()),
        NONE: int((~told).sum()),
    })  # fmt: skip
    name = {"wide": "wide", "tails": "tails", "boxes": _boxes(setting), NONE: NONE}
    if is_sampled(setting.posterior) or is_correlated(setting.posterior):
        name |= dict.fromkeys(("wide", "tails", "boxes"), _boxes(setting))
    return list(dict.fromkeys(name[what] for what, count in served.most_common() if count))


def _boxes(setting: Setting) -> str:
    """What bounds P_safe where neither tails nor `wide` do, by the family of the posterior."""
    from bnn_vnnlib.network.families import family_of
    from bnn_vnnlib.network.network import Mixture

    posterior, engine = setting.posterior, setting.bounds.engine.method
    if isinstance(posterior, Mixture):
        kinds = dict.fromkeys(family_of(part.posterior) for part in posterior.components)
        return f"components of a mixture ({', '.join(kinds)})"
    if is_correlated(posterior):
        return f"tails ({family_of(posterior)})"
    if is_sampled(posterior):
        return _of_weights("weight samples", engine)
    return _of_weights("boxes around samples" if setting.options.boxes == "sampled" else "centred boxes", engine)


def _of_weights(name: str, engine: str) -> str:
    """Boxes of weights and weight samples go through the network by interval or linear bounds."""
    return f"{name} ({engine})" if name in ("weight samples", "centred boxes", "boxes around samples") else name


def _sides(lower: Iterable[str], upper: Iterable[str]) -> str:
    """Both sides, once where they agree."""
    below, above = ", ".join(dict.fromkeys(lower)), ", ".join(dict.fromkeys(upper))
    return below if below == above else f"lower bound: {below}; upper bound: {above}"
