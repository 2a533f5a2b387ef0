"""Data sets by name or path, and extra rows for them: `load("cifar10")`, `load("photos")`, `from_config(config)`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfens.config import Config
from selfens.data import cifar_svhn
from selfens.data.arrays import image_side, npz_shape, read_inputs, read_npy, read_npz
from selfens.data.dataset import Dataset, missing_arrays
from selfens.data.folder import decode_alike, is_folder_source, load_folder
from selfens.data.images import USUAL_SIZE, Convert
from selfens.data.tabular import Columns, load_table
from selfens.errors import DataError, unknown_name

if TYPE_CHECKING:
    from selfens.data.features import FeatureStore

SOURCES = ("digits", "cifar10", "cifar100", "svhn")
DIGITS_TEST_ROWS_PER_CLASS = 50


def from_config(
    config: Config,
    *,
    offline: bool = False,
    progress: bool = False,
    columns: Columns | None = None,
    store: FeatureStore | None = None,
) -> Dataset:
    """The data set that a config names, with its extra rows; or the features of its images, if it names a backbone.

    columns  of a table that a run was trained on; None: fitted
    store    of the features, if its backbone is in memory already
    """
    options, split_seed = config.data, config.seed.of("split")
    where: Any = {"data_dir": options.folder, "offline": offline, "progress": progress, "split_seed": split_seed}
    if options.label_column is not None:
        return load_table(options, label_seed=config.seed.of("labels"), split_seed=split_seed, columns=columns)
    if options.backbone is not None:
        from selfens.core.device import resolve_device
        from selfens.data.features import open_store

        store = store or open_store(options, resolve_device(config.training.device))
        data = load(options.name, image_size=store.size, convert=store.digests, **where)
        return store.with_features(data, progress)
    main = load(options.name, image_size=options.image_size, **where)
    return main if options.extra is None else with_extra(main, options.extra, **where)


def with_extra(main: Dataset, source: str, *, progress: bool = False, **where: Any) -> Dataset:
    """`main` with extra rows: the training rows of a named data set, an array, or images, which are resized.

    where  `data_dir`, `offline` and the like, as for `load`
    """
    if source in SOURCES:
        return main.with_extra(load(source, progress=progress, **where).inputs, name=source)
    if source.endswith((".npy", ".npz")):
        return main.with_extra(read_inputs(Path(source)), name=source)
    if not is_folder_source(source):
        raise DataError(
            f"{source} cannot be read as extra rows; expected an .npz or .npy file, a folder of images, a .csv, or the name "
            "of a data set."
        )
    decoded = decode_alike(source, main.input_shape, progress)
    added = main.with_extra(decoded.images, names=[str(file) for file in decoded.files], name=source)
    return replace(added, unreadable=(*main.unreadable, *decoded.failures))


def load(
    name: str | Path,
    *,
    data_dir: str | Path | None = None,
    offline: bool = False,
    progress: bool = False,
    split_seed: int = 0,
    image_size: int = USUAL_SIZE,
    convert: Convert | None = None,
) -> Dataset:
    """A named data set, or the one in an .npz file, a folder of .npy files or of images, or a CSV of file,label.

    data_dir    where the official sets lie: else in $SELFENS_DATA, else in the user's cache folder
    offline     never download; also by setting $SELFENS_OFFLINE
    progress    show downloads and decoding on the terminal
    split_seed  which rows of `digits` or of a folder are for testing; the other sets have an official split
    image_size  the side to which the images of a folder are resized
    convert     what the images of a folder are made into, a few at a time
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
        return load_folder(name, size=image_size, split_seed=split_seed, progress=progress, convert=convert)
    raise DataError(
        unknown_name("data set", str(name), SOURCES) + " A path must be of an .npz file, a folder or a .csv file."
    )


def doubt(name: str, data_dir: str | Path | None = None) -> str:
    """A sentence about an official data set whose files, which are there, are not as published; else empty."""
    files = cifar_svhn.unofficial_files(name, data_folder(data_dir)) if name in cifar_svhn.PUBLISHED else []
    if not files:
        return ""
    return (
        f"the official MD5 checksums of {name} do not fit {len(files)} of its files, the first {files[0]}; results may differ "
        "from those of the official data."
    )


def is_npy_folder(source: str | Path) -> bool:
    """Whether the folder holds a data set as .npy files."""
    return os.path.isfile(Path(source) / "x_train.npy")  # also False if the folder cannot be read


def is_array_source(source: str | Path) -> bool:
    return str(source).endswith(".npz") or is_npy_folder(source)


def rows_and_side(source: Path) -> tuple[int, int | None]:
    """How many training rows an .npz file or a folder of .npy files has and the side of its images, without loading them."""
    shape = read_npy(source / "x_train.npy").shape if is_npy_folder(source) else npz_shape(source, "x_train")
    if shape is None:
        raise missing_arrays(read_npz(source), source)
    return shape[0] if shape else 0, image_side(shape)


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where the official sets lie: the folder given, else $SELFENS_DATA, else the platform's place for caches."""
    import platformdirs

    chosen = data_dir or os.environ.get("SELFENS_DATA")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("selfens") / "data"


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
