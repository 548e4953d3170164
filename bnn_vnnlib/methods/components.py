"""Mixtures: P_safe and the decision are weighted sums over the components, each a network and a Gaussian of its own.

With component i drawn with probability p_i, P_w(A) = sum_i p_i P_i(A) for every event A, in particular for 'no case is
violated by any x'. So sum_i p_i lower_i <= P_safe <= sum_i p_i upper_i for bounds of the components, the points behind
the upper bounds being free to differ. Likewise E_w g(w, x) = sum_i p_i E_i g(w, x) at every x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bnn_vnnlib.methods.safety.last_layer import LastLayerBounds
from bnn_vnnlib.methods.safety.safety import SafetyBounds, SafetyTask, last_of_each, nothing_known
from bnn_vnnlib.methods.safety.tails import TailBounds, why_no_tails
from bnn_vnnlib.network.network import Gaussian, Mixture, Network
from bnn_vnnlib.problem.outputs import OutputBounds
from bnn_vnnlib.problem.problem import Problem, feasible, point_box
from bnn_vnnlib.rounding import UNIT
from bnn_vnnlib.system.clock import Deadline

BY_COMPONENTS = "components of a mixture"
"""Name of the method, for people and the record."""


@dataclass(frozen=True, eq=False)
class BoundedComponent:
    """Share p_i, the bounds over its own network of means, and its Gaussian."""

    share: float
    bounds: OutputBounds
    posterior: Gaussian

    @property
    def network(self) -> Network:
        """The network with the means of the component as its weights."""
        return self.bounds.engine.network


def components_of(bounds: OutputBounds, posterior: Gaussian | Mixture) -> list[BoundedComponent]:
    """The components of a mixture whose probability is not 0, with their bounds; a Gaussian is its only component."""
    if not isinstance(posterior, Mixture):
        return [BoundedComponent(1.0, bounds, posterior)]
    network, shares = bounds.engine.network, posterior.probabilities / posterior.probabilities.sum()
    found = []
    for share, part in zip(shares, posterior.components, strict=True):
        means = {name: np.asarray(mean, np.float64) for name, mean in part.means.items()}
        own = replace(network, tensors={**network.tensors, **means})
        if share > 0:
            found.append(
                BoundedComponent(
                    float(share), replace(bounds, engine=replace(bounds.engine, network=own)), part.posterior
                )
            )
    return found


def by_components(task: SafetyTask, solve: Callable[[BoundedComponent, Deadline, bool], SafetyBounds]) -> SafetyBounds:
    """Bounds on P_safe of every instance; the time that is left is shared evenly among what is to come.

    Parameters
    ----------
    task : of a mixture; where the bounds of all components together do not reach its goal, they are refined
    solve : bounds of one component, refined or from one pass: first all have their pass, then what is open is refined
    """
    parts = components_of(task.bounds, cast(Mixture, task.posterior))
    found = [solve(part, task.deadline, False) for part in parts]
    if bool(task.goal.open(_together(parts, task.problem, found)).any()):
        for index, part in enumerate(parts):
            if not task.deadline.passed:
                found[index] = found[index].better(solve(part, task.deadline.share(len(parts) - index), True))
    return _together(parts, task.problem, found, task.deadline)


def _together(
    parts: list[BoundedComponent], problem: Problem, found: list[SafetyBounds], deadline: Deadline | None = None
) -> SafetyBounds:
    """The weighted sums; the common point only if time is given for it."""
    shares = found[0].lower.new_tensor([part.share for part in parts])
    lower, upper = (torch.stack([getattr(one, side) for one in found]) for side in ("lower", "upper"))
    best, mass = _common_point(parts, problem, found, deadline) if deadline else (found[0].point, found[0].point_mass)
    return replace(
        nothing_known(problem, problem.lower),
        lower=weighted_sum(shares, lower).clamp(0, 1), upper=(-weighted_sum(shares, -upper)).clamp(0, 1),
        point=best, point_mass=mass,
    ).named(BY_COMPONENTS)  # fmt: skip


def weighted_sum(shares: Tensor, values: Tensor) -> Tensor:
    """sum_i p_i v_i over the first axis, rounded down; the p_i are positive and sum to 1 up to their roundings.

    Where all v_i agree it is that value.
    """
    weights = shares.reshape(-1, *(1,) * (values.dim() - 1))
    total, size = (weights * values).sum(0), (weights * values.abs()).sum(0)
    total = total - 4 * (len(shares) + 4) * UNIT * size
    return torch.where((values == values[0]).all(0), values[0], total).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def violation_mass(
    parts: list[BoundedComponent], problem: Problem, lower: Tensor, upper: Tensor, deadline: Deadline
) -> Tensor:
    """(N,) lower bounds on P_w(some case holds at the point), by the tails and the last layers of all components that
    they serve."""
    total = torch.zeros(len(problem), dtype=torch.float64, device=lower.device)
    for part in parts:
        if why_no_tails(part.bounds, part.posterior, problem) is None:
            tails = TailBounds(part.network, part.posterior, lower.device, deadline)
            mass = tails.unsafe(problem, lower, upper)
            engine = replace(part.bounds.engine, deadline=deadline)
            last = LastLayerBounds.over(replace(part.bounds, engine=engine), part.posterior, problem)
            if not isinstance(last, str):
                mass = torch.maximum(mass, last.unsafe(problem, lower, upper))
            total = total + part.share * mass
    return (total - 4 * (len(parts) + 4) * UNIT).clamp(0, 1)


def _common_point(
    parts: list[BoundedComponent], problem: Problem, found: list[SafetyBounds], deadline: Deadline
) -> tuple[Tensor, Tensor]:
    """The points (I, n): for each instance that of the components' points at which the most mass violates; and that
    mass (I,).

    It is for the witness; the bounds do not rest on it.
    """
    points, mass = found[0].point, torch.full_like(found[0].lower, -1.0)
    for one in found:
        if not bool((one.upper < 1).any()):
            continue
        x = one.point[problem.instance]
        inside = ((problem.inner_lower <= x) & (x <= problem.inner_upper)).all(-1) & feasible(problem, x)
        index = torch.nonzero(inside)[:, 0]
        held = torch.full((len(problem),), -1.0, dtype=torch.float64, device=x.device)  # where x is not in T
        part = problem.items(index)
        if len(index):
            # without time it is 0, and the point will do: whoever shows it bounds its mass again
            held[index] = violation_mass(parts, part, *point_box(part, x[index]), deadline)
        best = last_of_each(problem, torch.argsort(held, stable=True))
        better = held[best] > mass
        points = torch.where(better[:, None], one.point, points)
        mass = torch.where(better, held[best], mass)
    return points, mass.clamp(min=0.0)
