"""Engines with one mistake each: what the fuzzer has to notice, and how soon it does.

    PYTHONPATH=tests python -m fuzz.mutants [NAME ...] [--minutes 10] [--seed 0] [--only STAGE]

A mutant is one piece of text in one function of bnn_vnnlib, replaced while the process runs. The fuzzer runs until its
first violation; a line says how much processor time that took, after how many cases of which stage, and what was seen.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Annotated

import torch
import typer

from fuzz.campaign import Campaign
from fuzz.stages import next_of, stages

ENGINE = "bnn_vnnlib."


@dataclass(frozen=True)
class Mutant:
    """`right` (once or several times in the function's source) is replaced by `wrong`.

    function : "module:qualified.name", below `bnn_vnnlib`
    """

    function: str
    right: str
    wrong: str

    @property
    def target(self) -> FunctionType:
        """The function that changes, wherever it is called from."""
        found = pkgutil.resolve_name(ENGINE + self.function)
        return found.fget if isinstance(found, property) else found

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The engine with the mistake."""
        function = self.target
        source = textwrap.dedent(inspect.getsource(function))
        if self.right not in source:
            raise ValueError(f"{self.function} does not contain {self.right!r}: the mutant has to follow the code")
        wrong = source.replace(self.right, self.wrong)
        code = compile(wrong, self.function, "exec", annotations.compiler_flag, dont_inherit=True)
        names: dict[str, FunctionType | property] = {}
        exec(code, function.__globals__, names)
        (changed,) = names.values()
        before = function.__code__
        function.__code__ = (changed.fget if isinstance(changed, property) else changed).__code__
        try:
            yield
        finally:
            function.__code__ = before


TAIL, NOISE = "bounds.tails.tail:", "bounds.tails.noise:"
SHARED = "bounds.tails.shared:"
SAFETY, COMPONENTS = "methods.safety.tails:", "methods.components:"
CORRELATION, MASS = "methods.correlation:", "problem.weight_sets:"

MUTANTS: dict[str, Mutant] = {
    # what every Gaussian family rests on
    "spread": Mutant(TAIL + "_normal", "(gap / spread)", "(gap / (0.95 * spread))"),
    "spread of bound 2": Mutant(TAIL + "Martingale.spread", "torch.sqrt(total", "0.95 * torch.sqrt(total"),
    "spread of bound 3": Mutant(TAIL + "_stopped", "torch.sqrt(most)", "(0.95 * torch.sqrt(most))"),
    "E|N|": Mutant(NOISE + "Noise.tail", "FOLD *", "0.9 * FOLD *"),
    "E|N| of bound 1": Mutant(NOISE + "Noise.tail", "FOLD * self.folded", "0.9 * FOLD * self.folded"),
    "E|N| of bounds 2 and 3": Mutant(NOISE + "Noise.tail", "FOLD * self.near", "0.9 * FOLD * self.near"),
    "folded part": Mutant(TAIL + "_split_failure", "* split.folded *", "* 0.5 * split.folded *"),
    "dropped event": Mutant(SAFETY + "_violations", ".sum(-1) + budgets", ".sum(-1)"),
    "dropped event at a point": Mutant(SAFETY + "_all_rows", " + budgets[:, None]", ""),
    "dropped event of a split": Mutant(TAIL + "_split_failure", "(lost + _stopped", "(0 * lost + _stopped"),
    "dropped event of tuning": Mutant("bounds.tails.engine:TailEngine.tuned", " + spent", ""),
    "too little for an event": Mutant(
        "bounds.tails.engine:TailEngine._plan", "self.events, 1)", "self.events, 1) * 50"
    ),
    "variances above": Mutant(NOISE + "_total", "(1 + 2 *", "(0.9 + 2 *"),
    # questions
    "cases do not add up": Mutant(SAFETY + "_violations", "0.0).sum(-1)", "0.0).amax(-1)"),
    "boxes do not add up": Mutant(
        SAFETY + "lower_of",
        ".index_add(0, problem.instance, failures)",
        ".index_reduce(0, problem.instance, failures, 'amax')",
    ),
    "rows of a point do not add up": Mutant(SAFETY + "_all_rows", "problem.total(failures)", "problem.least(failures)"),
    "cases taken for disjoint": Mutant("problem.problem:apart", "<= 0)", "<= 1e9)"),
    "wrong side": Mutant(SAFETY + "_violations", "rows.bound, total", "-rows.bound, total"),
    "wrong side at a point": Mutant(SAFETY + "_all_rows", "-rows.inner_bound", "rows.inner_bound"),
    "strictness of a refuted row": Mutant("question.property:row_false", "& strict", "& True"),
    "strictness of a violated row": Mutant("question.property:row_true", "strict ^ True", "True"),
    # low rank, full
    "low rank: no factor": Mutant(CORRELATION + "_by_first_use", "for index in sorted(", "for index in 0 * sorted("),
    "low rank: no diagonal": Mutant(CORRELATION + "independent", "GaussianDiagonal(variances)", "GaussianDiagonal({})"),
    "later latents": Mutant(
        CORRELATION + "_by_first_use", "first[first >= 0].tolist()))", "first[first >= 0].tolist()))[:1]"
    ),
    "layers that share nothing": Mutant(
        SHARED + "Shared._add",
        "part.center + both(use.centers[0], -1)",
        "(part.center**2 + both(use.centers[0], -1) ** 2 + 1e-200) ** 0.5",
    ),
    "reach": Mutant(SHARED + "Use.reach", "return torch.minimum(", "return 0.7 * torch.minimum("),
    "shared biases": Mutant(SHARED + "Shared.shift", "part.center + found, ", "part.center + 0 * found, "),
    # Kronecker
    "Kronecker: spectrum": Mutant(SHARED + "Kron.use", "* h * root)", "* h * root * root)"),
    "Kronecker: one side": Mutant(
        SHARED + "Kron.use", "[(h.flatten(2) @ self.right)", "[0.9 * (h.flatten(2) @ self.right)"
    ),
    "Kronecker: written out": Mutant(
        CORRELATION + "_layer", "root = np.sqrt(layer.spectrum)", "root = 0.9 * np.sqrt(layer.spectrum)"
    ),
    "Kronecker: bias is known": Mutant(SHARED + "Kron.shift", "(torch.sqrt(", "(0 * torch.sqrt("),
    # mixtures
    "mixture: equal weights": Mutant(COMPONENTS + "components_of", "float(share)", "1 / len(shares)"),
    "mixture: means": Mutant(COMPONENTS + "components_of", "**means}", "}"),
    "mixture: best component": Mutant(COMPONENTS + "_together", "weighted_sum(shares, lower)", "lower.amax(0)"),
    # samples
    "samples: equal weights": Mutant(
        "methods.safety.by_weights:_weight", "probabilities[:, None] * held", "held / len(probabilities)"
    ),
    "samples: any box": Mutant(
        "methods.safety.by_weights:_samples", "problem.all_items(found.safe)", "problem.any_item(found.safe)"
    ),
    # boxes of weights
    "boxes: a weight less": Mutant(
        MASS + "centred_mass", "weights * torch.log1p(-above)", "(weights - 1) * torch.log1p(-above)"
    ),
    "boxes: margin": Mutant("methods.safety.by_weights:mass_at", "(margin.", "((1.05 * margin)."),
    "boxes: union as a sum": Mutant(
        MASS + "ScatteredUnion.union_lower",
        "self.table_lower[_mask(member)]",
        "(member * self.single_lower).sum(-1).clamp(max=1.0)",
    ),
}


def hunt(minutes: float, seed: int, only: str = "") -> tuple[float, str] | None:
    """Seconds of processor time until the fuzzer sees a violation, and what it sees; None if it sees none in time."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), seed, seconds=0.25, shrinking=0.0)
        chosen = [stage for stage in stages(campaign, seed) if only in ("", stage.name)]
        while time.process_time() - start < 60 * minutes:
            stage = next_of(chosen)
            found = stage.step()
            if found:
                last = found[0].strip().splitlines()[-1]
                return time.process_time() - start, f"{stage.name} {stage.done}: {last}"
    return None


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Mutants; all of them without a name.")] = None,
    minutes: Annotated[float, typer.Option(help="Of processor time, for each.")] = 10.0,
    seed: int = 0,
    only: Annotated[str, typer.Option(help="One stage of the fuzzer alone.")] = "",
) -> None:
    """Exit code 1 if a mutant is not noticed."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    missed = 0
    for name in names or MUTANTS:
        with MUTANTS[name].applied():
            found = hunt(minutes, seed, only)
        missed += found is None
        line = f"not in {minutes:g} minutes" if found is None else f"{found[0]:.0f} s, {found[1]}"
        sys.stdout.write(f"{name}: {line}\n")
        sys.stdout.flush()
    raise typer.Exit(missed > 0)


if __name__ == "__main__":
    typer.run(main)
