"""Folds: each label judged by a network that has not seen it, for audits and comparisons; trains once per fold."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from selfens.config import Config
from selfens.core import IN_MEMORY, launcher
from selfens.core.randomness import FOLDS, stream
from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.labels import choose_labels
from selfens.data.rows import LazyRows, Source
from selfens.data.tabular import Columns
from selfens.errors import DataError, check_kind
from selfens.runs.run import Run
from selfens.tools.audit import Audit, Probabilities, rank
from selfens.tools.baselines import CHANCE, OURS, Verdict, judge, predictions
from selfens.training.loop import train
from selfens.training.progress import Progress, Silent, duration

USUAL = 5


class _Warnings(Progress):
    """Of what a run shows, only its warnings."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown

    def warn(self, message: str) -> None:
        self.shown.warn(message)


def audit_folds(config: Config, dataset: Dataset, folds: int = 5, *, progress: Progress | None = None) -> Audit:
    """The labels that `config` would train with, each judged by a run from which it was hidden."""
    return rank(*fold_predictions(config, dataset, folds, progress=progress))


def fold_predictions(
    config: Config, dataset: Dataset, folds: int = 5, *, progress: Progress | None = None
) -> tuple[Labels, Probabilities]:
    """The labels that were hidden once, and for each such row what was predicted then (zeros for the others).

    A hidden row stays in the training set, unlabeled. The only label of a class is never hidden. The runs are not kept.
    """
    labels, parts, remark = _divided(config, dataset, folds)
    for sentence in remark:
        (progress or Silent()).warn(sentence)
    probabilities = np.zeros((dataset.num_rows, dataset.num_classes))
    for fold in range(folds):
        hidden = parts == fold
        partly = _untested(dataset.with_labels(np.where(hidden, UNLABELED, labels)))
        with _trained(config, partly, fold, folds, progress) as run:
            probabilities[hidden] = run.predict_training_rows(partly)[hidden]
    return np.where(parts >= 0, labels, UNLABELED), probabilities


