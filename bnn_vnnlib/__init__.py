"""Sound verification of Bayesian neural networks: ONNX and VNN-LIB in, guaranteed bounds out.

The public names are loaded when they are first used, so that `import bnn_vnnlib` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnn_vnnlib.lazy import lazy_names

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

__getattr__, __dir__, _NAMES = lazy_names(
    __name__,
    {
        "errors": (
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
        "model": ("Model", "attach", "read_model"),
        "question.options": ("Options",),
        "question.property": ("Property",),
        "result": ("Bounds", "DecisionBounds", "Query", "Result", "Verdict", "Witness"),
        "batch": ("BatchResult", "verify_batch"),
        "api": ("verify",),
        "certification": ("certify",),
        "posteriors.torch_module": ("to_torch",),
        "vnnlib": ("read_property",),
    },
)

__all__ = ["__version__", *_NAMES]
