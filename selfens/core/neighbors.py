"""Neighborhood: the rows nearest to each row, and averages of an ensemble over them."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from selfens.core.device import keep_random_state
from selfens.core.losses import normalize
from selfens.core.targets import EnsembleTargets

NEIGHBORS = 10
DIMENSIONS = 64  # of the space for distances; inputs of more are projected onto their principal components
SAMPLE = 1 << 24  # numbers in the sample of inputs from which the components are computed
CANDIDATES = 20_000  # rows that may be neighbors
BLOCK = 1 << 25  # distances computed at a time
ROWS, AVERAGED = 10_000, 1 << 24  # averaged at a time: rows, and numbers in them and their neighbors

Pieces = Callable[[], Iterable[Tensor]]


class Neighborhood:
    """The nearest rows of each row: by distance, or by angle if there are more than 64 features.

    It follows from the data, so it is not saved with a run.

    Parameters
    ----------
    inputs
        Yields the inputs of all rows, [rows, ...], piece by piece.
    labels
        [rows] class numbers, -1 if unknown.

    >>> found = Neighborhood(lambda: [torch.tensor([[0.0], [1.0], [5.0], [7.0]])], torch.tensor([1, -1, -1, -1]), count=1)
    >>> found.nearest.tolist()
    [[1], [0], [3], [2]]
    """

    def __init__(self, inputs: Pieces, labels: Tensor, count: int = NEIGHBORS) -> None:
        self.labeled, self.classes = labels >= 0, labels.clamp_min(0)
        self.nearest = nearest_rows(project(inputs, len(labels)), count)
        """[rows, count] row numbers."""

    @torch.no_grad()
    def averaged(self, ensemble: EnsembleTargets, share: float, rows: Tensor | None = None) -> Tensor:
        """Return [rows, classes] the ensemble's distribution of each row (default: all), averaged with its neighbors' mean.

        `share` is the weight of the neighbors. A labeled row counts as its label; one without a prediction counts as nothing.
        """
        rows = torch.arange(len(self.nearest), device=self.nearest.device) if rows is None else rows
        size = max(min(ROWS, AVERAGED // (ensemble.num_classes * (self.nearest.shape[1] + 1))), 1)
        found = []
        for own in torch.split(rows, size):
            every = torch.cat([own[:, None], self.nearest[own]], dim=1)
            flat = every.flatten()
            predicted = ensemble.get(flat).probabilities
            given = torch.zeros_like(predicted).scatter_(1, self.classes[flat, None], 1.0)
            known = torch.where(self.labeled[flat, None], given, predicted).view(*every.shape, -1)
            found.append(normalize((1 - share) * known[:, 0] + share * known[:, 1:].mean(dim=1)))
        return torch.cat(found)


@torch.no_grad()
def project(inputs: Pieces, num_rows: int) -> Tensor:
    """Return [rows, at most DIMENSIONS] vectors whose distances approximate those of the inputs."""
    features = next(iter(inputs())).flatten(1).shape[1]
    if features <= DIMENSIONS:
        return torch.cat([piece.flatten(1) for piece in inputs()])
    every = -(-num_rows // max(SAMPLE // features, 1))  # every n-th row, because rows may be sorted by class
    sample = torch.cat([piece.flatten(1)[::every] for piece in inputs()])
    with keep_random_state(sample.device):
        torch.manual_seed(0)
        components = torch.pca_lowrank(sample, q=min(DIMENSIONS, *sample.shape), center=False)[2]
    return torch.cat([functional.normalize(piece.flatten(1) @ components) for piece in inputs()])


@torch.no_grad()
def nearest_rows(vectors: Tensor, count: int) -> Tensor:
    """Return [rows, count] the nearest other rows of each, among all rows or an even selection of very many."""
    rows, every = len(vectors), -(-len(vectors) // CANDIDATES)
    candidates = vectors[::every]
    squares = candidates.square().sum(dim=1)
    found = []
    for own in torch.split(torch.arange(rows, device=vectors.device), max(BLOCK // len(candidates), 1)):
        distances = torch.addmm(squares, vectors[own], candidates.T, alpha=-2)  # up to each row's own square
        itself = own % every == 0
        distances[itself, own[itself] // every] = torch.inf
        found.append(every * distances.topk(max(min(count, len(candidates) - 1), 1), largest=False).indices)
    return torch.cat(found)
