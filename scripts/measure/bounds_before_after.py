"""Compare the bounds of two revisions on shipped instances, under both queries.

    python scripts/measure/bounds_before_after.py BEFORE AFTER [--every 4] [--seconds 5] [--benchmark hcas]

BEFORE and AFTER are the roots of two checkouts. Each answers in a process of its own, in turns, instance by instance.
Seconds are those of the processor, so that a busy machine changes nothing. Every bound that is worse by more than 1e-9
is listed; "time" marks those for which one of the two ran until its limit, whose bounds depend on the machine.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer
from rich.console import Console

HERE = Path(__file__).resolve().parents[2] / "benchmarks"
BENCHMARKS = ("digits", "hcas", "concrete", "powerplant")
QUERIES = ("probabilistic", "decision")
WORSE = 1e-9
NEARLY = 0.9
"""Share of the limit from which on a run counts as limited by it: some is kept for what follows the bounds."""

ANSWERING = """
import json, os, sys, time
time.monotonic = time.process_time
import bnn_vnnlib
from bnn_vnnlib import read_model, read_property, verify
if os.path.dirname(os.path.dirname(bnn_vnnlib.__file__)) != os.getcwd():
    sys.exit("another package than the checkout's was imported")
for line in sys.stdin:
    model, text, query, seconds = json.loads(line)
    begun, found = time.process_time(), {}
    try:
        result = verify(read_model(model), read_property(text), query=query, timeout=seconds, seed=0)
        found["verdict"] = result.verdict.value
        for side in ("lower", "upper"):
            if result.p_safe is not None:
                found["P_safe " + side] = [getattr(result.p_safe, side)]
            if result.decision is not None:
                found["row " + side] = getattr(result.decision, "row_" + side).tolist()
                found["output " + side] = getattr(result.decision, side).tolist()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["seconds"] = time.process_time() - begun
    print(json.dumps(found), flush=True)
"""


def answering(checkout: Path) -> subprocess.Popen[str]:
    """A process that answers with the package of a checkout, in whose root it runs."""
    return subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", ANSWERING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=checkout, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def asked(process: subprocess.Popen[str], question: list[Any]) -> dict[str, Any]:
    """One answer."""
    to, back = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    to.write(json.dumps(question) + "\n")
    to.flush()
    answer: dict[str, Any] = json.loads(back.readline())
    return answer


def losses(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """By how much bounds got worse, the largest loss of each kind; infinity where there is none any more."""
    found = {}
    for kind, old in before.items():
        if kind.endswith(("lower", "upper")):
            new = after.get(kind, [math.nan] * len(old))
            sign = 1 if kind.endswith("lower") else -1
            each = [0.0 if a == b else sign * (a - b) for a, b in zip(old, new, strict=True)]
            found[kind] = max((math.inf if math.isnan(loss) else loss for loss in each), default=0.0)
    return {kind: loss for kind, loss in found.items() if loss > WORSE}


def main(
    before: Path,
    after: Path,
    every: Annotated[int, typer.Option(help="Take every n-th instance.")] = 4,
    seconds: Annotated[float, typer.Option(help="Limit of one answer.")] = 5.0,
    benchmark: Annotated[list[str] | None, typer.Option(help="These alone.")] = None,
) -> None:
    """Print what got worse, and how many bounds were compared."""
    console, count = Console(width=160, highlight=False), Counter[str]()
    both = answering(before), answering(after)
    for name in benchmark or BENCHMARKS:
        instances = (HERE / name / "instances.csv").read_text().split()
        for line in instances[::every]:
            model, text, _ = line.split(",")
            for query in QUERIES:
                question = [str(HERE / name / model), str(HERE / name / text), query, seconds]
                old, new = (asked(process, question) for process in both)
                count["questions"] += 1
                if "error" in old and "error" in new:
                    count["refused by both"] += 1
                    continue
                limited = max(old["seconds"], new["seconds"]) >= NEARLY * seconds
                worse, better = losses(old, new), losses(new, old)
                count["ran until the limit"] += limited
                count["some bound is better"] += bool(better)
                count["some bound is worse, no limit"] += bool(worse) and not limited
                count["some bound is worse, at the limit"] += bool(worse) and limited
                count["other verdict or error"] += old.get("verdict") != new.get("verdict")
                if worse or old.get("verdict") != new.get("verdict"):
                    said = ", ".join(f"{kind} {loss:.3g}" for kind, loss in worse.items())
                    verdicts = " -> ".join(str(one.get("verdict", one.get("error"))) for one in (old, new))
                    spent = f"{old['seconds']:.1f} s, {new['seconds']:.1f} s"
                    console.print(f"{'time ' if limited else ''}{text} {query}: {said}; {verdicts}; {spent}")
    for process in both:
        process.kill()
    console.print("; ".join(f"{number} {what}" for what, number in count.items()))


if __name__ == "__main__":
    typer.run(main)
