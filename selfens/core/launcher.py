"""What torchrun tells this process through the environment. A process that torchrun did not start is the only one."""

import os

from selfens.errors import ConfigError


def rank() -> int:
    """Return the number of this process among all."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """Return how many processes train together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """Return the number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def local_world_size() -> int:
    """Return how many of the processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def restarts() -> int:
    """Return how many times all processes were started again because one had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def check_single_process(what: str) -> None:
    """Refuse `what` in one of several processes."""
    if world_size() > 1:
        raise ConfigError(f"{what} trains in one process; start it without torchrun, or use selfens.train.")
