"""Temporary folders that are removed even if the process that made them was killed."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from selfens.files import lock

PREFIX, LOCK = "selfens-", ".lock"
AGE = 60.0  # seconds; a younger folder may not be locked yet


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder that is removed at the end; first remove those whose processes have died."""
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, open(Path(folder) / LOCK, "w") as file:
        lock(file)
        yield Path(folder)


def remove_abandoned(parent: Path) -> None:
    """Remove our folders whose lock nobody holds. A lock ends with its process, however that ends."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            about = path.lstat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < AGE or path.parent.is_symlink():
                continue
            with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "w") as file:
                if lock(file):
                    shutil.rmtree(path.parent, ignore_errors=True)
