"""Plain networks of a BNN for tools that know no posterior: the mean, draws, the merged network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bnn_vnnlib.errors import OptionError

Kind = Literal["mean", "sampled", "merged"]


@dataclass(frozen=True)
class Variant:
    """A plain network.

    Attributes
    ----------
    kind : where it comes from; "plain" for a model without a posterior, which is taken as it is
    label : "mean", "draw_0003", ...
    path : its file
    exact : for "merged": its output is the posterior predictive itself (weight samples), not that of some draws
    """

    kind: Literal["plain", "mean", "sampled", "merged"]
    label: str
    path: Path
    exact: bool = True


def write_variants(model: Path, folder: Path, kinds: Sequence[Kind], draws: int, seed: int) -> list[Variant]:
    """Write plain networks of a model into a folder.

    Parameters
    ----------
    model : with or without a posterior
    kinds : which are wanted
    draws : how many networks to draw, and to merge where the posterior is Gaussian

    Raises
    ------
    InputError : whatever reading or merging refuses
    """
    from bnn_vnnlib.model import WeightSamples
    from bnn_vnnlib.model.reading import write_readable
    from bnn_vnnlib.posteriors.merge import merge
    from bnn_vnnlib.posteriors.parts import read_parts
    from bnn_vnnlib.posteriors.plain import write_drawn, write_mean

    if draws < 1:
        raise OptionError(f"at least one network must be drawn, found {draws}")
    parts = read_parts(model)
    if parts.posterior is None:
        return [Variant("plain", "plain", model)]
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    if "mean" in kinds:
        found.append(Variant("mean", "mean", write_mean(parts, folder / "mean.onnx")))
    if "sampled" in kinds:
        files = write_drawn(parts, folder, draws, seed)
        found += [Variant("sampled", file.stem, file) for file in files]
    if "merged" in kinds:
        exact = isinstance(parts.posterior, WeightSamples)
        proto, _ = merge(parts, draws=None if exact else draws, seed=seed)
        found.append(Variant("merged", "merged", write_readable(proto, folder / "merged.onnx"), exact))
    return found
