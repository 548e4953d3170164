"""Options by query and posterior: each is used, or refused by name; none is ignored."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bnn_vnnlib import Model, OptionError, Options, Query, UnsupportedError, verify, verify_batch
from bnn_vnnlib.model import Component, GaussianDiagonal, GaussianLowRank, Mixture
from bnn_vnnlib.question.options import idle_options
from bnn_vnnlib.setting import settle_run
from support.builders import properties, random_model, random_samples

OPTIONS: dict[str, Mapping[str, Any]] = {
    "tau_safe": {"tau_safe": 0.9},
    "tau_unsafe": {"tau_unsafe": 0.5},
    "rule": {"rule": "mean"},
    "likelihood": {"likelihood": "categorical"},
    "outputs": {"outputs": "probabilities"},
    "interval": {"method": "interval"},
    "linear": {"method": "linear"},
    "tails": {"method": "tails"},
    "boxes": {"boxes": "sampled"},
    "num_boxes": {"boxes": "sampled", "num_boxes": 2},
    "margin": {"margin": 1.0},
    "search": {"search": "float32"},
    "seed": {"seed": 3},
}
ANY = {"search", "seed"}
THRESHOLDS = {"tau_safe", "tau_unsafe"}
OF_DECISION = {"rule", "likelihood", "outputs"}
BOXES = {"interval", "linear", "boxes", "num_boxes", "margin"}
USED = {
    ("probabilistic", "diagonal"): THRESHOLDS | BOXES | {"tails"},
    ("probabilistic", "samples"): THRESHOLDS | {"interval", "linear"},
    ("probabilistic", "low rank"): THRESHOLDS | {"tails", "interval", "linear", "margin"},
    ("probabilistic", "mixture"): THRESHOLDS | BOXES | {"tails"},
    ("decision", "diagonal"): OF_DECISION | BOXES,
    ("decision", "samples"): OF_DECISION | {"interval", "linear"},
    ("decision", "low rank"): OF_DECISION | {"interval", "linear", "margin"},
    ("decision", "mixture"): OF_DECISION | BOXES,
    **{
        ("deterministic", kind): {"interval", "linear"}
        for kind in ("none", "diagonal", "samples", "low rank", "mixture")
    },
}
"""What serves which query of which posterior, beside ANY."""


def made(kind: str) -> Model:
    """A small classifier."""
    net = random_model(0, [2, 3, 2], spread=0.1, likelihood="categorical")
    if kind == "samples":
        return random_samples(0, [2, 3, 2], 3, likelihood="categorical")
    diagonal = net.posterior
    assert isinstance(diagonal, GaussianDiagonal)
    means = {name: net.network.tensors[name] for name in diagonal.variances}
    match kind:
        case "none":
            return replace(net, posterior=None)
        case "low rank":
            factors = {name: np.full((1, *variance.shape), 0.01) for name, variance in diagonal.variances.items()}
            return replace(net, posterior=GaussianLowRank(factors, diagonal.variances))
        case "mixture":
            return replace(net, posterior=Mixture((Component(means, diagonal),) * 2, np.array([0.5, 0.5])))
    return net


MODELS = {kind: made(kind) for kind in ("none", "diagonal", "samples", "low rank", "mixture")}


def settled(model: Model, query: str | None, given: Mapping[str, Any]) -> None:
    """As `verify` begins."""
    settle_run(model, Options(query, **given))


@pytest.mark.parametrize(("asked", "option"), list(itertools.product(USED, OPTIONS)))
def test_every_option_is_used_or_refused_by_name(asked, option):
    query, kind = asked
    if option in USED[asked] | ANY:
        settled(MODELS[kind], query, OPTIONS[option])
        return
    name = "method" if option == "tails" else option
    with pytest.raises((OptionError, UnsupportedError), match=f"{name}|boxes"):
        settled(MODELS[kind], query, OPTIONS[option])


PROPERTY = properties(MODELS["none"], [(-1, 1)], [(0, [([1, -1], None, 0.0, False)])])


def test_a_forgotten_posterior_shows():
    with pytest.raises(OptionError, match=r"tau_safe does not apply: .*carries no posterior: attach one"):
        verify(MODELS["none"], PROPERTY, tau_safe=0.9)
    with pytest.raises(OptionError, match=r"tau_unsafe does not apply: .*carries no posterior: attach one"):
        verify_batch(MODELS["none"], [[0.0, 0.0]], [[0.0, 0.0]], labels=[0], tau_unsafe=0.9)


def test_a_comment_that_asks_for_a_posterior_is_heard():
    """Thresholds in the property are for P_safe; under another query that somebody asks for they do not count."""
    commented = replace(PROPERTY, options={"tau_safe": "0.98", "tau_unsafe": "0.05"})
    with pytest.raises(OptionError, match=r"tau_safe does not apply"):
        verify(MODELS["none"], commented)
    assert verify(MODELS["none"], commented, query="deterministic").query == "deterministic"
    assert verify(MODELS["diagonal"], commented, query="decision", likelihood="categorical").query == "decision"


def test_probabilities_are_meant_where_there_are_some():
    net = random_model(0, [2, 3, 2], spread=0.1, likelihood="gaussian")
    with pytest.raises(OptionError, match="outputs does not apply: the decision of this model is an expected output"):
        verify(net, PROPERTY, query="decision", outputs="probabilities")


def test_defaults_say_nothing():
    assert idle_options(Query.DETERMINISTIC, Options(margin=None, method="auto").given) == {}
