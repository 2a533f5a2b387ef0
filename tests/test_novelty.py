"""Novelty: how unlike the training rows a row is, against a naive twin, and what remains of it in files."""

import csv
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from support import blobs, write_npz

from selfens import SelfEnsemblingClassifier, load_run
from selfens.runs.novelty import ANGLES_FROM, FILE, LARGEST_IMAGE, NEIGHBOR, REFERENCE, Novelty


def naive_vectors(inputs):
    """Images averaged down to 16 pixels a side, by hand; many features become unit vectors."""
    rows = np.asarray(inputs, dtype=np.float64)
    if rows.ndim == 4 and max(rows.shape[2:]) > LARGEST_IMAGE:
        step = rows.shape[2] // LARGEST_IMAGE
        blocks = rows.reshape(*rows.shape[:2], LARGEST_IMAGE, step, LARGEST_IMAGE, step)
        rows = blocks.mean(axis=(3, 5))
    rows = rows.reshape(len(rows), -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if rows.shape[1] > ANGLES_FROM else rows


def naive_distance(row, others):
    distances = sorted(float(np.sqrt(((row - other) ** 2).sum())) for other in others)
    return distances[min(NEIGHBOR, len(distances)) - 1]


def naive_scores(training, inputs):
    """For each row: the share of the training rows that are nearer to their fifth nearest other."""
    known, new = naive_vectors(training), naive_vectors(inputs)
    among = [naive_distance(row, np.delete(known, number, axis=0)) for number, row in enumerate(known)]
    return np.array([np.mean([distance < naive_distance(row, known) for distance in among]) for row in new])


def standardized(training, inputs):
    """Scaled as the model's inputs are: a column of large numbers must not decide alone."""
    mean, deviation = training.mean(axis=0), training.std(axis=0)
    return (training - mean) / deviation, (inputs - mean) / deviation


def made(kind, rows, seed):
    random = np.random.default_rng(seed)
    return {
        "few features": lambda: random.normal(size=(rows, 5)).astype(np.float32),
        "one feature": lambda: random.normal(size=(rows, 1)).astype(np.float32),
        "many features": lambda: random.normal(size=(rows, 200)).astype(np.float32),
        "large numbers": lambda: (1e7 * random.normal(size=(rows, 5))).astype(np.float32),
        "small numbers": lambda: (1e-9 * random.normal(size=(rows, 5))).astype(np.float32),
        "years": lambda: (2000 + random.normal(size=(rows, 3))).astype(np.float32),
        "byte images": lambda: random.integers(0, 256, (rows, 3, 8, 8), dtype=np.uint8),
        "tiny byte images": lambda: random.integers(0, 256, (rows, 1, 4, 4), dtype=np.uint8),
        "float images": lambda: random.random((rows, 1, 12, 12), dtype=np.float32),
        "large byte images": lambda: random.integers(0, 256, (rows, 3, 32, 32), dtype=np.uint8),
        "large float images": lambda: random.random((rows, 1, 48, 48), dtype=np.float32),
    }[kind]()


KINDS = (
    "few features",
    "one feature",
    "many features",
    "large numbers",
    "small numbers",
    "years",
    "byte images",
    "tiny byte images",
    "float images",
    "large byte images",
    "large float images",
)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_a_naive_twin(kind):
    training, inputs = made(kind, 60, 0), made(kind, 40, 1)
    inputs = np.concatenate([inputs, inputs[:5] // 2 if inputs.dtype == np.uint8 else 3 * inputs[:5]])
    found, expected = Novelty.fit(training).score(inputs), naive_scores(training, inputs)
    assert found.dtype == np.float64
    # Distances are rounded, so a row may come out just before or after a training row.
    assert np.abs(found - expected).max() <= 2 / 60 + 1e-9
    assert np.isclose(found, expected, atol=1e-9).mean() >= 0.8
    assert len(np.unique(expected)) > 8


@pytest.mark.parametrize("rows", [2, 3, 5, 6, 7])
def test_few_training_rows_are_enough(rows):
    training, inputs = made("few features", rows, 0), made("few features", 30, 1)
    assert Novelty.fit(training).score(inputs) == pytest.approx(naive_scores(training, inputs), abs=1e-6)


def test_scores_range_from_zero_to_one_whatever_comes():
    training = made("few features", 50, 0)
    novelty = Novelty.fit(training)
    far, near = np.full((1, 5), 1e4, np.float32), training.mean(axis=0, keepdims=True)
    assert novelty.score(far).tolist() == [1.0]
    assert novelty.score(near)[0] < 0.5
    assert novelty.score(training).max() <= 1
    assert novelty.score(training[:0]).shape == (0,)


def test_rows_are_scored_one_by_one_as_together():
    training, inputs = made("byte images", 50, 0), made("byte images", 1100, 1)
    novelty = Novelty.fit(training)
    together = novelty.score(inputs)
    singly = np.array([novelty.score(inputs[row : row + 1])[0] for row in range(990, 1010)])
    assert np.abs(together[990:1010] - singly).max() <= 1 / 50 + 1e-9
    assert (novelty.score(inputs) == together).all()


def test_of_very_many_rows_an_even_sample_is_kept():
    training = np.arange(3 * REFERENCE, dtype=np.float32)[:, None]
    novelty = Novelty.fit(training)
    assert novelty.reference.shape == (REFERENCE, 1)
    kept = novelty.reference[:, 0].tolist()
    assert kept == np.linspace(0, len(training) - 1, REFERENCE).astype(int).tolist()


def test_another_kind_of_rows_is_told_from_the_training_rows():
    random = np.random.default_rng(0)

    def striped(rows, across):
        waves = np.sin(np.arange(16) * random.uniform(0.3, 0.6, (rows, 1)) + random.uniform(0, 6, (rows, 1)))
        pictures = np.repeat(waves[:, None, :, None], 16, axis=3)
        return ((pictures if across else pictures.swapaxes(2, 3)) * 100 + 128).astype(np.uint8)

    novelty = Novelty.fit(striped(200, across=True))
    scores = np.concatenate([novelty.score(striped(100, across=True)), novelty.score(striped(100, across=False))])
    assert roc_auc_score(np.arange(200) >= 100, scores) > 0.95
    assert np.quantile(scores[:100], 0.5) == pytest.approx(0.5, abs=0.2)  # rows of the same kind are like training rows


# Files


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_scores_the_same(tmp_path, kind):
    training, inputs = made(kind, 60, 0), made(kind, 40, 1)
    novelty = Novelty.fit(training)
    novelty.save(tmp_path)
    first = (tmp_path / FILE).read_bytes()
    loaded = Novelty.load(tmp_path, training.shape[1:])
    assert (loaded.score(inputs) == novelty.score(inputs)).all()
    novelty.save(tmp_path)
    assert (tmp_path / FILE).read_bytes() == first


def of_another_size(path):
    save_file({"reference": torch.zeros(5, 7)}, path)


def of_integers(path):
    save_file({"reference": torch.zeros(5, 6, dtype=torch.int32)}, path)


def of_one_row(path):
    save_file({"reference": torch.zeros(1, 6)}, path)


def of_three_dimensions(path):
    save_file({"reference": torch.zeros(5, 6, 1)}, path)


def of_nan(path):
    save_file({"reference": torch.full((5, 6), torch.nan)}, path)


def under_another_name(path):
    save_file({"other": torch.zeros(5, 6)}, path)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path):
    path.write_bytes(b"")


def of_text(path):
    path.write_text("hello")


def removed(path):
    path.unlink()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = [
    of_another_size,
    of_integers,
    of_one_row,
    of_three_dimensions,
    of_nan,
    under_another_name,
    cut_short,
    emptied,
    of_text,
    removed,
    a_pipe,
    a_folder,
]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    from selfens.cli import main

    folder = tmp_path_factory.mktemp("novelty")
    npz = write_npz(folder / "data.npz")
    with pytest.raises(SystemExit) as end:
        main(["train", str(npz), "--run", str(folder / "run"), "--epochs", "2", "--set", "network.width=8", "--quiet"])
    assert not end.value.code
    return folder


@pytest.fixture
def trained(trained_once, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained_once / "run", tmp_path / "run")


def predicted(typed, run, inputs, *words):
    np.savez("new.npz", x=inputs)
    code, _, complained = typed("predict", run, "new.npz", "-o", "out.csv", *words)
    assert (code, complained) == (0, "")
    with open("out.csv", newline="") as file:
        return [*csv.DictReader(file)]


def test_the_command_keeps_it_in_the_run_and_predict_writes_it(typed, trained):
    x, _ = blobs()
    new = np.concatenate([blobs(20, seed=5)[0], x[:5] + 50]).astype(np.float32)
    lines = predicted(typed, trained, new)
    found = np.array([float(line["novelty"]) for line in lines])
    assert found == pytest.approx(naive_scores(*standardized(x, new)), abs=1.5 / 60)
    assert found[-5:].tolist() == [1.0] * 5
    run = load_run(trained)
    assert found == pytest.approx(run.novelty.score(new), abs=1e-6)
    assert list(lines[0])[:5] == ["row", "class", "probability", "runner_up", "novelty"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_usable_file_predictions_have_no_novelty(typed, trained, damage):
    damage(trained / FILE)
    assert load_run(trained).novelty is None
    lines = predicted(typed, trained, blobs(7)[0], "--all-classes")
    assert "novelty" not in lines[0]
    assert (len(lines), "runner_up" in lines[0]) == (7, True)


def test_a_report_is_written_without_a_usable_file_too(typed, trained):
    of_another_size(trained / FILE)
    code, _, complained = typed("report", trained, "-o", "page.html")
    assert (code, complained) == (0, "")
    assert "Least like the others" not in Path("page.html").read_text()


def test_the_report_shows_the_training_rows_that_are_least_like_the_others(typed, trained):
    assert typed("report", trained, "-o", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert "Least like the others" in page
    run = load_run(trained)
    farthest = int(np.argmax(run.novelty.score(run.data().inputs)))
    assert f"row {farthest}" in page[page.index("Least like the others") :]


def test_suggestions_name_the_novelty_of_each_row(typed, trained):
    assert typed("suggest", trained, "-n", 10)[0] == 0
    run = load_run(trained)
    scores = run.novelty.score(run.data().inputs)
    with open("suggestions.csv", newline="") as file:
        lines = [*csv.DictReader(file)]
    assert [float(line["novelty"]) for line in lines] == pytest.approx(
        [scores[int(line["row"])] for line in lines], abs=1e-6
    )


# The classifier


def test_the_classifier_scores_rows_too():
    x, y = blobs(60)
    y = np.where(np.arange(60) < 20, y, -1)
    model = SelfEnsemblingClassifier(epochs=1, random_state=0, device="cpu").fit(x, y)
    new = np.concatenate([blobs(20, seed=5)[0], x[:3] + 50]).astype(np.float32)
    found = model.novelty(new)
    assert found == pytest.approx(naive_scores(*standardized(x, new)), abs=1.5 / 60)
    assert found[-3:].tolist() == [1.0] * 3
    assert (pickle.loads(pickle.dumps(model)).novelty(new) == found).all()
    with pytest.raises(ValueError, match="features"):
        model.novelty(new[:, :3])
