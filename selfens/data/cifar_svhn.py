"""The official files of CIFAR and SVHN: where they lie, how they are downloaded, and readers that trust nothing in them.

Rows keep the order of the files, because choosing labels by seed depends on it. SVHN writes the digit 0 as label 10.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from os.path import isdir, isfile  # unlike pathlib's, these take a folder without read permission as missing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import Dataset, Labels
from selfens.errors import DataError

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = math.prod(IMAGE_SHAPE)
LARGEST_CONTENT = 2**30  # the largest official file has 182 MB; a hostile one must not fill the memory

Images = NDArray[np.uint8]
Split = tuple[Images, Labels]


@dataclass(frozen=True)
class Layout:
    """Where one official distribution of CIFAR keeps what; a label is at a key of a pickle or at a byte of a record."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    names_key: str
    label_at: str | int
    num_classes: int

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)

    def missing(self, place: Path) -> list[str]:
        return [file for file in self.files if not isfile(place / file)]


@dataclass(frozen=True)
class Published:
    """A file on the web, and where in the data folder it ends up: as it is, or unpacked to a folder."""

    url: str
    md5: str
    target: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
_FIVE_BIN = tuple(f"{file}.bin" for file in _FIVE)
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-batches-py", _FIVE, "test_batch", "batches.meta", "label_names", "labels", 10),
        Layout("cifar-10-batches-bin", _FIVE_BIN, "test_batch.bin", "batches.meta.txt", "", 0, 10),
    ),
    "cifar100": (
        Layout("cifar-100-python", ("train",), "test", "meta", "fine_label_names", "fine_labels", 100),
        # the byte before the fine label is the coarse one
        Layout("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", "", 1, 100),
    ),
}
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


# Downloads: in a temporary folder beside the target, renamed once the checksum is right, so that an interrupted one
# leaves nothing that looks like data


def load(name: str, folder: Path, *, offline: bool, progress: bool) -> Dataset:
    """An official data set from `folder`, downloaded there first if it is missing."""
    wanted = PUBLISHED[name]
    if name in LAYOUTS:
        wanted = [] if find_cifar(folder, name) else wanted
    else:
        wanted = [published for published in wanted if find_svhn(folder, published.file) is None]
    if wanted and offline:
        raise _not_here(name, wanted, folder, "downloading is switched off")
    for published in wanted:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
                _download(published, Path(temporary), folder / published.target, progress)
        except (OSError, ImportError, EOFError, zlib.error, tarfile.TarError) as error:
            text = " ".join(str(error).split())
            reason = text if 0 < len(text) < 120 else type(error).__name__  # the whole text is in the cause
            raise _not_here(name, wanted, folder, f"the download failed ({reason})") from error
    return read_cifar(folder, name) if name in LAYOUTS else read_svhn(folder)


def _not_here(name: str, wanted: list[Published], folder: Path, why: str) -> DataError:
    if name in LAYOUTS:
        what = " or ".join(f"the folder {layout.folder} ({', '.join(layout.files)})" for layout in LAYOUTS[name])
    else:
        what = " and ".join(published.file for published in wanted)
    where = " and ".join(published.url for published in wanted)
    return DataError(f"{name} is not in {folder} and {why}; put {what} into {folder}, published at {where}.")


def _download(published: Published, temporary: Path, target: Path, progress: bool) -> None:
    path = _fetch(published, temporary, progress)
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:  # pooch's Untar lets an archive write anywhere before Python 3.12
            archive.extractall(temporary / "unpacked", filter="data")
        path = temporary / "unpacked" / target.name
    target.parent.mkdir(exist_ok=True)
    try:
        path.rename(target)
    except OSError:
        if not target.exists():  # else another process has put the same data there meanwhile
            raise


def _fetch(published: Published, temporary: Path, progress: bool) -> Path:
    """The file in the temporary folder. With progress, pooch says what it downloads, and draws a bar if it has tqdm."""
    import pooch

    log = pooch.get_logger()
    was_disabled, log.disabled = log.disabled, not progress
    bar = progress and find_spec("tqdm") is not None
    try:
        known_hash = f"md5:{published.md5}"
        return Path(pooch.retrieve(published.url, known_hash, published.file, temporary, progressbar=bar))
    except ValueError as error:
        if isinstance(error, OSError):  # such as a proxy's address that is none
            raise
        raise DataError(
            f"what {published.url} delivers is not the published file, whose MD5 is {published.md5}; "
            "nothing was kept, so try again, or get the file in another way."
        ) from error
    finally:
        log.disabled = was_disabled


