"""Atomic writing, tensor files, tables, locks."""

import errno
from pathlib import Path


def check_regular(path: Path) -> None:
    """Refuse a path that exists and is not a regular file, such as a pipe, which would block forever."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
