"""Committee: each row's target is averaged over members, time and neighbors, aligned, sharpened, and kept if confident."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.alignment import CLASS_SHARES, check_class_shares, class_factors, look_chosen, wanted_shares
from selfens.core.batch import Batch
from selfens.core.neighbors import Neighborhood
from selfens.core.targets import EnsembleTargets, Targets
from selfens.core.teacher import EmaTeacher
from selfens.methods.base import Losses, Method, TrainingRows, UnscaledOptions
from selfens.settings import setting

SLACK = 1.5  # rescale a class that is this many times as frequent, or as rare, as it should be


@final
class Committee(Method):
    """For vectors: features, tables, embeddings.

    A teacher, an average of past weights, predicts every row without dropout. If columns are mixed, numbers beside categories,
    advisors vote with it: trees and a linear model, fitted to the labels. An ensemble averages these votes over the epochs. A
    labeled row counts as its label. Each row is averaged with its nearest neighbors. Classes that are predicted far more or
    less often than they should be are rescaled: by default to their shares of the labels, or to estimated shares if equally
    many rows of each class are labeled. Few labels tell shares only roughly, so smaller differences are left. Every head learns
    what is confident after sharpening, each with its own dropout. Heads and advisors are those of the network `committee`; any
    other network is a committee of one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "committee"
        decay: float = setting(0.99, "Momentum of the teacher's weights.", at_least=0, below=1)
        memory: float = setting(0.9, "Momentum of the ensemble of the votes.", at_least=0, below=1)
        neighbors: float = setting(0.5, "Share of the nearest rows in a target.", at_least=0, at_most=1)
        temperature: float = setting(0.5, "Targets are raised to the power 1/temperature.", above=0, at_most=1)
        threshold: float = setting(0.8, "Least confidence of a target that is learned.", at_least=0, at_most=1)
        advisors: float = setting(
            0.7, "Share of trees and a linear model in the vote on mixed columns.", at_least=0, at_most=1
        )
        members: Literal["all", "forest", "linear"] = setting(
            "all",
            "Who votes: all, or only a random forest, or a linear model, which are good where neighbors tell nothing.",
        )
        class_shares: str = setting("auto", CLASS_SHARES)

        def __post_init__(self) -> None:
            super().__post_init__()
            check_class_shares(self.class_shares)

    parts = ("supervised", "unsupervised", "kept")
    labeled_share = 0.2
    uses_prior = True
    teacher: EmaTeacher
    ensemble: EnsembleTargets

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        advisors: Any = getattr(network, "advisors", None)
        given = self.options.class_shares
        self.advice = Advice()
        members, found = self.options.members, None
        votes = members != "all" or (self.options.advisors > 0 and rows.is_mixed)
        if advisors is not None and (votes or (given == "auto" and look_chosen(rows.class_counts))):
            if not votes:  # they only estimate shares
                advisors, members = copy.deepcopy(advisors), "all" if rows.is_mixed else "careful"
            found = advised(advisors, rows, members)
        shares = wanted_shares(
            given, rows.classes, rows.class_counts, None if found is None else found[rows.labels < 0]
        )
        self.remark = shares.remark(rows.classes)
        self.slack = 1.0 if shares.are_given else SLACK
        self.wanted = shares.wanted
        self.offsets = -shares.ratio.log()
        """Added to logits when labels are learned: they follow the shares of the labels, the logits the wanted ones."""
        self.factors = self.wanted.new_ones(rows.num_classes)
        if found is not None and votes:
            advisors.factors.copy_(shares.ratio)
            advisors.share.fill_(self.options.advisors if self.options.members == "all" else 1.0)
            self.advice = Advice(terms.normalize(found * shares.ratio))
        self.teacher = EmaTeacher(network, self.options.decay)
        self.teacher.network.eval()
        size, memory = (rows.num_rows, rows.num_classes), self.options.memory
        self.ensemble = EnsembleTargets(*size, memory, rows.device, prior=rows.prior)
        self.neighborhood = Neighborhood(rows.inputs, rows.labels)

    def targets(self, rows: Tensor) -> Targets:
        averaged = self.neighborhood.averaged(self.ensemble, self.options.neighbors, rows)
        return Targets(averaged, averaged.sum(dim=1) > 0, self.ensemble.count[rows])

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        assert targets is not None
        (x,), u = batch.views, batch.unlabeled
        sharp = terms.sharpen(targets.probabilities * self.factors, self.options.temperature)
        kept = sharp.amax(dim=1) >= self.options.threshold
        heads = heads_of(network, x)
        supervised = torch.stack([terms.supervised(logits + self.offsets, batch) for logits in heads]).mean()
        unsupervised = torch.stack([terms.soft_cross_entropy(logits[u], sharp, kept) for logits in heads]).mean()
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": kept.float().mean()}
        return Losses(supervised + weight * unsupervised, parts, self._votes(x, batch.rows))

    @torch.no_grad()
    def _votes(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return what the evaluated network predicts for rows of the training set; the advice is not computed again."""
        if self.advice.rows is None:
            return self.teacher.probabilities(x)
        heads = torch.stack([logits.float().softmax(dim=1) for logits in heads_of(self.teacher.network, x)])
        advisors: Any = self.teacher.network.advisors
        voted: Tensor = advisors.vote(heads.mean(dim=0), self.advice.rows[rows])
        return voted

    def end_epoch(self) -> None:
        """Renew what the targets of the next epoch are made of: the ensemble, and the factor of each class."""
        super().end_epoch()
        averaged = self.neighborhood.averaged(self.ensemble, self.options.neighbors)
        counted = ~self.neighborhood.labeled & (averaged.sum(dim=1) > 0)  # some may not have been visited yet
        self.factors.copy_(class_factors(averaged, counted, self.wanted, self.slack))


class Advice:
    """[rows, classes] what the advisors predict for the training rows, if they vote. It follows from the labels: not saved."""

    def __init__(self, rows: Tensor | None = None) -> None:
        self.rows = rows


def heads_of(network: nn.Module, x: Tensor) -> list[Tensor]:
    return getattr(network, "heads", lambda x: [network(x)])(x)


@torch.no_grad()
def advised(advisors: Any, rows: TrainingRows, members: str) -> Tensor:
    """Fit advisors to the labels; return [rows, classes] what they predict for all rows."""
    inputs, labels = rows.labeled()
    advisors.fit(inputs.flatten(1), labels, members)
    return torch.cat([advisors(some.flatten(1)) for piece in rows.inputs() for some in torch.split(piece, 1000)])
