"""What an adapter hands back: the network, its posterior, and how well both were checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from bnn_vnnlib.adapters.agreement import Agreement
from bnn_vnnlib.model import Model, Posterior, attach, model_from_proto
from bnn_vnnlib.model.reading import write_readable
from bnn_vnnlib.network.families import checked_likelihood


@dataclass(frozen=True, eq=False)
class Adapted:
    """A Bayesian network out of another library.

    Attributes
    ----------
    proto : the ONNX model with its posterior
    model : the same, read and checked: what `verify` takes
    agreement : how closely the library's own predictions were met; None if they were not compared
    notes : remarks on what was taken over, and how
    """

    proto: ModelProto
    model: Model
    agreement: Agreement | None
    notes: tuple[str, ...]

    def write(self, path: str | Path) -> Path:
        """Write the model with its posterior; the name may end in .gz."""
        return write_readable(self.proto, path)

    def checked(self, agreement: Agreement) -> Adapted:
        """With the result of a comparison with the library."""
        return replace(self, agreement=agreement)

    def noted(self, *notes: str) -> Adapted:
        """With more remarks."""
        return replace(self, notes=(*self.notes, *notes))


def adapt(proto: ModelProto, posterior: Posterior, likelihood: str | None, notes: tuple[str, ...] = ()) -> Adapted:
    """Attach the posterior to the network of its means, and read the result as a file is read.

    Raises
    ------
    InputError : what `attach` and `read_model` refuse
    """
    whole = attach(proto, posterior, likelihood=checked_likelihood(likelihood))
    model = model_from_proto(whole)
    return Adapted(whole, model, None, (*notes, *model.notes))
