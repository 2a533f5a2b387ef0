"""Baselines: simple methods on the same labels. Chance, logistic regression, and self-training with it.

They are scikit-learn's, fitted on the rows and labels that a run saw, and tested on the rows that it was tested on. Inputs are
flattened and standardized by the training rows. To keep this within seconds, images are reduced to 16 pixels a side, very many
rows are thinned out and very large fits stop early; the notes of a comparison say so.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import adaptive_avg_pool2d

from selfens.data.arrays import PIECE
from selfens.data.dataset import UNLABELED
from selfens.data.rows import Array, Labels, LazyRows, Rows, pieces
from selfens.errors import ConfigError
from selfens.files import check_regular
from selfens.files.tensors import write_atomically
from selfens.runs.run import Run
from selfens.settings import Section, setting

FILE = "baselines.json"
OURS, CHANCE, LOGISTIC, SELF_TRAINING = "this model", "chance (largest class)", "logistic regression", "self-training"
SUBJECTS = {CHANCE: "always predicting the largest class", SELF_TRAINING: f"self-training with {LOGISTIC}"}
MAX_SIDE, SAMPLE = 16, 2_000  # pixels, rows
MAX_LABELED, MAX_UNLABELED = 40_000_000, 4_000_000  # numbers, that is rows x features
WORK, MIN_ITERATIONS, MAX_ITERATIONS = 1e10, 20, 1000  # of one fit; work is rows x features x classes x iterations
UNEVEN = 1.5  # times as many rows in the largest class as in the smallest
SIGNIFICANT = 1.96**2  # McNemar's test at 95 %, with continuity correction


@dataclass(frozen=True, kw_only=True)
class Result(Section):
    """The errors of one method in percent. The balanced error is the mean over the classes."""

    section: ClassVar[str] = "result"
    name: str
    error: float = setting(0.0, "", at_least=0, at_most=100)
    balanced_error: float = setting(0.0, "", at_least=0, at_most=100)
    is_significant: bool = setting(False, "The difference from ours is larger than chance explains.")


@dataclass(frozen=True, kw_only=True)
class Comparison(Section):
    """A model beside the baselines: `results`, ours first, and what follows from them in words."""

    section: ClassVar[str] = "comparison"
    results: tuple[Result, ...]
    labels: int = setting(0, "How many labels were used.", at_least=1)
    rows: int = setting(0, "Tested on: test rows, or with `folds` labeled rows that were hidden.", at_least=1)
    folds: int = setting(0, "Folds of a cross-validation; 0: test rows.", at_least=0)
    is_uneven: bool = setting(False, "Class sizes differ, so the balanced error says something else.")
    is_images: bool = False
    notes: tuple[str, ...] = setting((), "On how the baselines were fitted.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.results) < 2 or not all(isinstance(result, Result) for result in self.results):
            raise ConfigError("comparison.results lacks this model or a baseline.")
        if not all(isinstance(note, str) for note in self.notes):
            raise ConfigError("comparison.notes holds something other than text.")

    @property
    def errors(self) -> dict[str, float]:
        """In percent, by name."""
        return {result.name: result.error for result in self.results}

    @property
    def numbers(self) -> str:
        """All errors in a sentence."""
        ours, *others = self.results
        tested = f"{self.rows:,} {'labeled rows that it did not see' if self.folds else 'test rows'}"
        balanced = f" (balanced error {ours.balanced_error:.2f} %)" if self.is_uneven else ""
        same = f" on the same {f'{self.folds} folds' if self.folds else f'{self.labels:,} labels'}"
        errors = [f"{each.name}{same if each.name == LOGISTIC else ''} {each.error:.2f} %" for each in others]
        return f"This model misclassifies {ours.error:.2f} % of {tested}{balanced}; {', '.join(errors)}."

    @property
    def judgment(self) -> str:
        """Whether a baseline is better, and what to try then."""
        ours, *others = self.results
        best, fairest = (min(others, key=attrgetter(measure)) for measure in ("error", "balanced_error"))
        names = {each.name: SUBJECTS.get(each.name, each.name) for each in others}
        other = "features of a pretrained backbone" if self.is_images else "another method"
        better = best if best.error <= ours.error else fairest
        advice = f"{'' if better.name == CHANCE else 'use it, or '}try {other}, more epochs or more labels"
        caveat = "" if best.is_significant else f", though {self.rows:,} rows are too few to be sure"
        if best.error == ours.error == 0:
            return f"{names[best.name].capitalize()} makes no mistakes either."
        if best.error == ours.error and not (self.is_uneven and ours.balanced_error < fairest.balanced_error):
            return f"{names[best.name].capitalize()} does as well{caveat}: {advice}."
        if best.error < ours.error:
            points = f"{round(ours.error, 2) - round(best.error, 2):.2f} points{caveat}"  # of the numbers shown
            return f"{names[best.name].capitalize()} is better by {points}: {advice}."
        if self.is_uneven and fairest.balanced_error < ours.balanced_error:
            against = f"{fairest.balanced_error:.2f} % against {ours.balanced_error:.2f} %"
            return f"By the balanced error {names[fairest.name]} is better, {against}: {advice}."
        if best.error == ours.error:
            return f"{names[best.name].capitalize()} makes as many mistakes, but its balanced error is higher."
        lead = round(best.error, 2) - round(ours.error, 2)
        return f"It is better than {names[best.name]} by {lead:.2f} points{caveat}."

    @property
    def table(self) -> list[tuple[str, ...]]:
        """Headers, then a line for each method, the lowest error first; with balanced errors if class sizes differ."""
        ranked = sorted(self.results, key=attrgetter("error"))
        lines = [(each.name, f"{each.error:.2f}", f"{each.balanced_error:.2f}") for each in ranked]
        return [line if self.is_uneven else line[:2] for line in (("", "error %", "balanced error %"), *lines)]

    @property
    def lines(self) -> list[str]:
        """The table and the judgment, to print."""
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        rows = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in self.table]
        return [*rows, f"{self.numbers} {self.judgment}", *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines)


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


def compare(predicted: Mapping[str, Labels], truth: Labels, **about: Any) -> Comparison:
    """Compare predictions, ours first, with the truth; `about` are the other fields of the `Comparison`."""
    counts = np.bincount(truth)
    present = np.flatnonzero(counts)
    wrong = {name: classes != truth for name, classes in predicted.items()}
    results = []
    for name, theirs in wrong.items():
        only_ours, only_theirs = int((wrong[OURS] & ~theirs).sum()), int((theirs & ~wrong[OURS]).sum())
        difference = max(abs(only_ours - only_theirs) - 1, 0)
        is_significant = difference**2 > SIGNIFICANT * (only_ours + only_theirs)
        error = 100.0 * float(theirs.mean())
        balanced = float(np.mean([100.0 * theirs[truth == number].mean() for number in present]))
        results.append(Result(name=name, error=error, balanced_error=balanced, is_significant=is_significant))
    is_uneven = bool(counts.max() > UNEVEN * counts[present].min())
    return Comparison(results=tuple(results), rows=len(truth), is_uneven=is_uneven, **about)


def one_class(predicted: Labels, expected: Labels, classes: Sequence[str]) -> str:
    """Return a sentence if the model predicts one class for most rows, and the others far too rarely; else "".

    `expected` are the classes of these rows, or of others like them.
    """
    largest = int(np.bincount(predicted).argmax())
    share, fair = float((predicted == largest).mean()), float((expected == largest).mean())
    if share <= 0.5 or 1 - share >= (1 - fair) / 2:
        return ""
    wanted = f"{100 * fair:.0f}" if fair >= 0.01 else "less than 1"
    much = f"for {100 * share:.0f} % of the rows, while {wanted} % should be of that class"
    return f"The model predicts '{classes[largest]}' {much}; it hardly tells the classes apart."


def compare_run(run: Run, wanted: bool | None = None, *, can_load: bool = True) -> Comparison | None:
    """Return the comparison stored in a run, or compute one on its test rows.

    Returns None if the run is not finished or has no test rows.

    Parameters
    ----------
    wanted
        True: on any data; False: not at all; None: only on the user's own data, as results on public datasets are known.
    can_load
        Load the data if there is no stored comparison.
    """
    if wanted is False:
        return None
    if (found := stored(run)) is not None or not can_load:
        return found
    data = run.data()
    if not run.finished or not len(data.test_labels) or not (wanted or not run.config.source.is_public):
        return None
    choice = run.labels
    seen = choice.visited(data.num_rows, run.config.training.rows)
    inputs, labels = LazyRows([data.inputs], seen), choice.training_labels(data.num_rows)[seen]
    baselines, notes = predictions(inputs, labels, data.test_inputs, standardize=not data.encoder.is_scaled)
    predicted = {OURS: run.test_probabilities.argmax(axis=1), **baselines}
    about = {"labels": len(choice.rows), "is_images": data.is_images, "notes": tuple(notes)}
    return compare(predicted, data.test_labels, **about)


def store(run: Run, comparison: Comparison) -> None:
    """Keep the comparison in the run's directory, for its report."""
    content = {"run": run.info.id} | asdict(comparison)
    write_atomically(run.path / FILE, (json.dumps(content, indent=2) + "\n").encode())


def stored(run: Run) -> Comparison | None:
    """Return the comparison in the run's directory; None if there is none, or it is damaged or of another run."""
    path = run.path / FILE
    try:
        check_regular(path)
        content = json.loads(path.read_text())
        if content.pop("run") != run.info.id:
            return None
        results = tuple(Result(**each) for each in content.pop("results"))
        return Comparison(results=results, **content | {"notes": tuple(content["notes"])})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def one_class_of(run: Run) -> str:
    """Return what `one_class` says about a run's test rows, or if there are none, about some training rows."""
    data = run.data()
    if len(data.test_labels):
        return one_class(run.test_probabilities.argmax(axis=1), data.test_labels, run.classes)
    rows = _thinned(np.arange(data.num_rows), SAMPLE)
    return one_class(run.predict_training_rows(rows=rows).argmax(axis=1), run.labels.labels, run.classes)
