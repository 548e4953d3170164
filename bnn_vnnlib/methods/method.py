"""What a method is: one entry of the registry of its query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

NONE = "none"
"""In place of a method's name: of a side without a bound that says anything."""

Task = TypeVar("Task")
Bounds = TypeVar("Bounds")


@dataclass(frozen=True)
class Method(Generic[Task, Bounds]):
    """One way to bound P_safe (`safety.portfolio.METHODS`) or the decision (`decision.portfolio.METHODS`).

    Whatever a method says is sound, rounding included, and an item's bound does not depend on its neighbours, up to
    rounding. `tests/contract` holds every registered method to that.

    Attributes
    ----------
    name : for people and for the record
    serves : None, or why the method does not serve the task, in words that go behind "NAME does not serve: "
    bounds : bounds a task that it serves, see the registry
    """

    name: str
    serves: Callable[[Task], str | None]
    bounds: Bounds


def reasons(methods: tuple[Method[Task, Bounds], ...], task: Task) -> dict[str, str]:
    """By name, why methods do not serve the task; those that serve are not listed."""
    found = {method.name: method.serves(task) for method in methods}
    return {name: reason for name, reason in found.items() if reason is not None}
