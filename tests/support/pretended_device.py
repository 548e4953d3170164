"""A pretended CUDA device: tensors that say they lie on `cuda:0` and compute on the CPU.

Every operator is checked as the real device checks it: tensors of one or more dimensions may not be mixed with those
of the CPU (an index may), nothing is read into numpy without `.cpu()`, and what is made without a device lies on the
CPU. Values are those of the CPU, so that results must be equal. What it cannot show: speed, and the rounding of CUDA's
kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
ATEN = torch.ops.aten
INDEXING = {ATEN.index.Tensor, ATEN.index_put_.default, ATEN._index_put_impl_.default}


class Pretended(Tensor):
    """A tensor that says it lies on the device; `held` is where its values are."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:
        return CUDA

    def cpu(self) -> Tensor:
        return ATEN._to_copy(self, device=CPU)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        device, dtype, _, _ = torch._C._nn._parse_to(*_place(args), **kwargs)
        return ATEN._to_copy(self, dtype=dtype, device=device or CUDA)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=CUDA)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.held})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.to:  # of a tensor of the CPU, to the place and type of a pretended one
                args = (args[0], *_place(args[1:]))
            if func is torch.nn.functional.one_hot:  # asks in C++ for the device, which is not pretended there
                return Pretended(func(args[0].held, *args[1:], **(kwargs or {})))
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _place(args: Any) -> Any:
    """The arguments of `Tensor.to` with a tensor replaced by its device and type."""
    return (args[0].device, args[0].dtype) if args and isinstance(args[0], Tensor) else args


class _Device(TorchDispatchMode):
    """Sees what is made on the device, which holds no pretended tensor yet."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    pretended = any(isinstance(leaf, Pretended) for leaf in tensors)
    target = kwargs.get("device")
    if target is not None:
        pretended, kwargs = torch.device(target).type == "cuda", {**kwargs, "device": CPU}
    elif pretended:
        _same_device(func, args, kwargs)
    found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if not pretended or func is ATEN._local_scalar_dense.default:
        return found
    if func._schema.is_mutable and not func._schema.name.endswith(".out") and isinstance(args[0], Pretended):
        return args[0]
    return tree_map(lambda leaf: Pretended(leaf) if isinstance(leaf, Tensor) else leaf, found)


def _same_device(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise as the device would if a tensor of the CPU is among the operands; numbers and indices may lie there."""
    if func in (ATEN.copy_.default, ATEN.index_put.default):  # the second in gradients only: zeros made in C++
        return
    operands = (args[0], args[2:]) if func in INDEXING and isinstance(args[0], Pretended) else (args, kwargs)
    for leaf in tree_flatten(operands)[0]:
        if isinstance(leaf, Tensor) and not isinstance(leaf, Pretended) and leaf.dim() > 0:
            raise RuntimeError(
                f"{func}: expected all tensors on {CUDA}, found one of shape {tuple(leaf.shape)} on the CPU"
            )


def _held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, Pretended) else leaf


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Within it, torch has one CUDA device."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) builds on the CPU, then moves
    try:
        with (
            patch("torch.cuda._lazy_init"),
            patch("torch.cuda.is_available", return_value=True),
            patch("torch.cuda.device_count", return_value=1),
            patch("torch.cuda.get_device_properties", return_value=SimpleNamespace(total_memory=2**32)),
            _Device(),
        ):
            yield CUDA
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
