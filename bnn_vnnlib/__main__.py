"""`python -m bnn_vnnlib`.

From a folder that somebody else filled, `bnn-vnnlib` or `python -P -m bnn_vnnlib` are safer: Python itself looks into
the current folder before this is reached.
"""

from bnn_vnnlib.system.isolation import forget_current_folder

if __name__ == "__main__":
    forget_current_folder()

    from bnn_vnnlib.cli import main

    main()
