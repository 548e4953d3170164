"""What a run came to, counted; and why, where nothing was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bnn_vnnlib.result import Verdict
from bnn_vnnlib.runs.records import Entry


def by_category(entries: Iterable[Entry]) -> list[tuple[str, Counter[Verdict], float]]:
    """(category, how often each verdict, seconds in all), in the order of the entries."""
    counts: dict[str, Counter[Verdict]] = {}
    seconds: Counter[str] = Counter()
    for entry in entries:
        run = entry.record["run"]
        counts.setdefault(run["category"], Counter())[entry.verdict] += 1
        seconds[run["category"]] += run["run_time"]
    return [(category, count, seconds[category]) for category, count in counts.items()]


def causes(entries: Iterable[Entry]) -> str | None:
    """Why nothing was decided: `12 unknown or timeout: 9 weak bound (5 layer 1), 3 weak network`; None if all was.

    With each cause the part of the question in which most of these bounds lose most.
    """
    parts: dict[str, Counter[str]] = {}
    for entry in entries:
        if entry.verdict in (Verdict.UNKNOWN, Verdict.TIMEOUT):
            found = entry.record.get("diagnosis") or {}
            loss: dict[str, float] = found.get("loss") or {}
            most = max(loss.items(), key=lambda part: part[1])[0] if loss else ""
            parts.setdefault(found.get("cause", "not known"), Counter())[most] += 1
    if not parts:
        return None
    ordered = sorted(parts.items(), key=lambda one: -one[1].total())
    texts = []
    for cause, counts in ordered:
        named = [(count, part) for part, count in counts.most_common() if part][:1]
        texts.append(f"{counts.total()} {cause}" + "".join(f" ({count} {part})" for count, part in named))
    return f"{sum(counts.total() for counts in parts.values())} unknown or timeout: {', '.join(texts)}"


def first_reasons(reasons: Iterable[str | None], most: int = 3) -> list[str]:
    """The most frequent reasons, in words, the first of them first among equals."""
    counts = Counter(reason or "no reason is known" for reason in reasons)
    lines = [f"{count} times: {reason}" if count > 1 else reason for reason, count in counts.most_common(most)]
    rest = len(counts) - len(lines)
    return [*lines, f"and {rest} other reasons: see the column `reason` of table.csv"] if rest else lines
