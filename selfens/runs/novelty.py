"""Novelty: how unlike the training rows a row is.

The distance of a row to its fifth nearest training row is compared with the same distance for training rows. A novelty of 0.99
means that 99 % of the training rows are nearer to the others. It needs no labels, and says nothing about the class: the network
may be confident that a photo of a car is a cat, although the photo is unlike anything it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from selfens.data.rows import Array, pieces
from selfens.errors import RunError
from selfens.files.tensors import load_tensors, save_tensors

NEIGHBOR = 5  # not 1, because the nearest row may be a copy
REFERENCE = 4000  # training rows to compare others with
ANGLES_FROM = 64  # with more features than this, rows are compared by their angle
LARGEST_IMAGE = 16  # pixels a side; larger ones are averaged down
PIECE = 1000
CONSTANT = 1e-6  # a feature that varies by less than this, relative to its mean, is not scaled
FAR, FAR_ANGLE = 3.5, 2.5
"""Rows are far from all others if their distance exceeds the 95 % quantile by this multiple of what that is above the median.
With angles, which are bounded, it is the smaller one. Ordinary data stay below 2.5 (digits, iris, wine, breast cancer) and
1.5 (CIFAR-10)."""
FEWEST, FLAT = 50, 0.25  # rows, and a share of the quantile that its distance from the median counts as at least
CLIP = 6.0  # standard deviations; a rare value of one feature, such as a pixel that is nearly always 0, puts no row far off
FILE = "novelty.safetensors"


class Novelty:
    """Compares rows with training rows.

    Parameters
    ----------
    reference
        [rows, features] the `vectors` of training rows, centered and scaled.
    center, scale
        [features] a vector becomes (vector - center) / scale.
    """

    def __init__(self, reference: Tensor, center: Tensor, scale: Tensor) -> None:
        self.has_angles = reference.shape[1] > ANGLES_FROM
        # float16 takes half the memory, but only unit vectors fit its range and precision.
        self.reference = reference.half() if self.has_angles else reference.float()
        self.center, self.scale = center, scale

    @classmethod
    def fit(cls, inputs: Array, *, standardize: bool = False) -> Novelty:
        """Keep the training rows, or an even sample if there are more than `REFERENCE`.

        Parameters
        ----------
        standardize
            Scale features first, unless there are enough of them for rows to be compared by their angle.
        """
        rows = np.linspace(0, len(inputs) - 1, min(len(inputs), REFERENCE)).astype(np.int64)
        made = torch.cat([vectors(piece) for piece in pieces(inputs, PIECE, rows)])
        center, scale = made.new_zeros(made.shape[1]).double(), made.new_ones(made.shape[1]).double()
        if standardize and made.shape[1] <= ANGLES_FROM:
            center, scale = made.double().mean(dim=0), made.double().std(dim=0, correction=0)
            scale[scale <= CONSTANT * center.abs()] = 1.0
        return cls((made - center) / scale, center, scale)

    @cached_property
    def distances(self) -> Tensor:
        """[reference rows] the distance of each from its fifth nearest among the others, ascending."""
        return self._distances(self.reference.float(), itself=True).sort().values

    def score(self, inputs: Array) -> NDArray[np.float64]:
        """Return the novelty of each row, from 0 to 1."""
        made = [self._distances(rows) for rows in self._scaled(inputs)]
        nearer = torch.searchsorted(self.distances, torch.cat(made) if made else torch.zeros(0))
        return np.asarray(nearer.double().numpy() / len(self.distances))

    def remoteness(self, inputs: Array) -> NDArray[np.float64]:
        """Return the distance of each training row, as a multiple of that from which a row is far from all others."""
        near = self if self.has_angles else Novelty(self.reference.clamp(-CLIP, CLIP), self.center, self.scale)
        clip = np.inf if self.has_angles else CLIP
        made = [near._distances(rows.clamp(-clip, clip)) for rows in self._scaled(inputs)]
        middle, most, largest = np.quantile(near.distances.numpy(), [0.5, 0.95, 1.0])
        limit = most + (FAR_ANGLE * (most - middle) if self.has_angles else FAR * max(most - middle, FLAT * most))
        if len(near.distances) < FEWEST or not most:  # too few to tell, or nearly all are copies
            limit = 2 * largest or 1.0
        return np.asarray((torch.cat(made) if made else torch.zeros(0)).double().numpy() / limit)

    def _scaled(self, inputs: Array) -> Iterator[Tensor]:
        return (((vectors(piece) - self.center) / self.scale).float() for piece in pieces(inputs, PIECE))

    def _distances(self, rows: Tensor, *, itself: bool = False) -> Tensor:
        """Return the distance of each row from its fifth nearest reference row; with `itself`, not counting the row itself."""
        count, others = min(NEIGHBOR + itself, len(self.reference)), self.reference.float()
        # Matrix products are faster, but lose small differences between large numbers.
        how = "use_mm_for_euclid_dist_if_necessary" if self.has_angles else "donot_use_mm_for_euclid_dist"
        parts = (torch.cdist(part, others, compute_mode=how) for part in torch.split(rows, PIECE))
        return torch.cat([part.topk(count, largest=False).values[:, -1] for part in parts])

    def save(self, folder: Path) -> None:
        save_tensors(folder / FILE, {"reference": self.reference, "center": self.center, "scale": self.scale})

    @classmethod
    def load(cls, folder: Path, input_shape: tuple[int, ...]) -> Novelty | None:
        """Return what `save` wrote for inputs of this shape; None if the file is missing or damaged."""
        try:
            tensors = load_tensors(folder / FILE)[0]
            reference, center, scale = (tensors[name] for name in ("reference", "center", "scale"))
        except (RunError, KeyError):
            return None
        width = vectors(np.zeros((1, *input_shape), np.float32)).shape[1]
        fit_together = reference.ndim == 2 and center.shape == scale.shape == reference.shape[1:] == (width,)
        are_numbers = all(each.is_floating_point() and each.isfinite().all() for each in (reference, center, scale))
        return cls(reference, center, scale) if fit_together and len(reference) > 1 and are_numbers else None


def vectors(inputs: NDArray[Any]) -> Tensor:
    """Return a vector for each input, so that similar inputs have vectors near each other."""
    rows = torch.from_numpy(np.ascontiguousarray(inputs)).float()
    if rows.ndim == 4 and max(rows.shape[2:]) > LARGEST_IMAGE:
        rows = torch.nn.functional.adaptive_avg_pool2d(rows, LARGEST_IMAGE)
    rows = rows.flatten(1)
    return normalize(rows) if rows.shape[1] > ANGLES_FROM else rows
