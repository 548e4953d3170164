"""What is asked of which family of posteriors: combinations that nothing serves are refused by name, before work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bnn_vnnlib.errors import OptionError, UnsupportedError
from bnn_vnnlib.question.options import OPTIONS, Options
from bnn_vnnlib.result import Query, Rule

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model, Posterior
    from bnn_vnnlib.problem.outputs import Transform


def idle_options(
    query: Query, given: Mapping[str, Any], model: Model | None = None, *, probabilities: bool = True
) -> dict[str, str]:
    """Options that would change nothing, each with the reason: whoever gives one expects something else.

    Parameters
    ----------
    query : what is asked
    given : values by name, without those that say nothing (`Options.given`)
    model : None: only what holds for every model
    probabilities : its decision is made of probabilities
    """
    found = {}
    for name in sorted(given):
        option = OPTIONS[name]
        if query not in option.queries:
            found[name] = f"{option.about}, for query {' or '.join(option.queries)}, and the query is {query}"
        elif name == "method" and given[name] == "tails" and query is Query.DETERMINISTIC:
            found[name] = "tails are for random weights, and the query is deterministic"
        elif name == "margin" and model is not None and _is_sampled(model.posterior):
            found[name] = "weight samples are verified one by one, without boxes"
        elif name == "outputs" and not probabilities:
            found[name] = "the decision of this model is an expected output, no probability"
    return found


def refuse_idle(
    query: Query, given: Mapping[str, Any], model: Model | None = None, *, probabilities: bool = True
) -> None:
    """Raise OptionError for the first of `idle_options`; a posterior that was forgotten shows here."""
    for name, reason in idle_options(query, given, model, probabilities=probabilities).items():
        hint = "leave it out"
        if model is not None and model.posterior is None:
            hint = "the model carries no posterior: attach one (bnn-vnnlib attach), or leave the option out"
        path = None if model is None else model.path
        raise OptionError(f"{name} does not apply: {reason}; {hint}", path=path)


def refuse_unserved(model: Model, query: Query, rule: Rule, options: Options, transform: Transform) -> None:
    """Raise unless the query has a method for the posterior, with the options given.

    Raises
    ------
    UnsupportedError : names the family, and says what serves it
    """
    from bnn_vnnlib.network.families import family_of
    from bnn_vnnlib.network.network import Mixture, WeightSamples

    posterior = model.posterior
    if posterior is None or query is Query.DETERMINISTIC:
        return
    samples = isinstance(posterior, WeightSamples)
    if options.boxes == "sampled" and samples:
        raise UnsupportedError("boxes serve Gaussian posteriors; weight samples are verified one by one (no --boxes)")
    if options.method == "tails" and (query is not Query.PROBABILISTIC or samples):
        raise UnsupportedError("method tails bounds the probabilistic query of a Gaussian posterior, nothing else yet")
    if not is_correlated(posterior):
        return
    family = family_of(posterior)
    shared = (
        any(is_correlated(part.posterior) for part in posterior.components) if isinstance(posterior, Mixture) else True
    )
    if shared and (
        options.boxes == "sampled" or options.margin is not None or options.method in ("interval", "linear")
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
    from bnn_vnnlib.network.network import Correlated, Mixture

    return isinstance(posterior, Correlated | Mixture)


def _is_sampled(posterior: Posterior | None) -> bool:
    """Made of weight samples."""
    return type(posterior).__name__ == "WeightSamples"
