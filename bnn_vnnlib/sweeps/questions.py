"""What is asked of each row of a table, and how its box is bounded: the arguments of `verify_batch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib import rules
from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.network.network import Floats
from bnn_vnnlib.question.options import CONFIDENCE, Options
from bnn_vnnlib.question.statement import vacuous_row
from bnn_vnnlib.result import Query, Rule
from bnn_vnnlib.setting import Setting, settle_run

if TYPE_CHECKING:
    from bnn_vnnlib.jobs.parts import PartsFolder
    from bnn_vnnlib.network.network import Model


_FOREIGN = ("outputs", "timeout", "strict")
"""Options that say nothing to a job of many boxes."""


def setting_of(options: Options, model: Model) -> Setting:
    """The run over a model; refuses, before any work, what cannot be asked of it."""
    for name in options.given:
        if name in _FOREIGN:
            raise OptionError(f"{name} is no option of a job over many boxes: leave it out")
    return settle_run(model, options)


def with_seed(options: Options, folder: PartsFolder | None) -> Options:
    """Counted draws need a seed that a job keeps when it goes on: what was cut off is drawn again as it was."""
    earlier = (None if folder is None else folder.settings) or {}
    if options.guarantee == "statistical" and options.seed is None and isinstance(earlier.get("seed"), int):
        return replace(options, seed=earlier["seed"])
    return options.seeded


def draw_columns(options: Options, draws: Floats | None) -> dict[str, NDArray]:
    """What says of each row (N,) that its bounds have a confidence, and on how many draws they rest."""
    if draws is None:
        return {}
    confidence = {"confidence": np.full(len(draws), options.confidence or CONFIDENCE)}
    names = ("draws_counted", "draws_safe", "draws_violating", "draws_open")
    return confidence | dict(zip(names, draws.T, strict=True))


def settings_of(options: Options) -> dict[str, Any]:
    """What decides the bounds, as JSON values; where they are computed (`device`, `memory`) does not."""
    values = {name: value for name, value in vars(options).items() if name not in (*_FOREIGN, "device", "memory")}
    return {name: str(value) if isinstance(value, Query | Rule) else value for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class AskedRows:
    """The violation of each of N rows: of its label, of its ranges of outputs, of its cases; or none at all.

    Attributes
    ----------
    labels : (N,) int, -1 skips the row
    lower, upper : (N, m) allowed range of every output
    a, b, case : (N, R, m), (N, R), (R,): violated if all rows a.y <= b of one case hold
    """

    labels: NDArray[np.int64] | None = None
    lower: Floats | None = None
    upper: Floats | None = None
    a: Floats | None = None
    b: Floats | None = None
    case: NDArray[np.int64] | None = None

    @property
    def nothing(self) -> bool:
        """Whether no violation is named, so that only bounds on the decision are asked for."""
        return self.labels is None and self.lower is None and self.a is None

    def rows(self, index: NDArray[np.int64] | slice) -> AskedRows:
        """What is asked of some of the rows."""
        picked = {
            name: None if values is None else values[index] for name, values in vars(self).items() if name != "case"
        }
        return AskedRows(**picked, case=self.case)

    def arguments(self, outputs: int) -> Mapping[str, Any]:
        """`labels` or `properties` of `verify_batch`; neither where nothing is asked."""
        if self.labels is not None:
            return {"labels": self.labels}
        if self.lower is not None and self.upper is not None:
            return {"properties": [rules.within(*ends) for ends in zip(self.lower, self.upper, strict=True)]}
        if self.a is not None and self.b is not None and self.case is not None:
            members = [np.flatnonzero(self.case == number) for number in np.unique(self.case)]
            return {
                "properties": [
                    [(a[rows], b[rows], np.zeros(len(rows), bool)) for rows in members]
                    for a, b in zip(self.a, self.b, strict=True)
                ]
            }
        return {}

    def refuse_vacuous(self, path: Any = None) -> None:
        """Raise InputError where nothing can violate a row, whatever the network; labels and ranges always can be."""
        if self.a is None or self.b is None or self.case is None:
            return
        row = vacuous_row(self.a, self.b, self.case)
        if row is not None:
            raise InputError(
                f"nothing can violate row {row}, whatever the network: the inequalities of each case contradict each "
                "other",
                path=path,
            )

    def row_columns(self, found: Floats) -> Floats | None:
        """Bounds on the property's rows (N, R) in the order of `a`; None where the bounds on D say the same."""
        if self.labels is not None:
            return found
        if self.case is None:
            return None
        ordered = np.empty_like(found)
        ordered[:, np.argsort(self.case, kind="stable")] = found
        return ordered

    def check(self, outputs: int, query: Query, path: Any = None) -> None:
        """Raise InputError where this cannot be asked of a network with so many outputs."""
        if self.nothing and query is not Query.DECISION:
            message = f"query {query} needs a violation for each row: label, output_lower and output_upper, or a and b"
            raise InputError(message, path=path)
        if self.labels is not None:
            bad = np.flatnonzero((self.labels >= outputs) | (self.labels < -1))
            if len(bad):
                found = f"row {bad[0]} has {self.labels[bad[0]]}"
                raise InputError(f"labels must lie in -1 (skip) .. {outputs - 1}; {found}", path=path)
            if outputs < 2:
                raise InputError("labels need a network with at least two outputs", path=path)
        for name, values in (("output_lower", self.lower), ("a", self.a)):
            if values is not None and values.shape[-1] != outputs:
                raise InputError(f"{name!r} is over {values.shape[-1]} outputs, the network has {outputs}", path=path)
