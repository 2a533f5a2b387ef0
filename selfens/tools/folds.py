"""Folds: each label judged by a network that has not seen it, for audits and comparisons; trains once per fold."""

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

from selfens import encoders
from selfens.config import Config
from selfens.core import launcher
from selfens.core.device import resolve_device
from selfens.core.randomness import FOLDS, stream
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.labels import choose_labels
from selfens.data.rows import Labels
from selfens.encoders import ENCODERS
from selfens.errors import DataError, check_type, listed, plural
from selfens.runs.run import Run
from selfens.tools.audit import Audit, Probabilities, rank
from selfens.tools.baselines import CHANCE, OURS, Comparison, compare, predictions
from selfens.training.loop import train
from selfens.training.progress import Progress, WarningsOnly, duration

DEFAULT_FOLDS = 5


def audit_folds(config: Config, dataset: Dataset, folds: int = 5, *, progress: Progress | None = None) -> Audit:
    """Rank the labels that `config` would train with, each judged by a run from which it was hidden."""
    return rank(*fold_predictions(config, dataset, folds, progress=progress))


def fold_predictions(
    config: Config, dataset: Dataset, folds: int = 5, *, progress: Progress | None = None
) -> tuple[Labels, Probabilities]:
    """Return the labels that were hidden once, and the probabilities predicted meanwhile (zeros for the other rows).

    A hidden row stays in the training set, unlabeled. The only label of a class is never hidden. The runs are not kept.
    """
    labels, fold_of, remarks = _divide(config, dataset, folds)
    for sentence in remarks:
        (progress or WarningsOnly()).warn(sentence)
    config, dataset = _encode_once(config, dataset)
    every, nothing = np.arange(dataset.num_train), np.empty(0, dtype=np.int64)
    probabilities = np.zeros((dataset.num_train, dataset.num_classes))
    for fold in range(folds):
        hidden = fold_of == fold
        partly = dataset.with_split(every, nothing, np.where(hidden, UNLABELED, labels))
        with _trained(config, partly, fold, folds, progress) as run:
            probabilities[hidden] = run.predict_training_rows()[hidden]
    return np.where(fold_of >= 0, labels, UNLABELED), probabilities


def compare_folds(
    config: Config,
    dataset: Dataset,
    folds: int = 5,
    *,
    network: nn.Module | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare `config` with the baselines by cross-validation: each label is predicted by models not trained on it.

    Parameters
    ----------
    network
        A module to train instead of the one the config names; it is copied. It gets the inputs it was made for, so the
        encoder is fitted once.
    """
    labels, fold_of, remarks = _divide(config, dataset, folds)
    standardize = not ENCODERS.find(config.encoder.name).is_scaled
    config, dataset = _encode_once(config, dataset, always=network is not None)
    predicted: dict[str, Labels] = {}
    for fold in range(folds):
        hidden, seen = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        partly = dataset.with_split(seen, hidden, labels)
        with _trained(config, partly, fold, folds, progress, copy.deepcopy(network)) as run:
            ours, data = run.test_probabilities.argmax(axis=1), run.data()
        baselines, notes = predictions(data.inputs, data.labels, data.test_inputs, standardize=standardize)
        for name, classes in {OURS: ours, **baselines}.items():
            predicted.setdefault(name, labels.copy())[hidden] = classes
    known = fold_of >= 0
    # In a fold, the largest class of the other rows is the one that is hidden least.
    predicted[CHANCE][:] = np.bincount(labels[known]).argmax()
    every = {name: classes[known] for name, classes in predicted.items()}
    about = {"labels": int(known.sum()), "folds": folds, "is_images": data.is_images, "notes": (*remarks, *notes)}
    return compare(every, labels[known], **about)


def _encode_once(config: Config, dataset: Dataset, *, always: bool = False) -> tuple[Config, Dataset]:
    """Return the encoded rows as a dataset, unless the encoder must be fitted again in every fold."""
    if config.encoder.name == "identity" or (ENCODERS.find(config.encoder.name).learns and not always):
        return config, dataset
    encoder = encoders.build(config.encoder, resolve_device(config.training.device))
    encoder.fit(dataset.raw, dataset.train_rows)
    inputs = encoder.transform(dataset.raw).inputs
    return replace(config, encoder=ENCODERS.options("identity")), replace(dataset, raw=inputs)


def default_folds(labels: Labels) -> int:
    """Return five, or as many as there are labels to hide (-1 is unknown); fewer than two if folds cannot be made."""
    return min(DEFAULT_FOLDS, int(_can_be_hidden(labels).sum()))


def _can_be_hidden(labels: Labels) -> NDArray[np.bool_]:
    """Return the rows whose label is not the only one of its class."""
    known = labels != UNLABELED
    return np.asarray(known & (np.bincount(labels[known], minlength=1)[labels] > 1))


def _divide(config: Config, dataset: Dataset, folds: int) -> tuple[Labels, NDArray[np.int64], list[str]]:
    """Return the labels that `config` would train with, the fold of each row (-1 if it is never hidden), and remarks."""
    check_type("config", config, Config, "a Config, such as that of a run: load_run(path).config")
    launcher.check_single_process("cross-validation")
    label_seed, split_seed = config.seed.of("labels"), config.seed.of("split")
    choice = choose_labels(dataset, config.labels, label_seed=label_seed, split_seed=split_seed)
    labels = choice.known_labels(dataset.num_train)
    can_be_hidden = _can_be_hidden(labels)
    limit = int(can_be_hidden.sum())
    if limit < 2:
        raise DataError("no class has more than one labeled row, so there can be no folds; label more rows.")
    if not 2 <= folds <= limit:
        raise DataError(f"{folds} folds were asked for; expected 2 to {limit:,}, as many as labels can be hidden.")
    random, fold_of, dealt = stream(label_seed, FOLDS), np.full(len(labels), -1), 0
    for number in np.unique(labels[can_be_hidden]):  # divides each class evenly
        members = random.permutation(np.flatnonzero(labels == number))
        fold_of[members] = (dealt + np.arange(len(members))) % folds
        dealt += len(members)
    alone = [f"'{dataset.classes[number]}'" for number in labels[(labels != UNLABELED) & (fold_of < 0)]]
    remark = f"Never held out, because the class has only one label: {listed(alone, 8)}."
    return labels, fold_of, [remark] if alone else []


@contextmanager
def _trained(
    config: Config, dataset: Dataset, fold: int, folds: int, progress: Progress | None, network: nn.Module | None = None
) -> Iterator[Run]:
    """Train on all labels of the dataset, in a directory that is removed when the context ends."""
    shown, began = progress or WarningsOnly(), time.perf_counter()
    if fold == 0:
        epochs = plural(config.schedule.epochs, "epoch")
        shown.say(f"training {folds} times for {epochs}, each time with part of the labels held out")
    config = config.with_values("labels", count=None, choice="balanced", file=None, noise=0.0, validation=0.0)
    with tempfile.TemporaryDirectory(prefix="selfens-") as folder:
        path, show = Path(folder) / f"fold-{fold + 1}-of-{folds}", Progress()
        if fold == 0:  # the other folds would repeat its warnings
            show.warn = shown.warn  # type: ignore[method-assign]
        try:
            run = train(config, path, dataset=dataset, network=network, progress=show)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped in fold {fold + 1} of {folds}; nothing was written.") from None
        taken = time.perf_counter() - began
        shown.say(f"fold {fold + 1}/{folds}  {duration(taken)}  {duration(taken * (folds - fold - 1))} left")
        yield run
