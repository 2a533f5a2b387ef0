"""How much memory there is. What is asked for is compared with it first, because a system without memory kills processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from selfens.core import launcher
from selfens.errors import ConfigError

if TYPE_CHECKING:
    import torch


def left(device: torch.device | None = None) -> int:
    """Bytes that are available: of a GPU, else of RAM, shared equally among the processes that train together here."""
    if device is not None and device.type == "cuda":
        from torch import cuda

        kept = cuda.memory_reserved(device) - cuda.memory_allocated(device)  # by torch, to be used again
        return int(cuda.mem_get_info(device)[0]) + kept
    sharing = launcher.local_world_size()
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024 // sharing
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // sharing


def check(needed: int, what: str, advice: str, device: torch.device | None = None) -> None:
    """Refuse what takes more bytes than there are.

    >>> check(2**60, "the targets", "use less")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    selfens.errors.ConfigError: the targets would take at least 1,073,741,824.0 GiB, but only ... are available; use less.
    """
    if needed > (there := left(device)):
        sizes = f"{needed / 2**30:,.1f} GiB, but only {there / 2**30:,.1f} GiB are available"
        raise ConfigError(f"{what} would take at least {sizes}; {advice}.")