def compare_folds(
    config: Config,
    dataset: Dataset,
    folds: int = 5,
    *,
    network: nn.Module | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """What `config` trains beside the baselines, without test rows: each labeled row is predicted by models that never saw it.

    network  a module to train instead of the one the config names; it is copied, and gets the inputs that it was made for:
             the columns of a table are not fitted again, which might change their number
    """
    labels, parts, remark = _divided(config, dataset, folds)
    predicted: dict[str, Labels] = {}
    for fold in range(folds):
        hidden, seen = np.flatnonzero(parts == fold), np.flatnonzero(parts != fold)
        inputs, columns = (dataset.inputs, dataset.columns) if network is not None else _encoded_for(dataset, seen)
        partly = replace(
            _untested(dataset),
            inputs=LazyRows([inputs], seen),
            columns=columns,
            labels=labels[seen],
            test_inputs=LazyRows([inputs], hidden),
            test_labels=labels[hidden],
            row_names=(),
            extra_rows=int((seen >= dataset.main_rows).sum()),
        )
        with _trained(config, partly, fold, folds, progress, copy.deepcopy(network)) as run:
            ours = run.test_probabilities(partly).argmax(axis=1)
        arrays = (partly.inputs, partly.labels, partly.test_inputs)
        baselines, notes = predictions(*arrays, standardize=dataset.columns is None)
        for name, classes in {OURS: ours, **baselines}.items():
            predicted.setdefault(name, labels.copy())[hidden] = classes
    known = parts >= 0
    # The largest class of a fold's other rows may well be another one: with even classes it is the one that is hidden least.
    predicted[CHANCE][:] = np.bincount(labels[known]).argmax()
    every = {name: classes[known] for name, classes in predicted.items()}
    about = {"labels": int(known.sum()), "folds": folds, "images": dataset.is_images, "notes": [*remark, *notes]}
    return judge(every, labels[known], **about)


def _encoded_for(dataset: Dataset, seen: NDArray[np.int64]) -> tuple[Source, Columns | None]:
    """The inputs of all rows, and how they were made: of a table by what is fitted on the rows that are seen."""
    if dataset.table is None:
        return dataset.inputs, dataset.columns
    cells = dataset.table if dataset.row_numbers is None else dataset.table.loc[dataset.row_numbers]
    columns = Columns.fit(cells.iloc[seen])
    return columns.encode(cells)[0], columns


def usual_folds(labels: Labels) -> int:
    """Five, or as many as there are labels to hide; less than two if folds cannot be made. `labels` may have -1 for unknown."""
    return min(USUAL, int(_can_be_hidden(labels).sum()))


def _can_be_hidden(labels: Labels) -> NDArray[np.bool_]:
    """The rows whose label is not the only one of its class."""
    known = labels != UNLABELED
    return np.asarray(known & (np.bincount(labels[known], minlength=1)[labels] > 1))


def _divided(config: Config, dataset: Dataset, folds: int) -> tuple[Labels, NDArray[np.int64], list[str]]:
    """The labels that `config` would train with, the fold of each row, -1 if it is never hidden, and a remark on these."""
    check_kind("config", config, Config, "a Config, such as that of a run: load_run(path).config")
    launcher.check_single_process("cross-validation")
    label_seed, split_seed = config.seed.of("labels"), config.seed.of("split")
    choice = choose_labels(dataset, config.data, label_seed=label_seed, split_seed=split_seed)
    labels = choice.known_labels(dataset.num_rows)
    parts = _fold_numbers(labels, folds, label_seed)
    alone = [f"'{dataset.classes[number]}'" for number in labels[(labels != UNLABELED) & (parts < 0)]]
    remark = f"Never held out, because the class has only one label: {', '.join(alone[:8])}."
    return labels, parts, [remark] if alone else []


@contextmanager
def _trained(
    config: Config,
    dataset: Dataset,
    fold: int,
    folds: int,
    progress: Progress | None,
    network: nn.Module | None = None,
) -> Iterator[Run]:
    """A run on all labels of the dataset, as long as it is needed."""
    own = config.with_values(
        "data", labels=None, label_choice="balanced", labels_file=None, label_noise=0.0, validation=0.0
    )
    shown, began = progress or Silent(), time.perf_counter()
    if not fold:
        epochs = f"{config.schedule.epochs:,} epoch{'s' * (config.schedule.epochs > 1)}"
        shown.say(f"training {folds} times for {epochs}, each time with part of the labels held out")
    with tempfile.TemporaryDirectory() as folder:
        place = config.method.place
        if place and getattr(config.method, place) not in IN_MEMORY:  # that file belongs to another run
            own = own.with_values("method", **{place: str(Path(folder) / "targets")})
        name = Path(folder) / f"fold-{fold + 1}-of-{folds}"
        try:
            told = Progress() if fold else _Warnings(shown)  # the others would warn of the same
            run = train(own, name, dataset=dataset, network=network, progress=told)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped in fold {fold + 1} of {folds}; nothing was written; run it again to start over."
            ) from None
        taken = time.perf_counter() - began
        shown.say(f"fold {fold + 1}/{folds}  {duration(taken)}  {duration(taken * (folds - fold - 1))} left")
        yield run


def _untested(dataset: Dataset) -> Dataset:
    """The dataset without its test rows, so that no time goes into testing, nor its unreadable files listed again."""
    inputs, labels = dataset.test_inputs[:0], dataset.test_labels[:0]
    return replace(dataset, test_inputs=inputs, test_labels=labels, test_row_names=(), unreadable=())


def _fold_numbers(labels: Labels, folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each labeled row, -1 elsewhere and for the only label of a class; each class is divided evenly."""
    can_be_hidden = _can_be_hidden(labels)
    most = int(can_be_hidden.sum())
    if most < 2:
        raise DataError(
            "no class has more than one labeled row, so none can be hidden and there can be no folds; label more rows."
        )
    if not 2 <= folds <= most:
        raise DataError(
            f"{folds} folds were asked for; expected 2 to {most:,}, the number of labels that can be hidden."
        )
    random = stream(seed, FOLDS)
    numbers = np.full(len(labels), -1)
    dealt = 0
    for number in np.unique(labels[can_be_hidden]):
        members = random.permutation(np.flatnonzero(labels == number))
        numbers[members] = (dealt + np.arange(len(members))) % folds
        dealt += len(members)
    return numbers
