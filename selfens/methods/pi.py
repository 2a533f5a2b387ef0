"""The Π-model (Algorithm 1): two views of each input, two passes, predictions pulled toward each other."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, WeightedOptions
from selfens.settings import setting


@final
class Pi(Method):
    """Two separate passes, each with its own batch means. Cross-entropy is on the first; gradients flow into both."""

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "pi"
        consistency: Literal["squared", "cross_entropy"] = setting("squared", "Loss between two predictions.")

    views = ("weak", "weak")

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        first, second = network(batch.views[0]), network(batch.views[1])
        z, z_tilde = first.float().softmax(dim=1), second.float().softmax(dim=1)
        supervised = terms.supervised(first, batch)
        compare = terms.CONSISTENCY[self.options.consistency]
        unsupervised = compare(z[batch.unlabeled], z_tilde[batch.unlabeled])
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z.detach())
