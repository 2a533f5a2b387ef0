"""From what a person names, a preset or a file or folder of their own, to the config of a run on it."""

from __future__ import annotations

import os
from pathlib import Path

from selfens import presets
from selfens.config import Config
from selfens.core.device import resolve_device
from selfens.data import folder, images, sources, table_files
from selfens.errors import ConfigError, nearest


def config_for(
    source: str,
    method: str | None = None,
    size: int | None = None,
    device: str = "auto",
    label: str | None = None,
    backbone: str | None = None,
) -> Config:
    """The config of a preset or for a user's own data; a preset's name wins over a file or folder of that name. With a
    label column the source is a table. With a backbone, what is trained on are vectors, whatever the images are.

    Only the headers of arrays, the lines of a table and the names of files are read. The data are loaded by the training.
    """
    is_preset, is_arrays = presets.full_name(source) is not None, sources.is_array_source(source)
    if label is not None and (is_preset or not table_files.is_table(source)):
        raise ConfigError(
            f"a label column was given, but {source} is not a table (.csv, .tsv or .parquet); leave it out."
        )
    if label is None and table_files.is_table(source) and os.path.isfile(source):
        columns = table_files.column_names(Path(source))
        if columns and "file" not in map(str.lower, columns):
            raise ConfigError(
                f"{source} is a table, and its column of labels was not named; add --label and one of "
                f"{', '.join(columns[:20])}. (A list of images has the columns file and label.)"
            )
    if size is not None and (is_preset or is_arrays or label is not None) and backbone is None:
        raise ConfigError(f"an image size was given, but {source} is not a folder of images; leave the size out.")
    if is_preset and backbone is not None:
        raise ConfigError(
            f"a backbone was named, but {source} is a preset, with a network of its own; give a folder of images, a CSV or an "
            ".npz file."
        )
    if is_preset:
        return presets.get(source, method)
    path, on_gpu, photos = Path(source), resolve_device(device).type == "cuda", False
    if label is not None:
        rows, side = table_files.count_rows(path), None
    elif is_arrays:
        rows, side = sources.rows_and_side(path)
    elif folder.is_folder_source(source):
        train, test = folder.list_images(path)
        rows, side = len(train), images.suggested_size([*train, *test]) if size is None else size
        photos = not all(name.isdigit() or len(name) == 1 for name in filter(None, train.values()))
    else:
        raise ConfigError(_no_such_source(source))
    if backbone is not None:
        if side is None:
            raise ConfigError(f"a backbone was named, but {source} holds vectors; expected images.")
        side, photos = None, False
    config = presets.for_arrays(
        str(path.absolute()), images_side=side, rows=rows, method=method, on_gpu=on_gpu, photos=photos
    )
    if label is not None:  # its columns are scaled already, each by its kind
        return config.with_values("data", label_column=label, preprocess="none")
    if backbone is not None:
        return config.with_values("data", backbone=backbone, backbone_size=size)
    return config if is_arrays else config.with_values("data", image_size=side)


def note(source: str, chosen: Config, used: Config, *, timed: bool) -> str:
    """How the config for a user's own data was chosen, in a line; nothing for a preset. `timed`: there is a time limit."""
    if presets.full_name(source) is not None:
        return ""
    on_gpu = resolve_device(used.training.device).type == "cuda"
    images = "arrays" if sources.is_array_source(source) else "files"
    images = "" if chosen.network.name in presets.VECTORS_NETWORKS else images
    return presets.why(chosen, used, on_gpu=on_gpu, images=images, timed=timed)


def with_absolute_paths(config: Config) -> Config:
    """The same with paths that are valid in any folder; names of data sets stay as they are."""
    paths = {name: getattr(config.data, name) for name in ("folder", "labels_file", "extra", "backbone_weights")}
    given = {name: path for name, path in paths.items() if path is not None and path not in sources.SOURCES}
    for name, path in given.items():
        if not path.strip():
            raise ConfigError(f"data.{name} is empty; give a path, or leave it out.")
    return config.with_values(
        "data", **{name: str(Path(os.path.expanduser(path)).absolute()) for name, path in given.items()}
    )


def _no_such_source(name: str) -> str:
    """The sentence for what is neither a preset nor data, with the nearest preset or folder."""
    if os.sep in name:
        return f"there is no .npz file, folder or table at {name}; check its path."
    folders = [f"{path.name}{os.sep}" for path in Path().iterdir() if path.is_dir()]
    known = [*presets.DATA_SETS, *presets.PRESETS]
    hint = nearest(name, [*known, *folders])
    return f"'{name}' is neither a preset nor an .npz file, a folder or a table{hint} Presets: {', '.join(known)}."
