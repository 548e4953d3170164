"""What the methods share that cut the space of a few latent numbers z into cells: bounds over boxes of (x, z).

A Gaussian posterior of few random weights is a fixed network of x and z (`network.latents`). Over a box of both,
linear bounds give functions below the rows: row >= a.x + c.z + b. Their averages over a cell, and the masses of the
half-spaces in which they fall below a threshold, are known (`gaussian.cells`), so that what a cell leaves open is the
distance of the row from a linear function: it falls with the square of the cell's width, not with the width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.walk import LinearForm
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.network.evaluate import evaluate
from bnn_vnnlib.network.latents import MAX_LATENTS, Units, by_units, directions, unfolded, with_probabilities
from bnn_vnnlib.network.network import Gaussian, Network, Posterior
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.rounding import SMALL, TINY, gamma
from bnn_vnnlib.system.clock import Deadline

_FAR = 5.0
"""Beyond, places are not found by their shares, which have lost their digits."""

REACH = 12.0
"""Cells cover so many standard deviations; beyond lies 1e-32."""

_FLAT = 0.03
"""What a slope counts as in a choice where to cut, beside how much it varies: steps of half-spaces cost as much."""

_PLACES = ((0.5, 0.5, 0.5), (0.1, 0.9, 0.1), (0.9, 0.1, 0.1), (0.1, 0.1, 0.9), (0.9, 0.9, 0.9), (0, 0, 0), (1, 1, 1))
"""Places in a box, of its coordinates in turn, where slopes and bounds are looked at: shares of its mass along each."""

WEIGHTS = (0.18, 0.18, 0.18, 0.18, 0.18, 0.05, 0.05)
"""What the places count in means: of the corners less, so that nothing that is open is missed."""


def why_no_cells(bounds: OutputBounds, posterior: Posterior, *, at_points: bool = True) -> str | None:
    """Why cells do not serve; None where they do; see `LatentBounds.of`."""
    if not isinstance(posterior, Gaussian):
        return "the posterior is no Gaussian"
    if bounds.engine.method == "interval":
        return "interval bounds are asked for"
    network, rest, units = _parted(bounds.engine.network, posterior, at_points)
    found = directions(network, rest)
    if found is None or len(found) + (0 if units is None else len(units.bias)) > MAX_LATENTS:
        return "more latent numbers are random than cells serve"
    return None if found or units is not None else "no weight that counts is random"


def _parted(network: Network, posterior: Gaussian, at_points: bool) -> tuple[Network, Gaussian, Units | None]:
    units = by_units(network, posterior) if at_points else None
    return (network, posterior, None) if units is None else (units.network, units.posterior, units)


@dataclass(frozen=True, eq=False)
class LatentBounds:
    """Bounds of a network over boxes of x and of its latent numbers.

    bounds : of the fixed network of (x, deviations of units if any, z), the probabilities of a classifier included
    latents : k, units included; inputs : n; units : of the first layer, where they are latent numbers
    """

    bounds: OutputBounds
    latents: int
    inputs: int
    means: WeightBoxes
    units: Units | None

    @staticmethod
    def of(bounds: OutputBounds, posterior: Gaussian, device: torch.device, *, at_points: bool) -> LatentBounds:
        """The bounds over the latent numbers of a posterior that cells serve; ValueError for any other.

        Parameters
        ----------
        at_points : what is asked is about the law at single x: units of a first layer are latent numbers
        """
        n = bounds.engine.network.signature.input_size
        network, rest, units = _parted(bounds.engine.network, posterior, at_points)
        found = directions(network, rest)
        if found is None:
            raise ValueError("cells do not serve")
        network = unfolded(with_probabilities(network, bounds.transform), found)
        own = OutputBounds(replace(bounds.engine, network=network), "identity")
        count = len(found) + (0 if units is None else len(units.bias))
        return LatentBounds(own, count, n, weight_sets.mean_weights(network, device), units)

    def _with_units(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (P, n + k) with the deviations of units between x and z."""
        if self.units is None:
            return lower, upper
        n, place = self.inputs, torch.as_tensor(self.units.inputs, device=lower.device)
        weight, bias = (torch.as_tensor(part, device=lower.device) for part in (self.units.weight, self.units.bias))
        low, high = lower[:, place], upper[:, place]
        largest = torch.maximum(low.abs(), high.abs())
        smallest = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
        least, most = ((part**2) @ weight.mT + bias for part in (smallest, largest))
        paid = gamma(2 * len(place) + 16)
        least, most = (least * (1 - paid) - SMALL).clamp(min=0).sqrt() * (1 - paid), (most + SMALL).sqrt() * (1 + paid)
        return torch.cat([lower[:, :n], least, lower[:, n:]], -1), torch.cat([upper[:, :n], most, upper[:, n:]], -1)

    def _without_units(self, form: LinearForm, lower: Tensor, upper: Tensor) -> LinearForm:
        """A form over the boxes with deviations as one over x and z: what they add at least."""
        if self.units is None:
            return form
        n, end = self.inputs, self.inputs + len(self.units.bias)
        own = LinearForm(form.slope[..., n:end], form.offset)
        offset = own.minimum(Interval(lower[None, :, n:end], upper[None, :, n:end]))
        return LinearForm(torch.cat([form.slope[..., :n], form.slope[..., end:]], -1), offset)

    def until(self, deadline: Deadline) -> LatentBounds:
        """These bounds with another deadline."""
        return replace(self, bounds=replace(self.bounds, engine=replace(self.bounds.engine, deadline=deadline)))

    def rows(self, lower: Tensor, upper: Tensor, outputs: Tensor, inputs: Tensor | None) -> tuple[Tensor, LinearForm]:
        """Lower bounds (P, R) of rows over boxes (P, n + k), and linear functions (1, P, R, n + k) below them."""
        low, high = self._with_units(lower, upper)
        if inputs is not None:
            inputs = torch.nn.functional.pad(inputs, (0, low.shape[-1] - self.inputs))
        found = self.bounds.rows(self.means, low, high, outputs, inputs, forms=True)
        if found.form is None:
            raise ValueError("linear forms are wanted")
        return found.lower[0], self._without_units(found.form, low, high)

    def curvature(self, lower: Tensor, upper: Tensor, row: Tensor, moved: Tensor | None) -> Tensor:
        """(P, n + k): by how much the slope of a row (P, m), plus `moved` (P, n) x, varies over boxes: an estimate."""
        v = self.places(lower, upper).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad((self.values(v) * row).sum(), v)
        if moved is not None:
            slope = slope + torch.nn.functional.pad(moved, (0, self.latents))
        slope = slope.nan_to_num(0.0, 0.0, 0.0)
        return slope.amax(0) - slope.amin(0) + _FLAT * slope.abs().amax(0)

    def values(self, v: Tensor) -> Tensor:
        """Outputs (S, P, m) of the network at points (S, P, n + k), not rounded."""
        flat, n = v.flatten(0, 1), self.inputs
        if self.units is not None:
            weight, bias = (torch.as_tensor(part, device=v.device) for part in (self.units.weight, self.units.bias))
            x = flat[:, torch.as_tensor(self.units.inputs, device=v.device)]
            flat = torch.cat([flat[:, :n], (x**2 @ weight.mT + bias + TINY).sqrt(), flat[:, n:]], -1)
        return evaluate(self.bounds.engine.network, flat).unflatten(0, v.shape[:2])

    def places(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(S, P, n + k): some points of every box."""
        turn = torch.arange(lower.shape[-1], device=lower.device) % 3
        at = lower.new_tensor(_PLACES)[:, turn][:, None]
        found = lower + (upper - lower) * at
        low, high = lower[:, self.inputs :], upper[:, self.inputs :]
        share = (
            torch.special.ndtr(low) * (1 - at[..., self.inputs :]) + torch.special.ndtr(high) * at[..., self.inputs :]
        )
        z = torch.minimum(torch.maximum(torch.special.ndtri(share), low), high)
        far = torch.minimum(low.abs(), high.abs()) > _FAR
        found[..., self.inputs :] = torch.where(far, found[..., self.inputs :], z)
        return found.detach()

    def defined(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(P,): the network is surely defined on the boxes."""
        return self.bounds.defined(self.means, *self._with_units(lower, upper))[0].expand(len(lower))


def halves(lower: Tensor, upper: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """First halves of boxes (P, d) along their axes (P,), then second ones: (2 P, d) each."""
    mine = axis[:, None]
    middle = (lower.gather(-1, mine) + upper.gather(-1, mine)) / 2
    return torch.cat([lower, lower.scatter(-1, mine, middle)]), torch.cat([upper.scatter(-1, mine, middle), upper])
