"""Writers of small files in the official layouts, independent of the readers under test."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

NAMES = {"cifar10": [f"thing {i}" for i in range(10)], "cifar100": [f"fine_{i}" for i in range(100)]}


def python2_string(value: bytes) -> bytes:
    short = len(value) < 256
    return (b"U" + struct.pack("<B", len(value)) if short else b"T" + struct.pack("<i", len(value))) + value


def python2_array(pixels: np.ndarray) -> bytes:
    """An array as cPickle of Python 2 wrote it with protocol 2."""
    rows, columns = (b"J" + struct.pack("<i", length) for length in pixels.shape)
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rq\x07"
    return empty + b"(K\x01" + rows + columns + b"\x86" + dtype + b"\x89" + python2_string(pixels.tobytes()) + b"tb"


def python2_batch(pixels: np.ndarray, labels: list[int], key: str, extra: bytes = b"") -> bytes:
    """The official data_batch files; `extra` is an operation that puts the value of one more key on the stack."""
    listed = b"]q\x05(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = [python2_string(b"batch_label"), python2_string(b"training batch 1 of 5"), python2_string(key.encode())]
    tail = python2_string(b"filenames") + extra if extra else b""
    data = python2_string(b"data") + python2_array(pixels)
    return b"\x80\x02}q\x01(" + b"".join(items) + listed + data + tail + b"u."


def python3_batch(pixels: np.ndarray, labels: list[int], key: str, protocol: int) -> bytes:
    names = [f"{i}.png".encode() for i in range(len(labels))]
    return pickle.dumps({b"data": pixels, key.encode(): labels, b"filenames": names}, protocol=protocol)


def names_protocol_0(key: str, names: list[str]) -> bytes:
    """What Python 2 writes unless told otherwise."""
    listed = "".join(f"aS'{name}'\np{i + 9}\n" for i, name in enumerate(names))
    return f"(dp1\nS'num_cases_per_batch'\np2\nI10000\nsS'{key}'\np3\n(lp4\n{listed[1:]}as.".encode()


def names_python2(key: str, names: list[str]) -> bytes:
    """The official batches.meta."""
    listed = b"".join(python2_string(name.encode()) + b"q" + bytes([i + 5]) for i, name in enumerate(names))
    head = b"\x80\x02}q\x01(" + python2_string(b"num_cases_per_batch") + b"q\x02M\x10'"
    tail = b"e" + python2_string(b"num_vis") + b"M\x00\x0cu."
    return head + python2_string(key.encode()) + b"q\x03]q\x04(" + listed + tail


class Official:
    """Writes CIFAR and SVHN with random content and remembers what was written."""

    def __init__(self, rows: int = 3) -> None:
        self.rows = rows
        self.random = np.random.default_rng(7)
        self.written: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def batch(self, file: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
        if file not in self.written:
            pixels = self.random.integers(0, 256, (self.rows, 3072), dtype=np.uint8)
            self.written[file] = pixels, self.random.integers(0, num_classes, self.rows)
        return self.written[file]

    def expected(self, files: list[str]) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = zip(*(self.written[file] for file in files), strict=True)
        return np.concatenate(pixels).reshape(-1, 3, 32, 32), np.concatenate(labels)

    def write(self, folder: Path, name: str) -> None:
        _ = self.svhn(folder) if name == "svhn" else self.cifar(folder, name)

    def cifar(self, folder: Path, name: str, style: str = "python2") -> Path:
        """`style` is python2, protocol2 or old-numpy."""
        ten = name == "cifar10"
        train = [f"data_batch_{i}" for i in range(1, 6)] if ten else ["train"]
        place = folder / ("cifar-10-batches-py" if ten else "cifar-100-python")
        place.mkdir(parents=True)
        for file in [*train, "test_batch" if ten else "test"]:
            pixels, labels = self.batch(file, len(NAMES[name]))
            content = self.pickled(pixels, labels.tolist(), "labels" if ten else "fine_labels", style)
            (place / file).write_bytes(content)
        self.names(place, name, style)
        return place

    def pickled(self, pixels: np.ndarray, labels: list[int], key: str, style: str) -> bytes:
        if style == "python2":
            return python2_batch(pixels, labels, key)
        if style == "old-numpy":
            return python3_batch(pixels, labels, key, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        return python3_batch(pixels, labels, key, int(style[-1]))

    def names(self, place: Path, name: str, style: str) -> None:
        ten = name == "cifar10"
        write = names_python2 if style == "python2" else names_protocol_0
        key = "label_names" if ten else "fine_label_names"
        (place / ("batches.meta" if ten else "meta")).write_bytes(write(key, NAMES[name]))

    def svhn(self, folder: Path, compressed: bool = True) -> None:
        from scipy.io import savemat

        folder.mkdir(parents=True, exist_ok=True)
        for file in ("train_32x32.mat", "test_32x32.mat"):
            pixels, labels = self.batch(file, 10)
            x = pixels.reshape(-1, 3, 32, 32).transpose(2, 3, 1, 0)
            y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
            savemat(folder / file, {"X": x, "y": y}, do_compression=compressed)


@pytest.fixture
def official() -> Official:
    return Official()


@pytest.fixture
def python2():
    """The writer of one official-looking batch, for tests that put something else into it."""
    return python2_batch
