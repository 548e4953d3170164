"""Posteriors out of the libraries that train them, checked against the libraries' own predictions.

The functions are loaded when they are first used. None imports a library: what they need they read from the objects
that they are given. docs/libraries has a page for each library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnn_vnnlib.lazy import lazy_names

if TYPE_CHECKING:
    from bnn_vnnlib.adapters.adapted import Adapted as Adapted
    from bnn_vnnlib.adapters.adapted import Agreement as Agreement
    from bnn_vnnlib.adapters.adapted import check_predictive as check_predictive
    from bnn_vnnlib.adapters.adapted import check_samples as check_samples
    from bnn_vnnlib.adapters.guides import from_numpyro_guide as from_numpyro_guide
    from bnn_vnnlib.adapters.guides import from_pyro_guide as from_pyro_guide
    from bnn_vnnlib.adapters.laplace_torch import from_laplace as from_laplace
    from bnn_vnnlib.adapters.optimisers import from_ivon as from_ivon
    from bnn_vnnlib.adapters.optimisers import from_swag as from_swag
    from bnn_vnnlib.adapters.samples import from_ensemble as from_ensemble
    from bnn_vnnlib.adapters.samples import from_samples as from_samples
    from bnn_vnnlib.adapters.tensorflow_probability import from_tfp as from_tfp
    from bnn_vnnlib.adapters.torch_layers import Layout as Layout
    from bnn_vnnlib.adapters.torch_layers import from_torch as from_torch

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "adapted": ("Adapted", "Agreement", "check_predictive", "check_samples"),
        "torch_layers": ("Layout", "from_torch"),
        "samples": ("from_ensemble", "from_samples"),
        "optimisers": ("from_ivon", "from_swag"),
        "laplace_torch": ("from_laplace",),
        "guides": ("from_numpyro_guide", "from_pyro_guide"),
        "tensorflow_probability": ("from_tfp",),
    },
)
