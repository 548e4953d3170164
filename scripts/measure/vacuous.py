"""Easy questions: the truth and the bounds of each, for one revision or several.

python scripts/measure/vacuous.py make FOLDER        ; writes the networks
python scripts/measure/vacuous.py bound FOLDER FILE  ; bounds of the package that is found first, e.g. by PYTHONPATH
python scripts/measure/vacuous.py table FOLDER FILE ..  ; beside the truth, by integral, closed form or 20,000 draws

Questions are asked at points and over boxes, 4 processor seconds each (norms and attention 1), one thread. `bound` uses
public names only, so that older revisions of the package answer the same files.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SECONDS, DRAWN = {"5": 1.0}, 20_000

BLOCK_DEVIATIONS, RADII = (0.003, 0.02, 0.05, 0.1), (0.0, 0.02)

NORMS = ("layer norm behind", "layer norm in front", "batch norm behind", "instance norm", "self-attention")

SLOPES = {
    "Tanh": 1.0, "Elu": 1.0, "Selu": 1.7581, "Celu": 1.0, "Exp": 7.39, "Softplus": 0.88, "Sqrt": 0.5, "Reciprocal": 1.0,
}  # fmt: skip
"""Activations and about their largest slope, by which what they read is divided."""


def make(folder: Path) -> None:
    """The networks, and a list of the questions."""
    sys.path.insert(0, "tests")
    import onnx
    from scipy import integrate, special, stats

    from bnn_vnnlib import attach
    from bnn_vnnlib.network.families import from_factor
    from bnn_vnnlib.network.network import GaussianDiagonal
    from support.blocks import BLOCKS, TRAINED, random  # type: ignore[import-not-found]
    from support.builders import model  # type: ignore[import-not-found]

    folder.mkdir(parents=True, exist_ok=True)
    questions: list[dict[str, Any]] = []

    def ask(name: str, proto: Any, posterior: Any, x: Any, **question: Any) -> None:
        onnx.save(attach(proto, posterior), folder / f"{len(questions)}.onnx")
        questions.append({"name": name, "x": np.asarray(x, float).tolist(), "radius": 0.0, **question})

    def dense(layers: list[Any], kind: str = "relu") -> Any:
        return onnx.load_from_string(model(layers, activation=kind, element=np.float64).onnx_bytes)

    rng = np.random.default_rng(0)
    widths = [4, 16, 16, 1]
    layers = [(rng.normal(size=(n, k)) / np.sqrt(k), 0.3 * rng.normal(size=n)) for k, n in itertools.pairwise(widths)]
    last = GaussianDiagonal({"W2": np.full((1, 16), 0.01), "b2": np.full(1, 0.01)})
    tanh = dense(layers, "tanh")
    for rule in ("mean", "median"):
        ask(f"1 last layer random, tanh 4-16-16-1: D, {rule}", tanh, last, [0.3] * 4, likelihood="gaussian", rule=rule,
            truth=float(_mean(layers, [0.3] * 4)))  # fmt: skip
    line = dense([(np.full((1, 1), 2.0), np.zeros(1))])
    one = GaussianDiagonal({"W0": np.ones((1, 1))})
    ask("1 y = w x, w ~ N(2, 1), x = 1: D", line, one, [1.0], likelihood="gaussian", truth=2.0)
    logit = dense([(np.ones((1, 1)), np.zeros(1))])
    true = integrate.quad(lambda z: special.expit(1 + z) * stats.norm.pdf(z), -9, 9, epsabs=1e-13)[0]
    ask("2 logit N(1, 1): D", logit, one, [1.0], likelihood="bernoulli", truth=true)
    two = dense([(np.array([[1.0], [0.0]]), np.zeros(2))])
    ask("2 the same as softmax(f, 0): D", two, GaussianDiagonal({"W0": np.array([[1.0], [0.0]])}), [1.0],
        likelihood="categorical", truth=true)  # fmt: skip
    unit = dense([(np.array([[1.0]]), np.array([0.5])), (np.array([[1.0], [-1.0]]), np.zeros(2))])
    wide = GaussianDiagonal({"W0": np.full((1, 1), 9.0), "b0": np.full(1, 9.0)})
    ask("3 one unit of ReLU, deviations 3: P_safe of y_0 - y_1 > 0.2", unit, wide, [1.0], row=[1.0, -1.0], bound=0.2,
        truth=stats.norm.cdf(1.4 / np.sqrt(18)))  # fmt: skip
    z = stats.norm(1.5, np.sqrt(18))
    above = integrate.quad(lambda t: special.expit(2 * t) * z.pdf(t), 0, 40, epsabs=1e-13)[0]
    ask("3 the same: D, probabilities", unit, wide, [1.0], likelihood="categorical", truth=above + z.cdf(0) / 2)
    for kind, slope in SLOPES.items():
        proto = one_layer(kind, 0.3 * rng.normal(size=(4, 2)) / slope)
        posterior = GaussianDiagonal({"W": np.full((4, 2), (0.1 / slope) ** 2)})
        ask(f"4 {kind} at a point: P_safe", proto, posterior, [0.5, -0.3], row=[1.0], share=0.15)
    for name, deviation, radius in itertools.product(NORMS, BLOCK_DEVIATIONS, RADII):
        own = random(BLOCKS[name](), deviation, *TRAINED)
        x = 0.7 * np.random.default_rng(1).normal(size=own.network.signature.input_size)
        proto = onnx.load_from_string(own.onnx_bytes)
        row = {"row": [1.0, -1.0], "share": 0.03}
        for question in (row, {"likelihood": "gaussian"}, {"likelihood": "categorical"}):
            ask(f"5 {name}, {deviation}, {radius}", proto, own.posterior, x, **question | {"radius": radius})
    small = [(rng.normal(size=(n, k)) / np.sqrt(k), np.zeros(n)) for k, n in ((2, 6), (6, 6), (6, 1))]
    shapes = {"W0": (6, 2), "W1": (6, 6)}
    full = from_factor(0.05 * rng.normal(size=(48, 5)), shapes)
    for rule in ("mean", "median"):
        ask(f"8 regression of correlated weights: D, {rule}", dense(small), full, [0.5, -0.5],
            likelihood="gaussian", rule=rule)  # fmt: skip
    every = GaussianDiagonal({name: np.full(shape, 0.05**2) for name, shape in shapes.items()})
    at = [0.5, -0.5]
    ask("10 two hidden layers of ReLU, deviations 0.05: P_safe", dense(small), every, at, row=[1.0], share=0.2)
    each = [(rng.normal(size=(n, k)) / np.sqrt(k), np.zeros(n)) for k, n in ((2, 12), (12, 1))]
    wide = GaussianDiagonal({"W0": np.full((12, 2), 0.3**2), "W1": np.full((1, 12), 0.1**2)})
    for goal in ("verdict", "bounds"):
        ask(f"9 the upper side decides, `--goal {goal}`: P_safe", dense(each), wide, at, row=[1.0], share=0.3,
            goal=goal)  # fmt: skip
    (folder / "questions.json").write_text(json.dumps(questions, indent=1))


def one_layer(kind: str, weight: np.ndarray) -> Any:
    """Two inputs, four units of an activation, one output."""
    from onnx import TensorProto, helper, numpy_helper

    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Gemm", ["x", "W", "b"], "z", {"transB": 1}), (kind, ["z"], "h", {}), ("Gemm", ["h", "V"], "y", {"transB": 1}),
    ]  # fmt: skip
    nodes = [helper.make_node(operator, inputs, [out], name=out, **extra) for operator, inputs, out, extra in steps]
    shift = np.full(4, 2.0 if kind in ("Sqrt", "Reciprocal") else 0.0)
    tensors = {"W": weight, "b": shift, "V": np.array([[1.0, -1.0, 1.0, 0.5]])}
    graph = helper.make_graph(
        nodes, kind, [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 1])],
        [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bound(folder: Path, target: Path) -> None:
    """Bounds (lower, upper) of every question that the file has none of, or why there are none; processor seconds."""
    import torch

    from bnn_vnnlib import BnnVnnlibError, read_model, verify_batch

    time.monotonic = time.process_time
    torch.set_num_threads(1)
    answers = json.loads(target.read_text()) if target.exists() else []
    for number, question in enumerate(json.loads((folder / "questions.json").read_text())):
        if number < len(answers):
            continue
        x = np.array([question["x"]])
        asked: dict[str, Any] = {"query": "probabilistic"}
        if "likelihood" in question:
            asked = {"query": "decision", "likelihood": question["likelihood"]}
            asked |= {"rule": question["rule"]} if "rule" in question else {}
        else:
            level = threshold(folder, number, question)
            asked["properties"] = [[(np.array([question["row"]]), np.array([level]), np.array([False]))]]
        asked["timeout"] = SECONDS.get(question["name"][0], 4.0)
        begun = time.process_time()
        box = x - question["radius"], x + question["radius"]
        model = read_model(folder / f"{number}.onnx")
        try:
            try:
                wanted = {} if question.get("goal") == "verdict" else {"goal": "bounds", "gap": 1e-4}
                found = verify_batch(model, *box, **asked | wanted)
            except TypeError:  # before there were goals
                found = verify_batch(model, *box, **asked)
            said: Any = [np.asarray(found.lower)[0].tolist(), np.asarray(found.upper)[0].tolist()]
        except BnnVnnlibError as error:
            said = str(error)[:60]
        answers.append([said, time.process_time() - begun])
        print(number, question["name"], said, f"{answers[-1][1]:.1f} s", flush=True)
        target.write_text(json.dumps(answers))


def draws(folder: Path, number: int, question: dict[str, Any]) -> np.ndarray:
    """(S, P, m) outputs of drawn networks, at the point or at 9 points of the box; kept in the folder."""
    kept = folder / f"{number}.npy"
    if not kept.exists():
        import torch

        from bnn_vnnlib import read_model
        from bnn_vnnlib.network.evaluate import evaluate
        from bnn_vnnlib.network.families import sample

        model, count = read_model(folder / f"{number}.onnx"), DRAWN if question["radius"] == 0 else DRAWN // 4
        drawn = sample(model.network, model.posterior, count, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        moved = np.random.default_rng(0).uniform(-1, 1, size=(8, len(question["x"])))
        x = np.array(question["x"]) + question["radius"] * np.vstack([np.zeros(len(question["x"])), np.sign(moved)])
        x = x if question["radius"] else x[:1]
        np.save(kept, evaluate(model.network, torch.tensor(x), drawn).reshape(count, len(x), -1).numpy())
    return np.asarray(np.load(kept))


def threshold(folder: Path, number: int, question: dict[str, Any]) -> float:
    """The threshold of a row: given, or what a share of the drawn networks is below somewhere."""
    if "bound" in question:
        return float(question["bound"])
    values = (draws(folder, number, question) @ np.array(question["row"])).min(1)
    return float(np.quantile(values, question["share"]))


def truth(folder: Path, number: int, question: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P_safe, or the least and largest expected outputs over the points, and the deviation of what is averaged."""
    y = draws(folder, number, question)
    if "row" in question:
        safe = np.atleast_1d(((y @ np.array(question["row"])) > threshold(folder, number, question)).all(1).mean())
        return safe, safe, np.ones(1)
    if question["likelihood"] == "categorical":
        y = np.exp(y - y.max(-1, keepdims=True))
        y = y / y.sum(-1, keepdims=True)
    if question["likelihood"] == "bernoulli":
        y = 1 / (1 + np.exp(-y))
    value = np.median(y, 0) if question.get("rule") == "median" else y.mean(0)
    return value.min(0), value.max(0), y.std(0).max(0)


