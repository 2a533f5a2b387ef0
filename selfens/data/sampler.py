"""Which rows each step of an epoch visits: a function of the seed and the epoch only. Plain numpy.

    shuffled    all rows in a new random order, as in the paper; a batch may hold no labeled row
    split       (`num_labeled` > 0) each batch begins with that many labeled rows, repeated as often as needed, and is filled
                with rows of the whole set, each visited once per epoch, or more often if the steps would be too few

With `per_epoch`, a shuffled epoch takes all labeled rows and draws that many of the others. Rows of an incomplete last batch
are left out; with `per_epoch`, unlabeled rows first.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfens.core.randomness import ORDER, stream
from selfens.data.rows import Rows
from selfens.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Sampler:
    """Chooses the rows of each step among `visited`, in ascending order, of which some are `labeled`."""

    visited: Rows
    labeled: NDArray[np.bool_]
    batch_size: int
    seed: int
    per_epoch: int | None = None
    num_labeled: int = 0
    """Labeled rows at the beginning of each batch; 0: rows are shuffled."""
    min_steps: int = 1
    """Minimum number of steps of a split epoch; rows are visited repeatedly to reach it."""
    max_steps: int | None = None
    """Maximum number of steps of an epoch, for processes with more rows than others."""
    process: int = 0
    """The number of this process; each has its own order."""

    def __post_init__(self) -> None:
        known = int(self.labeled.sum())
        if self.per_epoch is not None and self.per_epoch > len(self.visited) - known:
            unlabeled = f"{len(self.visited) - known} unlabeled rows, extra ones included"
            raise ConfigError(f"training.unlabeled_per_epoch is {self.per_epoch}, but there are only {unlabeled}.")
        if self.num_labeled > known:
            found = f"only {known} labeled rows per process"
            raise ConfigError(f"training.labeled_per_batch is {self.num_labeled}, but there are {found}.")
        object.__setattr__(self, "batch_size", min(self.batch_size, self.num_labeled + self.rows_per_epoch))

    @property
    def rows_per_epoch(self) -> int:
        """The number of rows to visit, before an incomplete batch is left out."""
        if self.per_epoch is None:
            return len(self.visited)
        return int(self.labeled.sum()) + self.per_epoch

    @property
    def steps(self) -> int:
        fewest = self.min_steps if self.num_labeled else 1
        steps = max(self.rows_per_epoch // (self.batch_size - self.num_labeled), fewest)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def of_epoch(self, epoch: int) -> Rows:
        """Return [steps, batch size], the rows of each step."""
        random = stream(self.seed, ORDER, epoch, self.process)
        if self.num_labeled:
            return self._split(random)
        room = self.steps * self.batch_size
        if self.per_epoch is None:
            return random.permutation(self.visited)[:room].reshape(self.steps, -1)
        labeled = random.permutation(self.visited[self.labeled])[:room]
        drawn = random.choice(self.visited[~self.labeled], room - len(labeled), replace=False)
        return random.permutation(np.concatenate([labeled, drawn])).reshape(self.steps, -1)

    def _split(self, random: np.random.Generator) -> Rows:
        """Return labeled rows, shuffled again whenever they are used up, next to rows of the whole set."""

        def rounds(rows: Rows, number: int) -> Rows:
            orders = [random.permutation(rows) for _ in range(math.ceil(number / len(rows)))]
            return np.concatenate(orders)[:number].reshape(self.steps, -1)

        known, each = self.visited[self.labeled], self.batch_size - self.num_labeled
        return np.hstack([rounds(known, self.steps * self.num_labeled), rounds(self.visited, self.steps * each)])
