"""FixMatch (Sohn et al., 2020): a confident prediction on a weak view is the label of a strong view."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.alignment import ALIGNMENT, Alignment
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.core.teacher import EmaTeacher
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting


@final
class FixMatch(Method):
    """Weak and strong views go through the network in one pass, so they share batch statistics; no gradient flows into the
    labels. An average of the weights, which training does not use, is evaluated.

    With alignment (ReMixMatch), predictions are first rescaled so that their running mean becomes the expected class
    distribution, which keeps the confident classes from taking over.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "fixmatch"
        threshold: float = setting(0.95, "Minimum confidence of a prediction used as a label.", at_least=0, at_most=1)
        alignment: Literal["labels", "uniform", "none"] = setting("none", ALIGNMENT)
        decay: float = setting(0.999, "Momentum of the averaged weights, which are evaluated.", at_least=0, below=1)

    views = ("weak", "strong")
    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.25
    teacher: EmaTeacher

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = EmaTeacher(network, self.options.decay)
        self.alignment = Alignment(self.options.alignment, rows.class_counts, rows.class_without_label)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (weak, strong), u = batch.views, batch.unlabeled
        weak_logits, strong_logits = terms.joint_pass(network, weak, strong[u])
        z = weak_logits.detach().float().softmax(dim=1)
        confidence, labels = self.alignment.align(z[u]).max(dim=1)
        kept = confidence >= self.options.threshold
        supervised = terms.supervised(weak_logits, batch)
        unsupervised = terms.cross_entropy(strong_logits, labels, kept)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.float().mean()}
        return Losses(supervised + weight * unsupervised, parts, z)

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.alignment.follow(predictions)
        super().after_step(network, rows, predictions)
