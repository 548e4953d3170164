"""The caller's process: arithmetic is checked in every thread that computes, modes are put aside and put back."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import states
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bnn_vnnlib import OptionError, read_model, verify, verify_batch
from bnn_vnnlib.system import environment
from bnn_vnnlib.system.environment import check_arithmetic, plain_state
from support.builders import model, random_model, rows

ROOT = Path(__file__).resolve().parents[1]

PROPERTY = """
(declare-const X_0 Real) (declare-const Y_0 Real)
(assert (>= X_0 1e300)) (assert (<= X_0 1.1e300)) (assert (>= Y_0 1e-6))
"""

BEGINNING = f"""
import ctypes, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]

libm = ctypes.CDLL("libm.so.6")

class State(ctypes.Structure):
    _fields_ = [("x87", ctypes.c_uint8 * 28), ("mxcsr", ctypes.c_uint32)]

def set_bits(bits):
    state = State()
    libm.fegetenv(ctypes.byref(state))
    state.mxcsr = state.mxcsr & ~0xE040 | bits
    libm.fesetenv(ctypes.byref(state))

DAZ, FTZ, DOWN, UP, ZERO = 0x40, 0x8000, 0x2000, 0x4000, 0x6000
"""

ASKING = f"""
from support.builders import model
from bnn_vnnlib import OptionError, attach, verify, verify_batch
from bnn_vnnlib.model import model_from_proto, sample
from bnn_vnnlib.vnnlib import parse_property
import numpy as np
import torch

net = model([([[2e-308]], [0.0]), ([[100.0]], [0.0]), ([[1.0]], [0.0])])
prop = parse_property({PROPERTY!r})
calls = [
    lambda: verify(net, prop).verdict,
    lambda: verify_batch(net, [[1e300]], [[1.1e300]], properties=[[([[-1.0]], [-1e-6], [False])]]).verdicts[0],
    lambda: parse_property({PROPERTY!r}) and "sat",
    lambda: model([([[1.0]], [0.0])]) and "sat",
]

def answers():
    found = []
    for call in calls:
        try:
            found.append(str(call()))
        except OptionError as error:
            found.append(str(error))
    return found

def all_are(word):
    found = answers()
    assert all(word in answer for answer in found), (word, found)
"""

on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="sets the bits of an x86 processor through glibc"
)


def run(program: str, threads: int = 1) -> None:
    """In a process of its own; what it sets there cannot spoil other tests."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program], env={**os.environ, **counts}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@on_x86
def test_flushing_to_zero_is_refused_by_every_call_and_the_answers_are_right_again_without() -> None:
    run(f"""{ASKING}
all_are("sat")
assert torch.set_flush_denormal(True)
all_are("torch.set_flush_denormal(False)")
torch.set_flush_denormal(False)
all_are("sat")
for bits in (DAZ, FTZ):
    set_bits(bits)
    all_are("flushes subnormal numbers")
for bits in (DOWN, UP, ZERO):
    set_bits(bits)
    all_are("FE_TONEAREST")
set_bits(0)
for mode in (0x400, 0x800, 0xC00):
    assert libm.fesetround(mode) == 0
    all_are("FE_TONEAREST")
libm.fesetround(0)
all_are("sat")
""")


@on_x86
@pytest.mark.parametrize("bits", ["DAZ", "FTZ", "UP", "DOWN"])
def test_worker_threads_of_torch_that_were_started_in_such_a_state_are_found(bits: str) -> None:
    """The thread itself is set right again; its pool, which begins with the first large operation, is not."""
    run(f"""{ASKING}
torch.set_num_threads(2)
set_bits({bits})
torch.ones(200_000).mul(2)
set_bits(0)
all_are("call torch.set_num_threads(1)")
torch.set_num_threads(1)
all_are("sat")
""")


