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
    features,
    images,
    left_behind,
    sets,
    write_npz,
)
from test_folder import typed

from selfens import Dataset, load_run, resume, train
from selfens.data import preprocess, sources
from selfens.data.labels import choose_labels
from selfens.data.rows import is_mapped
from selfens.errors import ConfigError, DataError
from selfens.experiments.data import Source
from selfens.experiments.records import Images, Store
from selfens.experiments.tables import CELLS, Task
from selfens.experiments.worker import run_cell as run_task
from selfens.tools.audit import suggest_run
from selfens.tools.folds import audit_folds
from selfens.training.progress import Silent


def find(main, path):
    return sources.with_extra(main, str(path))


def bytes_like(shape, seed=1):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def colored(rows=60, side=32, classes=CLASSES, seed=0):
    """A main set of color images."""
    labels = np.arange(rows) % classes
    pixels = bytes_like((rows, 3, side, side), seed) // 2
    pixels[np.arange(rows), labels % 3] += 100
    return Dataset.from_arrays(pixels, labels, pixels[:20], labels[:20], layout="NCHW")


def written(tmp_path, kind, shown):
    """The same images in each kind of source."""
    path = tmp_path / f"extra-{kind}"
    if kind == "npy":
        np.save(path := path.with_suffix(".npy"), shown)
    elif kind == "npy channels last":
        np.save(path := path.with_suffix(".npy"), shown.transpose(0, 2, 3, 1))
    elif kind == "npy of int64":
        np.save(path := path.with_suffix(".npy"), shown.astype(np.int64))
    elif kind == "npz":
        np.savez(path := path.with_suffix(".npz"), x=shown, y=np.zeros(len(shown)))
    else:
        for number, image in enumerate(shown):
            (path / f"{number % 2}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(path / f"{number % 2}" / f"{number:02d}.png")
    return path


KINDS = ("npy", "npy channels last", "npy of int64", "npz", "folder")


def test_extra_images_on_another_scale_are_refused():
    pixels = np.random.default_rng(0).random((20, 3, 8, 8)).astype(np.float32)
    main = Dataset.from_arrays(pixels, np.arange(20) % 2)
    assert main.with_extra(pixels[:5] * 0.1, name="dark.npy").extra_rows == 5
    with pytest.raises(
        DataError, match=r"loud.npy holds images from .* to 2\d\d.*, and the training images are from 0"
    ):
        main.with_extra(pixels[:5] * 255, name="loud.npy")


@pytest.mark.parametrize("kind", KINDS)
def test_extra_rows_come_after_the_main_ones_unlabeled_and_unchanged(tmp_path, kind):
    main, shown = colored(), bytes_like((7, 3, 32, 32))
    path = written(tmp_path, kind, shown)
    data = find(main, path)
    order = [0, 2, 4, 6, 1, 3, 5] if kind == "folder" else range(7)
    np.testing.assert_array_equal(data.inputs[:], np.concatenate([main.inputs, shown[list(order)]]))
    np.testing.assert_array_equal(data.labels, [*main.labels, *[-1] * 7])
    assert (data.num_rows, data.main_rows, data.extra_rows, data.extra_name) == (67, 60, 7, str(path))
    assert is_mapped(data.inputs) == (kind in ("npy", "npy channels last"))
    assert data.row_names[0] == "arrays:0"
    assert data.row_names[61] == (str(path / "0" / "02.png") if kind == "folder" else f"{path}:1")
    assert len(data.row_names) == 67
    assert data.fingerprint() != main.fingerprint()
    assert data.fingerprint() == find(main, path).fingerprint()


def test_the_fingerprint_covers_the_extra_rows():
    main, shown = colored(), bytes_like((7, 3, 32, 32))
    changed = shown.copy()
    changed[6, 2, 31, 31] ^= 1
    assert main.with_extra(shown).fingerprint() != main.with_extra(changed).fingerprint()


def test_a_folder_is_resized_to_the_main_images(tmp_path):
    main = colored(side=8)
    path = written(tmp_path, "folder", bytes_like((4, 3, 32, 32)))
    (path / "0" / "broken.png").write_text("no")
    data = find(main, path)
    assert data.inputs.shape == (64, 3, 8, 8)
    assert len(data.unreadable) == 1


def test_the_rows_of_a_named_data_set_will_do():
    main = sources.load("digits")
    found = sources.with_extra(main, "digits")
    np.testing.assert_array_equal(found.inputs[main.num_rows :], main.inputs)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (bytes_like((5, 3, 16, 16)), r"rows of shape \(3, 16, 16\) .* the training inputs \(3, 32, 32\) .*resized"),
        (bytes_like((5, 1, 32, 32)), r"rows of shape \(1, 32, 32\)"),
        (bytes_like((5, 3072)), r"rows of shape \(3072,\)"),
        (np.array(3, np.uint8), r"have shape \(\)"),
        (bytes_like((0, 3, 32, 32)), "which is empty"),
        (np.zeros((5, 3, 32, 32), bool), "type bool, .*expected the same"),
        (np.zeros((5, 3, 32, 32), np.float32), "type float32, the training inputs .* and uint8"),
        (np.full((5, 3, 32, 32), 256), "type int64, .*integers from 0 to 255 are bytes"),
        (np.full((5, 3, 32, 32), "a"), "type <U1"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(array, sentence):
    with pytest.raises(DataError, match=sentence):
        colored().with_extra(array)


def test_floats_go_with_floats():
    main = Dataset.from_arrays(np.random.default_rng(0).random((9, 1, 8, 8)), np.arange(9) % 3, layout="NCHW")
    assert main.with_extra(np.zeros((2, 8, 8))).inputs.dtype == np.float32
    with pytest.raises(DataError, match="type int64, the training inputs .* and float32"):
        main.with_extra(np.zeros((2, 8, 8), np.int64))
    with pytest.raises(DataError, match="NaN"):
        main.with_extra(np.full((2, 8, 8), np.nan))
    assert features().with_extra(np.zeros((2, 6), np.int64)).num_rows == 62


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing.npy", "there is no file"),
        ("nothing", "cannot be read as extra rows; expected"),
        ("notes.txt", "cannot be read as extra rows; expected"),
    ],
)
def test_a_source_that_is_none_is_one_sentence(tmp_path, name, sentence):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=sentence):
        find(colored(), tmp_path / name)


