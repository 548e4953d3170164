"""The certification studies, by one command each: tables and figures into a folder. See docs/studies.

    python scripts/study.py NAME --data FOLDER --out FOLDER [--limit N]

A study that was ended goes on where it was when the same command is given again; --limit N looks at N inputs, drawn at
random, instead of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from bnn_vnnlib.cli.guard import guard
from bnn_vnnlib.system.heap import keep_freed_memory

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, no_args_is_help=True)
Data = Annotated[Path, typer.Option(exists=True, file_okay=False, help="Folder of public data and posteriors.")]
Out = Annotated[Path, typer.Option(file_okay=False, help="Where tables, figures and finished work go.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Look at so many inputs only.")]
Only = Annotated[list[str] | None, typer.Option(help="Only networks whose name contains this.")]


@contextmanager
def study() -> Iterator[Console]:
    """One thread; one message an error."""
    import torch

    keep_freed_memory()
    torch.set_num_threads(1)
    with guard(Console(stderr=True), debug=False):
        yield Console(width=160)


@app.command()
def hcas(
    data: Data,
    out: Out,
    limit: Limit = None,
    network: Only = None,
    partition: Annotated[bool, typer.Option(help="The cells of the grid instead of cubes of +-.025.")] = False,
    ours: Annotated[bool, typer.Option("--own", help="The networks of benchmarks/hcas.")] = False,
    bounds: Annotated[Path | None, typer.Option(help="bounds.parquet of a sweep, instead of sweeping.")] = None,
    maps: Annotated[bool, typer.Option(help="Also the maps of encounters.")] = True,
) -> None:
    """Collision avoidance: P_safe over the grid of encounters, by property."""
    with study() as console:
        from studies import hcas as it
        from studies.places import Places

        places = Places(data, out, limit)
        choice = it.Choice(tuple(network or ()), it.CELLS if partition else it.CUBES, ours)
        console.print(it.run(places, choice, bounds), markup=False)
        if maps:
            it.maps(places, choice)


@app.command()
def decision(
    data: Data,
    out: Out,
    limit: Limit = 500,
    network: Only = None,
    place: Annotated[str, typer.Option(help="Which advisory and time.")] = "pra0_tau20",
    ours: Annotated[bool, typer.Option("--own", help="The networks of benchmarks/hcas.")] = False,
) -> None:
    """Collision avoidance: bounds on the decision, variational inference beside Hamiltonian Monte Carlo."""
    with study() as console:
        from studies import decision as it
        from studies.places import Places

        console.print(it.run(Places(data, out, limit), place, ours, tuple(network or ())), markup=False)


@app.command()
def regression(data: Data, out: Out, limit: Limit = None, network: Only = None) -> None:
    """Concrete and power plant: the largest certified-robust and the smallest certified-unrobust radius."""
    with study() as console:
        from studies import regression as it
        from studies.places import Places

        console.print(it.run(Places(data, out, limit), tuple(network or ())), markup=False)


@app.command()
def mnist(
    data: Data,
    out: Out,
    limit: Limit = 1000,
    network: Only = None,
    only: Annotated[Literal["decision", "radii"] | None, typer.Option(help="One of the two tables.")] = None,
) -> None:
    """Digits: bounds on the decision against the radius, and radii against width and depth."""
    with study() as console:
        from bnn_vnnlib.errors import OptionError
        from studies import mnist as it
        from studies.places import Places

        if network and only is None:
            raise OptionError("the two tables have different networks: with --network say --only decision or radii")
        places = Places(data, out, limit)
        if only != "radii":
            console.print(it.decisions(places, tuple(network or ())), markup=False)
        if only != "decision":
            console.print(it.architectures(places, tuple(network or ())), markup=False)


@app.command()
def recipe(data: Data, out: Out, limit: Limit = 100, network: Only = None) -> None:
    """The paper's own recipe of sampled boxes, what it certifies, and what its code claimed."""
    with study() as console:
        from studies import recipe as it
        from studies.places import Places

        console.print(it.run(Places(data, out, limit), tuple(network or ())), markup=False)


@app.command()
def validation(
    data: Data,
    out: Out,
    limit: Limit = 50,
    network: Only = None,
    only: Annotated[Literal["bounds", "radii"] | None, typer.Option(help="One of the two tables.")] = None,
) -> None:
    """Attacks on sampled networks and on the predictive, beside bounds in boxes and beside certified radii."""
    with study() as console:
        from bnn_vnnlib.errors import OptionError
        from studies import radius_validation as of_radii
        from studies import validation as it
        from studies.places import Places

        if network and only is None:
            raise OptionError("the two tables have different networks: with --network say --only bounds or radii")
        places = Places(data, out, limit)
        if only != "radii":
            console.print(it.run(places, tuple(network or ())), markup=False)
        if only != "bounds":
            console.print(of_radii.run(places, tuple(network or ())), markup=False)


@app.command()
def outliers(
    data: Data,
    out: Out,
    limit: Limit = 100,
    network: Only = None,
    inputs: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Further images: npz with x.")
    ] = None,
) -> None:
    """Inputs that are no digits: certificates that the network is not sure."""
    with study() as console:
        from studies import outliers as it
        from studies.places import Places

        console.print(it.run(Places(data, out, limit), inputs, tuple(network or ())), markup=False)


@app.command()
def signs(data: Data, out: Out, limit: Limit = 250, network: Only = None) -> None:
    """Traffic signs: the decision at 2/255, and uncertainty on noise."""
    with study() as console:
        from studies import signs as it
        from studies.places import Places

        console.print(it.run(Places(data, out, limit), tuple(network or ())), markup=False)


if __name__ == "__main__":
    app()
