"""Writing whole files or none, tensor files, tables, locks."""

from __future__ import annotations

import errno
from pathlib import Path


def check_regular(path: Path) -> None:
    """Refuse what is there and is not a file, such as a pipe, which would be waited for without end."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
