"""Bounds of a network's outputs over a box of inputs, and over a box or a Gaussian law of weights, rounding included.

One walk over the graph, many tables: a method of bounding is a table {node type: rule}, and a rule turns the bounds of
a node's inputs into those of its output. To serve another node type is to add a rule to each table.

1. `weights`: boxes of weights, the second set beside the input box.
2. `interval`: ranges of every node, forwards. `activations` says how an activation is bounded: by its monotone pieces,
   or, for curves, by `curves` on the pieces that are listed there.
3. `block`: rows over a node, whole or with a window each, and how linear nodes take them back. `walk` and `backward`:
   the state of a backward walk, and where it starts and ends; `linear`: its table, which yields linear functions of the
   input below rows over the outputs, with the planes around products and maxima.
4. `engine`: the entrance. `Engine.rows` bounds rows over many boxes and weight settings.
5. `functional`: rows over a softmax or sigmoid of bounded logits. `exact`: closed ranges where nothing is rounded.
6. `splits`: linear bounds where the signs of some neurons are known, tuned by gradient.
7. `tails`: the same walk where weights are Gaussian; bounds fail with a probability that is paid for. `TailEngine` is
   its entrance, `tails.tail` holds the inequalities.
8. `dense`: means and exponential moments of chains of dense layers with Gaussian weights, over boxes of inputs.
"""
