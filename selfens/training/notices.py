"""Messages about a run: its title, and warnings if training is unlikely to work as intended."""

import unicodedata
from collections import Counter
from typing import Any

from selfens.core.device import environment
from selfens.core.views import VIEWS
from selfens.data import sources
from selfens.data.arrays import same_scale, value_range
from selfens.data.inspection import inspect
from selfens.data.sources.base import PathOptions
from selfens.errors import plural, visible
from selfens.methods.base import WeightedOptions
from selfens.runs.directory import RunDirectory
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
    if isinstance(config.source, PathOptions) and components.group.is_first:
        inspection = inspect(dataset)
        inspection.save(directory.path)
        for line in inspection.lines(dataset):
            progress.warn(line)
    if dataset.skipped:
        files = plural(len(dataset.skipped), "file")
        progress.warn(f"left out {files} that could not be read, the first {dataset.skipped[0]}; run.json lists them.")
    for note in data.notes:
        progress.warn(note)
    spelled = Counter(map(_plain, data.classes))
    if alike := [f"'{name}'" for name in data.classes if spelled[_plain(name)] > 1]:
        names = ", ".join(alike[:8])
        progress.warn(
            f"classes that differ only in case, spaces or invisible characters: {names}; are they the same class?"
        )
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


def _plain(name: str) -> str:
    """Normalize case, spaces and Unicode compatibility forms of a name, and remove its zero-width characters."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join("".join(letter for letter in folded if unicodedata.category(letter) != "Cf").split())


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
