"""Bounds on the decision of a classifier, D(x) = E_w[softmax(f^w(x))], that know how the weights enter.

`softmax` turns linear bounds of the differences of logits into linear bounds of the expected softmax; `one_layer`
(one hidden ReLU layer, closed forms) and `by_samples` (weight samples) supply the former; `deep` (ReLU layers, any
depth) goes by exponential moments at fixed inputs, `by_tails` (any graph) by tails; `method` splits the inputs. The
mathematics is in docs/decision.md.
"""
