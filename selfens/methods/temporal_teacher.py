"""Temporal ensembling of a teacher's predictions: soft, aligned, sharpened targets for a strong view (docs/modern.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from selfens import core
from selfens.errors import ConfigError
from selfens.methods.base import WEIGHT_SCALE, Losses, Method, TrainingRows, WeightedOptions
from selfens.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from selfens.core.batch import Batch
    from selfens.core.targets import Targets

PREDICTED_MOMENTUM = 0.99  # of the mean prediction that alignment starts from


@final
class TemporalTeacher(Method):
    """The teacher, an average of past weights in evaluation mode, predicts on the weak view; the student learns from that on
    the strong view. The target of a row is

        the average of the teacher's predictions for it over epochs, this step's included (Z, momentum `decay`),
        rescaled so that classes are predicted as often as `alignment` says,
        sharpened: each probability to the power 1/`temperature`,
        left out if the largest probability, before it is sharpened, is below `threshold`.

    Of the labelled rows at the beginning of a batch the first half is seen in the weak view, the other in the strong one.
    It is the teacher that is evaluated.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "temporal-teacher"
        weight_max: float = setting(1.0, "The unsupervised loss's weight.", at_least=0)
        weight_scale: Literal["original", "paper", "none"] = setting("none", WEIGHT_SCALE)
        decay: float = setting(
            0.6,
            "The momentum of a row's average over epochs, alpha; 0: only this step's prediction.",
            at_least=0,
            below=1,
        )
        teacher_decay: float = setting(0.999, "The momentum of the teacher's weights.", at_least=0, below=1)
        alignment: Literal["labels", "uniform", "none"] = setting(
            "labels",
            "How often classes should be predicted: as often as in the labels (each counted once more), all equally.",
        )
        temperature: float = setting(
            0.5, "Sharpens the targets; 1: as they are; 0: the likeliest class.", at_least=0, at_most=1
        )
        threshold: float = setting(0.0, "The least confidence of a target that is learned from.", at_least=0, below=1)
        soft_threshold: bool = setting(False, "Instead: targets less confident than usual count less (SoftMatch).")

    views = ("weak", "strong")
    parts = ("supervised", "unsupervised", "kept")

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = core.teacher.EmaTeacher(network, self.options.teacher_decay)
        self.teacher.network.eval()
        if self.options.decay:
            self.ensemble = core.targets.EnsembleTargets(
                rows.num_rows, rows.num_classes, self.options.decay, rows.device, variance=False
            )
        counts = rows.class_counts + 1 if self.options.alignment == "labels" else rows.class_counts * 0 + 1
        if self.options.alignment == "labels" and not rows.class_counts.all():
            raise ConfigError(
                f"method.alignment is labels, but class number {int(rows.class_counts.argmin())} has no label, so its share is "
                "not known; label a row of each class, or set method.alignment to uniform or none."
            )
        self.wanted = counts / counts.sum()
        self.predicted = self.wanted.clone()  # how often each class is predicted, a running mean
        self.confidence = self.wanted.new_tensor([1 / rows.num_classes, 1.0])  # running mean and variance

    def targets(self, rows: Tensor) -> Targets | None:
        return None if self.ensemble is None else self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (weak, strong), u = batch.views, batch.unlabelled
        logits = network(core.losses.joined(weak[: batch.first // 2], strong[batch.first // 2 :]))
        taught = self.teacher.probabilities(weak[u])
        wanted = taught if targets is None else core.targets.with_latest(targets, taught, self.options.decay)
        if self.options.alignment != "none":
            wanted = core.losses.align(wanted, self.predicted, self.wanted)
        confidence = wanted.amax(dim=1)
        kept = (confidence >= self.options.threshold).float()
        if self.options.soft_threshold:
            below = (confidence - self.confidence[0]).clamp(max=0)
            kept = (-2 * below.square() / self.confidence[1]).exp()
        supervised = core.losses.supervised(logits, batch)
        unsupervised = core.losses.soft_cross_entropy(
            logits[u], core.losses.sharpen(wanted, self.options.temperature), kept
        )
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.mean()}
        z = logits.detach().float().softmax(dim=1)
        return Losses(supervised + weight * unsupervised, parts, core.losses.joined(z[: batch.first], taught))

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.predicted.lerp_(predictions.mean(dim=0), 1 - PREDICTED_MOMENTUM)
        found = predictions.amax(dim=1)
        self.confidence.lerp_(core.losses.stacked(found.mean(), found.var()), 1 - PREDICTED_MOMENTUM)
        if self.ensemble is not None:
            self.ensemble.write(rows, predictions)
        self.teacher.update()

    def end_epoch(self) -> None:
        if self.ensemble is not None:
            self.ensemble.commit()

    def evaluated(self, network: nn.Module) -> nn.Module:
        return self.teacher.network
