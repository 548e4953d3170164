"""`bnn-vnnlib supports`: the capabilities that VNN-LIB 2.x asks solvers about."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bnn_vnnlib.cli.guard import guard, stderr_console
from bnn_vnnlib.errors import OptionError


def supports(
    onnx_opset_versions: Annotated[bool, typer.Option("--onnx-opset-versions", help="Oldest and newest.")] = False,
    onnx_element_types: Annotated[bool, typer.Option("--onnx-element-types", help="One a line.")] = False,
    onnx_operators: Annotated[bool, typer.Option("--onnx-operators", help="One a line.")] = False,
    vnnlib_versions: Annotated[bool, typer.Option("--vnnlib-versions", help="Oldest and newest.")] = False,
    hidden_node_theories: Annotated[bool, typer.Option("--hidden-node-theories", help="Of NH, H.")] = False,
    multiple_input_output_theories: Annotated[
        bool,
        typer.Option("--multiple-input-output-theories", "--multiple-inputs-output-theories", help="Of SIO, MIO."),
    ] = False,
    multiple_network_theories: Annotated[
        bool, typer.Option("--multiple-network-theories", help="Of SNET, MENET, MINET, MNET.")
    ] = False,
    multiple_node_comparison_theories: Annotated[
        bool, typer.Option("--multiple-node-comparison-theories", help="Of SNC, MNC.")
    ] = False,
    arithmetic_complexity_theories: Annotated[
        bool, typer.Option("--arithmetic-complexity-theories", help="Of BND, OUTC, LIN, POLY.")
    ] = False,
    optimised_disjunctive_reasoning: Annotated[
        bool, typer.Option("--optimised-disjunctive-reasoning", help="true or false.")
    ] = False,
    serialise_assignments: Annotated[bool, typer.Option("--serialise-assignments", help="true or false.")] = False,
    unsat_proofs: Annotated[bool, typer.Option("--unsat-proofs", help="true or false.")] = False,
) -> None:
    """Answer ONE question of VNN-LIB 2.x about what this version can do."""
    asked = [name.replace("_", "-") for name, given in locals().items() if given]
    with guard(stderr_console(), debug=False):
        from bnn_vnnlib.cli.capabilities import CAPABILITIES

        if len(asked) != 1:
            known = ", ".join(f"--{name}" for name in CAPABILITIES)
            raise OptionError(f"expected exactly one capability, found {len(asked)}; they are {known}")
        sys.stdout.write("".join(f"{line}\n" for line in CAPABILITIES[asked[0]]()))
