"""Loader: the training set on the device, visited in a fresh random order every epoch.

The order of an epoch is a function of the seed and the epoch alone, so a resumed run needs to know nothing of the epochs
before. An incomplete last batch is left out, other rows each epoch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfens.batch import Batch
from selfens.config import AugmentConfig
from selfens.data import augment
from selfens.data.dataset import UNLABELED
from selfens.randomness import ORDER, stream


class Loader:
    """Batches of the rows `visited` from inputs and labels that are on the device."""

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        visited: Tensor,
        batch_size: int,
        options: AugmentConfig,
        seed: int,
    ) -> None:
        augment.check(options, tuple(inputs.shape[1:]))
        self.inputs, self.labels = inputs, labels
        self.visited = visited.cpu().numpy()
        self.batch_size = min(batch_size, len(visited))
        self.steps_per_epoch = len(visited) // self.batch_size
        self.options, self.seed = options, seed

    def order(self, epoch: int) -> Tensor:
        """[steps, batch size] the rows of each step of this epoch."""
        shuffled = stream(self.seed, ORDER, epoch).permutation(self.visited)
        used = shuffled[: self.steps_per_epoch * self.batch_size]
        return torch.from_numpy(used.reshape(self.steps_per_epoch, self.batch_size)).to(self.inputs.device)

    def batch(self, rows: Tensor, num_views: int) -> Batch:
        labels = self.labels[rows]
        return Batch(rows, augment.views(self.inputs[rows], num_views, self.options), labels, labels != UNLABELED)
