"""What a person is told about a run: its title, and warnings when training cannot be doing what was meant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from selfens.core.device import environment
from selfens.data import sources
from selfens.data.arrays import same_scale, value_range
from selfens.errors import visible
from selfens.methods.base import WeightedOptions
from selfens.runs.directory import RunDirectory
from selfens.training.progress import Progress
from selfens.training.setup import Parts, range_is_known

NEGLIGIBLE_WEIGHT = 1e-3


def title(parts: Parts, directory: RunDirectory) -> str:
    """What is trained on what and how, in two lines, one more for a backbone or a table, and one for how it was chosen."""
    config, data, rows, options = parts.config, parts.prepared.data, parts.rows, parts.method.options
    extra = f"{data.extra_rows:,} of them extra, " if data.extra_rows else ""
    labeled = "all" if rows.num_labeled == len(rows.visited) else f"{rows.num_labeled:,}"
    method = type(parts.method).__name__ if options.name == "own" else options.name
    network = type(parts.network).__name__ if parts.given.network is not None else config.network.name
    epochs = "1 epoch" if config.schedule.epochs == 1 else f"{config.schedule.epochs:,} epochs"
    inputs = f"inputs {data.input_shape}"
    if data.origin is not None:
        inputs += (
            f"\n{visible(data.origin.backbone['name'])} at {data.origin.backbone['size']} px: {data.origin.summary}"
        )
    if data.columns is not None:
        inputs += f"\n{visible(str(data.columns))}"
    if note := str(directory.about().get("note") or ""):
        inputs += f"\n{visible(note)}"
    weight = f", w_max {options.weight_max:g}" if isinstance(options, WeightedOptions) else ""
    return (
        f"{visible(data.name)}: {len(rows.visited):,} rows, {extra}{labeled} labeled, "
        f"{parts.evaluated['test_error'].total:,} to test on; run in {visible(str(directory.path))}\n"
        f"{method}, {network} ({parts.optimizer.flat.numel():,} parameters), {parts.prepared.device.type} {parts.precision}; "
        f"{epochs}{weight}, learning rate {config.optimizer.learning_rate:g}; {inputs}"
    )


def warn_about_data(parts: Parts, progress: Progress) -> None:
    """What was left out of a new run, or is not as one might think."""
    config, data = parts.config.data, parts.prepared.data
    if data.unreadable:
        count = f"{len(data.unreadable)} files that" if len(data.unreadable) > 1 else "1 file that"
        progress.warn(f"left out {count} could not be read, the first {data.unreadable[0]}; run.json lists them.")
    for note in data.notes:
        progress.warn(note)
    spelled = Counter(" ".join(name.casefold().split()) for name in data.classes)
    if alike := [f"'{name}'" for name in data.classes if spelled[" ".join(name.casefold().split())] > 1]:
        progress.warn(f"classes that differ only in case or spaces: {', '.join(alike[:8])}; are they meant to be one?")
    limits = data.value_range if len(data.test_inputs) else None  # None for vectors, too
    if limits is not None and not same_scale(limits, test := value_range(data.test_inputs)):
        progress.warn(
            f"the training images are from {limits[0]:g} to {limits[1]:g}, and the test images from {test[0]:g} to "
            f"{test[1]:g}; are they on the same scale?"
        )
    for name in (config.name, config.extra or "") if parts.given.dataset is None else ():
        if doubt := sources.doubt(name, config.folder):
            progress.warn(doubt)
    if Path(config.name).is_dir() and data.row_names and config.labels is None and (data.labels >= 0).all():
        progress.warn("every image is in the folder of a class; put images without a class into unlabeled/.")


def warn_before(parts: Parts, progress: Progress) -> None:
    """Say so if self-ensembling cannot be working."""
    data, options = parts.prepared.data, parts.method.options
    varied = next((name for name in ("strong", "crop") if name in parts.method.views), None)
    if varied and data.is_images and not range_is_known(parts.config, data):
        why = "because the images are not known to be from 0 to 1; scale them so that white is 1, or 255 of bytes"
        if data.are_pixels:
            why = "because the inputs are preprocessed before; set data.preprocess_after_views=true"
        progress.warn(f"{varied} views change no colors, {why}.")
    if parts.method.uses_unlabeled and isinstance(options, WeightedOptions) and parts.weight_max < NEGLIGIBLE_WEIGHT:
        progress.warn(
            f"the unsupervised weight reaches only {parts.weight_max:.2g}, so this is supervised training in all but "
            "name; raise method.weight_max or set method.weight_scale=none."
        )


def warn_after(parts: Parts, losses: dict[str, float], progress: Progress) -> None:
    """Say so if the last epoch learned nothing from unlabeled rows; `losses` are its means."""
    threshold = getattr(parts.method.options, "threshold", None)
    unlabeled = len(parts.rows.visited) - parts.rows.num_labeled
    if threshold is not None and unlabeled and losses.get("kept") == 0:
        progress.warn(
            f"no prediction of the last epoch was confident enough to learn from, so unlabeled rows taught nothing; "
            f"lower method.threshold (it is {threshold})."
        )


def warn_about_changes(before: dict[str, Any], parts: Parts, progress: Progress) -> None:
    """What is not as it was when a run that is resumed began."""
    now = environment(parts.prepared.device, parts.precision)
    changed = [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]
    if changed:
        progress.warn(
            f"resumed under other conditions, so results may differ in the last digits ({', '.join(changed)})."
        )
