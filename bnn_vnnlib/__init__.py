"""Sound verification of Bayesian neural networks: ONNX and VNN-LIB in, guaranteed bounds out.

The public names are loaded when they are first used, so that `import bnn_vnnlib` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnn_vnnlib.api import verify as verify
    from bnn_vnnlib.batch import BatchResult as BatchResult
    from bnn_vnnlib.batch import verify_batch as verify_batch
    from bnn_vnnlib.certification import certify as certify
    from bnn_vnnlib.errors import BnnVnnlibError as BnnVnnlibError
    from bnn_vnnlib.errors import InputError as InputError
    from bnn_vnnlib.errors import ModelError as ModelError
    from bnn_vnnlib.errors import OptionError as OptionError
    from bnn_vnnlib.errors import PosteriorError as PosteriorError
    from bnn_vnnlib.errors import PropertyError as PropertyError
    from bnn_vnnlib.errors import SoundnessError as SoundnessError
    from bnn_vnnlib.errors import UnsupportedError as UnsupportedError
    from bnn_vnnlib.errors import VnnlibSyntaxError as VnnlibSyntaxError
    from bnn_vnnlib.model import Model as Model
    from bnn_vnnlib.model import attach as attach
    from bnn_vnnlib.model import read_model as read_model
    from bnn_vnnlib.posteriors.torch_module import to_torch as to_torch
    from bnn_vnnlib.question.options import Options as Options
    from bnn_vnnlib.question.property import Property as Property
    from bnn_vnnlib.result import Bounds as Bounds
    from bnn_vnnlib.result import DecisionBounds as DecisionBounds
    from bnn_vnnlib.result import Query as Query
    from bnn_vnnlib.result import Result as Result
    from bnn_vnnlib.result import Verdict as Verdict
    from bnn_vnnlib.result import Witness as Witness
    from bnn_vnnlib.vnnlib import read_property as read_property

__version__ = "0.1.0"

_HOMES = {
    "bnn_vnnlib.errors": (
        "BnnVnnlibError",
        "InputError",
        "ModelError",
        "OptionError",
        "PosteriorError",
        "PropertyError",
        "SoundnessError",
        "UnsupportedError",
        "VnnlibSyntaxError",
    ),
    "bnn_vnnlib.model": ("Model", "attach", "read_model"),
    "bnn_vnnlib.question.options": ("Options",),
    "bnn_vnnlib.question.property": ("Property",),
    "bnn_vnnlib.result": ("Bounds", "DecisionBounds", "Query", "Result", "Verdict", "Witness"),
    "bnn_vnnlib.batch": ("BatchResult", "verify_batch"),
    "bnn_vnnlib.api": ("verify",),
    "bnn_vnnlib.certification": ("certify",),
    "bnn_vnnlib.posteriors.torch_module": ("to_torch",),
    "bnn_vnnlib.vnnlib": ("read_property",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
