"""verify_batch: many boxes in one call, degenerate ones among them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper
from scipy import stats

from bnn_vnnlib import BnnVnnlibError, OptionError, Verdict, rules, verify_batch
from support.builders import from_nodes, model, outputs, random_model, random_samples, rows

QUERIES = ["probabilistic", "decision", "deterministic"]
SOON: dict[str, dict[str, float]] = {"probabilistic": {"tau_safe": 0.9, "tau_unsafe": 0.1}}
"""Thresholds that need no long search, of the query that has any."""


@pytest.fixture(scope="module")
def net():
    return random_model(3, [4, 8, 6, 3], spread=0.05, likelihood="categorical")


def boxes(net, count: int, seed: int = 0, radius: float = 0.05):
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(count, 4))
    labels = outputs(net, middle).argmax(-1)
    labels[rng.random(count) < 0.3] = rng.integers(0, 3)
    return middle - radius, middle + radius, labels


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("family", ["gaussian", "samples"])
def test_nothing_depends_on_the_order_or_the_size_of_the_batch(net, query, family):
    if family == "samples":
        net = random_samples(4, [4, 8, 3], 6, spread=0.3, likelihood="categorical")
    low, high, labels = boxes(net, 30)
    whole = verify_batch(net, low, high, labels, query=query, restarts=3)
    order = np.random.default_rng(1).permutation(30)
    shuffled = verify_batch(net, low[order], high[order], labels[order], query=query, restarts=3)
    parts = [
        verify_batch(net, low[i : i + 7], high[i : i + 7], labels[i : i + 7], query=query, restarts=3)
        for i in range(0, 30, 7)
    ]
    for name in ("lower", "upper", "points", "row_lower", "row_upper"):
        full = getattr(whole, name)
        if full is None:
            continue
        np.testing.assert_allclose(getattr(shuffled, name), full[order], atol=1e-6, err_msg=name)
        np.testing.assert_allclose(
            np.concatenate([getattr(part, name) for part in parts]), full, atol=1e-6, err_msg=name
        )
    assert (shuffled.verdicts == whole.verdicts[order]).all()
    assert (np.concatenate([part.verdicts for part in parts]) == whole.verdicts).all()
    assert len(set(whole.verdicts)) > 1  # the question is not an empty one


def test_the_attack_is_the_same_for_every_neighbourhood(monkeypatch):
    """Deep and wide enough that random starts matter: once, every item drew its own."""
    monkeypatch.setattr("bnn_vnnlib.methods.deterministic.MAX_BOXES", 4)
    net = random_model(1, [6, 24, 24, 3], spread=0.3)
    low = np.random.default_rng(0).uniform(-1, 1, (60, 6))
    labels = outputs(net, low + 0.25).argmax(-1)
    whole = verify_batch(net, low, low + 0.5, labels, restarts=3, method="interval", query="deterministic")
    for i in (0, 17, 59):
        alone = verify_batch(
            net, low[[i]], low[[i]] + 0.5, labels[[i]], restarts=3, method="interval", query="deterministic"
        )
        np.testing.assert_allclose(alone.points[0], whole.points[i], atol=1e-12)


@pytest.mark.parametrize("query", QUERIES)
def test_labels_are_the_same_as_their_rows_in_full(net, query):
    low, high, labels = boxes(net, 8)
    cases = [
        [rows(np.eye(3)[label] - np.eye(3)[j], [0.0]) for j in range(3) if j != label] for label in labels
    ]  # fmt: skip
    by_label = verify_batch(net, low, high, labels, query=query, **SOON.get(query, {}))
    by_rows = verify_batch(net, low, high, properties=cases, query=query, **SOON.get(query, {}))
    np.testing.assert_allclose(by_label.lower, by_rows.lower, atol=1e-9)
    np.testing.assert_allclose(by_label.upper, by_rows.upper, atol=1e-9)
    assert (by_label.verdicts == by_rows.verdicts).all()


@pytest.mark.parametrize("query", QUERIES)
def test_a_label_of_minus_one_skips_the_box(net, query):
    low, high, labels = boxes(net, 6)
    some = labels.copy()
    some[[1, 4]] = -1
    found, all_ = (
        verify_batch(net, low, high, chosen, query=query, **SOON.get(query, {})) for chosen in (some, labels)
    )
    assert np.isnan(found.lower[[1, 4]]).all()
    assert np.isnan(found.upper[[1, 4]]).all()
    assert (found.verdicts[[1, 4]] == "unknown").all()
    kept = some >= 0
    np.testing.assert_allclose(found.lower[kept], all_.lower[kept], atol=1e-9)
    np.testing.assert_allclose(found.points[kept], all_.points[kept], atol=1e-9)


@pytest.mark.parametrize("query", QUERIES)
def test_all_boxes_skipped_and_no_boxes_at_all(net, query):
    low, high, labels = boxes(net, 4)
    skipped = verify_batch(net, low, high, np.full(4, -1), query=query)
    assert np.isnan(skipped.lower).all()
    assert skipped.lower.shape == ((4, 3) if query == "decision" else (4,))
    assert (skipped.verdicts == "unknown").all()
    assert all(isinstance(verdict, Verdict) for verdict in skipped.verdicts)
    empty = np.zeros((0, 4))
    for choice in ({"labels": labels[:0]}, {"properties": [[rows([1, 0, 0], 0.0)]]}):
        nothing = verify_batch(net, empty, empty, query=query, **choice)
        assert len(nothing.lower) == len(nothing.upper) == len(nothing.verdicts) == len(nothing.points) == 0


@pytest.mark.parametrize("query", QUERIES)
def test_properties_without_cases_or_without_rows(net, query):
    """No case: nothing violates. A case without rows: everything does. And both beside an ordinary one."""
    low, high, _ = boxes(net, 3)
    nothing = rows(np.zeros((0, 3)), [])
    ordinary = rows([1, 0, 0], -100.0)
    for cases, word in (([], "unsat"), ([nothing], "sat"), ([nothing, ordinary], "sat"), ([ordinary, nothing], "sat")):
        found = verify_batch(net, low, high, properties=[cases], query=query)
        assert (found.verdicts == word).all()
        if query == "probabilistic":
            assert (found.lower >= 1 - 1e-11).all() if word == "unsat" else (found.upper <= 1e-11).all()
    mixed = verify_batch(net, low, high, properties=[[], [nothing], [ordinary]], query=query)
    assert mixed.verdicts[:2].tolist() == ["unsat", "sat"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lower": [[np.nan, 0, 0, 0]]}, "finite"),
        ({"upper": [[np.inf, 1, 1, 1]]}, "finite"),
        ({"lower": [[2, 0, 0, 0]]}, "box 0 is empty"),
        ({"lower": [[0, 0, 0]]}, "shape"),
        ({"lower": [0, 0, 0, 0]}, "shape"),
        ({"labels": [3]}, "-1"),
        ({"labels": [-2]}, "-1"),
        ({"labels": [0.5]}, "integers"),
        ({"labels": [[0]]}, "integers"),
        ({"labels": None}, "either"),
        ({"properties": [[rows([1, 0, 0], 0.0)]]}, "either"),
        ({"labels": None, "properties": []}, "empty"),
        ({"labels": None, "properties": [[rows([1, 0], 0.0)]]}, "A (R, 3)"),
        ({"labels": None, "properties": [[rows([1, 0, 0], 0.0)]] * 2}, "2 properties"),
        ({"labels": None, "properties": [[rows([np.nan, 0, 0], 0.0)]]}, "NaN"),
        ({"labels": None, "properties": [[rows([np.inf, 0, 0], 0.0)]]}, "infinite"),
        ({"labels": None, "properties": [[rows([1, 0, 0], np.nan)]]}, "NaN"),
        ({"labels": None, "properties": [[rows([[1, 0, 0], [0, 1, 0]], [np.inf, 0.0])]]}, "infinite"),
        ({"query": "maybe"}, "maybe"),
        ({"method": "magic"}, "magic"),
        ({"boxes": "round"}, "round"),
        ({"search": "float16"}, "float16"),
        ({"margin": -1.0}, "margin"),
        ({"margin": np.nan}, "margin"),
        ({"num_boxes": 3}, "sampled"),
        ({"boxes": "sampled", "num_boxes": 0}, "positive"),
        ({"tau_safe": 0.5, "tau_unsafe": 0.6}, "tau_unsafe"),
        ({"tau_safe": np.nan}, "tau_safe"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_arguments_are_refused_in_one_sentence(net, change, word):
    given = {"lower": [[0, 0, 0, 0]], "upper": [[1, 1, 1, 1]], "labels": [0]} | change
    with pytest.raises(OptionError) as caught:
        verify_batch(net, **given)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_need_two_classes():
    single = random_model(0, [2, 3, 1])
    with pytest.raises(BnnVnnlibError, match="two outputs"):
        verify_batch(single, [[0, 0]], [[1, 1]], labels=[0])


def test_without_variance_p_safe_is_zero_or_one():
    net = random_model(0, [2, 3, 2], spread=0.0)
    x = np.array([[0.3, -0.2], [1.0, 1.0]])
    y = outputs(net, x)
    for shift, safe in ((0.1, 1.0), (-0.1, 0.0)):  # V: y0 - y1 <= b with b below or above the truth
        cases = [[rows([1, -1], one[0] - one[1] - shift)] for one in y]
        for boxes_ in ("mean", "sampled"):
            found = verify_batch(net, x, x, properties=cases, query="probabilistic", boxes=boxes_)
            np.testing.assert_allclose(found.lower, safe, atol=1e-11)
            np.testing.assert_allclose(found.upper, safe, atol=1e-11)
            assert (found.verdicts == ("unsat" if safe else "sat")).all()


def test_weights_that_no_row_can_see_and_weights_of_all_sizes():
    """Variances of 0, of 1e-320 and of 1e6 beside each other; the row sees the first output only."""
    variance = np.array([[0.0, 1e-320], [1e6, 1.0]])
    net = model([([[1.0, 1.0], [1.0, 1.0]], [0.0, 0.0])], [(variance, None)])
    found = verify_batch(net, [[1.0, 1.0]], [[1.0, 1.0]], properties=[[rows([1, 0], 1.0)]], query="probabilistic")
    assert found.lower[0] >= 1 - 1e-11  # y0 = 2, almost surely
    found = verify_batch(net, [[1.0, 1.0]], [[1.0, 1.0]], properties=[[rows([0, 1], 2.0)]], query="probabilistic")
    assert found.lower[0] <= 0.5 <= found.upper[0]


@pytest.mark.parametrize("margin", [1e-300, 1e-9, 38.0, 1e6, 1e300])
@pytest.mark.parametrize("query", ["probabilistic", "decision"])
def test_extreme_margins(margin, query):
    net = model([([[0.0]], [1.0])], [([[1.0]], None)], likelihood="gaussian")
    found = verify_batch(net, [[1.0]], [[1.0]], properties=[[rows([1], 0.0)]], margin=margin, query=query)
    truth = stats.norm.cdf(1.0) if query == "probabilistic" else 1.0
    assert np.ravel(found.lower)[0] <= truth + 1e-9
    assert np.ravel(found.upper)[0] >= truth - 1e-9


def test_ties_are_violations():
    net = model([([[1.0], [1.0]], [0.0, 0.0])], [([[0.0], [0.0]], None)])
    found = verify_batch(net, [[1.0]], [[1.0]], labels=[0])
    assert (found.lower[0], found.upper[0]) == (0.0, 0.0)
    strict = verify_batch(net, [[1.0]], [[1.0]], properties=[[rows([1, -1], 0.0, True)]])
    assert (strict.lower[0], strict.upper[0]) == (1.0, 1.0)


@pytest.mark.parametrize("query", QUERIES)
def test_out_of_time_leaves_valid_bounds(net, query):
    low, high, labels = boxes(net, 50)
    found = verify_batch(net, low, high, labels, query=query, timeout=1e-9)
    assert set(found.verdicts) <= {Verdict.TIMEOUT, Verdict.SAT, Verdict.UNSAT}
    assert all(isinstance(verdict, Verdict) for verdict in found.verdicts)
    assert (found.lower <= found.upper).all()
    if query != "decision":
        assert ((found.lower >= 0) & (found.upper <= 1)).all()


def small(**options):
    return random_model(5, [4, 3, 3], spread=0.02, **options)


@pytest.mark.parametrize("query", QUERIES)
def test_one_property_for_all_boxes_needs_no_list_around_it(query):
    """As `rules` documents it; cases of tuples, lists or tensors; three cases, which look like the parts of one."""
    net = small(likelihood="categorical")
    low, high, _ = boxes(net, 2)
    for cases in (
        rules.most_likely(3, 1),
        [rows([1, 0, 0], 0.3)],
        [rows(np.zeros((0, 3)), [])],
        rules.uncertain(3, 0.6),
    ):
        expected = verify_batch(net, low, high, properties=[cases], query=query)
        plain = [[part.tolist() for part in case] for case in cases if len(case[1])] or cases
        for given in (cases, tuple(cases), plain, [tuple(torch.tensor(p) for p in case) for case in cases]):
            found = verify_batch(net, low, high, properties=given, query=query)
            np.testing.assert_array_equal(found.lower, expected.lower)
            np.testing.assert_array_equal(found.upper, expected.upper)
            assert (found.verdicts == expected.verdicts).all()


def test_neither_labels_nor_properties_are_bounds_on_the_decision_alone():
    net = small(likelihood="categorical")
    low, high, labels = boxes(net, 3)
    found = verify_batch(net, low, high, query="decision")
    asked = verify_batch(net, low, high, labels, query="decision")
    assert (found.lower <= asked.upper + 1e-9).all()
    assert (found.lower > 0).all()
    assert (found.upper < 1).all()
    assert found.row_lower is None
    assert found.row_upper is None
    assert (found.verdicts == Verdict.UNKNOWN).all()
    assert len(verify_batch(net, low[:0], high[:0], query="decision").lower) == 0


def test_boxes_may_have_the_shape_of_the_input():
    """Here (1, 2, 2, 3); an order of axes that is not the model's is refused, because it mixes up the numbers."""
    weights = np.random.default_rng(0).normal(size=(12, 3))
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    net = from_nodes(nodes, {"w": weights}, [1, 2, 2, 3], {"w": np.full((12, 3), 1e-4)})
    low = np.random.default_rng(1).normal(size=(4, 2, 2, 3))
    flat = verify_batch(net, low.reshape(4, 12), low.reshape(4, 12) + 0.01, [0, 1, 2, 0])
    for shape in ((4, 2, 2, 3), (4, 1, 2, 2, 3)):
        found = verify_batch(net, low.reshape(shape), low.reshape(shape) + 0.01, [0, 1, 2, 0])
        np.testing.assert_array_equal(found.lower, flat.lower)
    for other in (low.transpose(0, 3, 1, 2), low.reshape(4, 4, 3)):
        with pytest.raises(OptionError, match="order"):
            verify_batch(net, other, other + 0.01, [0, 1, 2, 0])


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"labels": [0.5, 1.0]}, "integers"),
        ({"labels": [np.nan, 1.0]}, "integers"),
        ({"labels": ["0", "1"]}, "integers"),
        ({"properties": [([1.0, 0.0, 0.0], [0.0], [False])]}, r"A \(R, 3\)"),
        ({"properties": [[([[1.0, 0.0, 0.0]], [0.0])]]}, r"A \(R, 3\)"),
        ({"properties": [0.5]}, "list of cases"),
        ({"properties": 3}, "list of cases"),
        ({"query": "probabilistic"}, "either labels or properties"),
    ],
)
def test_what_is_neither_labels_nor_a_property_is_refused_in_one_message(wrong, word):
    net = small(likelihood="categorical")
    low, high, _ = boxes(net, 2)
    with pytest.raises(OptionError, match=word):
        verify_batch(net, low, high, **wrong)


def test_labels_may_be_whole_numbers_of_any_type():
    net = small()
    low, high, labels = boxes(net, 3)
    expected = verify_batch(net, low, high, labels)
    for given in (labels.astype(np.float32), labels.astype(np.uint8), torch.tensor(labels)):
        np.testing.assert_array_equal(verify_batch(net, low, high, given).lower, expected.lower)
