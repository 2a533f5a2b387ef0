"""What a person is told about a run: its title, and warnings when training cannot be doing what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from selfens.config import Config
from selfens.data.dataset import Dataset
from selfens.methods.base import WeightedOptions
from selfens.runs.directory import RunDirectory
from selfens.training.progress import Expected, Progress
from selfens.training.setup import Parts, range_is_known

NEGLIGIBLE_WEIGHT = 1e-3
COLLAPSED_SPREAD = 1e-2
SHOWN_CLASSES = 10
NO_COLOURS = "strong views change no colours, because the range of the inputs is not known"
RESIDENCE = {"device": "", "ram": ", inputs prefetched from RAM", "file": ", inputs prefetched from their file"}


def title(parts: Parts, directory: RunDirectory) -> str:
    """What is trained on what and how, in a few lines."""
    config, data, rows = parts.config, parts.prepared.data, parts.rows
    extra = f"{data.extra_rows:,} of them extra, " if data.extra_rows else ""
    sides = " x ".join(map(str, data.input_shape[1:]))
    pixels = f", images of {sides}" if sides else ""
    epochs = "1 epoch" if config.schedule.epochs == 1 else f"{config.schedule.epochs} epochs"
    options = parts.method.options
    weight = f", w_max {options.weight_max:g}" if isinstance(options, WeightedOptions) else ""
    strong = f"\n{NO_COLOURS}" if _strong_without_colours(parts) and data.inputs.dtype != np.uint8 else ""
    return (
        f"{data.name}: {len(rows.visited):,} rows, {extra}{rows.num_labelled:,} labelled, "
        f"{parts.evaluated['test_error'].total:,} to test on; run in {directory.path}\n"
        f"{method_name(parts)}, {network_name(parts)} ({parts.optimizer.flat.numel():,} parameters), "
        f"{parts.prepared.device.type} {parts.precision}; {epochs}{weight}, learning rate "
        f"{config.optimizer.learning_rate:g}, translation {config.augment.translation}, preprocessing "
        f"{config.data.preprocess}{pixels}{RESIDENCE[parts.residence]}{strong}"
    )


def _strong_without_colours(parts: Parts) -> bool:
    data = parts.prepared.data
    return "strong" in parts.method.views and data.is_images and not range_is_known(parts.config, data)


def method_name(parts: Parts) -> str:
    name = parts.method.options.name
    return type(parts.method).__name__ if name == "own" else name


def network_name(parts: Parts) -> str:
    return type(parts.network).__name__ if parts.given.network is not None else parts.config.network.name


def warn_about_data(config: Config, data: Dataset, progress: Progress) -> None:
    """What was left out, or is not as one might think."""
    if data.unreadable:
        count = f"{len(data.unreadable)} files that" if len(data.unreadable) > 1 else "1 file that"
        progress.warn(f"left out {count} could not be read, the first {data.unreadable[0]}; run.json lists them.")
    if Path(config.data.name).is_dir() and data.row_names and config.data.labels is None and (data.labels >= 0).all():
        counts = np.bincount(data.labels, minlength=data.num_classes)
        each = ", ".join(f"{name} {count:,}" for name, count in zip(data.classes[:SHOWN_CLASSES], counts, strict=False))
        more = ", ..." if data.num_classes > SHOWN_CLASSES else ""
        progress.warn(
            f"every image is in the folder of a class ({each}{more}); put images without a class into unlabeled/."
        )


def warn_before(parts: Parts, progress: Progress) -> None:
    """Say so if self-ensembling cannot be working."""
    data, rows, name = parts.prepared.data, parts.rows, method_name(parts)
    if parts.evaluated["test_error"].total == 0:
        progress.warn(Expected("there are no test rows, so no test error is reported."))
    if _strong_without_colours(parts) and data.inputs.dtype == np.uint8:
        progress.warn(f"{NO_COLOURS} after preprocessing; set data.preprocess_after_views=true.")
    if not parts.method.uses_unlabeled:
        if data.extra_rows:
            progress.warn(
                f"{name} training learns nothing from the {data.extra_rows:,} extra rows; they only fill batches."
            )
        return
    if rows.num_labelled == len(rows.visited):
        progress.warn(
            Expected(
                f"every training row is labelled: with nothing unlabeled, {name} training gains only from the consistency of "
                "its predictions on labelled rows."
            )
        )
    if isinstance(parts.method.options, WeightedOptions) and parts.weight_max < NEGLIGIBLE_WEIGHT:
        progress.warn(
            f"the unsupervised weight reaches only {parts.weight_max:.2g}, so this is supervised training in all but "
            "name; raise method.weight_max or set method.weight_scale=none."
        )


def warn_about_collapse(parts: Parts, epoch: int, spread: float, progress: Progress) -> bool:
    """Whether all rows have the same prediction, which is said then."""
    collapsed = spread < COLLAPSED_SPREAD and epoch >= parts.config.schedule.weight_rampup
    if not collapsed or not parts.method.uses_unlabeled:
        return False
    progress.warn(
        f"in epoch {epoch + 1} all rows have the same prediction, so their targets teach nothing; the unsupervised weight may "
        "rise too fast: lower method.weight_max or lengthen its ramp-up (schedule.weight_rampup_epochs)."
    )
    return True


def warn_about_changes(before: dict[str, Any], now: dict[str, Any], progress: Progress) -> None:
    changed = [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]
    if changed:
        progress.warn(
            f"resumed under other conditions, so results may differ in the last digits ({', '.join(changed)})."
        )
