"""Loader: the training set in batches, visited in an order of its own every epoch.

The order is a function of the seed and the epoch alone (see `order`), so a resumed run needs to know nothing of the epochs
before. The inputs lie on the device, or stream to it (see `stream`); a step asks for its batch in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from selfens.config import AugmentConfig
from selfens.core import views as augment
from selfens.core.batch import Batch
from selfens.data.dataset import UNLABELED
from selfens.data.prefetch import Stream
from selfens.data.sampler import Order


class Loader:
    """Batches of preprocessed inputs, which are on the device or come there by a stream, with their labels."""

    def __init__(self, inputs: Tensor | Stream, labels: Tensor, order: Order, options: AugmentConfig) -> None:
        self.stream = inputs if isinstance(inputs, Stream) else None
        self.inputs = inputs.staged if isinstance(inputs, Stream) else inputs
        """Of all rows; where they stream, of the step that `visit` has come to."""
        augment.check(options, tuple(self.inputs.shape[1:]))
        self.labels, self.options = labels, options
        self.device = labels.device
        self.batch_size, self.steps_per_epoch = order.batch_size, order.steps
        self._order = order

    def order(self, epoch: int) -> Tensor:
        """[steps, batch size] the rows of each step of this epoch."""
        rows = torch.from_numpy(self._order.of_epoch(epoch))
        # From pinned memory, or the copy would wait for all the work given to a GPU before.
        return (rows.pin_memory() if self.device.type == "cuda" else rows).to(self.device, non_blocking=True)

    def visit(self, order: Tensor) -> Iterable[Tensor]:
        """The rows of each step of `order`, each when its batch can be asked for."""
        return order if self.stream is None else self.stream.visit(order)

    def batch(self, rows: Tensor, num_views: int) -> Batch:
        """The batch of a step; where inputs stream, of the one that `visit` has come to."""
        inputs = self.inputs[rows] if self.stream is None else self.inputs
        labels = self.labels[rows]
        return Batch(rows, augment.views(inputs, num_views, self.options), labels, labels != UNLABELED)
