"""Which labeled rows are for testing: their content decides, and nothing that happens to the files moves a row."""

import csv
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from support import child, finish, run_cli_without_privileges

from selfens import load_run
from selfens.data import journal
from selfens.data.dataset import UNLABELED
from selfens.data.sources import load, options_for
from selfens.data.split import FEWEST, SHARE

CLASSES = ("green", "red")
ENOUGH = 620  # labels: a fifth of them is more than FEWEST, whatever the hashes


def is_for_testing(content):
    """The rule, written again: the first 32 bits of the hash, as a share."""
    return int(hashlib.sha256(content).hexdigest()[:8], 16) / 2**32 < SHARE


def scene(number, side=16):
    """A picture that shows something, unlike any other."""
    coarse = np.random.default_rng(number).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def photos(root, count=ENOUGH, start=0):
    """A folder per class, in turn."""
    for number in range(start, start + count):
        folder = root / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        scene(number).save(folder / f"{number:04}.png")
    return root


@pytest.fixture(scope="module")
def many_photos(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("split") / "photos")


@pytest.fixture
def root(many_photos, tmp_path):
    return shutil.copytree(many_photos, tmp_path / "photos")


def read(path, seed=0, **options):
    return load(options_for(path, **options), seed=seed)


def contents(data, *, test):
    """The bytes of the test files, or of the labeled files to train on."""
    wanted = data.is_test if test else ~data.is_test & (data.labels != UNLABELED)
    return {Path(data.ids[row]).read_bytes() for row in np.flatnonzero(wanted)}


def the_rule_holds(data):
    tested, trained = contents(data, test=True), contents(data, test=False)
    return all(map(is_for_testing, tested)) and not any(map(is_for_testing, trained))


# Images


def test_the_hash_of_a_files_bytes_decides(root):
    data = read(root)
    assert the_rule_holds(data)
    assert len(data.test_labels) >= FEWEST
    assert len(data.test_labels) == sum(is_for_testing(path.read_bytes()) for path in root.rglob("*.png"))
    assert set(data.train_labels) == set(data.test_labels) == {0, 1}
    assert data.raw.shape[0] == data.num_train + len(data.test_labels) == ENOUGH


def rename(root):
    for number, path in enumerate(sorted(root.rglob("*.png"), reverse=True)):
        path.rename(path.with_name(f"new name {number}.PNG"))
    return root


def move(root):
    return Path(shutil.move(root, root.parent / "elsewhere"))


def into_train(root):
    (root / "train").mkdir()
    for name in CLASSES:
        shutil.move(root / name, root / "train" / name)
    return root


def deeper(root):
    for name in CLASSES:
        for number, path in enumerate(sorted((root / name).iterdir())):
            (root / name / f"from {number % 3}").mkdir(exist_ok=True)
            shutil.move(path, root / name / f"from {number % 3}")
    return root


def add_labels(root):
    return photos(root, 40, start=ENOUGH)


def add_unlabeled(root):
    for number in range(30):
        scene(10_000 + number).save(root / f"a{number}.png")
    return root


def relabel(root):
    for path in sorted((root / "red").iterdir())[:20]:
        shutil.move(path, root / "green")
    return root


def touch(root):
    for path in root.rglob("*.png"):
        os.utime(path, (10**9, 10**9))
    return root


@pytest.mark.parametrize("change", [rename, move, into_train, deeper, add_labels, add_unlabeled, relabel, touch])
def test_no_row_moves_between_training_and_test(root, change):
    before = read(root)
    tested, trained = contents(before, test=True), contents(before, test=False)
    after = read(change(root), seed=1)
    assert tested <= contents(after, test=True)
    assert trained <= contents(after, test=False)
    assert the_rule_holds(after)


def test_labels_that_are_taken_away_move_no_other_row(root):
    before = read(root)
    tested, trained = contents(before, test=True), contents(before, test=False)
    (root / "unlabeled").mkdir()
    for path in sorted(root.glob("*/*.png"))[::15]:
        path.rename(root / "unlabeled" / path.name)
    after = read(root)
    assert FEWEST <= len(contents(after, test=True)) < len(tested)
    assert contents(after, test=True) <= tested
    assert contents(after, test=False) <= trained


