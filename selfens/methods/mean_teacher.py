"""Mean teacher (Tarvainen & Valpola, 2017): predictions pulled toward those of a teacher, the average of past weights."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.core.teacher import EmaTeacher
from selfens.methods.base import Losses, Method, TrainingRows, WeightedOptions
from selfens.settings import setting


@final
class MeanTeacher(Method):
    """Student and teacher each see their own view, with their own dropout and noise, in one pass each.

    Temporal ensembling averages predictions once per epoch; mean teacher averages weights after every step. No
    gradient flows into the teacher. The teacher is evaluated.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "mean-teacher"
        decay: float = setting(0.999, "The momentum of the teacher's weights, alpha.", at_least=0, below=1)
        consistency: Literal["squared", "cross_entropy"] = setting("squared", "Loss between two predictions.")

    views = ("weak", "weak")
    teacher: EmaTeacher

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = EmaTeacher(network, self.options.decay)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits = network(batch.views[0])
        z, u = logits.float().softmax(dim=1), batch.unlabeled
        z_teacher = self.teacher.probabilities(batch.views[1])
        supervised = terms.supervised(logits, batch)
        unsupervised = terms.CONSISTENCY[self.options.consistency](z[u], z_teacher[u])
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z.detach())
