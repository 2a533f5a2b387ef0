"""EnsembleTargets: the matrix Z of temporal ensembling, one row per training row.

Z holds an exponential average of the probabilities predicted for a row, one prediction per epoch, and is divided by
1 - decay^count to undo its start at zero. The count is per row, so a row that an epoch leaves out keeps both Z and target; if
every row is visited in every epoch, this is Algorithm 2 of the paper. What is written during an epoch takes effect at
`commit`, so targets are constant within an epoch. Everything is a plain tensor: any training loop can use this class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from selfens.core import launcher
from selfens.core.targets.file import TargetsFile
from selfens.core.targets.layout import AVERAGES, Arrays, TargetsLayout
from selfens.core.targets.staging import Prefetcher
from selfens.errors import ConfigError

IN_MEMORY = ("device", "ram")
"""The storages that are not the path of a file."""
CHUNK_BYTES = {"cpu": 1 << 20, "gpu": 1 << 26}
"""How much of a float32 matrix `commit` processes at a time, so that it never copies a large Z."""


class Targets(NamedTuple):
    probabilities: Tensor
    """[rows, classes] the ensemble's prediction; zeros for rows never seen."""
    known: Tensor
    """[rows] False for rows that have no prediction yet."""
    count: Tensor  # type: ignore[assignment]  # tuples have a method of that name
    """[rows] how many predictions each row's average is made of."""


def with_latest(targets: Targets, latest: Tensor, decay: float) -> Tensor:
    """Return the targets with `latest`, [rows, classes], as one more prediction of each row.

    >>> one = Targets(torch.tensor([[1.0, 0.0]]), torch.tensor([True]), torch.tensor([1]))
    >>> with_latest(one, torch.tensor([[0.0, 1.0]]), decay=0.5)
    tensor([[0.3333, 0.6667]])
    """
    before = decay * (1 - decay**targets.count)  # the share of the past, as Z starts at zero
    share = (before / (before + 1 - decay))[:, None]
    return share * targets.probabilities + (1 - share) * latest