def test_exact_copies_are_on_the_side_of_the_original(root):
    before = read(root)
    tested, trained = contents(before, test=True), contents(before, test=False)
    for path in sorted(root.glob("*/*.png"))[::3]:
        shutil.copy(path, path.with_name(f"copy of {path.name}"))
    after = read(root)
    assert (contents(after, test=True), contents(after, test=False)) == (tested, trained)
    assert len(after.test_labels) > len(tested)


def test_resized_and_recompressed_copies_go_where_the_original_is_and_move_it_nowhere(tmp_path):
    root = tmp_path / "photos"
    for number in range(ENOUGH):
        (root / CLASSES[number % 2]).mkdir(parents=True, exist_ok=True)
        scene(number, 64).save(root / CLASSES[number % 2] / f"{number:04}.png")
    before = read(root)
    tested, trained = contents(before, test=True), contents(before, test=False)
    random = np.random.default_rng(0)
    originals = sorted(root.glob("*/*.png"))[::4]
    for path in originals:
        side = int(random.integers(32, 129))
        made = Image.open(path).resize((side, side), Image.Resampling.BICUBIC)
        made.save(path.with_suffix(".jpg"), quality=int(random.integers(50, 91)))
        assert path.with_suffix(".jpg").stat().st_size < path.stat().st_size
    after = read(root)
    assert tested <= contents(after, test=True)
    assert trained <= contents(after, test=False)
    side_of = {Path(name): bool(test) for name, test in zip(after.ids, after.is_test, strict=True)}
    together = [side_of[path] == side_of[path.with_suffix(".jpg")] for path in originals]
    assert np.mean(together) == 1
    assert len({side_of[path] for path in originals}) == 2


def test_few_labels_are_all_trained_on(tmp_path):
    for count in (2, FEWEST, 4 * FEWEST):
        data = read(photos(tmp_path / f"{count}", count))
        assert (data.num_train, len(data.test_labels), data.numbers) == (count, 0, None)


def test_rows_are_held_out_from_a_hundred_test_rows_on(root):
    tested = [path for path in sorted(root.rglob("*.png")) if is_for_testing(path.read_bytes())]
    for path in tested[FEWEST:]:
        path.unlink()
    data = read(root)
    assert len(data.test_labels) == FEWEST
    assert contents(data, test=True) == {path.read_bytes() for path in tested[:FEWEST]}
    tested[0].unlink()
    assert len(read(root).test_labels) == 0


def test_unlabeled_rows_are_not_counted_and_never_tested(tmp_path):
    root = photos(tmp_path / "photos", 60)
    (root / "unlabeled").mkdir()
    for number in range(ENOUGH):
        scene(20_000 + number).save(root / "unlabeled" / f"{number}.png")
    assert len(read(root).test_labels) == 0
    data = read(photos(root, ENOUGH, start=60))
    assert (data.labels[data.is_test] != UNLABELED).all()
    assert len(data.test_labels) >= FEWEST


def test_what_the_folders_say_is_tested_counts_alone(root):
    (root / "test").mkdir()
    for name in CLASSES:
        (root / "test" / name).mkdir()
        for path in sorted((root / name).iterdir())[:5]:
            shutil.move(path, root / "test" / name)
    data = read(root)
    assert len(data.test_labels) == 10
    assert all(f"{root}/test/" in name for name in data.row_ids(test=True))


def test_a_setting_turns_it_off(root):
    data = read(root, hold_out=False)
    assert (data.num_train, len(data.test_labels)) == (ENOUGH, 0)


def test_rows_keep_the_numbers_that_they_have_in_the_whole_data(root):
    data, whole = read(root), read(root, hold_out=False)
    for test in (False, True):
        named = [whole.ids[number] for number in data.row_numbers(test=test)]
        assert tuple(named) == data.row_ids(test=test)


def test_a_csv_of_images_is_split_by_the_same_files_whatever_its_order(root, tmp_path):
    listed = [(path.relative_to(tmp_path), path.parent.name) for path in sorted(root.rglob("*.png"))]
    found = []
    for name, lines in (("a.csv", listed), ("b.csv", listed[::-1])):
        (tmp_path / name).write_text("file,label\n" + "".join(f"{path},{label}\n" for path, label in lines))
        data = read(tmp_path / name)
        assert the_rule_holds(data)
        found.append(contents(data, test=True))
    assert found[0] == found[1] == contents(read(root), test=True)


