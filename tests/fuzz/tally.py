"""How much bounds say: one that says nothing cannot be wrong, and that it was not found wrong proves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.table import Table

NEAR = 0.05
"""Informative is a bound within this of the truth; of a regression's outputs, in their standard deviations."""

KINDS = ("informative", "loose", "vacuous", "no stake")
Key = tuple[str, ...]


def kind(gap: float, *, vacuous: bool, stake: bool) -> str:
    """Of one side of a bound, `gap` away from the truth or from an estimate.

    stake : a slightly wrong bound could be noticed: of an event that never happens among the networks drawn, or always
        does, nobody will see that it was a little more frequent
    """
    if vacuous:
        return "vacuous"
    if not stake:
        return "no stake"
    return "informative" if gap <= NEAR else "loose"


def of_probability(lower: float, upper: float, truth: float) -> list[tuple[str, str]]:
    """Kinds of both bounds on P_safe, where the truth or an estimate of it is given."""
    stake = 0 < truth < 1
    return [
        ("lower", kind(truth - lower, vacuous=lower <= 0, stake=stake)),
        ("upper", kind(upper - truth, vacuous=upper >= 1, stake=stake)),
    ]


class Tally:
    """Sides of bounds by (family, query, method, side, kind)."""

    def __init__(self, counts: Iterable[tuple[list[str], int]] = ()) -> None:
        self.counts: Counter[Key] = Counter({tuple(key): count for key, count in counts})

    def add(self, family: str, query: str, method: str, sides: Iterable[tuple[str, str]]) -> None:
        """Sides and kinds of one bound."""
        for side, found in sides:
            self.counts[family, query, method, side, found] += 1

    def share(self) -> float:
        """Of informative sides among all."""
        total = self.counts.total()
        return sum(count for key, count in self.counts.items() if key[-1] == KINDS[0]) / total if total else 0.0

    def stored(self) -> list[tuple[list[str], int]]:
        """For a JSON file."""
        return [(list(key), count) for key, count in sorted(self.counts.items())]

    def table(self, title: str) -> Table:
        """One line for each family, query, method and side."""
        table = Table("family", "query", "method", "side", *KINDS, "share", title=title)
        for key in sorted({key[:-1] for key in self.counts}):
            row = [self.counts[*key, found] for found in KINDS]
            table.add_row(*key, *map(str, row), f"{row[0] / sum(row):.0%}")
        table.add_row("all", "", "", "", *(str(self._of(found)) for found in KINDS), f"{self.share():.0%}")
        return table

    def _of(self, found: str) -> int:
        return sum(count for key, count in self.counts.items() if key[-1] == found)
