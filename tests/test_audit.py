"""Audit: scores and rankings of labels, rows to label next, and both from runs."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from support import blobs, config, features, relabeled, sets, write_npz

from selfens import load_run
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.label_files import read_labels
from selfens.errors import ConfigError, DataError, RunError, SelfensError
from selfens.tools import audit, folds, selection
from selfens.training.loop import train

LABELS = np.array([0, 1, -1, 2, 0])
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])


def random_problem(seed, rows=40, classes=4):
    random = np.random.default_rng(seed)
    return random.integers(-1, classes, rows), random.dirichlet(np.ones(classes), rows)


# Scores and ranking


def test_the_most_suspicious_row_comes_first_with_a_label_to_put_instead():
    labels, probabilities = LABELS.copy(), PROBABILITIES.copy()
    ranked = audit.rank(labels, probabilities)
    assert ranked.rows.tolist() == [4, 1, 0, 3]
    assert ranked.labels.tolist() == [0, 1, 0, 2]
    assert ranked.suggested.tolist() == [1, 0, 0, 2]
    assert ranked.scores == pytest.approx([1 / 9, 3 / 9, 7 / 9, 8 / 9])
    assert ranked.disputed.tolist() == [4, 1]
    assert (labels == LABELS).all()  # nothing given is changed
    assert (probabilities == PROBABILITIES).all()


@given(some.integers(0, 10**6))
def test_a_score_compares_the_label_with_the_best_other_class(seed):
    labels, probabilities = random_problem(seed)
    ranked = audit.rank(labels, probabilities)
    assert sorted(ranked.rows) == np.flatnonzero(labels != UNLABELED).tolist()
    assert ranked.disputed.tolist() == ranked.rows[ranked.scores < 0.5].tolist()
    assert (np.diff(ranked.scores) >= 0).all()
    for row, score in zip(ranked.rows, ranked.scores, strict=True):
        others = [p for number, p in enumerate(probabilities[row]) if number != labels[row]]
        assert score == pytest.approx(probabilities[row, labels[row]] / (probabilities[row, labels[row]] + max(others)))


@pytest.mark.parametrize(
    ("labels", "probabilities", "sentence"),
    [
        ([0, 1], PROBABILITIES, r"expected 5 class numbers"),
        ([0.0, 1.0, 0.0, 0.0, 0.0], PROBABILITIES, "expected . class numbers"),
        ([0, 1, 3, 0, 0], PROBABILITIES, "class numbers from 0 to 2, or -1"),
        ([0, 1, -2, 0, 0], PROBABILITIES, "class numbers from 0 to 2, or -1"),
        ([False] * 5, PROBABILITIES, "expected . class numbers"),
        ([0], [[1.0]], "at least two classes"),
        ([0], [0.5, 0.5], r"expected \[rows, classes\]"),
        ([0], [[np.nan, 1]], "NaN"),
        ([0], [[-0.1, 1.1]], "negative"),
    ],
)
def test_what_does_not_fit_is_refused(labels, probabilities, sentence):
    with pytest.raises(DataError, match=sentence):
        audit.rank(labels, probabilities)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: audit.audit_run("runs/mine"),
            ConfigError,
            r"run is 'runs/mine' \(str\); expected a Run, such as load",
        ),
        (lambda: audit.suggest_run("runs/mine", 5), ConfigError, r"run is 'runs/mine' \(str\); expected a Run"),
        (lambda: folds.audit_folds("mine", features()), ConfigError, r"config is 'mine' \(str\); expected a Config"),
    ],
)
def test_an_argument_of_another_kind_is_named(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


# Runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    dataset = features()
    return train(config(epochs=20), tmp_path_factory.mktemp("audit") / "run", dataset=dataset), dataset


def test_a_run_is_audited_by_its_ensemble(trained):
    run, dataset = trained
    ranked = audit.audit_run(run, dataset)
    ensemble = run.ensemble.all().probabilities.numpy()
    labels = np.full(dataset.num_train, -1)
    labels[run.labels.rows] = run.labels.labels
    assert sorted(ranked.rows) == run.labels.rows.tolist()
    assert ranked.scores == pytest.approx(audit.rank(labels, ensemble).scores, abs=1e-6)


def test_a_run_without_an_ensemble_is_audited_by_its_network(tmp_path):
    dataset = features()
    run = train(config("supervised"), tmp_path / "run", dataset=dataset)
    assert run.predict_training_rows(dataset) == pytest.approx(run.predict_proba(dataset.raw[dataset.train_rows]))
    assert len(audit.audit_run(run, dataset).rows) == 12


def test_corrupted_labels_and_held_out_ones_are_audited_as_the_run_had_them(tmp_path):
    dataset = features()
    settings = config("temporal", "labels.validation=0.25", "labels.noise=50")
    run = train(settings, tmp_path / "run", dataset=dataset)
    ranked, known = audit.audit_run(run, dataset), run.labels
    given = dict(zip(ranked.rows.tolist(), ranked.labels.tolist(), strict=True))
    assert [given[row] for row in known.rows.tolist()] == known.labels.tolist()
    assert [given[row] for row in known.validation.tolist()] == known.validation_labels.tolist()
    assert len(given) == len(known.rows) + len(known.validation) > len(known.rows)
    expected = run.predict_proba(dataset.raw[known.validation])  # of the network, which never saw them
    assert run.predict_training_rows(dataset)[known.validation] == pytest.approx(expected, abs=1e-6)


def test_a_run_on_arrays_needs_them_again_and_no_others(trained):
    run, _ = trained
    with pytest.raises(RunError, match="pass it"):
        audit.audit_run(load_run(run.path))
    with pytest.raises(RunError, match="are not what"):
        audit.audit_run(run, features(rows=66))


def test_suggestions_of_a_run_are_rows_it_had_no_label_for(trained, tmp_path):
    run, dataset = trained
    got = audit.suggest_run(run, 9, dataset)
    assert len(got.rows) == 9
    assert not set(got.rows) & set(run.labels.rows)
    full = train(config("supervised", "labels.count=all", epochs=1), tmp_path / "run", dataset=dataset)
    with pytest.raises(DataError, match="every training row of .* has a label"):
        audit.suggest_run(full, 9, dataset)


# Folds


@pytest.fixture
def trained_on(monkeypatch):
    """The dataset of each fold."""
    seen = []

    def remember(settings, path, *, dataset, **more):
        seen.append(dataset)
        return train(settings, path, dataset=dataset, **more)

    monkeypatch.setattr(folds, "train", remember)
    return seen


def test_in_folds_no_row_is_judged_by_a_network_that_saw_it(trained_on):
    every = np.array([0] * 10 + [1] * 7 + [-1] * 3 + [2] * 4)
    dataset = relabeled(features(rows=len(every)), every)
    ranked = folds.audit_folds(config("temporal", "labels.count=all", epochs=1), dataset, folds=5)
    labeled = set(np.flatnonzero(every != UNLABELED))
    number_of = {row.tobytes(): number for number, row in enumerate(dataset.raw[:24])}
    hidden = []
    for fold in trained_on:
        rows = np.array([number_of[row.tobytes()] for row in fold.raw[:]])
        left_out = set(range(24)) - set(rows)  # the dataset's own test rows are left out, too
        assert left_out <= set(np.flatnonzero(every == UNLABELED))
        assert len(left_out) <= 1
        assert (fold.labels == every[rows]).all()
        hidden.append(set(rows[fold.is_test]))
    assert set(ranked.rows) == set.union(*hidden) == labeled
    assert sorted(map(len, hidden)) == [4, 4, 4, 4, 5]  # each row once
    for number in range(3):  # and each class is divided evenly
        counts = [np.sum(every[list(rows)] == number) for rows in hidden]
        assert max(counts) - min(counts) <= 1


def test_folds_find_a_flipped_label():
    x, y = blobs(90)
    x = x * np.float32(0.5) + np.eye(6, dtype=np.float32)[y] * 4  # well apart
    labels = y.copy()
    labels[[3, 40]] = (labels[[3, 40]] + 1) % 3
    settings = config("temporal", "labels.count=all", epochs=25)
    ranked = folds.audit_folds(settings, Dataset.from_arrays(x, labels), folds=3)
    assert set(ranked.rows[:2]) == {3, 40}
    assert set(ranked.disputed) >= {3, 40}


@pytest.mark.parametrize("count", [0, 1, 13])
def test_too_few_or_too_many_folds(count):
    with pytest.raises(DataError, match=f"{count} folds were asked for; expected 2 to 12"):
        folds.audit_folds(config(), features(), count)


def test_the_only_label_of_a_class_is_never_hidden():
    dataset = features()
    labels = np.where((dataset.train_labels == 2) & (np.arange(60) > 5), -1, dataset.train_labels)
    labels[5] = -1
    few = config("temporal", "labels.count=all", epochs=1)
    ranked = folds.audit_folds(few, relabeled(dataset, labels), 3)
    assert set(ranked.rows) == set(np.flatnonzero((labels != -1) & (labels != 2)))
    found = folds.evidence_by_folds(few, relabeled(dataset, labels), 3)
    assert sorted(found.rows) == sorted(ranked.rows)
    assert found.notes[0] == "Never held out, because the class has only one label: '2'."
    alone = np.where(np.isin(np.arange(60), [np.flatnonzero(labels == n)[0] for n in range(3)]), labels, -1)
    with pytest.raises(DataError, match="no class has more than one labeled row"):
        folds.evidence_by_folds(few, relabeled(dataset, alone), 2)
    assert [folds.default_folds(np.array(given)) for given in ([0, 1, -1], [0, 0, 1], [0, 0, 1] * 9)] == [0, 2, 5]


# The command


def disputed(path):
    return [(int(line[0]), line[1], line[2], float(line[3])) for line in read(path)[1:]]


def test_the_command_judges_by_the_evidence_of_the_run_and_trains_only_for_other_folds(typed, tmp_path, monkeypatch):
    write_npz(tmp_path / "my.npz", x_test=None, y_test=None)
    quick = sets(["network.width=8", "training.threads=1", "training.batch_size=20"])
    assert typed("train", "my.npz", "--epochs", 1, "--run", "run", "--no-report", *quick)[0] == 0
    run = load_run(tmp_path / "run")
    expected, genuine = audit.rank(run.evidence.labels, run.evidence.probabilities), folds.train
    monkeypatch.setattr(folds, "train", lambda *given, **more: pytest.fail("trained again"))
    for words in ([], ["--folds", 5]):
        code, out, _ = typed("audit", "run", *words)
        how = "each judged by one of 5 models that were not trained on it"
        assert (code, out.startswith(f"{len(expected.disputed)} of 20 labels are disputed ({how}); ")) == (0, True)
        found = disputed(tmp_path / "issues.csv")
        assert [row for row, *_ in found] == run.evidence.rows[expected.rows].tolist()
        assert [score for *_, score in found] == pytest.approx(expected.scores, abs=1e-4)
    assert "Each judged by one of 5 models that were not trained on it." in (tmp_path / "issues.html").read_text()
    out = typed("audit", "run", "--in-sample")[1]
    assert "(in-sample: the network was trained on these labels, which hides mistakes)" in out
    own = audit.audit_run(run)
    assert [row for row, *_ in disputed(tmp_path / "issues.csv")] == own.rows.tolist()
    monkeypatch.setattr(folds, "train", genuine)
    before = (run.path / "evidence.safetensors").read_bytes()
    assert "one of 2 models that" in typed("audit", "run", "--folds", 2)[1]
    assert (run.path / "evidence.safetensors").read_bytes() == before  # an audit does not change what is known
    for words, sentence in (
        (["--folds", 0], "0 folds were asked for; expected 2 to 20, as many as labels can be hidden."),
        (["--in-sample", "--folds", 3], "--in-sample and --folds were both given; leave one of them out."),
    ):
        assert typed("audit", "run", *words) == (1, "", f"error: {sentence}\n")


def test_if_no_label_is_disputed_in_sample_that_is_no_comfort(typed, tmp_path):
    x, y = blobs()
    x = x * np.float32(0.3) + np.eye(6, dtype=np.float32)[y] * 9
    write_npz(tmp_path / "my.npz", x_train=x, y_train=y, x_test=None, y_test=None)
    quick = sets(["network.width=16", "training.threads=1", "training.batch_size=20"])
    assert typed("train", "my.npz", "--epochs", 30, "--run", "run", "--no-report", "--no-baselines", *quick)[0] == 0
    assert "0 of 60 labels are disputed (in-sample" in typed("audit", "run", "--in-sample")[1]
    page = (tmp_path / "issues.html").read_text()
    assert "The network agrees with every label that it was trained on, which says little about them" in page
    assert "No label is disputed" not in page


def test_labels_that_no_model_can_judge_are_named(typed, tmp_path):
    y = np.where(np.arange(60) < 12, np.arange(60) % 2, -1)
    y[40] = 2
    write_npz(tmp_path / "my.npz", y_train=y, x_test=None, y_test=None, classes=np.array(["ant", "Bee", "cow"]))
    quick = sets(["network.width=8", "training.threads=1", "training.batch_size=20"])
    assert typed("train", "my.npz", "--epochs", 1, "--run", "run", "--no-report", *quick)[0] == 0
    sentence = "Not judged, because the class has only one label: 'cow'."
    assert sentence in typed("audit", "run")[1].splitlines()
    assert len(read(tmp_path / "issues.csv")) == 1 + 12
    assert sentence not in typed("audit", "run", "--in-sample")[1]


# Files


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_an_audit_is_a_csv_that_serves_as_a_labels_file(trained, tmp_path):
    run, dataset = trained
    ranked = audit.audit_run(run, dataset)
    audit.write_audit(tmp_path / "issues.csv", ranked, dataset)
    header, *lines = read(tmp_path / "issues.csv")
    assert header == ["row", "label", "suggested", "score"]
    assert [int(line[0]) for line in lines] == ranked.rows.tolist()
    expected = dict(zip(run.labels.rows.tolist(), run.labels.labels.tolist(), strict=True))
    assert read_labels(tmp_path / "issues.csv", dataset) == expected


def test_suggestions_are_a_csv_with_a_label_to_fill_in(tmp_path):
    got = selection.described(np.array([2]), PROBABILITIES)
    data = Dataset.from_arrays(np.zeros((5, 2)), LABELS, classes=("ä", "b", "c"))
    audit.write_suggestions(tmp_path / "next.csv", got, replace(data, ids=("0.png", "1.png", "2 ü.png", "", "")))
    header, line = read(tmp_path / "next.csv")
    assert header == ["row", "label", "predicted", "uncertainty", "file"]
    assert (*line[:3], line[4]) == ("2", "", "ä", "2 ü.png")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    data = Dataset.from_arrays(np.zeros((5, 2)), LABELS)
    with pytest.raises(SelfensError, match="could not be written"):
        audit.write_audit(tmp_path / "no" / "x.csv", audit.rank(LABELS, PROBABILITIES), data)


# The property


def test_flipped_labels_of_digits_come_first(tmp_path):
    """One seed; benchmarks/audit.py has the mean of five: results/benchmarks/audit.json."""
    x, truth = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    rows = random.choice(len(truth), len(truth) // 10, replace=False)
    labels = truth.copy()
    labels[rows] = (truth[rows] + random.integers(1, 10, len(rows))) % 10
    dataset = Dataset.from_arrays(x, labels, x[:10], truth[:10])
    wide = ("labels.count=all", "network.width=128", "network.mean_momentum=0.95", "training.batch_size=100")
    run = train(config("temporal", *wide, epochs=30), tmp_path / "run", dataset=dataset)
    ranked = audit.rank(labels, run.predict_training_rows(dataset))
    assert roc_auc_score((labels != truth)[ranked.rows], -ranked.scores) > 0.985
