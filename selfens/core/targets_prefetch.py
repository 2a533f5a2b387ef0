"""Prefetcher: the targets of the next steps, copied to the GPU while it works on earlier ones.

If the ensemble is kept in RAM or in a file and the steps run on a GPU, a step reads and writes slots of two staging buffers
with fixed addresses, found through a table from rows to slots: it can be compiled and captured, and is the same wherever
the ensemble is kept. The buffers take turns. While the steps of one are running, the predictions of the other are copied
back and the targets of its next rows come in. Targets are constant within an epoch, so fetching them early is safe.

No thread is needed: work is queued on a GPU well ahead, and the exchange happens halfway through a buffer, when half of its
steps are still to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from selfens.core.targets_arrays import Arrays, Layout

BUFFER_ROWS = 1 << 13
BUFFER_BYTES = 1 << 26


class Prefetcher:
    """Two staging buffers on `device`, each for a number of steps of `batch_size` rows.

    read   returns the ensemble's arrays
    write  takes rows and their predictions back
    """

    def __init__(
        self,
        layout: Layout,
        batch_size: int,
        device: torch.device,
        read: Callable[[], Arrays],
        write: Callable[[Tensor, Tensor], None],
    ) -> None:
        rows = min(BUFFER_ROWS, BUFFER_BYTES // (2 * layout.row_bytes), layout.num_rows)
        self.size = max(rows // batch_size, 1) * batch_size
        self.device, self.read, self.write = device, read, write
        self.arrays = replace(layout, num_rows=2 * self.size, variance=False).allocate(device)
        # Beyond the last slot: asking for a row that is not staged is an error, not a wrong target.
        self.no_slot = 2 * self.size
        self.slots = torch.full((layout.num_rows,), self.no_slot, dtype=torch.int32, device=device)
        self.is_open = False
        staged = replace(layout, num_rows=self.size, variance=False)
        self.buffers = StagingBuffer(self, staged, 0), StagingBuffer(self, staged, self.size)

    def locate(self, rows: Tensor) -> Tensor:
        """Where in `arrays` these rows are."""
        return self.slots[rows].long()

    def visit(self, order: Tensor) -> Iterator[Tensor]:
        """The batches of `order`, each when its targets are in place."""
        self.finish()
        steps = self.size // order.shape[1]
        groups, on_host = torch.split(order, steps), torch.split(order.cpu(), steps)
        buffer, following = self.buffers
        buffer.stage(on_host[0])
        for number, group in enumerate(groups):
            buffer.open()
            self.is_open = True
            yield from group[: len(group) // 2]
            if number + 1 < len(groups):
                following.stage(on_host[number + 1])
            else:
                following.settle()  # never have two on their way back: the older one could arrive last
            yield from group[len(group) // 2 :]
            buffer.close()
            buffer, following = following, buffer
        self.finish()

    def flush(self) -> None:
        """Bring back all predictions made so far; an epoch that is running goes on."""
        self._settle()  # the older ones first: of a row in both, the later prediction counts
        for buffer in self.buffers:
            buffer.flush()

    def finish(self) -> None:
        """End an epoch, complete or not."""
        self._settle()
        for buffer in self.buffers:
            buffer.close()
        self._settle()
        self.is_open = False

    def _settle(self) -> None:
        for buffer in self.buffers:
            buffer.settle()


class StagingBuffer:
    """Slots from `start` on: staged, then open to steps, then closed and on the way back, then settled."""

    def __init__(self, owner: Prefetcher, layout: Layout, start: int) -> None:
        self.owner, device = owner, owner.device
        on_gpu = device.type == "cuda"
        self.live = {name: array[start : start + layout.num_rows] for name, array in owner.arrays.items()}
        self.slots = torch.arange(start, start + layout.num_rows, dtype=torch.int32, device=device)
        self.rows_on_device = torch.zeros(layout.num_rows, dtype=torch.int64, device=device)
        self.host, self.rows = layout.allocate("cpu"), torch.zeros(layout.num_rows, dtype=torch.int64)
        if on_gpu:  # only copies from and to pinned memory run while the host goes on
            self.host = {name: array.pin_memory() for name, array in self.host.items()}
            self.rows = self.rows.pin_memory()
        self.used, self.is_open, self.is_returning = 0, False, False
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))  # for the zeros above
        self.returned = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def stage(self, batches: Tensor) -> None:
        """Gather the targets of these rows and start copying them to the device."""
        self.settle()
        arrays = self.owner.read()
        rows = torch.unique(batches)  # sorted, which memory and disk like better, and each once
        self.used = used = len(rows)
        self.rows[:used] = rows
        for name in ("mean", "count"):
            torch.index_select(arrays[name], 0, rows, out=self.host[name][:used])
        with self._side_stream():
            self.rows_on_device[:used].copy_(self.rows[:used], non_blocking=True)
            for name in ("mean", "count"):
                self.live[name][:used].copy_(self.host[name][:used], non_blocking=True)
            self.live["written"].zero_()

    def open(self) -> None:
        """Steps queued from now on find these rows."""
        if self.stream is not None:
            torch.cuda.current_stream(self.owner.device).wait_stream(self.stream)
        self.owner.slots.index_copy_(0, self.rows_on_device[: self.used], self.slots[: self.used])
        self.is_open = True

    def close(self) -> None:
        """After the steps queued so far, forget the rows and start copying their predictions back."""
        if self.is_open:
            self.owner.slots.index_fill_(0, self.rows_on_device[: self.used], self.owner.no_slot)
            self._send_back()
            self.is_open, self.is_returning = False, True

    def flush(self) -> None:
        """Bring back what an open buffer has by now."""
        if self.is_open:
            self._send_back()
            self._receive()
            self.live["written"].zero_()

    def settle(self) -> None:
        """Wait for predictions that are on their way back."""
        if self.is_returning:
            self._receive()
            self.is_returning = False

    def _send_back(self) -> None:
        for name in ("pending", "written"):
            self.host[name][: self.used].copy_(self.live[name][: self.used], non_blocking=True)
        if self.returned is not None:
            self.returned.record()

    def _receive(self) -> None:
        if self.returned is not None:
            self.returned.synchronize()
        written = self.host["written"][: self.used]
        if written.any():
            self.owner.write(self.rows[: self.used][written], self.host["pending"][: self.used][written])

    def _side_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
