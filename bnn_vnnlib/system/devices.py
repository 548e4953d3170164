"""Where tensors live: the CPU or a CUDA device, and what a bound may trust there.

The payments of `rounding` hold for any order of summation in IEEE float64. On a CUDA device two things break
that: cuDNN may convolve by Fourier transforms, and cuBLAS can be told to emulate float64. The first is switched off
where convolutions are computed, the second is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bnn_vnnlib.errors import OptionError

if TYPE_CHECKING:
    import torch

EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"
"""Environment variable by which cuBLAS replaces float64 products by fixed-point ones."""


def find_device(name: str | None) -> torch.device:
    """The device of that name; None is the CPU.

    Raises
    ------
    OptionError : no such device, one without float64 or unknown rounding, or products that are no float64 products
    """
    import torch

    if name is None:
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"unknown device {name!r}; expected cpu, cuda or cuda:NUMBER") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise OptionError(f"bounds are computed on cpu and cuda, not on {name!r}: rounding is unknown there")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise OptionError(f"there is no device {name!r}: torch {torch.__version__} finds {count} CUDA devices")
    if os.environ.get(EMULATION, "0") not in ("", "0"):
        raise OptionError(f"{EMULATION} is set: emulated products are no float64 products; unset it")
    return torch.device("cuda", device.index or 0)


@contextmanager
def plain_convolution(device: torch.device) -> Iterator[None]:
    """Convolutions as sums of products, never by Fourier transforms."""
    if device.type != "cuda":
        yield
        return
    import torch

    with torch.backends.cudnn.flags(enabled=False):
        yield
