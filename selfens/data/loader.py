"""Loader: the training set in batches, in a different order every epoch (see `sampler`)."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from selfens.core.batch import Batch
from selfens.core.views import Views
from selfens.data.dataset import UNLABELED
from selfens.data.prefetch import Prefetch
from selfens.data.preprocess import as_float
from selfens.data.sampler import Sampler


class Loader:
    """Makes batches of views and labels. With `preprocess`, the inputs are raw and each view is preprocessed."""

    def __init__(
        self,
        inputs: Tensor | Prefetch,
        labels: Tensor,
        sampler: Sampler,
        views: Views,
        preprocess: nn.Module | None = None,
    ) -> None:
        self.prefetch = inputs if isinstance(inputs, Prefetch) else None
        self.inputs = inputs.staged if isinstance(inputs, Prefetch) else inputs
        """Inputs of all rows; if they are prefetched, those of the current step of `visit`."""
        self.labels, self.views, self.preprocess = labels, views, preprocess
        self.device = labels.device
        self.batch_size, self.steps_per_epoch = sampler.batch_size, sampler.steps
        self.num_labeled = sampler.num_labeled
        self._sampler = sampler

    def order(self, epoch: int) -> Tensor:
        """Return [steps, batch size], the rows of each step of this epoch."""
        rows = torch.from_numpy(self._sampler.of_epoch(epoch))
        # Pinned, or the copy would wait for all work queued on the GPU.
        return (rows.pin_memory() if self.device.type == "cuda" else rows).to(self.device, non_blocking=True)

    def visit(self, order: Tensor) -> Iterable[Tensor]:
        """Yield the rows of each step of `order`, each when `batch` may be called with it."""
        return order if self.prefetch is None else self.prefetch.visit(order)

    def batch(self, rows: Tensor, views: Sequence[str]) -> Batch:
        """Return the batch of a step with these views; if inputs are prefetched, of the current step of `visit`."""
        inputs = self.inputs[rows] if self.prefetch is None else self.inputs
        labels = self.labels[rows]
        if self.num_labeled:
            labels[self.num_labeled :].fill_(UNLABELED)  # hide the labels of the other rows
        if self.preprocess is None:
            made = self.views.make(inputs, views)
        else:
            made = tuple(self.preprocess(view) for view in self.views.make(as_float(inputs), views))
        return Batch(rows, made, labels, labels != UNLABELED, self.num_labeled)