# What is in the files


def read_cifar(folder: Path, name: str) -> Dataset:
    """CIFAR-10 or CIFAR-100 (fine labels) from whichever official layout lies in the folder, or is the folder."""
    found = find_cifar(folder, name)
    if found is None:
        raise _not_here(name, PUBLISHED[name], folder, "was not downloaded")
    place, layout = found
    if missing := layout.missing(place):
        raise DataError(
            f"{place} lacks {', '.join(missing)}; expected {', '.join(layout.files)}: "
            "add what is missing, or remove the folder to have it downloaded again."
        )
    train, test = (_read_batches(place, files, layout) for files in (layout.train, (layout.test,)))
    return _dataset(name, train, test, _read_names(place / layout.names, layout))


def find_cifar(folder: Path, name: str) -> tuple[Path, Layout] | None:
    """Where the files are and in which layout; a complete one is preferred to one that lacks files."""
    inside = [(folder / layout.folder, layout) for layout in LAYOUTS[name] if isdir(folder / layout.folder)]
    itself = [(folder, layout) for layout in LAYOUTS[name] if isfile(folder / layout.train[0])]
    return min(inside + itself, key=lambda found: bool(found[1].missing(found[0])), default=None)


def find_svhn(folder: Path, file: str) -> Path | None:
    """The path of one of SVHN's two files, in the folder or in its sub-folder `svhn`."""
    return next((path for path in (folder / file, folder / "svhn" / file) if isfile(path)), None)


def read_svhn(folder: Path) -> Dataset:
    """SVHN's cropped digits, train and test (not extra), with label 10 as the digit 0 that it stands for."""
    paths = [find_svhn(folder, published.file) for published in PUBLISHED["svhn"]]
    if None in paths:
        raise _not_here("svhn", PUBLISHED["svhn"], folder, "was not downloaded")
    train, test = (_read_mat(path) for path in paths if path is not None)
    return _dataset("svhn", train, test, tuple("0123456789"))


def _dataset(name: str, train: Split, test: Split, classes: tuple[str, ...]) -> Dataset:
    (x, y), (test_x, test_y) = train, test
    return Dataset(inputs=x, labels=y, test_inputs=test_x, test_labels=test_y, classes=classes, name=name)


def _read_batches(place: Path, files: Sequence[str], layout: Layout) -> Split:
    read = _read_records if isinstance(layout.label_at, int) else _read_pickled_batch
    batches = [read(place / file, layout) for file in files]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, *IMAGE_SHAPE)
    return images, np.concatenate([labels for _, labels in batches])


def _read_records(path: Path, layout: Layout) -> Split:
    """A binary file of records: one or two label bytes, then the pixels."""
    content = _read_bytes(path)
    label_at = int(layout.label_at)
    record = label_at + 1 + IMAGE_BYTES
    if not content or len(content) % record:
        raise _wrong(path, f"has {len(content)} bytes", f"a multiple of {record}, one record per image")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = _checked_labels(path, rows[:, label_at].tolist(), layout.num_classes)
    return rows[:, label_at + 1 :], labels


def _read_pickled_batch(path: Path, layout: Layout) -> Split:
    batch = read_pickle(path)
    pixels, labels = getattr(batch.get("data"), "values", None), batch.get(str(layout.label_at))
    if pixels is None or pixels.shape[1] != IMAGE_BYTES or not len(pixels):
        found = "no array" if pixels is None else f"an array of shape {pixels.shape}"
        raise _wrong(path, f"holds {found} under 'data'", f"uint8 images of shape [n, {IMAGE_BYTES}]")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        found = f"{len(labels)} labels" if isinstance(labels, list) else "no list"
        raise _wrong(path, f"holds {found} under '{layout.label_at}'", f"{len(pixels)} labels, one per image")
    return pixels, _checked_labels(path, labels, layout.num_classes)


def _checked_labels(path: Path, labels: list[Any], num_classes: int) -> Labels:
    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < num_classes:
            found = label if type(label) is int and abs(label) < 10**9 else f"something of type {type(label).__name__}"
            raise _wrong(path, f"gives row {row} the label {found}", f"an integer from 0 to {num_classes - 1}")
    return np.array(labels, dtype=np.int64)


