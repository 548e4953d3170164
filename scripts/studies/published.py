"""Figures of the paper that the tables show beside ours.

Source: Wicker, Patane, Laurenti, Kwiatkowska, Adversarial Robustness Certification for Bayesian Neural Networks.
"""

from __future__ import annotations

HCAS_SHARES = {0: (77.9, 21.1, 0.9), 1: (79.3, 10.5, 10.0), 2: (79.7, 11.3, 8.8), 3: (53.4, 34.0, 12.5),
               4: (55.0, 37.0, 7.9)}  # fmt: skip
"""Property -> percentages of safe (P_safe > 0.98), unsafe (< 0.05), undecided boxes."""
HCAS_ALL = (74.0, 20.6, 5.9)
HCAS_GAP = {"VI": 0.08, "HMC": 0.11}
"""Mean gap between the bounds on D, at eps 0.125 in units that the paper does not state."""

RADII = {"concrete": (0.03, 0.06), "powerplant": (0.18, 0.32)}
"""Means of MaxRR and MinUR in the paper's figures, 1 x 100."""
CODE_RADII = {"concrete": (0.033, 0.094), "powerplant": (0.169, 0.209)}
"""The same in the logs of the published code, 1 x 32 tanh, thresholds 0.5 and 0.75."""

MNIST_CODE = {0.01: (0.787, 0.868), 0.058: (0.592, 0.917), 0.106: (0.281, 0.940), 0.25: (0.004, 0.975)}
"""eps -> mean D lower and upper in the logs of the published code, 1 x 32."""
MNIST_CODE_RADII = (0.104, 0.477)
"""Means of MaxRR and MinUR there."""
SIGNS = {"certified": 53.8, "noise uncertain": 99.5}
"""Percent of 250 images certified correct at 2/255, and of 400 noise images certified uncertain (tau 0.55)."""
