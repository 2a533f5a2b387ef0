"""Comparison: a model beside the simple methods of `baselines`, on the same rows, and what follows from it in words.

Every error comes with its interval. A method is called better than another only if chance does not explain the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from selfens import auto
from selfens.config import Config
from selfens.data.rows import Labels
from selfens.runs.evidence import Evidence
from selfens.runs.run import Run
from selfens.tools.baselines import CHANCE, FOREST, LOGISTIC, SELF_TRAINING
from selfens.tools.frozen import COMMITTEE

OURS = "this model"
SUBJECTS = {CHANCE: "always predicting the largest class", SELF_TRAINING: f"self-training with {LOGISTIC}"}
KEPT = {FOREST: "forest", LOGISTIC: "linear"}
"""Methods that a run can be, and the members of a committee that are these."""
UNEVEN = 1.5  # times as many rows in the largest class as in the smallest
SIGNIFICANT = 1.96**2  # McNemar's test at 95 %, with continuity correction
SAMPLE = 2_000  # rows


@dataclass(frozen=True, kw_only=True)
class Result:
    """The errors of one method in percent. The balanced error is the mean over the classes."""

    name: str
    error: float
    interval: tuple[float, float]
    """The 90 % interval of the error."""
    balanced_error: float
    differs: bool
    """Its error differs from ours by more than chance explains."""
    balanced_differs: bool


@dataclass(frozen=True, eq=False)
class Comparison:
    evidence: Evidence
    num_labels: int
    """How many labels were used."""
    is_images: bool

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """Ours first."""
        counted, ours = self.evidence.counted, self.evidence.probabilities.argmax(axis=1)
        truth = self.evidence.labels[counted]
        wrong = {name: classes[counted] != truth for name, classes in {OURS: ours, **self.evidence.others}.items()}
        corrected = {name: self.evidence.corrected(each) for name, each in wrong.items()}
        return tuple(_result(name, each, corrected[name], wrong[OURS], truth) for name, each in wrong.items())

    @property
    def errors(self) -> dict[str, float]:
        """In percent, by name."""
        return {result.name: result.error for result in self.results}

    @property
    def is_uneven(self) -> bool:
        """Class sizes differ, so the balanced error says something else."""
        counts = np.bincount(self.evidence.labels[self.evidence.counted])
        return bool(counts.max() > UNEVEN * counts[counts > 0].min())

    @property
    def numbers(self) -> str:
        """All errors in a sentence."""
        (ours, *others), folds, rows = self.results, self.evidence.folds, len(self.evidence.wrong)
        tested = f"{rows:,} {'labeled rows that it did not see' if folds else 'test rows'}"
        low, high = ours.interval
        about = f"misclassifies {ours.error:.2f} % of {tested}"
        if self.evidence.correction:
            about = f"misclassifies an estimated {ours.error:.2f} % of rows like yours, measured on {tested}"
        more = f"90 % interval {low:.1f} to {high:.1f}"
        more += f"; balanced error {ours.balanced_error:.2f} %" if self.is_uneven else ""
        same = f" on the same {f'{folds} folds' if folds else f'{self.num_labels:,} labels'}"
        errors = [f"{each.name}{same if each.name == LOGISTIC else ''} {each.error:.2f} %" for each in others]
        return f"This model {about} ({more}); {', '.join(errors)}."

    @cached_property
    def best(self) -> tuple[Result, Result]:
        """The best of the other methods by its error, and by its balanced error; ours if there is no other."""
        others = self.results[1:] or self.results
        return min(others, key=attrgetter("error")), min(others, key=attrgetter("balanced_error"))

    @property
    def is_worse(self) -> bool:
        """A simple method has a smaller error, or if class sizes differ, a smaller balanced error, not only by chance."""
        ours, (best, fairest) = self.results[0], self.best
        is_fairer = fairest.balanced_differs and fairest.balanced_error < ours.balanced_error
        return (best.differs and best.error < ours.error) or (self.is_uneven and is_fairer)

    @property
    def advice(self) -> str:
        """What to do if a simple method is better."""
        if COMMITTEE in self.evidence.others:
            return "use the committee, which is the run in the folder frozen"
        other = "features of a pretrained backbone" if self.is_images else "another method"
        return f"try {other}, more epochs or more labels"

    @property
    def judgment(self) -> str:
        """Whether a simple method is better, and what to try then."""
        ours, *others = self.results
        if not others:
            return "It was compared with no other method."
        best, fairest = self.best

        def subject(result: Result) -> str:
            return SUBJECTS.get(result.name, result.name)

        if self.is_worse:
            by_error = best.differs and best.error < ours.error
            better, measure = (best, "") if by_error else (fairest, " of the balanced error")
            points = ours.error - best.error if by_error else ours.balanced_error - fairest.balanced_error
            why = "fine-tuning did not help, so " if COMMITTEE in self.evidence.others else ""
            return f"{subject(better).capitalize()} is better by {points:.2f} points{measure}: {why}{self.advice}."
        if not best.differs and COMMITTEE in self.evidence.others and best.error <= ours.error:
            rows = f"{len(self.evidence.wrong):,} rows are too few to tell"
            return f"Fine-tuning is not better than {subject(best)}, as far as can be seen: {rows}."
        if best.differs:
            return f"It is better than {subject(best)} by {best.error - ours.error:.2f} points."
        if best.error == ours.error == 0:
            return f"{subject(best).capitalize()} makes no mistakes either."
        return f"{len(self.evidence.wrong):,} rows are too few to tell whether {subject(best)} is better or worse."

    @property
    def table(self) -> list[tuple[str, ...]]:
        """Headers, then a line for each method, the lowest error first; with balanced errors if class sizes differ."""
        lines = [("", "error %", "90 % interval", "balanced error %")]
        for each in sorted(self.results, key=attrgetter("error")):
            low, high = each.interval
            lines.append((each.name, f"{each.error:.2f}", f"{low:.1f} to {high:.1f}", f"{each.balanced_error:.2f}"))
        return [line if self.is_uneven else line[:3] for line in lines]

    @property
    def notes(self) -> list[str]:
        """What there is to know about the numbers."""
        points, rows = self.evidence.correction, f"{len(self.evidence.pool):,} unlabeled rows"
        if abs(points) < 0.005:
            return [*self.evidence.notes]
        why = f"by what the calibrated probabilities of {rows} say"
        return [f"All errors are corrected by {points:+.2f} points, {why}.".replace("-", "−"), *self.evidence.notes]

    @property
    def lines(self) -> list[str]:
        """The table and the judgment, to print."""
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        rows = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in self.table]
        return [*rows, f"{self.numbers} {self.judgment}", *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _result(
    name: str,
    wrong: NDArray[np.bool_],
    corrected: tuple[float, tuple[float, float]],
    ours: NDArray[np.bool_],
    truth: Labels,
) -> Result:
    """Compare a method with ours, from which rows each misclassifies."""
    only_ours, only_theirs = int((ours & ~wrong).sum()), int((wrong & ~ours).sum())
    lead = max(abs(only_ours - only_theirs) - 1, 0)
    # The same test with each row weighted by the size of its class, which makes one row count at most `step`.
    leads = (wrong.astype(int) - ours) / np.bincount(truth)[truth]
    step = np.abs(leads).max()
    balanced_lead = max(abs(leads.sum()) - step, 0)
    return Result(
        name=name,
        error=corrected[0],
        interval=corrected[1],
        balanced_error=100 * float(np.mean([wrong[truth == number].mean() for number in np.unique(truth)])),
        differs=lead**2 > SIGNIFICANT * (only_ours + only_theirs),
        balanced_differs=bool(balanced_lead**2 > SIGNIFICANT * (leads**2).sum()),
    )


def comparison_of(run: Run) -> Comparison | None:
    """Return the comparison that follows from a run's evidence, if it has any."""
    if run.evidence is None:
        return None
    return Comparison(run.evidence, len(run.labels.rows), is_images=len(run.input_shape) == 3)


