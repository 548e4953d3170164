"""The question as arrays, and what every method asks of it.

1. `problem`: instances, items, cases and rows as tensors, for one property or for a batch of boxes; what it takes to
   refute a case (one row is false) and to meet it (all rows hold); points of T, exactly, also where the file's number
   lies between two floats; cases that exclude each other, so that their probabilities add up.
2. `outputs`: the engine's bounds on what the query calls Y: the outputs, or their softmax or sigmoid.
3. `refute`: cases refuted by one row or by a checked combination of rows, and cases violated at a point; rows that
   closed ranges settle are taken out of the problem before any method starts.
4. `weight_sets`: from a posterior to the weight boxes and samples that the engine takes, and the posterior mass of such
   boxes and of their unions.

Whether a row is false or true at a bound, ties included, is said once, by `question.property.row_false`.
"""
