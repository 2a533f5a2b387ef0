"""The command `selfens`. Each command builds a config and calls one library function.

Only typer is imported here: `selfens --help` must not wait for torch.

train    train, resume
use      evaluate, predict, export, report, audit, suggest
about    presets, methods, demo, bench
"""

from selfens.cli.main import main

__all__ = ["main"]
