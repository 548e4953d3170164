"""Option, comment, default: in this order. One place says what options there are; all that take them derive from it."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from bnn_vnnlib import Options, Query, adapters, verify, verify_batch
from bnn_vnnlib.cli.radius import radius
from bnn_vnnlib.cli.run import run
from bnn_vnnlib.cli.sweep import sweep
from bnn_vnnlib.cli.uncertainty import uncertainty
from bnn_vnnlib.cli.verify import verify as cli_verify
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.question.options import OPTIONS, OptionFields, Question


@pytest.mark.parametrize(
    ("comment", "options", "expected"),
    [
        ({}, {}, (None, 0.95, 0.95)),
        ({"query": "decision"}, {}, (Query.DECISION, 0.95, 0.95)),
        ({"query": "decision"}, {"query": "deterministic"}, (Query.DETERMINISTIC, 0.95, 0.95)),
        ({"tau_safe": "0.98", "tau_unsafe": "0.05"}, {}, (None, 0.98, 0.05)),
        ({"tau_safe": "0.98", "tau_unsafe": "0.05"}, {"tau_unsafe": 0.5}, (None, 0.98, 0.5)),
        ({}, {"tau_safe": 0.9}, (None, 0.9, 0.9)),
        ({}, {"tau_unsafe": 0.99}, (None, 0.99, 0.99)),
        ({}, {"tau_safe": 0.999}, (None, 0.999, 0.999)),
        ({}, {"tau_unsafe": 0.0}, (None, 0.0, 0.0)),
        ({"tau_safe": "0.98"}, {}, (None, 0.98, 0.98)),
        ({"tau_unsafe": "0.5"}, {}, (None, 0.5, 0.5)),
        ({"tau_safe": "0.98"}, {"tau_safe": 0.9}, (None, 0.9, 0.9)),
        ({"tau_safe": "0.98"}, {"tau_unsafe": 0.5}, (None, 0.98, 0.5)),
    ],
)
def test_precedence(comment, options, expected):
    assert Options(**options).question(comment) == Question(*expected)


@pytest.mark.parametrize(
    ("comment", "options", "message"),
    [
        ({"tau": "0.9"}, {}, "f.vnnlib: unknown setting 'tau' in a comment"),
        ({"tau_save": "0.9"}, {}, "did you mean 'tau_safe'"),
        ({}, {"query": "probablistic"}, "did you mean 'probabilistic'"),
        ({}, {"query": "decision", "rule": "medain"}, "did you mean 'median'"),
        ({"query": "robust"}, {}, "f.vnnlib: unknown query 'robust'; known are probabilistic, decision"),
        ({"tau_safe": "high"}, {}, "f.vnnlib: tau_safe=high in a comment is not a number"),
        ({"tau_safe": "nan"}, {}, "tau_safe=nan in a comment is not a number"),
        ({}, {"tau_safe": 1.5}, "^tau_safe must be a probability"),  # the property's file is not to blame
        ({}, {"tau_unsafe": -0.1}, "tau_unsafe must be a probability"),
        ({}, {"tau_safe": float("nan")}, "tau_safe must be a probability"),
        ({"tau_unsafe": "0.5"}, {"tau_safe": 0.4}, r"tau_unsafe \(0.5\) must not exceed tau_safe \(0.4\)"),
    ],
)
def test_what_is_no_question_is_refused(comment, options, message):
    with pytest.raises(OptionError, match=message):
        Options(**options).question(comment, Path("f.vnnlib"))


# The options as keywords and on the command line


def test_type_checkers_know_the_same_fields():
    declared = {name: kind for name, kind in get_type_hints(Options).items() if name != "query"}
    assert get_type_hints(OptionFields) == declared


@pytest.mark.parametrize(
    ("function", "others", "missing"),
    [
        (verify, {"model", "property", "started"}, {"restarts"}),
        (verify_batch, {"model", "lower", "upper", "labels", "properties"}, {"coupling", "outputs", "strict"}),
    ],
)
def test_help_shows_every_option(function, others, missing):
    parameters = inspect.signature(function).parameters
    assert set(parameters) == {one.name for one in fields(Options)} - missing | others
    for one in fields(Options):
        if one.name not in missing:
            assert parameters[one.name].default == one.default
            assert f"\n{one.name} : {'' if one.name == 'query' else OPTIONS[one.name].help}" in function.__doc__


@pytest.mark.parametrize("command", [cli_verify, run, sweep, radius, uncertainty])
def test_commands_show_the_texts_of_the_options(command):
    told = {name: one for name, one in inspect.signature(command).parameters.items() if name in OPTIONS}
    assert len(told) >= 6
    for name, one in told.items():
        own = command is run and name in ("query", "timeout", "memory")  # several queries; limits of each instance
        assert own or get_args(one.annotation)[1].help == OPTIONS[name].help


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verify_batch(None, [], [], label=[0]), "verify_batch has no option 'label'; did you mean 'labels'?"),
        (lambda: verify(None, None, tau_save=0.9), "verify has no option 'tau_save'; did you mean 'tau_safe'?"),
        (lambda: verify(None, None, restarts=3), "verify has no option 'restarts'"),
        (lambda: verify_batch(None, [], [], strict=True), "verify_batch has no option 'strict'"),
        (lambda: Options(method="linaer"), "unknown method 'linaer'; known are .*; did you mean 'linear'?"),
        (lambda: Options(likelihood="normal"), "unknown likelihood 'normal'; known are categorical"),
        (lambda: Options(margin=float("inf")), "margin must be a positive number, found inf"),
        (lambda: Options(seed=-1), "seed must be a whole number that is not negative, found -1"),
        (lambda: Options(seed=0.5), "seed must be a whole number"),
        (lambda: Options(boxes="sampled", num_boxes=0), "num_boxes must be a positive whole number, found 0"),
        (lambda: Options(num_boxes=3), "add boxes sampled"),
        (lambda: Options(restarts="two"), "restarts must be a positive whole number, found 'two'"),
        (lambda: Options(timeout=float("nan")), "timeout must be a number of seconds, found nan"),
        (lambda: Options(method="tails", margin=1.0), "method tails uses no boxes"),
    ],
)
def test_what_is_no_option_is_refused_by_name(call, message):
    with pytest.raises(OptionError, match=message.replace("?", r"\?").replace(".*", ".*")):
        call()


PUBLIC = [
    *(f"bnn_vnnlib.{name}" for name in ("verify", "verify_batch", "certify", "read_model", "attach", "to_torch")),
    *(f"bnn_vnnlib.{name}" for name in ("read_property", "Options", "estimate.estimate")),
    *(f"bnn_vnnlib.sweeps.{name}" for name in ("sweep", "radii", "uncertainty", "make_inputs", "make_table")),
    *(f"bnn_vnnlib.requirements.{name}" for name in ("robust", "within", "around", "property_text")),
    *(f"bnn_vnnlib.relations.{name}" for name in ("equivalent", "fair", "global_robustness", "monotone")),
    "bnn_vnnlib.check_witness.check_witness",
    *(f"bnn_vnnlib.rules.{name}" for name in ("most_likely", "least_cost", "confident", "uncertain", "within")),
    *(f"bnn_vnnlib.adapters.{name}" for name in adapters.__all__ if name.startswith(("from_", "check_"))),
]


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_function_says_what_it_takes(path):
    home, name = path.rsplit(".", 1)
    function = getattr(importlib.import_module(home), name)
    known = list(inspect.signature(function).parameters)
    with pytest.raises(OptionError, match=f"^{name} has no option 'zzz'; it takes {', '.join(known)}$"):
        function(zzz=1)
    with pytest.raises(OptionError, match=f"^{name} has no option '{known[-1]}_'; did you mean '.*'\\?$"):
        function(**{f"{known[-1]}_": 1})
    if any(one.default is one.empty for one in inspect.signature(function).parameters.values()):
        with pytest.raises(OptionError, match=f"^{name}: missing a required"):
            function()


def test_given_are_those_that_say_something():
    how = Options("decision", margin=2.0, seed=None, method="auto")
    assert how.given == {"query": "decision", "margin": 2.0}
    assert how.without(("margin",)) == Options("decision")
    assert Options(**how.given) == how
