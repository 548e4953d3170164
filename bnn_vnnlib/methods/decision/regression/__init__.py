"""Expectations of a regression network's outputs, bounded close to the truth.

A method bounds rows c.D(x) + g.x, D(x) = E_w f^w(x), from below over boxes of x:
    lower(lower (N, n), upper (N, n), outputs (N or 1, R, m), inputs (N or 1, R, n) or None) -> (N, R),
-inf where it has nothing to say. Every bound holds with rounding included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bnn_vnnlib.network.network import GaussianDiagonal, Network, WeightSamples
    from bnn_vnnlib.system.clock import Deadline


class RegressionMethod(Protocol):
    """One way to bound rows over the expected outputs."""

    @property
    def name(self) -> str:
        """For people and the record."""
        ...

    def lower(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None = None) -> Tensor:
        """(N, R) lower bounds."""
        ...


def methods(
    network: Network, posterior: GaussianDiagonal | WeightSamples, device: torch.device, deadline: Deadline
) -> tuple[RegressionMethod, ...]:
    """The methods that apply to this graph, cheapest first; none for anything but a chain of dense Gaussian layers."""
    from bnn_vnnlib.methods.decision.regression.moments_deep import MomentsDeep
    from bnn_vnnlib.methods.decision.regression.one_layer import OneLayer
    from bnn_vnnlib.methods.decision.regression.two_layers import TwoLayers
    from bnn_vnnlib.network.dense_chain import dense_chain
    from bnn_vnnlib.network.network import GaussianDiagonal

    if not isinstance(posterior, GaussianDiagonal) or network.softmax_axis is not None:
        return ()
    chain = dense_chain(network, posterior, device)
    if chain is None:
        return ()
    found: list[RegressionMethod] = []
    if OneLayer.serves(chain):
        found.append(OneLayer(chain, deadline))
    if MomentsDeep.serves(chain):
        found.append(MomentsDeep.over(chain, deadline))
    if TwoLayers.serves(chain):
        found.append(TwoLayers(chain, deadline))
    return tuple(found)
