"""Random uses of every operator that the importer reads: attributes, shapes, operands, opset and element type.

A generator is registered for an operator with `draws` and asks its `Draw` for what it needs; what the operator has at
the drawn opset (attributes, optional operands) is looked up in ONNX's schema. Most draws are valid; that some are not
is part of the test, because the importer must refuse those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from model_helpers import make_model
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.defs import OpSchema, get_schema

T = TypeVar("T")
Shape = tuple[int, ...]
Generator = Callable[["Draw"], None]
GENERATORS: dict[str, Generator] = {}
AUTO_PADS = ("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
INTEGERS = (np.int64, np.int64, np.int32)


@dataclass(eq=False)
class Draw:
    """One node under construction.

    Attributes
    ----------
    rng : source of everything random
    operator, opset : what is drawn
    floats : element type of the input and of the float operands
    """

    rng: np.random.Generator
    operator: str
    opset: int
    floats: Any

    def __post_init__(self) -> None:
        self.schema: OpSchema = get_schema(self.operator, self.opset, "")
        self.attributes: dict[str, Any] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.operands: list[str] = []
        self.shape: Shape = ()
        self.outputs = ["y"]
        self.positive = False
        self.result = self.floats
        self.before: list[NodeProto] = []
        self.after: list[NodeProto] = []

    # what may be drawn

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, *options: T) -> T:
        return options[int(self.rng.integers(len(options)))]

    def number(self, low: int, high: int) -> int:
        """low <= number <= high."""
        return int(self.rng.integers(low, high + 1))

    def numbers(self, count: int, low: int, high: int) -> list[int]:
        return [self.number(low, high) for _ in range(count)]

    def sizes(self, low: int, high: int, largest: int = 4) -> Shape:
        """A shape of low to high axes."""
        return tuple(self.number(1, largest) for _ in range(self.number(low, high)))

    def normal(self, shape: Sequence[int]) -> np.ndarray:
        return self.rng.normal(size=tuple(shape)).astype(self.floats)

    def axis(self, rank: int) -> int:
        """Of a tensor of this rank, counted from either end."""
        return self.number(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Some axes, each at most once."""
        some = self.rng.permutation(rank)[: self.number(least, rank)]
        return [int(axis) - (rank if self.chance(0.3) else 0) for axis in some]

    def broadcast_to(self, shape: Shape) -> Shape:
        """A shape that broadcasts to this one."""
        some = tuple(size if self.chance(0.7) else 1 for size in shape)
        return some[self.number(0, len(some)) :]

    # what is put into the node

    def has(self, attribute: str) -> bool:
        return attribute in self.schema.attributes

    @property
    def room(self) -> int:
        """How many operands the operator may have."""
        return self.schema.max_input

    def set(self, probability: float = 0.7, **attributes: Any) -> None:
        """Attributes, each with this probability and where the opset has it."""
        for name, value in attributes.items():
            if self.has(name) and self.chance(probability):
                self.attributes[name] = value

    def computed(self, shape: Sequence[int]) -> Draw:
        """The first operand is the graph's input."""
        self.shape = tuple(shape)
        self.operands.append("x")
        return self

    def operand(self, name: str, value: Any, dtype: Any = None) -> None:
        array = np.asarray(value)
        self.weights[name] = array.astype(dtype or (self.floats if array.dtype.kind == "f" else array.dtype))
        self.operands.append(name)

    def left_out(self) -> None:
        self.operands.append("")

    def mixed(self, shapes: Sequence[Shape]) -> None:
        """Operands of an elementwise operator: the input, functions of it, constants."""
        computed = self.number(0, len(shapes) - 1)
        for i, shape in enumerate(shapes):
            if i == computed:
                self.computed(shape)
            elif shape == shapes[computed] and self.chance(0.4):
                self.before.append(helper.make_node("Tanh", ["x"], [f"t{i}"], name=f"Tanh_{i}"))
                self.operands.append(f"t{i}")
            else:
                self.operand(f"c{i}", self.normal(shape))

    def model(self, folded: bool) -> ModelProto:
        """The graph; `folded`: the drawn node has constants only, and its results are added to the input."""
        drawn = helper.make_node(self.operator, self.operands, self.outputs, name="drawn")
        kinds = {name: self.schema.attributes[name].type.value for name in self.attributes}
        drawn.attribute.extend(
            helper.make_attribute(name, self.attributes[name], attr_type=kinds[name]) for name in kinds
        )
        nodes, weights, shape, results = (
            [*self.before, drawn, *self.after],
            dict(self.weights),
            self.shape,
            self.outputs,
        )
        if self.after:
            results = list(self.after[-1].output)
        if folded:
            if "x" in self.operands:
                weights["c"] = self.point(shape).reshape(shape).astype(self.floats)
                for node in nodes:
                    node.input[:] = ["c" if name == "x" else name for name in node.input]
            if self.result != self.floats:
                nodes.append(
                    helper.make_node("Cast", ["x"], ["w"], to=helper.np_dtype_to_tensor_dtype(np.dtype(self.result)))
                )
            added = "x" if self.result == self.floats else "w"
            nodes += [helper.make_node("Add", [added, name], [f"{name}_x"], name=f"add_{name}") for name in results]
            results, shape = [f"{name}_x" for name in results], (1,)
        proto = make_model(
            nodes, {}, shape, outputs=" ".join(results), opset=self.opset, element=self.floats, ir_version=10
        )
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
        for info in proto.graph.output:
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(self.result))
        return proto

    def point(self, shape: Shape) -> np.ndarray:
        """An input; the middle is moved, so that zeros in place of a padding would be noticed."""
        x = self.rng.normal(size=int(np.prod(shape, dtype=int))) + self.pick(-3.0, 0.0, 0.0, 3.0)
        return (np.abs(x) + 0.1 if self.positive else x).astype(self.floats)