def _read_names(path: Path, layout: Layout) -> tuple[str, ...]:
    if layout.names_key:
        values = read_pickle(path).get(layout.names_key)
        values = values if isinstance(values, list) else []
        names = [_text(value) for value in values if isinstance(value, str | bytes)]
    else:
        names = [line.strip() for line in _read_bytes(path).decode("latin-1").splitlines() if line.strip()]
    if len(names) != layout.num_classes or not all(name.isprintable() for name in names):
        raise _wrong(path, f"holds {len(names)} class names", f"{layout.num_classes} printable names")
    return tuple(names)


def _read_mat(path: Path) -> Split:
    content = _read_bytes(path)
    try:
        arrays = _mat_arrays(content)
    except (ValueError, TypeError, OverflowError, MemoryError, struct.error, zlib.error) as error:
        raise _wrong(path, f"is not a MATLAB file as published ({_short(error)})", "SVHN's cropped digits") from None
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or not x.size:
        found = "no array X" if x is None else f"X of shape {x.shape} and type {x.dtype}"
        raise _wrong(path, f"holds {found}", "uint8 images of shape [32, 32, 3, n]")
    if y is None or y.shape != (x.shape[3], 1) or not np.isin(y, np.arange(1, 11)).all():
        found = "no array y" if y is None else f"y of shape {y.shape} from {y.min(initial=0)} to {y.max(initial=0)}"
        raise _wrong(path, f"holds {found}", f"{x.shape[3]} labels from 1 to 10 in one column")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y[:, 0].astype(np.int64) % 10


def _read_bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size <= LARGEST_CONTENT:
            return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise DataError(f"{path} cannot be read ({_short(error)}); check the file and its permissions.") from None
    raise _wrong(path, f"has {size} bytes", f"at most {LARGEST_CONTENT}")


def _wrong(path: Path, found: str, expected: str) -> DataError:
    return DataError(f"{path} {found}; expected {expected}: replace it with the official file.")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:150] or type(error).__name__


# Pickles


def read_pickle(path: Path, what: str = "one of CIFAR's pickles") -> dict[str, Any]:
    """The dictionary in a pickle of plain values and arrays of bytes; nothing in it is run."""
    content = _read_bytes(path)
    try:
        with warnings.catch_warnings():  # of odd escapes in strings
            warnings.simplefilter("ignore")
            value = _Unpickler(content).load()
    except Exception as error:  # nothing but the reader runs in there, so whatever it raises is the file's fault
        # the table of operations raises KeyError
        reason = f"it uses operation {error}, which is not needed" if isinstance(error, KeyError) else _short(error)
        raise _wrong(path, f"is not {what} ({reason})", "an intact one") from None
    if not isinstance(value, dict):
        raise _wrong(path, f"holds a pickled {type(value).__name__}", "a dictionary")
    return value


class _Array:
    """An array under construction: `_reconstruct` makes it empty, its state fills it."""

    values: Images | None = None

    def fill(self, state: Any) -> None:
        _version, shape, element, column_major, content = state
        if element is not _UINT8 or not isinstance(content, bytes):
            raise ValueError("it holds an array of something other than uint8")
        rows, columns = shape
        if not (type(rows) is int and type(columns) is int and rows >= 0 and rows * columns == len(content)):
            raise ValueError("it holds an array whose shape does not fit its content")
        self.values = np.frombuffer(content, np.uint8).reshape(rows, columns, order="F" if column_major else "C")


class _Name(str):
    """A name in the pickle: text, which cannot be called."""


