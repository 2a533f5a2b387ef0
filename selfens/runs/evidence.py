"""Evidence: what was predicted for labeled rows by models that had not seen their labels. A run keeps it.

All that is said about the errors of a run follows from it: the error and its interval, the comparison with simple methods, the
temperature of its probabilities, which rows are answered, and which labels look wrong. The rows are the run's test rows, or its
labeled rows, each predicted by a model of a fold from which the label was hidden.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selfens.data.rows import Labels, Rows
from selfens.errors import RunError, plural
from selfens.files.tensors import load_tensors, save_tensors
from selfens.runs.statistics import fit_temperature, interval, least_confidence, tempered

FILE = "evidence.safetensors"
CAUTION = 0.8  # quantile of the temperature's posterior
FEWEST = 20  # rows that no model chose; with fewer of them, errors are measured on all rows
TRUST = 60  # as many labeled rows say as much about the error as the calibrated probabilities of the unlabeled ones
FINAL = 0.9  # the final model learned from all labels, so it needs a lower temperature than models of folds
SPREAD = 1.5  # errors by folds scatter like those of an independent test set with that many times fewer rows
ARRAYS = ("rows", "labels", "probabilities", "others", "suggested", "counted", "pool")


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    rows: Rows
    """Numbers of training rows; of test rows if `folds` is 0."""
    labels: Labels
    probabilities: NDArray[np.float32]
    """[rows, classes], as the networks gave them."""
    others: Mapping[str, Labels] = field(default_factory=dict)
    """The classes that simple methods predict, by name."""
    suggested: NDArray[np.bool_]
    """A model chose these rows for labeling."""
    counted: NDArray[np.bool_]
    """Errors are measured on these rows."""
    pool: NDArray[np.float32]
    """[unlabeled rows, classes] what the same models predicted for other rows that they had not seen."""
    folds: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        suggested: NDArray[np.bool_],
        copied: NDArray[np.bool_] | None = None,
        notes: tuple[str, ...] = (),
        **fields: Any,
    ) -> Evidence:
        """Make evidence from predictions. Rows that are `copied` from training rows are not measured on, if others are left.

        Rows that a model chose are harder than others. With unlabeled rows to compare with, errors are corrected for that
        (`correction`); without, they are measured on the other rows, or if there are few, on all.
        """
        fields.setdefault("pool", fields["probabilities"][:0])
        given, chosen = int((~suggested).sum()), plural(int(suggested.sum()), "label")
        harder, is_corrected = "of suggested rows, which are harder than others", len(fields["pool"]) > 0
        counted = np.ones(len(suggested), dtype=bool) if is_corrected or given < FEWEST else ~suggested
        if suggested.any() and is_corrected:
            notes = (f"Measured also on {chosen} {harder}; the correction takes that into account.", *notes)
        elif suggested.any() and given >= FEWEST:
            notes = (f"Not measured on {chosen} {harder}.", *notes)
        elif suggested.any():
            few = f"Measured also on {chosen} {harder}, because only {given} labels are of other rows"
            notes = (f"{few}: the error is too large; label some random rows to measure it.", *notes)
        if copied is not None and copied.any():
            what = f"{plural(int(copied.sum()), 'test row')} with copies or look-alikes among the training rows"
            others = counted & ~copied
            note = f"Not measured on {what}." if others.any() else f"Measured on {what}: the error is too small."
            counted, notes = others if others.any() else counted, (note, *notes)
        return cls(suggested=suggested, counted=counted, notes=notes, **fields)

    @cached_property
    def temperature(self) -> float:
        """What the network's logits are divided by to make its probabilities true."""
        return fit_temperature(self.probabilities[self.counted], self.labels[self.counted])

    @property
    def model_temperature(self) -> float:
        """The temperature of the run's own model, which is that of the predictions here unless they are by folds."""
        return self.temperature * (FINAL if self.folds else 1.0)

    @cached_property
    def cautious_temperature(self) -> float:
        """A larger one, because few rows leave the temperature uncertain; it decides which rows are answered."""
        return fit_temperature(self.probabilities[self.counted], self.labels[self.counted], CAUTION)

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """[counted rows] True where the model is wrong."""
        return np.asarray(self.probabilities.argmax(axis=1) != self.labels)[self.counted]

    @cached_property
    def correction(self) -> float:
        """Points to add to an error on the counted rows to estimate that on rows like the unlabeled ones.

        The calibrated probabilities of the unlabeled rows say how many errors to expect there. If there are more errors among
        the labeled rows than their own probabilities say, as many more are expected, in part: few rows may be off by chance.
        The rows need not be drawn at random: those that a model chose because they are hard have uncertain probabilities, too.
        """
        if not len(self.pool):
            return 0.0
        expected, seen = (
            100 * (1 - float(each.mean()))
            for each in (tempered(self.pool, self.temperature).max(axis=1), self.confidence)
        )
        error = 100 * float(self.wrong.mean())
        share = self.num_random / (self.num_random + TRUST)
        return expected + share * (error - seen) - error

    @property
    def num_random(self) -> int:
        """How many of the counted rows no model chose, if there are any; else all of them."""
        return int((self.counted & ~self.suggested).sum()) or len(self.wrong)

    def corrected(self, wrong: NDArray[np.bool_]) -> tuple[float, tuple[float, float]]:
        """Return the error of a method that is wrong on these counted rows, and its 90 % interval, in percent.

        By folds the interval is that of fewer rows: their models learn from fewer labels than the final one, each of its own,
        and rows that a model chose say little about the others.
        """
        error = float(np.clip(100 * wrong.mean() + self.correction, 0, 100))
        rows = self.num_random / SPREAD if self.folds else len(wrong)
        return error, interval(error / 100 * rows, rows)

    @property
    def error(self) -> float:
        """In percent."""
        return self.corrected(self.wrong)[0]

    @property
    def error_interval(self) -> tuple[float, float]:
        """The 90 % interval of the error, in percent."""
        return self.corrected(self.wrong)[1]

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """[counted rows] calibrated probability of the predicted class."""
        return np.asarray(tempered(self.probabilities[self.counted], self.temperature).max(axis=1))

    def is_sure(self, probabilities: NDArray[Any], max_error: float) -> NDArray[np.bool_]:
        """Return which rows are answered if `max_error` percent of the answers may be wrong.

        `probabilities` are as the network gave them. The rows to come are taken to be like those of the evidence.
        """
        cautious = self.cautious_temperature
        known = tempered(self.probabilities[self.counted], cautious).max(axis=1)
        given = tempered(probabilities, cautious * self.model_temperature / self.temperature).max(axis=1)
        return np.asarray(given >= least_confidence(known, max_error))

    # Files

    def save(self, folder: Path, run: str) -> None:
        """Write the evidence of the run with this id into its folder."""
        arrays = {name: getattr(self, name) for name in ARRAYS if name != "others"}
        arrays["others"] = np.stack([*self.others.values()]) if self.others else np.empty((0, len(self.rows)), np.int64)
        about = {"run": run, "folds": self.folds, "notes": self.notes, "others": list(self.others)}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        save_tensors(folder / FILE, tensors, {"about": json.dumps(about)})

    @classmethod
    def load(cls, folder: Path, run: str, num_classes: int) -> Evidence | None:
        """Return what `save` wrote; None if there is nothing, or it is damaged or of another run."""
        try:
            tensors, metadata = load_tensors(folder / FILE)
            about: Any = json.loads(metadata["about"])
            arrays = {name: tensors[name].numpy() for name in ARRAYS}
            names, notes, folds = about["others"], about["notes"], about["folds"]
            is_text = all(isinstance(text, str) for text in (*names, *notes)) and type(folds) is int
            if about["run"] != run or not is_text or not _fit_together(arrays, len(names), num_classes):
                return None
        except (RunError, ValueError, TypeError, LookupError, RecursionError):
            return None
        others = dict(zip(names, arrays.pop("others"), strict=True))
        return cls(folds=folds, notes=tuple(notes), others=others, **arrays)


def _fit_together(arrays: Mapping[str, NDArray[Any]], num_others: int, num_classes: int) -> bool:
    """Return True if arrays that were read from a file can be those of evidence."""
    rows, counted, classes = len(arrays["rows"]), arrays["counted"], (arrays["labels"], *arrays["others"])
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("rows", "labels", "suggested", "counted"), (rows,))
    shapes |= {"probabilities": (rows, num_classes)}
    shapes |= {"others": (num_others, rows), "pool": (len(arrays["pool"]), num_classes)}
    has_shapes = all(arrays[name].shape == shape for name, shape in shapes.items())
    are_masks = counted.dtype == arrays["suggested"].dtype == bool
    if not has_shapes or not are_masks or not counted.any() or arrays["rows"].dtype != np.int64:
        return False
    are_classes = all(each.dtype == np.int64 and each.min() >= 0 and each.max() < num_classes for each in classes)
    return (
        are_classes
        and arrays["rows"].min() >= 0
        and all(bool(np.isfinite(arrays[name]).all()) for name in ("probabilities", "pool"))
    )
