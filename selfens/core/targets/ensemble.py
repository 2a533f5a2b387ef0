"""EnsembleTargets: the matrix Z of temporal ensembling, one row per training row.

Z holds an exponential average of the probabilities predicted for a row, one prediction per epoch, and is divided by
1 - decay^count to undo its start at zero. The count is the row's own, so a row that an epoch leaves out keeps both Z and
target; where every row is visited every epoch this is Algorithm 2 of the paper. Beside it the squared probabilities are
averaged in the same way, and the variance of a row's predictions is the difference.

What is written during an epoch takes effect at `commit`, so the targets stay constant within an epoch. Targets leave as
tensors and predictions enter as tensors: a training loop of any kind can use this class alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from selfens.config import IN_MEMORY
from selfens.core.targets.arrays import Arrays, Layout
from selfens.core.targets.file import TargetsFile
from selfens.core.targets.window import Window
from selfens.errors import RunError

CHUNK_BYTES = {"cpu": 1 << 20, "gpu": 1 << 26}
"""Of a matrix in float32: what `commit` works on at a time, so that a large Z has no copies; a GPU wants larger pieces."""


class Targets(NamedTuple):
    probabilities: Tensor
    """[rows, classes] the ensemble's prediction, zeros for rows never seen."""
    known: Tensor
    """[rows] False for rows that have no prediction yet."""


