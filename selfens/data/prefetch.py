"""Prefetch: copies inputs from RAM or from a file to the device shortly before they are needed.

A thread copies the raw rows of the next few steps into a buffer while the current steps train. On a GPU the buffer is pinned,
and from there the rows are copied and preprocessed on a separate CUDA stream, into one of two windows while steps read the
other. Order, views and random draws are the loader's, so a batch is the same as one from inputs on the device (except for the
last digits of a matrix product, which depend on how many rows are multiplied at once).

The thread never calls CUDA, because no thread may do so while a graph is captured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfens.core import memory
from selfens.data.preprocess import apply, transform
from selfens.data.rows import Array, Rows, is_mapped, read_into
from selfens.errors import ConfigError

STEPS_AHEAD = 16  # per window: enough to hide reads from disk, few enough to need little memory


def load_inputs(
    source: Array, name: str, residence: str, preprocess: nn.Module | None, batch_size: int, device: torch.device
) -> tuple[str, Tensor | Prefetch]:
    """Return where inputs stay (device, ram or file), and the inputs: all on the device, or prefetched to it.

    `auto` is the device if they fit into half of its free memory. Without `preprocess` they stay raw.
    """
    if residence == "file" and not is_mapped(source):
        found = f"the inputs of {name} are not in a file that can be read in part"
        advice = "give a folder with x_train.npy and y_train.npy (uint8 or float32), or residence=ram"
        raise ConfigError(f"training.residence is 'file', but {found}; {advice}.")
    if residence == "auto":
        size = math.prod(source.shape) * (source.dtype.itemsize if preprocess is None else torch.float32.itemsize)
        elsewhere = "file" if is_mapped(source) else "ram"
        residence = "device" if size <= memory.available(device) // 2 else elsewhere
    if residence == "device":
        return residence, apply(preprocess, source, device)
    in_ram = np.array(source) if residence == "ram" and is_mapped(source) else source
    return residence, Prefetch(in_ram, preprocess, batch_size, device)


class Prefetch:
    """Puts the inputs of each step into `staged`, on the device, preprocessed unless `preprocess` is None."""

    def __init__(self, source: Array, preprocess: nn.Module | None, batch_size: int, device: torch.device) -> None:
        self.source, self.preprocess, self.device = source, preprocess, device
        self.on_gpu = device.type == "cuda"
        shape = (batch_size, *source.shape[1:])
        raw = torch.uint8 if source.dtype == "uint8" else torch.float32
        kind = raw if preprocess is None else torch.float32
        self.staged = torch.zeros(shape, dtype=kind, device=device)
        """The inputs of the current step, always in the same memory, because a captured step reads from there."""
        self.buffers = [torch.empty(STEPS_AHEAD, *shape, dtype=raw, pin_memory=self.on_gpu) for _ in range(2)]
        self.windows = [torch.empty(STEPS_AHEAD, *shape, dtype=kind, device=device) for _ in range(2)]
        if self.on_gpu:
            self.side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.sent: list[Any] = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]

    def visit(self, order: Tensor) -> Iterator[Tensor]:
        """Yield the rows of each step of `order`, once their inputs are in `staged`."""
        if len(order) == 0:
            return
        batches, numbers = torch.split(order, STEPS_AHEAD), torch.split(order.cpu(), STEPS_AHEAD)
        if self.on_gpu:
            self.side.synchronize()  # after an interrupted visit
        with ThreadPoolExecutor(1) as pool:
            reading = [pool.submit(self._read, rows.numpy(), slot) for slot, rows in enumerate(numbers[:2])]
            self._send(reading[0].result(), 0)
            for number, batch in enumerate(batches):
                slot, following = number % 2, number + 1
                if self.on_gpu:  # the steps of this batch wait for their window
                    torch.cuda.current_stream(self.device).wait_stream(self.side)
                if following < len(batches):
                    self._send(reading[following].result(), following % 2)
                if following + 1 < len(batches):
                    if self.on_gpu:  # the buffer must have been copied to the device
                        self.sent[slot].synchronize()
                    reading.append(pool.submit(self._read, numbers[following + 1].numpy(), slot))
                for rows, inputs in zip(batch, self.windows[slot], strict=False):
                    self.staged.copy_(inputs)
                    yield rows

    def _read(self, rows: Rows, slot: int) -> Tensor:
        """Read the raw inputs of some steps into a buffer on the host."""
        filled = self.buffers[slot][: len(rows)]
        read_into(self.source, rows.reshape(-1), filled.flatten(0, 1).numpy())
        return filled

    def _send(self, raw: Tensor, slot: int) -> None:
        """Copy to the device and preprocess, into the window that no queued step reads."""
        if not self.on_gpu:
            self._fill(slot, raw)
            return
        steps = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.side):
            on_device = raw.to(self.device, non_blocking=True)
            self.sent[slot].record()
            self.side.wait_stream(steps)
            self._fill(slot, on_device)

    def _fill(self, slot: int, raw: Tensor) -> None:
        self.windows[slot][: len(raw)] = transform(self.preprocess, raw.flatten(0, 1)).view(raw.shape)