def test_images_do_not_go_with_gray_or_with_features(tmp_path):
    path = written(tmp_path, "folder", bytes_like((4, 3, 32, 32)))
    for main in (images(), features()):
        with pytest.raises(DataError, match="would become square and colored, but the training inputs have shape"):
            find(main, path)
    with pytest.raises(DataError, match=r"rows of shape \(3, 32, 32\) .* the training inputs \(3, 8, 8\)"):
        find(colored(side=8), written(tmp_path, "npy", bytes_like((1, 3, 32, 32))))


# What they change in a run


def extended(rows=40, **more):
    main = features(**more)
    return main.with_extra(np.random.default_rng(5).normal(size=(rows, 6)) * 3)


def test_preprocessing_is_fitted_on_the_main_rows_alone(tmp_path):
    run = train(config("temporal", "data.validation=0.25"), tmp_path / "run", dataset=extended())
    main, choice = features(), run.labels
    expected = preprocess.fit("channel", np.delete(main.inputs, choice.validation, axis=0))
    torch.testing.assert_close(run.preprocess.state_dict(), expected.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", preprocess.KINDS)
def test_preprocessing_is_fitted_on_the_labeled_rows_if_asked_for(tmp_path, kind):
    options = ("data.validation=0.25", "data.preprocess_rows=labeled", f"data.preprocess={kind}")
    with crashed():
        train(config("temporal", *options), tmp_path / "run", dataset=extended(), progress=At(1, 2, crash))
    run = resume(tmp_path / "run", dataset=extended())
    assert len(run.labels.validation)
    expected = preprocess.fit(kind, features().inputs[run.labels.rows])
    torch.testing.assert_close(run.preprocess.state_dict(), expected.state_dict(), rtol=0, atol=0)
    whole = train(config("temporal", *options), tmp_path / "whole", dataset=extended())
    assert differences(left_behind(run.path), left_behind(whole.path)) == []


@pytest.mark.parametrize("choice", ["balanced", "original"])
def test_the_labeled_rows_are_those_of_a_run_without(choice):
    options = config("temporal", f"data.label_choice={choice}").data
    rows = [choose_labels(data, options, label_seed=3, split_seed=3).rows for data in (features(), extended())]
    np.testing.assert_array_equal(*rows)


def test_only_visited_rows_change_in_z(tmp_path):
    """12 labeled rows and 18 of 88 others an epoch: Z, counts and all else of the rest stay as they were."""
    settings = config("temporal", "data.extra_per_epoch=18", "training.checkpoint_every=1", epochs=4)
    data, states = extended(), []

    class Keep(Silent):
        def epoch(self, record):
            ensemble = load_run(tmp_path / "run").ensemble
            states.append((ensemble.mean.clone(), ensemble.count.clone()))

    run = train(settings, tmp_path / "run", dataset=data, progress=Keep())
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
    ("labels", "scale", "expected"),
    [
        ("none", "original", 30),  # the whole main set is labeled: as the authors' code, extra rows or not
        ("none", "paper", 30 * 60 / 100),
        ("none", "none", 30),
        ("12", "original", 30 * 12 / 100),
        ("12", "paper", 30 * 12 / 100),
        ("12", "none", 30),
    ],
)
def test_the_weight_counts_extra_rows_as_the_authors_code_does(tmp_path, labels, scale, expected):
    settings = config("temporal", f"data.labels={labels}", f"method.weight_scale={scale}", "data.extra_per_epoch=20")
    run = train(settings.with_values("schedule", rampup_epochs=0.0), tmp_path / "run", dataset=extended())
    assert run.history[-1]["weight"] == pytest.approx(expected)


