"""Prior: what another model says about the rows before training. Targets are blended from it to the method's own."""

import torch
from torch import Tensor


class Prior:
    """Distributions of the training rows. They follow from what the run keeps, so a checkpoint does not hold them.

    Parameters
    ----------
    probabilities
        [rows, classes] NaN for rows without a prior.

    >>> prior = Prior(torch.tensor([[1.0, 0.0], [torch.nan, torch.nan]]))
    >>> _ = prior.share.fill_(0.25)
    >>> prior.blend(torch.tensor([0, 1]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 1.0000]])
    """

    def __init__(self, probabilities: Tensor) -> None:
        self.known = torch.zeros(len(probabilities), dtype=torch.bool, device=probabilities.device)
        self.probabilities = torch.zeros_like(probabilities)
        self.share = torch.ones((), device=probabilities.device)
        """Of the prior in a target; the schedule lowers it to 0."""
        self.set(probabilities)

    def set(self, probabilities: Tensor) -> None:
        """Replace the distributions, in place."""
        self.known.copy_(probabilities.isfinite().all(dim=1))
        self.probabilities.copy_(probabilities.nan_to_num(0.0))

    def blend(self, rows: Tensor, own: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the targets of `rows`, [rows, classes], from the method's own. Those not `seen` yet have only the prior."""
        known, probabilities = self.known[rows], self.probabilities.index_select(0, rows)
        share = torch.where(known, self.share, 0.0)
        if seen is not None:
            share = torch.where(known & ~seen, 1.0, share)
        return torch.lerp(own, probabilities, share[:, None])
