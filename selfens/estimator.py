"""SelfEnsemblingClassifier: scikit-learn's interface. `fit` builds a Dataset and a Config and calls `train`.

The run's directory is a temporary one unless `run_dir` is given; what is needed to predict is kept in the object, so a
fitted classifier can be pickled, and unpickled on a machine without the GPU it was trained on.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_array, check_random_state, check_X_y, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from selfens import presets
from selfens.config import Config
from selfens.core import IN_MEMORY, launcher
from selfens.core.device import random_state_kept, resolve_device
from selfens.data import preprocess
from selfens.data.arrays import Inputs, as_trained, check_probabilities
from selfens.data.dataset import UNLABELED, Dataset, is_missing
from selfens.data.table_files import is_frame, named
from selfens.data.tabular import Columns
from selfens.errors import ConfigError, DataError, check_kind
from selfens.runs.directory import free_directory
from selfens.runs.run import Run, probabilities
from selfens.settings import seconds
from selfens.tools.folds import compare_folds, usual_folds
from selfens.training.loop import train
from selfens.training.progress import for_terminal

STEPS = 1000
MIN_EPOCHS, MAX_EPOCHS = 30, 600
MEAN_MOMENTUM, FEATURES_LEARNING_RATE = 0.95, 0.02
CHECKPOINT_EVERY = 100  # epochs; a temporary run needs none but the last


class SelfEnsemblingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A network trained on labeled and unlabeled rows together, by self-ensembling.

    Rows labeled -1 are unlabeled, as in `sklearn.semi_supervised`, and so are those labeled None or "". X is a matrix of
    features, which are standardized, an array of images [rows, height, width(, channels)], bytes or floats, or a pandas
    DataFrame: its numbers and dates are scaled, its categories encoded, its missing cells filled, and a column that differs in
    each row and is named id, or is of texts, is not used.

    Parameters
    ----------
    method : "auto", or a name of `selfens.methods.METHODS`, such as "temporal", "pi", "mean-teacher" or "supervised"
        "auto" is "committee" for features, "temporal-teacher" for images.
    network : "auto", a name of `selfens.networks`, package.module:factory, or a module from inputs to logits
        "auto" is the method's: "committee" or "mlp" for features, a convolutional network for images. A module is copied
        before it is trained.
    epochs : int or None
        Visits of the training set; with "committee" at least 20 steps each, for images on a GPU 200. None: as many as make
        about 1,000 steps (images on a GPU: 20,000), more if there are very many rows, fewer if images are large.
    time_limit : float, str or None
        Seconds, or text such as "5m", instead of `epochs`: as many as fit into the time. `config_` has their number.
    random_state : int, RandomState instance or None
        Of initial weights, order, noise, dropout and augmentation.
    device : "auto", "cpu" or "cuda"
        Where to train and to predict. "auto" is a GPU if there is one.
    config : mapping, Config or None
        All that has no parameter here: {"method.weight_max": 10} changes fields of the config that the other parameters
        give; a whole `Config` replaces it, and `method`, `epochs` and a network's name count no more.
    run_dir : str, Path or None
        Keep the run there, ready for `selfens.load_run`; if a run is there, in the first free of NAME-2, NAME-3 and so on.
    baselines : bool
        Also train on five folds of the labeled rows (fewer if there are fewer), beside chance, logistic regression
        and self-training with it, each fold predicted by models that did not see it.
    verbose : bool
        Show progress.

    Attributes
    ----------
    classes_ : array of shape (classes,)
    n_features_in_ : int
        Features, or for images the numbers in one.
    columns_ : Columns or None
        How the cells of a DataFrame become inputs.
    label_distributions_ : array of shape (rows, classes)
        What training made of its own rows: the ensemble, if the method keeps one, the network's predictions otherwise.
    transduction_ : array of shape (rows,)
        The class that `label_distributions_` favors. It may contradict a label that was given: see `selfens.tools.audit`.
    history_ : list of dict
        Losses, learning rate and weight of each epoch.
    config_ : Config
        The settings used.
    run_dir_ : Path or None
        Where the run was kept.
    baselines_ : selfens.tools.baselines.Verdict or None
        How this model does beside the baselines, if they were asked for: `print` shows a table, `errors` is a dict.
    """

    def __init__(
        self,
        method: str = "auto",
        network: str | nn.Module = "auto",
        epochs: int | None = None,
        *,
        time_limit: float | str | None = None,
        random_state: Any = None,
        device: str = "auto",
        config: Config | Mapping[str, Any] | None = None,
        run_dir: str | Path | None = None,
        baselines: bool = False,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.network = network
        self.epochs = epochs
        self.time_limit = time_limit
        self.random_state = random_state
        self.device = device
        self.config = config
        self.run_dir = run_dir
        self.baselines = baselines
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> SelfEnsemblingClassifier:
        """Train on all rows of X; y holds a class for each, or -1, None, NaN, pandas' NA or "" for unlabeled."""
        began = time.perf_counter()
        launcher.check_single_process(type(self).__name__)
        known, notes, table = _without_missing(y), list[str](), None
        self.columns_: Columns | None = None
        if is_frame(X):
            frame = named(X)
            validate_data(self, X, skip_check_array=True)  # counts the columns and keeps their names
            self._names = [*frame.columns]  # scikit-learn keeps names only if they are texts
            self.columns_ = Columns.fit(frame)
            vectors, notes = self.columns_.encode(frame)
            notes += self.columns_.remarks(frame)
            table = frame[[column.name for column in self.columns_.columns]].reset_index(drop=True)
            inputs, given = check_X_y(vectors, known, ensure_min_samples=2)
        else:
            inputs, given = validate_data(self, X, known, allow_nd=True, ensure_min_samples=2)
        labeled = is_labeled(given)
        self.classes_, numbers = _numbered(_known(given, labeled))
        labels = np.full(len(given), UNLABELED)
        labels[labeled] = numbers
        dataset = Dataset.from_arrays(inputs, labels, classes=[str(name) for name in self.classes_])
        dataset = replace(dataset, columns=self.columns_, table=table, notes=tuple(notes))
        self.config_ = self._config(dataset)
        if self.baselines and usual_folds(labels) < 2:
            raise DataError(
                "no class has more than one labeled row, so none can be hidden; leave baselines out, or label more rows."
            )
        options, place = self.config_.method, self.config_.method.place
        if self.run_dir is None and place and getattr(options, place) not in IN_MEMORY:
            raise ConfigError(f"method.{place} is a file, which belongs to a run that is kept; give run_dir too.")
        module = copy.deepcopy(self.network) if isinstance(self.network, nn.Module) else None
        self.run_dir_ = None if self.run_dir is None else free_directory(Path(self.run_dir))
        progress = for_terminal() if self.verbose else None
        with tempfile.TemporaryDirectory(prefix="selfens-") as temporary, random_state_kept():
            untrained = copy.deepcopy(module) if self.baselines else None
            directory = self.run_dir_ or Path(temporary) / "run"
            limit = None
            if self.time_limit is not None:
                limit = max(seconds("time_limit", self.time_limit) + began - time.perf_counter(), 0.001)
            run = train(self.config_, directory, dataset=dataset, network=module, progress=progress, time_limit=limit)
            self._keep(run, dataset)
            self.baselines_ = None
            if self.baselines:  # with as many epochs as fitted into a time limit
                folds = usual_folds(labels)
                self.baselines_ = compare_folds(self.config_, dataset, folds, network=untrained, progress=progress)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """[rows, classes], in the order of `classes_`."""
        check_is_fitted(self)
        inputs = self._checked_inputs(X)
        device = resolve_device(self.device)
        network = self.network_ if device.type == "cpu" else copy.deepcopy(self.network_).to(device)
        prepared = preprocess.apply(self.preprocess_, inputs, "cpu").to(device)
        found = probabilities(network, prepared, self.config_.training.precision, torch.float64)
        check_probabilities(found)
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy over the rows that have a label; those labeled -1 are left out."""
        given = column_or_1d(_without_missing(y))
        labeled = is_labeled(given)
        if not labeled.any():
            raise DataError("no row has a label to compare with; every one of y is -1.")
        weights = None if sample_weight is None else np.asarray(sample_weight)[labeled]
        return float(accuracy_score(_known(given, labeled), self.predict(X)[labeled], sample_weight=weights))

    # What fit is made of

    def _config(self, dataset: Dataset) -> Config:
        seed = int(check_random_state(self.random_state).randint(2**31))
        if isinstance(self.config, Config):
            return self.config if self.random_state is None else self.config.with_values("seed", base=seed)
        own_fields = {} if self.config is None else self.config
        if self.time_limit is not None and (self.epochs is not None or "schedule.epochs" in own_fields):
            raise ConfigError("time_limit and a number of epochs were both given; leave one of them out.")
        check_kind("config", own_fields, Mapping, 'a Config, or fields such as {"method.weight_max": 10}')
        check_kind("network", self.network, str | nn.Module, "a name, or a module from inputs to logits")
        on_gpu = self.device != "cpu" and torch.cuda.is_available()
        fields = {"training.device": self.device, "seed.base": seed}
        if isinstance(self.network, str) and self.network != "auto":
            fields["network.name"] = self.network
        if self.epochs is not None:
            check_kind("epochs", self.epochs, Integral, "a whole number")
            fields["schedule.epochs"] = self.epochs
        chosen = (fields | dict(own_fields)).items()
        return default_config(dataset, self.method, on_gpu=on_gpu).with_overrides(
            f"{path}={value}" for path, value in chosen
        )

    def _keep(self, run: Run, dataset: Dataset) -> None:
        """All that is needed once the directory is gone."""
        self.label_distributions_ = run.predict_training_rows(dataset)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        self.history_, self.config_ = run.history, run.config
        # A copy, because the parameters of a module that was trained in place are views into one large tensor.
        self.network_, self.preprocess_ = copy.deepcopy(run.network).cpu(), run.preprocess.cpu()
        self.input_shape_ = dataset.input_shape
        if self.columns_ is None:
            self.n_features_in_ = int(np.prod(dataset.input_shape))
        self.takes_bytes_, self.input_range_ = dataset.inputs.dtype == np.uint8, dataset.value_range

    def _checked_inputs(self, X: ArrayLike) -> Inputs:
        """X as the network was trained on it. Of a DataFrame the columns are found by their names; the count of features in an
        array is scikit-learn's to check."""
        frame = named(X) if is_frame(X) else None  # refuses a name that is there twice
        if self.columns_ is not None:
            if frame is None and hasattr(X, "columns"):
                named(X)  # refuses it: it has columns, but not those of pandas
            if frame is None:
                from pandas import DataFrame

                validate_data(self, X, reset=False, skip_check_array=True)
                frame = named(DataFrame(X, columns=self._names))
            checked, _ = self.columns_.encode(frame, "X")
        elif len(self.input_shape_) == 1:
            checked = validate_data(self, X, reset=False)
        else:
            checked = check_array(X, allow_nd=True)
        limits = getattr(self, "input_range_", None)  # a classifier that an earlier version pickled has none
        return as_trained(checked, self.input_shape_, limits, self.takes_bytes_, "this classifier", "X's rows")


def _without_missing(y: Any) -> Any:
    """Missing labels, as a table has them, as -1: scikit-learn's checks let no NaN pass."""
    labels = np.asarray(y, dtype=object)  # whole numbers stay whole
    missing = np.array([is_missing(label) for label in labels], dtype=bool) if labels.ndim == 1 else np.False_
    return np.where(missing, UNLABELED, labels) if missing.any() else y


def is_labeled(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which labels are known: not -1, nor the "-1" that numpy makes of it in an array of strings, nor None, "" or NaN.

    >>> is_labeled(np.array(["cat", -1, "dog"], dtype=object))
    array([ True, False,  True])
    """
    unknown = (UNLABELED, str(UNLABELED), None, "", "nan")  # numpy makes "nan" of NaN in an array of strings
    return np.array([value not in unknown and value == value for value in y.tolist()], dtype=bool)


def _known(y: NDArray[Any], labeled: NDArray[np.bool_]) -> NDArray[Any]:
    """The labels that are known; numbers among None come as objects and become numbers again."""
    labels = y[labeled]
    if labels.dtype != object or any(isinstance(label, str) for label in labels):
        return labels
    return np.array(labels.tolist())


def _numbered(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, and each label as a position among them."""
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        raise DataError("the labels mix strings and numbers; use one of the two (and -1 for unlabeled).") from None
    if len(classes) < 2:
        known = f"one class only ('{classes[0]}')" if len(classes) else "no class"
        raise DataError(f"y names {known}; expected at least two classes besides -1, which means unlabeled.")
    check_classification_targets(labels)
    return classes, numbers


def default_config(dataset: Dataset, method: str, *, on_gpu: bool = False) -> Config:
    """Settings for a few hundred to a few thousand rows; `benchmarks/estimator.py` shows how they do.

    Small data takes few steps per epoch, so epochs are counted by steps; with the paper's schedule runs are short, so running
    means are quick.
    """
    side, chosen = min(dataset.input_shape[1:]) if dataset.is_images else None, None if method == "auto" else method
    config = presets.for_arrays(dataset.name, images_side=side, rows=dataset.num_rows, method=chosen, on_gpu=on_gpu)
    config = config.with_values("training", checkpoint_every=CHECKPOINT_EVERY)
    if dataset.columns is not None:
        config = config.with_values("data", preprocess="none")  # the columns are scaled already
    if config.schedule.name == "cosine":  # its epochs are counted by steps already
        return config
    steps_per_epoch = max(dataset.num_rows // config.training.batch_size, 1)
    epochs = min(max(STEPS // steps_per_epoch, MIN_EPOCHS), MAX_EPOCHS)
    config = config.with_values("schedule", epochs=epochs).with_values("network", mean_momentum=MEAN_MOMENTUM)
    return config if dataset.is_images else config.with_values("optimizer", learning_rate=FEATURES_LEARNING_RATE)
