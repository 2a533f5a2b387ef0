"""The command line, `selfens`. Each command builds a config and calls one library function.

Only typer is imported at the top, so that `selfens --help` does not wait for torch.
"""

from selfens.cli.main import main

__all__ = ["main"]
