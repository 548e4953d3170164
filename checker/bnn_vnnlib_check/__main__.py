"""`python -m bnn_vnnlib_check`."""

from bnn_vnnlib_check.cli import main

main()
