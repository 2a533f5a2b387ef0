"""The readers of official files: the same arrays from every layout, one sentence for anything else, no code run."""

import os
import pickle
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfens.data import official_files
from selfens.errors import DataError

TRAIN = {"cifar10": [f"data_batch_{i}" for i in range(1, 6)], "cifar100": ["train"], "svhn": ["train_32x32.mat"]}
TEST = {"cifar10": ["test_batch"], "cifar100": ["test"], "svhn": ["test_32x32.mat"]}
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder, name):
    return official_files.load(name, folder, offline=True, progress=False)


def assert_as_written(found, official, name):
    for (x, y), files in zip(found, (TRAIN[name], TEST[name]), strict=True):
        pixels, labels = official.expected(files)
        np.testing.assert_array_equal(x, pixels)
        np.testing.assert_array_equal(y, labels)
        assert (x.dtype, y.dtype, x.flags.c_contiguous, x.flags.writeable) == (np.uint8, np.int64, True, True)


@pytest.mark.parametrize("style", ["python2", "protocol2", "old-numpy"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_every_layout_gives_the_images_in_the_order_of_the_files(tmp_path, official, name, style):
    official.cifar(tmp_path, name, style)
    *found, classes = read(tmp_path, name)
    assert_as_written(found, official, name)
    assert (len(classes), classes[3]) == ((10, "thing 3") if name == "cifar10" else (100, "fine_3"))


@pytest.mark.parametrize("folder", [".", "svhn"])
@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_has_digit_0_where_the_file_says_10(tmp_path, official, folder, compressed):
    official.written["train_32x32.mat"] = official.batch("any", 10)[0], np.array([0, 9, 1])
    official.svhn(tmp_path / folder, compressed)
    *found, classes = read(tmp_path, "svhn")
    assert_as_written(found, official, "svhn")
    assert classes == tuple("0123456789")


def test_lists_of_more_than_a_thousand_are_read(tmp_path, official):
    """Pickle writes them in parts."""
    official.written["train"] = np.zeros((2500, 3072), np.uint8), np.arange(2500) % 100
    official.cifar(tmp_path, "cifar100", "protocol2")
    assert_as_written(read(tmp_path, "cifar100")[:2], official, "cifar100")


def test_the_hand_made_python_2_pickle_is_a_real_pickle(official, python2):
    pixels, labels = official.batch("any", 10)
    content = pickle.loads(python2(pixels, labels.tolist(), "labels"), encoding="bytes")
    np.testing.assert_array_equal(content[b"data"], pixels)
    assert content[b"labels"] == labels.tolist()


def test_labels_stored_as_doubles_are_read_and_images_agree_with_scipy(tmp_path, official):
    from scipy.io import loadmat, savemat

    official.svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    pixels = loadmat(path)["X"]
    savemat(path, {"note": "not an array of numbers", "X": pixels, "y": np.array([[10.0], [2.0], [3.0]])})
    x, y = read(tmp_path, "svhn")[0]
    np.testing.assert_array_equal(x, pixels.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(y, [0, 2, 3])


# Other content

PIXELS = np.zeros((2, 3072), np.uint8)
MAT_PIXELS = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": PIXELS, "labels": [1]}, "holds 1 labels and an array of 6144 bytes; expected uint8 images"),
        ({"data": PIXELS, "labels": [1, 10]}, "labels out of range; expected integers from 0 to 9"),
        ({"data": PIXELS, "labels": [-1, 1]}, "labels out of range"),
        ({"data": PIXELS, "labels": [2**80, 1]}, "labels out of range"),
        ({"data": PIXELS, "labels": [True, True]}, "holds 0 labels"),
        ({"data": PIXELS, "labels": [b"1", 1]}, "holds 0 labels"),
        ({"data": PIXELS, "fine_labels": [1, 1]}, "holds 0 labels"),
        ({"data": PIXELS[:, :5], "labels": [1, 1]}, "an array of 10 bytes"),
        ({"data": PIXELS.astype(np.float32), "labels": [1, 1]}, "an array of 24576 bytes"),
        ({"data": PIXELS.astype(np.int8), "labels": [1, 1]}, "expected uint8 images"),
        ({"data": np.asfortranarray(PIXELS), "labels": [1, 1]}, "expected uint8 images of 3072 bytes, row by row"),
        ({"labels": [1, 1]}, "expected uint8 images"),
        ([1, 2], "holds 0 labels"),
    ],
)
def test_a_pickle_of_other_content_is_refused_with_the_reason(tmp_path, official, content, message):
    place = official.cifar(tmp_path, "cifar10", "protocol2")
    (place / "data_batch_2").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=f"data_batch_2 .*{message}.*official file"):
        read(tmp_path, "cifar10")


