"""Small models, problems and reference computations for the tests of bounds on whole networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib import Model, Property, attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.methods import decision
from bnn_vnnlib.model import GaussianDiagonal, WeightSamples, model_from_proto, sample
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, from_cases
from bnn_vnnlib.question.property import Boxes, HalfSpaces
from bnn_vnnlib.system.clock import Deadline

Layer = tuple[ArrayLike, ArrayLike]
Case = tuple[np.ndarray, np.ndarray, np.ndarray]

OPERATORS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "leaky_relu": "LeakyRelu", "exp": "Exp"}


def model(
    layers: Sequence[Layer],
    variances: Sequence[Layer] | None = None,
    *,
    activation: str = "relu",
    end: Sequence[str] = (),
    likelihood: Any = None,
    samples: Sequence[Layer] | None = None,
    probabilities: ArrayLike | None = None,
    element: Any = np.float64,
) -> Model:
    """A dense network x -> W0 x + b0 -> activation -> ... -> y, read from ONNX.

    layers, variances: (W (out, in), b (out,)) of each layer, and the variances of the same shapes; samples: the same
    with a leading axis; end: further operators behind the last layer, such as "Softmax".
    """
    names = [(f"W{k}", f"b{k}") for k in range(len(layers))]
    shaped = [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in layers]
    tensors = dict(zip(sum(names, ()), sum(shaped, ()), strict=True))
    nodes, value = [], "x"
    for k in range(len(layers)):
        last = f"z{k}"
        nodes.append(helper.make_node("Gemm", [value, *names[k]], [last], name=last, transB=1))
        value = last
        if k + 1 < len(layers):
            value = f"a{k}"
            nodes.append(helper.make_node(OPERATORS[activation], [last], [value], name=value))
    shape = None
    for k, operator in enumerate(end):
        extra: list[str] = []
        if operator == "Reshape":
            shape = np.array([-1, len(shaped[-1][1])])
            extra = ["shape"]
        nodes.append(helper.make_node(operator, [value, *extra], [f"e{k}"], name=f"e{k}"))
        value = f"e{k}"
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(element))
    holders = [numpy_helper.from_array(tensor.astype(element), name) for name, tensor in tensors.items()]
    if shape is not None:
        holders.append(numpy_helper.from_array(shape, "shape"))
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info("x", kind, [1, shaped[0][0].shape[1]])],
        [helper.make_tensor_value_info(value, kind, None if "Squeeze" in end else [1, len(shaped[-1][1])])],
        holders,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    posterior: GaussianDiagonal | WeightSamples | None = None
    if variances is not None:
        posterior = GaussianDiagonal(_by_name(names, variances, 0))
    if samples is not None:
        drawn = _by_name(names, samples, 1)
        count = len(next(iter(drawn.values())))
        weights = np.full(count, 1 / count) if probabilities is None else np.asarray(probabilities, np.float64)
        posterior = WeightSamples(drawn, weights)
    return replace(model_from_proto(proto, likelihood=likelihood), posterior=posterior)


def _by_name(names: Sequence[tuple[str, str]], layers: Sequence[Layer], lead: int) -> dict[str, np.ndarray]:
    """Tensors by name; a layer may leave out its bias with None."""
    found = {}
    for (w, b), (weight, bias) in zip(names, layers, strict=True):
        found[w] = np.asarray(weight, np.float64)
        if bias is not None:
            found[b] = np.asarray(bias, np.float64)
    if lead and len({len(tensor) for tensor in found.values()}) > 1:
        raise ValueError("different numbers of samples")
    return found


def random_model(seed: int, widths: Sequence[int], *, spread: float = 0.1, **settings: Any) -> Model:
    """A random dense network with standard deviations of about `spread` times 1 / sqrt(fan in)."""
    rng = np.random.default_rng(seed)
    layers, variances = [], []
    for before, after in itertools.pairwise(widths):
        layers.append((rng.normal(size=(after, before)) / np.sqrt(before), 0.3 * rng.normal(size=after)))
        sd = spread * rng.uniform(0.2, 1.0, size=(after, before)) / np.sqrt(before)
        variances.append((sd**2, (0.3 * spread * rng.uniform(0.2, 1.0, size=after)) ** 2))
    return model(layers, variances, **settings)


def random_samples(seed: int, widths: Sequence[int], count: int, *, spread: float = 0.3, **settings: Any) -> Model:
    """A random dense network whose posterior is a few weighted samples around it."""
    rng = np.random.default_rng(seed)
    layers, drawn = [], []
    for before, after in itertools.pairwise(widths):
        w, b = rng.normal(size=(after, before)) / np.sqrt(before), 0.3 * rng.normal(size=after)
        layers.append((w, b))
        drawn.append((
            w + spread * rng.normal(size=(count, after, before)) / np.sqrt(before),
            b + spread * rng.normal(size=(count, after)),
        ))  # fmt: skip
    weights = rng.uniform(0.5, 1.5, size=count)
    return model(layers, samples=drawn, probabilities=weights / weights.sum(), **settings)


def rows(a: ArrayLike, b: ArrayLike, strict: ArrayLike | None = None) -> Case:
    """One case: the conjunction of A y <= b (or < where strict)."""
    matrix, bound = np.atleast_2d(np.asarray(a, np.float64)), np.atleast_1d(np.asarray(b, np.float64))
    return matrix, bound, np.zeros(len(bound), bool) if strict is None else np.atleast_1d(strict)


def problem(lower: ArrayLike, upper: ArrayLike, *cases: Case, outputs: int = 1) -> Problem:
    """One box with an output DNF."""
    low, high = (torch.tensor(np.atleast_2d(np.asarray(side, np.float64))) for side in (lower, upper))
    return from_cases(low, high, [list(cases)], outputs)


def properties(
    net: Model,
    boxes: Sequence[tuple[ArrayLike, ArrayLike]],
    cases: Sequence[tuple[int, Sequence[tuple[ArrayLike, ArrayLike | None, float, bool]]]],
    constraints: Sequence[tuple[int, ArrayLike, float, bool]] = (),
    **fields: Any,
) -> Property:
    """A property over several boxes.

    cases: (box, rows), a row (a, g or None, b, strict) meaning a.y + g.x <= b; constraints: (box, g, b, strict).
    """
    signature = net.network.signature
    n, m = signature.input_size, signature.output_size
    low = np.array([np.broadcast_to(side[0], n) for side in boxes], np.float64)
    high = np.array([np.broadcast_to(side[1], n) for side in boxes], np.float64)
    flat = [(c, row) for c, (_, case) in enumerate(cases) for row in case]
    mixed = any(row[1] is not None for _, row in flat)
    inputs = np.array([np.zeros(n) if row[1] is None else row[1] for _, row in flat], np.float64).reshape(-1, n)
    bound = np.array([row[2] for _, row in flat], np.float64)
    limit = np.array([b for _, _, b, _ in constraints], np.float64)
    return Property(
        version=(1, 0), network=None, signature=signature,
        boxes=Boxes(low, high, low.copy(), high.copy()),
        constraints=HalfSpaces(
            np.zeros((len(constraints), 0)), np.array([g for _, g, _, _ in constraints], np.float64).reshape(-1, n),
            limit, limit.copy(), np.array([s for *_, s in constraints], bool),
            np.array([box for box, *_ in constraints], np.int64),
        ),
        case_box=np.array([box for box, _ in cases], np.int64),
        rows=HalfSpaces(
            np.array([row[0] for _, row in flat], np.float64).reshape(-1, m), inputs if mixed else None, bound,
            bound.copy(), np.array([row[3] for _, row in flat], bool), np.array([c for c, _ in flat], np.int64),
        ),
        **fields,
    )  # fmt: skip


def bounds_of(net: Model, transform: Any = "identity", method: Any = "linear") -> OutputBounds:
    """The engine behind a transform."""
    return OutputBounds(Engine(net.network, method), transform)


def expectation(net: Model, transform: Any = "identity", boxes: str = "mean", **settings: Any) -> decision.Portfolio:
    """Ready to bound D."""
    assert net.posterior is not None
    bounds = bounds_of(net, transform)
    return decision.portfolio(
        decision.DecisionTask(bounds, net.posterior, torch.device("cpu"), boxes=boxes, **settings)
    )


def regression_methods(net: Model, deadline: Deadline = Deadline()) -> tuple[Any, ...]:
    """What bounds the expected outputs of a chain of dense layers."""
    assert net.posterior is not None
    bounds = OutputBounds(Engine(net.network, "linear", deadline), "identity")
    found = decision.portfolio(decision.DecisionTask(bounds, net.posterior, torch.device("cpu"))).steps.thorough
    return tuple(method for method in found if method.name != "tails")  # which serve any graph


def sampled_violations(net: Model, question: Problem, count: int, seed: int, transform: str = "identity") -> int:
    """How many of `count` sampled networks an attack makes violate the (one) item, by a clear distance."""
    generator = torch.Generator().manual_seed(seed)
    params = sample(net.network, net.posterior, count, generator)
    _, value = attack.run(net.network, question, params, Attack(steps=20, restarts=4, seed=seed), transform)
    return int((value[:, 0] < -1e-9).sum())


def outputs(net: Model, x: ArrayLike, params: dict[str, torch.Tensor] | None = None) -> np.ndarray:
    """Outputs of the network, its final Softmax left out."""
    return evaluate(net.network, torch.as_tensor(np.asarray(x, np.float64)), params).numpy()


def from_nodes(
    nodes: Sequence[Any],
    weights: dict[str, np.ndarray],
    shape: Sequence[int],
    variances: dict[str, ArrayLike],
    likelihood: Any = None,
) -> Model:
    """A float64 network x -> y from ONNX nodes, with a Gaussian posterior."""
    holders = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, list(shape))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)]
    graph = helper.make_graph(list(nodes), "test", inputs, outputs, holders)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    posterior = GaussianDiagonal({name: np.asarray(value, np.float64) for name, value in variances.items()})
    return replace(model_from_proto(proto, likelihood=likelihood), posterior=posterior)
