"""Local functions and subgraphs: what a node reads, and a model without functions."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, defs

from bnn_vnnlib.errors import ModelError, UnsupportedError
from bnn_vnnlib.model.attributes import label

MAX_INLINED_NODES = 1_000_000
"""Functions may call each other: a file of some lines can stand for any number of nodes."""

MAX_DEPTH = 50
"""Of calls in calls."""


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes (the branches of an If, the body of a Loop)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def reads(node: NodeProto) -> Iterator[str]:
    """Names of the values that a node reads, its operands first, then what its subgraphs take from outside.

    Names that a subgraph defines itself are among them: no value of the graph around it has such a name.
    """
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from reads(inner)
        yield from (info.name for info in graph.output)


def inlined(proto: ModelProto) -> ModelProto:
    """The model without local functions: a copy, or the model itself where it has none.

    Raises
    ------
    UnsupportedError : a function that calls itself or has the name of an operator, or functions that stand for too
        many nodes
    ModelError : the functions cannot be inlined
    """
    if not proto.functions:
        return proto
    _refuse_growth(proto)
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(proto)
    except Exception as error:  # whatever the C++ side raises
        raise ModelError(f"its local functions cannot be inlined: {error}") from error


def _refuse_growth(proto: ModelProto) -> None:
    """Count the nodes that the functions stand for, before anything of that size is made."""
    bodies = {(function.domain, function.name, function.overload): function.node for function in proto.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: list[NodeProto], callers: tuple[tuple[str, str, str], ...]) -> int:
        """How many nodes these stand for, inside so many functions that call each other."""
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += sum(size(list(graph.node), callers) for graph in subgraphs(node))
            if key not in bodies:
                total += 1
                continue
            if defs.has(node.op_type, node.domain):  # ONNX leaves it to the runtime which of the two is meant
                raise UnsupportedError("a local function has the name of this operator", node=label(node))
            if key in callers or len(callers) == MAX_DEPTH:
                what = "calls itself" if key in callers else f"is nested deeper than {MAX_DEPTH}"
                raise UnsupportedError(f"the local function {node.op_type!r} {what}", node=label(node))
            if key not in sizes:
                sizes[key] = size(list(bodies[key]), (*callers, key))
            total += sizes[key]
        if total > MAX_INLINED_NODES:
            raise UnsupportedError(f"its local functions stand for more than {MAX_INLINED_NODES:,} nodes, the limit")
        return total

    size(list(proto.graph.node), ())
    for key, body in bodies.items():  # also those that nobody calls: the inliner looks at them, too
        size(list(body), (key,))
