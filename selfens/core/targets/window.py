"""Window: the targets of the next steps, brought to the compute device while it works on earlier ones.

Where the ensemble is kept in RAM or in a file and the steps run on a GPU, the step reads and writes slots of two buffers of
fixed address, found through a table from rows to slots: it can be compiled and captured, and is the same wherever the
ensemble is kept. The buffers take turns. While the steps of one are under way, the predictions of the other go back and the
targets of its next rows come in; targets stay constant within an epoch, so those fetched ahead are those fetched in time.

No thread is needed for that: a GPU is given work well ahead of doing it, and the exchange happens halfway through a window,
when half a window of steps is still to be worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from selfens.core.targets.arrays import Arrays, Layout

WINDOW_ROWS = 1 << 13
WINDOW_BYTES = 1 << 26


class Window:
    """Two buffers of up to `size` rows each on `device`, for the arrays that `home` returns."""

    def __init__(self, layout: Layout, size: int, device: torch.device, home: Callable[[], Arrays]) -> None:
        self.size, self.device, self.home = size, device, home
        self.outside = 2 * size
        staged = replace(layout, num_rows=2 * size, variance=False)
        self.arrays = staged.allocate(device)
        # Beyond the last slot: asking for a row that is not staged is an error, not a wrong target.
        self.slots = torch.full((layout.num_rows,), self.outside, dtype=torch.int32, device=device)
        self.is_open = False
        half = replace(staged, num_rows=size)
        self.buffers = tuple(Buffer(self, half, start) for start in (0, size))

    @staticmethod
    def suitable_size(layout: Layout, batch_size: int) -> int:
        """About a hundred steps, or what fits into a moderate amount of memory, but at least one step."""
        rows = min(WINDOW_ROWS, WINDOW_BYTES // (2 * layout.row_bytes), layout.num_rows)
        return max(rows // batch_size, 1) * batch_size

    def locate(self, rows: Tensor) -> Tensor:
        return self.slots[rows].long()

    def visit(self, order: Tensor) -> Iterator[Tensor]:
        """The batches of `order`, each with its targets in place when it is handed out."""
        self.finish()
        steps = self.size // order.shape[1]
        windows, on_host = torch.split(order, steps), torch.split(order.cpu(), steps)
        buffer, following = self.buffers
        buffer.stage(on_host[0])
        for number, window in enumerate(windows):
            buffer.open()
            self.is_open = True
            yield from window[: len(window) // 2]
            if number + 1 < len(windows):
                following.stage(on_host[number + 1])
            else:
                following.settle()  # so that never two are on their way back, of which the older could arrive last
            yield from window[len(window) // 2 :]
            buffer.close()
            buffer, following = following, buffer
        self.finish()

    def flush(self) -> None:
        """See that all predictions made so far have arrived at home; an epoch under way goes on."""
        self._settle()  # first the older ones: of a row in both, the later prediction counts
        for buffer in self.buffers:
            buffer.flush()

    def finish(self) -> None:
        """End an epoch, or one that was given up."""
        self._settle()
        for buffer in self.buffers:
            buffer.close()
        self._settle()
        self.is_open = False

    def _settle(self) -> None:
        for buffer in self.buffers:
            buffer.settle()


class Buffer:
    """Slots from `start` on: staged from home, then open to steps, then closed and on the way back, then settled."""

    def __init__(self, window: Window, layout: Layout, start: int) -> None:
        self.window, device = window, window.device
        on_gpu = device.type == "cuda"
        self.live = window.arrays.map(lambda part: part[start : start + layout.num_rows])
        self.numbers = torch.arange(start, start + layout.num_rows, dtype=torch.int32, device=device)
        self.rows_on_device = torch.zeros(layout.num_rows, dtype=torch.int64, device=device)
        self.host, self.rows = layout.allocate("cpu"), torch.zeros(layout.num_rows, dtype=torch.int64)
        if on_gpu:  # only from pinned memory are copies made while the host goes on
            self.host, self.rows = self.host.map(Tensor.pin_memory), self.rows.pin_memory()
        self.used, self.opened, self.returning = 0, False, False
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))  # for the zeros above
        self.staged = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self.returned = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def stage(self, batches: Tensor) -> None:
        """Gather the targets of these rows at home and send them off."""
        self.settle()
        home = self.window.home()
        rows = torch.unique(batches)  # in order, which is kinder to memory and disk, and each once
        self.used = used = len(rows)
        self.rows[:used] = rows
        torch.index_select(home.mean, 0, rows, out=self.host.mean[:used])
        torch.index_select(home.count, 0, rows, out=self.host.count[:used])
        with self._aside():
            self.rows_on_device[:used].copy_(self.rows[:used], non_blocking=True)
            self.live.mean[:used].copy_(self.host.mean[:used], non_blocking=True)
            self.live.count[:used].copy_(self.host.count[:used], non_blocking=True)
            self.live.written.zero_()
            if self.staged is not None:
                self.staged.record()

    def open(self) -> None:
        """From here on the steps given to the device find these rows."""
        if self.staged is not None:
            torch.cuda.current_stream(self.window.device).wait_event(self.staged)
        self.window.slots.index_copy_(0, self.rows_on_device[: self.used], self.numbers[: self.used])
        self.opened = True

    def close(self) -> None:
        """After the steps given so far, forget the rows and send their predictions home."""
        if not self.opened:
            return
        self.window.slots.index_fill_(0, self.rows_on_device[: self.used], self.window.outside)
        self._send_back()
        self.opened, self.returning = False, True

    def flush(self) -> None:
        """Bring home what the open buffer has by now."""
        if self.opened:
            self._send_back()
            self._receive()
            self.live.written.zero_()

    def settle(self) -> None:
        """Wait for what is on its way, and put it where it belongs."""
        if self.returning:
            self._receive()
            self.returning = False

    def _send_back(self) -> None:
        self.host.pending[: self.used].copy_(self.live.pending[: self.used], non_blocking=True)
        self.host.written[: self.used].copy_(self.live.written[: self.used], non_blocking=True)
        if self.returned is not None:
            self.returned.record()

    def _receive(self) -> None:
        if self.returned is not None:
            self.returned.synchronize()
        written = self.host.written[: self.used]
        if written.any():
            home, rows = self.window.home(), self.rows[: self.used][written]
            home.pending[rows] = self.host.pending[: self.used][written]
            home.written[rows] = True

    def _aside(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
