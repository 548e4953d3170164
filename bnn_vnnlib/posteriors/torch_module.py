"""A model as a torch module, read by onnx2torch: independently of this package's own reading of the graph.

Which parameter of the module is which weight of the file is not taken from names, which onnx2torch makes up. It
converts the network once more with marks, numbers that occur once, in place of the weights (`simplify.Fingerprints`),
and every entry is found again by its mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_vnnlib.errors import OptionError, PosteriorError, UnsupportedError, names_arguments
from bnn_vnnlib.model import Model, sample
from bnn_vnnlib.network.families import names_of
from bnn_vnnlib.posteriors.parts import with_values
from bnn_vnnlib.posteriors.simplify import Fingerprints, Places
from bnn_vnnlib.system.environment import plain_state

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import Tensor, nn


@names_arguments
@plain_state()
def to_torch(model: Model) -> nn.Module:
    """The network of the means as a torch module, in evaluation mode, with the weights as parameters.

    `module(x)` takes what the ONNX graph takes, usually one input of shape (1, ...). `module.sample(seed)` puts weights
    drawn from the posterior into the module, `module.reset()` the means. Needs onnx2torch (the extra `torch-tools`).

    Raises
    ------
    OptionError : onnx2torch is not installed
    UnsupportedError : it cannot convert the graph
    PosteriorError : it computes with an uncertain weight while it converts, so that no parameter is that weight
    """
    import onnx
    import torch
    from torch import nn

    proto = onnx.load_model_from_string(model.onnx_bytes)
    names = [] if model.posterior is None else sorted(names_of(model.posterior))
    marks = Fingerprints(proto, names)
    places, means = _places(marks), model.network.tensors

    class FromOnnx(nn.Module):
        """The ONNX model as a torch module whose weights can be drawn from its posterior (see `to_torch`); `weights`
        says which parameters are uncertain.
        """

        def __init__(self) -> None:
            super().__init__()
            self.graph = _converted(with_values(proto, {name: means[name] for name in names}))
            self.weights = tuple(f"graph.{name}" for name in places)
            self.reset()

        def forward(self, *x: Tensor) -> Any:
            return self.graph(*x)

        def reset(self) -> nn.Module:
            """Set the weights to the posterior means; returns the module."""
            return self._put({name: means[name] for name in names})

        def sample(self, seed: int | None = None) -> nn.Module:
            """Weights drawn from the posterior; all of them at once, so that correlations are kept."""
            if model.posterior is None:
                raise PosteriorError("the model carries no posterior, so there is nothing to draw from")
            generator = torch.Generator()
            generator.seed() if seed is None else generator.manual_seed(seed)
            drawn = sample(model.network, model.posterior, 1, generator)
            return self._put({name: np.asarray(values[0].numpy()) for name, values in drawn.items()})

        def _put(self, values: dict[str, Any]) -> nn.Module:
            if values:
                joined = marks.joined(values)
                with torch.no_grad():
                    for name, tensor in _tensors(self.graph):
                        if name in places:
                            _fill(tensor, places[name], joined)
            return self

    return FromOnnx().eval()


def _places(marks: Fingerprints) -> dict[str, Places]:
    """Where the weights are in the tensors of the converted module, by name; -1 where there is none."""
    places = {name: marks.locate(tensor.detach().numpy()) for name, tensor in _tensors(_converted(marks.marked))}
    places = {name: found for name, found in places.items() if (found >= 0).any()}
    lost = np.setdiff1d(np.arange(marks.size), np.concatenate([np.zeros(0), *(p.ravel() for p in places.values())]))
    if len(lost):
        gone = next(
            name for name, (start, shape) in marks.spans.items() if start <= lost[0] < start + np.prod(shape, dtype=int)
        )
        message = "onnx2torch changes this weight while it converts the graph, so it cannot be drawn"
        raise PosteriorError(message, node=gone)
    return places


def _fill(tensor: Tensor, places: Places, joined: Any) -> None:
    import torch

    new = torch.tensor(np.where(places >= 0, joined[places], tensor.detach().double().numpy()))
    tensor.copy_(new.to(tensor.dtype))


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _converted(proto: ModelProto) -> nn.Module:
    try:
        import onnx2torch
    except ImportError:
        raise OptionError("onnx2torch is not installed: pip install 'bnn-vnnlib[torch-tools]'") from None
    try:
        module: nn.Module = onnx2torch.convert(proto).eval()
    except Exception as error:  # whatever it raises
        reason = " ".join(str(error).split())
        raise UnsupportedError(f"onnx2torch cannot convert this graph: {reason}") from None
    return module


# Cross-check


@dataclass(frozen=True)
class CrossCheck:
    """How far two readings of the graph are apart, at random inputs with the means as weights.

    Attributes
    ----------
    inputs : how many were tried
    difference : the largest difference of an output
    scale : the largest output
    """

    inputs: int
    difference: float
    scale: float

    @property
    def agrees(self) -> bool:
        """Whether both agree up to what rounding in single precision explains."""
        return self.difference <= 1e-4 * max(1.0, self.scale)


@plain_state()
def cross_check(model: Model, count: int = 20, seed: int = 0) -> CrossCheck:
    """Compare this package's reading of the graph with onnx2torch's.

    Raises
    ------
    OptionError, UnsupportedError : onnx2torch is not installed, or cannot convert or run the graph
    """
    import torch

    from bnn_vnnlib.network.evaluate import evaluate

    module = to_torch(model)
    signature = model.network.signature
    x = np.random.default_rng(seed).normal(size=(count, signature.input_size)).astype(np.float32)
    kinds = [getattr(torch, variable.element_type) for variable in signature.inputs]
    ends = np.cumsum([0, *(variable.size for variable in signature.inputs)])
    rows = []
    with torch.no_grad():
        for row in x:
            given = [
                torch.tensor(row[ends[k] : ends[k + 1]]).reshape(variable.shape).to(kinds[k])
                for k, variable in enumerate(signature.inputs)
            ]
            try:
                found = module(*given)
            except Exception as error:
                reason = " ".join(str(error).split())
                raise UnsupportedError(f"onnx2torch's module cannot run: {reason}") from None
            parts = found if isinstance(found, tuple | list) else [found]
            rows.append(np.concatenate([part.double().reshape(-1).numpy() for part in parts]))
        ours = evaluate(model.network, torch.tensor(x.astype(np.float64)), softmax=True).numpy()
    theirs = np.array(rows)
    if theirs.shape != ours.shape:
        raise UnsupportedError(f"onnx2torch gives {theirs.shape[1]} numbers, this package reads {ours.shape[1]}")
    return CrossCheck(count, float(np.abs(theirs - ours).max()), float(np.abs(ours).max()))
