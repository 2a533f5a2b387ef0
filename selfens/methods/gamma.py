"""The Γ-model of the ladder network (Rasmus et al., 2015): a noisy pass, denoised at the top, is to give the clean pass."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting


class Denoiser(nn.Module):
    """g(z, u) = (z - m(u)) v(u) + m(u), where m and v are a1 sigmoid(a2 u + a3) + a4 u + a5, with ten numbers per unit."""

    def __init__(self, units: int) -> None:
        super().__init__()
        start = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])  # the authors'
        self.mean, self.weight = (nn.Parameter(start[:, None].repeat(1, units)) for _ in range(2))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        mean, weight = (a[0] * (a[1] * u + a[2]).sigmoid() + a[3] * u + a[4] for a in (self.mean, self.weight))
        return (z - mean) * weight + mean


@final
class Gamma(Method):
    """The cross-entropy is on the noisy pass; gradients of the denoising flow into both. The clean pass comes last.

    The top layer of each pass is normalized over the batch. Noise is added to the inputs and to the normalized top layer; the
    ladder network adds it to every layer between them, too. What a network itself draws, such as dropout, is in both passes.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "gamma"
        noise: float = setting(0.3, "Standard deviation of the noise.", at_least=0, at_most=1e6)

    learned: Denoiser

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.learned = Denoiser(rows.num_classes).to(rows.device)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (x,), u = batch.views, batch.unlabeled
        noisy = network(x + self.options.noise * torch.randn_like(x)).float()
        clean = network(x).float()
        center, deviation = moments(clean[u])
        corrupted = normalized(noisy[u])
        corrupted = corrupted + self.options.noise * torch.randn_like(corrupted)
        denoised = self.learned(corrupted, normalized(noisy[u].softmax(dim=1)))
        supervised = terms.supervised(noisy, batch)
        unsupervised = terms.squared_difference((denoised - center) / deviation, (clean[u] - center) / deviation)
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, clean.detach().softmax(dim=1))


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each column."""
    return values.mean(dim=0), (values.var(dim=0, unbiased=False) + 1e-6).sqrt()


def normalized(values: Tensor) -> Tensor:
    center, deviation = moments(values)
    return (values - center) / deviation
