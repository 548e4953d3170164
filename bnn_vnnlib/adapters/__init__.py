"""Posteriors out of the libraries that train them, checked against the libraries' own predictions.

The functions are loaded when they are first used. None imports a library: what they need they read from the objects
that they are given. docs/libraries has a page for each library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOME_OF = {
    "Adapted": "adapted",
    "Agreement": "adapted",
    "Layout": "torch_layers",
    "check_predictive": "adapted",
    "check_samples": "adapted",
    "from_ensemble": "samples",
    "from_ivon": "optimisers",
    "from_laplace": "laplace_torch",
    "from_numpyro_guide": "guides",
    "from_pyro_guide": "guides",
    "from_samples": "samples",
    "from_swag": "optimisers",
    "from_tfp": "tensorflow_probability",
    "from_torch": "torch_layers",
}

__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    """Import a function from its module (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