def config_of_best(run: Run, comparison: Comparison) -> tuple[str, Config] | None:
    """Return the best method that is clearly better than the run and can be one itself, and its config; or None."""
    ours, *others = comparison.results
    names = {*KEPT, COMMITTEE}
    better = [each for each in others if each.name in names and each.differs and each.error < ours.error]
    if not better:
        return None
    name = min(better, key=attrgetter("error")).name
    config = run.config
    if run.frozen is not None:  # simple methods had the frozen features
        prior = config.labels.prior
        config = auto.frozen_settings(config, run.info.rows).with_values("labels", prior=prior)
    if name == COMMITTEE:
        return name, config
    config = config.with_overrides([*auto.VECTORS, f"method.members={KEPT[name]}", "method.class_shares=labels"])
    return name, config.with_epochs(1)


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


def one_class_of(run: Run) -> str:
    """Return what `one_class` says about a run's test rows, or if there are none, about some training rows."""
    data = run.data()
    if len(data.test_labels):
        return one_class(run.test_probabilities.argmax(axis=1), data.test_labels, run.classes)
    rows = np.linspace(0, data.num_rows - 1, min(data.num_rows, SAMPLE)).astype(np.int64)
    return one_class(run.predict_training_rows(rows=rows).argmax(axis=1), run.labels.labels, run.classes)