_NAMES = {
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "_codecs.encode",
}
_UINT8 = _Name("uint8")
_OPERATIONS = (
    b"\x80\x95.(pqr\x94ghj"  # protocol, frame, stop, mark, the memo
    b"NIJKML\x8a\x88\x89STUVX\x8cBC"  # None, numbers, booleans, strings
    b"]lea})t\x85\x86\x87dsu"  # lists, tuples, dictionaries
    b"c\x93Rb"  # names, calls and states
)


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler, with only the operations, names and calls that the official files are made of.

    The one written in C allows only its names to be restricted. A small file can then still crash it (a deeply nested tuple
    as a key), keep it busy forever (a widely nested one) or make it take 64 GB (a large number in the memo).
    """

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.bytes_to_encode = len(content)

    def find_class(self, module: str, name: str) -> _Name:
        if f"{module}.{name}" not in _NAMES:
            raise ValueError(
                f"it asks for {f'{module}.{name}'[:60]!r}, which no official file needs and which was not run"
            )
        return _Name(name)

    def load_reduce(self) -> None:
        """The only three calls that the official files make, done here."""
        arguments, function = self.stack.pop(), self.stack.pop()
        match function, arguments:
            case _Name("_reconstruct"), (_Name("ndarray"), _, _):
                self.append(_Array())
            case _Name("dtype"), ("u1" | b"u1", _, _):
                self.append(_UINT8)
            case _Name("encode"), (str(text), "latin1" | b"latin1") if len(text) <= self.bytes_to_encode:
                self.bytes_to_encode -= len(text)  # encoding one long text again and again would fill the memory
                self.append(text.encode("latin-1"))
            case _:
                raise ValueError("it makes a call that no official file makes")

    def load_build(self) -> None:
        state = self.stack.pop()
        if isinstance(array := self.stack[-1], _Array):
            array.fill(state)
        elif array is not _UINT8:  # whose state is the byte order, which bytes do not have
            raise ValueError("it gives a state to something that has none")

    def load_setitems(self) -> None:
        """Keys must be strings: hashing anything else may take forever."""
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][_text(key)] = value

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_text(key)] = value

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({_text(key): value for key, value in zip(items[::2], items[1::2], strict=True)})

    dispatch: ClassVar[Any] = {code: pickle._Unpickler.dispatch[code] for code in _OPERATIONS} | {
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEMS[0]: load_setitems,
        pickle.SETITEM[0]: load_setitem,
        pickle.DICT[0]: load_dict,
    }


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise ValueError(f"it holds a {type(value).__name__} where a name belongs")
    return value


# MATLAB 5 files. Not by scipy.io.loadmat: it crashes the process (segmentation fault) on files with a few bytes changed.

_MAT_MATRIX, _MAT_COMPRESSED = 14, 15
_MAT_NUMBERS = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}


def _mat_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The numeric arrays X and y: after a header come elements, each perhaps compressed."""
    if content[124:128] != b"\x00\x01IM":  # version 1, little-endian
        raise ValueError("it does not begin as files of MATLAB 5 to 7 do")
    arrays = {}
    for kind, element in _mat_elements(memoryview(content)[128:]):
        if kind == _MAT_COMPRESSED:
            ((kind, element),) = _mat_elements(_decompressed(element))
        if kind == _MAT_MATRIX:
            _flags, (_, lengths), (_, name), (number_kind, numbers) = islice(_mat_elements(element), 4)
            if bytes(name) in (b"X", b"y"):
                arrays[bytes(name).decode()] = _mat_array(lengths, number_kind, numbers)
    return arrays


def _mat_elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The kind and content of each element; one of up to four bytes shares the eight bytes of its header."""
    start = 0
    while start < len(content):
        kind, size = struct.unpack_from("<II", content, start)
        if kind >> 16:
            kind, size, first, following = kind & 0xFFFF, kind >> 16, start + 4, start + 8
        else:
            first = start + 8
            following = first + size + (0 if kind == _MAT_COMPRESSED else -size % 8)
        if following > len(content) or first + size > following:
            raise ValueError("it is cut short or damaged")
        yield kind, content[first : first + size]
        start = following


def _decompressed(content: memoryview) -> memoryview:
    stream = zlib.decompressobj()
    plain = stream.decompress(content, LARGEST_CONTENT)
    if not stream.eof:
        raise ValueError("its compressed part is cut short or too large")
    return memoryview(plain)


def _mat_array(lengths: memoryview, kind: int, numbers: memoryview) -> NDArray[Any]:
    if kind not in _MAT_NUMBERS:
        raise ValueError("it holds something other than numbers")
    shape = np.frombuffer(lengths, "<i4").tolist()
    if len(shape) > 4 or min(shape, default=0) < 0:
        raise ValueError("it holds an array of no possible shape")
    return np.frombuffer(numbers, _MAT_NUMBERS[kind]).reshape(shape, order="F")
