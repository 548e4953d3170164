"""A deterministic torch module as ONNX, with its parameters under their own names and in their own layouts."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto

from bnn_vnnlib.errors import ModelError, UnsupportedError
from bnn_vnnlib.model.attributes import array_of, holders
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.model.recovery import is_stochastic

if TYPE_CHECKING:
    from torch import Tensor, nn

_OPSET = 17
_CHILD = "net."


def exported(module: nn.Module, x: Tensor) -> ModelProto:
    """The module in the mode that it is in, as ONNX for one input, through the exporter that traces.

    Parameters
    ----------
    x : (N, ...); the first row is traced
    module : if it returns a tuple, as networks that add up a KL term do, its first entry is the output

    Raises
    ------
    ModelError : the exporter fails, or the file computes something else than the module
    UnsupportedError : the module draws random numbers
    """
    import torch
    from torch import nn

    class Root(nn.Module):
        """The exporter merges weights of the same numbers unless the outermost module is in training mode."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, inputs: Tensor) -> Tensor:
            return first(self.net(inputs))

    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own age
        path = Path(folder) / "net.onnx"
        try:
            torch.onnx.export(
                Root(module),
                (x[:1],),
                str(path),
                dynamo=False,
                do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                opset_version=_OPSET,
                input_names=["input"],
                output_names=["output"],
            )
        except Exception as error:  # the exporter raises whatever the module raises
            raise ModelError(f"torch.onnx.export cannot write this module: {error}") from error
        proto = _renamed(read_proto(path)[0])
    if is_stochastic(proto):
        raise UnsupportedError(
            "the module still draws random numbers after all layers of known libraries were replaced by their means: a "
            "layer that no layout describes. Give its layout (bnn_vnnlib.adapters.Layout), or export the module as it "
            "is and use `bnn-vnnlib recover`"
        )
    return proto


def first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The output, without the KL term that some networks return beside it."""
    return output[0] if isinstance(output, tuple | list) else output


def plain_export(module: nn.Module, x: Tensor) -> ModelProto:
    """A deterministic module in evaluation mode as ONNX; the module itself is left as it is."""
    return exported(copied(module, {}), x.cpu())


def copied(module: nn.Module, twins: dict[int, nn.Module]) -> nn.Module:
    """A copy on the CPU, in evaluation mode, with `twins` in place of the parts of these ids.

    Raises
    ------
    ModelError : the module keeps what cannot be copied, such as its last output with the graph of its gradients
    """
    try:
        copy: nn.Module = deepcopy(module, dict(twins))
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"the module cannot be copied ({error}); let it keep no outputs of its last run") from error
    return copy.cpu().eval()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context in which a module is in evaluation mode; afterwards every part has its mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def refuse_changed(proto: ModelProto, means: dict[str, np.ndarray]) -> None:
    """Raise unless every weight is in the file under its name, unchanged.

    Raises
    ------
    ModelError : names the weight
    """
    tensors = holders(proto)
    for name, mean in means.items():
        if name not in tensors:
            raise ModelError(
                "is a weight of the module that its export does not hold: no output depends on it", node=name
            )
        if not np.array_equal(array_of(tensors[name]), mean):
            raise ModelError("was changed by the exporter, so that its posterior does not fit any more", node=name)


def _renamed(proto: ModelProto) -> ModelProto:
    """Initializers under the module's own names, without the root's."""
    names = {tensor.name: tensor.name.removeprefix(_CHILD) for tensor in proto.graph.initializer}
    for tensor in proto.graph.initializer:
        tensor.name = names[tensor.name]
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return proto
