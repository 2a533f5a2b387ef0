"""Measure a run: collect evidence of its errors on rows that it has not seen, and keep it in the run."""

import numpy as np
from numpy.typing import NDArray

from selfens.core import launcher
from selfens.data.rows import Labels, LazyRows
from selfens.data.split import FEWEST
from selfens.runs.evidence import Evidence
from selfens.runs.history import total_seconds
from selfens.runs.run import Run
from selfens.tools.baselines import predictions
from selfens.tools.folds import default_folds, evidence_by_folds, hurried
from selfens.tools.frozen import compared_data, frozen_predictions
from selfens.training.progress import Progress

SLOW, FOLDS_IF_SLOW = 60.0, 3  # seconds of training in a fold; with slower runs, fewer folds


def measure(run: Run, *, can_train: bool = True, limit: float | None = None, progress: Progress | None = None) -> None:
    """Keep evidence in a finished run: from its test rows, or from folds if these say more.

    Nothing is measured if there are no test rows and folds are impossible, or not wanted.

    Parameters
    ----------
    can_train
        Train once per fold if that says more.
    limit
        Seconds that folds may take, if there is a limit.
    """
    if run.evidence is not None or not run.finished:
        return
    tested = int((~copied_test_rows(run)).sum())
    folds = folds_for(run) if can_train and tested < min(FEWEST, len(run.labels.rows)) else 0
    if folds > 1 and (limit is None or folds * seconds_per_fold(run) <= limit):
        run.keep_evidence(evidence_by_folds(run.config, run.data().dataset, folds, hurry=True, progress=progress))
    elif tested:
        run.keep_evidence(evidence_on_test_rows(run))


def wants_measuring(run: Run, wanted: bool | None) -> bool:
    """Return whether to measure a run. By default only on the user's own data: results on public data sets are known."""
    return not run.config.source.is_public if wanted is None else wanted


def folds_for(run: Run) -> int:
    """Return how many folds to measure a run by; fewer than two if it cannot be trained again, or has too few labels."""
    if run.info.custom_network or run.info.custom_method or launcher.world_size() > 1:
        return 0
    most = FOLDS_IF_SLOW if seconds_per_fold(run) > SLOW else None
    return default_folds(run.labels.labels, most)


def seconds_per_fold(run: Run) -> float:
    """Return about how long it takes to train a fold."""
    return total_seconds(run.history) * hurried(run.config).schedule.epochs / run.config.schedule.epochs


def copied_test_rows(run: Run) -> NDArray[np.bool_]:
    """Return [test rows] True for copies and look-alikes of training rows: errors on them say nothing about other rows.

    All False if training rows repeat each other about as often, as in tables with few values: then so will rows to come.
    """
    dataset, found = run.data().dataset, run.inspection
    is_test, copied, repeated = (
        dataset.is_test,
        np.zeros(len(dataset.labels), bool),
        np.zeros(len(dataset.labels), bool),
    )
    for group in (*found.copies, *found.alike) if found is not None else ():
        rows = np.array(group)
        train = rows[~is_test[rows]]
        copied[rows] |= len(train) > 0
        repeated[train] |= len(train) > 1
    found_in_test = copied[dataset.test_rows]
    is_usual = len(found_in_test) > 0 and 2 * repeated[dataset.train_rows].mean() > found_in_test.mean()
    return found_in_test & (not is_usual)


def evidence_on_test_rows(run: Run, *, with_baselines: bool = True) -> Evidence:
    """Predict the test rows by the run, and by simple methods on the same rows and labels."""
    data, choice, others, notes = run.data(), run.labels, dict[str, Labels](), list[str]()
    if with_baselines:
        seen = choice.visited(data.num_rows, run.config.training.rows)
        compared = compared_data(run)
        inputs, labels = LazyRows([compared.inputs], seen), choice.training_labels(data.num_rows)[seen]
        others, notes = predictions(inputs, labels, compared.test_inputs, standardize=not data.encoder.is_scaled)
        others |= data.baselines(seen, labels) | frozen_predictions(run)
    return Evidence.of(
        copied=copied_test_rows(run),
        rows=np.arange(len(data.test_labels)),
        labels=data.test_labels,
        probabilities=run.test_probabilities,
        others=others,
        suggested=np.zeros(len(data.test_labels), dtype=bool),
        notes=tuple(notes),
    )
