"""FixMatch (Sohn et al., 2020): the confident prediction on a weak view is the label of a strong view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

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
class FixMatch(Method):
    """Weak and strong views go through the network in one pass, so they share batch statistics; no gradient flows into the
    labels. What is evaluated is an average of the weights, which takes no part in training.

    alignment  predictions are first rescaled so that their running mean becomes the class distribution of the labels
               (ReMixMatch), which keeps the confident classes from taking over
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "fixmatch"
        threshold: float = setting(
            0.95, "The least confidence of a prediction that becomes a label.", at_least=0, at_most=1
        )
        alignment: bool = setting(False, "Align predictions to the class distribution of the labels.")
        decay: float = setting(0.999, "Momentum of the averaged weights, which are evaluated.", at_least=0, below=1)

    views = ("weak", "strong")
    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.25

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.average = core.teacher.EmaTeacher(network, self.options.decay)
        self.prior = rows.class_counts / rows.class_counts.sum()
        self.predicted = self.prior.clone()  # how often each class is predicted, a running mean
        if self.options.alignment and rows.without_label is not None:
            raise ConfigError(
                f"method.alignment is on, but the class '{rows.without_label}' has no label, so its share is not known; label "
                "a row of each class, or turn alignment off."
            )

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (weak, strong), u = batch.views, batch.unlabeled
        weak_logits, strong_logits = core.losses.joint_pass(network, weak, strong[u])
        z = weak_logits.detach().float().softmax(dim=1)
        pseudo = core.losses.align(z[u], self.predicted, self.prior) if self.options.alignment else z[u]
        confidence, labels = pseudo.max(dim=1)
        kept = confidence >= self.options.threshold
        supervised = core.losses.supervised(weak_logits, batch)
        unsupervised = core.losses.cross_entropy(strong_logits, labels, kept)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.float().mean()}
        return Losses(supervised + weight * unsupervised, parts, z)

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.predicted.lerp_(predictions.mean(dim=0), 1 - PREDICTED_MOMENTUM)
        self.average.update()

    def evaluated(self, network: nn.Module) -> nn.Module:
        return self.average.network
