"""The process that a caller brings along: how it does arithmetic, and the modes of torch, numpy and scipy.

Arithmetic. Bounds are proved for numbers that are rounded to nearest and underflow gradually (docs/bounds.md). Both can
be switched off, by a call (`torch.set_flush_denormal`, `fesetround`) or by loading a library that was built with fast
math. This is a setting of each thread; a new thread takes it over from the thread that starts it, and keeps it. So a
pool of worker threads can go on flushing to zero after its master has been set right, and is tested as well: by
products that each of its threads computes.

Modes. Gradients, devices, types and errors are put into their initial state while the package works, and put back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.errors import OptionError


def _floats(*bits: int) -> NDArray[np.float64]:
    """Numbers by their bits: where subnormal numbers are flushed, a literal could be another number."""
    return np.array(bits, np.int64).view(np.float64)


_PRODUCTS = np.stack([
    _floats(0x3FF0000000000001, 0x3FF0000000000001, 0x3FF0000000000002),  # (1 + 2^-52)^2: not rounded upwards
    _floats(0x3FF0000000000001, 0x3FEFFFFFFFFFFFFE, 0x3FF0000000000000),  # (1 + 2^-52) (1 - 2^-52): nor downwards
    _floats(0x0010000000000000, 0x3FE0000000000000, 0x0008000000000000),  # 2^-1022 / 2: an exact subnormal
    _floats(0x0010000000000001, 0x3FE0000000000000, 0x0008000000000000),  # (2^-1022 + 2^-1074) / 2: a rounded one
    _floats(0x0000000000000001, 0x7E70000000000000, 0x3B50000000000000),  # 2^-1074 2^1000: a subnormal factor
], axis=1)  # fmt: skip
"""(3, 5): left, right and their product, rounded to nearest (ties to even) with gradual underflow."""

_SINGLE, _DOUBLE = np.array([1, 0x7FFFFF], np.int32).view(np.float32), _floats(0x36A0000000000000, 0x380FFFFFC0000000)
"""The smallest and the largest subnormal of single precision, and the same in double precision."""

_GRAIN = 2**15
"""Elements of an operation for each thread that torch gives it to (at::internal::GRAIN_SIZE)."""

_BLOCKS = 256
"""OpenBLAS shares a dot product of more than 10,000 numbers among its threads; so many have a block of 128 each."""


def check_arithmetic() -> None:
    """Raise unless this thread and the worker threads that it computes with round to nearest and underflow gradually.

    Covered are this thread, the threads of torch's pool, and, once in a process, those of numpy's BLAS. It takes
    microseconds with one thread, and with more as long as it takes to wake them.

    Raises
    ------
    OptionError : says which threads, and what to do
    """
    _check_own_thread()
    _check_blas()
    _check_pool()


def _refuse(threads: str, remedy: str) -> NoReturn:
    raise OptionError(
        f"worker threads of {threads} do not round to nearest or flush subnormal numbers to zero, and bounds need IEEE "
        "arithmetic: they were started by a thread that did so (torch.set_flush_denormal, a library built with fast "
        f"math), and keep it as long as they live. Begin a new process, or {remedy}"
    )


def _check_own_thread() -> None:
    """Refuse to compute on a thread whose arithmetic is not that of IEEE, rounding to nearest."""
    left, right, product = _PRODUCTS
    with np.errstate(all="ignore"):
        exact = (left * right).view(np.int64) == product.view(np.int64)
        converted = _SINGLE.astype(np.float64).view(np.int64) == _DOUBLE.view(np.int64)
    if not exact[:2].all():
        raise OptionError(
            "this thread does not round to nearest (fesetround, or a library that calls it), and bounds need IEEE "
            "arithmetic: set FE_TONEAREST before the call"
        )
    if not (exact.all() and converted.all()):
        raise OptionError(
            "this thread flushes subnormal numbers to zero (torch.set_flush_denormal(True), or a library built with "
            "fast math, which sets this when it is loaded), and bounds need gradual underflow: call "
            "torch.set_flush_denormal(False) after the last import and before the call"
        )


def _check_pool() -> None:
    """The threads among which torch shares an operation: each multiplies one row."""
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    if torch is None or threads == 1:
        return
    left, right = torch.ones(2, _GRAIN, dtype=torch.float64, device="cpu")
    count = _PRODUCTS.shape[1]
    left[:count], right[:count] = torch.from_numpy(_PRODUCTS[:2].copy())
    found = (left.expand(threads, -1) * right)[:, :count].numpy().view(np.int64)
    if not (found == _PRODUCTS[2].view(np.int64)).all():
        _refuse("torch", "call torch.set_num_threads(1)")


@cache  # they are started when numpy is loaded, and stay
def _check_blas() -> None:
    """The threads of numpy's BLAS: they add subnormal numbers, and 1 + 2^-90 - 2^-90 - 1 is 0 to them.

    A kernel adds up every 8th, 16th or 32nd number for itself; so the four terms are 32 places apart.
    """
    small, terms = np.zeros((_BLOCKS, 128)), np.zeros((_BLOCKS, 4, 32))
    small.view(np.int64)[:, 0] = 1  # the bits of a subnormal number count 2^-1074
    terms[:, 0, 0], terms[:, 1], terms[:, 2], terms[:, 3, 0] = 1.0, 2.0**-90, -(2.0**-90), -1.0
    ones = np.ones(small.size)
    if np.dot(small.ravel(), ones).view(np.int64) != _BLOCKS or abs(np.dot(terms.ravel(), ones)) > 2.0**-60:
        _refuse("numpy's BLAS", "set OPENBLAS_NUM_THREADS=1")


class _Thread(threading.local):
    """Whether this thread is inside `plain_state`."""

    inside = False


_THREAD = _Thread()


@contextmanager
def plain_state(*, device: bool = True) -> Iterator[None]:
    """Checked arithmetic, and modes as they are in a new process: what every public function works under.

    Also a decorator. Inside another one it costs next to nothing. The arithmetic of this thread is checked again at the
    end, because a library that sets it may be loaded while we work; the result is then withheld. What a process has
    only once is left as it is, since other threads work with it: our tensors name their type.

    Parameters
    ----------
    device : also torch's default device; False where modules of the caller run, which may count on theirs

    Raises
    ------
    OptionError : arithmetic that bounds do not hold for; torch is tracing or transforming the caller
    """
    torch = sys.modules.get("torch")  # one that is not loaded yet will be in its initial state
    with ExitStack() as stack:
        if device and torch is not None and torch.empty(0).device.type != "cpu":  # set by a function mode of torch
            stack.enter_context(torch._C.DisableTorchFunction())
        if _THREAD.inside:
            yield
            return
        _put_aside(torch, stack)
        check_arithmetic()
        stack.callback(setattr, _THREAD, "inside", False)
        _THREAD.inside = True
        yield
        _check_own_thread()


def _put_aside(torch: Any, stack: ExitStack) -> None:
    """The modes of this thread, until the stack is closed."""
    stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
    if (special := sys.modules.get("scipy.special")) is not None:
        stack.enter_context(special.errstate(all="ignore"))
    if torch is None:
        return
    if torch.jit.is_tracing() or torch._C._are_functorch_transforms_active() or not _computes(torch):
        raise OptionError(
            "torch computes no numbers here: the call is inside a transform (torch.func, torch.vmap), a trace, or a "
            "mode such as FakeTensorMode; call it outside"
        )
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))


def _computes(torch: Any) -> bool:
    try:
        return bool(torch.ones(1, device="cpu").tolist() == [1.0])
    except RuntimeError:
        return False