@pytest.mark.parametrize("names", [[b"a"] * 9, [1] * 10, ["\x1b[2J"] * 10, "abcdefghij"])
def test_names_that_are_not_names_are_refused(tmp_path, official, names):
    place = official.cifar(tmp_path, "cifar10", "protocol2")
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    with pytest.raises(DataError, match="batches.meta .*expected 10 printable names"):
        read(tmp_path, "cifar10")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": MAT_PIXELS}, "no label for each image in y"),
        ({"y": np.ones((2, 1))}, "no array X"),
        ({"X": MAT_PIXELS.astype(float), "y": np.ones((2, 1))}, "type float64"),
        ({"X": MAT_PIXELS.transpose(3, 0, 1, 2), "y": np.ones((2, 1))}, r"shape \(2, 32, 32, 3\)"),
        ({"X": MAT_PIXELS, "y": np.zeros((2, 1))}, "2 labels from 1 to 10"),
        ({"X": MAT_PIXELS, "y": np.ones((3, 1))}, "no label for each image in y"),
        ({"X": MAT_PIXELS, "y": np.array([["a"], ["b"]], object)}, "something other than arrays of numbers"),
    ],
)
def test_a_mat_file_of_other_content_is_refused_with_the_reason(tmp_path, official, arrays, message):
    from scipy.io import savemat

    official.svhn(tmp_path)
    savemat(tmp_path / "test_32x32.mat", arrays)
    with pytest.raises(DataError, match=f"test_32x32.mat .*{message}"):
        read(tmp_path, "svhn")


# Hostile files


def crafted_pickles(command: str) -> dict[str, bytes]:
    """Operations that would leave a value on the stack, and run the command in a trusting reader."""
    text = f"S'{command}'\n".encode()
    python = f'S\'__import__("os").system("{command}")\'\n'.encode()
    system = b"cos\nsystem\n"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return {
        "reduce": system + text + b"\x85R",
        "posix": b"cposix\nsystem\n" + text + b"\x85R",
        "eval": b"c__builtin__\neval\n" + python + b"\x85R",
        "getattr": b"c__builtin__\ngetattr\n(c__builtin__\n__import__\nU\x02os\x85RU\x06systemtR" + text + b"\x85R",
        "instance": b"(" + text + b"ios\nsystem\n",
        "object": b"(" + system + text + b"o",
        "newobj": b"csubprocess\nPopen\n" + text + b"\x85\x81",
        "stack_global": b"\x8c\x02os\x8c\x06system\x93" + text + b"\x85R",
        "dotted": b"\x8c\x05numpy\x8c\x0fndarray.tofile.\x93" + text + b"\x85R",
        "sibling": b"cnumpy.core.multiarray\nfromfile\n" + text + b"\x85R",
        "runstring": b"cnumpy.testing._private.utils\nrunstring\n" + python + b"}\x86R",
        "codec": b"c_codecs\nencode\nX\x01\x00\x00\x00aU\x05rot13\x86R",
        "build": b"cnumpy\nndarray\n}U\x0c__setstate__" + system + b"sb" + text + b"b",
        "build_slots": b"c_codecs\nencode\nN}U\x08__code__K\x01s\x86b",
        "build_state": array + b"}U\x0c__setstate__" + system + b"sb" + text + b"b",
        "objects": array + b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R\x89](" + system + b"etb",
        "call_a_string": text + text + b"\x85R",
        "persistent": b"Pos.system\n",
        "extension": b"\x82\x01",
    }


@pytest.mark.parametrize("attack", crafted_pickles(""))
def test_a_crafted_pickle_runs_nothing(tmp_path, official, python2, attack):
    trace = tmp_path / "trace"
    operations = crafted_pickles(f"touch {trace}")[attack]
    pixels, labels = official.batch("any", 10)
    place = official.cifar(tmp_path, "cifar10")
    inside = python2(pixels, labels.tolist(), "labels", extra=operations)
    for content, found in ((b"\x80\x02" + operations + b".", ""), (inside, "is not a pickle as published")):
        (place / "data_batch_1").write_bytes(content)
        with pytest.raises(DataError, match=f"data_batch_1 {found}"):
            read(tmp_path, "cifar10")
    assert not trace.exists()


@pytest.mark.parametrize("attack", ["reduce", "eval", "getattr", "instance", "object", "stack_global"])
def test_the_crafted_pickles_are_armed(tmp_path, attack):
    trace = tmp_path / "trace"
    with suppress(Exception):
        pickle.loads(b"\x80\x02" + crafted_pickles(f"touch {trace}")[attack] + b".")
    assert trace.exists()


