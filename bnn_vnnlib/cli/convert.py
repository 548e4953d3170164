"""`bnn-vnnlib convert`: BNNs out of deterministic networks and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bnn_vnnlib.cli.guard import check_positive, guard, stderr_console
from bnn_vnnlib.cli.options import Debug, Seed
from bnn_vnnlib.errors import OptionError
from bnn_vnnlib.printable import say

if TYPE_CHECKING:
    from rich.console import Console

    from bnn_vnnlib.posteriors.convert import Recipe

_WAYS = "say how: --sd, --relative-sd or --layer; or --fit with --data; or --member"


def convert(
    source: Annotated[Path, typer.Argument(help="An ONNX network, or a benchmark folder with instances.csv.")],
    target: Annotated[Path, typer.Argument(help="The ONNX model, or the benchmark folder, to write.")],
    likelihood: Annotated[
        Literal["categorical", "bernoulli", "gaussian", "gaussian_heteroscedastic"],
        typer.Option(help="What an output stands for."),
    ],
    sd: Annotated[float | None, typer.Option(help="Standard deviation of every weight and bias.")] = None,
    relative_sd: Annotated[float | None, typer.Option(help="The same as a share of |weight|.")] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SD", help="For some weights: NAME=0.1, 'fc*=5%', NAME=0; the last one counts."),
    ] = None,
    fit: Annotated[
        Literal["laplace", "ivon"] | None, typer.Option(help="Fit a posterior on --data (extra `convert`).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="NumPy archive with x and y; for a folder, a folder of NETWORK.npz.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data (ivon).")] = 20,
    rate: Annotated[float, typer.Option(help="Learning rate (ivon).")] = 1e-3,
    member: Annotated[
        list[Path] | None, typer.Option(help="Another network of the same architecture: an ensemble.")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out instances whose files are missing.")
    ] = False,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Turn a deterministic network, or a whole benchmark folder, into a BNN."""
    console = stderr_console()
    with guard(console, debug):
        check_positive("--rate", rate)
        recipe, described = _recipe(sd, relative_sd, layer, fit, data, epochs, rate, member, seed, console)
        from bnn_vnnlib.display import show_notes
        from bnn_vnnlib.model.files import keep_inputs
        from bnn_vnnlib.posteriors.benchmark import convert_benchmark
        from bnn_vnnlib.posteriors.convert import convert_file

        keep_inputs(target, source, data, *(member or ()))
        if not source.is_dir():
            show_notes(console, convert_file(source, target, recipe, likelihood))
            return
        if member:
            raise OptionError("--member needs one network, not a folder", path=source)

        def progress(done: int, total: int, name: str) -> None:
            say(console, f"[{done + 1}/{total}] {name}")

        summary = convert_benchmark(
            source, target, recipe, likelihood, described=described, skip_missing=skip_missing, progress=progress
        )
        counts = f"{summary.converted} networks converted, {summary.kept} kept from an earlier run"
        left = f", {summary.left_out} instances left out (files missing)" if summary.left_out else ""
        show_notes(console, (*summary.notes, f"{counts}; {summary.instances} instances in {target}{left}"))


def _recipe(
    sd: float | None,
    relative_sd: float | None,
    layer: list[str] | None,
    fit: Literal["laplace", "ivon"] | None,
    data: Path | None,
    epochs: int,
    rate: float,
    member: list[Path] | None,
    seed: int,
    console: Console,
) -> tuple[Recipe, str]:
    """The one way that the options name, and the same in words."""
    from bnn_vnnlib.posteriors.convert import Ensemble, FittedOn, Spread, Stated

    stated = sd is not None or relative_sd is not None or bool(layer)
    if (sd is not None and relative_sd is not None) or (fit is None) != (data is None):
        raise OptionError("--sd and --relative-sd exclude each other; --fit and --data belong together")
    if stated + (fit is not None) + bool(member) != 1:
        raise OptionError(_WAYS)
    if stated:
        spreads = [] if sd is None else [Spread(sd, False)]
        spreads += [] if relative_sd is None else [Spread(relative_sd, True)]
        spreads += [Spread.parse(text) for text in layer or []]
        return Stated(tuple(spreads)), repr(spreads)
    if fit is not None and data is not None:

        def progress(epoch: int) -> None:
            say(console, f"epoch {epoch} of {epochs}")

        return FittedOn(fit, data, epochs, rate, seed, progress), f"{fit} on {data}, {epochs} epochs, {rate}, {seed}"
    return Ensemble(tuple(member or ())), "ensemble"
