"""`python -m bnn_vnnlib`."""

from bnn_vnnlib.cli import main

if __name__ == "__main__":
    main()
