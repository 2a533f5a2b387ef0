"""File locks: the system holds them for a process and releases them when it ends, however it ends."""

import fcntl
from typing import IO, Any


def take(file: IO[Any]) -> bool:
    """Lock an open file without waiting; return False if another process, or another handle, has a lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
