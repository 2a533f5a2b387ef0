"""The official files of CIFAR and SVHN: find them, download them, and read them without trusting them.

Rows keep the order of the files, because the labels that a seed draws depend on it. SVHN writes the digit 0 as 10.
"""

import hashlib
import math
import os
import pickletools
import re
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfens.data.rows import Labels
from selfens.errors import DataError, one_line
from selfens.files import check_regular

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = math.prod(IMAGE_SHAPE)
LARGEST_CONTENT = 2**30  # the largest official file has 182 MB; a hostile one must not fill the memory

Pixels = NDArray[np.uint8]
Split = tuple[Pixels, Labels]


class CifarFiles(NamedTuple):
    """The files of CIFAR, and the keys in them."""

    train: tuple[str, ...]
    test: str
    names: str
    names_key: str
    labels_key: str
    num_classes: int


class Published(NamedTuple):
    """A file on the web, and its target in the data folder: the file itself, or the folder it is unpacked to."""

    url: str
    md5: str
    target: str


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

CIFAR = {
    "cifar10": CifarFiles(_FIVE, "test_batch", "batches.meta", "label_names", "labels", 10),
    "cifar100": CifarFiles(("train",), "test", "meta", "fine_label_names", "fine_labels", 100),
}
PUBLISHED = {
    "cifar10": [Published(f"{_CIFAR}-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py")],
    "cifar100": [Published(f"{_CIFAR}-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python")],
    "svhn": [
        Published(f"{_SVHN}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "svhn/train_32x32.mat"),
        Published(f"{_SVHN}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "svhn/test_32x32.mat"),
    ],
}
CHECKSUMS = {  # MD5 of what is in the archives
    "cifar10": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    "cifar100": {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
}


# Downloads. A file is renamed once its checksum is right, and again once it is unpacked, so that an interrupted download
# never looks like data.


def load(name: str, folder: Path, *, offline: bool, progress: bool) -> tuple[Split, Split, tuple[str, ...]]:
    """Return training set, test set and class names of a data set, downloading it to `folder` if it is missing."""
    for published in PUBLISHED[name]:
        if not os.path.exists(_location(folder, published)):
            if offline:
                raise _not_found(folder, published, "downloading is switched off")
            try:
                _download(published, folder, progress)
            except (OSError, ValueError, ImportError, EOFError, zlib.error, tarfile.TarError) as error:
                raise _not_found(folder, published, f"the download failed ({one_line(error)})") from error
    locations = [_location(folder, published) for published in PUBLISHED[name]]
    if name not in CIFAR:  # SVHN's cropped digits, not extra
        train, test = map(_read_mat, locations)
        return train, test, tuple("0123456789")
    files, location = CIFAR[name], locations[0]
    images, labels = zip(*(_read_batch(location / file, files) for file in files.train), strict=True)
    test = _read_batch(location / files.test, files)
    return (np.concatenate(images), np.concatenate(labels)), test, _read_names(location / files.names, files)


def altered_files(name: str, folder: Path) -> list[Path]:
    """Return the files in `folder` that do not match the published MD5 checksums."""
    location = _location(folder, PUBLISHED[name][0])
    known = {location / file: md5 for file, md5 in CHECKSUMS.get(name, {}).items()}
    known = known or {_location(folder, published): published.md5 for published in PUBLISHED[name]}
    md5s = {path: hashlib.md5(_read_bytes(path), usedforsecurity=False) for path in known if path.is_file()}
    return [path for path, md5 in md5s.items() if md5.hexdigest() != known[path]]


def _location(folder: Path, published: Published) -> Path:
    """Return where a published file or folder is: where a download puts it, or directly in the data folder."""
    direct = folder / Path(published.target).name
    return direct if os.path.exists(direct) else folder / published.target


def _not_found(folder: Path, published: Published, why: str) -> DataError:
    how = "put" if published.target.endswith(".mat") else "unpack"
    return DataError(f"there is no {published.target} in {folder}, and {why}; {how} {published.url} there.")


def _download(published: Published, folder: Path, progress: bool) -> None:
    """Download a file to the data folder, and unpack it. With `progress`, pooch logs what it downloads."""
    import pooch

    target, log = folder / published.target, pooch.get_logger()
    was_disabled, log.disabled = log.disabled, not progress
    file = published.url.rsplit("/", 1)[1]
    try:
        path = Path(pooch.retrieve(published.url, f"md5:{published.md5}", file, target.parent))
    finally:
        log.disabled = was_disabled
    if path == target:
        return
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        with tarfile.open(path) as archive:  # pooch's Untar lets an archive write anywhere before Python 3.12
            archive.extractall(temporary, filter="data")
        try:
            (Path(temporary) / target.name).rename(target)
        except OSError:
            if not target.exists():  # another process may have put the same data there meanwhile
                raise
    path.unlink(missing_ok=True)


# Contents


def _read_batch(path: Path, files: CifarFiles) -> Split:
    values = _pickled_values(path)
    before_text = takewhile(lambda value: not isinstance(value, str), _after(values, files.labels_key))
    labels = np.array([value for value in before_text if type(value) is int], dtype=object)
    texts = {value: position for position, value in enumerate(values) if isinstance(value, str)}
    content = max(texts, key=len, default="")
    pixels = bytearray(content.encode("latin-1", "replace"))
    in_rows = "u1" in texts and values[texts[content] - 1] is False  # True if it were column by column
    if not in_rows or not len(labels) or len(pixels) != len(labels) * IMAGE_BYTES:
        found = f"holds {len(labels)} {files.labels_key} and an array of {len(pixels)} bytes"
        raise _wrong(path, found, f"uint8 images of {IMAGE_BYTES} bytes, row by row, and a label for each")
    if labels.min() < 0 or labels.max() >= files.num_classes:
        raise _wrong(path, "holds labels out of range", f"integers from 0 to {files.num_classes - 1}")
    return np.frombuffer(pixels, np.uint8).reshape(-1, *IMAGE_SHAPE), labels.astype(np.int64)


def _read_names(path: Path, files: CifarFiles) -> tuple[str, ...]:
    rest = _after(_pickled_values(path), files.names_key)
    names = [str(value) for value in takewhile(lambda value: isinstance(value, str), rest)]
    if len(names) != files.num_classes or not all(name.isprintable() for name in names):
        raise _wrong(path, f"holds {len(names)} class names", f"{files.num_classes} printable names")
    return tuple(names)


def _read_mat(path: Path) -> Split:
    """Read images X and labels y; label 10 becomes the digit 0 that it stands for."""
    content = _read_bytes(path)
    try:
        arrays = _mat_arrays(content)
    except (TypeError, OverflowError, MemoryError, ValueError, struct.error, zlib.error) as error:
        raise _wrong(path, f"is not a MATLAB file as published ({one_line(error)})", "SVHN's cropped digits") from None
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or not x.size:
        found = "no array X" if x is None else f"X of shape {x.shape} and type {x.dtype}"
        raise _wrong(path, f"holds {found}", "uint8 images of shape [32, 32, 3, n]")
    if y is None or y.shape != (x.shape[3], 1) or not np.isin(y, np.arange(1, 11)).all():
        raise _wrong(path, "has no label for each image in y", f"{x.shape[3]} labels from 1 to 10 in one column")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y[:, 0].astype(np.int64) % 10


def _read_bytes(path: Path) -> bytes:
    try:
        check_regular(path)
        if (size := path.stat().st_size) > LARGEST_CONTENT:
            raise _wrong(path, f"has {size} bytes", f"at most {LARGEST_CONTENT}")
        return path.read_bytes()
    except OSError as error:
        raise _wrong(path, f"cannot be read ({one_line(error)})", "a regular file") from None


def _wrong(path: Path, found: str, expected: str) -> DataError:
    return DataError(f"{path} {found}; expected {expected}: replace it with the official file.")


# Pickles. They are parsed but not unpickled, so they cannot run code, use up memory or loop forever. A whitelisting unpickler
# was tried, but official files call numpy's functions, and checking their arguments (shapes, types, states) took more code.

_VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"}
_VALUES |= {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"}
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "APPENDS": None, "SETITEM": None, "SETITEMS": None}
_OTHERS = {"PROTO", "STOP", "MARK", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "NONE"}
_OTHERS |= {"EMPTY_DICT", "DICT", "LIST", "EMPTY_LIST", "APPEND", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_CALLS = {"numpy.core.multiarray _reconstruct": "a", "numpy._core.multiarray _reconstruct": "a", "numpy ndarray": "n"}
_CALLS |= {"numpy dtype": "d", "_codecs encode": "e", "REDUCE": "R", "BUILD": "B"}
# The calls that a file may make, in order, by the letters above: for one array at most, as Python 2 wrote it, or as Python 3
# writes it, which also encodes bytes.
_IN_ORDER = re.compile("anRdRBB|(eR+)?(ane?RRdRBRBR*)?")

Values = list[int | str | None]  # and booleans, which are ints


def _pickled_values(path: Path) -> Values:
    """Return the numbers, strings and booleans in a pickle, in their order, and None at the end of a list or dictionary."""
    content, found, calls = _read_bytes(path), Values(), ""
    try:
        for operation, value, _ in pickletools.genops(content):
            name = operation.name
            if name in _VALUES and value != "latin1":
                found.append(value)
            elif name in _CONSTANTS:
                found.append(_CONSTANTS[name])
            elif name in ("GLOBAL", "REDUCE", "BUILD"):
                calls += _CALLS.get(value or name, "?")
            elif name not in _VALUES | _OTHERS:
                raise ValueError(f"it holds {name}")
        if not _IN_ORDER.fullmatch(calls):
            raise ValueError("it makes calls that official files do not make")
    except Exception as error:  # whatever the tokenizer raises is the file's fault
        raise _wrong(path, f"is not a pickle as published ({one_line(error)})", "an intact one") from None
    return found


def _after(values: Values, key: str) -> Values:
    return values[values.index(key) + 1 :] if key in values else []


# MATLAB 5 files. We do not use scipy.io.loadmat: files with a few bytes changed crash it (segmentation fault).

_MAT_MATRIX, _MAT_COMPRESSED = 14, 15
_MAT_NUMBERS = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}


def _mat_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the numeric arrays X and y. The file is a header followed by elements, which may be compressed."""
    if content[124:128] != b"\x00\x01IM":  # version 1, little-endian
        raise ValueError("it does not begin like a file of MATLAB 5 to 7")
    arrays = {}
    for kind, element in _mat_elements(memoryview(content)[128:]):
        if kind == _MAT_COMPRESSED:
            stream = zlib.decompressobj()
            plain = stream.decompress(element, LARGEST_CONTENT)
            if not stream.eof:
                raise ValueError("its compressed part is cut short or too large")
            ((kind, element),) = _mat_elements(memoryview(plain))
        if kind == _MAT_MATRIX:
            _flags, (_, lengths), (_, name), (number_kind, numbers) = islice(_mat_elements(element), 4)
            if bytes(name) in (b"X", b"y"):
                shape = np.frombuffer(lengths, "<i4").tolist()
                if number_kind not in _MAT_NUMBERS or len(shape) > 4 or min(shape, default=0) < 0:
                    raise ValueError("it holds something other than arrays of numbers")
                array = np.frombuffer(numbers, _MAT_NUMBERS[number_kind]).reshape(shape, order="F")
                arrays[bytes(name).decode()] = array
    return arrays


def _mat_elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the kind and content of each element. Content of up to four bytes is stored in the eight bytes of the header."""
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
