"""A posterior recovered from a plain stochastic export: a graph that draws its weights when it is run.

The graph is evaluated, not matched: whatever spells mu + softplus(rho) * noise gives the same mean and the same
standard deviation. `recover` says how.
"""

from __future__ import annotations

from bnn_vnnlib.model.recovery.graph import NotRecoverable as NotRecoverable
from bnn_vnnlib.model.recovery.recover import Recovery as Recovery
from bnn_vnnlib.model.recovery.recover import is_stochastic as is_stochastic
from bnn_vnnlib.model.recovery.recover import recover as recover
from bnn_vnnlib.model.recovery.recover import recover_file as recover_file