# Tables and arrays


def table(rows=ENOUGH, seed=0):
    random = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "height": random.normal(size=rows).round(4),
            "color": random.choice(["blue", "white"], rows),
            "count": random.integers(0, 50, rows),
            "kind": np.where(np.arange(rows) % 3 == 0, "good", "bad"),
        }
    )


def keys(data, *, test):
    """What tells the rows of `table` apart."""
    rows = data.raw.iloc[data.test_rows if test else data.train_rows]
    return {
        tuple(float(cell) for cell in row) for row in rows[["height", "count"]].replace("", -1).fillna(-1).to_numpy()
    }


def written(frame, path):
    if path.suffix != ".parquet":
        frame = frame.astype({"count": "Int64"})  # or pandas writes 5.0 instead of 5, which is another text
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    else:
        frame.to_parquet(path, index=False)
    return path


def with_gap(frame):
    """One more row, which lacks a count: the column becomes one of floats."""
    return pandas.concat([frame, frame.iloc[:1].assign(height=9.5, count=np.nan)], ignore_index=True)


TABLE_CHANGES = {
    "other order": lambda frame: frame.sample(frac=1, random_state=1),
    "more rows": lambda frame: pandas.concat([frame, table(50, seed=1)], ignore_index=True),
    "an empty cell": with_gap,
    "copies": lambda frame: pandas.concat([frame, frame.iloc[::5]], ignore_index=True),
    "other labels": lambda frame: frame.assign(kind=frame["kind"].where(frame.index % 7 > 0, "good")),
    "ids": lambda frame: frame.assign(id=[f"row-{number}" for number in range(len(frame))]),
}


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("change", TABLE_CHANGES.values(), ids=TABLE_CHANGES)
def test_no_row_of_a_table_moves(tmp_path, suffix, change):
    before = read(written(table(), tmp_path / f"before.{suffix}"), label="kind")
    after = read(written(change(table()), tmp_path / f"after.{suffix}"), label="kind", seed=5)
    assert len(before.test_labels) >= FEWEST
    assert keys(before, test=True) <= keys(after, test=True)
    assert keys(before, test=False) <= keys(after, test=False)
    assert not keys(after, test=True) & keys(after, test=False)


@pytest.mark.parametrize("name", ["id", "patient_id", "Unnamed: 0"])
def test_rows_with_the_same_id_move_no_row(tmp_path, name):
    """The column is an input then, because it no longer tells the rows apart."""
    frame = table().assign(**{name: [f"row-{number}" for number in range(ENOUGH)]})
    before = read(written(frame, tmp_path / "before.csv"), label="kind")
    after = read(written(pandas.concat([frame, frame.iloc[:9]]), tmp_path / "after.csv"), label="kind")
    assert (name in before.raw.columns, name in after.raw.columns) == (False, True)
    assert keys(before, test=True) == keys(after, test=True)
    assert keys(before, test=False) == keys(after, test=False)


def test_filling_in_labels_of_a_table_moves_no_row(tmp_path):
    partly = table(1000)
    partly.loc[ENOUGH:, "kind"] = None
    before = read(written(partly, tmp_path / "before.csv"), label="kind")
    after = read(written(table(1000), tmp_path / "after.csv"), label="kind")
    assert (before.labels[before.is_test] != UNLABELED).all()
    assert keys(before, test=True) <= keys(after, test=True)
    assert set(before.row_numbers(test=True)) == {row for row in after.row_numbers(test=True) if row < ENOUGH}


def test_a_column_split_counts_alone(tmp_path):
    frame = table().assign(split=["test"] * 30 + ["train"] * (ENOUGH - 30))
    data = read(written(frame, tmp_path / "table.csv"), label="kind")
    assert data.row_numbers(test=True).tolist() == list(range(30))


