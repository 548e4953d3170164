"""The command line: a module a command. Only what a command needs is imported, when it needs it."""

from bnn_vnnlib.cli.commands import app as app
from bnn_vnnlib.cli.commands import main as main
