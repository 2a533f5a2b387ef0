"""Available memory. Large allocations are checked first, because a system out of memory kills processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from selfens.errors import ConfigError

if TYPE_CHECKING:
    import torch


def available(device: torch.device | None = None) -> int:
    """Return the available bytes of a GPU, or each process's share of the available RAM."""
    if device is not None and device.type == "cuda":
        from torch import cuda

        reusable = cuda.memory_reserved(device) - cuda.memory_allocated(device)
        return int(cuda.mem_get_info(device)[0]) + reusable
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    except (OSError, StopIteration, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(free, _container_limit()) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # set by torchrun


def _container_limit() -> int:
    """Return the bytes that this container may still allocate, by its cgroup; sys.maxsize without a limit."""
    try:
        limit, used, stat = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current", "stat"))
        reclaimable = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file"))
        return max(int(limit) - int(used) + reclaimable, 0)
    except (OSError, ValueError, StopIteration):  # no cgroup v2, or the limit is "max"
        return sys.maxsize


def check(needed: int, what: str, advice: str, device: torch.device | None = None) -> None:
    """Raise a ConfigError if fewer than `needed` bytes are available."""
    if needed > (free := available(device)):
        sizes = f"{needed / 2**30:,.1f} GiB, but only {free / 2**30:,.1f} GiB are available"
        raise ConfigError(f"{what} would take at least {sizes}; {advice}.")
