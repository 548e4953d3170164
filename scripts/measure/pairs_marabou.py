"""The product networks that `pairs.py acasxu --export FOLDER` wrote, given to Marabou (`maraboupy`, in an environment
of its own): sat, unsat or timeout for each, case by case.

    python scripts/measure/pairs_marabou.py FOLDER SECONDS SHARE [NAME ...]

SHARE of the width of each input is asked about, around the centre: an `unsat` for the whole must hold there, too.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from maraboupy import Marabou, MarabouNetwork  # type: ignore[import-not-found]
from maraboupy.MarabouUtils import Equation  # type: ignore[import-not-found]

MARGIN = 1e-5
"""By which a violation has to exceed its bound: strict rows are not strict there, and x_f = x_g ties."""


def equation(
    network: Any, coefficients: Sequence[float], columns: Sequence[int], bound: float, kind: str = "LE"
) -> None:
    """coefficients . variables <= bound, or == for kind EQ."""
    row = Equation(getattr(Marabou.MarabouCore.Equation, kind))
    for value, column in zip(coefficients, columns, strict=True):
        if value:
            row.addAddend(float(value), column)
    row.setScalar(float(bound))
    network.addEquation(row)


def product(arrays: Any, share: float) -> tuple[Any, list[int]]:
    """Both networks in one query: variables of x_f, x_g, then of each layer; the columns of the outputs."""
    network, n = MarabouNetwork.MarabouNetwork(), len(arrays["lower"])
    inputs = [network.getNewVariable() for _ in range(n)]
    for column, low, high in zip(inputs, arrays["lower"], arrays["upper"], strict=True):
        network.setLowerBound(column, float((low + high) / 2 - share * (high - low) / 2))
        network.setUpperBound(column, float((low + high) / 2 + share * (high - low) / 2))
    outputs: list[int] = []
    for side, values in (("f", inputs[: n // 2]), ("g", inputs[n // 2 :])):
        depth = sum(name.startswith(f"{side}_weight") for name in arrays.files)
        for i in range(depth):
            weight, bias = arrays[f"{side}_weight_{i}"], arrays[f"{side}_bias_{i}"]
            sums = [network.getNewVariable() for _ in bias]
            for column, row, shift in zip(sums, weight, bias, strict=True):
                equation(network, [*row, -1], [*values, column], -shift, "EQ")
            values = sums
            if i < depth - 1:
                values = [network.getNewVariable() for _ in bias]
                for before, after in zip(sums, values, strict=True):
                    network.addRelu(before, after)
        outputs += values
    for row, bound in zip(arrays["constraints"], arrays["constraint_bounds"], strict=True):
        equation(network, row, inputs, bound)
    return network, outputs


def main(folder: str, seconds: float, share: float, names: Sequence[str]) -> None:
    """One line a file; `seconds` of wall-clock time for all cases of one."""
    for path in sorted(Path(folder).glob("*.npz")):
        if names and path.stem not in names:
            continue
        arrays, verdicts, begun = np.load(path), [], time.monotonic()
        for case in np.unique(arrays["cases"]):
            left = int(begun + seconds - time.monotonic())
            if left < 1:
                break
            network, outputs = product(arrays, share)
            for r in np.flatnonzero(arrays["cases"] == case):
                equation(network, arrays["rows"][r], outputs, arrays["bounds"][r] - MARGIN)
            options = Marabou.createOptions(verbosity=0, timeoutInSeconds=left)
            verdicts.append(network.solve(verbose=False, options=options)[0].lower())
            if verdicts[-1] != "unsat":
                break
        cases = len(np.unique(arrays["cases"]))
        found = "sat" if "sat" in verdicts else "unsat" if verdicts.count("unsat") == cases else "timeout"
        told = f"{verdicts.count('unsat')} of {cases} cases refuted"
        print(f"{path.stem:22} {found:8} {told} {time.monotonic() - begun:5.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
