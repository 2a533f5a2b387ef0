"""Neighborhood: what is known of each row besides its own predictions, its label and the rows nearest to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from selfens.core.device import random_state_kept
from selfens.core.losses import normalized
from selfens.core.targets import EnsembleTargets

NEIGHBORS = 10
DIMENSIONS = 64  # in which distances are taken; inputs of more are projected onto their principal components
SAMPLE = 1 << 24  # numbers of a sample of the inputs, from which those are computed
CANDIDATES = 20_000  # rows among which neighbors are looked for
BLOCK = 1 << 25  # distances at a time
ROWS, AVERAGED = 10_000, 1 << 24  # averaged at a time: rows, and numbers that they and their neighbors have

Pieces = Callable[[], Iterable[Tensor]]


class Neighborhood:
    """Follows from the data, so it is not saved with a run. Vectors are compared by distance, those of more than 64 features
    by angle.

    inputs  gives the inputs of all rows, [rows, ...], piece by piece
    labels  [rows] class numbers, -1 if unknown

    >>> found = Neighborhood(lambda: [torch.tensor([[0.0], [1.0], [5.0], [7.0]])], torch.tensor([1, -1, -1, -1]), count=1)
    >>> found.nearest.tolist()
    [[1], [0], [3], [2]]
    """

    def __init__(self, inputs: Pieces, labels: Tensor, count: int = NEIGHBORS) -> None:
        self.labeled, self.classes = labels >= 0, labels.clamp_min(0)
        self.nearest = nearest(compared(inputs, len(labels)), count)
        """[rows, count] row numbers."""

    def averaged(self, ensemble: EnsembleTargets, rows: Tensor, share: float) -> Tensor:
        """[rows, classes] the ensemble's distribution of each row, averaged with the mean of its neighbors', whose share is
        given. Rows with a label stand for that label; those without a prediction yet add nothing."""
        every = torch.cat([rows[:, None], self.nearest[rows]], dim=1)
        flat = every.flatten()
        predicted = ensemble.get(flat).probabilities
        given = torch.zeros_like(predicted).scatter_(1, self.classes[flat, None], 1.0)
        known = torch.where(self.labeled[flat, None], given, predicted)
        known = known.view(*every.shape, -1)
        mixed = (1 - share) * known[:, 0] + share * known[:, 1:].mean(dim=1)
        return normalized(mixed)

    @torch.no_grad()
    def all_averaged(self, ensemble: EnsembleTargets, share: float) -> Tensor:
        """The same of all rows."""
        every = torch.arange(len(self.nearest), device=self.nearest.device)
        size = max(min(ROWS, AVERAGED // (ensemble.num_classes * (self.nearest.shape[1] + 1))), 1)
        return torch.cat([self.averaged(ensemble, rows, share) for rows in torch.split(every, size)])


@torch.no_grad()
def compared(inputs: Pieces, num_rows: int) -> Tensor:
    """[rows, at most DIMENSIONS] vectors whose distances stand for those of the inputs."""
    features = next(iter(inputs())).flatten(1).shape[1]
    if features <= DIMENSIONS:
        return torch.cat([piece.flatten(1) for piece in inputs()])
    every = -(-num_rows // max(SAMPLE // features, 1))  # a row of so many: classes may be in order
    sample = torch.cat([piece.flatten(1)[::every] for piece in inputs()])
    with random_state_kept():
        torch.manual_seed(0)
        components = torch.pca_lowrank(sample, q=min(DIMENSIONS, *sample.shape), center=False)[2]
    return torch.cat([functional.normalize(piece.flatten(1) @ components) for piece in inputs()])


@torch.no_grad()
def nearest(vectors: Tensor, count: int) -> Tensor:
    """[rows, count] the nearest other rows of each, among all or, if there are very many, an even selection of them."""
    rows, every = len(vectors), -(-len(vectors) // CANDIDATES)
    candidates = vectors[::every]
    squares = candidates.square().sum(dim=1)
    found = []
    for own in torch.split(torch.arange(rows, device=vectors.device), max(BLOCK // len(candidates), 1)):
        distances = torch.addmm(squares, vectors[own], candidates.T, alpha=-2)  # less each row's own square
        itself = own % every == 0
        distances[itself, own[itself] // every] = torch.inf
        found.append(every * distances.topk(max(min(count, len(candidates) - 1), 1), largest=False).indices)
    return torch.cat(found)
