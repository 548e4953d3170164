"""Certificates: proofs of answers, for `bnn-vnnlib-check`, a program that shares no code with this one.

docs/certificates.md has the rules and their proofs. Here is the prover's side: `trees` splits boxes and finds what
leaves claim, `prove` makes the proof of an answer, `file` writes it. A proof is found anew for the answer of a run, by
the methods that have a rule (bounds 1 and 2 of the tails, linear bounds, splits of the inputs); whatever is written
is a hint to the checker, which computes every number that decides by itself. So nothing here is rounded with care.
"""