def draws(*operators: str) -> Callable[[Generator], Generator]:
    """Register a generator."""

    def register(generator: Generator) -> Generator:
        GENERATORS.update(dict.fromkeys(operators, generator))
        return generator

    return register


# elementwise -----------------------------------------------------------------------------------------------------


@draws("Abs", "Atan", "Cos", "Erf", "Exp", "HardSwish", "Identity", "Mish", "Neg", "Relu", "Sigmoid", "Sign", "Sin",
       "Softplus", "Softsign", "Tanh")  # fmt: skip
def elementwise(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 4))


@draws("Log", "Reciprocal", "Sqrt")
def elementwise_positive(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 4))
    draw.positive = True


@draws("Celu", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "Selu", "Swish")
def parametric(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 4))
    alphas = (0.3, 0.7, 1.0, 1.5) if draw.operator == "Celu" else (0.3, 0.7, 1.0, 1.5, 0.0, -0.5)
    draw.set(alpha=draw.pick(*alphas), beta=draw.pick(0.4, -0.2), gamma=draw.pick(0.5, 2.0))
    draw.set(approximate=draw.pick("none", "tanh"))


@draws("PRelu")
def prelu(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    draw.computed(shape)
    draw.operand("slope", draw.normal(draw.broadcast_to(shape) if draw.chance(0.9) else draw.sizes(0, 4)))


@draws("Clip")
def clip(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 4))
    limits = draw.rng.normal(size=2)
    limits = np.sort(limits) if draw.chance(0.8) else limits
    if draw.has("min"):
        draw.set(min=float(limits[0]), max=float(limits[1]))
        return
    for name, limit in zip(("low", "high"), limits, strict=True):
        if draw.chance(0.3):
            draw.left_out()
        else:
            draw.operand(name, np.full(draw.pick((), (), (), (1,)), limit))
    while not draw.operands[-1]:
        draw.operands.pop()


@draws("Add", "Div", "Mul", "Sub")
def arithmetic(draw: Draw) -> None:
    shape = draw.sizes(0, 4)
    pair = [shape, draw.broadcast_to(shape)]
    if draw.chance(0.2):  # both grow
        pair = [tuple(1 if draw.chance(0.3) else size for size in shape) for _ in range(2)]
    draw.mixed(pair if draw.chance() else pair[::-1])
    draw.positive = draw.operator == "Div"


@draws("Pow")
def power(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 3))
    shape = draw.pick((), (), (1,), (1, 1, 1, 1))
    kinds = (draw.floats, np.int64, np.float64) if draw.opset >= 12 else (draw.floats,)
    kind = draw.pick(*kinds)
    values = (-2, -1, 0, 1, 2, 3) if kind is np.int64 else (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 1.7)
    draw.positive = draw.chance(0.8)
    draw.operand("p", np.full(shape, draw.pick(*values)), kind)