def test_a_class_keeps_a_label_to_learn_from(tmp_path):
    data = read(written(table(), tmp_path / "table.csv"), label="kind")
    tested = int(data.row_numbers(test=True)[0])
    rare = table()
    rare.loc[tested, "kind"] = "rare"
    after = read(written(rare, tmp_path / "rare.csv"), label="kind")
    assert after.classes == ("bad", "good", "rare")
    assert tested in after.row_numbers()
    assert set(after.row_numbers(test=True)) == set(data.row_numbers(test=True)) - {tested}


def arrays(rows=ENOUGH):
    random = np.random.default_rng(0)
    return random.normal(size=(rows, 4)).astype(np.float32), np.arange(rows) % 3


def save_npz(folder, x, y, **more):
    np.savez(folder / "data.npz", x_train=x, y_train=y, **more)
    return folder / "data.npz"


def save_folder(folder, x, y, **more):
    (folder / "arrays").mkdir(exist_ok=True)
    for name, array in {"x_train": x, "y_train": y, **more}.items():
        np.save(folder / "arrays" / f"{name}.npy", array)
    return folder / "arrays"


@pytest.mark.parametrize("save", [save_npz, save_folder])
def test_the_numbers_of_a_row_decide_in_arrays(tmp_path, save):
    x, y = arrays()
    data = read(save(tmp_path, x, y))
    expected = [is_for_testing(row.tobytes()) for row in x]
    assert data.is_test.tolist() == expected
    assert data.row_numbers(test=True).tolist() == np.flatnonzero(expected).tolist()
    order = np.random.default_rng(1).permutation(len(x))
    again = read(save(tmp_path, np.concatenate([x[order], x[:50]]), np.concatenate([y[order], y[:50]])))
    assert again.is_test.tolist() == [expected[row] for row in (*order, *range(50))]


@pytest.mark.parametrize("save", [save_npz, save_folder])
def test_arrays_with_test_rows_of_their_own_are_left_as_they_are(tmp_path, save):
    x, y = arrays()
    data = read(save(tmp_path, x, y, x_test=x[:7], y_test=y[:7]))
    assert (data.num_train, len(data.test_labels), data.numbers) == (ENOUGH, 7, None)


def test_public_data_keep_their_own_split():
    assert (read("digits").num_train, len(read("digits").test_labels)) == (1297, 500)


# The journal


