"""What this version can do, in the words of VNN-LIB 2.x (`bnn-vnnlib supports ...`).

Nothing here is a claim typed in: tables are read, and the rest is tried on the parser itself with a query that needs
the capability. A theory is listed if, and only if, its query is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.question.property import Property

_ONE = "(declare-network f (declare-input X {0} [1]) (declare-output Y {0} [1]))"
_BOX = "(assert (and (>= X[0] 0.0) (<= X[0] 1.0)))"
_TWO = "(declare-network g {0} (declare-input U float32 [1]) (declare-output V float32 [1]))"
_THREE = "(declare-network h (declare-input S float32 [1]) (declare-output T float32 [1]))"
_HIDDEN = _ONE.format("float32").replace("(declare-output", '(declare-hidden H float32 [1] "h") (declare-output')
_SEVERAL_TENSORS = (
    "(declare-network f (declare-input X float32 [1]) (declare-input Z float32 [1]) "
    "(declare-output Y float32 [1]) (declare-output W float32 [1]))"
)
_FLOAT = _ONE.format("float32")
_ROW = "(assert (>= Y[0] 0.5))"

# theory -> a query that needs it, after the line with the version
_PROBES = {
    "NH": f"{_FLOAT}{_BOX}{_ROW}",
    "H": f"{_HIDDEN}{_BOX}(assert (>= H[0] 0.5))",
    "SIO": f"{_FLOAT}{_BOX}{_ROW}",
    "MIO": f"{_SEVERAL_TENSORS}{_BOX}(assert (and (>= Z[0] 0.0) (<= Z[0] 1.0))){_ROW}(assert (>= W[0] 0.5))",
    "SNET": f"{_FLOAT}{_BOX}{_ROW}",
    "MENET": f"{_FLOAT}{_TWO.format('(equal-to f)')}{_BOX}(assert (and (>= U[0] 0.0) (<= U[0] 1.0))){_ROW}",
    "MINET": f"{_FLOAT}{_TWO.format('(isomorphic-to f)')}{_BOX}(assert (and (>= U[0] 0.0) (<= U[0] 1.0))){_ROW}",
    "MNET": f"{_FLOAT}{_TWO.format('')}{_THREE}{_BOX}"
    f"(assert (and (>= U[0] 0.0) (<= U[0] 1.0) (>= S[0] 0.0) (<= S[0] 1.0))){_ROW}",
    "SNC": f"{_FLOAT}{_BOX}{_ROW}",
    "MNC": f"{_FLOAT}{_BOX}(assert (>= Y[0] X[0]))",
    "BND": f"{_FLOAT}{_BOX}{_ROW}",
    "OUTC": f"{_SEVERAL_TENSORS}{_BOX}(assert (and (>= Z[0] 0.0) (<= Z[0] 1.0)))(assert (>= Y[0] W[0]))",
    "LIN": f"{_FLOAT}{_BOX}(assert (>= (+ (* 2.0 X[0]) Y[0]) 0.5))",
    "POLY": f"{_FLOAT}{_BOX}(assert (>= (* Y[0] Y[0]) 0.5))",
}
_ELEMENT_TYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128", "string", "real",
)  # fmt: skip
_OLD = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))(assert (>= Y_0 0.5))"
_LAST_MINOR = 20


def _opset_versions() -> list[str]:
    """The oldest and the newest operator set."""
    from onnx.defs import onnx_opset_version

    from bnn_vnnlib.model.importer import OLDEST_OPSET

    return [str(OLDEST_OPSET), str(onnx_opset_version())]


def _element_types() -> list[str]:
    """Types that the variables of a query may have."""
    return [kind for kind in _ELEMENT_TYPES if _accepted(f"{_ONE.format(kind)}{_BOX}{_ROW}") is not None]


def operators() -> list[str]:
    """The supported operators, one a line; without types, which means all element types."""
    from bnn_vnnlib.model import supported_operators

    return supported_operators()


def _vnnlib_versions() -> list[str]:
    """Oldest and newest; a version is known if it is accepted without the remark that it is read as another one."""
    known = [f"2.{minor}" for minor in range(_LAST_MINOR) if _known(f"2.{minor}")]
    if _parsed(_OLD) is not None:
        known.insert(0, "1.0")
    return [known[0], known[-1]]


def _known(version: str) -> bool:
    found = _accepted(_PROBES["SNET"], version)
    return found is not None and not any("is read as" in note for note in found.notes)


def theories(*names: str) -> list[str]:
    """Those of the named parts of VNN-LIB of which a sample query is accepted."""
    return [name for name in names if _accepted(_PROBES[name]) is not None]


def disjunctions() -> list[str]:
    """Whether disjuncts over one input set are decided together, as cases of one property, and not one by one."""
    found = _accepted(f"{_FLOAT}{_BOX}(assert (or (>= Y[0] 0.5) (<= Y[0] -0.5)))")
    together = found is not None and found.num_cases == 2 and len(found.boxes) == 1
    return [_truth(together)]


def _option_of_verify(name: str) -> list[str]:
    """Whether `verify` has this option."""
    from inspect import signature

    from bnn_vnnlib.cli.verify import verify

    return [_truth(name in signature(verify).parameters)]


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _accepted(query: str, version: str = "2.0") -> Property | None:
    return _parsed(f"(vnnlib-version <{version}>)\n{query}")


def _parsed(text: str) -> Property | None:
    from bnn_vnnlib.vnnlib import parse_property

    try:
        return parse_property(text)
    except InputError:
        return None


def _of(*names: str) -> Callable[[], Iterable[str]]:
    return lambda: theories(*names)


CAPABILITIES: dict[str, Callable[[], Iterable[str]]] = {
    "onnx-opset-versions": _opset_versions,
    "onnx-element-types": _element_types,
    "onnx-operators": operators,
    "vnnlib-versions": _vnnlib_versions,
    "hidden-node-theories": _of("NH", "H"),
    "multiple-input-output-theories": _of("SIO", "MIO"),
    "multiple-network-theories": _of("SNET", "MENET", "MINET", "MNET"),
    "multiple-node-comparison-theories": _of("SNC", "MNC"),
    "arithmetic-complexity-theories": _of("BND", "OUTC", "LIN", "POLY"),
    "optimised-disjunctive-reasoning": disjunctions,
    "serialise-assignments": lambda: _option_of_verify("serialise_assignments"),
    "unsat-proofs": lambda: _option_of_verify("unsat_proofs"),
}
"""Name of the option -> the lines of the answer."""
