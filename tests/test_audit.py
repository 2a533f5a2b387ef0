"""Audit: scores and rankings of labels, rows to label next, and both from runs."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from support import blobs, config, features

from selfens import load_run
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.label_files import named_rows
from selfens.errors import ConfigError, DataError, RunError, SelfensError, SelfensWarning
from selfens.tools import audit, folds
from selfens.training.loop import train

LABELS = np.array([0, 1, -1, 2, 0])
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])


def random_problem(seed, rows=40, classes=4):
    random = np.random.default_rng(seed)
    return random.integers(-1, classes, rows), random.dirichlet(np.ones(classes), rows)


# Scores and ranking


def test_a_score_is_the_margin_of_the_label_over_the_best_other_class():
    ranked = audit.rank(LABELS, PROBABILITIES)
    assert dict(zip(ranked.rows, ranked.scores, strict=True)) == pytest.approx({0: 0.5, 1: -0.3, 3: 0.7, 4: -0.7})


def test_the_most_suspicious_row_comes_first_with_a_label_to_put_instead():
    ranked = audit.rank(LABELS, PROBABILITIES)
    assert ranked.rows.tolist() == [4, 1, 0, 3]
    assert ranked.labels.tolist() == [0, 1, 0, 2]
    assert ranked.suggested.tolist() == [1, 0, 0, 2]
    assert (np.diff(ranked.scores) >= 0).all()
    assert ranked.disputed.tolist() == [4, 1]


@given(some.integers(0, 10**6))
def test_scores_against_a_loop(seed):
    labels, probabilities = random_problem(seed)
    ranked = audit.rank(labels, probabilities)
    for row, score in zip(ranked.rows, ranked.scores, strict=True):
        others = [p for number, p in enumerate(probabilities[row]) if number != labels[row]]
        assert score == pytest.approx(probabilities[row, labels[row]] - max(others))


@given(some.integers(0, 10**6))
def test_the_disputed_are_those_below_zero_and_every_labeled_row_is_ranked_once(seed):
    labels, probabilities = random_problem(seed)
    ranked = audit.rank(labels, probabilities)
    assert sorted(ranked.rows) == np.flatnonzero(labels != UNLABELED).tolist()
    assert ranked.disputed.tolist() == ranked.rows[ranked.scores < 0].tolist()


def test_nothing_given_is_changed():
    labels, probabilities = LABELS.copy(), PROBABILITIES.copy()
    audit.rank(labels, probabilities)
    audit.suggest(labels, probabilities, 1)
    assert (labels == LABELS).all()
    assert (probabilities == PROBABILITIES).all()


@pytest.mark.parametrize(
    ("labels", "probabilities", "sentence"),
    [
        ([0, 1], PROBABILITIES, r"for each of 5 rows"),
        ([0.0, 1.0, 0.0, 0.0, 0.0], PROBABILITIES, "expected a class number"),
        ([0, 1, 3, 0, 0], PROBABILITIES, "a class number from 0 to 2, or -1"),
        ([0, 1, -2, 0, 0], PROBABILITIES, "a class number from 0 to 2, or -1"),
        ([0], [[1.0]], "at least two classes"),
        ([0], [0.5, 0.5], r"expected \[rows, classes\]"),
        ([0], [[np.nan, 1]], "NaN"),
        ([0], [[-0.1, 1.1]], "negative"),
    ],
)
def test_what_does_not_fit_is_refused(labels, probabilities, sentence):
    with pytest.raises(DataError, match=sentence):
        audit.rank(labels, probabilities)


# What to label next


def test_suggestions_take_the_classes_in_turn_and_the_least_certain_first():
    certain, unsure, torn = [0.9, 0.1], [0.7, 0.3], [0.55, 0.45]
    probabilities = [torn, unsure, torn, certain, [0.2, 0.8], [0.45, 0.55]]
    got = audit.suggest([0, -1, -1, -1, -1, -1], probabilities, 4)
    assert got.rows.tolist() == [2, 5, 1, 4]
    assert got.predicted.tolist() == [0, 1, 0, 1]
    assert (got.uncertainty > 0).all()
    assert (got.uncertainty < 1).all()


@given(some.integers(0, 10**6), some.integers(1, 60))
def test_suggestions_are_unlabeled_rows_each_once_and_spread(seed, count):
    labels, probabilities = random_problem(seed)
    labels[1::2] = -1
    labeled = labels != -1
    got = audit.suggest(labels, probabilities, count)
    assert len(got.rows) == len(set(got.rows.tolist())) == min(count, int((~labeled).sum()))
    assert not labeled[got.rows].any()
    taken = np.bincount(got.predicted, minlength=4)
    available = np.bincount(probabilities[~labeled].argmax(axis=1), minlength=4)
    exhausted = taken == available
    assert exhausted.all() or taken.max() - taken[~exhausted].min() <= 1


def test_certainty_and_ignorance_are_the_ends_of_the_scale():
    got = audit.suggest([-1, -1], [[1.0, 0.0], [0.5, 0.5]], 2)
    assert sorted(got.uncertainty) == pytest.approx([0, 1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: audit.audit_run("runs/mine"), r"run is 'runs/mine' \(str\); expected a Run, such as load_run"),
        (lambda: audit.suggest_run("runs/mine", 5), r"run is 'runs/mine' \(str\); expected a Run"),
        (lambda: audit.suggest([-1], [[0.5, 0.5]], 2.5), r"count is 2.5 \(float\); expected a whole number"),
        (lambda: folds.audit_folds("runs/mine", features()), r"config is 'runs/mine' \(str\); expected a Config"),
    ],
)
def test_an_argument_of_another_kind_is_named(call, sentence):
    with pytest.raises(ConfigError, match=sentence):
        call()


def test_nothing_left_to_label_is_no_suggestion():
    assert len(audit.suggest(np.zeros(5, int), PROBABILITIES, 3).rows) == 0


@pytest.mark.parametrize(
    ("labels", "count", "sentence"),
    [
        (np.full(5, -1), 0, "at least 1"),
        (np.full(4, -1), 1, "each of 5 rows"),
        (np.full(5, False), 1, "expected a class number"),
    ],
)
def test_impossible_requests_for_suggestions(labels, count, sentence):
    with pytest.raises(DataError, match=sentence):
        audit.suggest(labels, PROBABILITIES, count)


# Runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    dataset = features()
    return train(config(epochs=20), tmp_path_factory.mktemp("audit") / "run", dataset=dataset), dataset


def test_a_run_is_audited_by_its_ensemble(trained):
    run, dataset = trained
    ranked = audit.audit_run(run, dataset)
    assert sorted(ranked.rows) == run.labels.rows.tolist()
    ensemble = run.ensemble.all().probabilities.numpy()
    labels = np.full(dataset.num_rows, -1)
    labels[run.labels.rows] = run.labels.labels
    assert ranked.scores == pytest.approx(audit.rank(labels, ensemble).scores, abs=1e-6)


def test_a_run_without_an_ensemble_is_audited_by_its_network(tmp_path):
    dataset = features()
    run = train(config("supervised"), tmp_path / "run", dataset=dataset)
    assert run.predict_training_rows(dataset) == pytest.approx(run.predict_proba(dataset.inputs))
    assert len(audit.audit_run(run, dataset).rows) == 12


def test_validation_rows_are_audited_by_the_network_that_never_saw_them(tmp_path):
    dataset = features()
    run = train(config("temporal", "data.validation=0.25"), tmp_path / "run", dataset=dataset)
    held_out = run.labels.validation
    assert len(held_out) > 0
    assert set(held_out) <= set(audit.audit_run(run, dataset).rows)
    expected = run.predict_proba(dataset.inputs[held_out])
    assert run.predict_training_rows(dataset)[held_out] == pytest.approx(expected, abs=1e-6)


def test_labels_that_the_run_corrupted_are_the_ones_audited(tmp_path):
    dataset = features()
    run = train(config("temporal", "data.label_noise=50"), tmp_path / "run", dataset=dataset)
    ranked = audit.audit_run(run, dataset)
    order = np.argsort(ranked.rows)
    assert ranked.labels[order].tolist() == run.labels.labels.tolist()


def test_a_run_on_arrays_needs_them_again_and_no_others(trained):
    run, _ = trained
    with pytest.raises(RunError, match="pass the dataset again"):
        audit.audit_run(load_run(run.path))
    with pytest.raises(RunError, match="not what"):
        audit.audit_run(run, features(rows=66))


def test_suggestions_of_a_run_are_rows_it_had_no_label_for(trained):
    run, dataset = trained
    got = audit.suggest_run(run, 9, dataset)
    assert len(got.rows) == 9
    assert not set(got.rows) & set(run.labels.rows)


# Folds


def test_every_class_is_dealt_out_evenly_over_the_folds():
    labels = np.array([0] * 10 + [1] * 7 + [-1] * 3 + [2] * 4)
    numbers = folds._fold_numbers(labels, 5, seed=0)
    assert (numbers == -1).tolist() == (labels == -1).tolist()
    for number in range(3):
        counts = np.bincount(numbers[labels == number], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp(np.bincount(numbers[labels != -1])) <= 1


def test_in_folds_no_row_is_judged_by_a_network_that_saw_its_label(monkeypatch):
    dataset, seen = features(), []

    def remember(settings, path, *, dataset, **more):
        seen.append(dataset.labels)
        return train(settings, path, dataset=dataset, **more)

    monkeypatch.setattr(folds, "train", remember)
    ranked = folds.audit_folds(config(epochs=2), dataset, folds=3)
    assert len(ranked.rows) == 12
    hidden = [set(ranked.rows) - set(np.flatnonzero(labels != -1)) for labels in seen]
    assert len(seen) == 3
    assert set.union(*hidden) == set(ranked.rows)
    assert sum(map(len, hidden)) == 12


def test_folds_find_a_flipped_label():
    x, y = blobs(90)
    x = x * np.float32(0.5) + np.eye(6, dtype=np.float32)[y] * 4  # well apart
    labels = y.copy()
    labels[[3, 40]] = (labels[[3, 40]] + 1) % 3
    ranked = folds.audit_folds(
        config("temporal", "data.labels=none", epochs=25), Dataset.from_arrays(x, labels), folds=3
    )
    assert set(ranked.rows[:2]) == {3, 40}
    assert set(ranked.disputed) >= {3, 40}


@pytest.mark.parametrize(
    ("count", "sentence"), [(1, "expected 2 to 12"), (0, "expected 2 to 12"), (13, "expected 2 to 12")]
)
def test_too_few_folds(count, sentence):
    with pytest.raises(DataError, match=sentence):
        folds.audit_folds(config(), features(), count)


def test_the_only_label_of_a_class_is_never_hidden():
    dataset = features()
    labels = np.where((dataset.labels == 2) & (np.arange(60) > 5), -1, dataset.labels)
    labels[5] = -1
    few = config("temporal", "data.labels=none", epochs=1)
    with pytest.warns(SelfensWarning, match="because the class has only one label: '2'"):
        ranked = folds.audit_folds(few, replace(dataset, labels=labels), 3)
    assert set(ranked.rows) == set(np.flatnonzero((labels != -1) & (labels != 2)))
    found = folds.compare_folds(few, replace(dataset, labels=labels), 3)
    assert found.rows == len(ranked.rows)
    assert found.notes[0] == "Never held out, because the class has only one label: '2'."
    alone = np.where(np.isin(np.arange(60), [np.flatnonzero(labels == n)[0] for n in range(3)]), labels, -1)
    with pytest.raises(DataError, match="no class has more than one labeled row"):
        folds.compare_folds(few, replace(dataset, labels=alone), 2)
    assert [folds.usual_folds(np.array(given)) for given in ([0, 1, -1], [0, 0, 1], [0, 0, 1] * 9)] == [0, 2, 5]


# Files


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_an_audit_is_a_csv_that_serves_as_a_labels_file(trained, tmp_path):
    run, dataset = trained
    ranked = audit.audit_run(run, dataset)
    audit.write_audit(tmp_path / "issues.csv", ranked, run.classes)
    header, *lines = read(tmp_path / "issues.csv")
    assert header == ["row", "label", "suggested", "score"]
    assert [int(line[0]) for line in lines] == ranked.rows.tolist()
    labels = named_rows(tmp_path / "issues.csv", dataset)
    assert [labels[row] for row in run.labels.rows.tolist()] == run.labels.labels.tolist()
    assert len(labels) == len(run.labels.rows)


def test_suggestions_are_a_csv_with_a_label_to_fill_in(tmp_path):
    got = audit.suggest(LABELS, PROBABILITIES, 1)
    data = replace(Dataset.from_arrays(np.zeros((5, 2)), LABELS), row_names=("0.png", "1.png", "2 ü.png", "", ""))
    audit.write_suggestions(tmp_path / "next.csv", got, ("ä", "b", "c"), data)
    header, line = read(tmp_path / "next.csv")
    assert header == ["row", "label", "predicted", "uncertainty", "file"]
    assert line[:3] == ["2", "", "ä"]
    assert line[4] == "2 ü.png"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SelfensError, match="could not be written"):
        audit.write_audit(tmp_path / "no" / "x.csv", audit.rank(LABELS, PROBABILITIES), ("a", "b", "c"))


# The property


def test_flipped_labels_of_digits_come_first(tmp_path):
    """One seed; benchmarks/audit.py has the mean of five: results/benchmarks/audit.json."""
    x, truth = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    rows = random.choice(len(truth), len(truth) // 10, replace=False)
    labels = truth.copy()
    labels[rows] = (truth[rows] + random.integers(1, 10, len(rows))) % 10
    dataset = Dataset.from_arrays(x, labels, x[:10], truth[:10])
    run = train(config("temporal", *AUDITING, epochs=30), tmp_path / "run", dataset=dataset)
    ranked = audit.rank(labels, run.predict_training_rows(dataset))
    assert roc_auc_score((labels != truth)[ranked.rows], -ranked.scores) > 0.985


AUDITING = (
    "data.labels=none",
    "network.width=128",
    "network.mean_momentum=0.95",
    "training.batch_size=100",
    "training.checkpoint_every=100",
)
