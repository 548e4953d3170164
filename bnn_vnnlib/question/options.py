"""The options of `verify` and of all that asks it: names, types, values, texts, here and nowhere else.

1. `Options` holds the values and refuses what is none. Functions take options as keywords (`takes_options`), commands
   as options of the command line (`cli.options`); both get their names, defaults and texts from the fields below.
   `Options.question` settles which question they ask: an option, else the property's own comment, else the default.
2. What is asked of which family of posteriors: combinations that nothing serves are refused by name, before work.
"""

from __future__ import annotations

import inspect
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

from bnn_vnnlib.errors import OptionError, UnsupportedError, did_you_mean, names_arguments
from bnn_vnnlib.result import Query, Rule
from bnn_vnnlib.signature import Likelihood

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model, Posterior


# 1. Options

MethodChoice = Literal["auto", "interval", "linear", "tails"]
Guarantee = Literal["certain", "statistical"]
Aim = Literal["verdict", "bounds"]
BoxKind = Literal["mean", "sampled"]
Search = Literal["float64", "float32"]
Outputs = Literal["auto", "probabilities"]
Coupling = Literal["independent", "shared", "noise"]

TAU = 0.95
"""Both thresholds on P_safe, where none is given."""

CONFIDENCE, DRAWS = 0.999999, 10_000
"""Defaults of a statistical guarantee: its confidence; the number of draws where neither draws nor time are limited."""

GAP = 1e-3
"""Between bounds that are close enough, where they are what is wanted."""

_RANGES: dict[str, Callable[[Any], bool]] = {
    "a probability between 0 and 1": lambda value: 0 <= value <= 1,
    "a probability between 0 and 1, neither of them": lambda value: 0 < value < 1,
    "a positive number": lambda value: 0 < value < math.inf,
    "a number of seconds": lambda value: not math.isnan(value),
    "a whole number that is not negative": lambda value: value == int(value) >= 0,
    "a positive whole number": lambda value: value == int(value) >= 1,
}
"""What an option's value must be, in words -> whether it is. NaN is never accepted."""


