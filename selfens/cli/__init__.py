"""The command `selfens`. Each command builds a config and calls one library function.

Only typer is imported here: `selfens --help` must not wait for torch.
"""

from selfens.cli.main import main

__all__ = ["main"]
