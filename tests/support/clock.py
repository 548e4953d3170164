"""A clock that tests stop where they like."""

from __future__ import annotations

import itertools
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch

from bnn_vnnlib.system.clock import Deadline


class Clock:
    """Replaces the clock: time is up, for whoever has a limit, after `allowed` looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int = 10**9) -> None:
        self.looks, self.allowed = 0, allowed
        monkeypatch.setattr(Deadline, "passed", property(self._look))

    def stopped_at(self, look: int) -> None:
        """From now on `look` looks are in time."""
        self.looks, self.allowed = 0, look

    def _look(self, deadline: Deadline) -> bool:
        self.looks += 1
        return deadline.at is not None and self.looks > self.allowed


def at_looks(looks: Collection[int], run: Callable[[], Any]) -> list[Any]:
    """What the run returns if time is up at these looks at the clock (0, 1, ..), as far as it takes so many; at last,
    what it returns if time is up after them.

    Each of these looks forks the process: for the child time is up, and the parent goes on as soon as it has the
    child's result. So all that happens before a look happens once. One thread: others do not survive a fork.
    """
    found: list[Any] = []
    child: list[int] = []
    count = itertools.count()

    def passed(deadline: Deadline) -> bool:
        if deadline.at is None:
            return False
        look = next(count)
        if child or look > max(looks):
            return True
        if look not in looks:
            return False
        ours, theirs = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            process = os.fork()
        if process == 0:
            os.close(ours)
            child.append(theirs)
            return True
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(process, 0)
        found.append(pickle.loads(answer))
        return False

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Deadline, "passed", property(passed))
            result = run()
    except BaseException:
        if not child:
            raise
        result = traceback.format_exc()
    finally:
        torch.set_num_threads(threads)
    if child:
        with os.fdopen(child[0], "wb") as pipe:
            pipe.write(pickle.dumps(result))
        os._exit(0)
    return [*found, result]
