"""Sources of data by name: `load(options_for("photos"))`. To add one, write a file here and a line of `SOURCES`."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfens.data import journal, split
from selfens.data.dataset import Dataset
from selfens.data.rows import take
from selfens.data.sources.base import PathOptions, Peek, Source, SourceOptions
from selfens.errors import ConfigError, DataError, did_you_mean
from selfens.settings import Registry, field_types

SOURCES = Registry(
    "source",
    {
        "digits": "selfens.data.sources.digits:Digits",
        "official": "selfens.data.sources.official:Official",
        "arrays": "selfens.data.sources.arrays:Arrays",
        "texts": "selfens.data.sources.texts:Texts",
        "images": "selfens.data.sources.images:Images",
        "table": "selfens.data.sources.table:Table",
        "memory": "selfens.data.sources.memory:Memory",
    },
)
"""Maps each source's name to "module:Class". The first source that matches a path reads it."""

PUBLIC: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {}),
    "cifar10": ("official", {"dataset": "cifar10"}),
    "cifar100": ("official", {"dataset": "cifar100"}),
    "svhn": ("official", {"dataset": "svhn"}),
}
"""The public data sets: the source that reads each, and its options."""

__all__ = [
    "PUBLIC",
    "SOURCES",
    "Peek",
    "Source",
    "SourceOptions",
    "build",
    "load",
    "options_for",
    "public_extra",
    "read",
]


def options_for(data: str | Path, *, hints: Sequence[str] = (), **values: Any) -> SourceOptions:
    """Return the options to load a public data set, or a file or folder.

    Parameters
    ----------
    data
        A name in `PUBLIC`, or a path.
    hints
        Other names that could have been meant, for the error message.
    values
        Options of the source, if already known. Sources without these options are not considered.
    """
    name, path, values = str(data), Path(data), {key: value for key, value in values.items() if value is not None}
    if name in PUBLIC:
        source, fixed = PUBLIC[name]
    else:
        matching = [source for source in SOURCES if SOURCES.find(source).matches(path)]
        if not matching:
            raise ConfigError(_no_such_data(name, hints))
        takes_all = [source for source in matching if values.keys() <= field_types(SOURCES.find(source).Options).keys()]
        source, fixed = (takes_all or matching)[0], {"path": str(path)}
    kind = SOURCES.find(source)
    for key in values:
        if key not in field_types(kind.Options):
            raise ConfigError(
                f"source.{key} was given, but {name} is {kind.noun}, which has no such option; leave it out."
            )
    options: SourceOptions = SOURCES.options(source, **(fixed | values))
    return options


def _no_such_data(name: str, hints: Sequence[str]) -> str:
    """Return the message for a name that is neither a data set nor a path, with the closest name or folder."""
    if os.path.isfile(name):
        return f"{name} cannot be read; expected an .npz file, a folder, a table or an image."
    if os.sep in name:
        return f"there is no data at {name}; expected an .npz file, a folder, or a table; check the path."
    known = [*dict.fromkeys([*PUBLIC, *hints])]
    hint = did_you_mean(name, [*known, *(f"{path.name}{os.sep}" for path in Path().iterdir() if path.is_dir())])
    what = "a preset" if hints else "a public data set"
    return f"'{name}' is neither {what} nor an .npz file, a folder or a table{hint} Known: {', '.join(known)}."


def build(options: SourceOptions) -> Source:
    """Return the source that these options belong to."""
    source: Source = SOURCES.build(options)
    if isinstance(options, PathOptions) and options.path is None:
        raise ConfigError(f"source.path is none; expected the path of {source.noun}.")
    return source


def load(options: SourceOptions, *, seed: int = 0, side: int | None = None, progress: bool = False) -> Dataset:
    """Load a data set with its extra rows; see `Source.load`."""
    data = build(options).load(seed=seed, side=side, progress=progress)
    if isinstance(options, PathOptions):
        data, noted = with_journal(data, options)
        if options.hold_out:
            data, decided = split.hold_out(data, noted.is_test)
            if options.journal is None and (
                new := {row: side for row, side in decided.items() if row not in noted.is_test}
            ):
                with suppress(OSError):  # where nothing can be written, the content of rows decides each time
                    journal.add_split(journal.path_for(Path(str(options.path))), new)
    if options.extra is None:
        return data
    if len(data.raw.shape) == 4:
        side = data.raw.shape[-1]  # extra image files are decoded to the size of the main ones
    if (public := public_extra(options)) is not None:
        extra = load(public, seed=seed, side=side, progress=progress)
        data = data.with_extra(take(extra.raw, extra.train_rows), name=options.extra)
    else:
        extra = read(options.extra, data.source or options, side=side, progress=progress)
        data = data.with_extra(extra.raw, ids=extra.ids, name=options.extra)
        data = replace(data, skipped=(*data.skipped, *extra.skipped))
    return journal.mark_suggested(data, noted) if isinstance(options, PathOptions) else data


def browse(options: PathOptions, *, side: int | None = None) -> Dataset:
    """Load a user's data to look at rows and to label them, as quickly as possible and without the journal."""
    data = build(options).browse(side=side)
    return replace(data, source=data.source or options)


def with_journal(data: Dataset, options: PathOptions) -> tuple[Dataset, journal.Noted]:
    """Return data with what the journal beside them says, and the journal. The source remembers how much of it there was."""
    noted = journal.read(journal.path_for(Path(str(options.path))), options.journal)
    source = (data.source or options).changed({"journal": noted.lines})
    return journal.apply(replace(data, source=source), noted), noted


def public_extra(options: SourceOptions) -> SourceOptions | None:
    """Return the options of the public data set that the extra rows come from, in the folder of the main one, or None."""
    if options.extra not in PUBLIC:
        return None
    source, fixed = PUBLIC[options.extra]
    return options.changed({**fixed, "extra": None}) if source == options.name else options_for(options.extra)


def read(
    path: str | Path, like: SourceOptions | None = None, *, side: int | None = None, progress: bool = False
) -> Dataset:
    """Load all rows of a file or folder, to predict on or to use without labels.

    Parameters
    ----------
    like
        Options of the training data. If their source matches the path, it reads the path with these options.
    """
    if not os.path.exists(path):
        raise DataError(f"there is no file or folder {path}; check the path.")
    if like is not None and isinstance(like, PathOptions) and SOURCES.find(like.name).matches(Path(path)):
        options: SourceOptions = like.changed({"path": str(path), "extra": None})
    else:
        # An absolute path, because a folder may have the name of a public data set.
        options = options_for(Path(path).absolute())
    data = build(options).read(side=side, progress=progress)
    folder, given = (each if os.path.isdir(path) else each.parent for each in (Path(path).absolute(), Path(path)))
    # Name files relative to the path as the caller wrote it.
    root, short = f"{folder}/", "" if given == Path() else f"{given}/"
    ids, skipped = (
        tuple(short + name.removeprefix(root) if name.startswith(root) else name for name in names)
        for names in (data.ids, data.skipped)
    )
    return replace(data, ids=ids, skipped=skipped)