@on_x86
@pytest.mark.parametrize("bits", ["DAZ | FTZ", "UP", "ZERO"])
def test_worker_threads_of_numpy_that_were_started_in_such_a_state_are_found(bits: str) -> None:
    run(
        f"""
set_bits({bits})
import numpy
set_bits(0)
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.vnnlib import parse_property
for _ in range(2):
    try:
        parse_property("")
    except OptionError as error:
        assert "OPENBLAS_NUM_THREADS=1" in str(error), error
    else:
        raise AssertionError("not found")
""",
        threads=2,
    )


@on_x86
def test_a_result_is_withheld_if_the_state_changes_while_it_is_computed() -> None:
    with pytest.raises(OptionError, match="flushes subnormal"), flushing_after(), plain_state():
        assert torch.set_flush_denormal(True)


@contextmanager
def flushing_after() -> Iterator[None]:
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def test_single_precision_that_is_converted_to_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_arithmetic()
    monkeypatch.setattr(environment, "_DOUBLE", np.zeros(2))
    with pytest.raises(OptionError, match="flushes subnormal"):
        check_arithmetic()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernels_that_bounds_are_computed_with_keep_subnormal_numbers(threads: int) -> None:
    """Products of integers times 2^-1000 and 2^-70 are exact, whatever the order of their sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(0)
        for m, k, n in ((1, 2, 1), (3, 17, 5), (64, 300, 1), (257, 300, 64)):
            a, b = (torch.randint(-3, 4, s, generator=generator).double() for s in ((m, k), (k, n)))
            exact = (a.numpy() @ b.numpy()) * 2.0**-1070
            low, little = a * 2.0**-1000, b * 2.0**-70
            found = [low @ little, torch.einsum("ij,jk->ik", low, little), (low[None] @ little[None])[0]]
            for product in (*found, low.numpy() @ little.numpy(), (a * 2.0**-1074).numpy() @ (b * 16.0).numpy()):
                np.testing.assert_array_equal(np.asarray(product), exact)
        x = torch.randint(-3, 4, (2, 3, 20, 20), generator=generator).double()
        w = torch.randint(-3, 4, (4, 3, 3, 3), generator=generator).double()
        found = torch.nn.functional.conv2d(x * 2.0**-1000, w * 2.0**-70)
        assert torch.equal(found, torch.nn.functional.conv2d(x, w) * 2.0**-1070)
        tiny = torch.full((40_000,), 2.0**-1070, dtype=torch.float64)
        assert tiny.sum() == 40_000 * 2.0**-1070
        for function in (torch.relu, torch.tanh, torch.expm1, torch.log1p, torch.atan, torch.sin):
            assert (function(tiny) == tiny).all()
        assert (torch.exp(torch.full((40_000,), -740.0, dtype=torch.float64)) > 0).all()
    finally:
        torch.set_num_threads(before)


ASKED = {name: ask for name, ask in states.QUESTIONS.items() if name not in ("verify median", "interval")}
CHANGED = [
    "torch.no_grad", "torch.inference_mode", "device meta", "default device meta", "default dtype float16",
    "default dtype float64", "autocast bfloat16", "deterministic algorithms", "anomaly mode", "np.errstate raise",
    "scipy.special raise", "warnings as errors", "decimal of 2 digits",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("states")
    states.files(place)
    return place


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, states.Answer | str]:
    return states.answers(folder, ASKED)


@pytest.mark.parametrize("state", CHANGED)
def test_every_question_has_the_same_answer_in_every_state_which_is_left_as_it_was(
    state: str, folder: Path, expected: dict[str, states.Answer | str]
) -> None:
    with states.STATES[state]():
        before = states.snapshot()
        found = states.answers(folder, ASKED)
        after = states.snapshot()
    for name, answer in expected.items():
        assert not isinstance(answer, str), answer
        assert states.equal(found[name], answer), (name, found[name])
    assert [name for name in before if before[name] != after[name]] == []


def test_boxes_and_labels_may_be_any_kind_of_array() -> None:
    net = random_model(1, [3, 4, 2], spread=0.02)
    low = np.random.default_rng(0).uniform(-1, 1, (4, 3))
    labels = np.array([0, 1, 0, 1])
    expected_ = verify_batch(net, low, low + 0.01, labels)
    frozen = low.copy()
    frozen.setflags(write=False)
    with torch.inference_mode():
        inference = torch.tensor(low)
    given = (
        (frozen, frozen + 0.01, labels[::-1][::-1]),
        (np.asfortranarray(low), low[:, ::-1][:, ::-1] + 0.01, torch.tensor(labels)),
        (torch.tensor(low, requires_grad=True), (torch.tensor(low) + 0.01).requires_grad_(), labels.tolist()),
        (inference, inference + 0.01, labels.astype(np.int8)),
        (low.tolist(), (low + 0.01).tolist(), labels.astype(np.float32)),
    )
    for lower, upper, label in given:
        found = verify_batch(net, lower, upper, label)
        np.testing.assert_array_equal(found.lower, expected_.lower)
        np.testing.assert_array_equal(found.upper, expected_.upper)


def test_inside_a_transform_a_trace_or_a_fake_mode_a_call_is_refused_by_name() -> None:
    net = model([([[1.0]], [0.0])])

    def call(x: torch.Tensor) -> torch.Tensor:
        verify_batch(net, [[0.0]], [[1.0]], properties=[[rows([1.0], -1.0)]])
        return x.sum()

    one = torch.ones(1)
    for transformed in (torch.func.grad(call), torch.vmap(call), torch.func.functionalize(call)):
        with pytest.raises(OptionError, match=r"torch\.func"):
            transformed(one[None] if transformed is not torch.func.grad else one)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it goes out of use
        with pytest.raises(OptionError, match="trace"):
            torch.jit.trace(call, (one,))
    with pytest.raises(OptionError, match="FakeTensorMode"), FakeTensorMode():
        call(one)
    assert call(one) == 1


def test_within_another_one_the_state_is_checked_once_and_errors_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[bool] = []
    monkeypatch.setattr(environment, "check_arithmetic", lambda: checks.append(True))

    def interrupted() -> None:
        with plain_state(), plain_state():
            assert torch.is_grad_enabled()
            raise KeyboardInterrupt

    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                interrupted()
            assert not torch.is_grad_enabled()
        found: list[bool] = []
        with plain_state():
            thread = threading.Thread(target=lambda: found.append(environment._THREAD.inside))
            thread.start()
            thread.join()
        assert found == [False]
    assert len(checks) == 3


def test_every_tensor_that_holds_numbers_names_its_type() -> None:
    """So that torch's default type, which all threads share, need not be changed."""
    makers = {"zeros", "ones", "full", "empty", "rand", "randn", "linspace", "logspace", "eye", "scalar_tensor"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "bnn_vnnlib").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in makers
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        and "dtype" not in {keyword.arg for keyword in node.keywords}
    ]  # fmt: skip
    # the two of the check itself: no numbers in the first, and 1 in the second
    assert [place for place in found if "environment.py" not in place] == []


