"""Temporal teacher: a teacher's predictions, averaged per row, aligned and sharpened, are targets for a strong view."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.alignment import ALIGNMENT, Alignment
from selfens.core.batch import Batch
from selfens.core.targets import EnsembleTargets, Targets, with_latest
from selfens.core.teacher import EmaTeacher
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting


@final
class TemporalTeacher(Method):
    """Temporal ensembling with modern components (see docs/modern.md).

    The teacher, an average of past weights, predicts on the weak view without dropout. A row's target is the average of its
    predictions so far, this epoch's included, rescaled toward the expected class frequencies and sharpened. The network learns
    it on the strong view. Of the labeled rows at the beginning of a batch, the first half is learned on the weak view and the
    rest on the strong one. The teacher is evaluated.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "temporal-teacher"
        decay: float = setting(0.999, "Momentum of the teacher's weights.", at_least=0, below=1)
        # Closer to 1, the weight of one prediction would vanish in float32.
        memory: float = setting(0.0, "Momentum of each row's average; 0: no average.", at_least=0, at_most=0.9999)
        alignment: Literal["labels", "uniform", "none"] = setting("labels", ALIGNMENT)
        slack: float = setting(
            1.0,
            "A class is not rescaled if it is at most so many times as frequent, or as rare, as wanted.",
            at_least=1,
        )
        temperature: float = setting(0.5, "Targets are raised to the power 1/temperature.", above=0, at_most=1)
        threshold: float = setting(0.0, "Minimum confidence of a target before sharpening.", at_least=0, below=1)

    views = ("weak", "strong")
    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.2
    uses_prior = True
    teacher: EmaTeacher

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = EmaTeacher(network, self.options.decay)
        self.teacher.network.eval()
        if self.options.memory:
            self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes, self.options.memory, rows.device)
        self.prior = rows.prior
        self.alignment = Alignment(
            self.options.alignment, rows.class_counts, rows.class_without_label, self.options.slack
        )

    def targets(self, rows: Tensor) -> Targets | None:
        return None if self.ensemble is None else self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (weak, strong), u, half = batch.views, batch.unlabeled, batch.num_labeled // 2
        logits = network(torch.cat([weak[:half], strong[half:]]))
        z_teacher = self.teacher.probabilities(weak[u])
        average = z_teacher if targets is None else with_latest(targets, z_teacher, self.options.memory)
        if self.prior is not None:
            average = self.prior.blend(batch.rows[u], average)
        average = self.alignment.align(average)
        kept = average.amax(dim=1) >= self.options.threshold
        sharp = terms.sharpen(average, self.options.temperature)
        supervised = terms.supervised(logits, batch)
        unsupervised = terms.soft_cross_entropy(logits[u], sharp, kept)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.float().mean()}
        z = logits[: batch.num_labeled].detach().float().softmax(dim=1)
        return Losses(supervised + weight * unsupervised, parts, torch.cat([z, z_teacher]))

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.alignment.follow(predictions)
        super().after_step(network, rows, predictions)