def informative(question: dict[str, Any], said: Any, true: tuple[np.ndarray, ...]) -> Iterator[bool]:
    """Of each side: P_safe at least half of what can be said; within 2.5 deviations of an expected output."""
    low, high, deviation = true
    sides = [np.atleast_1d(side) for side in said] if not isinstance(said, str) else [low - np.inf, high + np.inf]
    if "row" in question:
        yield bool(sides[0][0] >= low[0] / 2)
        return
    yield from (low - sides[0] <= 2.5 * deviation).tolist()
    yield from (sides[1] - high <= 2.5 * deviation).tolist()


def table(folder: Path, files: list[Path]) -> None:
    """A line for each question; those of norms and attention are counted."""
    answers = [json.loads(file.read_text()) for file in files]
    counts: dict[str, np.ndarray] = {}
    for number, question in enumerate(json.loads((folder / "questions.json").read_text())):
        true = truth(folder, number, question)
        if question["name"].startswith("5"):
            kind = "P_safe" if "row" in question else f"D, {question['likelihood']}"
            key = f"{question['name'].split(',')[0]}, {'box' if question['radius'] else 'point'}, {kind}"
            told = [list(informative(question, answer[number][0], true)) for answer in answers]
            counts[key] = counts.get(key, 0) + np.array([[sum(side), len(side)] for side in told])
            continue
        shown = [_shown(*answer[number]) if number < len(answer) else "" for answer in answers]
        print(f"| {question['name']} | {_number(question, true[0][0])} | {' | '.join(shown)} |")
    for key, count in counts.items():
        print(f"| {key} | | {' | '.join(f'{told} of {asked}' for told, asked in count)} |")
    total = np.sum(list(counts.values()), 0)
    print(f"| 5 together | | {' | '.join(f'{told} of {asked}' for told, asked in total)} |")


def _number(question: dict[str, Any], drawn: float) -> str:
    return f"{question['truth']:.8g}" if "truth" in question else f"{drawn:.4g}, drawn"


def _mean(layers: list[Any], x: Any) -> Any:
    """The mean network of tanh layers."""
    for number, (weight, bias) in enumerate(layers):
        x = weight @ np.asarray(x) + bias
        x = np.tanh(x) if number + 1 < len(layers) else x[0]
    return x


def _shown(said: Any, seconds: float) -> str:
    if isinstance(said, str):
        return said
    low, high = (np.atleast_1d(side)[0] for side in said)
    return f"[{low:.6g}, {high:.6g}], {seconds:.1f} s"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder]:
            make(Path(folder))
        case ["bound", folder, target]:
            bound(Path(folder), Path(target))
        case ["table", folder, *files]:
            table(Path(folder), [Path(file) for file in files])
        case _:
            sys.exit(__doc__)
