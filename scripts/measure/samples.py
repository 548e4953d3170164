"""Memory and time of weight samples: a 784-128-10 network of random weights, as many samples as asked for.

    python scripts/measure/samples.py [--count 1000] [--limit 60] [--folder DIR]

A process of its own reads the file and asks both queries of one ball; the peaks are those of this process beyond what
the libraries take. The file is made anew in the folder (a temporary one by default): 407 kB a sample.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

from bnn_vnnlib.model import WeightSamples, attach

SIZES, RADIUS = (784, 128, 10), 0.002

ASK = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(1)
import bnn_vnnlib.methods.safety.portfolio, bnn_vnnlib.methods.decision
from bnn_vnnlib import read_model, verify_batch

def peak():
    with open("/proc/self/status") as status:  # ru_maxrss would begin with that of the process that starts this one
        return int(status.read().split("VmHWM:")[1].split()[0]) / 1024

path, limit, radius = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
before, begun = peak(), time.process_time()
net = read_model(path)
found = {"read": (time.process_time() - begun, peak() - before, "")}
x = np.random.default_rng(0).random((1, net.network.signature.input_size))
for query in ("probabilistic", "decision"):
    begun = time.process_time()
    said = {"likelihood": "categorical"} if query == "decision" else {}
    answer = verify_batch(net, x - radius, x + radius, labels=[0], query=query, timeout=limit, **said)
    found[query] = (time.process_time() - begun, peak() - before, str(answer.verdicts[0]))
print(json.dumps(found))
"""


def written(count: int, path: Path) -> None:
    """A model with so many samples, in float32."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for place, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        tensors[f"W{place}"] = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        tensors[f"b{place}"] = np.zeros(outputs, np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "W0", "b0"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("Gemm", ["h", "W1", "b1"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "samples",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZES[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIZES[-1]])],
        [numpy_helper.from_array(values, name) for name, values in tensors.items()],
    )  # fmt: skip
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    drawn = {
        name: values
        + np.float32(0.1 * np.abs(values).mean() + 1e-3) * rng.standard_normal((count, *values.shape), np.float32)
        for name, values in tensors.items()
    }
    onnx.save(attach(plain, WeightSamples(drawn, np.full(count, 1 / count))), path)


def _spread(values: np.ndarray) -> np.float32:
    return np.float32(0.1 * np.abs(values).mean() + 1e-3)


def main(count: int = 1000, limit: float = 60.0, folder: Annotated[Path | None, typer.Option()] = None) -> None:
    """Print a line for reading and for each query."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "samples.onnx"
        written(count, path)
        size = path.stat().st_size / 2**20
        command = [sys.executable, "-c", ASK, str(path), str(limit), str(RADIUS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  (our own interpreter)
    print(f"{count} samples, {size:.0f} MiB")
    for what, (seconds, peak, verdict) in json.loads(done.stdout).items():
        print(f"{what}: {seconds:.1f} processor s, peak {peak:.0f} MiB ({peak / size:.2f} times the file) {verdict}")


if __name__ == "__main__":
    typer.run(main)