def test_a_decision_loads_no_computer_algebra(tmp_path: Path) -> None:
    """torch.broadcast_shapes does, which takes more than a second and adds filters of warnings."""
    run(f"""
sys.path.insert(0, {str(ROOT / "scripts" / "measure")!r})
from pathlib import Path
import states
states.files(Path({str(tmp_path)!r}))
assert len(states.answers(Path({str(tmp_path)!r}), {{"q": states.QUESTIONS["diagonal decision"]}})["q"]) > 4
assert "sympy" not in sys.modules
""")


def test_the_example_of_a_file_is_decided_and_refused(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    weights = {"a": 2e-308, "b": 100.0, "c": 1.0}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["z"]),
        helper.make_node("Relu", ["z"], ["r"]), helper.make_node("MatMul", ["r", "c"], ["y"]),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 1]) for name in "xy"]
    holders = [numpy_helper.from_array(np.array([[value]]), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], holders)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "tiny.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "p.vnnlib").write_text(PROPERTY)
    from bnn_vnnlib import read_property

    net, prop = read_model(tmp_path / "tiny.onnx"), read_property(tmp_path / "p.vnnlib")
    assert [verify(net, prop).verdict for _ in range(2)] == ["sat", "sat"]
    with flushing_after():
        if torch.set_flush_denormal(True):
            for call in (lambda: read_model(tmp_path / "tiny.onnx"), lambda: verify(net, prop)):
                with pytest.raises(OptionError, match="set_flush_denormal"):
                    call()


