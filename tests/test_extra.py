"""Extra unlabeled rows: every source of them, what they change in a run and what they must not, and the paper's experiment."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from support import (
    CLASSES,
    SMALL_IMAGES,
    At,
    config,
    crash,
    crashed,
    differences,
    encoded,
    features,
    images,
    interrupt,
    left_behind,
    relabeled,
    sets,
    write_npz,
)

from selfens import Dataset, load_run, resume, train
from selfens.data import official_files, preprocess, sources
from selfens.data.labels import choose_labels
from selfens.data.rows import is_mapped
from selfens.data.sources import options_for
from selfens.errors import ConfigError, DataError, RunError
from selfens.experiments.data import DataLocation
from selfens.experiments.records import ExtraImages, Store
from selfens.experiments.tables import CELLS, Cell, Task
from selfens.experiments.worker import run_cell
from selfens.tools.audit import suggest_run
from selfens.tools.folds import audit_folds
from selfens.training.progress import WarningsOnly


def bytes_like(shape, seed=1):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def colored(rows=60, side=8, seed=0):
    """A main set of color images, and 20 others to test on."""
    labels = np.arange(rows + 20) % CLASSES
    pixels = bytes_like((rows + 20, 3, side, side), seed) // 2
    pixels[np.arange(rows + 20), labels] += 100
    return Dataset.from_arrays(pixels[:rows], labels[:rows], pixels[rows:], labels[rows:], layout="NCHW")


def saved(path, main):
    """A dataset as an .npz file."""
    train, test = main.train_rows, main.test_rows
    tested = {"x_test": main.raw[test], "y_test": main.test_labels}
    return write_npz(path, x_train=main.raw[train], y_train=main.train_labels, **tested)


def loaded(tmp_path, main, extra):
    return sources.load(options_for(saved(tmp_path / "main.npz", main), extra=str(extra)))


def written(tmp_path, kind, images):
    """The same images in each kind of source."""
    path = tmp_path / f"extra-{kind}"
    if kind == "npy":
        np.save(path := path.with_suffix(".npy"), images)
    elif kind == "npy channels last":
        np.save(path := path.with_suffix(".npy"), images.transpose(0, 2, 3, 1))
    elif kind == "npy of int64":
        np.save(path := path.with_suffix(".npy"), images.astype(np.int64))
    elif kind == "npz":
        np.savez(path := path.with_suffix(".npz"), x=images, y=np.zeros(len(images)))
    else:
        for number, image in enumerate(images):
            (path / f"{number % 2}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(path / f"{number % 2}" / f"{number:02d}.png")
    return path


# Sources


@pytest.mark.parametrize("kind", ["npy", "npy channels last", "npy of int64", "npz", "folder"])
def test_extra_rows_come_after_the_main_ones_unlabeled_and_unchanged(tmp_path, kind):
    main, added = colored(side=32), bytes_like((7, 3, 32, 32))
    path = written(tmp_path, kind, added)
    data = loaded(tmp_path, main, path)
    order = [0, 2, 4, 6, 1, 3, 5] if kind == "folder" else range(7)
    inputs = encoded(data).inputs
    np.testing.assert_array_equal(inputs[:], np.concatenate([main.raw[:60], added[list(order)]]))
    np.testing.assert_array_equal(data.train_labels, [*main.train_labels, *[-1] * 7])
    np.testing.assert_array_equal(encoded(data).test_inputs[:], main.raw[60:])
    assert (data.num_train, data.num_main, data.extra_rows, data.extra_name) == (67, 60, 7, str(path))
    assert is_mapped(inputs) == (kind in ("npy", "npy channels last"))
    assert len(data.row_ids()) == 67
    assert data.row_ids()[0] == f"{tmp_path / 'main.npz'}:0"
    assert data.row_ids()[61] == (str(path / "0" / "02.png") if kind == "folder" else f"{path}:1")


def test_the_fingerprint_covers_the_extra_rows():
    main, added = colored(), bytes_like((7, 3, 8, 8))
    changed = added.copy()
    changed[6, 2, 7, 7] ^= 1
    found = [encoded(data).fingerprint for data in (main, main.with_extra(added), main.with_extra(changed))]
    assert len({*found}) == 3
    assert encoded(main.with_extra(added.copy())).fingerprint == found[1]
    assert main.with_extra(added).test_fingerprint() == main.test_fingerprint()


def test_a_folder_is_resized_to_the_main_images(tmp_path):
    path = written(tmp_path, "folder", bytes_like((4, 3, 32, 32)))
    (path / "0" / "broken.png").write_text("no")
    data = loaded(tmp_path, colored(side=8), path)
    assert encoded(data).inputs.shape == (64, 3, 8, 8)
    assert len(data.skipped) == 1


def test_the_rows_of_a_public_data_set_will_do():
    main = sources.load(options_for("digits"))
    data = sources.load(options_for("digits", extra="digits"))
    np.testing.assert_array_equal(data.raw[-main.num_train :], main.raw[main.train_rows])
    assert (data.num_main, data.extra_name) == (main.num_train, "digits")


def test_a_public_data_set_is_looked_for_in_the_folder_of_the_main_one(monkeypatch):
    asked = []

    def load(name, folder, **_):
        asked.append((name, folder))
        pixels, labels = bytes_like((9, 3, 32, 32)), np.arange(9) % 3
        return (pixels, labels), (pixels, labels), ("a", "b", "c")

    monkeypatch.setattr(official_files, "load", load)
    data = sources.load(options_for("cifar10", folder="/here", extra="cifar100"))
    assert (data.num_main, data.extra_rows) == (9, 9)
    assert [(name, str(folder)) for name, folder in asked] == [("cifar10", "/here"), ("cifar100", "/here")]


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (bytes_like((5, 3, 16, 16)), r"rows of shape \(3, 16, 16\) .* the training inputs \(3, 8, 8\) .*not resized"),
        (bytes_like((5, 1, 8, 8)), r"rows of shape \(1, 8, 8\)"),
        (bytes_like((5, 192)), r"rows of shape \(192,\)"),
        (np.array(3, np.uint8), r"have shape \(\)"),
        (bytes_like((0, 3, 8, 8)), "which is empty"),
        (np.zeros((5, 3, 8, 8), bool), "type bool, .*expected the same"),
        (np.zeros((5, 3, 8, 8), np.float32), "type float32, the training inputs .* and uint8"),
        (np.full((5, 3, 8, 8), 256), "type int64, .*images of integers from 0 to 255 are bytes"),
        (np.full((5, 3, 8, 8), "a"), "type <U1"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(array, sentence):
    with pytest.raises(DataError, match=sentence):
        colored().with_extra(array)


def test_floats_go_with_floats_on_the_same_scale():
    pixels = np.random.default_rng(0).random((9, 1, 8, 8))
    main = Dataset.from_arrays(pixels, np.arange(9) % 3, layout="NCHW")
    assert main.with_extra(np.zeros((2, 8, 8))).raw.dtype == np.float32
    assert main.with_extra(pixels[:5] * 0.1).extra_rows == 5
    for given, sentence in (
        (np.zeros((2, 8, 8), np.int64), "type int64, the training inputs .* and float32"),
        (np.full((2, 8, 8), np.nan), "NaN"),
        (pixels * 255, r"loud.npy holds images from .* to 2\d\d.*, and the training images range from 0"),
    ):
        with pytest.raises(DataError, match=sentence):
            main.with_extra(given, name="loud.npy")
    assert features().with_extra(np.zeros((2, 6), np.int64)).num_train == 62


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.npy", "there is no file or folder {}"),
        ("none", "there is no file or folder {}"),
        ("n.dat", "{} cannot be read"),
    ],
)
def test_a_source_that_is_none_is_one_sentence(tmp_path, name, words):
    (tmp_path / "n.dat").write_text("hello")
    with pytest.raises((DataError, ConfigError), match=words.format(tmp_path / name)):
        loaded(tmp_path, colored(), tmp_path / name)


def test_images_do_not_go_with_gray_ones_with_features_or_with_a_table(tmp_path):
    path = written(tmp_path, "folder", bytes_like((4, 3, 32, 32)))
    for main in (images(), features()):
        with pytest.raises(DataError, match=r"rows of shape \(3, .* the training inputs"):
            loaded(tmp_path, main, path)
    (tmp_path / "table.csv").write_text("a,class\n1,x\n2,y\n")
    for main, extra in (("table.csv", path), ("main.npz", tmp_path / "table.csv")):
        options = options_for(tmp_path / main, label="class" if main == "table.csv" else None, extra=str(extra))
        with pytest.raises(DataError, match="are of different kinds; extra rows of a table must come from a table"):
            sources.load(options)


def test_a_table_goes_with_a_table_of_the_same_columns(tmp_path):
    (tmp_path / "main.csv").write_text("name,a,class\nann,1,x\nbob,2,y\n")
    (tmp_path / "more.csv").write_text("class,a,name,b\n,5,cleo,7\nz,6,dan,8\n")
    options = options_for(tmp_path / "main.csv", label="class", id="name", extra=str(tmp_path / "more.csv"))
    data = sources.load(options)
    assert data.identify(np.arange(4))[1] == {"name": ["ann", "bob", "cleo", "dan"]}
    assert (data.raw["a"].tolist(), data.train_labels.tolist()) == (["1", "2", "5", "6"], [0, 1, -1, -1])
    assert data.row_numbers().tolist() == [0, 1, 2, 3]
    (tmp_path / "more.csv").write_text("b,name\n5,cleo\n")
    with pytest.raises(DataError, match=r"more.csv lacks the columns a of .*main.csv"):
        sources.load(options)


# What they change in a run


def extended():
    return features().with_extra(np.random.default_rng(5).normal(size=(40, 6)) * 3)


def test_preprocessing_is_fitted_on_the_main_rows_alone(tmp_path):
    run = train(config("temporal", "labels.validation=0.25"), tmp_path / "run", dataset=extended())
    main = features().raw[:60]
    expected = preprocess.fit("channel", np.delete(main, run.labels.validation, axis=0))
    torch.testing.assert_close(run.preprocess.state_dict(), expected.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", preprocess.KINDS)
def test_preprocessing_is_fitted_on_the_labeled_rows_if_asked_for(tmp_path, kind):
    words = (
        "labels.validation=0.25",
        "preprocess.rows=labeled",
        f"preprocess.kind={kind}",
        "training.checkpoint_every=1",
    )
    with crashed():
        train(config("temporal", *words), tmp_path / "run", dataset=extended(), progress=At(1, 2, crash))
    run = resume(tmp_path / "run", dataset=extended())
    assert len(run.labels.validation)
    expected = preprocess.fit(kind, features().raw[run.labels.rows])
    torch.testing.assert_close(run.preprocess.state_dict(), expected.state_dict(), rtol=0, atol=0)
    whole = train(config("temporal", *words), tmp_path / "whole", dataset=extended())
    assert differences(left_behind(run.path), left_behind(whole.path)) == []


@pytest.mark.parametrize("choice", ["balanced", "original"])
def test_the_labeled_rows_are_those_of_a_run_without(choice):
    options = config("temporal", f"labels.choice={choice}").labels
    rows = [choose_labels(data, options, label_seed=3, split_seed=3).rows for data in (features(), extended())]
    np.testing.assert_array_equal(*rows)


def test_only_visited_rows_change_in_z(tmp_path):
    """An epoch visits 12 labeled rows and 18 of 88 others. Z and the counts of the rest do not change."""
    settings = config("temporal", "training.unlabeled_per_epoch=18", "training.checkpoint_every=1", epochs=4)
    states = []

    class Keep(WarningsOnly):
        def epoch(self, record):
            ensemble = load_run(tmp_path / "run").ensemble
            states.append((ensemble.mean.clone(), ensemble.count.clone()))

    run = train(settings, tmp_path / "run", dataset=extended(), progress=Keep())
    labeled = set(run.labels.rows.tolist())
    before = (torch.zeros_like(states[0][0]), torch.zeros_like(states[0][1]))
    drawn = []
    for mean, count in states:
        visited = np.flatnonzero(count - before[1]).tolist()
        assert len(visited) == 30
        assert labeled <= set(visited)
        drawn.append(frozenset(visited) - labeled)
        kept = torch.ones(100, dtype=torch.bool)
        kept[visited] = False
        assert torch.equal(mean[kept], before[0][kept])
        assert (mean[~kept] != before[0][~kept]).any(dim=1).all()
        assert set((count - before[1])[visited].tolist()) == {1.0}
        before = (mean, count)
    assert len(set(drawn)) == 4
    assert any(row >= 60 for rows in drawn for row in rows)
    assert any(row < 60 for rows in drawn for row in rows)  # main rows without a label are drawn from too


@pytest.mark.parametrize(
    ("labels", "scale", "share"),
    [
        ("all", "original", 1),  # the whole main set is labeled: as the authors' code, extra rows or not
        ("all", "paper", 0.6),
        ("all", "none", 1),
        *(("12", "original", 0.12), ("12", "paper", 0.12), ("12", "none", 1)),
    ],
)
def test_the_weight_counts_extra_rows_as_the_authors_code_does(tmp_path, labels, scale, share):
    words = (f"labels.count={labels}", f"method.weight_scale={scale}", "training.unlabeled_per_epoch=20")
    run = train(config("temporal", *words, "schedule.rampup_epochs=0"), tmp_path / "run", dataset=extended())
    assert run.history[-1]["weight"] == pytest.approx(30 * share)


@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("residence", ["device", "file"])
def test_a_run_with_extra_rows_resumes_exactly(tmp_path, stop, residence):
    np.save(tmp_path / "more.npy", bytes_like((90, 3, 8, 8)))
    settings = config(
        "temporal",
        *SMALL_IMAGES,
        f"source.extra={tmp_path / 'more.npy'}",
        "training.unlabeled_per_epoch=28",
        f"training.residence={residence}",
        name=str(saved(tmp_path / "m.npz", colored())),
    )
    train(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", progress=At(0, stop, interrupt))
    assert load_run(tmp_path / "stopped").directory.position() == divmod(stop + 1, 4)
    resume(tmp_path / "stopped")
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "stopped")) == []
    np.save(tmp_path / "more.npy", bytes_like((90, 3, 8, 8), seed=2))
    with pytest.raises(RunError, match="rows, labels or extra rows have changed"):
        load_run(tmp_path / "whole").data()


def test_audit_and_suggestions_know_the_extra_rows(tmp_path):
    data = extended()
    settings = config("temporal", "training.unlabeled_per_epoch=18", "labels.noise=20")
    run = train(settings, tmp_path / "run", dataset=data)
    assert run.predict_training_rows(data).shape == (100, CLASSES)
    suggested = suggest_run(run, 88, data).rows
    assert sorted(suggested) == sorted(set(range(100)) - set(run.labels.rows.tolist()))
    assert sorted(audit_folds(settings, data, folds=2).rows) == sorted(run.labels.rows)


def test_an_extra_row_may_be_given_a_label(tmp_path):
    data = extended()
    labels = data.train_labels.copy()
    labels[12:60], labels[99] = -1, 1
    run = train(config("temporal", "labels.count=all"), tmp_path / "run", dataset=relabeled(data, labels))
    assert run.labels.rows.tolist() == [*range(12), 99]


def test_a_dataset_passed_without_the_extra_rows_asked_for_is_refused(tmp_path):
    settings = config("temporal", "source.extra=more.npy")
    with pytest.raises(ConfigError, match="source.extra is set, but the dataset has no extra rows; .*with_extra"):
        train(settings, tmp_path / "run", dataset=features())
    train(settings, tmp_path / "run", dataset=extended())


# The command


def test_the_command_from_training_to_labeling_extra_rows(tmp_path, typed):
    main = colored()
    labels = np.where(np.arange(60) < 12, np.arange(60) % 3, -1)
    saved(tmp_path / "m.npz", relabeled(main, labels))
    folder = written(tmp_path, "folder", bytes_like((30, 3, 8, 8)))
    words = ["--method", "temporal", *sets([*SMALL_IMAGES, "training.device=cpu", "training.batch_size=10"])]
    extra = sets([f"source.extra={folder.name}", "training.unlabeled_per_epoch=18"])
    code, out, err = typed("train", "m.npz", "--epochs", 2, *extra, "--run", "run", *words)
    assert (code, "90 rows, 30 of them extra, 12 labeled" in out + err) == (0, True)
    run = load_run("run")
    assert (run.info.extra, run.info.extra_rows, run.info.rows) == (str(folder), 30, 90)
    assert run.ensemble.count.sum() == 2 * 30
    assert typed("suggest", "run", "-n", 78)[0] == 0
    with open("suggestions.csv") as file:
        lines = {int(line["row"]): line for line in csv.DictReader(file)}
    assert set(lines) == set(range(12, 90))
    assert lines[60]["file"] == str(folder / "0" / "00.png")
    assert lines[12]["file"] == f"{tmp_path / 'm.npz'}:12"

    more = "".join(f"{row},{row % 3},{lines[row]['file']}\n" for row in (12, 13, 14, 61))
    (tmp_path / "more.csv").write_text(f"row,label,file\n{more}")
    again = ("train", "m.npz", *extra, "--epochs", 1, "--labels-file", "more.csv", "--run", "b", *words)
    assert typed(*again)[0] == 0
    assert load_run("b").labels.rows.tolist() == [12, 13, 14, 61]
    assert typed("audit", "b")[0] == 0
    assert str(folder / "0" / "02.png") in (tmp_path / "issues.csv").read_text()
    assert typed("predict", "b", folder, "-o", "p.csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["source.extra=more.npy", "training.unlabeled_per_epoch=100"], "there are only 68 unlabeled rows"),
        (["source.extra=more.npy", "training.unlabeled_per_epoch=many"], "training.unlabeled_per_epoch is 'many'"),
        (["source.extra=more.npy", "training.rows=labeled"], "visits no unlabeled rows"),
        (["source.extra=small.npy"], "arrays are not resized"),
        (["source.extra=none.npy"], "there is no file"),
        (["source.extra="], "source.extra is empty"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, typed, words, sentence):
    np.savez(tmp_path / "m.npz", x_train=colored().raw[:60], y_train=np.r_[np.arange(12) % 3, [-1] * 48])
    np.save(tmp_path / "more.npy", bytes_like((20, 3, 8, 8)))
    np.save(tmp_path / "small.npy", bytes_like((20, 3, 4, 4)))
    code, _, err = typed("train", "m.npz", *sets(words), "--run", "run")
    assert (code, sentence in err, len(err.strip().splitlines())) == (1, True, 1), err
    assert not (tmp_path / "run").exists()


# The paper's experiment


@pytest.fixture
def small_official(monkeypatch):
    """The data set is shrunk."""
    main = colored(side=32)
    train, test = ((main.raw[rows], main.labels[rows]) for rows in (main.train_rows, main.test_rows))
    monkeypatch.setattr(official_files, "load", lambda *words, **more: (train, test, main.classes))
    monkeypatch.setattr("selfens.experiments.data.ROWS", {})


def test_a_cell_with_images_that_stand_in_says_which_and_how_many(tmp_path, small_official):
    """The code is the real one; only the data set and the network are smaller."""
    np.save(tmp_path / "natural.npy", bytes_like((70, 3, 32, 32)))
    cell = CELLS["tiny/temporal-aug-random"]
    small = ("network.name=small", "network.width=4", "schedule.epochs=2", "training.batch_size=10")
    small = cell.config.with_overrides([*small, "training.unlabeled_per_epoch=30", "preprocess.kind=channel"])
    task, store = Task(Cell(**{**vars(cell), "config": small}), 0), Store(tmp_path / "results")
    assert run_cell(task, "cpu", store, DataLocation(extra=str(tmp_path / "natural.npy")))
    (record,) = store.read([task.cell])
    assert record.extra == ExtraImages(source="natural.npy", rows=70)
    assert str(tmp_path) not in store.record_path(task).read_text()
    assert record.final_error is not None


def test_more_than_the_papers_number_of_random_images_are_refused(tmp_path, monkeypatch, small_official):
    monkeypatch.setattr("selfens.experiments.data.RANDOM_IMAGES", 50)
    np.save(tmp_path / "natural.npy", bytes_like((51, 3, 32, 32)))
    given = DataLocation(extra=str(tmp_path / "natural.npy"))
    with pytest.raises(DataError, match="natural.npy has 51 images; the paper has 50 random ones"):
        given.load(Task(CELLS["tiny/pi-aug-random"], 0))
