"""Tail bounds in activation space: rows of a network with Gaussian weights, without boxes of weights.

Write W^k = mu^k + Delta^k, Delta^k Gaussian with independent entries of mean zero. Let G be the event that every
pre-activation, for every x of the item, stays in the range that was claimed for it; on G the activations' lines are
valid. Walking a row back with the *mean* weights, its coefficients A at a layer are plain numbers, and at each layer
the noise adds delta . h with delta_j = sum_i A_i Delta_ij. So on G, for all x,
    row(x) >= m0 + sum over layers of delta . h(x) + bias noise,
with m0 the deterministic linear bound of the mean network with those lines. Failure: P(row <= b for some x) <=
P(not G) + P(the right side <= b for some x, on G); events are stated on the earlier ones, so plain union bounds hold
and nothing is ever conditioned on G. How the right side is bounded: `tail`. How its noise adds up: `noise`. How far
h(x) is from h at the centre of the box: `variation`.
"""

from bnn_vnnlib.bounds.tails.engine import TailEngine
from bnn_vnnlib.bounds.tails.run import claimed
from bnn_vnnlib.bounds.tails.tail import Tail

__all__ = ["Tail", "TailEngine", "claimed"]
