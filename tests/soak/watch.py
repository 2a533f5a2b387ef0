"""Limits for what a damaged file may cause."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes that a case may ask for
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pickle.find_class")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
now: dict[str, Any] = {}  # the folder to stay in and what was done against the rules, while somebody watches


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Limit the memory; raise at the end if a program was run, a connection made, a file written elsewhere, code imported."""
    if not hasattr(sys, "soak_hook"):
        sys.soak_hook = sys.addaudithook(_see)  # which cannot be taken away
    limits, deeds, elsewhere = resource.getrlimit(resource.RLIMIT_AS), [], tempfile.tempdir
    tempfile.tempdir = str(folder)  # where folds are trained
    now.update(folder=os.path.realpath(folder), deeds=deeds)
    with contextlib.suppress(FileNotFoundError):  # macOS has none
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    try:
        yield
    finally:
        now.clear()
        tempfile.tempdir = elsewhere
        resource.setrlimit(resource.RLIMIT_AS, limits)
        if deeds:
            raise PermissionError(f"forbidden: {deeds[0]}")


def _see(event: str, words: tuple[Any, ...]) -> None:
    if not now:
        return
    if event in FORBIDDEN or (event == "import" and words[0] == "soak_canary"):
        now["deeds"].append(f"{event} {words[:2]!r}"[:200])
    elif event == "open" and isinstance(words[0], str | bytes) and (words[2] or 0) & WRITING:
        path = os.path.realpath(os.fsdecode(words[0]))
        if not path.startswith((now["folder"], "/dev/null")):
            now["deeds"].append(f"{path} was opened for writing")
