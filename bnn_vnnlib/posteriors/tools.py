"""Tools of others that clean a graph up; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal

from onnx import ModelProto

from bnn_vnnlib.errors import InputError, ModelError, OptionError
from bnn_vnnlib.model.files import serialised

Tool = Literal["onnxruntime", "onnxsim", "onnxslim", "onnxoptimizer"]
_FUSIONS = ["ConvBNFusion", "ConvMulFusion", "ConvAddFusion", "GemmSumFusion", "MatMulBNFusion", "PadFusion"]
"""onnxruntime's rewrites that compute with weights."""


def run_tool(tool: Tool, proto: ModelProto, fuse: bool) -> ModelProto:
    """The network after the tool's clean-up, `fuse` or not its fusions of layers.

    Raises
    ------
    OptionError : the tool is not installed
    ModelError : the tool fails
    """
    try:
        return _TOOLS[tool](proto, fuse)
    except ImportError as error:
        raise OptionError(f"{tool} is not installed: pip install {tool}, or use another --tool") from error
    except InputError:
        raise
    except Exception as error:  # whatever the tool raises
        raise ModelError(f"{tool} does not accept the model: {error}") from error


def _onnxruntime(proto: ModelProto, fuse: bool) -> ModelProto:
    import tempfile

    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        skipped = [] if fuse else _FUSIONS
        ort.InferenceSession(serialised(proto), options, ["CPUExecutionProvider"], disabled_optimizers=skipped)
        return onnx.load(path)


def _onnxsim(proto: ModelProto, fuse: bool) -> ModelProto:
    onnxoptimizer, onnxsim = import_module("onnxoptimizer"), import_module("onnxsim")
    skipped = [] if fuse else [name for name in onnxoptimizer.get_available_passes() if name.startswith("fuse_")]
    simple, _ = onnxsim.simplify(proto, skipped_optimizers=skipped)
    return simple


def _onnxslim(proto: ModelProto, fuse: bool) -> ModelProto:
    onnxslim = import_module("onnxslim")
    copy = ModelProto()
    copy.CopyFrom(proto)
    return onnxslim.slim(copy, skip_optimizations=None if fuse else ["graph_fusion"])


def _onnxoptimizer(proto: ModelProto, fuse: bool) -> ModelProto:
    onnxoptimizer = import_module("onnxoptimizer")
    passes = [name for name in onnxoptimizer.get_fuse_and_elimination_passes() if fuse or not name.startswith("fuse_")]
    return onnxoptimizer.optimize(proto, passes)


_TOOLS: dict[Tool, Callable[[ModelProto, bool], ModelProto]] = {
    "onnxruntime": _onnxruntime,
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxoptimizer": _onnxoptimizer,
}
