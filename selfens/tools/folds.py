"""Folds: each label judged by a network that has not seen it; trains once per fold."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.config import Config
from selfens.core import IN_MEMORY, launcher
from selfens.core.randomness import FOLDS, stream
from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.labels import choose_labels
from selfens.errors import DataError, check_kind
from selfens.tools.audit import Audit, Probabilities, rank
from selfens.training.loop import train
from selfens.training.progress import Progress


def audit_folds(config: Config, dataset: Dataset, folds: int = 5, *, progress: Progress | None = None) -> Audit:
    """The labels that `config` would train with, each judged by a run from which it was hidden."""
    return rank(*fold_predictions(config, dataset, folds, progress=progress))


def fold_predictions(
    config: Config, dataset: Dataset, folds: int = 5, *, progress: Progress | None = None
) -> tuple[Labels, Probabilities]:
    """The labels in use, and for each labelled row what was predicted without its label (zeros for the others).

    A hidden row stays in the training set, unlabeled. The runs are not kept.
    """
    check_kind("config", config, Config, "a Config, such as that of a run: load_run(path).config")
    launcher.check_single_process("an audit by folds")
    label_seed, split_seed = config.seed.of("labels"), config.seed.of("split")
    choice = choose_labels(dataset, config.data, label_seed=label_seed, split_seed=split_seed)
    labels = choice.known_labels(dataset.num_rows)
    parts = _fold_numbers(labels, dataset.classes, folds, label_seed)
    explicit = config.with_values(
        "data", labels=None, label_choice="balanced", labels_file=None, label_noise=0.0, validation=0.0
    )
    probabilities = np.zeros((dataset.num_rows, dataset.num_classes))
    for fold in range(folds):
        hidden = parts == fold
        partly = _untested(dataset.with_labels(np.where(hidden, UNLABELED, labels)))
        with tempfile.TemporaryDirectory() as folder:
            own = explicit
            place = config.method.place
            if place and getattr(config.method, place) not in IN_MEMORY:  # that file belongs to another run
                own = explicit.with_values("method", **{place: str(Path(folder) / "targets")})
            try:
                run = train(own, Path(folder) / f"fold-{fold + 1}-of-{folds}", dataset=partly, progress=progress)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"stopped in fold {fold + 1} of {folds}; nothing was written; call again to start over."
                ) from None
            probabilities[hidden] = run.predict_training_rows(partly)[hidden]
    return labels, probabilities


def _untested(dataset: Dataset) -> Dataset:
    """The dataset without its test rows, so that no time goes into testing, nor its unreadable files listed again."""
    inputs, labels = dataset.test_inputs[:0], dataset.test_labels[:0]
    return replace(dataset, test_inputs=inputs, test_labels=labels, test_row_names=(), unreadable=())


def _fold_numbers(labels: Labels, classes: Sequence[str], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each labelled row, -1 elsewhere; each class is divided evenly."""
    labelled = int((labels != UNLABELED).sum())
    if not 2 <= folds <= labelled:
        raise DataError(f"{folds} folds were asked for; expected 2 to {labelled:,}, the number of labelled rows.")
    random = stream(seed, FOLDS)
    numbers = np.full(len(labels), -1)
    dealt = 0
    for number, name in enumerate(classes):
        members = random.permutation(np.flatnonzero(labels == number))
        if len(members) < 2:
            raise DataError(
                f"class '{name}' has labelled rows: {len(members)}; expected at least 2, so that one is left when another is "
                "hidden."
            )
        numbers[members] = (dealt + np.arange(len(members))) % folds
        dealt += len(members)
    return numbers
