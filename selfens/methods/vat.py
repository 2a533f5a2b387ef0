"""VAT, virtual adversarial training (Miyato et al., 2018): predictions are to hold in the direction that changes them most."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, UnscaledOptions
from selfens.settings import setting


@final
class Vat(Method):
    """The direction is found by one power iteration: the gradient of the divergence at a random point near the row.

    Four passes: one for the predictions, without gradient; one for the direction, in float32; one in that direction; and the
    clean one, last, because running means follow the last pass.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "vat"
        radius: float = setting(
            1.0, "Length of the perturbation, epsilon; depends on the inputs.", above=0, at_most=1e6
        )
        # The authors' 1e-6 leaves float32 one digit of the difference between two predictions.
        probe: float = setting(0.01, "Length of the step that the direction is found with, xi.", above=0, at_most=1e6)
        entropy: float = setting(0.0, "Weight of the predictions' entropy; the paper: 0 or 1.", at_least=0, at_most=1e9)

    labeled_share = 0.2  # the paper's 32 labeled rows beside 128 others

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        x, u = batch.views[0], batch.unlabeled
        with torch.no_grad():
            p = network(x[u]).float().softmax(dim=1)
        away = x[u] + self.options.radius * self.direction(network, x[u], p)
        divergence = terms.divergence(p, network(away))
        logits = network(x)
        z = logits.float().softmax(dim=1)
        supervised = terms.supervised(logits, batch)
        unsupervised = divergence
        if self.options.entropy:
            everything = torch.ones_like(batch.labeled[u])
            unsupervised = unsupervised + self.options.entropy * terms.soft_cross_entropy(logits[u], z[u], everything)
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z.detach())

    def direction(self, network: nn.Module, x: Tensor, p: Tensor) -> Tensor:
        """Return the direction of unit length in which the prediction for each row changes most."""
        step = (self.options.probe * unit(torch.randn_like(x))).requires_grad_()
        with torch.autocast(x.device.type, enabled=False):
            (gradient,) = torch.autograd.grad(terms.divergence(p, network(x.float() + step)), step)
        return unit(gradient)


def unit(rows: Tensor) -> Tensor:
    """Return each row divided by its length; all-zero rows stay zero."""
    flat = rows.flatten(1)
    largest = flat.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)  # squares of small gradients would vanish
    flat = flat / largest
    length: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return (flat / length.clamp_min(1e-12)).view_as(rows)
