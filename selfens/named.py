"""From what a person names, a preset or a file or folder of their own, to the config of a run on it."""

from __future__ import annotations

import os
from pathlib import Path

from selfens import presets
from selfens.config import Config
from selfens.core.device import resolve_device
from selfens.data import folder, images, sources
from selfens.errors import ConfigError, nearest


def config_for(source: str, method: str | None = None, size: int | None = None, device: str = "auto") -> Config:
    """The config of a preset or for a user's own data; a preset's name wins over a file or folder of that name.

    Only the headers of arrays and the names of files are read. The data are loaded once, by the training.
    """
    is_preset = presets.full_name(source) is not None
    if size is not None and (is_preset or sources.is_array_source(source)):
        raise ConfigError(f"an image size was given, but {source} is no folder of images; leave the size out.")
    if is_preset:
        config = presets.get(source)
    elif sources.is_array_source(source) or folder.is_folder_source(source):
        config = _config_for_own_data(Path(source), size, device)
    elif os.path.exists(source):
        raise ConfigError(
            f"{source} is neither a preset, an .npz file, a folder of images nor a .csv; see 'selfens presets'."
        )
    elif os.sep in source:
        raise ConfigError(f"there is no file or folder {source}; check its path.")
    else:
        raise ConfigError(_no_such_source(source))
    return config if method is None else presets.with_method(config, method)


def absolute(source: str) -> str:
    """A path that is valid in any folder; the name of a data set as it is."""
    return source if source in sources.SOURCES else str(Path(source).absolute())


def _config_for_own_data(source: Path, size: int | None, device: str) -> Config:
    """Settings that suit the number and size of the images and the device."""
    on_gpu = resolve_device(device).type == "cuda"
    path = str(source.absolute())
    if sources.is_array_source(source):
        rows, side = sources.rows_and_side(source)
        return presets.for_arrays(path, images_side=side, rows=rows, on_gpu=on_gpu)
    train, test = folder.list_images(source)
    side = size if size is not None else images.suggested_size([*train, *test])
    config = presets.for_arrays(path, images_side=side, rows=len(train), on_gpu=on_gpu)
    return config.with_values("data", image_size=side)


def _no_such_source(name: str) -> str:
    """The sentence for a word that is neither a preset nor a file or folder here, with the nearest that is."""
    default = f"-{presets.DEFAULT_METHOD}"
    short = [preset.removesuffix(default) for preset in presets.PRESETS if preset.endswith(default)]
    here = [f"{path.name}{os.sep}" for path in Path().iterdir() if path.is_dir() and not path.name.startswith(".")]
    all_presets = [*short, *presets.PRESETS]
    hint = nearest(name, [*all_presets, *here])
    return f"'{name}' is neither a preset nor a file or folder here{hint} Presets: {', '.join(all_presets)}."
