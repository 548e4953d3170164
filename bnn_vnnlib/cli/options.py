"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Debug = Annotated[bool, typer.Option("--debug", envvar="BNN_VNNLIB_DEBUG", help="Show tracebacks.")]
Likelihood = Annotated[
    Literal["categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"] | None,
    typer.Option(help="How the outputs are to be read, where the model does not say."),
]
QueryName = Literal["probabilistic", "decision", "deterministic"]
TauSafe = Annotated[float | None, typer.Option(help="unsat if P_safe >= this.", show_default="TAU_UNSAFE or 0.95")]
TauUnsafe = Annotated[float | None, typer.Option(help="sat if P_safe < this.", show_default="TAU_SAFE or 0.95")]
Outputs = Annotated[Literal["auto", "probabilities"], typer.Option(help="What Y means under --query decision.")]
Rule = Annotated[
    Literal["mean", "median"] | None,
    typer.Option(help="Which decision Y is under --query decision.", show_default="mean"),
]
Method = Annotated[Literal["auto", "interval", "linear", "tails"], typer.Option(help="How networks are bounded.")]
Boxes = Annotated[Literal["mean", "sampled"], typer.Option(help="Where weight boxes are centred.")]
NumBoxes = Annotated[int | None, typer.Option(min=1, help="How many weight boxes.")]
Margin = Annotated[float | None, typer.Option(help="Half-width of a weight box in standard deviations.")]
Search = Annotated[
    Literal["float64", "float32"],
    typer.Option(help="Floating type of searches; what they find is confirmed in float64."),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Refuse a property that nothing can violate, whatever the network."),
]
Mixed = Annotated[
    bool,
    typer.Option(
        "--mixed", help="Options that do not apply to this instance are left out with a note: for runs over many."
    ),
]
Serialise = Annotated[
    Path | None,
    typer.Option(
        "--serialise-assignments", "--assignments", metavar="FOLDER", help="For a sat: VARIABLE.pb for each variable."
    ),
]
OwnLimit = Annotated[float | None, typer.Option(help="Seconds, in place of every instance's own limit.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Only where CATEGORY/ONNX/VNNLIB contains this; * and ?."),
]
Rerun = Annotated[
    Literal["never", "failed", "unknown", "all"],
    typer.Option(help="Finished instances to run again: errors; these, unknown and timeout; or all."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Instances at a time.", show_default="cores / threads")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each.", show_default="OMP_NUM_THREADS, else 1")]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler to run on; 'local': a cluster of its own.")
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, ...", show_default="cpu")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