class EnsembleTargets:
    """Z for `num_rows` rows and `num_classes` classes, averaged with momentum `decay` (alpha).

    Parameters
    ----------
    device
        The compute device, where targets are read and predictions are made.
    storage
        Where Z is kept: "device", on that device; "ram", in the host's memory; anything else is the path of a file. A file is
        overwritten, unless a checkpoint relies on predictions in it: then `restore` must come first.
    dtype
        The type Z is kept in, float32 or float16; arithmetic is in float32.
    variance
        Also keep the second moment.

    >>> ensemble = EnsembleTargets(num_rows=3, num_classes=2, decay=0.6)
    >>> rows = torch.tensor([0, 2])
    >>> ensemble.write(rows, torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    >>> ensemble.commit()
    >>> ensemble.get(torch.tensor([0, 1])).known
    tensor([ True, False])
    """

    def __init__(
        self,
        num_rows: int,
        num_classes: int,
        decay: float = 0.6,
        device: torch.device | str | None = None,
        *,
        storage: str | Path | TargetsFile = "device",
        dtype: str = "float32",
        variance: bool = True,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected at least 0 and below 1.")
        self.layout, self.decay = TargetsLayout(num_rows, num_classes, dtype, variance), decay
        self.device = torch.empty(0, device=device).device
        self.file = storage if isinstance(storage, TargetsFile) else None
        if self.file is None and str(storage) not in IN_MEMORY:
            if launcher.world_size() > 1:
                raise ConfigError(
                    f"the targets are in the file {storage}, which is for one process, and there are {launcher.world_size()}; "
                    "use one process, or keep the targets in ram."
                )
            self.file = TargetsFile(str(storage), self.layout, decay)
        home = self.device if str(storage) == "device" else torch.device("cpu")
        self._in_memory = {} if self.file else self.layout.allocate(home)
        # A Python number would be copied to the device at each power, and 1 - decay^count loses digits in float32.
        self._decay_on_device = torch.tensor(decay, dtype=torch.float64, device=self.device)
        self.prefetches = home != self.device
        self.prefetcher: Prefetcher | None = None
        self.spread = torch.full((), torch.nan, dtype=torch.float64, device=home)
        """After a commit: the variance, summed over the classes and averaged over the rows of that epoch."""

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> EnsembleTargets:
        """Open the targets in a file for reading, as the checkpoint with this `metadata` (from `seal`) left them."""
        file = TargetsFile(metadata.get("targets_file", ""))
        targets = cls(**asdict(file.layout), decay=file.decay, storage=file)
        targets.restore(metadata)
        return targets

    num_rows = property(lambda self: self.layout.num_rows)
    num_classes = property(lambda self: self.layout.num_classes)
    mean = property(lambda self: self.arrays["mean"])
    square = property(lambda self: self.arrays.get("square"))
    count = property(lambda self: self.arrays["count"])
    pending = property(lambda self: self.arrays["pending"])
    written = property(lambda self: self.arrays["written"])

    @property
    def arrays(self) -> Arrays:
        """The arrays of `TargetsLayout.shapes`, by name."""
        return self.file.arrays if self.file else self._in_memory

    def _arrays_to_change(self) -> Arrays:
        if self.file:
            self.file.unseal()
        return self.arrays

    # Steps

    @torch.no_grad()
    def get(self, rows: Tensor) -> Targets:
        """Return the bias-corrected targets of `rows`."""
        arrays, at = self._staged(rows) or (self.arrays, rows.to(self.mean.device))
        # index_select and index_copy_ move whole rows; advanced indexing moves single numbers on a CPU.
        count = arrays["count"].index_select(0, at).to(self.device)
        mean = arrays["mean"].index_select(0, at).to(self.device).float()
        return Targets(mean / self._correction(count)[:, None].float(), count > 0, count)

    @torch.no_grad()
    def write(self, rows: Tensor, probabilities: Tensor) -> None:
        """Store this epoch's predictions for `rows`; of a row that is written twice, the last prediction counts."""
        arrays, at = self._staged(rows) or (self._arrays_to_change(), rows.to(self.mean.device))
        _remember(arrays, at, probabilities)

    def _staged(self, rows: Tensor) -> tuple[Arrays, Tensor] | None:
        """Return the staged arrays on the device and the positions of the rows in them, during a visit with prefetching."""
        if self.prefetcher is None or self.prefetcher.open is None:
            return None
        return self.prefetcher.arrays, self.prefetcher.locate(rows)

    # Epochs

    def visit(self, order: Tensor) -> Iterator[Tensor]:
        """Yield the batches of an epoch, [steps, rows of a batch].

        If Z is not kept on the compute device, the targets of the next steps are prefetched, and until the visit ends only
        rows of the current batch may be read and written. Without `visit`, `get` and `write` copy one batch at a time.
        """
        self._arrays_to_change()
        if not self.prefetches:
            yield from order
            return
        if self.prefetcher is None or self.prefetcher.size < order.shape[1]:
            self.prefetcher = Prefetcher(self.layout, order.shape[1], self.device, lambda: self.arrays, self._take_back)
        try:
            yield from self.prefetcher.visit(order)
        finally:
            self.prefetcher.finish()

    def _take_back(self, rows: Tensor, probabilities: Tensor) -> None:
        _remember(self._arrays_to_change(), rows, probabilities)

    @torch.no_grad()
    def commit(self) -> None:
        """End the epoch: Z <- decay Z + (1 - decay) z for the rows that were written."""
        if self.prefetcher is not None:
            self.prefetcher.finish()
        arrays = self._arrays_to_change()
        spread, visited = torch.zeros_like(self.spread), self.written.sum()
        limit = CHUNK_BYTES["cpu" if self.spread.device.type == "cpu" else "gpu"]
        size = max(limit // (4 * self.num_classes), 1)
        for start in range(0, self.num_rows, size):
            chunk = {name: array[start : start + size] for name, array in arrays.items()}
            if chunk["written"].is_cuda or chunk["written"].any():
                spread += self._blend_in(chunk, chunk["written"])
        self.spread = spread / visited if self.layout.variance else self.spread
        self.written.zero_()

    def forget_epoch(self) -> None:
        """Discard what was written since the last commit."""
        if self.prefetcher is not None:
            self.prefetcher.finish()
        self.written.zero_()

    def _blend_in(self, chunk: Arrays, written: Tensor) -> Tensor | float:
        """Update the averages of the rows written; return the sum of their variances."""
        rows, new = written[:, None], chunk["pending"].float()
        mean = torch.where(rows, self._blend(chunk["mean"], new), chunk["mean"])
        chunk["mean"].copy_(mean)
        chunk["count"] += written
        if "square" not in chunk:
            return 0.0
        square = torch.where(rows, self._blend(chunk["square"], new.square()), chunk["square"])
        chunk["square"].copy_(square)
        correction = self._correction(chunk["count"])
        each = square.float().sum(dim=1) / correction - mean.float().square().sum(dim=1) / correction**2
        return torch.where(written, each.clamp_min(0), 0.0).sum()

    def _blend(self, old: Tensor, new: Tensor) -> Tensor:
        """Blend in two roundings, which are the same on every device and for every chunk size."""
        return (old.float() * self.decay).add_(new * (1 - self.decay))

    def _correction(self, count: Tensor) -> Tensor:
        """Return 1 - decay^count, which undoes the start at zero; 1 for rows never seen."""
        decay = self._decay_on_device if count.device == self.device else self.decay
        return torch.where(count > 0, 1 - decay ** count.double(), 1.0)

    # Past predictions

    def all(self) -> Targets:
        """Return the targets of every row."""
        return self.get(torch.arange(self.num_rows))

    @torch.no_grad()
    def variance(self, rows: Tensor) -> Tensor:
        """Return [rows, classes] the variance of a row's predictions, weighted as in Z; 0 with fewer than two predictions."""
        if self.square is None:
            raise ValueError("the ensemble keeps no second moment, so it has no variance; make it with variance=True.")
        at = rows.to(self.mean.device)
        count = self.count[at]
        correction = self._correction(count)[:, None].float()
        mean, square = self.mean[at].float() / correction, self.square[at].float() / correction
        varied = count > 1  # for one prediction, rounding would leave a little
        return torch.where(varied[:, None], (square - mean.square()).clamp_min_(0), 0.0).to(self.device)

    # Saving in memory

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything to save. Predictions of an unfinished epoch are included only if there are any."""
        self._flush()
        unfinished = bool(self.written.any())
        names = [name for name in self.arrays if name in AVERAGES or unfinished]
        return {name: self.arrays[name] for name in names} | {"decay": self._decay_on_device}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        decay = float(state["decay"])
        if state["mean"].shape != self.mean.shape:
            raise ValueError(f"the targets have shape {tuple(state['mean'].shape)}; expected {tuple(self.mean.shape)}.")
        if self.layout.variance and "square" not in state:
            raise ValueError("the targets were saved without a second moment; make the ensemble with variance=False.")
        if self.file is not None and decay != self.file.decay:
            raise ValueError(f"the targets were saved with decay {decay}; make the ensemble with the same.")
        arrays = self._arrays_to_change()
        self.written.zero_()
        for name, array in arrays.items():
            if name in AVERAGES or name in state:
                array.copy_(state[name])
        self._set_decay(decay)

    def _set_decay(self, decay: float) -> None:
        self.decay = decay
        self._decay_on_device.fill_(decay)

    # Saving in a file

    def seal(self) -> dict[str, str]:
        """Flush the file for a checkpoint to rely on, and return what the checkpoint must hold for `restore`.

        If Z is kept in memory there is nothing to do. The half of the file that the last checkpoint relies on is not written
        to before the first change after this call, so the new checkpoint must be in place by then. Write the first one before
        the first epoch: a file is overwritten only as long as nothing in it can be lost.
        """
        self._flush()
        return self.file.seal() if self.file else {}

    def restore(self, metadata: Mapping[str, str]) -> None:
        """Continue from what a checkpoint relies on."""
        assert self.file is not None
        self.file.restore(metadata)
        self._set_decay(self.file.decay)

    def close(self) -> None:
        """Release the file for other processes; it can still be read here. It is removed if no checkpoint relies on it."""
        if self.file is not None:
            self.file.close()

    def _flush(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.flush()


def _remember(arrays: Arrays, at: Tensor, probabilities: Tensor) -> None:
    arrays["pending"].index_copy_(0, at, probabilities.detach().to(arrays["pending"]))
    arrays["written"].index_fill_(0, at, True)
