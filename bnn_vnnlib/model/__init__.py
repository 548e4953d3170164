"""ONNX -> Network and Posterior; the only package that knows onnx.

The functions are loaded when they are first used: `onnx`, `onnxruntime` and `torch` are slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnn_vnnlib.lazy import lazy_names
from bnn_vnnlib.model.replay import Replayer as Replayer
from bnn_vnnlib.model.replay import replay as replay
from bnn_vnnlib.network.families import from_covariance as from_covariance
from bnn_vnnlib.network.families import from_factor as from_factor
from bnn_vnnlib.network.families import from_low_rank as from_low_rank
from bnn_vnnlib.network.families import from_standard_deviations as from_standard_deviations
from bnn_vnnlib.network.families import sample as sample
from bnn_vnnlib.network.network import Component as Component
from bnn_vnnlib.network.network import GaussianDiagonal as GaussianDiagonal
from bnn_vnnlib.network.network import GaussianFull as GaussianFull
from bnn_vnnlib.network.network import GaussianKron as GaussianKron
from bnn_vnnlib.network.network import GaussianLowRank as GaussianLowRank
from bnn_vnnlib.network.network import KronLayer as KronLayer
from bnn_vnnlib.network.network import Mixture as Mixture
from bnn_vnnlib.network.network import Model as Model
from bnn_vnnlib.network.network import Network as Network
from bnn_vnnlib.network.network import Posterior as Posterior
from bnn_vnnlib.network.network import WeightSamples as WeightSamples
from bnn_vnnlib.signature import Likelihood as Likelihood

if TYPE_CHECKING:
    from bnn_vnnlib.model.attachment import attach as attach
    from bnn_vnnlib.model.attachment import attach_file as attach_file
    from bnn_vnnlib.model.attachment import read_posterior_npz as read_posterior_npz
    from bnn_vnnlib.model.description import Description as Description
    from bnn_vnnlib.model.description import describe as describe
    from bnn_vnnlib.model.importer import build_network as build_network
    from bnn_vnnlib.model.operators import supported_operators as supported_operators
    from bnn_vnnlib.model.reading import model_from_proto as model_from_proto
    from bnn_vnnlib.model.reading import read_model as read_model

__getattr__, __dir__, _NAMES = lazy_names(
    __name__,
    {
        "description": ("Description", "describe"),
        "attachment": ("attach", "attach_file", "read_posterior_npz"),
        "importer": ("build_network",),
        "reading": ("model_from_proto", "read_model"),
        "operators": ("supported_operators",),
    },
)
