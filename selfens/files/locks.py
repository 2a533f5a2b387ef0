"""Locks on files: the system holds them for a process and releases them when it ends, however it ends."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def take(file: int | IO[Any]) -> bool:
    """Lock a file that is open, without waiting; False if another process, or another opening of it, has a lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(file: int | IO[Any]) -> None:
    """Before the file is closed, which does the same."""
    fcntl.flock(file, fcntl.LOCK_UN)
