"""Data sets by name or path: `load("cifar10")`, `load("photos")`, `from_config(config)`.

The official sets are looked for in `data_dir`, else in $SELFENS_DATA, else in the user's cache folder, and downloaded there
if they are missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from selfens.config import Config
from selfens.data import cifar_svhn, extra_rows
from selfens.data.arrays import image_side, npz_shape, read_npy
from selfens.data.cache import cache_folder
from selfens.data.dataset import INPUT_NAMES, Dataset, missing_arrays
from selfens.data.folder import is_folder_source, load_folder
from selfens.errors import DataError, unknown_name

SOURCES = ("digits", "cifar10", "cifar100", "svhn")
DIGITS_TEST_ROWS_PER_CLASS = 50


def from_config(config: Config, *, offline: bool = False, progress: bool = False) -> Dataset:
    """The data set that a config names, with its extra rows."""
    options, split_seed = config.data, config.seed.of("split")
    keep_in_file = config.training.residence == "file"
    main = load(
        options.name,
        data_dir=options.folder,
        offline=offline,
        progress=progress,
        split_seed=split_seed,
        image_size=options.image_size,
        keep_in_file=keep_in_file,
    )
    if options.extra is None:
        return main
    found = find_extra(
        main,
        options.extra,
        data_dir=options.folder,
        index=options.extra_index,
        offline=offline,
        progress=progress,
        keep_in_file=keep_in_file,
    )
    return found.added_to(main, count=options.extra_rows, seed=split_seed)


def find_extra(
    main: Dataset,
    source: str,
    *,
    data_dir: str | Path | None = None,
    index: str | Path | None = None,
    offline: bool = False,
    progress: bool = False,
    keep_in_file: bool = False,
) -> extra_rows.Extra:
    """Extra rows for a main set: the training rows of a named data set, or what `extra_rows.find` finds at a path."""
    if source in SOURCES and index is None:
        array = load(source, data_dir=data_dir, offline=offline, progress=progress).inputs
        return extra_rows.of_array(main, array, source)
    with _decoding_bar(progress) as notice:
        return extra_rows.find(
            main, Path(source), index=Path(index) if index else None, notice=notice, keep_in_file=keep_in_file
        )


def load(
    name: str | Path,
    *,
    data_dir: str | Path | None = None,
    offline: bool = False,
    progress: bool = False,
    split_seed: int = 0,
    image_size: int = 32,
    keep_in_file: bool = False,
) -> Dataset:
    """A named data set, or the one in an .npz file, a folder of .npy files or of images, or a CSV of file,label.

    offline       never download; also by setting $SELFENS_OFFLINE
    progress      show downloads and decoding on the terminal
    split_seed    which rows of `digits` or of a folder are for testing; the other sets have an official split
    image_size    the side to which the images of a folder are resized
    keep_in_file  leave the decoded images of a folder in the cache's file, to be read from there
    """
    if name == "digits":
        return _digits(split_seed)
    if name in SOURCES:
        offline = offline or os.environ.get("SELFENS_OFFLINE", "") not in ("", "0")
        return cifar_svhn.load(str(name), data_folder(data_dir), offline=offline, progress=progress)
    if str(name).endswith(".npz"):
        return Dataset.from_npz(name)
    if is_npy_folder(name):
        return Dataset.from_npy(name)
    if is_folder_source(name):
        with _decoding_bar(progress) as notice:
            return load_folder(name, size=image_size, split_seed=split_seed, notice=notice, keep_in_file=keep_in_file)
    if os.sep in str(name):
        raise DataError(f"there is no folder or .csv file {name}; if it was moved, put it back or give its new path.")
    raise DataError(
        unknown_name("data set", str(name), SOURCES) + " A path must be of an .npz file, a folder or a .csv file."
    )


def is_npy_folder(source: str | Path) -> bool:
    """Whether the folder holds a data set as .npy files."""
    return os.path.isfile(Path(source) / "x_train.npy")  # also False if the folder cannot be read


def is_array_source(source: str | Path) -> bool:
    return str(source).endswith(".npz") or is_npy_folder(source)


def rows_and_side(source: Path) -> tuple[int, int | None]:
    """How many training rows an .npz file or a folder of .npy files has and the side of its images, without loading them."""
    shape = read_npy(source / "x_train.npy").shape if is_npy_folder(source) else npz_shape(source, INPUT_NAMES)
    if shape is None:
        raise missing_arrays(source)
    return shape[0] if shape else 0, image_side(shape)


@contextmanager
def _decoding_bar(shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on the terminal that counts decoded images."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where the official data sets lie: the argument, else $SELFENS_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("SELFENS_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"


def _digits(split_seed: int) -> Dataset:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(split_seed).permutation(len(labels))
    chosen = [order[labels[order] == digit][:DIGITS_TEST_ROWS_PER_CLASS] for digit in range(10)]
    test = np.zeros(len(labels), dtype=bool)
    test[np.concatenate(chosen)] = True
    train = images[~test], labels[~test]
    return Dataset.from_arrays(*train, images[test], labels[test], classes=tuple("0123456789"), name="digits")
