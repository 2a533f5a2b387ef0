"""Messages about a run: its title, and warnings if training is unlikely to work as intended."""

import unicodedata
from dataclasses import replace
from typing import Any

import numpy as np

from selfens.core.device import environment
from selfens.core.views import VIEWS
from selfens.data import sources
from selfens.data.arrays import same_scale, value_range
from selfens.data.dataset import Dataset
from selfens.data.folders import is_ambiguous, unlabeled_advice
from selfens.data.inspection import LARGEST, Group, Inspection, inspect
from selfens.data.rows import take
from selfens.data.sources.base import PathOptions
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import listed, plural, visible
from selfens.methods.base import WeightedOptions
from selfens.runs.directory import RunDirectory
from selfens.runs.novelty import Novelty
from selfens.training.components import Components
from selfens.training.progress import Progress

NEGLIGIBLE_WEIGHT = 1e-3


def title(components: Components, directory: RunDirectory) -> str:
    """Describe the run in two lines, plus a line for the data and encoder and a line for the note if there is one."""
    config, data, options = components.config, components.prepared.data, components.method.options
    extra = f"{data.dataset.extra_rows:,} of them extra, " if data.dataset.extra_rows else ""
    labeled = "all" if components.num_labeled == len(components.visited) else f"{components.num_labeled:,}"
    method = type(components.method).__name__ if options.name == "custom" else options.name
    network = type(components.network).__name__ if components.overrides.network is not None else config.network.name
    weight = f", w_max {options.weight_max:g}" if isinstance(options, WeightedOptions) else ""
    lines = (
        f"{visible(data.dataset.name)}: {len(components.visited):,} rows, {extra}{labeled} labeled, "
        f"{len(data.test_labels):,} to test on; run in {visible(str(directory.path))}",
        f"{method}, {network} ({components.optimizer.flat.numel():,} parameters), {components.prepared.device.type} "
        f"{components.precision}; {plural(config.schedule.epochs, 'epoch')}{weight}, learning rate "
        f"{config.optimizer.learning_rate:g}; inputs {data.input_shape}",
        visible("; ".join(filter(None, (str(data.encoder), data.work, config.source.summary)))),
        visible(directory.info().note),
    )
    return "\n".join(filter(None, lines))


def warn_about_data(components: Components, directory: RunDirectory, progress: Progress) -> None:
    """Warn about surprises in the data of a new run, such as copies, or files that were left out."""
    config, data = components.config, components.prepared.data
    dataset = data.dataset
    inspection = Inspection(skipped=dataset.skipped)
    if isinstance(config.source, PathOptions) and components.group.is_first:
        inspection = replace(inspect(dataset), far=_far_rows(data))
        inspection.save(directory.path)
    for line in dict.fromkeys([*inspection.lines(dataset), *data.notes]):
        progress.warn(line)
    if getattr(config.source, "unlabeled", None) is None:
        _warn_of_ambiguous(dataset, hasattr(config.source, "unlabeled"), progress)
    spelled: dict[str, list[str]] = {}
    for name in data.classes:
        spelled.setdefault(_plain(name), []).append(_escaped(name))
    if alike := [" and ".join(f"'{name}'" for name in names) for names in spelled.values() if len(names) > 1]:
        differ = "classes that differ only in case, spaces or invisible characters"
        progress.warn(f"{differ}: {'; '.join(alike[:8])}{'; ...' * (len(alike) > 8)}; are they the same class?")
    if data.is_images and len(data.test_inputs):
        limits, test = value_range(data.inputs), value_range(data.test_inputs)
        if not same_scale(limits, test):
            found = f"from {limits[0]:g} to {limits[1]:g}, and the test images from {test[0]:g} to {test[1]:g}"
            progress.warn(f"the training images range {found}; are they on the same scale?")
    for options in (config.source, sources.public_extra(config.source)):
        if options is not None and (warning := sources.build(options).warning()):
            progress.warn(warning)
    are_files = bool(dataset.folder) and isinstance(config.source, PathOptions)
    if are_files and config.labels.count is None and (data.labels >= 0).all():
        progress.warn("every image has a class; put images without a class into unlabeled/.")


