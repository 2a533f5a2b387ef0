"""Selection: which rows to label next, from encoded rows and, once there is a model, what it predicts.

A labeled row *covers* the rows that are like it. `cover` takes, one after another, the row that covers most of what is not yet
covered, where a row counts as much as the model is uncertain of it; without a model all count the same. So from zero it takes
typical rows of different clusters, the largest first, and each beginning of the list is a good list. Later it takes rows that
stand for many uncertain ones. A row that is far from everything covers only itself. Near-duplicates count once together,
and at most one of them is taken.

Another way to choose is a function like these and a line in `WAYS`. Plain numpy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.core.randomness import SUGGESTED, stream
from selfens.data.dataset import UNLABELED
from selfens.data.rows import Array, Labels, Rows, pieces
from selfens.errors import ConfigError, DataError, check_type, unknown_name
from selfens.runs.novelty import vectors

DIMENSIONS = 64  # rows of more features are projected onto their principal components, and compared by their angle
LARGEST = 5000  # rows that are compared with each other; of more, a sample
NEIGHBOR = 20  # how far away the rows are that a row covers: the median distance to the 20th nearest
ALIKE = 0.25  # of the median distance to the nearest other row; nearer ones are near-duplicates
COPY = 1e-4  # squared distances below this part of that are rounding errors
PIECE = 1000

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """What a way to choose knows.

    Parameters
    ----------
    rows
        [rows, dimensions] vectors such that near ones are alike; see `embed`.
    known
        [rows] True for labeled rows.
    usable
        [rows] False for rows that nobody should label, such as blank images.
    uncertainty
        [rows] 1 less the margin between the two most probable classes; None without a model.
    """

    rows: NDArray[np.float32]
    known: NDArray[np.bool_]
    usable: NDArray[np.bool_]
    uncertainty: Numbers | None = None
    seed: int = 0

    @property
    def candidates(self) -> Rows:
        return np.flatnonzero(self.usable & ~self.known)


def embed(inputs: Array, *, standardize: bool = True) -> NDArray[np.float32]:
    """Return [rows, at most DIMENSIONS] vectors whose distances say how unlike encoded rows are.

    Parameters
    ----------
    standardize
        Scale features first, because they are not on one scale.
    """
    from sklearn.decomposition import PCA

    made = np.concatenate([vectors(piece).numpy() for piece in pieces(inputs, PIECE)]).astype(np.float32)
    if standardize:
        center, scale = made.mean(axis=0, dtype=np.float64), made.std(axis=0, dtype=np.float64)
        scale[scale <= 1e-6 * np.abs(center)] = 1.0
        made = ((made - center) / np.where(scale > 0, scale, 1.0)).astype(np.float32)
    if made.shape[1] > DIMENSIONS and made.any():
        sample = made[:: 1 + len(made) // (4 * LARGEST)]
        width = min(DIMENSIONS, len(sample))
        made = PCA(width, svd_solver="randomized", random_state=0).fit(sample).transform(made)
        made /= np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(made, dtype=np.float32)


def uncertainty_of(probabilities: NDArray[np.floating[Any]]) -> Numbers:
    """Return the entropy of each row over its maximum: from 0, certain, to 1, all classes equally probable.

    >>> uncertainty_of(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    shares = np.asarray(probabilities, dtype=np.float64)
    logs = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
    return np.asarray(np.abs((shares * logs).sum(axis=1)) / np.log(max(shares.shape[1], 2)))


def margin_of(probabilities: NDArray[np.floating[Any]]) -> Numbers:
    """Return how much more probable the best class of each row is than the second best."""
    ranked = np.sort(np.asarray(probabilities, dtype=np.float64), axis=1)
    return np.asarray(ranked[:, -1] - (ranked[:, -2] if ranked.shape[1] > 1 else 0))


# Ways to choose


def cover(pool: Pool, count: int) -> Rows:
    """Take the rows that cover the most of what is not covered yet; see the module."""
    rows = pool.candidates
    if len(rows) > LARGEST:
        rows = np.sort(stream(pool.seed, SUGGESTED, len(rows)).permutation(rows)[:LARGEST])
    if len(rows) < 2:
        return rows[:count]
    x = pool.rows[rows]
    squares, width, limit = _compared(x)
    weights = 1 / (squares <= limit).sum(axis=1, dtype=np.float32)
    if pool.uncertainty is not None:
        weights *= pool.uncertainty[rows].astype(np.float32)
    covered, gains = np.zeros(len(rows), np.float32), np.zeros(len(rows))
    for some in np.array_split(np.flatnonzero(pool.known), 1 + int(pool.known.sum()) // PIECE):
        if len(some):
            nearest = _squares(x, pool.rows[some]).min(axis=1)
            covered = np.maximum(covered, np.exp(-nearest / width))
            gains[nearest <= limit] = -1
    likeness = np.exp(squares / -width)
    for start in range(0, len(rows), PIECE):
        gains[start : start + PIECE] += np.maximum(likeness[start : start + PIECE] - covered, 0) @ weights
    gains[gains < 0] = -1
    taken: list[int] = []
    while len(taken) < count and gains.max() >= 0:
        best = int(gains.argmax())
        gains[best] = np.maximum(likeness[best] - covered, 0) @ weights  # gains only shrink, so others need no update
        if gains.argmax() == best:
            taken.append(best)
            covered = np.maximum(covered, likeness[best])
            gains[squares[best] <= limit] = -1
    return np.asarray(rows[taken])


def near_duplicates(rows: NDArray[np.float32], some: Rows) -> list[tuple[int, int]]:
    """Return the pairs among some rows that are near-duplicates, as near as few of all rows are."""
    sample = rows[:: 1 + len(rows) // LARGEST]
    if len(sample) < 2 or len(some) < 2:
        return []
    limit, found = _compared(sample)[2], list[tuple[int, int]]()
    for start in range(0, len(some), PIECE):
        near = _squares(rows[some[start : start + PIECE]], rows[some]) <= limit
        found += [(int(some[start + one]), int(some[two])) for one, two in np.argwhere(near) if start + one < two]
    return found


def _compared(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, float]:
    """Return the squared distances of rows, how far a row covers others, and how near near-duplicates are, both squared."""
    squares = _squares(x, x)
    np.fill_diagonal(squares, np.inf)
    far = min(NEIGHBOR, len(x) - 1) - 1
    ordered = np.partition(squares, sorted({0, far}), axis=1)
    width = max(float(np.median(ordered[:, far])), float(np.finfo(np.float32).tiny))
    apart = ordered[:, 0][ordered[:, 0] > COPY * width]
    np.fill_diagonal(squares, 0.0)
    return squares, width, ALIKE**2 * float(np.median(apart)) if len(apart) else COPY * width


def _squares(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [rows of one, rows of other] squared distances."""
    sums = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)
    return np.asarray(np.maximum(sums - 2 * one @ other.T, 0))


def least_certain(pool: Pool, count: int) -> Rows:
    """Take the rows that the model is least certain of, however much they are alike; without a model, random ones."""
    if pool.uncertainty is None:
        return at_random(pool, count)
    rows = pool.candidates
    return np.asarray(rows[np.argsort(-pool.uncertainty[rows], kind="stable")][:count])


def at_random(pool: Pool, count: int) -> Rows:
    """Draw rows, junk included: errors can be measured on them."""
    random = stream(pool.seed, SUGGESTED, int(pool.known.sum()))  # another draw once more rows are labeled
    return random.permutation(np.flatnonzero(~pool.known))[:count]


WAYS: dict[str, Callable[[Pool, int], Rows]] = {"cover": cover, "random": at_random, "uncertain": least_certain}


@dataclass(frozen=True, eq=False)
class Suggestions:
    """Rows to label next, in the order in which to label them."""

    rows: Rows
    predicted: Labels
    """`UNLABELED` without a model."""
    uncertainty: Numbers
    """From 0, certain, to 1, all classes equally probable; NaN without a model."""


def suggest(
    inputs: Array,
    count: int,
    labels: Labels | None = None,
    probabilities: NDArray[np.floating[Any]] | None = None,
    *,
    usable: NDArray[np.bool_] | None = None,
    standardize: bool = True,
    way: str = "cover",
    seed: int = 0,
) -> Suggestions:
    """Suggest up to `count` unlabeled rows to label next.

    Parameters
    ----------
    inputs
        [rows, ...] encoded rows.
    labels
        [rows] class numbers, -1 if unknown; None if nothing is labeled.
    probabilities
        [rows, classes] what a model predicts for all rows; None without a model.
    usable
        [rows] False for rows that nobody should label, such as blank images.
    way
        A name in `WAYS`.

    >>> suggest(np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2], [9.3]]), 2).rows
    array([3, 1])
    """
    check_type("count", count, Integral, "a whole number of rows")
    if count < 1:
        raise DataError(f"{count:,} rows were asked for; expected at least 1.")
    if way not in WAYS:
        raise ConfigError(unknown_name("way to choose rows", way, WAYS))
    known = np.zeros(len(inputs), dtype=bool) if labels is None else np.asarray(labels) != UNLABELED
    shares = None if probabilities is None else np.asarray(probabilities)
    if known.shape != (len(inputs),) or (shares is not None and shares.shape[:1] != known.shape):
        found = f"{len(inputs):,} rows, {len(known):,} labels" + (
            "" if shares is None else f", {len(shares):,} predictions"
        )
        raise DataError(f"{found}; expected a label and a prediction for each row.")
    doubt = None if shares is None else 1 - margin_of(shares)
    vectors = embed(inputs, standardize=standardize) if way == "cover" else np.zeros((len(inputs), 0), np.float32)
    if usable is None or usable.mean() <= 0.5:  # if most rows seem to be junk, it is how these data are
        usable = np.ones(len(known), dtype=bool)
    pool = Pool(rows=vectors, known=known, usable=usable, uncertainty=doubt, seed=seed)
    return described(WAYS[way](pool, count), shares)


def described(rows: Rows, probabilities: NDArray[np.floating[Any]] | None) -> Suggestions:
    """Return chosen rows with what a model predicts for them, if there is one."""
    if probabilities is None:
        return Suggestions(rows, np.full(len(rows), UNLABELED), np.full(len(rows), np.nan))
    some = probabilities[rows]
    return Suggestions(rows, some.argmax(axis=1), uncertainty_of(some))