def hashed(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_the_journal_is_a_hidden_file_in_a_folder_or_beside_a_file(tmp_path):
    assert journal.path_for(tmp_path) == tmp_path / ".selfens.jsonl"
    (tmp_path / "table.csv").touch()
    assert journal.path_for(tmp_path / "table.csv") == tmp_path / ".table.csv.selfens.jsonl"


def test_what_is_added_to_the_journal_is_read_again(tmp_path):
    path = tmp_path / ".selfens.jsonl"
    assert journal.read(path).suggested == set()
    journal.add_chosen(path, ["a", "b"], journal.BY_MODEL)
    first = path.read_text()
    journal.add_chosen(path, ["c", "a"], journal.BY_MODEL)
    assert journal.read(path).suggested == {"a", "b", "c"}
    assert path.read_text().startswith(first)  # lines are only added
    lines = [json.loads(line) for line in path.read_text().split("\n") if line]
    assert lines == [{"row": row, "chosen": "by a model"} for row in "abca"]


GOOD = '{"row": "good", "chosen": "by a model"}\n'
DAMAGES = {
    "cut short": b'{"row": "lost", "chosen": "by a mo',
    "not text": b"\xff\xfe\x00\x80\n",
    "not JSON": b"hello\n",
    "of another kind": b'[1]\n{"row": 5, "chosen": "by a model"}\n{"row": "x"}\n{"row": "y", "chosen": "at random"}\nnull\n',
    "nested deeply": b"[" * 100_000 + b"\n",
    "a long number": b'{"row": ' + b"9" * 10_000 + b"}\n",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_lines_of_the_journal_are_passed_over(tmp_path, damage):
    path = tmp_path / ".selfens.jsonl"
    path.write_bytes(GOOD.encode() + damage)
    assert journal.read(path).suggested == {"good"}
    journal.add_chosen(path, ["more"], journal.BY_MODEL)
    assert journal.read(path).suggested == {"good", "more"}


def make_pipe(path):
    os.mkfifo(path)


def make_folder(path):
    path.mkdir()


def make_link_to_nothing(path):
    path.symlink_to(path.parent / "nothing here")


def make_link_to_a_device(path):
    path.symlink_to("/dev/zero")


def make_link_to_itself(path):
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make", [make_pipe, make_folder, make_link_to_nothing, make_link_to_a_device, make_link_to_itself]
)
def test_what_is_no_file_is_neither_read_nor_written(tmp_path, make):
    path = tmp_path / "photos" / ".selfens.jsonl"
    path.parent.mkdir()
    make(path)
    assert journal.read(path).suggested == set()
    with pytest.raises(OSError):  # noqa: PT011  one of several
        journal.add_chosen(path, ["a"], journal.BY_MODEL)
    assert sorted(path.parent.iterdir()) == [path]


def test_nothing_is_written_through_a_link(tmp_path):
    """Whoever made the folder may have made the link."""
    victim, path = tmp_path / "victim", tmp_path / ".selfens.jsonl"
    victim.write_text("precious\n")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        journal.add_chosen(path, ["a"], journal.BY_MODEL)
    assert victim.read_text() == "precious\n"


def test_suggested_rows_are_never_tested_on_wherever_they_are(root):
    before = read(root)
    assert before.suggested is None
    chosen = [*before.row_ids(test=True)[:15], *before.row_ids()[:15]]
    hashes = {hashed(name) for name in chosen}
    journal.add_chosen(journal.path_for(root), hashes, journal.BY_MODEL)
    for change in (lambda root: root, rename, move):
        root = change(root)
        after = read(root)
        marked = {hashed(after.ids[row]) for row in np.flatnonzero(after.suggested)}
        assert marked == hashes
        assert not (after.suggested & after.is_test).any()
        assert len(after.test_labels) == len(before.test_labels) - 15
        others = [
            Path(name).read_bytes() for name, chosen in zip(after.ids, after.suggested, strict=True) if not chosen
        ]
        assert {content for content in others if is_for_testing(content)} == contents(after, test=True)


def test_suggested_rows_of_tables_and_arrays_are_found_again(tmp_path):
    frame, (x, y) = table(), arrays()
    shuffled, gap = TABLE_CHANGES["other order"](frame), with_gap(frame)
    for save, change, label in (
        (lambda: written(frame, tmp_path / "a.csv"), lambda: written(shuffled, tmp_path / "a.csv"), "kind"),
        (lambda: written(frame, tmp_path / "b.parquet"), lambda: written(gap, tmp_path / "b.parquet"), "kind"),
        (lambda: save_npz(tmp_path, x, y), lambda: save_npz(tmp_path, x[::-1], y[::-1]), None),
    ):
        path = save()
        before = read(path, label=label)
        chosen = before.test_rows[:20]
        journal.add_chosen(journal.path_for(path), before.row_hashes(chosen), journal.BY_MODEL)
        after = read(change(), label=label)
        assert after.suggested.sum() == 20
        assert set(np.array(after.row_hashes())[after.suggested]) == set(before.row_hashes(chosen))
        assert not (after.suggested & after.is_test).any()


# By command: train, suggest, label, train again

QUICKLY = ["--size", 8, "--epochs", 1, "--set", "network.name=mlp", "--set", "network.width=8", "--quiet"]
GIVEN, NEW = 22, 7


@pytest.fixture
def few(tmp_path):
    """A few labels of each class, and unlabeled photos beside the folders."""
    root = photos(tmp_path / "photos", GIVEN)
    for number in range(20):
        scene(500 + number).save(root / f"{number}.png")
    return root


def suggest(typed, root, *words):
    """Train and suggest; the suggestions as they are in the table."""
    assert typed("train", root, "--run", "first", "--no-baselines", "--no-report", *QUICKLY)[0] == 0
    code, said, complained = typed("suggest", "first", "-n", NEW, *words)
    assert code == 0, complained
    with open("suggestions.csv", newline="") as file:
        return [*csv.DictReader(file)]


def measured(typed, root, *words):
    """Train again: the run, what was printed, the names of the rows that are counted, and of those that are not."""
    code, said, complained = typed("train", root, "--run", "second", "--no-report", *QUICKLY[:-1], *words)
    assert code == 0, complained
    run = load_run("second")
    names = np.array([hashed(name) for name in run.data().dataset.row_ids()])
    evidence = run.evidence
    return run, said, {*names[evidence.rows[evidence.counted]]}, {*names[evidence.rows[~evidence.counted]]}


def check_corrected(run, said, counted, passed, hashes):
    assert (passed, counted >= hashes, len(counted)) == (set(), True, GIVEN + NEW)
    wrong = run.evidence.probabilities.argmax(axis=1) != run.evidence.labels
    assert run.evidence.error == pytest.approx(np.clip(100 * wrong.mean() + run.evidence.correction, 0, 100))
    note = (
        f"Measured also on {NEW} labels of suggested rows, which are harder than others; the correction takes that into"
    )
    assert note in said


def test_suggestions_that_are_filled_in_are_learned_but_not_measured_on(typed, few):
    lines = suggest(typed, few)
    hashes = {hashed(line["file"]) for line in lines}
    assert journal.suggested(few / ".selfens.jsonl") == hashes
    with open("suggestions.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(line | {"label": CLASSES[number % 2]} for number, line in enumerate(lines))
    check_corrected(*measured(typed, few, "--add-labels", "suggestions.csv"), hashes)


def test_suggestions_that_are_moved_into_class_folders_are_learned_but_not_measured_on(typed, few):
    hashes = set()
    for number, line in enumerate(suggest(typed, few)):
        hashes.add(hashed(line["file"]))
        shutil.move(line["file"], few / CLASSES[number % 2] / f"renamed {number}.png")
    check_corrected(*measured(typed, few), hashes)


def test_rows_that_were_drawn_at_random_are_measured_on(typed, few):
    for number, line in enumerate(suggest(typed, few, "--random")):
        shutil.move(line["file"], few / CLASSES[number % 2])
    assert not journal.read(few / ".selfens.jsonl").suggested
    run, said, counted, passed = measured(typed, few)
    assert (len(counted), passed) == (GIVEN + NEW, set())
    assert run.evidence.notes == ()
    assert "suggested rows" not in said


def test_with_few_other_labels_suggested_rows_count_too_and_it_is_said(typed, tmp_path):
    root = photos(tmp_path / "photos", 12)
    for number in range(NEW):
        scene(500 + number).save(root / f"{number}.png")
    for number, line in enumerate(suggest(typed, root)):  # all others, so there is nothing to compare them with
        shutil.move(line["file"], root / CLASSES[number % 2])
    _, said, counted, passed = measured(typed, root)
    assert (len(counted), passed) == (12 + NEW, set())
    note = (
        f"Measured also on {NEW} labels of suggested rows, which are harder than others, because only 12 labels are of"
    )
    assert note in said


def test_suggestions_for_extra_rows_are_not_measured_on_either(typed, tmp_path, few):
    for number in range(12):
        (tmp_path / "more").mkdir(exist_ok=True)
        scene(900 + number).save(tmp_path / "more" / f"{number}.png")
    for path in few.glob("*.png"):
        path.unlink()
    extra = ("--set", f"source.extra={tmp_path / 'more'}")
    assert typed("train", few, "--run", "first", "--no-baselines", "--no-report", *extra, *QUICKLY)[0] == 0
    assert typed("suggest", "first", "-n", NEW)[0] == 0
    with open("suggestions.csv", newline="") as file:
        lines = [*csv.DictReader(file)]
    assert len(lines) == NEW
    with open("labels.csv", "w") as file:
        file.write("file,label\n" + "".join(f"{line['file']},red\n" for line in lines))
    _, said, counted, passed = measured(typed, few, *extra, "--add-labels", "labels.csv")
    assert (len(counted), passed) == (GIVEN, {hashed(line["file"]) for line in lines})
    assert f"Not measured on {NEW} labels of suggested rows, which are harder than others." in said


@pytest.mark.parametrize("make", [make_pipe, make_folder, make_link_to_nothing])
def test_suggestions_that_cannot_be_noted_are_written_with_a_warning(typed, few, make):
    make(few / ".selfens.jsonl")
    assert typed("train", few, "--run", "first", "--no-baselines", "--no-report", *QUICKLY)[0] == 0
    code, said, complained = typed("suggest", "first", "-n", NEW)
    assert code == 0
    assert "7 rows to label next written to suggestions.csv" in said
    assert "warning: errors will also be measured on these rows, which are harder than others: " in complained
    assert str(few / ".selfens.jsonl") in complained
    assert "Traceback" not in complained
    assert not (few / "nothing here").exists()


def test_suggestions_for_data_in_a_read_only_folder_are_written_with_a_warning(typed, few, tmp_path):
    assert typed("train", few, "--run", "first", "--no-baselines", "--no-report", *QUICKLY)[0] == 0
    few.chmod(0o555)
    try:
        process = child(tmp_path / "said", run_cli_without_privileges, ["suggest", "first", "-n", "3"])
        assert finish(process) == 0
    finally:
        few.chmod(0o755)
    said = (tmp_path / "said").read_text()
    assert "warning: errors will also be measured on these rows" in said
    assert "3 rows to label next written to suggestions.csv" in said
    assert "Traceback" not in said
    assert not journal.read(few / ".selfens.jsonl").suggested


# What was decided stays


def names_of(data, *, test):
    return {Path(data.ids[row]).name for row in np.flatnonzero(data.is_test == test)}


def test_copies_and_labels_that_are_added_move_no_row(root):
    before = read(root)
    first = names_of(before, test=True)
    for path in sorted((root / "red").glob("*.png"))[:60]:  # larger versions, whose content would decide for both
        Image.open(path).resize((64, 64), Image.Resampling.BICUBIC).save(path.with_name(f"large-{path.name}"))
    (root / "unlabeled").mkdir()
    for path in sorted((root / "green").glob("*.png"))[:60]:
        shutil.copy(path, root / "unlabeled" / f"copy-{path.name}")
    after = read(root)
    assert {name for name in names_of(after, test=True) if not name.startswith(("large-", "copy-"))} == first
    sides = {Path(name).name: bool(side) for name, side in zip(after.ids, after.is_test, strict=True)}
    assert all(sides[name] == sides[name.removeprefix("large-")] for name in sides if name.startswith("large-"))


def test_a_row_with_an_unlabeled_copy_is_trained_on(root):
    (root / "unlabeled").mkdir()
    copied = sorted((root / "green").glob("*.png"))[:40]
    assert any(is_for_testing(path.read_bytes()) for path in copied)
    for path in copied:
        shutil.copy(path, root / "unlabeled" / f"copy-{path.name}")
    assert not names_of(read(root), test=True) & {path.name for path in copied}


def test_the_first_label_of_a_class_stays_when_a_second_one_comes(tmp_path):
    rows = [f"{number},{'b' if number else 'rare'}" for number in range(ENOUGH)]
    rows[0] = next(
        f"{number}.5,rare" for number in range(1000) if is_for_testing_in_table(tmp_path, f"{number}.5,rare")
    )
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,kind", *rows]) + "\n")
    assert not read(path, label="kind").is_test[0]
    path.write_text("\n".join(["a,kind", *rows, "-7,rare"]) + "\n")
    again = read(path, label="kind")
    assert not again.is_test[[str(cell).endswith(".5") for cell in again.raw["a"]]].any()


def is_for_testing_in_table(folder, row):
    (folder / "one.csv").write_text(f"a,kind\n{row}\n")
    (content,) = read(folder / "one.csv", label="kind").row_hashes()
    return int(content[:8], 16) / 2**32 < SHARE


def test_where_nothing_can_be_written_the_content_decides_each_time(root, monkeypatch):
    def refused(*_):
        raise OSError("read-only")

    monkeypatch.setattr(journal, "add_split", refused)
    assert names_of(read(root), test=True) == names_of(read(root), test=True)
    assert not journal.path_for(root).exists()


def test_the_last_line_says_how_a_row_was_chosen(tmp_path):
    path = tmp_path / "journal"
    journal.add_chosen(path, ["a", "b"], journal.BY_MODEL)
    journal.add_chosen(path, ["a"], journal.AT_RANDOM)
    assert (journal.read(path).suggested, journal.read(path).drawn) == ({"b"}, {"a"})
    journal.add_chosen(path, ["a"], journal.BY_MODEL)
    assert (journal.read(path).suggested, journal.read(path).drawn) == ({"a", "b"}, set())
