"""Transformation stability (Sajjadi et al., 2016): several passes, each prediction pulled toward each other."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, WeightedOptions
from selfens.settings import setting


@final
class Stability(Method):
    """With two passes and without exclusivity this is the Π-model. Cross-entropy is on the first pass, as there."""

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "stability"
        # Four passes have six pairs, so this is the Π-model's weight.
        weight_max: float = setting(5.0, "Largest weight of each pair before scaling, w_max.", at_least=0, at_most=1e9)
        passes: int = setting(4, "Passes per step, n; every pair of them is compared.", at_least=2, at_most=20)
        exclusivity: float = setting(0.0, "Weight of mutual exclusivity; the paper: 0.1.", at_least=0, at_most=1e9)

    views = ("weak",) * 4

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.views = ("weak",) * self.options.passes

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits, u = [network(view) for view in batch.views], batch.unlabeled
        z = [each.float().softmax(dim=1) for each in logits]
        supervised = terms.supervised(logits[0], batch)
        pairs = combinations([each[u] for each in z], 2)
        unsupervised = torch.stack([terms.squared_difference(*pair) for pair in pairs]).sum()
        if self.options.exclusivity:
            unexclusive = torch.stack([terms.mutual_exclusivity(each[u]) for each in z]).sum()
            unsupervised = unsupervised + self.options.exclusivity * unexclusive
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z[0].detach())
