"""Expectations of a regression network's outputs, bounded close to the truth, for chains of dense Gaussian layers.

`one_layer`: closed forms, minimised by branch and bound; `two_layers`: characteristic functions; `moments_deep`:
moments, layer by layer. Which of them serve a network stands in `decision.portfolio`.
"""
