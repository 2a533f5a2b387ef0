"""What a user may give as data, what it becomes, and what is refused."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfens import encoders
from selfens.data import arrays, sources
from selfens.data.arrays import standard_inputs, value_range
from selfens.data.dataset import Dataset
from selfens.encoders import ENCODERS
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import DataError

FEATURES = np.arange(12, dtype=np.float32).reshape(6, 2)


def pixels(*shape, kind=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(kind)


def labeled(labels, **options):
    return Dataset.from_arrays(np.zeros((len(labels), 2)), labels, **options)


def encoded(data):
    """Return the dataset as it is trained on."""
    encoder = encoders.build(ENCODERS.options("identity"))
    encoder.fit(data.raw, data.train_rows)
    return EncodedDataset.make(data, encoder)


# Inputs


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_last_and_first_are_told_apart_by_the_shape(channels):
    last = pixels(2, 8, 7, channels)
    first = last.transpose(0, 3, 1, 2)
    for images in (last, first):
        result = standard_inputs(images)
        np.testing.assert_array_equal(result, first)
        assert result.flags.c_contiguous


def test_layout_decides_where_the_shape_does_not():
    x = pixels(2, 3, 5, 4)
    assert standard_inputs(x).shape == (2, 4, 3, 5)
    np.testing.assert_array_equal(standard_inputs(x, layout="NCHW"), x)
    np.testing.assert_array_equal(standard_inputs(x, layout="NHWC"), x.transpose(0, 3, 1, 2))
    many = pixels(2, 7, 6, 5)
    np.testing.assert_array_equal(standard_inputs(many, layout="NCHW"), many)
    with pytest.raises(DataError, match="layout is 'HWCN'; expected NHWC, NCHW or auto"):
        standard_inputs(x, layout="HWCN")


def test_gray_images_get_a_channel():
    x = pixels(3, 5, 4)
    np.testing.assert_array_equal(standard_inputs(x), x[:, None])


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.uint32])
def test_integers_from_0_to_255_become_bytes(kind):
    x = pixels(3, 3, 4, 5, kind=kind)
    assert standard_inputs(x).dtype == np.uint8
    np.testing.assert_array_equal(standard_inputs(x), x)


@pytest.mark.parametrize("value", [-1, 256, 70_000])
def test_other_integers_become_floats(value):
    result = standard_inputs(np.array([[[0, value], [3, 4]]]))
    assert result.dtype == np.float32
    assert result[0, 0, 0, 1] == value


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, np.uint8, bool, list])
def test_features_become_single_precision(kind):
    x = [[0, 1, 1], [1, 0, 1]] if kind is list else np.array([[0, 1, 1], [1, 0, 1]], dtype=kind)
    result = standard_inputs(x)
    assert (result.dtype, result.tolist()) == (np.float32, [[0, 1, 1], [1, 0, 1]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1.0, 2.0], [3.0]], "training inputs have mixed shapes"),
        (np.array([[None, 1]], dtype=object), "have type object; expected numbers"),
        (np.array([["a", "b"]]), "training inputs have type <U1; expected numbers"),
        (np.array([[1j]]), "have type complex128"),
        (np.zeros(3), r"have shape \(3,\); expected \[rows, features\]"),
        (np.zeros((1, 1, 1, 1, 1)), r"have shape \(1, 1, 1, 1, 1\)"),
        (np.zeros((0, 3)), r"have shape \(0, 3\), which is empty"),
        (np.zeros((3, 0)), "which is empty"),
        (np.zeros((2, 3, 0, 4)), "which is empty"),
        (np.zeros((2, 7, 6, 5)), r"\(2, 7, 6, 5\), and neither .* channel .*layout='NHWC' or layout='NCHW'"),
        (np.array([[0.0], [1.0], [np.nan], [np.inf]]), r"NaN or infinite values .*in 2 rows \(the first is row 2\)"),
        (np.array([[-np.inf]]), "NaN or infinite"),
        (np.array([[1e300], [0.0]]), r"beyond 3.4e38\) in 1 row \(the first is row 0\)"),
        (np.ma.masked_array([[1.0], [2.0]], mask=[[0], [1]]), "have masked values; fill them first"),
    ],
)
def test_inputs_that_cannot_be_trained_on_are_refused_without_a_warning(inputs, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=message):
            Dataset.from_arrays(inputs, [0] * len(inputs))


# Labels


@pytest.mark.parametrize(
    "labels",
    [[0, 2, 1, -1], np.array([0, 2, 1, -1]), np.array([0, 2, 1, -1], dtype=np.int8), (0, 2, 1, None),
     [0.0, 2.0, 1.0, float("nan")], np.array([0, 2, 1, np.nan]), [np.int64(0), 2, 1, -1],
     np.array([0, 2, 1, None], dtype=object), [0, 2, 1, ""]],
)  # fmt: skip
def test_integer_labels_in_every_form(labels):
    data = labeled(labels)
    assert data.labels.tolist() == [0, 2, 1, -1]
    assert data.classes == ("0", "1", "2")
    assert data.labels.dtype == np.int64


@pytest.mark.parametrize(
    "labels",
    [["dog", "cat", "", "dog"], np.array(["dog", "cat", "", "dog"]), ["dog", "cat", None, "dog"],
     ["dog", "cat", "-1", "dog"], np.array(["dog", "cat", None, "dog"], dtype=object),
     ["dog", "cat", float("nan"), "dog"],
     list(np.array(["dog", "cat", "", "dog"])), [np.str_("dog"), "cat", "", "dog"], ["dog", "cat", -1, "dog"]],
)  # fmt: skip
def test_string_labels_in_every_form(labels):
    data = labeled(labels)
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [1, 0, -1, 1]


def test_class_numbers_are_closed_up_in_order():
    data = labeled([7, 3, -1, 40, 3])
    assert data.classes == ("3", "7", "40")
    assert data.labels.tolist() == [1, 0, -1, 2, 0]


def test_given_classes_name_positions_or_strings():
    names = ["x", "y", "z"]
    assert labeled([2, 0, -1], classes=names).labels.tolist() == [2, 0, -1]
    assert labeled(["z", "x", ""], classes=names).labels.tolist() == [2, 0, -1]
    assert labeled(list(np.array(["z", "x"])), classes=names).labels.tolist() == [2, 0]
    assert labeled([1, 0], classes=names).classes == ("x", "y", "z")


@given(st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=30))
def test_labels_can_be_read_back_through_the_class_names(labels):
    data = labeled(labels)
    assert [None if number == -1 else int(data.classes[number]) for number in data.labels] == labels


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "training labels are 2 for 6 rows; expected one label per row"),
        (np.zeros((6, 2)), "training labels are 6 x 2 for 6 rows; expected one label per row"),
        (3, "training labels are a single value"),
        ([0, 1, 2, -2, 0, 0], "hold -2 of type int; expected integers from 0 or strings, -1"),
        ([0, 1, 0.5, 0, 0, 0], r"hold 0\.5 of type float; expected integers from 0 or strings"),
        ([0, 1, "cat", 0, 0, 0], "mix integers and strings"),
        ([0, 1, [2], 0, 0, 0], r"hold \[2\] of type list"),
        ([0, 1, float("inf"), 0, 0, 0], "hold inf of type float"),
    ],
)
def test_labels_that_cannot_be_meant_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        Dataset.from_arrays(FEATURES, labels)


@pytest.mark.parametrize(
    ("label", "classes", "message"),
    [
        (3, "xyz", "the label 3 is not one of the 3 classes x, y, z"),
        ("w", "xyz", "the label 'w' is not one of the 3 classes x, y, z"),
        ("x", "xyx", "the class names x, y, x contain a duplicate"),
    ],
)
def test_classes_that_do_not_fit_are_refused(label, classes, message):
    with pytest.raises(DataError, match=message):
        labeled([label, label], classes=[*classes])


# The test set


def test_the_test_set_is_numbered_as_the_training_set():
    data = Dataset.from_arrays(FEATURES, ["b", "a", "", "c", "a", "b"], FEATURES[:2], ["c", "b"])
    assert (data.num_train, data.test_labels.tolist()) == (6, [2, 1])
    np.testing.assert_array_equal(encoded(data).test_inputs, FEATURES[:2])


def test_without_a_test_set_there_are_no_test_rows():
    data = encoded(Dataset.from_arrays(FEATURES, [0, 1] * 3))
    assert (data.test_inputs.shape, len(data.test_labels)) == ((0, 2), 0)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ((FEATURES, None), "test set needs both inputs and labels"),
        ((None, [0]), "test set needs both inputs and labels"),
        ((np.zeros((1, 3)), [0]), r"test inputs have shape \(3,\) per row and the training inputs \(2,\)"),
        ((FEATURES, [0]), "the test labels are 1 for 6 rows"),
        ((FEATURES[:2], [0, -1]), "1 test row has no label"),
        ((FEATURES[:2], [-1, None]), r"2 test rows have no label; give each"),
        ((FEATURES[:4], [0, 9, -1, 9]), "2 test rows have the label '9', which no training row has; give each"),
        ((np.full((1, 2), np.nan), [0]), "the test inputs hold NaN"),
    ],
)
def test_a_test_set_that_cannot_be_used_is_refused(test, message):
    with pytest.raises(DataError, match=message):
        Dataset.from_arrays(FEATURES, [0, 1] * 3, *test)


def test_training_and_test_images_are_on_one_scale_or_refused():
    """Bytes are divided by 255 later and floats are not, so training and test images would have different scales."""
    large, small, y = pixels(6, 4, 4, kind=np.int64) * 10, pixels(2, 4, 4, kind=np.int64), [0, 1] * 3
    data = encoded(Dataset.from_arrays(large, y, small, [0, 1]))
    assert data.inputs.dtype == data.test_inputs.dtype == np.float32
    for train, test in ((np.uint8, np.float32), (np.float32, np.uint8)):
        message = f"the training images are {np.dtype(train)} and the test images {np.dtype(test)}"
        with pytest.raises(DataError, match=message):
            Dataset.from_arrays(pixels(6, 4, 4, kind=train), y, pixels(2, 4, 4, kind=test), [0, 1])


# The object


def test_splits_make_other_datasets():
    data = Dataset.from_arrays(FEATURES, [0, 1, 1, 0, 1, 0], FEATURES[:2], [1, 0])
    split = encoded(data.with_split(np.array([4, 1]), np.array([2]), data.train_labels))
    np.testing.assert_array_equal(split.inputs, FEATURES[[4, 1]])
    np.testing.assert_array_equal(split.test_inputs, FEATURES[[2]])
    assert (split.labels.tolist(), split.test_labels.tolist()) == ([1, 1], [1])


def two_sets(**changes):
    parts = {
        "inputs": pixels(4, 2, 2, 3), "labels": [0, 1, 0, -1],
        "test_inputs": pixels(2, 2, 2, 3), "test_labels": [0, 1],
    }  # fmt: skip
    return encoded(Dataset.from_arrays(**(parts | changes)))


def changed(array):
    array = np.array(array)
    array.flat[0] ^= 1
    return array


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": changed(pixels(4, 2, 2, 3))},
        {"labels": [1, 1, 0, -1]},
        {"labels": [0, 1, 0, 1]},
        {"test_inputs": changed(pixels(2, 2, 2, 3))},
        {"test_labels": [1, 1]},
        {"classes": ["x", "y"]},
        {"inputs": pixels(4, 2, 2, 3).astype(float), "test_inputs": pixels(2, 2, 2, 3).astype(float)},
        {"inputs": pixels(4, 2, 2, 3).reshape(4, 4, 1, 3), "test_inputs": pixels(2, 2, 2, 3).reshape(2, 4, 1, 3)},
        {"test_inputs": None, "test_labels": None},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_the_fingerprint_changes_with_the_content(changes):
    assert two_sets().fingerprint == two_sets(name="elsewhere").fingerprint
    assert two_sets(**changes).fingerprint != two_sets().fingerprint


# Files


def read(path):
    return sources.load(sources.options_for(path))


def test_an_npz_file_gives_what_its_arrays_give(tmp_path):
    x, y = pixels(4, 2, 2, 3), np.array(["a", "b", "", "a"])
    test_x, test_y = pixels(2, 2, 2, 3), np.array(["b", "a"])
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=test_x, y_test=test_y)
    data, direct = read(tmp_path / "d.npz"), Dataset.from_arrays(x, y, test_x, test_y)
    assert encoded(data).fingerprint == encoded(direct).fingerprint
    assert (data.classes, data.name) == (("a", "b"), str(tmp_path / "d.npz"))


def test_an_npz_file_may_hold_classes(tmp_path):
    y = np.array([0, 1, -1, 0, 1, 1])
    np.savez_compressed(tmp_path / "d.npz", x_train=FEATURES, y_train=y, classes=["cat", "dog", "cow"])
    data = read(str(tmp_path / "d.npz"))
    assert data.classes == ("cat", "dog", "cow")
    assert data.labels.tolist() == y.tolist()


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


@pytest.mark.parametrize("thing", [Bomb(), None], ids=["bomb", "none"])
def test_python_objects_are_refused_unread(tmp_path, thing):
    np.savez(tmp_path / "d.npz", x_train=FEATURES, y_train=np.array([thing] * 6, dtype=object))
    with pytest.raises(DataError, match="it holds Python objects, and reading them could run code"):
        read(tmp_path / "d.npz")


def test_files_that_hold_no_dataset_are_refused(tmp_path):
    np.savez(tmp_path / "whole.npz", x_train=FEATURES, y_train=[0, 1] * 3)
    whole = (tmp_path / "whole.npz").read_bytes()
    broken = bytearray(whole)
    broken[whole.index(b"\x93NUMPY") + 100] ^= 0xFF
    for name, content in {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"hello", "broken": broken}.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match="is not a readable .npz file"):
            read(tmp_path / f"{name}.npz")
    np.savez(tmp_path / "other.npz", images=FEATURES, y_train=[0] * 6)
    with pytest.raises(DataError, match="holds images, y_train; expected x_train and y_train"):
        read(tmp_path / "other.npz")
    with pytest.raises(DataError, match="there is no file .*nowhere.npz"):
        read(tmp_path / "nowhere.npz")
    np.save(tmp_path / "one.npy", FEATURES)
    with pytest.raises(DataError, match="is a single array"):
        read(tmp_path / "one.npy")


# Pixels

RAMP = np.linspace(0, 1, 40 * 16, dtype=np.float32).reshape(40, 4, 4)


@pytest.mark.parametrize(
    ("inputs", "pixels"),
    [
        (RAMP, True),
        (RAMP.astype(np.float64), True),
        ((255 * RAMP).astype(np.uint8), True),
        ((255 * RAMP).astype(int), True),
        (1.001 * RAMP, True),  # rounding
        (RAMP - 0.001, True),
        (2 * RAMP - 1, False),
        (np.where(np.arange(40) < 39, RAMP.T, 1.5).T, False),  # the last image only
        (RAMP / 16, False),  # dark: gray would be far outside
        ((16 * RAMP).astype(np.uint8), False),
        (RAMP.reshape(40, 16), False),
    ],
)
def test_images_are_pixels_if_white_is_known(inputs, pixels):
    assert encoded(Dataset.from_arrays(inputs, np.arange(40) % 2)).are_pixels == pixels


def test_all_images_are_looked_at_for_their_range(monkeypatch):
    monkeypatch.setattr(arrays, "PIECE", 3)
    y, x, dark = np.arange(40) % 2, RAMP.copy(), np.zeros((40, 4, 4), np.uint8)
    x[1, 0, 0], x[-1, 0, 0] = -7, 9
    assert value_range(encoded(Dataset.from_arrays(x, y)).inputs) == (-7, 9)
    assert value_range(encoded(Dataset.from_arrays(dark, y)).inputs) == (0, 255)
    assert not encoded(Dataset.from_arrays(dark, y)).are_pixels
    dark[-1, 0, 0] = 128  # one bright byte is enough to know white
    assert encoded(Dataset.from_arrays(dark, y)).are_pixels


def test_minus_one_is_unlabeled_however_a_dataset_is_made():
    x = np.zeros((4, 2), np.float32)
    for dataset in (Dataset.from_labels(x, [0, -1, 1, None]), Dataset.from_arrays(x, np.array([0, -1, 1, -1]))):
        assert (dataset.classes, dataset.labels.tolist()) == (("0", "1"), [0, -1, 1, -1])
