"""Posteriors into ONNX files, and out of them to other tools.

`convert` makes BNNs of deterministic networks and benchmarks, `simplify` cleans a model up under its posterior,
`merge` and `parts` write plain networks for deterministic tools. (A posterior in a stochastic export is recovered
while it is read: `bnn_vnnlib.model.recovery`.)
"""