@dataclass(frozen=True)
class _Option:
    """What is known of an option beside its type and default.

    Attributes
    ----------
    help : what it says
    words : the values it may have; () where it is a number or a name
    must_be : else a key of the ranges; None: checked where it is used
    unset : what None stands for
    queries, about : those that it serves, and why no other
    reads : of words of which one has a number in it: ValueError for what is none of them
    """

    help: str
    words: tuple[str, ...] = ()
    must_be: str | None = None
    unset: str | None = None
    queries: tuple[Query, ...] = tuple(Query)
    about: str = ""
    reads: Callable[[str], Any] | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise OptionError unless the option may have this value."""
        if self.words and not self._knows(value):
            known = f"known are {', '.join(self.words)}"
            start = f"{value}".partition(":")[0] + ":"
            if any(word.startswith(start) for word in self.words):
                raise OptionError(f"{name} {value!r}: a number is missing, unreadable or out of its range; {known}")
            raise OptionError(f"unknown {name} {value!r}; {known}{did_you_mean(value, self.words)}")
        if self.must_be is not None:
            try:
                accepted = _RANGES[self.must_be](value)
            except (TypeError, ValueError, OverflowError):
                accepted = False
            if not accepted:
                raise OptionError(f"{name} must be {self.must_be}, found {value!r}")

    def _knows(self, value: Any) -> bool:
        if self.reads is None:
            return value in self.words
        try:
            self.reads(str(value))
        except ValueError:
            return False
        return True


def _threshold(help: str, unset: str) -> _Option:  # noqa: A002
    return _Option(help, (), "a probability between 0 and 1", unset, (Query.PROBABILISTIC,),
                  "it is a threshold on P_safe")  # fmt: skip


def _of_decision(help: str, about: str, words: tuple[str, ...], unset: str | None = None) -> _Option:  # noqa: A002
    return _Option(help, words, None, unset, (Query.DECISION,), about)


def _of_draws(help: str, must_be: str | None, unset: str) -> _Option:  # noqa: A002
    return _Option(help, (), must_be, unset, (Query.PROBABILISTIC, Query.DECISION), "it is about drawn networks")


def _of_boxes(help: str, **more: Any) -> _Option:  # noqa: A002
    return _Option(help, queries=(Query.PROBABILISTIC, Query.DECISION), about="it is about boxes of weights", **more)


@dataclass(frozen=True)
class Options:
    """What is asked of a model, and how it is bounded; None: not given."""

    query: Annotated[
        Query | str | None,
        _Option(
            "What is asked.",
            words=tuple(Query),
            unset="the property's comment, else probabilistic if the model carries a posterior, else deterministic",
        ),
    ] = None
    tau_safe: Annotated[
        float | None, _threshold("unsat if P_safe >= this.", f"the property's comment, else TAU_UNSAFE, else {TAU}")
    ] = None
    tau_unsafe: Annotated[
        float | None, _threshold("sat if P_safe < this.", f"the property's comment, else TAU_SAFE, else {TAU}")
    ] = None
    likelihood: Annotated[
        Likelihood | None,
        _of_decision("What an output stands for.", "it says how outputs become a decision", get_args(Likelihood),
                     "as the model says"),
    ] = None  # fmt: skip
    coupling: Annotated[
        Coupling | None,
        _Option(
            "How two networks of a property are drawn: independently; one draw for both; or "
            "common noise, the same standard normal numbers for Gaussian weights of the same name.",
            words=get_args(Coupling),
            unset="independent, and one draw for a network that is equal-to the other",
            queries=(Query.PROBABILISTIC, Query.DECISION),
            about="it is about drawn networks",
        ),
    ] = None
    rule: Annotated[
        str | None,
        _Option("What Y means under query decision: expected outputs or probabilities, medians of outputs, or their "
                "Q-quantiles, 0 < Q < 1; or the probability that an outcome is below T, noise included (likelihood "
                "gaussian_heteroscedastic, or gaussian with a noise of deviation S).",
                words=("mean", "median", "quantile:Q", "probability-below:T", "probability-below:T:S"),
                unset="the property's comment, else mean",
                queries=(Query.DECISION,), about="it says which decision Y is", reads=Rule),
    ] = None  # fmt: skip
    method: Annotated[
        MethodChoice,
        _Option(
            "How networks are bounded: interval or linear bounds on boxes of weights, tails of the rows, or the best "
            "of all methods.",
            words=get_args(MethodChoice),
        ),
    ] = "auto"
    boxes: Annotated[
        BoxKind,
        _of_boxes("Where boxes of weights are centred: at the posterior mean, or at sampled weights.",
                  words=get_args(BoxKind)),
    ] = "mean"  # fmt: skip
    num_boxes: Annotated[
        int | None, _of_boxes("How many boxes around sampled weights.", must_be="a positive whole number", unset="5")
    ] = None
    margin: Annotated[
        float | None,
        _of_boxes("Half-width of a box of weights in standard deviations.", must_be="a positive number",
                  unset="searched, or 2.5 around sampled weights"),
    ] = None  # fmt: skip
    goal: Annotated[
        Aim,
        _Option(
            "When the work ends: with the verdict, or when both bounds are close, whatever the verdict.",
            words=get_args(Aim), queries=(Query.PROBABILISTIC, Query.DECISION),
            about="there are no bounds on a fixed network's answer",
        ),
    ] = "verdict"  # fmt: skip
    gap: Annotated[
        float | None,
        _Option("With goal bounds: how close both bounds have to be, on P_safe or on every output.",
                must_be="a positive number", unset=f"{GAP:g}", queries=(Query.PROBABILISTIC, Query.DECISION),
                about="there are no bounds on a fixed network's answer"),
    ] = None  # fmt: skip
    guarantee: Annotated[
        Guarantee,
        _Option(
            "Whether the bounds are certain, or each holds with the stated confidence over drawn networks.",
            words=get_args(Guarantee), queries=(Query.PROBABILISTIC, Query.DECISION),
            about="bounds from drawn networks are about random weights",
        ),
    ] = "certain"  # fmt: skip
    confidence: Annotated[
        float | None,
        _of_draws("With guarantee statistical: the probability with which a bound holds.",
                  "a probability between 0 and 1, neither of them", str(CONFIDENCE)),
    ] = None  # fmt: skip
    draws: Annotated[
        int | None,
        _of_draws("With guarantee statistical: the most networks to draw.", "a positive whole number",
                  f"{DRAWS:,}, or as many as a time limit allows"),
    ] = None  # fmt: skip
    drawn_layers: Annotated[
        int | None,
        _Option(
            "With guarantee statistical: random layers that are drawn, from the input on; the rest is bounded with "
            "certainty. 0: all is, and so is the answer.",
            must_be="a whole number that is not negative", queries=(Query.PROBABILISTIC,),
            unset="all, unless a pilot of a long run finds that fewer serve better",
            about="it is about P_safe of drawn networks",
        ),
    ] = None  # fmt: skip
    seed: Annotated[
        int | None,
        _Option("Seed of everything random.", must_be="a whole number that is not negative",
                unset="0; with guarantee statistical, one from the operating system"),
    ] = None  # fmt: skip
    restarts: Annotated[
        int, _Option("Starting points of the attack on each box.", must_be="a positive whole number")
    ] = 2
    device: Annotated[str | None, _Option("Where to compute: cpu, cuda, cuda:1, ...", unset="cpu")] = None
    search: Annotated[
        Search,
        _Option("Floating-point type of searches; what they find is confirmed in float64.", words=get_args(Search)),
    ] = "float64"
    outputs: Annotated[
        Outputs,
        _of_decision("What a constant of the property is compared with under query decision: say probabilities where "
                     "they are meant.", "it says what the decision is compared with", get_args(Outputs)),
    ] = "auto"  # fmt: skip
    timeout: Annotated[
        float | None,
        _Option(
            "Seconds until the bounds so far are returned; commands count from the start of the process.",
            must_be="a number of seconds",
            unset="no limit",
        ),
    ] = None  # fmt: skip
    memory: Annotated[
        float | None,
        _Option("GiB for the arrays of the work; it changes how much is done at once, not what is proved.",
               must_be="a positive number", unset="2 on a CPU, half of what a CUDA device has"),
    ] = None  # fmt: skip
    strict: Annotated[bool, _Option("Refuse a property that nothing can violate, whatever the network.")] = False

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is not None:
                option.check(name, value)
        if self.method == "tails" and (self.boxes != "mean" or self.margin is not None):
            raise OptionError("method tails uses no boxes of weights: leave out boxes and margin")
        if self.gap is not None and self.goal != "bounds":
            raise OptionError("gap says when bounds are close enough: add goal bounds, or leave it out")
        if self.num_boxes is not None and self.boxes == "mean":
            raise OptionError("num_boxes is the number of boxes around sampled weights: add boxes sampled")

        idle = [name for name in ("confidence", "draws", "drawn_layers") if getattr(self, name) is not None]
        if self.guarantee == "certain" and idle:
            raise OptionError(f"{idle[0]} is about drawn networks: add guarantee statistical, or leave it out")
        if self.guarantee == "statistical" and (self.method != "auto" or self.boxes != "mean" or self.margin):
            raise OptionError("guarantee statistical verifies drawn networks: leave out method, boxes and margin")

    @property
    def certain(self) -> bool:
        """Nothing is drawn: no layer is, if that is what was asked for."""
        return self.guarantee == "certain" or self.drawn_layers == 0

    @property
    def seeded(self) -> Options:
        """These options with a seed that nobody chose where draws are counted and none is given; a float64 holds it
        exactly.
        """
        if self.seed is not None or self.guarantee == "certain":
            return self
        return replace(self, seed=secrets.randbits(48))

    @property
    def wanted_gap(self) -> float | None:
        """How close both bounds have to be; None: the verdict ends the work."""
        return (GAP if self.gap is None else self.gap) if self.goal == "bounds" else None

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults: name -> value."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def without(self, names: Collection[str]) -> Options:
        """The options, some of them as by default."""
        return Options(**{name: value for name, value in self.given.items() if name not in names})

    def question(self, comment: Mapping[str, str] | None = None, path: Path | None = None) -> Question:
        """What is asked, by these options and the property's comment `; bnn-vnnlib: key=value ...`.

        Where options and comment together give one threshold, it is both: the question is whether P_safe reaches it.
        Under a query that is given here and is not the decision, the comment's rule and outputs are not meant.

        Parameters
        ----------
        comment : the property's own settings, `Property.options`
        path : the property's file, for messages

        Raises
        ------
        OptionError : an unknown key, a value that is no such thing, thresholds out of range or out of order
        """
        comment = comment or {}
        unknown = sorted(set(comment) - set(IN_COMMENTS))
        if unknown:
            hint = did_you_mean(unknown[0], IN_COMMENTS)
            message = f"unknown setting {unknown[0]!r} in a comment; known are {', '.join(IN_COMMENTS)}{hint}"
            raise OptionError(message, path=path)
        deaf = {"rule", "outputs"} if self.query is not None and self.query != Query.DECISION else set()
        own: dict[str, Any] = {
            name: _number(name, text, path) if name.startswith("tau_") else text
            for name, text in comment.items()
            if getattr(self, name) in (None, "auto") and name not in deaf
        }
        try:
            asked = replace(self, **own)
        except OptionError as error:  # the options passed when they were made, so the file is to blame
            error.path = path
            raise
        thresholds = [value for value in (asked.tau_safe, asked.tau_unsafe) if value is not None] or [TAU]
        query, rule = asked.query, asked.rule
        return Question(
            None if query is None else Query(query), thresholds[0], thresholds[-1],
            Rule.MEAN if rule is None else Rule(rule),
        )  # fmt: skip


Options.__init__ = names_arguments(Options.__init__)  # type: ignore[method-assign]

IN_COMMENTS = ("query", "tau_safe", "tau_unsafe", "rule", "outputs")
"""Options that a property may set in a comment."""


_HINTS = get_type_hints(Options, include_extras=True)
OPTIONS: dict[str, _Option] = {one.name: get_args(_HINTS[one.name])[1] for one in fields(Options)}
"""What is known of each option, by name."""


class OptionFields(TypedDict, total=False):
    """The fields of `Options` as keywords of a function, for type checkers; the query has its own place."""

    tau_safe: float | None
    tau_unsafe: float | None
    likelihood: Likelihood | None
    coupling: Coupling | None
    rule: str | None
    method: MethodChoice
    boxes: BoxKind
    num_boxes: int | None
    margin: float | None
    guarantee: Guarantee
    confidence: float | None
    draws: int | None
    drawn_layers: int | None
    goal: Aim
    gap: float | None
    seed: int | None
    restarts: int
    device: str | None
    search: Search
    outputs: Outputs
    timeout: float | None
    memory: float | None
    strict: bool


@dataclass(frozen=True)
class Question:
    """The query (None: probabilistic if the model carries a posterior, else deterministic), its thresholds and rule."""

    query: Query | None
    tau_safe: float
    tau_unsafe: float
    rule: Rule = Rule.MEAN

    def __post_init__(self) -> None:
        if self.tau_unsafe > self.tau_safe:
            raise OptionError(
                f"tau_unsafe ({self.tau_unsafe}) must not exceed tau_safe ({self.tau_safe}): "
                "P_safe could be at least the one and below the other"
            )

    def query_of(self, has_posterior: bool) -> Query:
        """The query, by default that of the model."""
        return self.query or (Query.PROBABILISTIC if has_posterior else Query.DETERMINISTIC)

    def between(self, lower: Any, upper: Any) -> Any:
        """Whether bounds on P_safe (numbers or arrays) show that neither verdict applies, however tight they become."""
        return (lower >= self.tau_unsafe) & (upper < self.tau_safe)


def _number(name: str, text: str, path: Path | None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise OptionError(f"{name}={text} in a comment is not a number", path=path)
    return value


def parameters(without: Collection[str] = ()) -> list[inspect.Parameter]:
    """The options as keywords of a function, with their types."""
    return [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default,
                          annotation=get_args(_HINTS[one.name])[0])
        for one in fields(Options)
        if one.name not in without
    ]  # fmt: skip


def signature_with(own: inspect.Signature, added: Collection[inspect.Parameter]) -> inspect.Signature:
    """The signature with these keywords in the place of its `**options`; those that it has by itself stay."""
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    names = {one.name for one in kept}
    return own.replace(parameters=[*kept, *(one for one in added if one.name not in names)])


_P = ParamSpec("_P")
_R = TypeVar("_R")


def takes_options(without: Collection[str] = ()) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorator of a function with `**options: Unpack[OptionFields]`: those options, and no other keywords.

    What `help` shows then has all of them: the signature, and their texts in the place of `{options}` in the docstring.
    Parameters
    ----------
    without : options that say nothing to this function
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        """The function with the options in its signature and its docstring, which refuses all other keywords."""
        added = parameters(without)
        texts = "\n".join(f"{one.name} : {_told(one.name)}" for one in added)
        function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{options}", texts)
        signature = signature_with(inspect.signature(function), added)
        function.__signature__ = signature  # type: ignore[attr-defined]  # what inspect.signature looks for
        return names_arguments(function)

    return decorate


def _told(name: str) -> str:
    option = OPTIONS[name]
    words = f" One of {', '.join(option.words)}." if option.words else ""
    unset = "" if option.unset is None else f" None: {option.unset}."
    return f"{option.help}{words}{unset}"


# 2. What is served


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


def refuse_drawn_only(model: Model, query: Query, options: Options) -> None:
    """Raise UnsupportedError where certain bounds are asked for, and networks can only be drawn from the posterior."""
    from bnn_vnnlib.network.network import Drawable, Sampler

    posterior = model.posterior
    if options.certain and query is not Query.DETERMINISTIC and isinstance(posterior, Drawable):
        dropout = "MC dropout (Dropout in training mode)"
        what = posterior.what if isinstance(posterior, Sampler) else dropout
        message = f"the posterior is {what}: no certain bound serves it; ask guarantee statistical"
        raise UnsupportedError(message, path=model.path)


def refuse_unserved(model: Model, query: Query, rule: Rule, options: Options) -> None:
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
    samples, mixture, family = (
        isinstance(posterior, WeightSamples),
        isinstance(posterior, Mixture),
        family_of(posterior),
    )
    decision, sampled = query is Query.DECISION, options.boxes == "sampled"
    parts: list[Posterior] = []
    if isinstance(posterior, Mixture):
        parts = [part.posterior for part in posterior.components]
    boxes = sampled or options.margin is not None or options.method in ("interval", "linear")
    refusals = {
        "boxes serve Gaussian posteriors; weight samples are verified one by one (no --boxes)": (samples and sampled),
        "method tails bounds the probabilistic query of a Gaussian posterior, nothing else yet": (
            options.method == "tails" and (samples or query is not Query.PROBABILISTIC)
        ),
        f"boxes around samples need independent weights, and the posterior is of family {family}: leave out --boxes, "
        "and use method auto or tails": any(map(is_correlated, parts or [posterior])) and sampled,
        f"boxes of weights serve mixtures of independent weights, and this {family} has others: leave out --margin, "
        "and use method auto or tails": any(map(is_correlated, parts)) and boxes,
        f"rule {rule} does not serve posteriors of family {family} with certainty; Gaussians and weight samples have "
        "methods, and guarantee statistical": mixture and decision and rule.level is not None,
    }
    for message, refused in refusals.items():
        if refused:
            raise UnsupportedError(message, path=model.path)


def is_correlated(posterior: Posterior) -> bool:
    """The weights depend on each other: a correlated Gaussian, or a mixture."""
    from bnn_vnnlib.network.network import Correlated, Mixture

    return isinstance(posterior, Correlated | Mixture)


def _is_sampled(posterior: Posterior | None) -> bool:
    """Whether a posterior is made of weight samples."""
    return type(posterior).__name__ == "WeightSamples"
