"""What is asked of which family of posteriors: combinations that nothing serves are refused by name, before work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnn_vnnlib.errors import UnsupportedError
from bnn_vnnlib.result import Query, Rule

if TYPE_CHECKING:
    from bnn_vnnlib.model.network import Model, Posterior
    from bnn_vnnlib.robustness.outputs import Transform
    from bnn_vnnlib.setting import Choices


def refuse_unserved(model: Model, query: Query, rule: Rule, choices: Choices, transform: Transform) -> None:
    """Raise unless the query has a method for the posterior, with the options given.

    Raises
    ------
    UnsupportedError : names the family, and says what serves it
    """
    from bnn_vnnlib.model.families import family_of
    from bnn_vnnlib.model.network import Mixture, WeightSamples

    posterior = model.posterior
    if posterior is None or query is Query.DETERMINISTIC:
        return
    samples = isinstance(posterior, WeightSamples)
    if choices.boxes == "sampled" and samples:
        raise UnsupportedError("boxes serve Gaussian posteriors; weight samples are verified one by one (no --boxes)")
    if choices.method == "tails" and (query is not Query.PROBABILISTIC or samples):
        raise UnsupportedError("method tails bounds the probabilistic query of a Gaussian posterior, nothing else yet")
    if not is_correlated(posterior):
        return
    family = family_of(posterior)
    shared = (
        any(is_correlated(part.posterior) for part in posterior.components) if isinstance(posterior, Mixture) else True
    )
    if shared and (
        choices.boxes == "sampled" or choices.margin is not None or choices.method in ("interval", "linear")
    ):
        raise UnsupportedError(
            f"boxes of weights need independent weights, and the posterior is of family {family}: leave out --boxes "
            "and --margin, and use method auto or tails",
            path=model.path,
        )
    if query is not Query.DECISION:
        return
    if rule is Rule.MEDIAN:
        raise UnsupportedError(
            f"rule median does not serve posteriors of family {family}; weight samples do", path=model.path
        )
    if shared and transform != "softmax":
        raise UnsupportedError(
            f"query decision serves posteriors of family {family} under a categorical likelihood only; "
            "draw weight samples (bnn-vnnlib sample) for an estimate of another one",
            path=model.path,
        )


def is_correlated(posterior: Posterior) -> bool:
    """Its weights depend on each other: a correlated Gaussian, or a mixture."""
    from bnn_vnnlib.model.network import Correlated, Mixture

    return isinstance(posterior, Correlated | Mixture)


def is_sampled(posterior: Posterior) -> bool:
    """Made of weight samples."""
    return type(posterior).__name__ == "WeightSamples"
