"""Locks on files, held by the system for a process and let go when it ends, however it ends."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def take(file: int | IO[Any], *, shared: bool = False) -> bool:
    """Lock a file that is open, without waiting; False where another process, or another opening of it, has a lock.

    shared  beside others that share it, but not beside one that has it alone
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(file: int | IO[Any]) -> None:
    """Before the file is closed, which does the same."""
    fcntl.flock(file, fcntl.LOCK_UN)
