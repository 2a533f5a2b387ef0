"""Committee: each row's target is averaged over heads, time and neighbors, aligned, sharpened, and kept if confident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from selfens import core
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from selfens.core.batch import Batch
    from selfens.core.targets import Targets

SLACK = 1.5  # a class may be this many times as frequent as its share of the labels, or as rare, before it is corrected


@final
class Committee(Method):
    """For vectors: features, tables, embeddings. A teacher, the average of past weights, predicts every row without dropout.
    An ensemble averages its predictions over the epochs. Rows with a label stand for it. Each row is averaged with its
    nearest neighbors. Classes that are predicted far more or less often than they are labeled are rescaled; a class's
    share is only known roughly from few labels, so smaller differences are left. What is sharp enough after the temperature
    is learned by every head, each with its own dropout. The heads are those of the network `committee`; any other network
    is a committee of one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "committee"
        decay: float = setting(0.99, "Momentum of the teacher's weights.", at_least=0, below=1)
        memory: float = setting(0.9, "Momentum of the ensemble of the teacher's predictions.", at_least=0, below=1)
        neighbors: float = setting(0.5, "Share of the nearest rows in a target.", at_least=0, at_most=1)
        temperature: float = setting(0.5, "Targets are raised to the power 1/temperature.", above=0, at_most=1)
        threshold: float = setting(0.8, "The least confidence of a target that is learned.", at_least=0, at_most=1)

    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.2

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = core.teacher.EmaTeacher(network, self.options.decay)
        self.teacher.network.eval()
        self.ensemble = core.targets.EnsembleTargets(rows.num_rows, rows.num_classes, self.options.memory, rows.device)
        self.around = core.neighbors.Neighborhood(rows.inputs, rows.labels)
        self.prior = (rows.class_counts + 1) / (rows.class_counts + 1).sum()
        self.factors = self.prior.new_ones(rows.num_classes)

    def targets(self, rows: Tensor) -> Targets:
        assert self.ensemble is not None
        averaged = self.around.averaged(self.ensemble, rows, self.options.neighbors)
        sharp = core.losses.sharpen(averaged * self.factors, self.options.temperature)
        kept = sharp.amax(dim=1) >= self.options.threshold
        return core.targets.Targets(sharp, kept, self.ensemble.count[rows])

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        assert targets is not None
        (x,), u = batch.views, batch.unlabeled
        heads: list[Tensor] = getattr(network, "heads", lambda x: [network(x)])(x)
        supervised = core.losses.mean([core.losses.supervised(logits, batch) for logits in heads])
        learned = [core.losses.soft_cross_entropy(logits[u], *targets[:2]) for logits in heads]
        unsupervised = core.losses.mean(learned)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": targets.known.float().mean()}
        return Losses(supervised + weight * unsupervised, parts, self.teacher.probabilities(x))

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        assert self.ensemble is not None
        self.ensemble.write(rows, predictions)
        self.teacher.update()

    def end_epoch(self) -> None:
        """Targets of the next epoch: the ensemble as it is now, and by what each class is rescaled."""
        assert self.ensemble is not None
        self.ensemble.commit()
        averaged = self.around.all_averaged(self.ensemble, self.options.neighbors)
        counted = ~self.around.labeled & (averaged.sum(dim=1) > 0)  # some may not have been visited yet
        self.factors.copy_(core.losses.class_factors(averaged, counted, self.prior, SLACK))

    def evaluated(self, network: nn.Module) -> nn.Module:
        return self.teacher.network
