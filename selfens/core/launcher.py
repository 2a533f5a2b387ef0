"""The environment variables of torchrun. Without torchrun there is one process."""

import os

from selfens.errors import ConfigError


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def restarts() -> int:
    """Return how many times torchrun has restarted the processes after one failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def check_single_process(what: str) -> None:
    """Raise a ConfigError if torchrun started several processes."""
    if world_size() > 1:
        raise ConfigError(f"{what} trains in one process; start it without torchrun, or use selfens.train.")
