"""EnsembleTargets: the matrix Z of temporal ensembling, one row per training row.

Z holds an exponential average of the probabilities predicted for a row, one prediction per epoch, and is divided by
1 - decay^count to undo its start at zero. The count is the row's own, so a row that an epoch leaves out keeps both Z and
target; where every row is visited every epoch this is Algorithm 2 of the paper.

What is written during an epoch takes effect at `commit`, so the targets stay constant within an epoch. Targets leave as
tensors and predictions enter as tensors: a training loop of any kind can use this class alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    probabilities: Tensor
    """[rows, classes] the ensemble's prediction, zeros for rows never seen."""
    known: Tensor
    """[rows] False for rows that have no prediction yet."""


class EnsembleTargets:
    """Z for `num_rows` rows and `num_classes` classes, averaged with momentum `decay` (alpha).

    >>> ensemble = EnsembleTargets(num_rows=3, num_classes=2, decay=0.6)
    >>> rows = torch.tensor([0, 2])
    >>> ensemble.write(rows, torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    >>> ensemble.commit()
    >>> ensemble.get(torch.tensor([0, 1])).known
    tensor([ True, False])
    """

    def __init__(
        self, num_rows: int, num_classes: int, decay: float = 0.6, device: torch.device | str | None = None
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected a momentum from 0 to below 1.")
        # A plain number would be copied to the device at each power, and 1 - decay^count loses digits in float32.
        self.decay_on_device = torch.tensor(decay, dtype=torch.float64, device=device)
        self.mean = torch.zeros(num_rows, num_classes, device=device)  # Z
        self.count = torch.zeros(num_rows, device=device)
        self.pending = torch.zeros_like(self.mean)
        self.written = torch.zeros(num_rows, dtype=torch.bool, device=device)

    @property
    def decay(self) -> float:
        """alpha"""
        return float(self.decay_on_device)

    def to(self, device: torch.device) -> None:
        """Move everything to a device."""
        for name, tensor in vars(self).items():
            setattr(self, name, tensor.to(device))

    @torch.no_grad()
    def get(self, rows: Tensor) -> Targets:
        """The bias-corrected targets of `rows`, and which of them have one."""
        count = self.count[rows]
        known = count > 0
        correction = torch.where(known, 1 - self.decay_on_device ** count.double(), 1.0)
        return Targets(self.mean[rows] / correction[:, None].to(self.mean.dtype), known)

    def all(self) -> Targets:
        """The targets of every row."""
        return self.get(torch.arange(len(self.count), device=self.count.device))

    @torch.no_grad()
    def write(self, rows: Tensor, probabilities: Tensor) -> None:
        """Remember this epoch's predictions for `rows`; of a row written twice, the last counts."""
        self.pending[rows] = probabilities.detach().to(self.pending.dtype)
        self.written.index_fill_(0, rows, True)

    @torch.no_grad()
    def commit(self) -> None:
        """End of an epoch: Z <- decay Z + (1 - decay) z for the rows written, and no others."""
        updated = self.mean.lerp(self.pending, (1 - self.decay_on_device).to(self.mean.dtype))
        self.mean.copy_(torch.where(self.written[:, None], updated, self.mean))
        self.count += self.written
        self.written.zero_()

    def state(self) -> dict[str, Tensor]:
        """All there is to save. Predictions of an unfinished epoch are included only where there are any."""
        state = {"mean": self.mean, "count": self.count, "decay": self.decay_on_device}
        return state | ({"pending": self.pending, "written": self.written} if bool(self.written.any()) else {})

    def load_state(self, state: dict[str, Tensor]) -> None:
        if state["mean"].shape != self.mean.shape:
            raise ValueError(f"the targets have shape {tuple(state['mean'].shape)}; expected {tuple(self.mean.shape)}.")
        self.mean.copy_(state["mean"])
        self.count.copy_(state["count"])
        self.decay_on_device.copy_(state["decay"])
        self.written.zero_()
        if "written" in state:
            self.pending.copy_(state["pending"])
            self.written.copy_(state["written"])