class EnsembleTargets:
    """Z for `num_rows` rows and `num_classes` classes, averaged with momentum `decay` (alpha).

    device    where rows are asked for and predictions made
    storage   where Z is kept: `device`, there; `ram`, in the host's memory; anything else is the path of a file
    dtype     in which Z is kept, float32 or float16; arithmetic is in float32
    variance  keep the second moment too

    A file is a place to work in: it is made anew unless a run has taken it (see `selfens.core.targets.file`).

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
        storage: str | Path = "device",
        dtype: str = "float32",
        variance: bool = True,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected a momentum from 0 to below 1.")
        layout = Layout(num_rows, num_classes, dtype, variance)
        if str(storage) in IN_MEMORY:
            arrays, file = layout.allocate(device if str(storage) == "device" else "cpu"), None
        else:
            file = TargetsFile.create_or_open(storage, layout, decay)
            arrays = file.arrays(0)
        self._set_up(layout, decay, arrays, file, device, stays=str(storage) != "device")

    def _set_up(
        self,
        layout: Layout,
        decay: float,
        arrays: Arrays,
        file: TargetsFile | None,
        device: torch.device | str | None,
        *,
        stays: bool,
    ) -> None:
        self.layout, self.decay, self.file = layout, decay, file
        self.home = arrays
        self.following = arrays
        """Where `commit` puts the averages: in place, or into the other half of a file."""
        self.device = torch.empty(0, device=device).device
        self.stays = stays
        """Whether the arrays stay where they are when the compute device changes."""
        self.sealed = file is not None and (file.sealed or not file.ours)
        # A plain number would be copied to the device at each power, and 1 - decay^count loses digits in float32.
        self.decay_on_device = torch.tensor(decay, dtype=torch.float64, device=self.device)
        self.window: Window | None = None
        self.windowed = arrays.mean.device != self.device
        self.spread = torch.full((), torch.nan, dtype=torch.float64, device=arrays.mean.device)
        """After a commit: the variance summed over the classes, averaged over the rows of that epoch."""

    @classmethod
    def read(cls, path: str | Path, half: int, epoch: int, step: int, run: str | None = None) -> EnsembleTargets:
        """What a run keeps in a file as its checkpoint of `epoch` and `step` left it, to be looked at alone."""
        file = TargetsFile.read(path)
        if run is not None:
            file.check_owner(run)
        file.restore(half, epoch, step)
        ensemble = cls.__new__(cls)
        ensemble._set_up(file.layout, file.decay, file.arrays(half), file, None, stays=True)
        return ensemble

    def for_rows(self, num_rows: int) -> EnsembleTargets:
        """An empty one of the same kind for another number of rows, in memory."""
        layout, storage = self.layout, "ram" if self.stays else "device"
        return EnsembleTargets(
            num_rows,
            layout.num_classes,
            self.decay,
            self.device,
            storage=storage,
            dtype=layout.dtype,
            variance=layout.variance,
        )

    mean = property(lambda self: self.home.mean)
    square = property(lambda self: self.home.square)
    count = property(lambda self: self.home.count)
    pending = property(lambda self: self.home.pending)
    written = property(lambda self: self.home.written)

    def to(self, device: torch.device) -> None:
        """Compute on another device; Z goes with it unless it was given another place."""
        self.device = torch.empty(0, device=device).device
        self.decay_on_device = self.decay_on_device.to(device)
        self.window = None
        if not self.stays:
            self.home = self.following = self.home.map(lambda part: part.to(device))
            self.spread = self.spread.to(device)
        self.windowed = self.home.mean.device != self.device

    # What a step does

    @torch.no_grad()
    def get(self, rows: Tensor) -> Targets:
        """The bias-corrected targets of `rows`, and which of them have one."""
        return self._targets(*self._locate(rows))

    def _targets(self, arrays: Arrays, at: Tensor) -> Targets:
        # `index_select` and `index_copy_` move a row at a time, where an index in brackets moves number by number on a CPU.
        count = arrays.count.index_select(0, at).to(self.device)
        mean = arrays.mean.index_select(0, at).to(self.device).float()
        return Targets(mean / self._correction(count)[:, None].float(), count > 0)

    @torch.no_grad()
    def write(self, rows: Tensor, probabilities: Tensor) -> None:
        """Remember this epoch's predictions for `rows`; of a row written twice, the last counts."""
        if self.sealed:
            self._unseal()
        arrays, at = self._locate(rows)
        arrays.pending.index_copy_(0, at, probabilities.detach().to(arrays.pending))
        arrays.written.index_fill_(0, at, True)

    def _locate(self, rows: Tensor) -> tuple[Arrays, Tensor]:
        """The arrays to find `rows` in, and where there: the window of a visit under way, else at home."""
        if self.window is not None and self.window.is_open:
            return self.window.arrays, self.window.locate(rows)
        return self.home, rows.to(self.home.mean.device)

    # What an epoch does

    def visit(self, order: Tensor) -> Iterator[Tensor]:
        """The batches of an epoch, [steps, rows of a batch], one after the other, with their targets at hand.

        Where Z is kept elsewhere than on the compute device, those of the next steps are brought there ahead of time.
        Meanwhile only rows of the batch handed out may be asked for and written. Without `visit`, `get` and `write` fetch
        and bring what they are given one batch at a time.
        """
        self._unseal()
        if self.file is not None and self.file.wants_single_pages:
            self.file.advise(random=True)
        if not self.windowed:
            yield from order
            return
        if self.window is None or self.window.size < order.shape[1]:
            size = Window.suitable_size(self.layout, order.shape[1])
            self.window = Window(self.layout, size, self.device, self._home_to_change)
        try:
            yield from self.window.visit(order)
        finally:
            self.window.finish()

    @torch.no_grad()
    def commit(self) -> None:
        """End of an epoch: Z <- decay Z + (1 - decay) z for the rows written, and no others."""
        self._unseal()
        if self.window is not None:
            self.window.finish()
        if self.file is not None and self.file.wants_single_pages:
            self.file.advise(random=False)
        old, new = self.home, self.following
        spread, visited = torch.zeros_like(self.spread), old.written.sum()
        for at in self._chunks():
            written = old.written[at]
            if not written.is_cuda and not written.any():
                _copy_averages(old, new, at)
                continue
            rows = written[:, None]
            present = old.pending[at].float()
            mean = torch.where(rows, self._blend(old.mean[at], present), old.mean[at])
            new.mean[at] = mean
            new.count[at] = old.count[at] + written
            if old.square is not None and new.square is not None:
                square = torch.where(rows, self._blend(old.square[at], present.square()), old.square[at])
                new.square[at] = square
                each = self._total_variance(mean.float(), square.float(), new.count[at])
                spread += torch.where(written, each, 0.0).sum()
        self.spread = spread / visited if self.layout.variance else self.spread
        new.written.zero_()
        self.home = new

    def _blend(self, old: Tensor, present: Tensor) -> Tensor:
        """In separate roundings, which come out the same on every device and for every division into chunks."""
        return (old.float() * self.decay).add_(present * (1 - self.decay))

    def _chunks(self) -> Iterator[slice]:
        piece = CHUNK_BYTES["cpu" if self.home.mean.device.type == "cpu" else "gpu"]
        size = max(piece // (4 * self.layout.num_classes), 1)
        return (slice(start, start + size) for start in range(0, self.layout.num_rows, size))

    # What is known of the predictions of the past

    def all(self) -> Targets:
        """The targets of every row."""
        return self._targets(self.home, torch.arange(self.layout.num_rows, device=self.home.mean.device))

    @torch.no_grad()
    def variance(self, rows: Tensor) -> Tensor:
        """[rows, classes] how much the predictions for a row have varied around its target, weighted as they are in Z.

        Zero where there is none yet, or one alone.
        """
        if self.home.square is None:
            raise ValueError(
                "the ensemble keeps no second moment, so it knows no variance; make it with variance=True."
            )
        at = rows.to(self.home.mean.device)
        correction = self._correction(self.home.count[at])[:, None].float()
        mean, square = self.home.mean[at].float() / correction, self.home.square[at].float() / correction
        varied = self.home.count[at] > 1  # of one prediction, rounding would leave a little
        return torch.where(varied[:, None], (square - mean.square()).clamp_min_(0), 0.0).to(self.device)

    def _correction(self, count: Tensor) -> Tensor:
        """1 - decay^count, which undoes the start at zero; 1 for rows never seen."""
        decay = self.decay_on_device if count.device == self.device else self.decay
        return torch.where(count > 0, 1 - decay ** count.double(), 1.0)

    def _total_variance(self, mean: Tensor, square: Tensor, count: Tensor) -> Tensor:
        """Of each row, summed over the classes."""
        correction = self._correction(count)
        return (square.sum(dim=1) / correction - mean.square().sum(dim=1) / correction**2).clamp_min(0)

    # What is saved

    def state(self) -> dict[str, Tensor]:
        """All there is to save. Predictions of an unfinished epoch are included only where there are any."""
        self._flush()
        state = {"mean": self.mean, "count": self.count, "decay": self.decay_on_device}
        if self.square is not None:
            state["square"] = self.square
        return state | ({"pending": self.pending, "written": self.written} if bool(self.written.any()) else {})

    def load_state(self, state: dict[str, Tensor]) -> None:
        if state["mean"].shape != self.mean.shape:
            raise ValueError(f"the targets have shape {tuple(state['mean'].shape)}; expected {tuple(self.mean.shape)}.")
        self._unseal()
        self.home.mean.copy_(state["mean"])
        self.home.count.copy_(state["count"])
        if "square" not in state:  # kept without; what began too late would be no variance
            self.home, self.layout = replace(self.home, square=None), replace(self.layout, variance=False)
            self.following = self.home
        elif self.home.square is not None:
            self.home.square.copy_(state["square"])
        self.decay = float(state["decay"])
        self.decay_on_device.fill_(self.decay)
        self.home.written.zero_()
        if "written" in state:
            self.home.pending.copy_(state["pending"])
            self.home.written.copy_(state["written"])

    def seal(self, epoch: int, step: int) -> int:
        """Leave the file as it is for a checkpoint to rely on; returns the half that the checkpoint must name."""
        assert self.file is not None
        self._flush()
        self._unseal()
        if self.home is not self.following:  # in the middle of an epoch: its targets are still in the other half
            for at in self._chunks():
                _copy_averages(self.home, self.following, at)
            self.home = self.following
        self.file.seal(epoch, step)
        self.sealed = True
        return self.file.half

    def restore(self, half: int, epoch: int, step: int) -> None:
        """Go on from the half of the file that a checkpoint names."""
        assert self.file is not None
        self.file.restore(half, epoch, step)
        self.home = self.following = self.file.arrays(half)
        self.sealed = True

    def _flush(self) -> None:
        if self.window is not None:
            self.window.flush()

    def _home_to_change(self) -> Arrays:
        self._unseal()
        return self.home

    def _unseal(self) -> None:
        """Before anything changes: leave the half that a checkpoint relies on, and write into the other one from now on.

        The averages are read where they are until `commit` writes the new ones. Predictions of an epoch that the
        checkpoint interrupted are taken along.
        """
        if self.file is None or not self.sealed:
            return
        if not self.file.ours:
            raise RunError(
                f"{self.file.path} belongs to a run ({self.file.header['directory']}) and can only be read here."
            )
        old = self.home
        self.file.turn()
        new = self.file.arrays(self.file.half)
        new.written.copy_(old.written)
        for at in self._chunks():
            if old.written[at].any():
                new.pending[at] = old.pending[at]
        self.home, self.following = replace(old, pending=new.pending, written=new.written), new
        self.sealed = False


def _copy_averages(old: Arrays, new: Arrays, at: slice) -> None:
    if new.mean is old.mean:
        return
    new.mean[at], new.count[at] = old.mean[at], old.count[at]
    if old.square is not None and new.square is not None:
        new.square[at] = old.square[at]
