"""Which rows are labeled, and with what."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.label_choice import original_rows as twin

from selfens.config import DataConfig
from selfens.data.dataset import Dataset
from selfens.data.label_files import named_rows
from selfens.data.labels import LabelChoice, balanced_rows, choose_labels, original_rows
from selfens.errors import DataError

CLASSES = ("a", "b", "c", "d")


def dataset(rows=200, num_classes=4, seed=0, unlabeled=0.0):
    random = np.random.default_rng(seed)
    labels = random.integers(num_classes, size=rows)
    labels[:num_classes] = range(num_classes)
    labels[num_classes:][random.random(rows - num_classes) < unlabeled] = -1
    names = [CLASSES[i] if i < len(CLASSES) else f"class {i}" for i in range(num_classes)]
    return Dataset.from_arrays(random.normal(size=(rows, 3)), labels, classes=names)


def chosen(data, label_seed=0, split_seed=0, **options):
    return choose_labels(data, DataConfig(**options), label_seed=label_seed, split_seed=split_seed)


# balanced


@given(st.integers(4, 80), st.integers(0, 2**32 - 1))
def test_balanced_choice_has_equally_many_of_each_class(count, seed):
    data = dataset(unlabeled=0.3, rows=400)
    rows = balanced_rows(data.labels, data.classes, count, seed)
    counts = np.bincount(data.labels[rows], minlength=4)
    assert len(set(rows.tolist())) == len(rows) == count
    assert counts.max() - counts.min() <= 1
    assert (data.labels[rows] >= 0).all()
    np.testing.assert_array_equal(rows, np.sort(rows))
    np.testing.assert_array_equal(rows, balanced_rows(data.labels, data.classes, count, seed))


def test_remainder_goes_to_different_classes_with_different_seeds():
    data = dataset()
    larger = {int(np.bincount(data.labels[balanced_rows(data.labels, CLASSES, 9, s)]).argmax()) for s in range(40)}
    assert larger == {0, 1, 2, 3}


@pytest.mark.parametrize("choose", [balanced_rows, original_rows])
def test_seeds_choose_differently_and_the_same_seed_alike(choose):
    data = dataset()
    sets = {tuple(choose(data.labels, data.classes, 20, seed)) for seed in (0, 0, 1, 2)}
    assert len(sets) == 3


def test_every_row_can_be_chosen():
    data = dataset(rows=40)
    seen = {row for seed in range(200) for row in balanced_rows(data.labels, CLASSES, 8, seed).tolist()}
    assert seen == set(range(40))


# the authors'


@given(st.integers(4, 60), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.4]))
def test_original_choice_is_the_one_told_literally(count, seed, unlabeled):
    data = dataset(rows=300, unlabeled=unlabeled)
    rows = original_rows(data.labels, data.classes, count, seed)
    assert rows.tolist() == twin(data.labels, 4, count, seed)


def test_original_choice_leaves_the_remainder_out():
    data = dataset()
    assert len(original_rows(data.labels, CLASSES, 23, 1000)) == 20


# choose_labels


def test_all_labels_are_used_unless_a_number_is_given():
    data = dataset(unlabeled=0.5)
    choice = chosen(data)
    np.testing.assert_array_equal(choice.rows, np.flatnonzero(data.labels >= 0))
    np.testing.assert_array_equal(choice.training_labels(200), data.labels)
    assert len(choice.corrupted) == len(choice.validation) == 0


@pytest.mark.parametrize("kind", ["balanced", "original"])
def test_chosen_rows_keep_their_labels_and_the_others_have_none(kind):
    data = dataset()
    choice = chosen(data, labels=20, label_choice=kind)
    labels = choice.training_labels(200)
    np.testing.assert_array_equal(labels[choice.rows], data.labels[choice.rows])
    assert (labels >= 0).sum() == 20


def test_choice_depends_on_the_label_seed():
    data = dataset()
    rows = [chosen(data, labels=20, label_seed=a, split_seed=b).rows.tolist() for a, b in [(0, 0), (0, 1), (1, 0)]]
    assert rows[0] == rows[1] != rows[2]


def test_choice_is_kept_as_json():
    choice = chosen(dataset(), labels=40, label_noise=50, validation=0.2)
    again = LabelChoice.from_json(choice.to_json())
    for name in ("rows", "labels", "corrupted", "validation", "validation_labels"):
        np.testing.assert_array_equal(getattr(again, name), getattr(choice, name))
        assert getattr(again, name).dtype == np.int64
        assert len(getattr(again, name)) > 0


# corruption


@pytest.mark.parametrize("percentage", [0, 20, 50, 80, 100, 33.3])
def test_corruption_redraws_the_percentage_of_the_labels_in_use(percentage):
    data = dataset(rows=2000, num_classes=4)
    choice = chosen(data, labels=400, label_noise=percentage)
    changed = choice.rows[choice.labels != data.labels[choice.rows]]
    assert len(choice.corrupted) == len(set(choice.corrupted.tolist())) == int(0.01 * 400 * percentage)
    assert set(changed.tolist()) <= set(choice.corrupted.tolist()) <= set(choice.rows.tolist())


def test_corrupted_labels_are_uniform_over_all_classes_so_some_stay_right():
    data = dataset(rows=8000, num_classes=4)
    choice = chosen(data, label_noise=100)
    expected = len(choice.rows) / 4
    assert np.abs(np.bincount(choice.labels) - expected).max() < 5 * np.sqrt(expected)
    stayed = (choice.labels == data.labels[choice.rows]).sum()
    assert abs(stayed - expected) < 5 * np.sqrt(expected)
    for number in range(4):  # whatever the true class was
        redrawn = np.bincount(choice.labels[data.labels[choice.rows] == number], minlength=4)
        assert redrawn.min() > 0.8 * redrawn.mean()


def test_corruption_changes_with_the_label_seed_alone():
    data = dataset()
    labels = [chosen(data, label_noise=50, label_seed=a, split_seed=b).labels for a, b in [(0, 0), (0, 1), (1, 0)]]
    np.testing.assert_array_equal(labels[0], labels[1])
    assert not np.array_equal(labels[0], labels[2])


# validation


@given(st.sampled_from([0.1, 0.25, 0.5, 0.9]), st.integers(0, 100), st.sampled_from([24, 40, None]))
def test_validation_rows_are_a_share_of_each_class_held_out_of_training(fraction, seed, count):
    data = dataset()
    choice = chosen(data, labels=count, validation=fraction, split_seed=seed)
    before = chosen(data, labels=count)
    assert sorted([*choice.rows, *choice.validation]) == before.rows.tolist()
    np.testing.assert_array_equal(choice.validation_labels, data.labels[choice.validation])
    for number in range(4):
        members = int((before.labels == number).sum())
        held = int((choice.validation_labels == number).sum())
        assert abs(held - fraction * members) <= 0.5 + 1e-9 or held == members - 1
        assert (choice.labels == number).sum() >= 1
    assert not set(choice.validation.tolist()) & set(np.flatnonzero(choice.training_labels(200) >= 0).tolist())


def test_validation_labels_are_never_corrupted():
    data = dataset()
    choice = chosen(data, validation=0.3, label_noise=100)
    np.testing.assert_array_equal(choice.validation_labels, data.labels[choice.validation])
    assert not set(choice.validation.tolist()) & set(choice.corrupted.tolist())


def test_split_follows_the_split_seed_alone():
    data = dataset()
    held = [chosen(data, validation=0.3, label_seed=a, split_seed=b).validation for a, b in [(0, 0), (1, 0), (0, 1)]]
    np.testing.assert_array_equal(held[0], held[1])
    assert not np.array_equal(held[0], held[2])


# refused


@pytest.mark.parametrize("kind", ["balanced", "original"])
def test_fewer_labels_than_classes_are_refused(kind):
    with pytest.raises(DataError, match="3 labels were asked for and there are 4 classes"):
        chosen(dataset(), labels=3, label_choice=kind)
    with pytest.raises(DataError, match="1 label was asked for"):
        chosen(dataset(), labels=1, label_choice=kind)


@pytest.mark.parametrize("kind", ["balanced", "original"])
def test_more_labels_than_a_class_has_are_refused_with_what_would_do(kind):
    data = Dataset.from_arrays(np.zeros((12, 2)), ["x"] * 9 + ["y"] * 3)
    with pytest.raises(DataError, match="8 labels .* 4 of them of class 'y', which has only 3; ask for at most 6"):
        chosen(data, labels=8, label_choice=kind)
    assert len(chosen(data, labels=6, label_choice=kind).rows) == 6


def test_one_class_alone_is_refused():
    with pytest.raises(DataError, match="one class only .'x'.; expected at least two"):
        chosen(Dataset.from_arrays(np.zeros((3, 2)), ["x", "x", ""]))


@pytest.mark.parametrize("options", [{}, {"labels": 10}, {"labels": 10, "label_choice": "original"}])
def test_data_without_any_label_is_refused(options):
    with pytest.raises(DataError, match="no training row of arrays has a label"):
        chosen(Dataset.from_arrays(np.zeros((3, 2)), [-1, -1, -1]), **options)


def test_class_without_a_labeled_row_is_refused():
    data = Dataset.from_arrays(np.zeros((3, 2)), [0, 1, 1], classes=["x", "y", "z"])
    with pytest.raises(DataError, match="class 'z' has no labeled row"):
        chosen(data)


def test_validation_that_would_be_empty_is_refused():
    with pytest.raises(DataError, match=r"validation fraction of 0\.1 of 8 labeled rows leaves none"):
        chosen(dataset(), labels=8, validation=0.1)


# files


def from_file(tmp_path, text, data=None, name="labels.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    named = sorted(named_rows(path, data or dataset()).items())
    return [row for row, _ in named], [label for _, label in named]


@pytest.mark.parametrize(
    "text",
    ["7\n3\n11\n", "7\n\n3\n11", "row\n7\n3\n11\n", "\ufeff7\n3\n11\n", "7\r\n3\r\n11\r\n", " 7\n3 \n11"],
)
def test_rows_alone_take_the_labels_of_the_data(tmp_path, text):
    labels = dataset().labels
    assert from_file(tmp_path, text) == ([3, 7, 11], [labels[3], labels[7], labels[11]])


@pytest.mark.parametrize(
    "text",
    ["7,b\n3,d\n", "row,label\n7,b\n3,d\n", "Row,Label\n7, b\n3,d \n", "7,1\n3,3\n", "7;b\n3;d\n",
     "row\tlabel\n7\tb\n3\td\n", '"7","b"\n3,d'],
)  # fmt: skip
def test_rows_with_labels_by_name_or_number(tmp_path, text):
    assert from_file(tmp_path, text) == ([3, 7], [3, 1])


def test_a_name_goes_before_a_number(tmp_path):
    data = Dataset.from_arrays(np.zeros((4, 2)), ["1", "0", "1", "0"], classes=["1", "0"])
    assert from_file(tmp_path, "0,1\n1,0\n", data) == ([0, 1], [0, 1])


def test_file_is_what_training_uses(tmp_path):
    (tmp_path / "f.csv").write_text("0,d\n1,c\n2,b\n3,a\n")
    choice = chosen(dataset(), label_choice="file", labels_file=str(tmp_path / "f.csv"))
    assert (choice.rows.tolist(), choice.labels.tolist()) == ([0, 1, 2, 3], [3, 2, 1, 0])


@pytest.mark.parametrize(
    "text",
    [
        "row,suggested,label,score\n7,c,b,0.1\n3,a,d,0.2\n",
        "score,label,row\n0.1,b,7\n0.2,d,3\n",
    ],
    ids=["another order", "row last"],
)
def test_columns_are_found_by_their_names(tmp_path, text):
    assert from_file(tmp_path, text) == ([3, 7], [3, 1])


FILES = {"row_names": ("/photos/a/0.png", "/photos/b/1.png", "/photos/2.png"), "test_row_names": ("/photos/a/3.png",)}


def with_files():
    data = Dataset.from_arrays(np.zeros((3, 2)), [0, 1, -1], classes=["a", "b"], name="/photos")
    return replace(data, **FILES)


@pytest.mark.parametrize(
    "text",
    [
        "file,label\n/photos/2.png,b\n/photos/a/0.png,a\n",
        "row,file,label\n9,/photos/2.png,b\n8,/photos/a/0.png,a\n",
        "file,label\n2.png,b\na/0.png,a\n",
        "file,label\n./2.png,b\n../photos/a/0.png,a\n/gone.png,\n",
    ],
    ids=[
        "whole paths",
        "with rows, which may be others",
        "below the folder",
        "not normalized, and an unlabeled one gone",
    ],
)
def test_files_are_found_by_whole_paths_or_below_the_datas_folder(tmp_path, text):
    assert from_file(tmp_path, text, with_files()) == ([0, 2], [0, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\n/photos/a/9.png,a\n", "names the file '/photos/a/9.png', which is not among the training images"),
        ("file,label\n/old/a/0.png,a\n", "'/old/a/0.png', which is not among .* relative to /photos"),
        ("file,label\n/photos/a/3.png,a\n", "'/photos/a/3.png', which is not among the training images.*seed.split"),
        ("file,class\n/photos/2.png,b\n", "has the columns file, class; expected one of them to be label"),
    ],
)
def test_a_file_that_is_no_training_image_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        from_file(tmp_path, text, with_files())


def test_files_of_data_that_have_none_are_refused(tmp_path):
    with pytest.raises(DataError, match="has a column file, but these data have no files"):
        from_file(tmp_path, "file,label\nx.png,a\n")


def test_added_labels_join_those_drawn_and_win_over_them(tmp_path):
    data = dataset()
    drawn = chosen(data, labels=20)
    free = int(np.setdiff1d(np.arange(200), drawn.rows)[0])
    other = (int(drawn.labels[0]) + 1) % 4
    (tmp_path / "more.csv").write_text(f"row,label\n{free},d\n{drawn.rows[0]},{other}\n")
    choice = chosen(data, labels=20, label_choice="added", labels_file=str(tmp_path / "more.csv"))
    expected = dict(zip(drawn.rows.tolist(), drawn.labels.tolist(), strict=True)) | {free: 3, int(drawn.rows[0]): other}
    assert dict(zip(choice.rows.tolist(), choice.labels.tolist(), strict=True)) == expected


def test_a_label_left_empty_is_taken_away_and_not_missed(tmp_path):
    data = Dataset.from_arrays(np.zeros((6, 2)), [0, 1, 0, 1, 0, -1])
    (tmp_path / "corrected.csv").write_text("row,label\n0,\n1,0\n2,0\n3,1\n4,0\n5,\n")
    given = {"labels_file": str(tmp_path / "corrected.csv")}
    for choice in ("file", "added"):
        found = chosen(data, label_choice=choice, **given)
        assert found.rows.tolist() == [1, 2, 3, 4]
        assert found.labels.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("200\n", "names row 200; the training set has rows 0 to 199"),
        ("-1\n", "names '-1'; expected a row number"),
        ("3\n4\n3\n", "names row 3 twice"),
        ("3,a\n3,\n", "names row 3 twice"),
        ("row,label\n3,a\nrow,label\n4,b\n", "names 'row'; expected a row number"),
        ("3,zebra\n", "gives the label 'zebra'; expected one of a, b, c, d"),
        ("3,4\n", "gives the label '4'"),
        ("3,-1\n", "gives the label '-1'"),
        ("3\nthree\n", "names 'three'; expected a row number"),
        ("1.5\n", r"names '1\.5'; expected a row"),
        ("[1, 2]", r"names '\[1'; expected a row number"),
        ('{"rows": [1], "labels": [9]}', "expected a row number"),
        ("1" * 200_000, "labels.txt"),
    ],
    ids=lambda value: value[:30],
)
def test_what_a_file_cannot_mean_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        from_file(tmp_path, text)


def test_row_without_any_label_is_refused(tmp_path):
    data = Dataset.from_arrays(np.zeros((3, 2)), [0, 1, -1])
    with pytest.raises(DataError, match="names row 2 without a label, and the data set has none"):
        from_file(tmp_path, "2\n", data)
    assert from_file(tmp_path, "2,1\n", data) == ([2], [1])


def test_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("missing", "bytes", "."):
        with pytest.raises(DataError, match="cannot be read as a CSV of row,label"):
            named_rows(tmp_path / name, dataset())


def test_empty_file_gives_no_labels(tmp_path):
    (tmp_path / "empty").write_text("")
    with pytest.raises(DataError, match="has no labels; fill in its column label"):
        chosen(dataset(), label_choice="file", labels_file=str(tmp_path / "empty"))


@given(st.dictionaries(st.integers(0, 199), st.integers(0, 3), min_size=1, max_size=20))
def test_any_labels_survive_a_file(tmp_path_factory, given_labels):
    folder = tmp_path_factory.mktemp("labels")
    expected = (sorted(given_labels), [given_labels[row] for row in sorted(given_labels)])
    lines = "".join(f"{row},{CLASSES[label]}\n" for row, label in given_labels.items())
    assert from_file(folder, lines) == expected


def test_suggestions_that_nobody_filled_in_are_refused(tmp_path):
    data = Dataset.from_arrays(np.zeros((5, 2)), [0, 1, 0, -1, -1])
    path = tmp_path / "suggestions.csv"
    path.write_text("row,label\n3,\n4,\n")
    options = DataConfig(label_choice="added", labels_file=str(path))
    with pytest.raises(DataError, match=r"suggestions.csv has no labels; fill in its column label"):
        choose_labels(data, options, label_seed=0, split_seed=0)
    path.write_text("row,label\n3,\n0,\n")  # takes back a label
    assert choose_labels(data, options, label_seed=0, split_seed=0).rows.tolist() == [1, 2]
