"""Splitting: what one look at an input box leaves open is cut into parts that are bounded anew.

Whoever splits has three things to choose: what bounds a part, what closes it, and where it is cut. The rest is here.

1. `frontier`: the items that wait (boxes of inputs, or parts with known signs of neurons), how a box is halved, and
   what ends the work: all is closed, an owner has used up its number of items, or time is up. Nothing is lost then.
   `minimise`: minima of rows over boxes, breadth first. The methods of the decision bring their own bounds.
   `Forest`: probabilities that add up over the parts of a box, best first. The parts stay, since a tree counts as the
   better one of a box and its halves at every node.
2. `branch`: pairs of a weight setting and a box, bounded together; points that violate, sought and proved on the way.
   `Branching`: whether pairs are safe or violated, decided by splitting their inputs, depth first.
3. `branch_neurons`: decided by splitting the signs of ReLU neurons, where many inputs vary.
"""
