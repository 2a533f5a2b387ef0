"""Supervised-only: cross-entropy on the labeled rows; the others are in the batch and only feed the batch means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from selfens import core
from selfens.methods import base
from selfens.methods.base import Losses, Method

if TYPE_CHECKING:
    from torch import Tensor, nn

    from selfens.core.batch import Batch
    from selfens.core.targets import Targets


@final
class Supervised(Method):
    @dataclass(frozen=True, kw_only=True)
    class Options(base.Options):
        name: ClassVar[str] = "supervised"

    uses_unlabeled = False

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits = network(batch.views[0])
        supervised = core.losses.supervised(logits, batch)
        parts = {"supervised": supervised, "unsupervised": supervised.new_zeros(())}
        return Losses(supervised, parts, logits.detach().float().softmax(dim=1))
