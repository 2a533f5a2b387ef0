"""Temporal teacher: a teacher's predictions, averaged per row, aligned and sharpened, are targets for a strong view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from selfens import core
from selfens.errors import ConfigError
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from selfens.core.batch import Batch
    from selfens.core.targets import Targets

PREDICTED_MOMENTUM = 0.99  # of the mean prediction that alignment compares with the labels


@final
class TemporalTeacher(Method):
    """Temporal ensembling with today's parts (docs/modern.md). The teacher, the average of past weights, predicts on the weak
    view without dropout. A row's target averages its predictions over the epochs, this one included. It is rescaled so that
    classes are predicted as often as they should be, and sharpened. The network learns it on the strong view. Of the labeled
    rows at the beginning of a batch the first half is learned on the weak view, the other on the strong one. It is the
    teacher that is evaluated.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "temporal-teacher"
        decay: float = setting(0.999, "Momentum of the teacher's weights.", at_least=0, below=1)
        memory: float = setting(
            0.0,
            "Momentum of a row's average over the epochs, alpha; 0: this step's prediction only.",
            at_least=0,
            at_most=0.9999,  # nearer to 1, float32 has no digits left for the share of one prediction
        )
        alignment: Literal["labels", "uniform", "none"] = setting(
            "labels",
            "How often classes should be predicted: as often as labeled (each counted once more), or all equally.",
        )
        temperature: float = setting(0.5, "Targets are raised to the power 1/temperature.", above=0, at_most=1)
        threshold: float = setting(
            0.0, "The least confidence, before sharpening, of a target that is learned.", at_least=0, below=1
        )

    views = ("weak", "strong")
    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.2

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = core.teacher.EmaTeacher(network, self.options.decay)
        self.teacher.network.eval()
        if self.options.memory:
            self.ensemble = core.targets.EnsembleTargets(
                rows.num_rows, rows.num_classes, self.options.memory, rows.device
            )
        counts = rows.class_counts
        if self.options.alignment == "labels" and rows.without_label is not None:
            raise ConfigError(
                f"method.alignment is labels, but the class '{rows.without_label}' has no label, so its share is not known; "
                "label a row of each class, or set method.alignment to uniform or none."
            )
        smoothed = counts + 1 if self.options.alignment == "labels" else counts.new_ones(len(counts))
        self.wanted = smoothed / smoothed.sum()
        self.predicted = self.wanted.clone()  # how often each class is predicted, a running mean

    def targets(self, rows: Tensor) -> Targets | None:
        return None if self.ensemble is None else self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (weak, strong), u, half = batch.views, batch.unlabeled, batch.first // 2
        logits = network(core.losses.joined(weak[:half], strong[half:]))
        taught = self.teacher.probabilities(weak[u])
        average = taught if targets is None else core.targets.with_latest(targets, taught, self.options.memory)
        if self.options.alignment != "none":
            average = core.losses.align(average, self.predicted, self.wanted)
        kept = average.amax(dim=1) >= self.options.threshold
        sharp = core.losses.sharpen(average, self.options.temperature)
        supervised = core.losses.supervised(logits, batch)
        unsupervised = core.losses.soft_cross_entropy(logits[u], sharp, kept)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.float().mean()}
        z = logits[: batch.first].detach().float().softmax(dim=1)
        return Losses(supervised + weight * unsupervised, parts, core.losses.joined(z, taught))

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.predicted.lerp_(predictions.mean(dim=0), 1 - PREDICTED_MOMENTUM)
        if self.ensemble is not None:
            self.ensemble.write(rows, predictions)
        self.teacher.update()

    def end_epoch(self) -> None:
        if self.ensemble is not None:
            self.ensemble.commit()

    def evaluated(self, network: nn.Module) -> nn.Module:
        return self.teacher.network
