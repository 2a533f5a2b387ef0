"""Supervised only: cross-entropy on the labeled rows; the others only contribute to the batch means."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, MethodOptions


@final
class Supervised(Method):
    @dataclass(frozen=True, kw_only=True)
    class Options(MethodOptions):
        name: ClassVar[str] = "supervised"

    uses_unlabeled = False

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits = network(batch.views[0])
        supervised = terms.supervised(logits, batch)
        parts = {"supervised": supervised, "unsupervised": supervised.new_zeros(())}
        return Losses(supervised, parts, logits.detach().float().softmax(dim=1))
