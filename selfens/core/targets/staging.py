"""Prefetcher: copies the targets of the next steps to the GPU while it works on earlier ones.

If the ensemble is kept in RAM or in a file and the steps run on a GPU, a step reads and writes slots of two staging buffers at
fixed addresses, found through a table from rows to slots. So a step can be compiled and captured, and is the same wherever
the ensemble is kept. The buffers take turns: halfway through the steps of one, the predictions of the other have been copied
back and the targets of its next rows are queued. Targets are constant within an epoch, so fetching them early is safe.

This needs no thread and no second stream: the host queues work well ahead of the GPU, and the copies are short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from selfens.core.targets.layout import DTYPES, Arrays, TargetsLayout

BUFFER_ROWS = 1 << 13
BUFFER_BYTES = 1 << 26


class StagingBuffer:
    """Slots on the device, and as much pinned memory on the host, so that copies are asynchronous."""

    def __init__(self, layout: TargetsLayout, live: Arrays, device: torch.device) -> None:
        self.live = live | {"rows": torch.zeros(layout.num_rows, dtype=torch.int64, device=device)}
        self.host = layout.allocate(torch.device("cpu")) | {"rows": torch.zeros(layout.num_rows, dtype=torch.int64)}
        self.used = 0
        self.returned: torch.cuda.Event | None = None
        self.is_returning = False
        if device.type == "cuda":
            self.host = {name: array.pin_memory() for name, array in self.host.items()}
            self.returned = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def stage(self, batches: Tensor, arrays: Arrays) -> None:
        """Gather the targets of these rows and queue the copy to the device."""
        rows = torch.unique(batches)  # each once, and sorted for the sake of memory and disk
        self.used = used = len(rows)
        self.host["rows"][:used] = rows
        for name in ("mean", "count"):
            torch.index_select(arrays[name], 0, rows, out=self.host[name][:used])
        for name in ("rows", "mean", "count"):
            self.live[name][:used].copy_(self.host[name][:used], non_blocking=True)
        self.live["written"].zero_()

    def send_back(self) -> None:
        """Queue the copy of the predictions to the host, after the steps queued so far."""
        for name in ("pending", "written"):
            self.host[name].copy_(self.live[name], non_blocking=True)
        if self.returned is not None:
            self.returned.record()
        self.is_returning = True

    def receive(self, write: Callable[[Tensor, Tensor], None]) -> None:
        """Wait for predictions on their way back, and write them."""
        if not self.is_returning:
            return
        if self.returned is not None:
            self.returned.synchronize()
        self.is_returning = False
        written = self.host["written"]
        if written.any():
            write(self.host["rows"][written], self.host["pending"][written])


class Prefetcher:
    """Two staging buffers on `device`, each for several steps of `batch_size` rows.

    `read` returns the ensemble's arrays; `write` takes rows and their predictions back.
    """

    def __init__(
        self,
        layout: TargetsLayout,
        batch_size: int,
        device: torch.device,
        read: Callable[[], Arrays],
        write: Callable[[Tensor, Tensor], None],
    ) -> None:
        row_bytes = layout.num_classes * DTYPES[layout.dtype].itemsize
        rows = min(BUFFER_ROWS, BUFFER_BYTES // (2 * row_bytes), layout.num_rows)
        self.size = size = max(rows // batch_size, 1) * batch_size
        self.read, self.write = read, write
        self.arrays = replace(layout, num_rows=2 * size, variance=False).allocate(device)
        self.slots = torch.zeros(layout.num_rows, dtype=torch.int32, device=device)
        staged = replace(layout, num_rows=size, variance=False)
        halves = ({name: array[at : at + size] for name, array in self.arrays.items()} for at in (0, size))
        self.buffers = [StagingBuffer(staged, live, device) for live in halves]
        self.open: StagingBuffer | None = None
        """The buffer whose rows the current steps use; None between epochs."""

    def locate(self, rows: Tensor) -> Tensor:
        """Return the positions of these rows in `arrays`."""
        return self.slots[rows].long()

    def visit(self, order: Tensor) -> Iterator[Tensor]:
        """Yield the batches of `order`, each when its targets are in place."""
        self.finish()
        steps = self.size // order.shape[1]
        groups, on_host = torch.split(order, steps), torch.split(order.cpu(), steps)
        for number, group in enumerate(groups):
            buffer, other = self.buffers if number % 2 == 0 else reversed(self.buffers)
            if number == 0:
                buffer.stage(on_host[0], self.read())
            self._open(buffer)
            yield from group[: len(group) // 2]
            other.receive(self.write)
            if number + 1 < len(groups):
                other.stage(on_host[number + 1], self.read())
            yield from group[len(group) // 2 :]
            buffer.send_back()
            self.open = None
        self.finish()

    def _open(self, buffer: StagingBuffer) -> None:
        """Make the steps queued from now on use the rows of this buffer."""
        # An index beyond the last slot: reading a row that is not staged is an error, not a wrong target.
        self.slots.fill_(2 * self.size)
        first = self.size * self.buffers.index(buffer)
        slots = torch.arange(first, first + buffer.used, dtype=torch.int32, device=self.slots.device)
        self.slots.index_copy_(0, buffer.live["rows"][: buffer.used], slots)
        self.open = buffer

    def flush(self) -> None:
        """Bring back all predictions made so far, without ending the epoch."""
        for buffer in self.buffers:  # older ones first: of a row in both buffers, the later prediction counts
            buffer.receive(self.write)
        if self.open is not None:
            self.open.send_back()
            self.open.receive(self.write)

    def finish(self) -> None:
        """End an epoch, complete or not."""
        self.flush()
        self.open = None
