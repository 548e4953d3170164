"""Models, properties and certificates, written number by number."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib_check.cli import check

ACCEPTED = "accepted: "


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def model(
    layers: Sequence[tuple[Any, Any]], variances: Sequence[tuple[Any, Any]] = (), samples: Sequence[Any] = (),
    probabilities: Any = (), activation: str = "Relu", components: Sequence[Any] = (),
) -> bytes:  # fmt: skip
    """Gemm, activation, Gemm, ...: layers (W, b), with variances or samples (S, ..) of all of them; or components of a
    mixture (layers, variances)."""
    tensors, nodes, params, value = {}, [], {}, "x"
    extra = {"variance": variances, "samples": samples}
    for k, parts in enumerate(layers):
        names = [f"W{k}", f"b{k}"]
        for i, (name, part) in enumerate(zip(names, parts, strict=True)):
            tensors[name] = np.array(part, np.float64)
            for what, given in extra.items():
                if len(given):
                    tensors[f"{name}_{what}"] = other = np.array(given[k][i], np.float64)
                    params[name] = {
                        what: f"{name}_{what}", f"sha256_{what}": digest(other), "sha256_mean": digest(tensors[name]),
                        "shape": list(tensors[name].shape),
                    }  # fmt: skip
        if components:
            sizes_of = {name: list(tensors[name].shape) for name in names}
            params |= {name: {"sha256_mean": digest(tensors[name]), "shape": sizes_of[name]} for name in names}
        nodes.append(helper.make_node("Gemm", [value, *names], [f"z{k}"], transB=1))
        value = f"z{k}"
        if k < len(layers) - 1:
            nodes.append(helper.make_node(activation, [value], [f"h{k}"]))
            value = f"h{k}"
    sizes = tensors["W0"].shape[1], len(tensors[f"b{len(layers) - 1}"])
    content: dict[str, Any] = {"format": 1, "family": "samples" if len(samples) else "gaussian_diag", "params": params}
    if components:
        content |= {"family": "mixture", "components": []}
    for index, (means, spreads) in enumerate(components):
        own: dict[str, Any] = {}
        for k in range(len(layers)):
            for i, name in enumerate((f"W{k}", f"b{k}")):
                entry = own[name] = {"shape": list(tensors[name].shape)}
                for what, part in (("mean", means[k][i]), ("variance", spreads[k][i])):
                    entry[what] = place = f"{name}_component{index}_{what}"
                    tensors[place] = np.array(part, np.float64)
                    entry[f"sha256_{what}"] = digest(tensors[place])
        content["components"].append({"family": "gaussian_diag", "params": own})
    if len(samples) or components:
        tensors["posterior_probabilities"] = p = np.array(probabilities, np.float64)
        content["probabilities"] = {
            "probabilities": "posterior_probabilities",
            "sha256_probabilities": digest(p),
            "shape": [len(p)],
        }
    sides = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, size])
        for name, size in zip(("x", value), sizes, strict=True)
    ]
    stored = [numpy_helper.from_array(part, name) for name, part in tensors.items()]
    proto = helper.make_model(helper.make_graph(nodes, "g", sides[:1], sides[1:], stored))
    if params:
        helper.set_model_props(proto, {"bnn.posterior": json.dumps(content)})
    return proto.SerializeToString()


def convolution(
    kernel: np.ndarray, bias: np.ndarray, shape: Sequence[int], kernel_variance: np.ndarray, bias_variance: np.ndarray,
    **attributes: Any,
) -> bytes:  # fmt: skip
    """One Conv, with the variances of its numbers."""
    tensors = {"W": kernel, "b": bias, "W_variance": kernel_variance, "b_variance": bias_variance}
    params = {
        name: {
            "variance": f"{name}_variance", "sha256_variance": digest(tensors[f"{name}_variance"]),
            "sha256_mean": digest(tensors[name]),
        }
        for name in "Wb"
    }  # fmt: skip
    node = helper.make_node("Conv", ["x", "W", "b"], ["y"], **attributes)
    sides = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, list(shape) if name == "x" else None) for name in "xy"
    ]
    stored = [numpy_helper.from_array(part, name) for name, part in tensors.items()]
    proto = helper.make_model(helper.make_graph([node], "g", sides[:1], sides[1:], stored))
    helper.set_model_props(
        proto, {"bnn.posterior": json.dumps({"format": 1, "family": "gaussian_diag", "params": params})}
    )
    return proto.SerializeToString()


def prop(box: Sequence[tuple[Any, Any]], outputs: int, violation: str) -> bytes:
    """A box of decimals, and a formula over Y_i."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(box))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    lines += [f"(assert (>= X_{i} {low}))\n(assert (<= X_{i} {high}))" for i, (low, high) in enumerate(box)]
    return "\n".join([*lines, f"(assert {violation})"]).encode()