@draws("Max", "Mean", "Min", "Sum")
def several(draw: Draw) -> None:
    shape = draw.sizes(0, 3)
    draw.mixed([shape if draw.opset < 8 else draw.broadcast_to(shape) for _ in range(draw.number(1, 4))])


@draws("Where")
def where(draw: Draw) -> None:
    shape = draw.sizes(0, 3)
    draw.operand("mask", draw.rng.random(draw.broadcast_to(shape)) < 0.5)
    draw.mixed([draw.broadcast_to(shape), draw.broadcast_to(shape)])


def chosen(draw: Draw, shape: Shape) -> None:
    """A Where over the drawn comparison with a limit: a maximum, a LeakyRelu, or a jump, which is refused."""
    draw.outputs = ["mask"]
    limit = np.zeros(()) if draw.chance() else draw.normal(draw.broadcast_to(shape))
    draw.weights |= {
        "limit": np.asarray(limit, draw.floats),
        "slope": np.asarray(draw.pick(0.25, -0.5, 2.0), draw.floats),
    }
    draw.after.append(helper.make_node("Mul", ["x", "slope"], ["sloping"], name="sloping"))
    branches = draw.pick(["x", "limit"], ["limit", "x"], ["x", "sloping"], ["sloping", "x"])
    draw.after.append(helper.make_node("Where", ["mask", *branches], ["y"], name="chosen"))


@draws("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def comparison(draw: Draw) -> None:
    shape = draw.sizes(0, 3)
    draw.computed(shape)
    draw.operands.insert(draw.number(0, 1), "limit")
    chosen(draw, shape)


@draws("Not")
def negation(draw: Draw) -> None:
    draw.shape = draw.sizes(0, 3)
    draw.before.append(helper.make_node("Less", ["x", "limit"], ["less"], name="less"))
    draw.operands.append("less")
    chosen(draw, draw.shape)


EQUATIONS = ("ab,bc->ac", "ab,cb->ca", "ab,bc", "...b,bc->...c", "ab...,bc->a...c", "ab,cd->acbd", "ab,b->ba",
             "ab,ab->", "abc,cd->dab", "ab,bc->abc", "abc,bcd->ad", "ab,bb->ab", "ab,cd->ac")  # fmt: skip


@draws("Einsum")
def einsum(draw: Draw) -> None:
    """Of the input and a constant, either first, or of the input and a function of it; some sum over one operand."""
    equation, sizes = draw.pick(*EQUATIONS), {axis: draw.number(1, 3) for axis in "abcd"}
    hidden = draw.sizes(0, 2, 3)
    terms = equation.split("->")[0].split(",")
    first, second = (
        [size for letter in term.replace("...", "*") for size in (hidden if letter == "*" else (sizes[letter],))]
        for term in terms
    )
    draw.computed(first)
    if first == second and draw.chance():
        draw.operands.append("x")
    else:
        draw.operand("W", draw.normal(second))
    draw.attributes["equation"] = equation


@draws("Cast")
def cast(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 3))
    draw.attributes["to"] = to = draw.pick(
        TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64
    )
    draw.result = helper.tensor_dtype_to_np_dtype(to)
    draw.set(0.3, saturate=draw.number(0, 1), round_mode=draw.pick("up", "down", "nearest"))


@draws("Dropout")
def dropout(draw: Draw) -> None:
    draw.computed(draw.sizes(1, 3))
    draw.set(ratio=0.5, seed=1)
    if draw.room > 1 and draw.chance():
        draw.operand("ratio", np.array(0.5))
        if draw.chance():
            draw.operand("training", np.array(False))


# shapes ----------------------------------------------------------------------------------------------------------


@draws("Flatten")
def flatten(draw: Draw) -> None:
    shape = draw.sizes(0, 4)
    draw.computed(shape)
    draw.set(0.8, axis=draw.number(-len(shape) if draw.chance(0.8) else -1, len(shape)))


