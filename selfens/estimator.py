"""SelfEnsemblingClassifier: scikit-learn's interface. `fit` builds a Dataset and a Config and calls `train`.

The run's directory is temporary unless `run_dir` is given. What is needed to predict is kept in the object, so a fitted
classifier can be pickled, and unpickled on a machine without the GPU it was trained on.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
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

from selfens import auto, encoders
from selfens.config import Config
from selfens.core import launcher
from selfens.core.device import keep_random_state, resolve_device
from selfens.data.dataset import UNLABELED, Dataset, is_missing
from selfens.data.frames import TEXT, TextColumns, check_frame, is_frame, text_frame
from selfens.data.prior import with_prior
from selfens.encoders import ENCODERS
from selfens.errors import ConfigError, DataError, check_type
from selfens.files.scratch import scratch_folder
from selfens.runs.directory import free_directory
from selfens.runs.novelty import Novelty
from selfens.runs.run import Run
from selfens.settings import seconds
from selfens.tools import selection
from selfens.tools.comparison import comparison_of
from selfens.tools.folds import default_folds, evidence_by_folds
from selfens.training.loop import train
from selfens.training.progress import for_terminal

FEW = 20  # rows, of which one label may be missing by chance


class SelfEnsemblingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A network trained on labeled and unlabeled rows together, by self-ensembling.

    Rows labeled -1 (as in `sklearn.semi_supervised`), None or "" are unlabeled. Any other label is a class, also "NA" and
    "unlabeled", which mean no label in a file; a warning counts them. X is a matrix of features, which are
    standardized; an array of images [rows, height, width(, channels)], bytes or floats; a list of texts; or a pandas DataFrame.
    Of a DataFrame, numbers and dates are scaled, categories and texts are encoded, missing cells are filled, and columns of
    ids are ignored. The texts of a list are encoded like those of a column.

    Parameters
    ----------
    method : "auto", or a name in `selfens.methods.METHODS`, such as "temporal", "pi", "mean-teacher" or "supervised"
        "auto" is "committee" for features, "temporal-teacher" for images.
    network : "auto", a name in `selfens.networks`, package.module:factory, or a module from inputs to logits
        "auto" depends on the method: "committee" or "mlp" for features, a convolutional network for images. A module is
        copied before it is trained.
    epochs : int or None
        Passes over the training set; each has at least 20 steps with "committee", 200 for images on a GPU. None: enough for
        about 1,000 steps (images on a GPU: 20,000), more for very many rows, fewer for large images.
    time_limit : float, str or None
        Seconds, or text such as "5m": train for as many epochs as fit, instead of `epochs`. `config_` has their number.
    random_state : int, RandomState instance or None
        Seeds initial weights, order, noise, dropout and augmentation.
    device : "auto", "cpu" or "cuda"
        Where to train and to predict. "auto" is a GPU if there is one.
    config : mapping, Config or None
        Everything else: a mapping such as {"method.weight_max": 10} changes fields of the automatic config; a whole `Config`
        replaces it, and `method`, `epochs` and a network's name are ignored.
    run_dir : str, Path or None
        Keep the run there, for `selfens.load_run`; if a run is there already, in NAME-2, NAME-3 and so on.
    text : str, list of str or None
        Columns of a DataFrame that hold text, beside those that look like it (mostly distinct, several words).
    measure : bool
        Also measure the error by cross-validation on five folds of the labeled rows (fewer if there are fewer labels), beside
        chance, logistic regression and self-training with it. Then `predict_proba` is calibrated, and `predict` can say
        that it is not sure.
    verbose : bool
        Show progress.

    Attributes
    ----------
    classes_ : array of shape (classes,)
    n_features_in_ : int
        Number of features, or of values in an image.
    encoder_ : Encoder
        Turns X into inputs of the network.
    network_ : torch.nn.Module
        The trained network.
    label_distributions_ : array of shape (rows, classes)
        Probabilities of the training rows: the ensemble's if the method keeps one, otherwise the network's.
    transduction_ : array of shape (rows,)
        The most probable class of each training row. It may contradict its label: see `selfens.tools.audit`.
    history_ : list of dict
        Losses, learning rate and weight of the unsupervised loss in each epoch.
    config_ : Config
        The settings used.
    run_dir_ : Path or None
        Where the run was kept.
    error_ : float
        Percentage misclassified of labeled rows, each predicted by a model that was not trained on it, if `measure`.
    error_interval_ : tuple of float
        The 90 % interval of the error, in percent.
    temperature_ : float
        What logits are divided by in `predict_proba`; 1 without `measure`.
    comparison_ : selfens.tools.comparison.Comparison or None
        This model beside the simple methods: `print` shows a table, `errors` is a dict.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from selfens import SelfEnsemblingClassifier
    >>> x, y = load_wine(return_X_y=True)
    >>> y[20:50] = y[80:120] = y[140:] = -1
    >>> model = SelfEnsemblingClassifier(epochs=5, random_state=0, device="cpu").fit(x, y)
    >>> model.predict(x[:3]).shape
    (3,)
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
        text: str | Sequence[str] | None = None,
        measure: bool = False,
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
        self.text = text
        self.measure = measure
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, suggested: ArrayLike | None = None, prior: ArrayLike | None = None
    ) -> SelfEnsemblingClassifier:
        """Train on all rows of X.

        Parameters
        ----------
        y
            A class for each row, or -1, None, NaN, pandas' NA or "" for unlabeled.
        suggested
            True for rows that were labeled because a model was uncertain about them. They are harder than others, and
            `measure` says what it does about that.
        prior
            What another model says about the rows: [rows, classes] probabilities in the order of the sorted classes, NaN for
            rows it says nothing about; or a label for each row, -1 for none.
        """
        began = time.perf_counter()
        launcher.check_single_process(type(self).__name__)
        dataset = self._dataset(X, _without_missing(y))
        if suggested is not None:
            chosen = np.asarray(suggested)
            if chosen.dtype != bool or chosen.shape != (dataset.num_train,):
                found = f"suggested has type {chosen.dtype} and shape {chosen.shape}"
                raise DataError(f"{found}; expected True or False for each of the {dataset.num_train:,} rows.")
            dataset = replace(dataset, suggested=chosen)
        if prior is not None:
            dataset = with_prior(dataset, prior)
        self.config_ = self._config(dataset)
        folds = default_folds(dataset.train_labels)
        if self.measure and folds < 2:
            raise DataError("no class has more than one labeled row; leave measure out, or label more rows.")
        module = self.network if isinstance(self.network, nn.Module) else None
        self.run_dir_ = None
        if self.run_dir is not None:
            wanted = Path(self.run_dir)
            self.run_dir_ = free_directory(wanted) if (wanted / "config.json").exists() else wanted
        progress = for_terminal() if self.verbose else None
        limit = None
        if self.time_limit is not None:
            limit = max(seconds("time_limit", self.time_limit) + began - time.perf_counter(), 0.001)
        with scratch_folder() as temporary, keep_random_state():
            directory, copied = self.run_dir_ or temporary / "run", copy.deepcopy(module)
            run = train(self.config_, directory, dataset=dataset, network=copied, progress=progress, time_limit=limit)
            if self.measure:  # with the number of epochs that fit into a time limit
                evidence = evidence_by_folds(run.config, dataset, folds, hurry=True, network=module, progress=progress)
                run.keep_evidence(evidence)
            self._keep(run)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return [rows, classes], in the order of `classes_`."""
        check_is_fitted(self)
        model = self.model_.to(resolve_device(self.device))
        return model.predict_proba(self._checked_inputs(X), "this classifier", "X's rows", torch.float64)

    def predict(self, X: ArrayLike, *, max_error: float | None = None, not_sure: Any = UNLABELED) -> NDArray[Any]:
        """Return the most probable class of each row.

        Parameters
        ----------
        max_error
            Percent of the answers that may be wrong: rows that are too uncertain for that get `not_sure`. Needs `measure`.
        not_sure
            What these rows get; only with `max_error`.
        """
        check_is_fitted(self)
        if max_error is None and not_sure is not UNLABELED:
            raise ConfigError(
                "not_sure was given without max_error, which says when a row gets it; give both or neither."
            )
        if max_error is not None:
            check_type("max_error", max_error, Real, "percent of the answers")
            if not 0 < max_error < 100:
                raise ConfigError(f"max_error is {max_error}; expected percent of the answers, above 0 and below 100.")
            if self.comparison_ is None:
                raise ConfigError("max_error needs a measured error; fit with measure=True.")
        model = replace(self.model_.to(resolve_device(self.device)), temperature=1.0)
        probabilities = model.predict_proba(self._checked_inputs(X), "this classifier", "X's rows", torch.float64)
        predicted = np.asarray(self.classes_[probabilities.argmax(axis=1)])
        if max_error is None or self.comparison_ is None:
            return predicted
        sure = self.comparison_.evidence.is_sure(probabilities, max_error)
        return predicted if sure.all() else np.where(sure, predicted.astype(object), not_sure)

    def novelty(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return how unlike the training rows each row is: the share of them that are nearer to the others, from 0 to 1."""
        check_is_fitted(self)
        encoder = self.model_.encoder
        raw = encoder.accept(self._checked_inputs(X), "this classifier", "X's rows")
        return self.novelty_.score(encoder.transform(raw).inputs)

    def suggest(self, X: ArrayLike, count: int, y: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return the numbers of up to `count` rows of X to label next: before `fit` typical ones, then uncertain ones.

        They differ from each other and from the rows that are labeled in y (default: none). See `selfens.tools.selection`.
        """
        probabilities, is_fitted = None, hasattr(self, "model_")
        if is_fitted:
            encoder, probabilities = self.model_.encoder, self.predict_proba(X)
            raw = encoder.accept(self._checked_inputs(X), "this classifier", "X's rows")
        else:
            texts = _texts(X)
            raw = check_frame(X) if is_frame(X) else X if texts is None else text_frame(texts)
            if not is_frame(raw):
                raw = Dataset.from_arrays(x := check_array(X, allow_nd=True), np.full(len(x), UNLABELED)).raw
            encoder = encoders.build(ENCODERS.options("columns" if is_frame(raw) else "identity"))
            encoder.fit(raw, np.arange(len(raw)))
        labels = np.full(len(raw), UNLABELED)
        if y is not None and len(given := column_or_1d(_without_missing(y))) != len(labels):
            raise DataError(f"X has {len(labels):,} rows and y {len(given):,}; expected a label or -1 for each row.")
        if y is not None:
            labels[_known(given)[0]] = 0
        scaled = encoder.is_scaled
        return selection.suggest(
            encoder.transform(raw).inputs, count, labels, probabilities, standardize=not scaled
        ).rows

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy over the rows that have a label; those labeled -1 are left out."""
        labeled, truth = _known(column_or_1d(_without_missing(y)))
        if not labeled.any():
            raise DataError("no row has a label to compare with; every one of y is -1.")
        weights = None if sample_weight is None else np.asarray(sample_weight)[labeled]
        return float(accuracy_score(truth, self.predict(X)[labeled], sample_weight=weights))

    def _dataset(self, X: Any, y: Any) -> Dataset:
        """Check X and y as scikit-learn does, and return them as a dataset."""
        texts = _texts(X)
        if texts is not None or is_frame(X):
            frame = check_frame(X) if texts is None else text_frame(texts)
            validate_data(self, X if texts is None else np.zeros((len(frame), 1)), skip_check_array=True)
            raw: Any = frame.reset_index(drop=True)
            if self.text:
                names = [self.text] if isinstance(self.text, str) else self.text
                raw.attrs[TEXT] = TextColumns(map(str, names))
            _, given = check_X_y(np.zeros((len(frame), 1)), y, ensure_min_samples=2)
        else:
            raw, given = validate_data(self, X, y, allow_nd=True, ensure_min_samples=2)
        self._kind = (
            "texts" if texts is not None else "table" if is_frame(raw) else "matrix" if raw.ndim == 2 else "images"
        )
        labeled, known = _known(given)
        self.classes_, numbers = _numbered(known)
        _warn_of_sentiment(labeled, known)
        labels = np.full(len(given), UNLABELED)
        labels[labeled] = numbers
        names = [str(name) for name in self.classes_]
        if is_frame(raw):
            return Dataset(raw=raw, labels=labels, is_test=np.zeros(len(labels), dtype=bool), classes=tuple(names))
        return Dataset.from_arrays(raw, labels, classes=names)

    def _config(self, dataset: Dataset) -> Config:
        seed = int(check_random_state(self.random_state).randint(2**31))
        if isinstance(self.config, Config):
            return self.config if self.random_state is None else self.config.with_values("seed", base=seed)
        check_type("config", self.config, Mapping | None, 'a Config, or fields such as {"method.weight_max": 10}')
        changes = dict(self.config or {})
        if "method.name" in changes:
            raise ConfigError(
                "config sets method.name; use the parameter method, which also applies its other settings."
            )
        encoder = None
        if "encoder.name" in changes:
            given = changes.pop("encoder.name")
            encoder = auto.encoder_for([given] if isinstance(given, str) else list(map(str, given)))
        if self.time_limit is not None and (self.epochs is not None or "schedule.epochs" in changes):
            raise ConfigError("time_limit and a number of epochs were both given; leave one of them out.")
        check_type("network", self.network, str | nn.Module, "a name, or a module from inputs to logits")
        fields = {"training.device": self.device, "seed.base": seed}
        if isinstance(self.network, str) and self.network != "auto":
            fields["network.name"] = self.network
        if self.epochs is not None:
            check_type("epochs", self.epochs, Integral, "a whole number")
            fields["schedule.epochs"] = self.epochs
        overrides = [f"{path}={value}" for path, value in (fields | changes).items()]
        method = None if self.method == "auto" else self.method
        chosen = auto.config_for_dataset(dataset, method, device=self.device, encoder=encoder)
        return chosen.with_overrides(overrides)

    def _keep(self, run: Run) -> None:
        """Keep what is needed once the directory is gone."""
        self.label_distributions_ = run.predict_training_rows()
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        self.history_, self.config_ = run.history, run.config
        self.comparison_, self.temperature_ = comparison_of(run), run.temperature
        self.error_ = self.error_interval_ = None
        if run.evidence is not None:
            self.error_, self.error_interval_ = run.evidence.error, run.evidence.error_interval
        self.novelty_ = Novelty.fit(run.data().inputs, standardize=not run.encoder.is_scaled)
        # A copy, because the parameters of a module that was trained in place are views of one large tensor.
        network, preprocess = copy.deepcopy(run.network).cpu(), run.preprocess.cpu()
        self.model_ = replace(run.model, preprocess=preprocess, network=network)
        self.encoder_, self.network_ = self.model_.encoder, self.model_.network
        if self._kind == "images":
            self.n_features_in_ = int(np.prod(run.input_shape))

    def _checked_inputs(self, X: Any) -> Any:
        """Check X as scikit-learn does; the encoder checks the rest."""
        if self._kind == "texts":
            if (texts := _texts(X)) is None:
                raise DataError(
                    "X's rows are not texts; this classifier was trained on texts, so give a list of strings."
                )
            return text_frame(texts)
        is_table = self._kind == "table"
        if is_frame(X) or (is_table and hasattr(X, "columns")):
            frame = check_frame(X)
            if is_table:
                return frame
        if self._kind == "images":
            return check_array(X, allow_nd=True)
        return validate_data(self, X, reset=False, skip_check_array=is_table)


def _texts(X: Any) -> list[Any] | None:
    """Return the texts of a list, an array or a pandas Series of strings, in which None is missing; None for anything else."""
    if isinstance(X, str | bytes):
        raise DataError("X is a single text; expected a list of texts.")
    if is_frame(X):
        return None
    if (first := _first_word(X)) is not None:
        found = f"X holds rows of strings such as {first[:40]!r}"
        raise DataError(f"{found}; expected a list with one string per row, or a pandas DataFrame.")
    given = [*X] if isinstance(X, list | tuple) or getattr(X, "ndim", 0) == 1 else []
    texts = [None if is_missing(each) else each for each in given if not isinstance(each, np.ndarray | list | tuple)]
    if texts and all(isinstance(each, bytes) for each in texts):
        raise DataError("X holds bytes; expected strings, so decode them: text.decode().")
    if len(texts) < len(given) or not any(isinstance(each, str) for each in texts):
        return None
    if strange := [each for each in texts if not isinstance(each, str | None)]:
        raise DataError(
            f"X holds strings and {strange[0]!r} of type {type(strange[0]).__name__}; expected strings only."
        )
    return [each if each is None else str(each) for each in texts]


def _first_word(X: Any) -> str | None:
    """Return the first cell of rows if it is a string and no number."""
    row = X[0] if isinstance(X, list | tuple | np.ndarray) and len(X) else None
    cell = row[0] if isinstance(row, list | tuple | np.ndarray) and np.ndim(row) and len(row) else None
    try:
        if isinstance(cell, str):
            float(cell)
        return None
    except ValueError:
        return str(cell)


def _without_missing(y: Any) -> Any:
    """Replace missing labels by -1: scikit-learn's checks let no NaN pass."""
    labels = np.asarray(y, dtype=object)  # keeps whole numbers whole
    missing = np.array([is_missing(label) for label in labels], dtype=bool) if labels.ndim == 1 else np.False_
    return np.where(missing, UNLABELED, labels) if missing.any() else y


def _known(y: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Return which rows are labeled, and their labels; numbers among None are objects and become numbers again.

    >>> _known(np.array([3, -1, None, 2, float("nan")], dtype=object))
    (array([ True, False, False,  True, False]), array([3, 2]))
    """
    unknown = (UNLABELED, str(UNLABELED), None, "", "nan")  # numpy makes text of -1 and NaN among strings
    labeled = np.array([value not in unknown and value == value for value in y.tolist()], dtype=bool)
    labels = y[labeled]
    if labels.dtype == object and not any(isinstance(label, str) for label in labels):
        labels = np.array(labels.tolist())
    return labeled, labels


def _warn_of_sentiment(labeled: NDArray[np.bool_], labels: NDArray[Any]) -> None:
    """Warn if -1 may be meant as a class: beside 0 and 1, and on fewer than half of the rows."""
    count = int((~labeled).sum())
    if len(labeled) >= FEW and 0 < count < len(labeled) / 2 and {*labels.tolist()} in ({0, 1}, {"0", "1"}):
        rest = "of labels -1, 0 and 1 count as unlabeled; if -1 is a class, give the classes names, such as 'negative'."
        warnings.warn(f"{count:,} of {len(labeled):,} rows {rest}", stacklevel=4)


def _numbered(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes, and each label as a position among them."""
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        raise DataError("the labels mix strings and numbers; use one of the two (and -1 for unlabeled).") from None
    if len(classes) < 2:
        known = f"one class only ('{classes[0]}')" if len(classes) else "no class"
        raise DataError(f"y names {known}; expected at least two classes besides -1, which means unlabeled.")
    check_classification_targets(labels)
    return classes, numbers
