"""Networks of which the last dense layer alone is random: what is in front of it is one fixed function of x.

Let h(x) be the input of that layer, the features. A row over the outputs is m_r(x) + N_r(h(x)), m_r that of the mean
network, and N_r(h) = delta_r . h + beta_r is linear in h and in the noise of the layer: Gaussian, with mean 0.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn_vnnlib.bounds import backward
from bnn_vnnlib.bounds.engine import Engine
from bnn_vnnlib.bounds.interval import Interval
from bnn_vnnlib.bounds.linear import LINEAR
from bnn_vnnlib.bounds.tails.shared import Correlation, Group
from bnn_vnnlib.bounds.walk import LinearForm, Ranges
from bnn_vnnlib.bounds.weights import WeightBoxes
from bnn_vnnlib.methods.correlation import correlation, independent
from bnn_vnnlib.network.network import Gaussian, Network
from bnn_vnnlib.network.nodes import Linear, Param, Reshape, Shift, params_of
from bnn_vnnlib.problem import weight_sets
from bnn_vnnlib.rounding import TINY, UNIT, gamma, squared
from bnn_vnnlib.system.memory import at_once


@dataclass(frozen=True)
class LastLayer:
    """Positions of the last dense layer, and of its biases if they are random."""

    weight: int
    biases: tuple[int, ...]


def last_layer(network: Network, posterior: Gaussian) -> LastLayer | None:
    """The last dense layer, if nothing in front of it is random, and every random number counts in one place."""
    random = set(weight_sets.random_names(network, posterior))
    uses = Counter(param.source for node in network.nodes for param in params_of(node) if param.source in random)
    (position, *more), biases = network.outputs, list[int]()
    while isinstance(node := network.nodes[position], Shift | Reshape):
        if isinstance(node, Shift) and node.bias.source in random:
            biases.append(position)
        (position,) = node.inputs
    if more or not isinstance(node, Linear) or math.prod(node.shape) != node.shape[node.axis]:
        return None
    mine = [param for place in (position, *biases) for param in params_of(network.nodes[place])]
    whole = all(param.copies == 1 for param in mine) and all(
        param.index.size == network.signature.output_size for param in mine[1:]
    )
    alone = all(count == 1 for count in uses.values()) and set(uses) <= {param.source for param in mine}
    return LastLayer(position, tuple(biases)) if whole and alone and uses else None


def forms_of_rows(
    engine: Engine, means: WeightBoxes, ranges: Ranges, box: Interval, outputs: Tensor, inputs: Tensor | None = None
) -> LinearForm:
    """Linear functions below the rows of the mean network over boxes (1, N, n): outputs (N, R, m), inputs (N, R, n)."""
    lead = (1, len(outputs))
    walk = backward.begin(engine.network, means, ranges, backward.seeds_of(engine.network, outputs[None]), lead)
    form = backward.finish(walk, max(walk.pending), box.lower.shape[-1], LINEAR)
    return form if inputs is None else form.plus(inputs, box)


@dataclass(frozen=True, eq=False)
class LastLayerNoise:
    """The noise N_r of rows over the outputs.

    node : the layer; biases : its random biases; shape : of the features; deviations : of what is independent;
    shared : the rest, or None
    """

    node: Linear
    biases: tuple[Param, ...]
    shape: tuple[int, ...]
    deviations: WeightBoxes
    shared: Correlation | None

    @staticmethod
    def of(network: Network, posterior: Gaussian, layer: LastLayer, device: torch.device) -> LastLayerNoise:
        """The noise of a network's last layer."""
        node = network.nodes[layer.weight]
        if not isinstance(node, Linear):
            raise TypeError("the last layer is dense")
        biases = tuple(param for place in layer.biases for param in params_of(network.nodes[place]))
        deviations = weight_sets.centred(network, independent(posterior), device)
        shared = correlation(network, posterior, device)
        return LastLayerNoise(node, biases, network.nodes[node.inputs[0]].shape, deviations, shared)

    def lengths(self, rows: Tensor, h: Tensor, *, biases: bool) -> Tensor:
        """(N, P, R): standard deviations of N_r(h), rounded up, of rows (N, R, m) at P vectors h (N, P, d).

        biases : with beta_r, or without
        """
        _, total = self._independent(rows, h, biases=biases)
        step = at_once(4 * len(rows) * rows.shape[1] * max([1, *(group.latents for group in self._groups)]))
        for index in range(len(self._groups)):
            parts = [self._shared(index, rows, part, biases=biases) for part in h.split(step, 1)]
            total = total + torch.cat(parts, 1)
        return torch.sqrt(total) * (1 + gamma(2 * len(self._groups) + 8))

    def marginals(self, rows: Tensor) -> Tensor:
        """(N, R, d): standard deviations of the entries of delta_r, rounded up."""
        total, _ = self._independent(rows, rows.new_zeros(len(rows), 1, math.prod(self.shape)), biases=False)
        for group in self._groups:
            if self.node.weight.source in group.sources:
                use = group.use(self.node, self._over_outputs(rows, self.node.shape), self.shape, [])
                total = total + squared(use.deviation.reshape(total.shape))
        return torch.sqrt(total) * (1 + gamma(2 * len(self._groups) + 8))

    def covariances(self, rows: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(N, R, R): covariances of N_r(h) and N_s(h) at h (N, d), and bounds on their errors."""
        size, features = rows.shape[-1], h.shape[-1]
        weight = self.deviations.param(self.node.weight).variance.expand(1, *self.node.weight.shape)[0]
        variance = squared(h) @ weight.mT  # (N, m)
        for param in self.biases:
            variance = variance + self.deviations.param(param).variance.expand(1, *param.shape).reshape(size)
        total = (rows * variance[:, None]) @ rows.mT
        error = gamma(4 * (size + features) + 64) * ((rows.abs() * variance[:, None]) @ rows.abs().mT)
        for index, group in enumerate(self._groups):
            vector, slack = self._vectors(index, rows, h[:, None], biases=True)
            vector, slack = vector.expand(len(h), -1, -1, -1)[:, 0], slack.expand(len(h), -1, -1)[:, 0]
            length = torch.sqrt((vector**2).sum(-1) + TINY) * (1 + gamma(2 * group.latents + 16))
            reach = length + slack
            total = total + vector @ vector.mT
            lost = reach[:, :, None] * reach[:, None] - length[:, :, None] * length[:, None]
            paid = gamma(2 * group.latents + 16) * (reach[:, :, None] * reach[:, None])
            error = error + (lost.clamp(min=0) + paid) + UNIT * total.abs()
        return total, error * (1 + gamma(16)) + TINY

    @property
    def _groups(self) -> tuple[Group, ...]:
        return () if self.shared is None else self.shared.groups

    def _over_outputs(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.reshape(len(rows), 1, rows.shape[1], *shape)

    def _independent(self, rows: Tensor, h: Tensor, *, biases: bool) -> tuple[Tensor, Tensor]:
        """Variances (N, R, d) of what is independent of the entries of delta_r, and (N, P, R) of N_r(h)."""
        square, size = squared(rows), rows.shape[-1]
        paid = gamma(2 * (math.prod(self.shape) + size) + 64)
        weight = self.deviations.param(self.node.weight).variance.expand(1, *self.node.weight.shape)[0]
        entries = square @ weight
        total = squared(h) @ entries.mT
        for param in self.biases if biases else ():
            own = self.deviations.param(param).variance.expand(1, *param.shape).reshape(size)
            total = total + (square @ own)[:, None]
        return entries * (1 + paid) + TINY, total * (1 + paid) + TINY

    def _shared(self, index: int, rows: Tensor, h: Tensor, *, biases: bool) -> Tensor:
        """(N, P, R): variances that a group of shared noise adds, |B h + b|^2, rounded up."""
        total, slack = self._vectors(index, rows, h, biases=biases)
        paid = gamma(2 * total.shape[-1] + 16)
        length = torch.sqrt((total**2).sum(-1) + TINY) * (1 + paid) + slack * (1 + paid)
        return (squared(length) * (1 + 4 * UNIT) + TINY).expand(-1, h.shape[1], -1)

    def _vectors(self, index: int, rows: Tensor, h: Tensor, *, biases: bool) -> tuple[Tensor, Tensor]:
        """B h + b (N, P or 1, R, latents) of a group of shared noise, and the length of the error (N, P or 1, R)."""
        group = self._groups[index]
        total, slack = h.new_zeros(len(h), 1, rows.shape[1], group.latents), h.new_zeros(len(h), 1, rows.shape[1])
        if self.node.weight.source in group.sources:
            centers = [h.reshape(*h.shape[:2], *self.shape)]
            use = group.use(self.node, self._over_outputs(rows, self.node.shape), self.shape, centers)
            total, slack = total + use.centers[0], slack + use.slacks[0]
        for param in self.biases if biases else ():
            if param.source in group.sources:
                found, error = group.shift(param, self._over_outputs(rows, param.shape))
                total, slack = total + found, slack + error
        return total, slack
