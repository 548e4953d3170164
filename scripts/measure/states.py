"""What becomes of bounds when the caller has changed the state of torch, numpy or Python.

    python scripts/measure/states.py [--state NAME]

Each state has a process of its own. In it the answers are computed in the changed state first, so that whatever is
kept from call to call is made there, and then in the plain state. A cell says `same` (bit for bit as a process that
was never in another state), `other`, or the error; the last column, what the calls left changed.
"""

from __future__ import annotations

import decimal
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from onnx import ModelProto, TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table
from scipy import special, stats  # noqa: F401  (importing them adds filters of warnings)

from bnn_vnnlib import Model, Property, attach, read_model, read_property, verify, verify_batch
from bnn_vnnlib.model import (
    Component,
    GaussianDiagonal,
    GaussianKron,
    GaussianLowRank,
    KronLayer,
    Mixture,
    Posterior,
    WeightSamples,
    from_covariance,
)

Answer = tuple[Any, ...]
State = Callable[[], AbstractContextManager[Any]]

SIZES = (2, 4, 3)
LABELS = np.array([0, 0, 1, 2, 1, -1])
NAMES = ("W0", "b0", "W1", "b1")
SHAPES = ((4, 2), (4,), (3, 4), (3,))


def network() -> ModelProto:
    """2 - 4 relu - 3 in float32."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "W0", "b0"], ["z"], transB=1),
        helper.make_node("Relu", ["z"], ["a"]),
        helper.make_node("Gemm", ["a", "W1", "b1"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "states",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in zip(NAMES, SHAPES, strict=True)
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def posteriors() -> dict[str, Posterior]:
    """One of each family, over all weights."""
    rng = np.random.default_rng(1)
    shapes = dict(zip(NAMES, SHAPES, strict=True))
    size = sum(int(np.prod(shape)) for shape in SHAPES)
    root = 0.02 * rng.normal(size=(size, 5))
    diagonal = GaussianDiagonal({name: np.full(shape, 0.0025) for name, shape in shapes.items()})
    layers = []
    for weight, bias in (("W0", "b0"), ("W1", "b1")):
        p, q = shapes[weight]
        left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (p, q + 1))
        layers.append(KronLayer(weight, left, right, 0.0025 * rng.uniform(0, 1, (p, q + 1)), bias))
    means = [{name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(2)]
    return {
        "diagonal": diagonal,
        "lowrank": GaussianLowRank(
            {name: 0.02 * rng.normal(size=(2, *shape)) for name, shape in shapes.items()}, diagonal.variances
        ),
        "full": from_covariance(root @ root.T, shapes),
        "kron": GaussianKron(tuple(layers)),
        "mixture": Mixture(tuple(Component(mean, diagonal) for mean in means), np.array([0.25, 0.75])),
        "samples": WeightSamples(
            {name: rng.normal(size=(5, *shape)) for name, shape in shapes.items()}, np.full(5, 0.2)
        ),
    }


PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real)
(declare-const Y_0 Real) (declare-const Y_1 Real) (declare-const Y_2 Real)
(assert (>= X_0 0.1)) (assert (<= X_0 0.2)) (assert (>= X_1 -0.1)) (assert (<= X_1 0.1))
(assert (or (and (<= Y_0 Y_1)) (and (<= Y_0 Y_2))))
"""


def files(folder: Path) -> None:
    """The models and the property that are asked about; made in the plain state."""
    for name, posterior in posteriors().items():
        (folder / f"{name}.onnx").write_bytes(
            attach(network(), posterior, likelihood="categorical").SerializeToString()
        )
    (folder / "regression.onnx").write_bytes(
        attach(network(), posteriors()["diagonal"], likelihood="gaussian").SerializeToString()
    )
    (folder / "p.vnnlib").write_text(PROPERTY)


def _verified(name: str, **options: Any) -> Callable[[Path], Answer]:
    def ask(folder: Path) -> Answer:
        found = verify(_model(folder, name), _property(folder), **options)
        bounds = found.p_safe or found.decision
        witness = found.witness
        return (
            found.verdict, *(() if bounds is None else (bounds.lower, bounds.upper)),
            *(() if witness is None else (witness.x, witness.y)),
        )  # fmt: skip

    return ask


def _batch(name: str, **options: Any) -> Callable[[Path], Answer]:
    def ask(folder: Path) -> Answer:
        middle = np.random.default_rng(2).uniform(-1, 1, (6, 2))
        found = verify_batch(_model(folder, name), middle - 0.01, middle + 0.01, LABELS, **options)
        rows = () if found.row_lower is None else (found.row_lower, found.row_upper)
        return (*map(str, found.verdicts), found.lower, found.upper, found.points, *rows)

    return ask


def _model(folder: Path, name: str) -> Model:
    return read_model(folder / f"{name}.onnx")


def _property(folder: Path) -> Property:
    return read_property(folder / "p.vnnlib")


def _sweep(folder: Path) -> Answer:
    from bnn_vnnlib.sweeps import Source, make_inputs, radii
    from bnn_vnnlib.sweeps.radius import Radii

    x = np.random.default_rng(3).uniform(-1, 1, (2, 2))
    found = radii(Source(folder / "diagonal.onnx"), make_inputs({"x": x}), Radii(0.1, 0.05), threshold=0.8)
    return (found.robust, found.unrobust, found.columns["label"])


