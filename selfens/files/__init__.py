"""Atomic writing, tensor files, tables, locks."""

import errno
import fcntl
from pathlib import Path
from typing import IO, Any


def check_regular(path: Path) -> None:
    """Refuse a path that exists and is not a regular file, such as a pipe, which would block forever."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed. Return False at once if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
