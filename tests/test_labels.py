"""Which rows are labeled, and with what."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.label_choice import original_rows as twin

from selfens.data.dataset import Dataset
from selfens.data.label_files import read_labels
from selfens.data.labels import LabelChoice, LabelsConfig, balanced_rows, choose_labels, original_rows
from selfens.errors import DataError

CLASSES = ("a", "b", "c", "d")


def dataset(rows=200, seed=0, unlabeled=0.0):
    random = np.random.default_rng(seed)
    labels = random.integers(4, size=rows)
    labels[:4] = range(4)
    labels[4:][random.random(rows - 4) < unlabeled] = -1
    return Dataset.from_arrays(random.normal(size=(rows, 3)), labels, classes=CLASSES)


def labels_only(labels, **options):
    return Dataset.from_arrays(np.zeros((len(labels), 2)), labels, **options)


def chosen(data, label_seed=0, split_seed=0, **options):
    return choose_labels(data, LabelsConfig(**options), label_seed=label_seed, split_seed=split_seed)


# Drawn


@given(st.integers(4, 80), st.integers(0, 2**32 - 1))
def test_a_balanced_choice_has_equally_many_rows_of_each_class(count, seed):
    labels = dataset(unlabeled=0.3, rows=400).labels
    rows = balanced_rows(labels, CLASSES, count, seed)
    counts = np.bincount(labels[rows], minlength=4)
    assert len(set(rows.tolist())) == len(rows) == count
    assert counts.max() - counts.min() <= 1
    assert (labels[rows] >= 0).all()
    np.testing.assert_array_equal(rows, np.sort(rows))
    np.testing.assert_array_equal(rows, balanced_rows(labels, CLASSES, count, seed))


def test_the_remainder_goes_to_different_classes_with_different_seeds():
    labels = dataset().labels
    larger = {int(np.bincount(labels[balanced_rows(labels, CLASSES, 9, seed)]).argmax()) for seed in range(40)}
    assert larger == {0, 1, 2, 3}


@pytest.mark.parametrize("choose", [balanced_rows, original_rows])
def test_every_row_can_be_chosen_and_a_seed_chooses_the_same_again(choose):
    labels = dataset(rows=40).labels
    choices = [choose(labels, CLASSES, 8, seed).tolist() for seed in range(200)]
    assert {row for rows in choices for row in rows} == set(range(40))
    assert choices == [choose(labels, CLASSES, 8, seed).tolist() for seed in range(200)]


@given(st.integers(4, 60), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.4]))
def test_the_original_choice_is_that_of_the_authors_told_literally(count, seed, unlabeled):
    labels = dataset(rows=300, unlabeled=unlabeled).labels
    rows = original_rows(labels, CLASSES, count, seed)
    assert len(rows) == count // 4 * 4  # the remainder is left out
    assert rows.tolist() == twin(labels, 4, count, seed)


def test_all_labels_are_used_unless_a_number_is_given():
    data = dataset(unlabeled=0.5)
    choice = chosen(data)
    np.testing.assert_array_equal(choice.rows, np.flatnonzero(data.labels >= 0))
    np.testing.assert_array_equal(choice.training_labels(200), data.labels)
    assert len(choice.corrupted) == len(choice.validation) == 0


@pytest.mark.parametrize("kind", ["balanced", "original"])
def test_chosen_rows_keep_their_labels_and_the_others_have_none(kind):
    data = dataset()
    choice = chosen(data, count=20, choice=kind)
    labels = choice.training_labels(200)
    np.testing.assert_array_equal(labels[choice.rows], data.labels[choice.rows])
    assert (labels >= 0).sum() == 20


@pytest.mark.parametrize(
    ("options", "part", "follows_labels"),
    [({"count": 20}, "rows", True), ({"noise": 50}, "labels", True), ({"validation": 0.3}, "validation", False)],
    ids=["choice", "noise", "validation"],
)
def test_each_part_follows_one_seed_alone(options, part, follows_labels):
    data = dataset()
    first, label_seed, split_seed = (
        getattr(chosen(data, label_seed=one, split_seed=other, **options), part)
        for one, other in ((0, 0), (1, 0), (0, 1))
    )
    assert np.array_equal(first, label_seed) != follows_labels
    assert np.array_equal(first, split_seed) == follows_labels


def test_a_choice_is_kept_as_json():
    choice = chosen(dataset(), count=40, noise=50, validation=0.2)
    again = LabelChoice.from_json(choice.to_json())
    for field in dataclasses.fields(LabelChoice):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(choice, field.name))
        assert getattr(again, field.name).dtype == np.int64
        assert len(getattr(again, field.name)) > 0


# Noise


@pytest.mark.parametrize("percentage", [0, 20, 50, 80, 100, 33.3])
def test_noise_redraws_a_percentage_of_the_labels_in_use(percentage):
    data = dataset(rows=2000)
    choice = chosen(data, count=400, noise=percentage)
    changed = choice.rows[choice.labels != data.labels[choice.rows]]
    assert len(choice.corrupted) == len(set(choice.corrupted.tolist())) == int(0.01 * 400 * percentage)
    assert set(changed.tolist()) <= set(choice.corrupted.tolist()) <= set(choice.rows.tolist())


def test_redrawn_labels_are_uniform_over_all_classes_so_some_stay_right():
    data = dataset(rows=8000)
    choice = chosen(data, noise=100)
    expected = len(choice.rows) / 4
    assert np.abs(np.bincount(choice.labels) - expected).max() < 5 * np.sqrt(expected)
    stayed = (choice.labels == data.labels[choice.rows]).sum()
    assert abs(stayed - expected) < 5 * np.sqrt(expected)
    for number in range(4):  # whatever the true class was
        redrawn = np.bincount(choice.labels[data.labels[choice.rows] == number], minlength=4)
        assert redrawn.min() > 0.8 * redrawn.mean()


# Validation


@given(st.sampled_from([0.1, 0.25, 0.5, 0.9]), st.integers(0, 100), st.sampled_from([24, 40, None]))
def test_validation_rows_are_a_share_of_each_class_held_out_of_training(fraction, seed, count):
    data = dataset()
    choice = chosen(data, count=count, validation=fraction, noise=100, split_seed=seed)
    before = chosen(data, count=count)
    assert sorted([*choice.rows, *choice.validation]) == before.rows.tolist()
    np.testing.assert_array_equal(choice.validation_labels, data.labels[choice.validation])  # without noise
    for number in range(4):
        members = int((before.labels == number).sum())
        held = int((choice.validation_labels == number).sum())
        assert abs(held - fraction * members) <= 0.5 + 1e-9 or held == members - 1
        assert held < members
    assert (choice.training_labels(200)[choice.validation] == -1).all()


# Errors


@pytest.mark.parametrize("kind", ["balanced", "original"])
@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "labels.count is 1 and there are 2 classes; ask for at least one label per class"),
        (8, "8 labels .* 4 of them of class 'y', which has only 3; ask for at most 6"),
    ],
)
def test_too_few_and_too_many_labels_are_refused_with_what_would_do(kind, count, message):
    data = labels_only(["x"] * 9 + ["y"] * 3)
    with pytest.raises(DataError, match=message):
        chosen(data, count=count, choice=kind)
    assert len(chosen(data, count=6, choice=kind).rows) == 6


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (labels_only(["x", "x", ""]), {}, "all labels are of one class .'x'.; expected at least two"),
        (labels_only([-1, -1, -1]), {}, "no training row of arrays has a label"),
        (labels_only([-1, -1, -1]), {"count": 10}, "no training row of arrays has a label"),
        (labels_only([-1, -1, -1]), {"count": 10, "choice": "original"}, "no training row of arrays has a label"),
        (labels_only([0, 1, 1], classes=["x", "y", "z"]), {}, "class 'z' has no labeled row"),
        (labels_only([0, 0, 0], classes=["x", "y", "z"]), {}, "classes 'y', 'z' have no labeled row"),
        (
            dataset(),
            {"count": 8, "validation": 0.1},
            r"labels.validation is 0\.1, which holds out none of the 8 labeled rows",
        ),
    ],
)
def test_labels_that_cannot_be_learned_from_are_refused(data, options, message):
    with pytest.raises(DataError, match=message):
        chosen(data, **options)


# Files


def from_file(tmp_path, text, data=None):
    path = tmp_path / "labels.txt"
    path.write_text(text, encoding="utf-8")
    found = sorted(read_labels(path, data or dataset()).items())
    return [row for row, _ in found], [label for _, label in found]


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
     "row\tlabel\n7\tb\n3\td\n", '"7","b"\n3,d', "row,suggested,label,score\n7,c,b,0.1\n3,a,d,0.2\n",
     "score,label,row\n0.1,b,7\n0.2,d,3\n"],
)  # fmt: skip
def test_rows_with_labels_by_name_or_number(tmp_path, text):
    assert from_file(tmp_path, text) == ([3, 7], [3, 1])


def test_a_name_goes_before_a_number(tmp_path):
    data = labels_only(["1", "0", "1", "0"], classes=["1", "0"])
    assert from_file(tmp_path, "0,1\n1,0\n", data) == ([0, 1], [0, 1])


@given(st.dictionaries(st.integers(0, 199), st.integers(0, 3), min_size=1, max_size=20))
def test_any_labels_survive_a_file(tmp_path_factory, given_labels):
    lines = "".join(f"{row},{CLASSES[label]}\n" for row, label in given_labels.items())
    expected = (sorted(given_labels), [given_labels[row] for row in sorted(given_labels)])
    assert from_file(tmp_path_factory.mktemp("labels"), lines) == expected


def with_files():
    files = ("/photos/a/0.png", "/photos/b/1.png", "/photos/2.png", "/photos/a/3.png")
    data = Dataset.from_arrays(np.zeros((3, 2)), [0, 1, -1], np.zeros((1, 2)), [0], classes=["a", "b"], name="/photos")
    return dataclasses.replace(data, ids=files, folder="/photos")


@pytest.mark.parametrize(
    "text",
    [
        "file,label\n/photos/2.png,b\n/photos/a/0.png,a\n",
        "row,file,label\n9,/photos/2.png,b\n8,/photos/a/0.png,a\n",
        "file,label\n2.png,b\na/0.png,a\n",
        "file,label\n./2.png,b\n../photos/a/0.png,a\n/gone.png,\n",
    ],
    ids=["whole paths", "with rows, which may be others", "below the folder", "not normalized, an unlabeled one gone"],
)
def test_files_are_found_by_whole_paths_or_below_the_datas_folder(tmp_path, text):
    assert from_file(tmp_path, text, with_files()) == ([0, 2], [0, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\n/photos/a/9.png,a\n", "names '/photos/a/9.png'; expected the path of a training file"),
        ("file,label\n/old/a/0.png,a\n", "'/old/a/0.png'; expected .* relative to /photos"),
        ("file,label\n/photos/a/3.png,a\n", "'/photos/a/3.png'; expected the path of a training file.*test rows"),
        ("file,class\n/photos/2.png,b\n", "has the columns file, class; expected one of them to be label"),
    ],
)
def test_a_file_that_is_not_a_training_image_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        from_file(tmp_path, text, with_files())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("200\n", "names '200'; expected the number of a training row, 0 to 199"),
        ("-1\n", "names '-1'; expected the number of a training row"),
        ("3\n4\n3\n", "names '3' twice"),
        ("3,a\n3,\n", "names '3' twice"),
        ("row,label\n3,a\nrow,label\n4,b\n", "names 'row'; expected the number of a training row"),
        ("3,zebra\n", "gives the label 'zebra'; expected one of a, b, c, d"),
        ("3,4\n", "gives the label '4'"),
        ("3,-1\n", "gives the label '-1'"),
        ("3\nthree\n", "names 'three'; expected the number of a training row"),
        ("a/0.png,b\n", "names 'a/0.png'; .*, 0 to 199, or a line row,label before all others"),
        ("1.5\n", r"names '1\.5'; expected the number of a training row"),
        ("[1, 2]", r"names '\[1'; expected the number of a training row"),
        ('{"rows": [1], "labels": [9]}', "cannot be read as a CSV of row,label"),
        ("file,label\nx.png,a\n", "has a column file, but these data have no files"),
        ("1" * 200_000, "labels.txt"),
    ],
    ids=lambda value: value[:30],
)
def test_what_a_file_cannot_mean_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        from_file(tmp_path, text)


def test_a_row_without_any_label_is_refused(tmp_path):
    data = labels_only([0, 1, -1])
    with pytest.raises(DataError, match="names '2' without a label, and the data set has none"):
        from_file(tmp_path, "2\n", data)
    assert from_file(tmp_path, "2,1\n", data) == ([2], [1])


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\x00\x01\xff")
    for name in ("missing", "bytes"):
        with pytest.raises(DataError, match="cannot be read as a CSV of row,label"):
            read_labels(tmp_path / name, dataset())
    with pytest.raises(
        DataError, match="holds no labels; expected a CSV of row,label, a folder per class, or an export"
    ):
        read_labels(tmp_path, dataset())


def test_added_labels_join_those_drawn_and_win_over_them(tmp_path):
    data, path = dataset(), tmp_path / "more.csv"
    drawn = chosen(data, count=20)
    free = int(np.setdiff1d(np.arange(200), drawn.rows)[0])
    other = (int(drawn.labels[0]) + 1) % 4
    path.write_text(f"row,label\n{free},d\n{drawn.rows[0]},{other}\n")
    choice = chosen(data, count=20, choice="added", file=str(path))
    expected = dict(zip(drawn.rows.tolist(), drawn.labels.tolist(), strict=True)) | {free: 3, int(drawn.rows[0]): other}
    assert dict(zip(choice.rows.tolist(), choice.labels.tolist(), strict=True)) == expected


def test_an_empty_label_takes_the_label_away(tmp_path):
    data, path = labels_only([0, 1, 0, 1, 0, -1]), tmp_path / "corrected.csv"
    path.write_text("row,label\n0,\n1,0\n2,0\n3,1\n4,0\n5,\n")
    for choice in ("file", "added"):
        found = chosen(data, choice=choice, file=str(path))
        assert (found.rows.tolist(), found.labels.tolist()) == ([1, 2, 3, 4], [0, 0, 1, 0])


@pytest.mark.parametrize("text", ["", "row,label\n3,\n4,\n"], ids=["empty", "suggestions that nobody filled in"])
@pytest.mark.parametrize("choice", ["file", "added"])
def test_a_file_without_labels_is_refused(tmp_path, text, choice):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"labels.csv has no labels; fill in the column 'label'"):
        chosen(labels_only([0, 1, 0, -1, -1]), choice=choice, file=str(path))


# What people write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_file_may_be_utf_8_or_utf_16_with_a_mark(tmp_path, encoding):
    text = "\ufeffrow,label\n3,B\n" if encoding == "utf-16-le" else "row,label\n3,B\n"
    (tmp_path / "labels.txt").write_bytes(text.encode(encoding))
    assert read_labels(tmp_path / "labels.txt", dataset()) == {3: 1}


def test_classes_may_be_in_any_case_unless_two_differ_only_in_it(tmp_path):
    data = labels_only(["Cat", "Dog"], classes=["Cat", "Dog"])
    assert from_file(tmp_path, "0,CAT\n1,dog\n", data) == ([0, 1], [0, 1])
    data = labels_only(["Cat", "cat"], classes=["Cat", "cat"])
    assert from_file(tmp_path, "0,cat\n1,Cat\n", data) == ([0, 1], [1, 0])
    with pytest.raises(DataError, match="gives the label 'CAT'; expected one of Cat, cat"):
        from_file(tmp_path, "0,CAT\n", data)


@pytest.mark.parametrize("classes", [["1", "2", "3", "4", "5"], ["3", "4", "5"], ["0.5", "small", "large"]])
def test_numbers_are_positions_only_if_no_class_is_called_a_number(tmp_path, classes):
    data = labels_only(classes, classes=classes)
    for number, name in enumerate(classes):
        assert from_file(tmp_path, f"0,{name}\n", data) == ([0], [number])
    with pytest.raises(DataError, match="gives the label '0'; expected one of"):
        from_file(tmp_path, "0,0\n", data)


def test_a_name_alone_is_enough_if_one_file_has_it(tmp_path):
    assert from_file(tmp_path, "file,label\n0.png,a\n2.png,b\n", with_files()) == ([0, 2], [0, 1])
    twice = dataclasses.replace(
        with_files(), ids=("/photos/a/0.png", "/photos/b/0.png", "/photos/2.png", "/photos/3.png")
    )
    with pytest.raises(
        DataError, match="line 2 of .*names '0.png'; expected more of its path, because 2 training files"
    ):
        from_file(tmp_path, "file,label\n0.png,a\n", twice)


@pytest.mark.parametrize("name", ["A\\0.PNG", "a\\0.png", "/PHOTOS/a/0.png", "0.PNG"])
def test_backslashes_and_another_case_are_accepted_if_that_is_one_file(tmp_path, name):
    assert from_file(tmp_path, f"file,label\n{name},b\n", with_files()) == ([0], [1])
    twice = dataclasses.replace(
        with_files(), ids=("/photos/a/0.png", "/photos/A/0.png", "/photos/2.png", "/photos/3.png")
    )
    if name != "a\\0.png":
        with pytest.raises(DataError, match="because 2 training files have this name in some case"):
            from_file(tmp_path, f"file,label\n{name},b\n", twice)


@pytest.mark.parametrize("text", ["a/0.png,b\n", "Datei,Klasse\na/0.png,b\n"])
def test_a_file_that_names_files_without_a_known_header_is_told_of_it(tmp_path, text):
    with pytest.raises(DataError, match="^line 1 of .* or a line file,label before all others"):
        from_file(tmp_path, text, with_files())


def test_paths_may_be_relative_to_the_labels_file(tmp_path):
    data = dataclasses.replace(
        with_files(), ids=tuple(str(tmp_path / f"p/{k}.png") for k in range(4)), folder="/elsewhere"
    )
    assert from_file(tmp_path, "file,label\np/2.png,b\n", data) == ([2], [1])


def test_a_mistake_is_named_with_its_line(tmp_path):
    with pytest.raises(DataError, match=r"^line 4 of .* gives the label 'zebra'"):
        from_file(tmp_path, "row,label\n3,a\n\n4,zebra\n")


def test_several_files_are_added_up_and_may_not_contradict_each_other(tmp_path):
    data, first, second = dataset(), tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("3,a\n")
    second.write_text("3,a\n4,b\n")
    choice = chosen(data, count=20, choice="added", file=(str(first), str(second)))
    assert choice.training_labels(200)[[3, 4]].tolist() == [0, 1]
    second.write_text("3,b\n4,b\n")
    with pytest.raises(
        DataError,
        match=r"^line 1 of .*second.csv gives '3' the label 'b', and line 1 of .*first.csv "
        "the label 'a'; each row has one",
    ):
        chosen(data, choice="file", file=(str(first), str(second)))
