"""What a run came to, counted; and why, where nothing was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.store import Entry


def by_category(entries: Iterable[Entry]) -> list[tuple[str, Counter[Verdict], float]]:
    """(category, how often each verdict, seconds in all), in the order of the entries."""
    counts: dict[str, Counter[Verdict]] = {}
    seconds: Counter[str] = Counter()
    for entry in entries:
        run = entry.record["run"]
        counts.setdefault(run["category"], Counter())[entry.verdict] += 1
        seconds[run["category"]] += run["run_time"]
    return [(category, count, seconds[category]) for category, count in counts.items()]


def first_reasons(reasons: Iterable[str | None], most: int = 3) -> list[str]:
    """The most frequent reasons, in words, the first of them first among equals."""
    counts = Counter(reason or "no reason is known" for reason in reasons)
    lines = [f"{count} times: {reason}" if count > 1 else reason for reason, count in counts.most_common(most)]
    rest = len(counts) - len(lines)
    return [*lines, f"and {rest} other reasons: see the column `reason` of table.csv"] if rest else lines