def greedy_pickles() -> dict[str, bytes]:
    """Small files that take a trusting reader's memory, stack or time."""
    shape = b"\x8a\x08" + struct.pack("<q", 2**62)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + shape
    doubled = b")" + b"q\x01h\x01\x86" * 80
    text = b"X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x00"
    return {
        "memo": b"}r\xff\xff\xff\xff.",
        "bytes": b"B\xff\xff\xff\xff.",
        "bytes8": b"\x8e" + b"\xff" * 7 + b"\x7f.",
        "frame": b"\x95" + b"\xff" * 7 + b"\x7f.",
        "deep key": b"}" + b")" + b"\x85" * 200_000 + b"Ns.",
        "wide key": b"}" + doubled + b"Ns.",
        "wide name": doubled + doubled + b"\x93.",
        "long number": b"I" + b"9" * 100_000 + b"\n.",
        "shape": array + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89U\x00tb.",
        "itself": b"]q\x00h\x00a.",
        "encode": text + b"c_codecs\nencode\nh\x00U\x06latin1\x86R" * 5000,
    }


@pytest.mark.parametrize("attack", greedy_pickles())
def test_a_crafted_pickle_takes_neither_memory_nor_time(tmp_path, official, attack):
    place = official.cifar(tmp_path, "cifar10")
    (place / "data_batch_1").write_bytes(b"\x80\x04" + greedy_pickles()[attack])
    with pytest.raises(DataError, match="data_batch_1") as caught:
        read(tmp_path, "cifar10")
    assert len(str(caught.value)) < 400 + len(str(place))


def test_a_small_mat_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, official, monkeypatch):
    official.written["train_32x32.mat"] = np.zeros((50, 3072), np.uint8), np.ones(50, int)
    official.svhn(tmp_path)
    monkeypatch.setattr(official_files, "LARGEST_CONTENT", 10_000)
    assert (tmp_path / "train_32x32.mat").stat().st_size < 10_000
    with pytest.raises(DataError, match="compressed part is cut short or too large"):
        read(tmp_path, "svhn")


@pytest.mark.parametrize("style", ["python2", "protocol2"])
@pytest.mark.parametrize("file", ["data_batch_1", "batches.meta"])
def test_a_pickle_cut_short_anywhere_is_refused(tmp_path, official, style, file):
    path = official.cifar(tmp_path, "cifar10", style) / file
    content = path.read_bytes()
    for end in {*range(0, len(content), 1501), *range(120), *range(len(content) - 60, len(content))}:
        path.write_bytes(content[:end])
        with pytest.raises(DataError, match=f"{file} "):
            read(tmp_path, "cifar10")


@pytest.mark.parametrize("compressed", [True, False])
def test_a_mat_file_cut_short_is_refused(tmp_path, official, compressed):
    official.svhn(tmp_path, compressed)
    path = tmp_path / "train_32x32.mat"
    content = path.read_bytes()
    for end in [*range(0, 400, 5), *range(400, len(content), 301), len(content) - 1]:
        path.write_bytes(content[:end])
        with pytest.raises(DataError, match="train_32x32.mat "):
            read(tmp_path, "svhn")


@pytest.mark.parametrize("target", ["python2/data_batch_1", "python2/batches.meta", "protocol2/batches.meta", "mat"])
@FUZZ
@given(data=st.data())
def test_damaged_files_are_read_or_refused_in_a_sentence(official, target, data):
    """Any byte changed, any bytes instead of the file: no exception but DataError."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        style, _, file = target.partition("/")
        if target == "mat":
            official.svhn(folder, compressed=False)
        path = official.cifar(folder, "cifar10", style) / file if file else folder / "train_32x32.mat"
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content = bytearray(data.draw(st.binary(max_size=300)))
        else:
            places = st.integers(0, min(len(content), 1500) - 1)
            for at, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=5)):
                content[at if value % 2 else -at - 1] = value
        path.write_bytes(content)
        with suppress(DataError):
            read(folder, "cifar10" if file else "svhn")


@pytest.mark.parametrize("file", ["cifar-10-batches-py/test_batch", "test_32x32.mat"])
@pytest.mark.parametrize(("make", "reason"), [(Path.mkdir, "it is a folder"), (os.mkfifo, "it is not a regular file")])
def test_what_is_not_a_file_is_refused_and_not_waited_for(tmp_path, official, file, make, reason):
    official.cifar(tmp_path, "cifar10")
    official.svhn(tmp_path)
    (tmp_path / file).unlink()
    make(tmp_path / file)
    with pytest.raises(DataError, match=f"{file} cannot be read .*{reason}.*replace it with the official file"):
        read(tmp_path, "svhn" if file.endswith(".mat") else "cifar10")


def test_a_folder_that_lacks_a_file_is_refused(tmp_path, official):
    (official.cifar(tmp_path, "cifar10") / "test_batch").unlink()
    with pytest.raises(DataError, match="test_batch cannot be read .*replace it with the official file"):
        read(tmp_path, "cifar10")


def test_a_file_that_is_too_large_is_refused(tmp_path, official, monkeypatch):
    official.cifar(tmp_path, "cifar10")
    monkeypatch.setattr(official_files, "LARGEST_CONTENT", 1000)
    with pytest.raises(DataError, match=r"data_batch_1 has \d+ bytes; expected at most 1000"):
        read(tmp_path, "cifar10")