def _replayed(folder: Path) -> Answer:
    from bnn_vnnlib.model import replay, sample

    model = _model(folder, "diagonal")
    if model.posterior is None:
        raise ValueError("the file has a posterior")
    drawn = sample(model.network, model.posterior, 2, torch.Generator().manual_seed(0))
    return (replay(model, np.array([[0.1, 0.2]])), *(np.asarray(values) for values in drawn.values()))


QUESTIONS: dict[str, Callable[[Path], Answer]] = {
    **{
        f"verify {query}": _verified("diagonal", query=query)
        for query in ("probabilistic", "decision", "deterministic")
    },
    "verify median": _verified("regression", query="decision", rule="median"),
    **{
        f"{family} {query}": _batch(family, query=query)
        for family in ("diagonal", "lowrank", "full", "kron", "mixture", "samples")
        for query in ("probabilistic", "decision")
    },
    "interval": _batch("diagonal", method="interval"),
    "sampled boxes": _batch("diagonal", boxes="sampled"),
    "float32": _batch("diagonal", search="float32"),
    "radii": _sweep,
    "replay": _replayed,
}


@contextmanager
def _set(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextmanager
def _default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def _special_raises() -> Iterator[None]:
    with special.errstate(all="raise"):
        yield


@contextmanager
def _warnings_raise() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _dtype(dtype: torch.dtype) -> State:
    return lambda: _set(torch.get_default_dtype, torch.set_default_dtype, dtype)


STATES: dict[str, State] = {
    "plain": nullcontext,
    "torch.no_grad": torch.no_grad,
    "torch.inference_mode": torch.inference_mode,
    "set_grad_enabled(False)": lambda: _set(torch.is_grad_enabled, torch.set_grad_enabled, False),
    "device meta": lambda: torch.device("meta"),
    "default device meta": _default_device,
    "default dtype float16": _dtype(torch.float16),
    "default dtype bfloat16": _dtype(torch.bfloat16),
    "default dtype float64": _dtype(torch.float64),
    "autocast bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "deterministic algorithms": lambda: _set(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "anomaly mode": lambda: _set(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.clone(), lambda tensor: tensor
    ),
    "float32 products in bfloat16": lambda: _set(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "np.errstate raise": lambda: np.errstate(all="raise"),
    "np.errstate warn": lambda: np.errstate(all="warn"),
    "scipy.special raise": _special_raises,
    "warnings as errors": _warnings_raise,
    "decimal of 2 digits": lambda: decimal.localcontext(prec=2),
    "one thread": lambda: _set(torch.get_num_threads, torch.set_num_threads, 1),
    "four threads": lambda: _set(torch.get_num_threads, torch.set_num_threads, 4),
}


def snapshot() -> dict[str, Any]:
    """The state that a caller can see."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.empty(0).device,
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "torch threads": torch.get_num_threads(),
        "torch RNG": torch.get_rng_state().tolist() if torch.empty(0).device.type == "cpu" else None,
        "numpy RNG": str(np.random.get_state()),  # noqa: NPY002
        "random": random.getstate(),
        "errstate": np.geterr(),
        "special": special.geterr(),
        "warning filters": list(warnings.filters),
        "decimal": repr(decimal.getcontext().copy().prec),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "threads": {thread.name for thread in threading.enumerate()},
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": torch.backends.cudnn.enabled,
        "float32 products": torch.get_float32_matmul_precision(),
        "print options": str(np.get_printoptions()),
    }


def answers(folder: Path, questions: dict[str, Callable[[Path], Answer]] = QUESTIONS) -> dict[str, Answer | str]:
    """The answer to each question, or the error."""
    found: dict[str, Answer | str] = {}
    for name, ask in questions.items():
        try:
            found[name] = ask(folder)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def equal(one: Answer | str, other: Answer | str) -> bool:
    """Bit for bit."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(
        np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else bool(a == b)
        for a, b in zip(one, other, strict=True)
    )


def _tried(state: str, folder: str) -> tuple[dict[str, Answer | str], list[str], dict[str, Answer | str]]:
    """Answers in the state, what they left changed in it, answers afterwards."""
    with STATES[state]():
        before = snapshot()
        inside = answers(Path(folder))
        after = snapshot()
    return inside, [name for name in before if before[name] != after[name]], answers(Path(folder))


def main(state: str | None = None) -> None:
    """Print the table."""
    chosen = list(STATES) if state is None else ["plain", state]
    table = Table("state", "same", "other bounds", "errors", "afterwards other", "left changed")
    with tempfile.TemporaryDirectory() as folder:
        files(Path(folder))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
            expected = pool.submit(_tried, "plain", folder).result()[0]
            for name in chosen:
                inside, changed, afterwards = pool.submit(_tried, name, folder).result()
                same = [key for key in expected if equal(inside[key], expected[key])]
                errors = [key for key in inside if isinstance(inside[key], str)]
                other = [key for key in inside if key not in same and key not in errors]
                later = [key for key in expected if not equal(afterwards[key], expected[key])]
                table.add_row(
                    name, str(len(same)), ", ".join(other), "; ".join(f"{key}: {inside[key]}" for key in errors)[:300],
                    ", ".join(later), ", ".join(changed),
                )  # fmt: skip
    Console(width=240).print(table)


if __name__ == "__main__":
    typer.run(main)
