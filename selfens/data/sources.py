"""Data sets by name: `load("cifar10")`.

The official sets are looked for in `data_dir`, else in $SELFENS_DATA, else in the user's cache folder, and downloaded
there once if they are missing. A download happens under a temporary name beside its target, is checked against the
published checksum and only then renamed, so an interrupted one leaves nothing that looks like data.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfens.config import Config
from selfens.data import extra_rows as extra
from selfens.data import files
from selfens.data.cache import cache_folder
from selfens.data.dataset import Dataset
from selfens.data.folder import is_folder_source, load_folder
from selfens.errors import DataError, unknown_name

DIGITS_TEST_ROWS_PER_CLASS = 50
CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class Published:
    """A file on the web, and where in the data folder it ends up: as it is, or unpacked to a folder."""

    url: str
    md5: str
    target: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

PUBLISHED = {
    "cifar10": [
        Published(f"{_CIFAR}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    ],
    "cifar100": [
        Published(f"{_CIFAR}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    ],
    "svhn": [
        Published(f"{_SVHN}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "svhn/train_32x32.mat"),
        Published(f"{_SVHN}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "svhn/test_32x32.mat"),
    ],
}


@dataclass(frozen=True)
class Request:
    """The arguments of `load`, for the function of one data set."""

    name: str
    data_dir: str | Path | None
    offline: bool
    progress: bool
    split_seed: int


def from_config(config: Config, *, offline: bool = False, progress: bool = False) -> Dataset:
    """The data set a config names, with its extra rows."""
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
) -> extra.Extra:
    """Extra rows for a main set: the training rows of a named data set, or what `extra.find` finds at a path."""
    if source in SOURCES and index is None:
        return extra.of_array(main, load(source, data_dir=data_dir, offline=offline, progress=progress).inputs, source)
    with _decoding_bar(progress) as notice:
        return extra.find(
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
    progress      show downloads on the terminal
    split_seed    which rows of `digits` or of a folder are for testing; the other sets have an official split
    image_size    the side to which the images of a folder are brought
    keep_in_file  leave the decoded images of a folder in the cache's file, to be read from there
    """
    if str(name).endswith(".npz"):
        return Dataset.from_npz(name)
    if name not in SOURCES and is_npy_folder(name):
        return Dataset.from_npy(name)
    if name not in SOURCES and is_folder_source(name):
        with _decoding_bar(progress) as notice:
            return load_folder(name, size=image_size, split_seed=split_seed, notice=notice, keep_in_file=keep_in_file)
    if name not in SOURCES and os.sep in str(name):
        raise DataError(f"there is no folder or .csv file {name}; if it was moved, put it back or give its new path.")
    if name not in SOURCES:
        raise DataError(
            unknown_name("data set", str(name), SOURCES) + " A path must be of an .npz file, a folder or a .csv file."
        )
    return SOURCES[str(name)](Request(str(name), data_dir, offline, progress, split_seed))


def is_npy_folder(source: str | Path) -> bool:
    """Whether the folder holds a data set as .npy files."""
    return os.path.isfile(Path(source) / "x_train.npy")  # False also where the folder cannot be read


@contextmanager
def _decoding_bar(shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that counts decoded images, on the terminal, where it is wanted."""
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


def _digits(request: Request) -> Dataset:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(request.split_seed).permutation(len(labels))
    chosen = [order[labels[order] == digit][:DIGITS_TEST_ROWS_PER_CLASS] for digit in range(10)]
    test = np.zeros(len(labels), dtype=bool)
    test[np.concatenate(chosen)] = True
    labels = labels.astype(np.int64)
    return Dataset(
        inputs=images[~test],
        labels=labels[~test],
        test_inputs=images[test],
        test_labels=labels[test],
        classes=tuple("0123456789"),
        name=request.name,
    )


def _cifar(request: Request) -> Dataset:
    folder = data_folder(request.data_dir)
    if files.find_cifar(folder, request.name) is None:
        _download(PUBLISHED[request.name], folder, request)
    return _dataset(request.name, files.read_cifar(folder, request.name))


def _svhn(request: Request) -> Dataset:
    folder = data_folder(request.data_dir)
    missing = [published for published in PUBLISHED["svhn"] if files.find_svhn(folder, published.file) is None]
    _download(missing, folder, request)
    return _dataset(request.name, files.read_svhn(folder))


SOURCES: dict[str, Callable[[Request], Dataset]] = {
    "digits": _digits,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "svhn": _svhn,
}


def _dataset(name: str, splits: files.Splits) -> Dataset:
    return Dataset(
        inputs=splits.train_x,
        labels=splits.train_y,
        test_inputs=splits.test_x,
        test_labels=splits.test_y,
        classes=splits.classes,
        name=name,
    )


def _download(wanted: list[Published], folder: Path, request: Request) -> None:
    if wanted and (request.offline or os.environ.get("SELFENS_OFFLINE", "") not in ("", "0")):
        raise _missing(request.name, wanted, folder, "downloading is switched off")
    for published in wanted:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
                _fetch_and_place(published, Path(temporary), folder / published.target, request.progress)
        except (OSError, ImportError, EOFError, zlib.error, tarfile.TarError) as error:
            text = " ".join(str(error).split())
            reason = text if 0 < len(text) < 120 else type(error).__name__  # the whole story is in the cause
            raise _missing(request.name, wanted, folder, f"the download failed ({reason})") from error


def _missing(name: str, wanted: list[Published], folder: Path, why: str) -> DataError:
    if name in files.LAYOUTS:
        what = " or ".join(f"the folder {layout.folder} ({', '.join(layout.files)})" for layout in files.LAYOUTS[name])
    else:
        what = " and ".join(published.file for published in wanted)
    where = " and ".join(published.url for published in wanted)
    return DataError(f"{name} is not in {folder} and {why}; put {what} into {folder}, published at {where}.")


def _fetch_and_place(published: Published, temporary: Path, target: Path, progress: bool) -> None:
    """Downloads into the temporary folder, checks, unpacks, and moves the result to its place in one step."""
    path = _fetch(published, temporary, progress)
    _check(path, published)
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            archive.extractall(temporary / "unpacked", filter="data")
        path = temporary / "unpacked" / target.name
    target.parent.mkdir(exist_ok=True)
    try:
        path.rename(target)
    except OSError:
        if not target.exists():  # else another process has put the same data there meanwhile
            raise


def _fetch(published: Published, temporary: Path, progress: bool) -> Path:
    import pooch

    log = pooch.get_logger()
    level = log.level
    log.setLevel("ERROR")  # it would write to the terminal, which a library leaves alone
    bar = RichBar(published.file) if progress else None
    downloader = pooch.HTTPDownloader(progressbar=bar or False, chunk_size=CHUNK_BYTES)
    try:
        return Path(pooch.retrieve(published.url, None, published.file, temporary, downloader=downloader))
    finally:
        log.setLevel(level)
        if bar:
            bar.close()


def _check(path: Path, published: Published) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != published.md5:
        raise DataError(
            f"what {published.url} delivers is not the published file: its MD5 is {found}, expected {published.md5}; "
            "nothing was kept, so try again, or fetch the file by another way."
        )


class RichBar:
    """What pooch asks of a progress bar, drawn by rich: pooch's own would need tqdm."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(label, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: float) -> None:
        self._progress.update(self._task, total=value or None)  # 0 where the server does not say

    def update(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
