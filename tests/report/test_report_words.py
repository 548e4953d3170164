"""Guarantees in words: what each verdict may claim, and what it must not."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import pytest

import bnn_vnnlib.methods.decision as decisions
from bnn_vnnlib import Query, Verdict
from bnn_vnnlib.report.guarantee import certain, guarantee
from bnn_vnnlib.result import Asked, Rule
from support.records import decision, plain, row, safe


def test_probabilistic_quotes_its_own_threshold():
    unsat, sat = guarantee(row(safe("unsat", 0.97, 1.0))), guarantee(row(safe("sat", 0.0, 0.3)))
    assert unsat.says.startswith("Proved: P_safe >= 0.95.")
    assert sat.says.startswith("Proved: P_safe < 0.9.")
    assert "Nothing follows for the expected prediction" in unsat.open
    assert "no counterexample" in sat.open
    assert "tails" in unsat.how.lower()
    assert "Boxes of weights" in unsat.how


def test_thresholds_are_never_rounded():
    assert "P_safe >= 0.9999999999." in guarantee(replace(row(safe("unsat", 1.0, 1.0)), tau_safe=0.9999999999)).says


def test_samples_have_an_input_each():
    words = guarantee(row(safe("sat", 0.0, 0.3, "linear, weight samples")))
    assert "an input of its own" in words.says
    assert words.how.startswith("Method: linear, weight samples. Each weight sample is bounded by itself;")
    assert "Boxes" not in words.how


def test_components_have_an_input_each():
    words = guarantee(row(safe("sat", 0.0, 0.3, "linear, components of a mixture (gaussian_diag)")))
    assert "at inputs of their own" in words.says
    assert "Each component is bounded by itself" in words.how


def test_a_vacuous_unsat_claims_nothing():
    words = guarantee(replace(row(safe("unsat", 1.0, 1.0)), vacuous="its rows contradict each other"))
    assert words.says.startswith("Nothing about this model")
    asked = Asked("Y_0 <= 0 and Y_0 >= 1 for some X_0 in [0, 1]", "...", "its rows contradict each other")
    one = row(replace(safe("unsat", 1.0, 1.0), asked=asked))
    assert (one.violation, one.unsat_means, one.vacuous) == (asked.violation, "...", asked.vacuous)


def test_between_the_thresholds_is_an_answer():
    words = guarantee(row(safe("unknown", 0.91, 0.94)))
    assert words.says.startswith("Proved: 0.9 <= P_safe < 0.95.")
    assert "No method" in words.open
    assert "No verdict" in guarantee(row(safe("unknown", 0.8, 0.94))).says


def test_the_decision_says_which():
    assert "expected softmax" in guarantee(row(decision("unsat", [0.0], [1.0]))).says
    assert "a median of each output" in guarantee(row(decision("sat", [0.0], [1.0], Rule.MEDIAN))).says


@pytest.mark.parametrize(
    ("variant", "subject", "left"),
    [
        (None, "the network examined", "nothing follows for the BNN"),
        ("mean", "the posterior's means", "Nothing follows for the BNN"),
        ("draw_0003", "this one network drawn", "an estimate of P_safe, not a bound"),
        ("merged", "averages networks of the posterior", "about the decision of the BNN"),
    ],
)
@pytest.mark.parametrize("verdict", ["sat", "unsat"])
def test_a_deterministic_verdict_says_nothing_of_the_bnn(variant, subject, left, verdict):
    words = guarantee(replace(row(plain(verdict)), variant=variant))
    assert subject in words.says
    assert left in words.open


@pytest.mark.parametrize("verdict", ["sat", "unsat"])
def test_where_there_is_no_bnn_nothing_is_said_of_one(verdict):
    """A deterministic network in a comparison, or in a run whose record says in words that it has no posterior."""
    compared = replace(row(plain(verdict)), variant="plain")
    run = replace(row(plain(verdict)), variant=None, unsat_means="the network has no such input")
    for one in (compared, run):
        words = guarantee(one)
        said = " ".join([words.says, words.open, words.how, certain([one])])
        assert "the network violates" in said
        assert not re.search("BNN|posterior|P_safe|mean network|decision", said), said
    bayesian = replace(run, unsat_means="the network of the posterior means has no such input")
    assert "nothing follows for the BNN" in guarantee(bayesian).open
    assert "The posterior is taken" in certain([run, bayesian])


def test_the_word_of_another_tool_is_not_called_proved():
    theirs = replace(row(plain("sat")), tool="other", variant="mean", checked="invalid")
    words = guarantee(theirs)
    assert words.says == ("other says sat. This is its word; bnn-vnnlib proved nothing here. Its witness, replayed in "
                          "onnxruntime: invalid.")  # fmt: skip
    assert "Proved" not in words.says
    assert "Nothing follows for the BNN" in words.open


@pytest.mark.parametrize("verdict", ["unknown", "timeout"])
def test_no_verdict_claims_nothing_but_its_bounds(verdict):
    words = guarantee(row(safe(verdict, 0.2, 0.96)))
    assert "Proved" not in words.says
    assert "The bounds so far hold" in words.says
    assert "no hint" in words.open
    assert "There are no bounds" in guarantee(replace(row(safe(verdict, 0.2, 0.96)), p_safe=None)).says


def test_a_certificate_is_named_for_what_it_claims():
    unsat = row(safe("unsat", 0.97, 1.0))
    assert "ertificate" not in guarantee(unsat).how
    for claim, words in {"unsat": "claims unsat; bnn-vnnlib-check", "bound": "claims bound, which is less"}.items():
        assert words in guarantee(replace(unsat, details={"certificate": {"verdict": claim}})).how
    for nothing in ({"file": None, "why": "time is up"}, "unsat", {"verdict": ["unsat"]}):
        assert "ertificate" not in guarantee(replace(unsat, details={"certificate": nothing})).how


def test_an_error_guarantees_nothing():
    assert guarantee(row("no such file")).says.startswith("Nothing")


@pytest.mark.parametrize("query", list(Query))
@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_method_of_a_later_version_is_named(query, verdict):
    words = guarantee(replace(row(safe("unknown", 0.0, 1.0)), query=query, verdict=verdict, method="something new"))
    assert words.how == "Method: something new."
    assert ("Proved" in words.says or "Shown" in words.says) == (verdict in (Verdict.SAT, Verdict.UNSAT))


def named_methods() -> set[str]:
    """The names of all classes that bound a decision."""
    modules = (import_module(f"{decisions.__name__}.{name}") for name in names_below(decisions))
    kinds = (kind for module in modules for kind in vars(module).values() if isinstance(kind, type))
    return {kind.name for kind in kinds if isinstance(getattr(kind, "name", None), str)}


def names_below(package: ModuleType) -> list[str]:
    """Names of the modules in a package, below its own."""
    found = walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name.removeprefix(f"{package.__name__}.") for module in found if not module.ispkg]


def test_every_method_of_the_decision_is_explained():
    assert {"tails", "Gaussian logits", "closed forms"} <= named_methods()
    for name in named_methods():
        words = guarantee(replace(row(decision("unsat", [0.9], [1.0])), method=name))
        assert words.how != f"Method: {name}.", name


def test_a_verdict_without_its_query_is_no_certificate():
    assert "nothing follows" in guarantee(replace(row(safe("unsat", 1.0, 1.0)), query=None)).says
