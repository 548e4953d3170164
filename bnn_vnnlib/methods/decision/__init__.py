"""Bounds on the decision D(x) = E_w[s(f^w(x))], s the identity, the softmax or the sigmoid, over all x of each item;
or on the medians of the outputs instead, where the rule says so.

The property's own rows a.D(x) + g.x are bounded, not only the outputs one by one. Several methods are tried, the
cheapest first, and the dearer ones only where something is open; bounds only improve.
Guarantee: sound with probability 1, rounding included; not complete.
"""

from bnn_vnnlib.methods.decision.decide import decide as decide
from bnn_vnnlib.methods.decision.decide import violates as violates
from bnn_vnnlib.methods.decision.method import DecisionTask as DecisionTask
from bnn_vnnlib.methods.decision.portfolio import METHODS as METHODS
from bnn_vnnlib.methods.decision.portfolio import Portfolio as Portfolio
from bnn_vnnlib.methods.decision.portfolio import portfolio as portfolio
