"""What another model says about the training rows: reading it, checking it, and how methods begin with it."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import prior as twin
from support import (
    CLASSES,
    FEATURES,
    ROWS,
    At,
    blobs,
    config,
    crash,
    crashed,
    differences,
    features,
    left_behind,
    training_rows,
    write_npz,
)
from torch import nn

from selfens import Dataset, SelfEnsemblingClassifier, load_run, resume, train
from selfens.core.batch import Batch
from selfens.core.prior import Prior
from selfens.core.targets import EnsembleTargets
from selfens.data.journal import without
from selfens.data.prior import with_prior
from selfens.errors import ConfigError, DataError
from selfens.methods import METHODS
from selfens.tools.folds import evidence_by_folds

USING = [name for name in METHODS if METHODS.find(name).uses_prior]
NETWORK = {"committee": ["network.name=committee"]}


def guesses(known=ROWS, wrong=0.1, seed=0):
    """Probabilities for the first rows, some of them for a wrong class."""
    random, truth = np.random.default_rng(seed), features().train_labels
    classes = np.where(random.random(ROWS) < wrong, (truth + 1) % CLASSES, truth)
    probabilities = np.full((ROWS, CLASSES), 0.1) + 0.7 * np.eye(CLASSES)[classes]
    probabilities[known:] = np.nan
    return probabilities


def settings(method, *overrides, **options):
    return config(method, *NETWORK.get(method, []), *overrides, **options)


# What it does


def test_every_method_that_keeps_targets_can_begin_with_a_prior():
    assert {"temporal", "committee", "temporal-teacher"} == {*USING}


def test_targets_of_an_ensemble_go_from_the_prior_to_its_own_as_in_the_twin():
    random = np.random.default_rng(0)
    given = random.dirichlet(np.ones(CLASSES), size=4).astype(np.float32)
    given[2:] = np.nan
    prior = Prior(torch.from_numpy(given))
    ensemble = EnsembleTargets(4, CLASSES, decay=0.6, prior=prior)
    latest = random.dirichlet(np.ones(CLASSES), size=2).astype(np.float32)
    ensemble.write(torch.tensor([1, 2]), torch.from_numpy(latest))
    ensemble.commit()
    own = {1: latest[0], 2: latest[1]}
    for progress in (0, 1, 2.5, 3, 8):
        prior.share.fill_(twin.share(progress, epochs=10, part=0.3))
        found = ensemble.get(torch.arange(4))
        for row in range(4):
            known = None if row >= 2 else given[row]
            expected = twin.target(known, own.get(row), twin.share(progress, epochs=10, part=0.3))
            np.testing.assert_allclose(found.probabilities[row], np.zeros(CLASSES) if row == 3 else expected, atol=1e-6)
    assert found.known.tolist() == [True, True, True, False]
    assert not ensemble.variance(torch.arange(4)).any()


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_a_temporal_teacher_blends_it_with_what_the_teacher_predicts_now(memory):
    torch.manual_seed(0)
    rows = training_rows(torch.randn(ROWS, FEATURES), torch.arange(ROWS) % CLASSES)
    prior = Prior(torch.from_numpy(guesses(known=6)).float())
    options = METHODS.options("temporal-teacher", memory=memory, alignment="none", temperature=1.0)
    method, network = METHODS.build(options), nn.Linear(FEATURES, CLASSES)
    method.setup(network, rows._replace(prior=prior))
    at = torch.arange(8)
    views, labels = (torch.randn(8, FEATURES), torch.randn(8, FEATURES)), torch.tensor([0, 1, 2, 0, -1, -1, -1, -1])
    taught = method.teacher.probabilities(views[0])
    logits = network(views[1]).log_softmax(dim=1)
    for share in (1.0, 0.4, 0.0):
        prior.share.fill_(share)
        batch = Batch(at, views, labels, labels >= 0, num_labeled=4)
        losses = method.losses(network, batch, method.targets(at[4:]), torch.tensor(1.0))
        targets = [twin.target(guesses()[row] if row < 6 else None, taught[row].tolist(), share) for row in range(4, 8)]
        expected = -np.mean([np.dot(target, logits[row].tolist()) for row, target in enumerate(targets, 4)])
        np.testing.assert_allclose(losses.parts["unsupervised"].item(), expected, rtol=1e-5)


@pytest.mark.parametrize("method", USING)
def test_a_run_goes_from_a_prior_to_its_own_predictions_and_says_how_often_it_is_wrong(method, tmp_path):
    known = 50
    run = train(settings(method, epochs=10), tmp_path / "run", dataset=features(), prior=guesses(known))
    assert [record["prior"] for record in run.history] == pytest.approx([twin.share(t, 10, 0.3) for t in range(10)])
    labeled = run.labels.rows[run.labels.rows < known]
    wrong = (guesses()[labeled].argmax(axis=1) != features().train_labels[labeled]).sum()
    found = re.search(r"prior for 50 of 60 rows, wrong on (\d+) of (\d+) labeled ones", run.info.note)
    assert [int(number) for number in found.groups()] == [wrong, len(labeled)]
    assert "prior" not in train(settings(method), tmp_path / "without", dataset=features()).history[0]


@pytest.mark.parametrize("method", USING)
def test_what_only_the_prior_knows_is_learned(method, tmp_path):
    """Labels of two classes are swapped by it, in words that the data cannot say."""
    swapped = np.eye(CLASSES)[[0, 2, 1]][features().train_labels]
    options = ("labels.count=3", "schedule.prior=1", "method.weight_max=30")
    run = train(settings(method, *options, epochs=30), tmp_path / "run", dataset=features(), prior=swapped)
    found = run.predict(features().raw[features().train_rows]).astype(int)
    unlabeled = np.setdiff1d(np.arange(ROWS), run.labels.rows)
    assert (found == swapped.argmax(axis=1))[unlabeled].mean() > 0.6


# A run keeps it


@pytest.mark.parametrize("method", USING)
def test_stopped_and_resumed_the_bits_are_the_same(method, tmp_path):
    given = settings(method, "training.checkpoint_every=1", epochs=4)
    train(given, tmp_path / "whole", dataset=features(), prior=guesses(40))
    with crashed():
        train(given, tmp_path / "stopped", dataset=features(), prior=guesses(40), progress=At(1, 2, crash))
    resume(tmp_path / "stopped", dataset=features())
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "stopped")) == []


def test_a_run_is_used_where_the_file_of_the_prior_is_gone(typed):
    np.savez("prior.npz", prior=guesses(40))
    words = ("--epochs", "2", "--quiet", "--no-report", "--run", "run")
    assert typed("train", write_npz(Path("data.npz")), "--prior", "prior.npz", *words)[0] == 0
    Path("prior.npz").unlink()
    assert typed("audit", "run")[0] == 0
    run = load_run("run")
    np.testing.assert_allclose(run.data().dataset.train_prior, guesses(40), atol=1e-6)
    (Path("run") / "prior.safetensors").unlink()
    code, _, err = typed("audit", "run")
    assert (code, "are not what run was trained on" in err, len(err.splitlines())) == (1, True, 1)


def test_folds_begin_with_it_too():
    dataset = with_prior(features(test_rows=0), guesses())
    given = settings("committee", "schedule.prior=1", epochs=2)
    with_it, without = (evidence_by_folds(given, each, 2) for each in (dataset, dataset.with_prior(None)))
    assert (with_it.probabilities != without.probabilities).any()


def test_rows_that_are_left_out_take_theirs_with_them():
    data = with_prior(features(), guesses())
    np.testing.assert_array_equal(without(data, [0, 2]).train_prior, np.delete(data.train_prior, [0, 2], axis=0))


def test_a_classifier_takes_one():
    x, y = blobs()
    y = np.array(["a", "b", "c"])[y]
    y[12:] = ""
    model = SelfEnsemblingClassifier(epochs=2, random_state=0, device="cpu")
    without = model.fit(x, y).label_distributions_
    assert (model.fit(x, y, prior=guesses()).label_distributions_ != without).any()
    names = np.where(np.isnan(guesses(30)[:, 0]), "", np.array(["a", "b", "c"])[guesses().argmax(axis=1)])
    assert (model.fit(x, y, prior=names).label_distributions_ != without).any()
    with pytest.raises(DataError, match="the prior is 60 x 2; expected 60 x 3, a line for each training row"):
        model.fit(x, y, prior=guesses()[:, :2])


# Reading it


def write(path, header, *lines):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


def named(rows=ROWS):
    """Rows with ids and classes with names, the last ten for testing."""
    x, y = blobs(rows + 10)
    labels = np.array(["a", "b", "c"])[y]
    about = {"ids": tuple(f"id{row}" for row in range(rows + 10)), "id_header": "Key"}
    return Dataset.from_labels(x, [*labels], np.arange(rows + 10) >= rows, **about)


CSV = {
    "numbers of rows": (["row", "a", "b", "c"], [1, 0.2, 0.3, 0.5], [0, "", "", ""]),
    "ids": (["key", "c", "a", "b"], ["id1", 0.5, 0.2, 0.3]),
    "what predict writes": (
        ["row", "class", "probability", *(f"probability of {name}" for name in "abc")],
        [1, "c", 0.5, 0.2, 0.3, 0.5],
    ),
}


@pytest.mark.parametrize("table", CSV.values(), ids=CSV)
def test_a_csv_has_a_column_for_each_class(table, tmp_path):
    found = with_prior(named(), write(tmp_path / "prior.csv", *table)).train_prior
    np.testing.assert_allclose(found[1], [0.2, 0.3, 0.5])
    assert np.isnan(np.delete(found, 1, axis=0)).all()


def test_labels_of_a_csv_are_certain(tmp_path):
    path = write(tmp_path / "prior.csv", ["row", "label"], [3, "c"], [5, ""], [4, "B"])
    found = with_prior(named(), path).train_prior
    assert found[[3, 4]].tolist() == [[0, 0, 1], [0, 1, 0]]
    assert np.isfinite(found).all(axis=1).sum() == 2


def test_rounded_probabilities_are_made_to_sum_to_one(tmp_path):
    path = write(tmp_path / "prior.csv", ["row", "a", "b", "c"], [0, 0.33, 0.33, 0.33], [1, 1, 0, 0])
    assert with_prior(named(), path).train_prior[0].sum() == pytest.approx(1)


def test_predictions_of_a_run_are_a_prior_of_another(typed):
    data = write_npz(Path("data.npz"))
    quickly = ("--epochs", "2", "--quiet", "--no-report")
    assert typed("train", data, *quickly, "--run", "first")[0] == 0
    assert typed("predict", "first", "--training-rows", "-o", "prior.csv")[0] == 0
    code, _, err = typed("train", data, *quickly, "--run", "second", "--prior", "prior.csv")
    assert code == 0, err
    assert "prior for 60 of 60 rows, wrong on" in load_run("second").info.note


# Bad priors

BAD_CSV = {
    "has no column 'c'; expected one for each class": (["row", "a", "b"], [0, 0.5, 0.5]),
    "has the column 'probability of d'; the classes are": (
        ["row", *(f"probability of {name}" for name in "abcd")],
        [0, 1, 0, 0, 0],
    ),
    "line 2 of prior.csv names '60'; expected the number of a training row": (["row", "label"], [60, "a"]),
    "line 2 of prior.csv names 'id66'; expected an id of a training row": (["Key", "label"], ["id66", "a"]),
    "line 3 of prior.csv names '4' twice": (["row", "label"], [4, "a"], [4, "b"]),
    "has the label 'd'; expected one of": (["row", "label"], [4, "d"]),
    "gives row 1 the numbers 0.5, 0.5, 0.5; expected probabilities": (["row", "a", "b", "c"], [1, 0.5, 0.5, 0.5]),
    "gives row 1 the numbers 1.5, -0.5, 0; expected": (["row", "a", "b", "c"], [1, 1.5, -0.5, 0]),
    "gives row 1 the numbers 0.5, 0.5, nan; expected": (["row", "a", "b", "c"], [1, 0.5, 0.5, ""]),
    "has 'high' among its probabilities": (["row", "a", "b", "c"], [1, "high", 0, 0]),
    "says nothing about any training row": (["row", "label"], [1, ""]),
    "says the same about all of its rows": (["row", "label"], [1, "a"], [2, "a"]),
    "has no column row": (["name", "label"], ["x", "a"]),
}


@pytest.mark.parametrize("words", BAD_CSV)
def test_a_csv_that_is_no_prior_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=re.escape(words)) as error:
        with_prior(named(), write("prior.csv", *BAD_CSV[words]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (guesses()[:30], "is 30 x 3; expected 60 x 3"),
        (["a"] * 30, "the labels of a prior are 30 for 60 rows"),
        (["d"] * 60, "row 0 has the label 'd'; expected one of"),
        (np.full((60, 3), "a"), "is of type <U1; expected probabilities"),
        (np.full((60, 3), np.inf), "gives row 0 the numbers inf, inf, inf"),
        (np.full((60, 3), 1 / 3), "says the same about all"),
        (3, "is a single value"),
    ],
)
def test_arrays_that_are_no_prior_are_refused(given, words, tmp_path):
    with pytest.raises(DataError, match=re.escape(words)):
        train(settings("committee"), tmp_path / "run", dataset=replace(named(), source=None), prior=given)
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_prior_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=guesses(), b=guesses())
    (tmp_path / "text.npz").write_text("text")
    for name, words in {
        "two.npz": "holds the arrays a, b; expected one of them to be called prior",
        "text.npz": "cannot be read as an .npz file",
        "none.csv": "cannot be read as a CSV",
    }.items():
        with pytest.raises(DataError, match=words):
            with_prior(named(), tmp_path / name)


def test_a_method_without_targets_refuses_a_prior(tmp_path):
    with pytest.raises(
        ConfigError, match="the method 'pi' keeps no targets that a prior could begin; choose committee"
    ):
        train(settings("pi"), tmp_path / "run", dataset=features(), prior=guesses())
