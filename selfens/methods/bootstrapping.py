"""Bootstrapping (Reed et al., 2015), for labels of which some are wrong: the network's own prediction is part of the target."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, MethodOptions
from selfens.settings import setting


@final
class Bootstrapping(Method):
    """The target of a labeled row is beta times its label plus 1 - beta times the prediction (soft) or its class (hard).

    Gradients flow into soft targets, so the loss is beta times the cross-entropy plus 1 - beta times the prediction's entropy.
    Rows without a label only contribute to the batch means.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(MethodOptions):
        name: ClassVar[str] = "bootstrapping"
        target: Literal["soft", "hard"] = setting("hard", "What the label is mixed with: probabilities, or a class.")
        beta: float = setting(
            0.8, "Share of the label in a target; the paper: 0.8 hard, 0.95 soft.", above=0, at_most=1
        )

    uses_unlabeled = False

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits = network(batch.views[0])
        z, beta = logits.float().softmax(dim=1), self.options.beta
        own = z
        if self.options.target == "hard":  # one_hot() would wait for a GPU
            own = torch.zeros_like(z).scatter(1, z.argmax(dim=1, keepdim=True), 1.0)
        first = slice(batch.num_labeled or None)  # the rows that the cross-entropy is over
        bootstrapped = terms.soft_cross_entropy(logits[first], own[first], batch.labeled[first])
        supervised = beta * terms.supervised(logits, batch) + (1 - beta) * bootstrapped
        parts = {"supervised": supervised, "unsupervised": supervised.new_zeros(())}
        return Losses(supervised, parts, z.detach())