@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("residence", ["device", "file"])
def test_a_run_with_extra_rows_resumes_exactly(tmp_path, stop, residence):
    from test_prefetch import StopAt

    np.savez(tmp_path / "m.npz", x_train=colored(side=8).inputs, y_train=np.arange(60) % 3)
    np.save(tmp_path / "more.npy", bytes_like((90, 3, 8, 8)))
    settings = config(
        "temporal",
        *SMALL_IMAGES,
        f"data.extra={tmp_path / 'more.npy'}",
        "data.extra_per_epoch=28",
        f"training.residence={residence}",
        name=str(tmp_path / "m.npz"),
    )
    train(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", progress=StopAt(stop))
    resume(tmp_path / "stopped")
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "stopped")) == []
    np.save(tmp_path / "more.npy", bytes_like((90, 3, 8, 8), seed=2))
    with pytest.raises(Exception, match="its files or its extra rows have changed"):
        load_run(tmp_path / "whole").dataset()


def test_audit_and_suggestions_know_the_extra_rows(tmp_path):
    data = extended()
    settings = config("temporal", "data.extra_per_epoch=18", "data.label_noise=20")
    run = train(settings, tmp_path / "run", dataset=data)
    assert run.predict_training_rows(data).shape == (100, CLASSES)
    suggested = suggest_run(run, 88, data).rows
    assert sorted(suggested) == sorted(set(range(100)) - set(run.labels.rows.tolist()))
    audit = audit_folds(settings, data, folds=2)
    assert sorted(audit.rows) == sorted(run.labels.rows)


def test_an_extra_row_may_be_given_a_label(tmp_path):
    data = extended()
    labels = data.labels.copy()
    labels[12:60], labels[99] = -1, 1
    run = train(config("temporal", "data.labels=none"), tmp_path / "run", dataset=data.with_labels(labels))
    assert run.labels.rows.tolist() == [*range(12), 99]


def test_a_data_set_passed_without_the_extra_rows_asked_for_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"give it its extra rows by dataset\.with_extra"):
        train(config("temporal", "data.extra=more.npy"), tmp_path / "run", dataset=features())


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="visits no unlabeled rows"):
        config("temporal", "data.extra=a.npy", "training.rows=labeled")


# The command


