"""Committee: each row's target is averaged over heads, time and neighbors, aligned, sharpened, and kept if confident."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.alignment import class_factors, smoothed_shares
from selfens.core.batch import Batch
from selfens.core.neighbors import Neighborhood
from selfens.core.targets import EnsembleTargets, Targets
from selfens.core.teacher import EmaTeacher
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting

SLACK = 1.5  # rescale a class that is this many times as frequent, or as rare, as among the labels


@final
class Committee(Method):
    """For vectors: features, tables, embeddings.

    A teacher, an average of past weights, predicts every row without dropout. An ensemble averages its predictions over the
    epochs. A labeled row counts as its label. Each row is averaged with its nearest neighbors. Classes that are predicted far
    more or less often than they are labeled are rescaled; from few labels a class's share is only roughly known, so smaller
    differences are left. Every head learns what is confident after sharpening, each with its own dropout. The heads are those
    of the network `committee`; any other network is a committee of one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "committee"
        decay: float = setting(0.99, "Momentum of the teacher's weights.", at_least=0, below=1)
        memory: float = setting(0.9, "Momentum of the ensemble of the teacher's predictions.", at_least=0, below=1)
        neighbors: float = setting(0.5, "Share of the nearest rows in a target.", at_least=0, at_most=1)
        temperature: float = setting(0.5, "Targets are raised to the power 1/temperature.", above=0, at_most=1)
        threshold: float = setting(0.8, "Least confidence of a target that is learned.", at_least=0, at_most=1)

    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.2
    teacher: EmaTeacher
    ensemble: EnsembleTargets

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = EmaTeacher(network, self.options.decay)
        self.teacher.network.eval()
        self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes, self.options.memory, rows.device)
        self.neighborhood = Neighborhood(rows.inputs, rows.labels)
        self.prior = smoothed_shares(rows.class_counts)
        self.factors = self.prior.new_ones(rows.num_classes)

    def targets(self, rows: Tensor) -> Targets:
        averaged = self.neighborhood.averaged(self.ensemble, self.options.neighbors, rows)
        count = self.ensemble.count[rows]
        return Targets(averaged, count > 0, count)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        assert targets is not None
        (x,), u = batch.views, batch.unlabeled
        sharp = terms.sharpen(targets.probabilities * self.factors, self.options.temperature)
        kept = sharp.amax(dim=1) >= self.options.threshold
        heads: list[Tensor] = getattr(network, "heads", lambda x: [network(x)])(x)
        supervised = torch.stack([terms.supervised(logits, batch) for logits in heads]).mean()
        unsupervised = torch.stack([terms.soft_cross_entropy(logits[u], sharp, kept) for logits in heads]).mean()
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.float().mean()}
        return Losses(supervised + weight * unsupervised, parts, self.teacher.probabilities(x))

    def end_epoch(self) -> None:
        """Renew what the targets of the next epoch are made of: the ensemble, and the factor of each class."""
        super().end_epoch()
        averaged = self.neighborhood.averaged(self.ensemble, self.options.neighbors)
        counted = ~self.neighborhood.labeled & (averaged.sum(dim=1) > 0)  # some may not have been visited yet
        self.factors.copy_(class_factors(averaged, counted, self.prior, SLACK))
