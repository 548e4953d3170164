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
    probabilities: Any = (), activation: str = "Relu",
) -> bytes:  # fmt: skip
    """Gemm, activation, Gemm, ...: layers (W, b), with variances or samples (S, ..) of all of them."""
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
        nodes.append(helper.make_node("Gemm", [value, *names], [f"z{k}"], transB=1))
        value = f"z{k}"
        if k < len(layers) - 1:
            nodes.append(helper.make_node(activation, [value], [f"h{k}"]))
            value = f"h{k}"
    sizes = tensors["W0"].shape[1], len(tensors[f"b{len(layers) - 1}"])
    content: dict[str, Any] = {"format": 1, "family": "samples" if len(samples) else "gaussian_diag", "params": params}
    if len(samples):
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
