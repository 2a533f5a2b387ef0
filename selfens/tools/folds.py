"""Folds: evidence from labeled rows, each predicted by a model from which it was held out. Trains once per fold."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

from selfens import encoders
from selfens.config import Config
from selfens.core import launcher
from selfens.core.device import resolve_device
from selfens.core.randomness import FOLDS, stream
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.inspection import find_look_alikes, groups_of
from selfens.data.labels import choose_labels
from selfens.data.prior import with_prior
from selfens.data.rows import Labels, take
from selfens.encoders import ENCODERS
from selfens.errors import DataError, check_type, listed, plural
from selfens.files.scratch import scratch_folder
from selfens.runs.evidence import Evidence
from selfens.tools.audit import Audit, audit_evidence
from selfens.tools.baselines import CHANCE, predictions
from selfens.tools.frozen import compared_data, frozen_predictions
from selfens.training.loop import train
from selfens.training.progress import Progress, WarningsOnly, duration

DEFAULT_FOLDS = 5
POOL = 2000  # at most so many unlabeled rows are held out, in all folds together, and at most half
HURRY, FEWEST_EPOCHS, LONGER = (
    5,
    10,
    1.4,
)  # of `hurried`: a fifth of the epochs, but at least ten; chosen in docs/log.md


def evidence_by_folds(
    config: Config,
    dataset: Dataset,
    folds: int = DEFAULT_FOLDS,
    *,
    hurry: bool = False,
    network: nn.Module | None = None,
    progress: Progress | None = None,
    each: Callable[[Callable[[int], _Fold], Iterable[int]], Iterable[_Fold]] = map,
) -> Evidence:
    """Predict each label that `config` would train with by a model from which its row was held out.

    The simple methods of `baselines` predict it too. The only label of a class is never held out. Some unlabeled rows are held
    out as well. The runs are not kept.

    Parameters
    ----------
    hurry
        Train for fewer epochs where that costs little accuracy; see `hurried`.
    network
        A module to train instead of the one the config names; it is copied. It gets the inputs it was made for, so the
        encoder is fitted once.
    each
        Like the built-in map, which trains one fold after another; it may do them elsewhere, in processes of their own.
    """
    check_type("config", config, Config, "a Config, such as that of a run: load_run(path).config")
    if dataset.prior is None and config.labels.prior is not None:
        dataset = with_prior(dataset, config.labels.prior)
    labels, fold_of, remarks = _divide(config, dataset, folds)
    standardize = not ENCODERS.find(config.encoder.name).is_scaled
    config = hurried(config) if hurry else config
    config, dataset = _encode_once(config, dataset, always=network is not None)
    probabilities = np.zeros((dataset.num_train, dataset.num_classes), np.float32)
    is_labeled, others = labels != UNLABELED, dict[str, Labels]()
    shown, began = progress or WarningsOnly(), time.perf_counter()
    epochs = plural(config.schedule.epochs, "epoch")
    shown.say(f"training {folds} times for {epochs}, each time with part of the labels held out")
    train_fold = partial(_fold, config, dataset, labels, fold_of, folds, network, standardize)
    for fold, found in enumerate(each(train_fold, range(folds))):
        hidden, notes = fold_of == fold, found.notes
        probabilities[hidden] = found.probabilities
        for name, classes in found.others.items():
            others.setdefault(name, labels.copy())[hidden & is_labeled] = classes
        if fold == 0:  # the other folds would repeat its warnings
            for warning in found.warnings:
                shown.warn(warning)
        taken = time.perf_counter() - began
        left = duration(taken / (fold + 1) * (folds - fold - 1))
        shown.say(f"fold {fold + 1}/{folds}  {duration(taken)}  {left} left")
    rows, pool = (np.flatnonzero((fold_of >= 0) & kind) for kind in (is_labeled, ~is_labeled))
    # In a fold, the largest class of the other rows is the one that is hidden least.
    others[CHANCE][:] = np.bincount(labels[rows]).argmax()
    suggested = np.zeros(len(labels), bool) if dataset.suggested is None else dataset.suggested[dataset.train_rows]
    return Evidence.of(
        rows=rows,
        labels=labels[rows],
        probabilities=probabilities[rows],
        pool=probabilities[pool],
        others={name: classes[rows] for name, classes in others.items()},
        suggested=suggested[rows],
        folds=folds,
        notes=(*remarks, *notes),
    )


def hurried(config: Config) -> Config:
    """Return the config with a fifth of the epochs, seven times the learning rate, and averages that forget five times as fast.

    Only for the method `committee`, which then makes about half a point more errors. Other configs are returned as they are.
    """
    times = min(HURRY, config.schedule.epochs / FEWEST_EPOCHS)
    if config.method.name != "committee" or config.optimizer.name != "adamw" or times <= 1:
        return config
    rampup = config.schedule.weight_rampup_epochs
    method = {name: getattr(config.method, name) ** times for name in ("decay", "memory")}
    schedule = {"epochs": round(config.schedule.epochs / times), "weight_rampup_epochs": rampup and rampup / times}
    config = config.with_values("method", **method).with_values("schedule", **schedule)
    return config.with_values("optimizer", learning_rate=LONGER * times * config.optimizer.learning_rate)


def audit_folds(
    config: Config, dataset: Dataset, folds: int = DEFAULT_FOLDS, *, progress: Progress | None = None
) -> Audit:
    """Rank the labels that `config` would train with, each judged by a model that has not seen it."""
    return audit_evidence(evidence_by_folds(config, dataset, folds, progress=progress))


def _encode_once(config: Config, dataset: Dataset, *, always: bool = False) -> tuple[Config, Dataset]:
    """Return the encoded rows as a dataset, unless the encoder must be fitted again in every fold."""
    if ENCODERS.find(config.encoder.name).learns and not always:
        return config, dataset
    encoder = encoders.build(config.encoder, resolve_device(config.training.device))
    encoder.fit(dataset.raw, dataset.train_rows)
    inputs = encoder.transform(dataset.raw).inputs
    if encoder.widths and not config.network.groups:
        config = config.with_values("network", groups=",".join(map(str, encoder.widths)))
    return replace(config, encoder=ENCODERS.options("identity")), replace(dataset, raw=inputs)


def default_folds(labels: Labels, most: int | None = None) -> int:
    """Return five, or as many as there are labels to hide (-1 is unknown); fewer than two if folds cannot be made."""
    return min(most or DEFAULT_FOLDS, int(_can_be_hidden(labels).sum()))


def _can_be_hidden(labels: Labels) -> NDArray[np.bool_]:
    """Return the rows whose label is not the only one of its class."""
    known = labels != UNLABELED
    return np.asarray(known & (np.bincount(labels[known], minlength=1)[labels] > 1))


def _divide(config: Config, dataset: Dataset, folds: int) -> tuple[Labels, NDArray[np.int64], list[str]]:
    """Return the labels that `config` would train with, the fold of each row (-1 if it is never hidden), and remarks."""
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
    rows = np.flatnonzero(fold_of >= 0)
    raw_rows = dataset.train_rows[rows]
    together = fold_of.copy()
    for group in (*groups_of(dataset.row_hashes(raw_rows)), *find_look_alikes(dataset, raw_rows)):
        together[rows[list(group)]] = fold_of[rows[group[0]]]  # a copy of a row would tell its label
    each_class = [np.unique(together[rows[labels[rows] == number]]) for number in np.unique(labels[rows])]
    if len(np.unique(together)) == len(np.unique(fold_of)) and min(map(len, each_class)) > 1:
        fold_of = together  # else there are hardly any rows but copies
    alone = [f"'{dataset.classes[number]}'" for number in labels[(labels != UNLABELED) & ~_can_be_hidden(labels)]]
    remark = f"Never held out, because the class has only one label: {listed(alone, 8)}."
    unlabeled = random.permutation(np.flatnonzero(labels[: dataset.num_main] == UNLABELED))
    pool = unlabeled[: min(POOL, len(unlabeled) // 2)]
    fold_of[pool] = np.arange(len(pool)) % folds
    return labels, fold_of, [remark] if alone else []


@dataclass(frozen=True)
class _Fold:
    """What the models of a fold predict for the rows that it hides."""

    probabilities: NDArray[np.float32]
    others: dict[str, Labels]
    notes: tuple[str, ...]
    warnings: list[str]


def _fold(
    config: Config,
    dataset: Dataset,
    labels: Labels,
    fold_of: NDArray[np.int64],
    folds: int,
    network: nn.Module | None,
    standardize: bool,
    fold: int,
) -> _Fold:
    """Train without the rows of a fold, in a directory that is removed, and predict them."""
    is_hidden = fold_of == fold
    rows, hidden = np.flatnonzero(is_hidden), np.flatnonzero(is_hidden & (labels != UNLABELED))
    partly = dataset.with_split(np.flatnonzero(~is_hidden), hidden, labels)
    config = config.with_values(
        "labels", count=None, choice="balanced", file=None, prior=None, noise=0.0, validation=0.0
    )
    show = Progress()
    warnings: list[str] = []
    show.warn = warnings.append  # type: ignore
    with scratch_folder() as folder:
        path = folder / f"fold-{fold + 1}-of-{folds}"
        try:
            run = train(config, path, dataset=partly, network=copy.deepcopy(network), progress=show)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped in fold {fold + 1} of {folds}; nothing was written.") from None
        data = run.data()
        inputs = run.encoder.transform(take(dataset.raw, dataset.train_rows[rows])).inputs
        probabilities = run.model.predict_inputs(inputs)
        compared = compared_data(run)
        predicted, notes = predictions(compared.inputs, data.labels, compared.test_inputs, standardize=standardize)
        predicted |= data.baselines() | frozen_predictions(run)
    return _Fold(probabilities, predicted, tuple(notes), warnings)
