"""Baselines: what else could have been done with the same labels. Chance, logistic regression, and self-training with it.

They are scikit-learn's, fitted on the rows and labels that a run saw, and tested on the rows that it was tested on. Inputs are
flattened and standardized by the training rows. To keep this within seconds, images are reduced to 16 pixels a side, very many
rows are thinned out and a very large fit ends early; the notes of a verdict say which of these was done.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import adaptive_avg_pool2d

from selfens.data import sources
from selfens.data.arrays import PIECE
from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.rows import LazyRows, Source, pieces
from selfens.files import check_regular
from selfens.files.tensors import write_atomically
from selfens.runs.run import Run

FILE = "baselines.json"
OURS, CHANCE, LOGISTIC, SELF_TRAINING = "this model", "chance (largest class)", "logistic regression", "self-training"
SUBJECTS = {CHANCE: "naming the largest class every time", SELF_TRAINING: f"self-training with {LOGISTIC}"}
MOST_SIDE, SAMPLE = 16, 2_000  # pixels, rows
MOST_LABELED, MOST_UNLABELED = 40_000_000, 4_000_000  # numbers, that is rows x features
WORK, MIN_ITERATIONS, MAX_ITERATIONS = 1e10, 20, 1000  # of one fit; work is rows x features x classes x iterations
UNEVEN = 1.5  # times as many rows in the largest class as in the smallest
CLEAR = 1.96**2  # McNemar's test at 95 %, with the correction for few rows

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Result:
    """Errors in percent, the balanced one is the mean over the classes; `is_clear` if ours differs by more than chance."""

    name: str
    error: float
    balanced_error: float
    is_clear: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """How a model does beside the baselines: `results`, ours first, and what follows from them in words."""

    results: tuple[Result, ...]
    labels: int
    rows: int
    """Tested on: the test rows, or with `folds` the labeled rows, each when it was hidden from the models."""
    folds: int = 0
    uneven: bool
    """Whether the classes are, so that the balanced error says something of its own."""
    images: bool = False
    notes: Sequence[str] = ()
    """On how the baselines were fitted."""

    @property
    def errors(self) -> dict[str, float]:
        """In percent, by name."""
        return {result.name: result.error for result in self.results}

    @property
    def numbers(self) -> str:
        """All errors in a sentence."""
        ours, *others = self.results
        tested = f"{self.rows:,} {'labeled rows that it did not see' if self.folds else 'test rows'}"
        balanced = f" (balanced error {ours.balanced_error:.2f} %)" if self.uneven else ""
        same = f" on the same {f'{self.folds} folds' if self.folds else f'{self.labels:,} labels'}"
        listed = [f"{each.name}{same * (each.name == LOGISTIC)} {each.error:.2f} %" for each in others]
        return f"This model misclassifies {ours.error:.2f} % of {tested}{balanced}; {', '.join(listed)}."

    @property
    def judgment(self) -> str:
        """Whether a baseline is better, and what to try then."""
        ours, *others = self.results
        best, fairest = (min(others, key=attrgetter(measure)) for measure in ("error", "balanced_error"))
        names = {each.name: SUBJECTS.get(each.name, each.name) for each in others}
        other = "features of a pretrained backbone" if self.images else "another method"
        better = best if best.error <= ours.error else fairest
        advice = f"{'' if better.name == CHANCE else 'use it, or '}try {other}, more epochs or more labels"
        doubt = "" if best.is_clear else f", though {self.rows:,} rows are too few to be sure"
        if best.error == ours.error == 0:
            return f"{names[best.name].capitalize()} makes no mistakes either."
        if best.error == ours.error and not (self.uneven and ours.balanced_error < fairest.balanced_error):
            return f"{names[best.name].capitalize()} does as well{doubt}: {advice}."
        if best.error < ours.error:
            points = f"{round(ours.error, 2) - round(best.error, 2):.2f} points{doubt}"  # of the numbers that are shown
            return f"{names[best.name].capitalize()} is better by {points}: {advice}."
        if self.uneven and fairest.balanced_error < ours.balanced_error:
            against = f"{fairest.balanced_error:.2f} % against {ours.balanced_error:.2f} %"
            return f"By the balanced error {names[fairest.name]} is better, {against}: {advice}."
        if best.error == ours.error:
            return f"{names[best.name].capitalize()} makes as many mistakes, but its balanced error is higher."
        return (
            f"It is better than {names[best.name]} by {round(best.error, 2) - round(ours.error, 2):.2f} points{doubt}."
        )

    @property
    def table(self) -> list[tuple[str, ...]]:
        """Headers, then a line for each, the lowest error first; with balanced errors if classes are uneven."""
        ranked = sorted(self.results, key=attrgetter("error"))
        lines = [(each.name, f"{each.error:.2f}", f"{each.balanced_error:.2f}") for each in ranked]
        return [line if self.uneven else line[:2] for line in (("", "error %", "balanced error %"), *lines)]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        lines = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in self.table]
        return "\n".join([*lines, f"{self.numbers} {self.judgment}", *self.notes])


# Functions of arrays


def predictions(
    inputs: Source, labels: Labels, test_inputs: Source, *, standardize: bool = True
) -> tuple[dict[str, Labels], list[str]]:
    """What each baseline predicts for the test rows, by name, and notes on how it was fitted.

    labels       of all rows of the inputs, -1 if unknown. With no unknown ones there is no self-training.
    standardize  False for a table, whose numbers are standardized already; its categories are better left as they are
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler
    from sklearn.semi_supervised import SelfTrainingClassifier
    from threadpoolctl import threadpool_limits

    labeled, unlabeled = (np.flatnonzero((labels != UNLABELED) == known) for known in (True, False))
    width = _flat(test_inputs[:1]).shape[1]
    some, others = _thinned(labeled, MOST_LABELED // width), _thinned(unlabeled, MOST_UNLABELED // width)
    rows = np.sort(np.concatenate([some, others]))
    # More threads would gain little, and on a busy machine they wait for each other.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # a note says if a fit has ended early
        scaler, y = StandardScaler(with_mean=standardize, with_std=standardize), labels[rows]
        x = scaler.fit_transform(np.concatenate([_flat(piece) for piece in pieces(inputs, PIECE, rows)]))
        known, work = y != UNLABELED, width * len(np.unique(labels))
        limits = [int(np.clip(WORK / (count * work), MIN_ITERATIONS, MAX_ITERATIONS)) for count in (len(some), len(x))]
        # In a large fit, a round of self-training begins where the one before ended, which takes a fifth of the time.
        logistic, base = (LogisticRegression(max_iter=n, warm_start=n < MAX_ITERATIONS) for n in limits)
        models = {LOGISTIC: logistic.fit(x[known], y[known])}
        if len(unlabeled):
            models[SELF_TRAINING] = SelfTrainingClassifier(base).fit(x, y)
        models[CHANCE] = DummyClassifier(strategy="most_frequent").fit(x[known], y[known])
        tested = [scaler.transform(_flat(piece)) for piece in pieces(test_inputs, PIECE)]
        found = {name: np.concatenate([model.predict(part) for part in tested]) for name, model in models.items()}
    notes = {
        f"The baselines see images reduced to {MOST_SIDE} pixels a side.": _is_large(inputs),
        f"They see {len(some):,} of the {len(labeled):,} labeled rows.": len(some) < len(labeled),
        f"Self-training sees {len(others):,} of {len(unlabeled):,} unlabeled rows.": len(others) < len(unlabeled),
        f"Logistic regression was stopped after {limits[0]:,} iterations.": logistic.n_iter_.max() >= limits[0],
    }
    return found, [note for note, holds in notes.items() if holds]


def _thinned(rows: Rows, most: int) -> Rows:
    """All of the rows, or so many, evenly spaced."""
    most = max(most, 1)
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _is_large(inputs: Source) -> bool:
    return inputs.ndim == 4 and max(inputs.shape[2:]) > MOST_SIDE


def _flat(inputs: NDArray[Any]) -> NDArray[np.float64]:
    """A vector for each row; of large images the means of their parts."""
    if _is_large(inputs):
        height, width = (min(side, MOST_SIDE) for side in inputs.shape[2:])
        inputs = adaptive_avg_pool2d(torch.from_numpy(inputs.astype(np.float32)), (height, width)).numpy()
    return inputs.reshape(len(inputs), -1).astype(np.float64)


def judge(predicted: Mapping[str, Labels], truth: Labels, **about: Any) -> Verdict:
    """The verdict on predictions for the same rows, ours first, whose classes are `truth`; `about` are its other fields."""
    counts = np.bincount(truth)
    present = np.flatnonzero(counts)
    wrong = {name: classes != truth for name, classes in predicted.items()}
    results = []
    for name, theirs in wrong.items():
        only_ours, only_theirs = int((wrong[OURS] & ~theirs).sum()), int((theirs & ~wrong[OURS]).sum())
        is_clear = max(abs(only_ours - only_theirs) - 1, 0) ** 2 > CLEAR * (only_ours + only_theirs)
        balanced = float(np.mean([100.0 * theirs[truth == number].mean() for number in present]))
        results.append(Result(name, 100.0 * float(theirs.mean()), balanced, is_clear))
    uneven = bool(counts.max() > UNEVEN * counts[present].min())
    return Verdict(results=tuple(results), rows=len(truth), uneven=uneven, **about)


def one_class(predicted: Labels, expected: Labels, classes: Sequence[str]) -> str:
    """A sentence if one class is predicted for most rows, and the others less than half as often as expected; else empty.

    expected  the classes of these rows, or of others like them
    """
    most = int(np.bincount(predicted).argmax())
    share, fair = float((predicted == most).mean()), float((expected == most).mean())
    if share <= 0.5 or 1 - share >= (1 - fair) / 2:
        return ""
    wanted = f"{100 * fair:.0f}" if fair >= 0.01 else "less than 1"
    return (
        f"The model predicts '{classes[most]}' for {100 * share:.0f} % of the rows, while {wanted} % should be of that class; "
        "it hardly tells the classes apart."
    )


# A run


def verdict_of(run: Run, dataset: Dataset, wanted: bool | None = None) -> Verdict | None:
    """The verdict that is stored in a run, else one on its test rows; None if the run is not finished or has no test rows.

    wanted  False: none at all; None: only on data of the user's own, because results on the named sets are known
    """
    found = stored(run) if wanted is not False else None
    is_own = run.about["own_data"] or run.config.data.name not in sources.SOURCES
    can_be_made = run.finished and len(dataset.test_labels) and (is_own if wanted is None else wanted)
    if found is not None or not can_be_made:
        return found
    choice = run.labels
    seen = choice.visited(dataset.num_rows, run.config.training.rows)
    labels = choice.training_labels(dataset.num_rows)[seen]
    baselines, notes = predictions(
        LazyRows([dataset.inputs], seen), labels, dataset.test_inputs, standardize=dataset.columns is None
    )
    predicted = {OURS: run.test_probabilities(dataset).argmax(axis=1), **baselines}
    return judge(predicted, dataset.test_labels, labels=len(choice.rows), images=dataset.is_images, notes=notes)


def store(run: Run, verdict: Verdict) -> None:
    """Keep the verdict in the run's directory, for its report."""
    content = {"run": run.about.get("id")} | asdict(verdict)
    write_atomically(run.path / FILE, (json.dumps(content, indent=2) + "\n").encode())


def stored(run: Run) -> Verdict | None:
    """The verdict in the run's directory; None if there is none of this run that can be read."""
    path = run.path / FILE
    try:
        check_regular(path)
        content = json.loads(path.read_text())
        if content.pop("run") != run.about.get("id"):
            return None
        results = tuple(Result(**each) for each in content.pop("results"))
        found = Verdict(results=results, **content)
        if not all(0 <= number <= 100 for each in results for number in (each.error, each.balanced_error)):
            return None
        return found if repr(found) else None  # what cannot be written out is damaged
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def one_class_of(run: Run, dataset: Dataset) -> str:
    """What `one_class` says of a run: of its test rows, or if there are none of some training rows."""
    if len(dataset.test_labels):
        return one_class(run.test_probabilities(dataset).argmax(axis=1), dataset.test_labels, run.classes)
    rows = _thinned(np.arange(dataset.num_rows), SAMPLE)
    return one_class(run.predict_training_rows(dataset, rows).argmax(axis=1), run.labels.labels, run.classes)
