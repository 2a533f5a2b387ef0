"""Which rows each step of an epoch visits: a function of the seed and the epoch only. Plain numpy.

    shuffled    all rows in a fresh random order, as in the paper; a batch may hold no labelled row
    stratified  labelled rows spread evenly: their numbers in any two batches differ by at most one
    repeated    the same, and if there are fewer labelled rows than batches they are repeated, one in each batch
    split       (`first` > 0) each batch begins with that many labelled rows, which are gone through as often as needed, and
                is filled with rows of the whole set, each once an epoch

With `per_epoch`, an epoch takes all labelled rows and draws that many of the others. An incomplete last batch is left out:
rows of any kind in plain shuffling, unlabeled ones otherwise, as far as there are any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.core.randomness import ORDER, PROCESS, stream
from selfens.errors import ConfigError

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sampler:
    """The rows that training visits, in ascending order, and which of them are labelled."""

    visited: Rows
    labelled: NDArray[np.bool_]
    batch_size: int
    seed: int
    batches: str = "shuffled"
    per_epoch: int | None = None
    first: int = 0
    """Labelled rows at the beginning of each batch of the split sampler; 0 for the others."""
    max_steps: int | None = None
    """Take no more, because other processes have no more rows."""
    process: int = 0
    """The number of this process, whose order is its own, among `processes`."""
    processes: int = 1

    def __post_init__(self) -> None:
        known = int(self.labelled.sum())
        if self.per_epoch is not None and self.per_epoch > len(self.visited) - known:
            raise ConfigError(
                f"data.extra_per_epoch is {self.per_epoch}, but there are only {len(self.visited) - known} unlabeled rows, "
                "main and extra together; ask for fewer, or leave it out to visit them all."
            )
        if self.first > known:
            raise ConfigError(
                f"training.labelled_per_batch is {self.first}, but there are only {known} labelled rows"
                f"{' for this process' if self.processes > 1 else ''}; expected at most that many."
            )
        object.__setattr__(self, "batch_size", min(self.batch_size, self.first + self.rows_per_epoch))

    @property
    def rows_per_epoch(self) -> int:
        """How many there are to visit, before an incomplete batch is left out."""
        if self.per_epoch is None:
            return len(self.visited)
        return int(self.labelled.sum()) + self.per_epoch

    @property
    def steps(self) -> int:
        steps = self.rows_per_epoch // (self.batch_size - self.first)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def of_epoch(self, epoch: int) -> Rows:
        """[steps, batch size] the rows of each step."""
        random = stream(self.seed, ORDER, epoch, self.process)
        if self.first:
            return self._split(random)
        room = self.steps * self.batch_size
        if self.batches == "shuffled" and self.per_epoch is None:
            return random.permutation(self.visited)[:room].reshape(self.steps, -1)
        labelled = random.permutation(self.visited[self.labelled])[:room]
        others = self.visited[~self.labelled]
        if self.batches == "shuffled":
            drawn = random.choice(others, room - len(labelled), replace=False)
            return random.permutation(np.concatenate([labelled, drawn])).reshape(self.steps, -1)
        if self.batches == "repeated" and len(labelled):
            labelled = np.resize(labelled, max(len(labelled), self.steps))  # each row again only after all others
        drawn = random.choice(others, room - len(labelled), replace=False)
        common = random if self.processes == 1 else stream(self.seed, ORDER, epoch, PROCESS)
        return self._spread(labelled, drawn, int(common.integers(self.steps)))

    def _split(self, random: np.random.Generator) -> Rows:
        """Labelled rows in one random order after another, beside a visit of all rows."""
        each, known = self.batch_size - self.first, self.visited[self.labelled]
        rounds = math.ceil(self.steps * self.first / len(known))
        labelled = np.concatenate([random.permutation(known) for _ in range(rounds)])[: self.steps * self.first]
        others = random.permutation(self.visited)[: self.steps * each]
        return np.hstack([labelled.reshape(self.steps, -1), others.reshape(self.steps, -1)])

    def _spread(self, labelled: Rows, others: Rows, phase: int) -> Rows:
        """Each batch its share of the labelled rows; `phase` says which batches begin.

        Processes begin a fraction of a batch after one another, so that the batches of all together are spread evenly too.
        """
        shares = np.arange(self.steps + 1) * len(labelled) + phase
        marks = (shares * self.processes + self.process * self.steps) // (self.steps * self.processes)
        first_places: Any = np.arange(self.batch_size) < np.diff(marks)[:, None]
        order = np.empty((self.steps, self.batch_size), dtype=np.int64)
        order[first_places], order[~first_places] = labelled, others
        return order