def test_the_caller_keeps_his_generator_and_his_number_of_threads(folder: Path) -> None:
    from bnn_vnnlib.posteriors.fit import Data, fit
    from bnn_vnnlib.sweeps import Source, make_inputs, radii
    from bnn_vnnlib.sweeps.radius import Radii

    net = random_model(0, [2, 3, 1])
    rng = np.random.default_rng(0)
    before = torch.get_rng_state(), torch.get_num_threads()
    with suppress(OptionError):  # where the library is not installed
        fit("ivon", net.network, ["W0"], Data(rng.normal(size=(8, 2)), rng.normal(size=(8, 1))), "gaussian", epochs=1)
    assert torch.equal(torch.get_rng_state(), before[0])
    inputs = make_inputs({"x": rng.uniform(-1, 1, (1, 2))})
    radii(Source(folder / "diagonal.onnx"), inputs, Radii(0.1, 0.1), threads=before[1] + 1)
    assert torch.get_num_threads() == before[1]


ENTRANCES = {
    "bnn_vnnlib": "verify verify_batch read_model attach",
    "bnn_vnnlib.vnnlib": "parse_property",
    "bnn_vnnlib.model": "model_from_proto read_posterior_npz replay sample from_standard_deviations from_factor "
    "from_low_rank from_covariance",
    "bnn_vnnlib.model.recovery": "recover",
    "bnn_vnnlib.posteriors.convert": "convert",
    "bnn_vnnlib.posteriors.fit": "fit",
    "bnn_vnnlib.posteriors.merge": "merge",
    "bnn_vnnlib.posteriors.parts": "read_parts write_drawn write_mean",
    "bnn_vnnlib.posteriors.simplify": "simplified",
    "bnn_vnnlib.check_witness": "check_witness",
    "bnn_vnnlib.sweeps": "sweep radii uncertainty make_inputs make_table",
    "bnn_vnnlib.jobs.chunks": "_run",
    "bnn_vnnlib.adapters": "from_torch from_laplace from_ivon from_swag from_pyro_guide from_numpyro_guide from_tfp "
    "from_samples from_ensemble check_predictive check_samples",
}


@pytest.mark.parametrize(("module", "names"), ENTRANCES.items())
def test_every_public_function_checks_before_it_looks_at_its_arguments(
    module: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OptionError("checked")

    monkeypatch.setattr(environment, "check_arithmetic", refuse)
    for name in names.split():
        function = getattr(import_module(module), name)
        needed = [one for one in signature(function).parameters.values() if one.default is one.empty]
        with pytest.raises(OptionError, match="checked"):
            function(
                *(None for one in needed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)),
                **{one.name: None for one in needed if one.kind is one.KEYWORD_ONLY},
            )


def test_an_adapter_takes_over_the_same_posterior_in_every_state() -> None:
    from bnn_vnnlib.adapters import from_ensemble

    torch.manual_seed(0)
    members = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)) for _ in range(2)]
    x = torch.randn(4, 2)
    expected_ = from_ensemble(members, x, likelihood=None)
    for state in ("autocast bfloat16", "np.errstate raise", "torch.inference_mode"):
        with states.STATES[state]():
            found = from_ensemble(members, x, likelihood=None)
        assert found.agreement == expected_.agreement
        assert found.proto.SerializeToString() == expected_.proto.SerializeToString()
