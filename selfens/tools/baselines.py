"""Baselines: simple methods on the same labels. Chance, logistic regression, self-training with it, and trees for vectors.

They are scikit-learn's, fitted on the rows and labels that a run saw, and tested on the rows that it was tested on. Inputs are
flattened and standardized by the training rows. To keep this within seconds, images are reduced to 16 pixels a side, very many
rows are thinned out and very large fits stop early; notes say so.
"""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import adaptive_avg_pool2d

from selfens.data.arrays import PIECE
from selfens.data.dataset import UNLABELED
from selfens.data.rows import Array, Labels, Rows, pieces

CHANCE, LOGISTIC, SELF_TRAINING = "chance (largest class)", "logistic regression", "self-training"
FOREST, BOOSTED = "random forest", "boosted trees"
MAX_TREE_FEATURES = 256  # trees are slow on more, and seldom good
LEAF, ROUNDS, BOOSTED_TREES = (
    3,
    60,
    600,
)  # of boosted trees: least rows of a leaf, so few for few labels; rounds; trees in all
MAX_SIDE = 16  # pixels
MAX_LABELED, MAX_UNLABELED = 40_000_000, 4_000_000  # numbers, that is rows x features
WORK, MIN_ITERATIONS, MAX_ITERATIONS = 1e10, 20, 1000  # of one fit; work is rows x features x classes x iterations


def predictions(
    inputs: Array, labels: Labels, test_inputs: Array, *, standardize: bool = True
) -> tuple[dict[str, Labels], list[str]]:
    """Return what each baseline predicts for the test rows, by name, and notes on how it was fitted.

    Parameters
    ----------
    labels
        Of all rows of the inputs, -1 if unknown. If none is unknown there is no self-training.
    standardize
        False if the inputs are on one scale already.
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler
    from sklearn.semi_supervised import SelfTrainingClassifier
    from threadpoolctl import threadpool_limits

    labeled, unlabeled = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    width = _flat(test_inputs[:1]).shape[1]
    some, others = _thinned(labeled, MAX_LABELED // width), _thinned(unlabeled, MAX_UNLABELED // width)
    rows = np.sort(np.concatenate([some, others]))
    # More threads would gain little, and on a busy machine they wait for each other.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # a note says if a fit stopped early
        scaler, y = StandardScaler(with_mean=standardize, with_std=standardize), labels[rows]
        x = scaler.fit_transform(np.concatenate([_flat(piece) for piece in pieces(inputs, PIECE, rows)]))
        known, work = y != UNLABELED, width * len(np.unique(labels))
        limits = [int(np.clip(WORK / (count * work), MIN_ITERATIONS, MAX_ITERATIONS)) for count in (len(some), len(x))]
        # In a large fit, a round of self-training starts where the one before ended, which takes a fifth of the time.
        logistic, base = (LogisticRegression(max_iter=n, warm_start=n < MAX_ITERATIONS) for n in limits)
        models = {LOGISTIC: logistic.fit(x[known], y[known])}
        if len(unlabeled):
            models[SELF_TRAINING] = SelfTrainingClassifier(base).fit(x, y)
        if inputs.ndim == 2 and width <= MAX_TREE_FEATURES:
            models[FOREST] = RandomForestClassifier(random_state=0).fit(x[known], y[known])
            rounds = int(np.clip(BOOSTED_TREES // len(np.unique(y[known])), 1, ROUNDS))
            boosted = HistGradientBoostingClassifier(min_samples_leaf=LEAF, max_iter=rounds, random_state=0)
            models[BOOSTED] = boosted.fit(x[known], y[known])
        models[CHANCE] = DummyClassifier(strategy="most_frequent").fit(x[known], y[known])
        tested = [scaler.transform(_flat(piece)) for piece in pieces(test_inputs, PIECE)]
        found = {name: np.concatenate([model.predict(part) for part in tested]) for name, model in models.items()}
    notes = {
        f"The baselines see images reduced to {MAX_SIDE} pixels a side.": _is_large(inputs),
        f"They see {len(some):,} of the {len(labeled):,} labeled rows.": len(some) < len(labeled),
        f"Self-training sees {len(others):,} of {len(unlabeled):,} unlabeled rows.": len(others) < len(unlabeled),
        f"Logistic regression was stopped after {limits[0]:,} iterations.": logistic.n_iter_.max() >= limits[0],
    }
    return found, [note for note, holds in notes.items() if holds]


def _thinned(rows: Rows, limit: int) -> Rows:
    """Return all rows, or `limit` evenly spaced ones if there are more."""
    limit = max(limit, 1)
    return rows if len(rows) <= limit else rows[np.linspace(0, len(rows) - 1, limit).astype(np.int64)]


def _is_large(inputs: Array) -> bool:
    return inputs.ndim == 4 and max(inputs.shape[2:]) > MAX_SIDE


def _flat(inputs: NDArray[Any]) -> NDArray[np.float64]:
    """Return a vector for each row; large images are averaged down."""
    if _is_large(inputs):
        height, width = (min(side, MAX_SIDE) for side in inputs.shape[2:])
        inputs = adaptive_avg_pool2d(torch.from_numpy(inputs.astype(np.float32)), (height, width)).numpy()
    return inputs.reshape(len(inputs), -1).astype(np.float64)
