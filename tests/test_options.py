"""Option, comment, default: in this order."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.question.options import Question, settle
from bnn_vnnlib.result import Query


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
    assert settle(comment, **options) == Question(*expected)


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
        ({}, {"tau_safe": 1.5}, "^tau_safe is a probability"),  # the property's file is not to blame
        ({}, {"tau_unsafe": -0.1}, "tau_unsafe is a probability"),
        ({}, {"tau_safe": float("nan")}, "tau_safe is a probability"),
        ({"tau_unsafe": "0.5"}, {"tau_safe": 0.4}, r"tau_unsafe \(0.5\) must not exceed tau_safe \(0.4\)"),
    ],
)
def test_what_is_no_question_is_refused(comment, options, message):
    with pytest.raises(OptionError, match=message):
        settle(comment, **options, path=Path("f.vnnlib"))
