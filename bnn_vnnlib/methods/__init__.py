"""Methods: ways to bounds on P_safe and on the decision D. Each is sound for itself, and the better bound counts.

Both:
1. `method`: a registered method has a name, says why it does not serve a task, and bounds those that it serves. To add
   one, write an entry into `safety.portfolio.METHODS` or `decision.portfolio.METHODS`; `tests/contract` meets it there.
2. `deterministic`: fixed weights, decided by branch and bound.
3. `correlation`: correlated weights as independent ones and what they share; `components`: mixtures, part by part.

P_safe (`safety`):
4. `safety.safety`: the task, and bounds of many instances as data; `safety.portfolio`: the methods in their order.
5. `by_weights`: boxes of weights, and weight samples, one by one. `tails`: Gaussian weights without boxes.
   `large_variance`: shallow networks with wide posteriors, by the laws of their outputs.
6. `refine`: what is open is refined by stages that take turns.

The decision (`decision`):
7. `decision.method`: the task, and the steps of a method; `decision.portfolio`: the methods in their order; `decide`:
   one run.
8. `by_weights`: any graph. `softmax`, `regression`: expectations in closed form, whose inputs are split. `median`:
   medians.
"""
