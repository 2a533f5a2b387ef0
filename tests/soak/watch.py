"""Limits for what a damaged file may cause: memory, and deeds that no file may cause."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes that a case may ask for
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pickle.find_class")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
state: dict[str, Any] = {"crimes": None}


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """With a limit of memory; yields the forbidden deeds: programs, connections, code by name, writing outside of a folder."""
    if "hooked" not in state:
        state["hooked"] = True  # an audit hook cannot be taken away
        sys.addaudithook(_see)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    crimes: list[str] = []
    state.update(crimes=crimes, folder=os.path.realpath(folder))
    with contextlib.suppress(FileNotFoundError):  # macOS has none
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    try:
        yield crimes
    finally:
        state["crimes"] = None
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if state["crimes"] is None:
        return
    if event in FORBIDDEN or (event == "import" and arguments[0] == "soak_canary"):
        state["crimes"].append(f"{event} {arguments[:2]!r}"[:200])
    elif event == "open" and isinstance(arguments[0], str | bytes) and (arguments[2] or 0) & WRITING:
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith((state["folder"], "/dev/null")):
            state["crimes"].append(f"{path} was opened for writing")
