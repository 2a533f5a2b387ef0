"""Stop on request: after the first Ctrl-C (or SIGTERM) the current step ends and a checkpoint is written."""

import signal
import threading
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A context in which Ctrl-C sets `requested`. A second Ctrl-C raises KeyboardInterrupt at once."""

    requested = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()  # Python sets signal handlers only there
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS if is_main}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
