"""What torchrun says of this process, through the environment. A process that torchrun did not start is the only one."""

from __future__ import annotations

import os

from selfens.errors import ConfigError


def rank() -> int:
    """The number of this process among all."""
    return _number("RANK", 0)


def world_size() -> int:
    """How many processes train together."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """The number of this process among those on its machine."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    """How many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def restarts() -> int:
    """How many times all were started again because one had failed."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def check_single_process(what: str) -> None:
    """Refuse, in one of several processes, what uses files that the others would not see."""
    if world_size() > 1:
        raise ConfigError(
            f"{what} trains in one process, and torchrun has started {world_size()}; start it without, or use selfens.train."
        )


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
