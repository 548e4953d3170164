"""What a run came to, counted."""

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
