"""EnsembleTargets: the matrix Z of temporal ensembling, one row per training row.

Each row of Z is an exponential moving average of the probabilities predicted for it, one prediction per epoch. A target is Z
divided by 1 - decay^count, which corrects the bias of starting at zero. Each row has its own count, so a row that an epoch
leaves out keeps its target; if every epoch visits every row, this is Algorithm 2 of the paper. Targets change only in
`commit`, at the end of an epoch.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from selfens.core import memory
from selfens.core.prior import Prior

CHUNK_BYTES = 1 << 20
"""Bytes of a matrix that `commit` processes at a time, so that it never copies a large Z."""


class Targets(NamedTuple):
    probabilities: Tensor
    """[rows, classes] the ensemble's prediction, blended with the prior if there is one; zeros for rows not known."""
    known: Tensor
    """[rows] False for rows that have neither a prediction yet nor a prior."""
    count: Tensor  # type: ignore[assignment]  # tuples have a method of that name
    """[rows] the number of predictions in each average."""


def with_latest(targets: Targets, latest: Tensor, decay: float) -> Tensor:
    """Return [rows, classes], the targets after one more prediction, `latest`, for each row.

    >>> one = Targets(torch.tensor([[1.0, 0.0]]), torch.tensor([True]), torch.tensor([1]))
    >>> with_latest(one, torch.tensor([[0.0, 1.0]]), decay=0.5)
    tensor([[0.3333, 0.6667]])
    """
    before = decay * (1 - decay**targets.count)  # weight of the past predictions in Z, which starts at zero
    share = (before / (before + 1 - decay))[:, None]
    return share * targets.probabilities + (1 - share) * latest


class EnsembleTargets:
    """The matrix Z of temporal ensembling.

    Parameters
    ----------
    num_rows, num_classes
        The shape of Z.
    decay
        Momentum of the averages, alpha.
    device
        Where Z is kept; by default torch's default device.

    Examples
    --------
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
        prior: Prior | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected at least 0 and below 1.")
        if min(num_rows, num_classes) < 1:
            raise ValueError(f"the targets have {num_rows} rows and {num_classes} classes; expected at least 1.")
        self.num_rows, self.num_classes, self.device = num_rows, num_classes, torch.empty(0, device=device).device
        self.prior = prior
        what = f"targets of {num_rows:,} rows of {num_classes:,} classes in float32"
        memory.check(num_rows * (3 * 4 * num_classes + 5), what, "use fewer rows or classes", self.device)
        with self.device:
            self.count = torch.zeros(num_rows, dtype=torch.int32)  # predictions in each average
            self.mean = torch.zeros(num_rows, num_classes, dtype=torch.float32)  # Z
            self.square = torch.zeros_like(self.mean)  # the same average of the squared predictions
            self.pending = torch.zeros_like(self.mean)  # this epoch's predictions
            self.written = torch.zeros(num_rows, dtype=torch.bool)  # rows that have one
            self.arrays = {name: each for name, each in vars(self).items() if isinstance(each, Tensor)}
            # A Python float would be copied to the device for each power. float64, for the digits of 1 - decay^count.
            self.decay = torch.tensor(decay, dtype=torch.float64)
            self.spread = torch.tensor(torch.nan, dtype=torch.float64)
            """After a commit: the variance, summed over the classes and averaged over the rows of that epoch."""

    @torch.no_grad()
    def get(self, rows: Tensor) -> Targets:
        """Return the bias-corrected targets of `rows`, blended with the prior if there is one."""
        at = rows.to(self.device)
        own = self._own(at)
        if self.prior is None:
            return own
        blended = self.prior.blend(at, own.probabilities, own.known)
        return Targets(blended, own.known | self.prior.known[at], own.count)

    def _own(self, at: Tensor) -> Targets:
        # index_select and index_copy_ move whole rows; advanced indexing moves single numbers on a CPU.
        count = self.count.index_select(0, at)
        mean = self.mean.index_select(0, at)
        return Targets(mean / self._correction(count)[:, None].float(), count > 0, count)

    def all(self) -> Targets:
        """Return the targets of every row."""
        return self.get(torch.arange(self.num_rows))

    @torch.no_grad()
    def variance(self, rows: Tensor) -> Tensor:
        """Return [rows, classes], the variance of the predictions, weighted as in Z; 0 for fewer than two predictions."""
        at = rows.to(self.device)
        mean, _, count = self._own(at)
        square = self.square[at] / self._correction(count)[:, None].float()
        varied = count > 1  # for one prediction, rounding would leave a remainder
        return torch.where(varied[:, None], (square - mean.square()).clamp_min_(0), 0.0)

    @torch.no_grad()
    def write(self, rows: Tensor, probabilities: Tensor) -> None:
        """Store this epoch's predictions for `rows`. If a row is written twice, the last prediction counts."""
        at = rows.to(self.device)
        self.pending.index_copy_(0, at, probabilities.detach().to(self.pending))
        self.written.index_fill_(0, at, True)

    @torch.no_grad()
    def commit(self) -> None:
        """End the epoch: Z <- decay Z + (1 - decay) z for the rows that were written."""
        total, size = torch.zeros_like(self.spread), max(CHUNK_BYTES // (4 * self.num_classes), 1)
        for chunk in zip(*(torch.split(each, size) for each in self.arrays.values()), strict=True):
            total += self._blend_in(*chunk)
        self.spread = total / self.written.sum()
        self.written.zero_()

    def _blend_in(self, count: Tensor, mean: Tensor, square: Tensor, pending: Tensor, written: Tensor) -> Tensor:
        """Update the averages of the rows written, in place; return the sum of their variances."""
        for average, new in ((mean, pending), (square, pending.square())):
            # two roundings, which are the same on every device and for every chunk size
            blended = (average * self.decay).add_(new * (1 - self.decay))
            average.copy_(torch.where(written[:, None], blended, average))
        count += written
        correction = self._correction(count)
        each = square.sum(dim=1) / correction - mean.square().sum(dim=1) / correction**2
        return torch.where(written, each.clamp_min(0), 0.0).sum()

    def _correction(self, count: Tensor) -> Tensor:
        """Return the bias correction 1 - decay^count; 1 for rows never seen."""
        return torch.where(count > 0, 1 - self.decay ** count.double(), 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything to save. Predictions of an unfinished epoch are included only if there are any."""
        left_out = () if self.written.any() else ("pending", "written")
        return {name: array for name, array in self.arrays.items() if name not in left_out} | {"decay": self.decay}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        found, expected = (f"{each.dtype} {tuple(each.shape)}" for each in (state["mean"], self.mean))
        if found != expected:
            raise ValueError(f"the targets are {found}; expected {expected}.")
        self.written.zero_()
        for name, tensor in (self.arrays | {"decay": self.decay}).items():
            if name in state or name not in ("pending", "written"):
                tensor.copy_(state[name])