@dataclass
class Instance:
    """Files of one instance; `claim` writes a certificate, and `said` is what the checker says of it."""

    folder: Path
    model: bytes
    prop: bytes

    def claim(
        self, proof: Any, arrays: Mapping[str, Any], verdict: str = "unsat", bound: str | None = None, **changed: Any
    ) -> dict[str, Any]:  # fmt: skip
        """A manifest; its arrays go into the file with `write`."""
        self.arrays = {name: np.asarray(values) for name, values in arrays.items()}
        claim = {"verdict": verdict} | ({} if bound is None else {"bound": bound})
        content: dict[str, Any] = {"format": 1, "producer": "by hand"}
        for role, data in (("model", self.model), ("property", self.prop)):
            content[role] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        content["query"] = "deterministic" if bound is None else "probabilistic"
        if bound is not None:
            content |= {"tau_safe": "0.95", "tau_unsafe": "0.95"}
        return {**content, "claim": claim, "proof": proof, **changed}

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        return self.folder / "m.onnx", self.folder / "p.vnnlib", self.folder / "c.cert"

    def write(self, manifest: Any) -> tuple[Path, Path, Path]:
        """All three files."""
        paths = self.paths
        paths[0].write_bytes(self.model)
        paths[1].write_bytes(self.prop)
        with zipfile.ZipFile(paths[2], "w") as archive:
            archive.writestr("manifest.json", manifest if isinstance(manifest, str) else json.dumps(manifest))
            for name, values in self.arrays.items():
                stream = io.BytesIO()
                np.lib.format.write_array(stream, values, (1, 0))
                archive.writestr(name, stream.getvalue())
        return paths

    def said(self, manifest: Any, **asked: str) -> str:
        """What is accepted; raises what the checker raises."""
        return check(*self.write(manifest), asked)


LINEAR: dict[str, Any] = {"rule": "linear/1"}


def items(leaf: Any = None, *, tree: Any = None, number: int = 1) -> dict[str, Any]:
    """Items that use the arrays box, inputs, cuts."""
    node = {"rule": "split_inputs/1", "inputs": "inputs", "cuts": "cuts", "leaf": leaf or LINEAR}
    item = {"box": "box", "tree": tree or node}
    return {"rule": "items/1", "items": [item] * number}


def one_leaf(lower: Any, upper: Any) -> dict[str, Any]:
    """Arrays of an item that is not split."""
    return {
        "box": np.array([lower, upper], np.float64), "inputs": np.array([-1], np.int32), "cuts": np.array([0.0]),
    }  # fmt: skip


def tails(lower: Sequence[str] = (), upper: Sequence[str] = (), near: Sequence[str] | None = None) -> dict[str, Any]:
    """A leaf with claims."""
    leaf: dict[str, Any] = {"rule": "tails/1", "lower": list(lower), "upper": list(upper)}
    return leaf if near is None else {**leaf, "near": list(near)}


SIGNS = {"neurons": "neurons", "slopes": "slopes", "beta": "beta", "rows": "rows"}
"""The arrays of a tree of signs, as `signs` names them."""


def signs() -> dict[str, Any]:
    """A tree of signs for the only case."""
    return {"rule": "items/1", "items": [{"box": "box", "tree": {"rule": "split_signs/1", "cases": [dict(SIGNS)]}}]}


def sign_arrays() -> dict[str, Any]:
    """For `RAMP`, split at x = 1, the kink of the second neuron."""
    return {
        "box": np.array([[-1.0], [2.0]]), "neurons": np.array([1, -1, -1], np.int32),
        "slopes": np.zeros((2, 2)), "beta": np.array([[0.0, 2 / 3], [0.0, 1 / 3]]), "rows": np.ones((2, 1)),
    }  # fmt: skip


RAMP = [([[1.0], [1.0]], [0.0, -1.0]), ([[1.0, -1.0]], [0.0])]
"""relu(x) - relu(x - 1)."""
