"""Presence: runs that compute on one device at the same time know of each other, whichever commands began them.

Each holds a file locked in the temporary folder, which says where its mark belongs. Whoever comes later finds the file
locked, and leaves a mark for both. The lock is the system's, and is let go when the process ends, however it ends; the
mark lies beside the run, so that one stopped and picked up again still knows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from selfens.files import locks


@contextlib.contextmanager
def present(device: str, mark: Path) -> Iterator[None]:
    """Be known on the device; `mark` is made as soon as another run of this user is known there too."""
    folder = Path(tempfile.gettempdir()) / f"selfens-{os.getuid()}" / device.replace("/", "-")
    mine = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / f".{mine.name}", "wb")  # noqa: SIM115  held open on purpose
    except OSError:  # nowhere to be known; the run itself does not need it
        yield
        return
    with file:
        locks.take(file)  # nobody else knows of it yet
        file.write(os.fsencode(mark.absolute()))
        file.flush()
        os.rename(file.name, mine)  # locked before it can be found
        try:
            for other in _others(folder, mine):
                for each in (other, mark):
                    with contextlib.suppress(OSError):
                        each.touch()
            yield
        finally:
            mine.unlink(missing_ok=True)


def _others(folder: Path, mine: Path) -> Iterator[Path]:
    """Where the marks of the other runs belong."""
    for path in folder.glob("[!.]*"):
        if path == mine:
            continue
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if locks.take(file, shared=True):  # shared, so that two who look do not see each other
                path.unlink(missing_ok=True)  # left by a process that was killed
            else:
                yield Path(os.fsdecode(file.read()))