def test_the_command_from_training_to_labeling_extra_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = colored(side=8)
    labels = np.where(np.arange(60) < 12, np.arange(60) % 3, -1)
    write_npz(tmp_path / "m.npz", x_train=main.inputs, y_train=labels, x_test=main.test_inputs, y_test=main.test_labels)
    folder = written(tmp_path, "folder", bytes_like((30, 3, 8, 8)))
    words = ["--method", "temporal", *sets([*SMALL_IMAGES, "training.device=cpu", "training.batch_size=10"])]
    extra = sets([f"data.extra={folder.name}", "data.extra_per_epoch=18"])
    code, out, err = typed(capsys, "train", "m.npz", "--epochs", 2, *extra, "--run", "run", *words)
    assert (code, "90 rows, 30 of them extra, 12 labeled" in out + err) == (0, True)
    run = load_run("run")
    assert run.about["extra"] == {"source": str(folder), "rows": 30}
    assert (run.about["rows"], run.config.data.extra_per_epoch) == (90, 18)
    assert run.ensemble.count.sum() == 2 * 30
    assert typed(capsys, "suggest", "run", "-n", 78)[0] == 0
    with open("suggestions.csv") as file:
        lines = {int(line["row"]): line for line in csv.DictReader(file)}
    assert set(lines) == set(range(12, 90))
    assert lines[60]["file"] == str(folder / "0" / "00.png")
    assert lines[12]["file"] == f"{tmp_path / 'm.npz'}:12"

    (tmp_path / "more.csv").write_text(
        "row,label,file\n" + "".join(f"{row},{row % 3},{lines[row]['file']}\n" for row in (12, 13, 14, 61))
    )
    again = ("train", "m.npz", *extra, "--epochs", 1, "--labels-file", "more.csv", "--run", "b", *words)
    assert typed(capsys, *again)[0] == 0
    assert load_run("b").labels.rows.tolist() == [12, 13, 14, 61]
    assert typed(capsys, "audit", "b")[0] == 0
    assert str(folder / "0" / "02.png") in (tmp_path / "issues.csv").read_text()
    assert typed(capsys, "predict", "b", folder, "-o", "p.csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data.extra=more.npy", "data.extra_per_epoch=100"], "there are only 68 unlabeled rows"),
        (["data.extra=more.npy", "data.extra_per_epoch=many"], "data.extra_per_epoch is 'many'"),
        (["data.extra=small.npy"], "arrays are not resized"),
        (["data.extra=none.npy"], "there is no file"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "m.npz", x_train=colored(side=8).inputs, y_train=np.r_[np.arange(12) % 3, [-1] * 48])
    np.save(tmp_path / "more.npy", bytes_like((20, 3, 8, 8)))
    np.save(tmp_path / "small.npy", bytes_like((20, 3, 4, 4)))
    code, _, err = typed(capsys, "train", "m.npz", *sets(words), "--run", "run")
    assert code == 1
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


# The paper's experiment


@pytest.fixture
def small_official(monkeypatch):
    """The data set is shrunk."""
    monkeypatch.setattr("selfens.data.sources.load", lambda *words, **more: colored())
    monkeypatch.setattr("selfens.experiments.data.OFFICIAL_ROWS", {})


def run_cell(tmp_path, name, source):
    """A cell of the table with real code and small sizes: the data set and the network are shrunk, not what is done."""
    cell = CELLS[f"tiny/{name}"]
    small = cell.config.with_values("data", extra_per_epoch=30, preprocess="channel").with_overrides(
        ["network.name=small", "network.width=4", "schedule.epochs=2", "training.batch_size=10"]
    )
    object.__setattr__(task := Task(cell, 0), "cell", type(cell)(**{**vars(cell), "config": small}))
    store = Store(tmp_path / "results")
    assert run_task(task, "cpu", store, Source(extra=str(source)))
    return store, task


def test_a_cell_with_images_that_stand_in_says_which_and_how_many(tmp_path, small_official):
    np.save(tmp_path / "natural.npy", bytes_like((70, 3, 32, 32)))
    store, task = run_cell(tmp_path, "temporal-aug-random", tmp_path / "natural.npy")
    (record,) = store.read([task.cell])
    assert record.extra == Images(source="natural.npy", rows=70)
    assert str(tmp_path) not in store.record_path(task).read_text()
    assert record.final_error is not None


def test_more_than_the_papers_number_of_random_images_are_refused(tmp_path, monkeypatch, small_official):
    monkeypatch.setattr("selfens.experiments.data.RANDOM_IMAGES", 50)
    np.save(tmp_path / "natural.npy", bytes_like((51, 3, 32, 32)))
    given, cell = Source(extra=str(tmp_path / "natural.npy")), CELLS["tiny/pi-aug-random"]
    with pytest.raises(DataError, match="natural.npy has 51 images; the paper has 50 random ones"):
        given.dataset(Task(cell, 0))