def _far_rows(data: EncodedDataset) -> Group:
    """Return the rows that are far from all others, of an even sample if there are very many."""
    main = data.dataset.num_main
    rows = np.linspace(0, main - 1, min(main, LARGEST)).astype(np.int64)
    inputs = take(data.inputs, rows)
    is_far = Novelty.fit(inputs, standardize=not data.encoder.is_scaled).remoteness(inputs) > 1
    return tuple(data.dataset.train_rows[rows[is_far]].tolist())


def _warn_of_ambiguous(dataset: Dataset, has_option: bool, progress: Progress) -> None:
    """Warn of classes whose names may say that there is no label; `has_option`: an option of the source says that they do."""
    words = [name for name in dataset.classes if is_ambiguous(name)]
    if not words:
        return
    counts = [f"{int((dataset.labels == dataset.classes.index(word)).sum()):,} of class '{word}'" for word in words]
    how = f"add {unlabeled_advice(words)}" if has_option else "give them -1 as a label"
    progress.warn(f"rows {listed(counts)}: if this means that they have no label, {how}.")


def _plain(name: str) -> str:
    """Normalize case, spaces and Unicode compatibility forms of a name, and remove its zero-width characters."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join("".join(letter for letter in folded if unicodedata.category(letter) != "Cf").split())


def _escaped(name: str) -> str:
    """Return a name in which every letter that is invisible, or of another form than usual, is written by its number."""
    usual = unicodedata.normalize("NFKC", name) == name

    def shown(letter: str) -> str:
        is_unseen = not letter.isprintable() or (letter.isspace() and letter != " ")
        is_odd = not usual and unicodedata.normalize("NFKC", f"x{letter}") != f"x{letter}"
        is_mark = not usual and bool(unicodedata.combining(letter))
        return letter.encode("unicode_escape").decode() if is_unseen or is_odd or is_mark else letter

    return "".join(map(shown, name))


def warn_before(components: Components, progress: Progress) -> None:
    """Warn if self-ensembling cannot work."""
    prepared, method = components.prepared, components.method
    colored = next((name for name in method.views if VIEWS[name].has_colors), None)
    if colored and prepared.data.is_images and not prepared.views_see_pixels(method.views):
        why = "because the images are not known to range from 0 to 1; scale them so that white is 1, or 255 in bytes"
        if prepared.data.are_pixels:
            why = "because the inputs are preprocessed first; set preprocess.after_views=on"
        progress.warn(f"{colored} views do not change colors, {why}.")
    is_weighted = method.uses_unlabeled and isinstance(method.options, WeightedOptions)
    if is_weighted and components.weight_max < NEGLIGIBLE_WEIGHT:
        progress.warn(
            f"the unsupervised weight reaches only {components.weight_max:.2g}, so this is supervised training in all but "
            "name; raise method.weight_max or set method.weight_scale=none."
        )


def warn_after(components: Components, losses: dict[str, float], progress: Progress) -> None:
    """Warn if the last epoch learned nothing from unlabeled rows; `losses` are its means."""
    threshold = getattr(components.method.options, "threshold", None)
    unlabeled = len(components.visited) - components.num_labeled
    if threshold is not None and unlabeled and losses.get("kept") == 0:
        progress.warn(
            f"no prediction of the last epoch was confident enough to learn from, so nothing was learned from unlabeled rows; "
            f"lower method.threshold (it is {threshold})."
        )


def warn_about_changes(before: dict[str, Any], components: Components, progress: Progress) -> None:
    """Warn if a run is resumed with other versions, hardware or threads."""
    now = environment(components.prepared.device, components.precision)
    if changed := [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]:
        progress.warn(
            f"resumed with other versions or hardware, so results may differ in the last digits ({', '.join(changed)})."
        )
