"""A checker of certificates: own readers of ONNX and VNN-LIB, balls and rationals for every number that decides.

It shares no code with bnn_vnnlib, whose answers it checks. The rules and their proofs are in docs/certificates.md; the
modules name them. Read them in this order: `errors`, `balls`, `container`, `vnnlib`, `model`, `bounds`, `tails`,
`proof`, `cli`.
"""

__version__ = "0.1.0"

FORMAT = 1
"""The format of certificates that is read."""