@draws("Reshape")
def reshape(draw: Draw) -> None:
    shape = draw.sizes(0, 4)
    draw.computed(shape)
    wanted = list(draw.rng.permutation(shape)) if draw.chance() else [int(np.prod(shape[:2])), *shape[2:]]
    if draw.chance(0.6) and wanted:
        wanted[draw.number(0, len(wanted) - 1)] = -1
    if draw.chance(0.6) and wanted:
        wanted[draw.number(0, len(wanted) - 1)] = 0
    draw.set(0.3, allowzero=draw.number(0, 1))
    draw.operand("shape", np.array(wanted, np.int64))


@draws("Transpose")
def transpose(draw: Draw) -> None:
    shape = draw.sizes(0, 4)
    draw.computed(shape)
    draw.set(perm=[int(axis) for axis in draw.rng.permutation(len(shape))])


@draws("Squeeze", "Unsqueeze")
def squeeze(draw: Draw) -> None:
    shape = tuple(size if draw.chance() else 1 for size in draw.sizes(0, 4))
    draw.computed(shape)
    if draw.operator == "Squeeze":
        given = [axis for axis in draw.axes(len(shape)) if shape[axis] == 1 or draw.chance(0.1)]
    else:
        given = draw.number(1, 2) * [0]
        given = [draw.axis(len(shape) + len(given)) for _ in given]
    if draw.has("axes"):
        draw.set(0.8 if draw.operator == "Squeeze" else 1, axes=given)
    elif draw.operator == "Unsqueeze" or draw.chance(0.8):
        draw.operand("axes", np.array(given, np.int64))


