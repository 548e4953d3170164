"""Methods: ways to bounds on P_safe and on the decision D. Each is sound for itself, and the better bound counts.

P_safe (`safety`):
1. `safety.safety`: bounds of many instances as data; `safety.portfolio`: which methods serve, and in which order.
2. `by_boxes`, `margins`: boxes of weights. `by_samples`: weight samples, one by one. `tails`: Gaussian weights without
   boxes. `large_variance`: shallow networks with wide posteriors, by the laws of their outputs.
3. `refine`: what is open is refined by stages that take turns; `refine_*` are the stages.

The decision (`decision`):
4. `decision.method`: what a method is; `decision.portfolio` and `median`: which of them serve; `decide`: one run.
5. `by_weights`: any graph. `softmax`, `regression`: expectations in closed form, whose inputs are split.

Both:
6. `deterministic`: fixed weights, decided by branch and bound.
7. `correlation`: correlated weights as independent ones and what they share; `components`: mixtures, part by part.
"""