@draws("Concat")
def concat(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    axis = draw.axis(len(shape))
    shapes = []
    for _ in range(draw.number(1, 3)):
        one = list(shape)
        one[axis] = draw.number(1, 3)
        shapes.append(tuple(one))
    draw.mixed(shapes)
    draw.attributes["axis"] = axis


@draws("Shape")
def shape_of(draw: Draw) -> None:
    draw.computed(draw.sizes(0, 4))
    draw.set(start=draw.number(-6, 6), end=draw.number(-6, 6))
    draw.after = [
        helper.make_node("Cast", ["y"], ["f"], to=helper.np_dtype_to_tensor_dtype(np.dtype(draw.floats))),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Add", ["f", "s"], ["z"]),
    ]


@draws("Constant")
def constant(draw: Draw) -> None:
    kind = draw.pick(*(name for name in draw.schema.attributes if "string" not in name and name != "sparse_value"))
    values = {"value": numpy_helper.from_array(draw.normal(draw.sizes(0, 3)), "t"), "value_float": 0.5,
              "value_floats": [0.5, -2.0], "value_int": 3, "value_ints": [2, -1]}  # fmt: skip
    draw.shape = ()
    draw.attributes[kind] = values[kind]
    to = helper.np_dtype_to_tensor_dtype(np.dtype(draw.floats))
    draw.after = [helper.make_node("Cast", ["y"], ["f"], to=to), helper.make_node("Add", ["f", "x"], ["z"])]


# selections ------------------------------------------------------------------------------------------------------


@draws("Expand")
def expand(draw: Draw) -> None:
    wanted = draw.sizes(0, 4)
    draw.computed(draw.broadcast_to(wanted))
    wanted = draw.broadcast_to(wanted) if draw.chance(0.4) else wanted
    draw.operand("shape", np.array(wanted, np.int64))


@draws("Tile")
def tile(draw: Draw) -> None:
    shape = draw.sizes(1, 3)
    draw.computed(shape)
    draw.operand("repeats", np.array(draw.numbers(len(shape) + (draw.number(-1, 1) if draw.chance(0.1) else 0), 1, 3)))


@draws("Gather", "GatherElements")
def gather(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    draw.computed(shape)
    axis = draw.axis(len(shape))
    draw.set(0.8, axis=axis)
    size = shape[draw.attributes.get("axis", 0)]
    low = -size if draw.opset >= 11 or draw.chance(0.1) else 0
    if draw.operator == "Gather":
        wanted = draw.sizes(0, 2)
    else:
        wanted = tuple(draw.number(1, n) if draw.chance(0.4) else n for n in shape)
        if draw.chance(0.3):
            wanted = tuple(n + 1 if i == draw.attributes.get("axis", 0) % len(shape) else n
                           for i, n in enumerate(wanted))  # fmt: skip
    draw.operand("index", draw.rng.integers(low, size + (1 if draw.chance(0.05) else 0), wanted), draw.pick(*INTEGERS))


@draws("GatherND")
def gather_nd(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    draw.computed(shape)
    batch = draw.number(0, len(shape) - 1) if draw.has("batch_dims") else 0
    if batch:
        draw.attributes["batch_dims"] = batch
    depth = draw.number(1, len(shape) - batch)
    lead = (*shape[:batch], *draw.sizes(0, 2, 3))
    picks = [draw.rng.integers(-size, size, lead) for size in shape[batch : batch + depth]]
    draw.operand("index", np.stack(picks, -1))


@draws("Slice")
def slices(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    draw.computed(shape)
    axes = draw.axes(len(shape), 1)
    extremes = (-(2**31), 2**31 - 1, 0, -1)
    starts, ends = ([draw.pick(*extremes) if draw.chance(0.15) else draw.number(-6, 6) for _ in axes] for _ in range(2))
    if draw.has("starts"):
        draw.attributes |= {"starts": starts, "ends": ends}
        if sorted(axes) != list(range(len(axes))) or draw.chance():
            draw.attributes["axes"] = axes
        return
    kind = draw.pick(*INTEGERS)
    steps = [draw.pick(1, 1, 2, 3, -1, -2, -7) for _ in axes]
    parts: dict[str, list[int] | None] = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    if draw.chance(0.2):
        del parts["steps"]
        if axes == list(range(len(axes))):
            del parts["axes"]
    for name, value in parts.items():
        draw.operand(name, np.array(value), kind)


@draws("Split")
def split(draw: Draw) -> None:
    shape = draw.sizes(1, 3, 6)
    draw.computed(shape)
    axis = draw.axis(len(shape))
    draw.set(0.9, axis=axis)
    size = shape[draw.attributes.get("axis", 0)]
    count = draw.number(1, min(size, 4) + (1 if draw.chance(0.1) else 0))
    cuts = np.sort(draw.rng.choice(np.arange(1, size), min(count, size) - 1, replace=False)) if size > 1 else []
    sizes = [int(part) for part in np.diff([0, *cuts, size])]
    count = count if draw.chance(0.5) else len(sizes)
    if draw.chance(0.1):
        sizes = [*sizes[:-1], 0, sizes[-1]]
    draw.outputs = [f"y{i}" for i in range(count)]
    if draw.has("num_outputs") and draw.chance():
        draw.attributes["num_outputs"] = count
    elif draw.has("split") and draw.chance():
        draw.attributes["split"] = sizes
        draw.outputs = [f"y{i}" for i in range(len(sizes))]
    elif draw.room > 1 and (draw.chance() or draw.has("num_outputs")):
        draw.operand("sizes", np.array(sizes, np.int64))
        draw.outputs = [f"y{i}" for i in range(len(sizes))]


@draws("Pad")
def pad(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    draw.computed(shape)
    modes = draw.pick("constant", "constant", "reflect", "edge", "wrap")
    draw.set(0.8, mode=modes if modes != "wrap" or draw.opset >= 19 or draw.chance(0.1) else "edge")
    rank = len(shape)
    axes = draw.axes(rank, 1) if draw.room > 3 and draw.chance() else list(range(rank))
    low = draw.pick(0, 0, -1, -2)
    pads = draw.numbers(2 * len(axes), low, draw.pick(1, 2, 3))
    pads = [amount if draw.chance(0.6) else 0 for amount in pads]
    if draw.has("pads"):
        draw.attributes["pads"] = pads
        draw.set(value=draw.pick(0.0, 0.75, -1.5))
        return
    draw.operand("pads", np.array(pads, np.int64))
    if draw.chance():
        draw.operand("value", np.array(draw.pick(0.0, 0.75, -1.5)))
    if axes != list(range(rank)):
        if len(draw.operands) < 3:
            draw.left_out()
        draw.operand("axes", np.array(axes), draw.pick(*INTEGERS))


@draws("DepthToSpace", "SpaceToDepth")
def blocks(draw: Draw) -> None:
    block = draw.number(1, 3)
    batch, channels, height, width = draw.numbers(4, 1, 2)
    if draw.operator == "DepthToSpace":
        draw.computed((batch, channels * block**2, height, width))
    else:
        draw.computed((batch, channels, height * block, width * block))
    draw.attributes["blocksize"] = block
    draw.set(mode=draw.pick("DCR", "CRD"))


@draws("Resize", "Upsample")
def resize(draw: Draw) -> None:
    shape = draw.sizes(1, 4, 5) if draw.chance(0.3) else (1, draw.number(1, 2), *draw.numbers(2, 1, 6))
    rank = len(shape)
    draw.computed(shape)
    draw.set(0.6, mode=draw.pick("nearest", "nearest", "nearest", "linear", "cubic"))
    draw.set(
        0.6,
        coordinate_transformation_mode=draw.pick("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners",
                                                 "half_pixel_symmetric", "tf_crop_and_resize",
                                                 "tf_half_pixel_for_nn"),
        nearest_mode=draw.pick("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    )  # fmt: skip
    draw.set(0.2, antialias=draw.number(0, 1), exclude_outside=draw.number(0, 1))
    axes = list(range(rank))
    if draw.has("axes") and draw.chance(0.3):
        axes = draw.axes(rank, 1)
        draw.attributes["axes"] = axes
    factors = [draw.pick(1.0, 1.0, 2.0, 3.0, 0.5, 1.7, 0.3, 2.5) for _ in axes]
    if draw.operator == "Upsample":
        factors = [max(factor, 1.0) if draw.chance(0.9) else factor for factor in factors]
    if draw.has("scales"):
        draw.attributes["scales"] = factors
        return
    if draw.operator == "Resize" and draw.opset > 10:
        if draw.opset > 12 and draw.chance():
            draw.left_out()
        else:
            draw.operand("roi", np.zeros(0))
        if draw.chance():
            if draw.opset > 12 and draw.chance():
                draw.left_out()
            else:
                draw.operand("scales", np.zeros(0), np.float32)
            draw.operand("sizes", np.array([draw.number(1, 8) for _ in axes], np.int64))
            draw.set(0.3, keep_aspect_ratio_policy=draw.pick("stretch", "not_larger", "not_smaller"))
            return
    draw.operand("scales", np.array(factors), np.float32)


# products and normalisations -------------------------------------------------------------------------------------


@draws("MatMul")
def matmul(draw: Draw) -> None:
    n, m, k = draw.numbers(3, 1, 4)
    lead = draw.sizes(0, 2, 3)
    left = draw.pick((m, n), (m, n), (*lead, m, n), (1, m, n), (n,))
    right = draw.pick((n, k), (n, k), (*draw.broadcast_to(lead), n, k), (1, 1, n, k), (n,))
    if draw.chance(0.7):
        draw.computed(left)
        draw.operand("W", draw.normal(right))
    else:
        draw.operand("W", draw.normal(left))
        draw.computed(right)


@draws("Gemm")
def gemm(draw: Draw) -> None:
    n, m, k = draw.numbers(3, 1, 4)
    draw.set(transA=draw.number(0, 1), transB=draw.number(0, 1), alpha=draw.pick(0.3, 2.0, 0.0, -1.0),
             beta=draw.pick(0.3, -1.7, 0.0))  # fmt: skip
    left = (n, m) if draw.attributes.get("transA") else (m, n)
    right = (k, n) if draw.attributes.get("transB") else (n, k)
    if draw.chance(0.7):
        draw.computed(left)
        draw.operand("W", draw.normal(right))
    else:
        draw.operand("W", draw.normal(left))
        draw.computed(right)
    if draw.opset < 11 or draw.chance(0.7):
        draw.operand("b", draw.normal(draw.broadcast_to((m, k))))


@draws("BatchNormalization")
def batch_normalization(draw: Draw) -> None:
    shape = draw.sizes(2, 5) if draw.chance(0.9) else draw.sizes(1, 1)
    draw.computed(shape)
    channels = shape[1] if len(shape) > 1 else 1
    draw.set(epsilon=draw.pick(0.1, 1e-3), momentum=0.5)
    draw.set(0.3, training_mode=0, spatial=draw.pick(1, 1, 0))
    for name in ("scale", "bias", "mean", "var"):
        values = draw.normal((channels,))
        draw.operand(name, values**2 + 0.1 if name == "var" else values)


@draws("InstanceNormalization")
def instance_normalization(draw: Draw) -> None:
    shape = draw.sizes(3, 5)
    draw.computed(shape)
    draw.set(epsilon=draw.pick(0.1, 1e-3))
    draw.operand("scale", draw.normal(shape[1:2]))
    draw.operand("bias", draw.normal(shape[1:2]))


@draws("LayerNormalization", "RMSNormalization")
def layer_normalization(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    draw.computed(shape)
    draw.set(axis=draw.axis(len(shape)), epsilon=draw.pick(0.1, 1e-3), stash_type=1)
    whole = shape[draw.attributes.get("axis", -1) :]
    for name in ("scale", "bias")[: 2 if draw.room > 2 and draw.chance() else 1]:
        draw.operand(name, draw.normal(whole if draw.chance(0.7) else draw.broadcast_to(whole)))


# reductions ------------------------------------------------------------------------------------------------------


@draws("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")
def reduction(draw: Draw) -> None:
    shape = draw.sizes(0, 4)
    draw.computed(shape)
    draw.set(keepdims=draw.number(0, 1), noop_with_empty_axes=draw.number(0, 1))
    axes = draw.axes(len(shape))
    if draw.has("axes"):
        if draw.chance(0.8):
            draw.attributes["axes"] = axes
    elif draw.chance(0.8):
        draw.operand("axes", np.array(axes, np.int64))


@draws("LogSoftmax", "Softmax")
def softmax(draw: Draw) -> None:
    shape = draw.sizes(1, 4)
    shape = tuple(size if draw.chance(0.6) else 1 for size in shape)
    draw.computed(shape)
    draw.set(axis=draw.axis(len(shape)))
    if draw.operator == "Softmax" and draw.chance(0.7):
        draw.after = [helper.make_node("Neg", ["y"], ["z"], name="after")]


# windows ---------------------------------------------------------------------------------------------------------


def window(draw: Draw, kernel: Shape) -> None:
    """Strides, dilations and pads, of which few are out of range."""
    rank = len(kernel)
    draw.set(0.6, strides=draw.numbers(rank, 1, 3))
    draw.set(0.4, dilations=draw.numbers(rank, 1, 3))
    draw.set(0.5, auto_pad=draw.pick(*AUTO_PADS))
    if draw.attributes.get("auto_pad", "NOTSET") == "NOTSET" or draw.chance(0.1):
        draw.set(0.6, pads=draw.numbers(2 * rank, 0, draw.pick(1, 1, 2)))


@draws("AveragePool", "MaxPool")
def pool(draw: Draw) -> None:
    rank = draw.pick(1, 2, 2, 3)
    draw.computed((draw.number(1, 2), draw.number(1, 3), *draw.numbers(rank, 1, 7 if rank < 3 else 5)))
    kernel = tuple(draw.numbers(rank, 1, 3))
    draw.attributes["kernel_shape"] = kernel
    window(draw, kernel)
    draw.set(0.4, ceil_mode=draw.number(0, 1), count_include_pad=draw.number(0, 1), storage_order=draw.number(0, 1))


@draws("Conv", "ConvTranspose")
def convolution(draw: Draw) -> None:
    rank, groups = draw.pick(1, 2, 2, 3), draw.number(1, 2)
    inner, outer = groups * draw.number(1, 2), draw.number(1, 2)
    kernel = tuple(draw.numbers(rank, 1, 3))
    draw.computed((draw.number(1, 2), inner, *draw.numbers(rank, 1, 7 if rank < 3 else 4)))
    window(draw, kernel)
    draw.set(0.3, kernel_shape=kernel)
    if groups > 1:
        draw.attributes["group"] = groups
    if draw.operator == "Conv":
        draw.operand("W", draw.normal((outer * groups, inner // groups, *kernel)))
    else:
        draw.operand("W", draw.normal((inner, outer, *kernel)))
        draw.set(0.3, output_padding=draw.numbers(rank, 0, 1))
        draw.set(0.2, output_shape=draw.numbers(rank, 3, 10))
    if draw.chance():
        draw.operand("b", draw.normal((outer * groups,)))


@draws("GlobalAveragePool", "GlobalMaxPool")
def global_pool(draw: Draw) -> None:
    draw.computed(draw.sizes(3, 5))
