"""Evidence: predictions for rows that the model had not seen, what follows from them, and how they are saved."""

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from support import (
    ROWS,
    At,
    blobs,
    child,
    config,
    contents,
    crash,
    crashed,
    differences,
    features,
    finish,
    interrupt,
    left_behind,
    run_cli,
    write_npz,
)

from selfens import load_run
from selfens.auto import config_for_dataset
from selfens.data.dataset import UNLABELED, Dataset
from selfens.errors import ConfigError, DataError
from selfens.files.scratch import scratch_folder
from selfens.runs.evidence import FEWEST, FILE, FINAL, SPREAD, TRUST, Evidence
from selfens.runs.statistics import answered, fit_temperature, tempered
from selfens.tools import measure
from selfens.tools.folds import default_folds, evidence_by_folds, hurried
from selfens.training.loop import train

ARRAYS = ("rows", "labels", "probabilities", "suggested", "counted", "pool")


def made(rows=60, classes=3, seed=0, suggested=0, ease=1.5, **more):
    """Evidence of a model that is right in most cases, and more certain than it should be."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, rows)
    logits = random.normal(size=(rows, classes)) * 2
    logits[np.arange(rows), labels] += ease
    probabilities = torch.tensor(2 * logits).softmax(dim=1).numpy().astype(np.float32)
    others = {"one": random.integers(0, classes, rows), "another": random.integers(0, classes, rows)}
    about = {"rows": random.permutation(500)[:rows], "labels": labels, "probabilities": probabilities, "others": others}
    return Evidence.of(**about, suggested=np.arange(rows) < suggested, folds=5, **more)


def same(one, other):
    """Return True if two pieces of evidence are equal to the bit."""
    fields = [(getattr(each, name) for each in (one, other)) for name in ARRAYS]
    arrays = all(a.dtype == b.dtype and a.shape == b.shape and (a == b).all() for a, b in fields)
    others = list(one.others) == list(other.others)
    others = others and all((one.others[name] == other.others[name]).all() for name in one.others)
    return arrays and others and (one.folds, one.notes) == (other.folds, other.notes)


# What follows from it


def test_the_error_and_its_interval_are_those_of_the_counted_rows():
    evidence = made(suggested=15)
    wrong = [
        int(np.argmax(row)) != label
        for row, label, counted in zip(evidence.probabilities, evidence.labels, evidence.counted, strict=True)
        if counted
    ]
    assert evidence.wrong.tolist() == wrong
    assert evidence.error == pytest.approx(100 * sum(wrong) / 45)
    for folds, rows in ((0, 45), (5, 45 / SPREAD)):
        low, high = wilson(sum(wrong) / 45, rows)
        assert replace(evidence, folds=folds).error_interval == pytest.approx((100 * low, 100 * high))
    exact = stats.binomtest(sum(wrong), 45).proportion_ci(confidence_level=0.9, method="wilson")
    assert wilson(sum(wrong) / 45, 45) == pytest.approx((exact.low, exact.high))


def wilson(share, rows):
    z = stats.norm.ppf(0.95)
    middle, half = share + z**2 / (2 * rows), z * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return (middle - half) / (1 + z**2 / rows), (middle + half) / (1 + z**2 / rows)


@pytest.mark.parametrize("suggested", [0, 20, 60])
def test_the_error_is_drawn_toward_what_the_calibrated_probabilities_of_unlabeled_rows_say(suggested):
    pool = np.random.default_rng(2).dirichlet([0.2, 0.2, 0.2], 500).astype(np.float32)
    evidence = made(suggested=suggested, pool=pool)
    assert evidence.counted.all()
    expected, seen = (
        np.mean([1 - max(row) for row in tempered(each, evidence.temperature).tolist()])
        for each in (pool, evidence.probabilities)
    )
    error, random = np.mean(evidence.probabilities.argmax(axis=1) != evidence.labels), (60 - suggested) or 60
    share = random / (random + TRUST)
    truth = expected + share * (error - seen)
    assert evidence.error == pytest.approx(100 * truth)
    assert evidence.error_interval == pytest.approx([100 * end for end in wilson(truth, random / SPREAD)])
    other = ~evidence.wrong
    assert evidence.corrected(other)[0] == pytest.approx(np.clip(100 * other.mean() + 100 * (truth - error), 0, 100))


@pytest.mark.parametrize(
    ("rows", "suggested", "counted", "notes"),
    [
        (60, 0, 60, ()),
        (60, 1, 59, ("Not measured on 1 label of suggested rows, which are harder than others.",)),
        (1060, 1000, 60, ("Not measured on 1,000 labels of suggested rows, which are harder than others.",)),
        (
            60,
            60 - FEWEST,
            FEWEST,
            (f"Not measured on {60 - FEWEST} labels of suggested rows, which are harder than others.",),
        ),
        (10, 0, 10, ()),
    ],
)
def test_rows_that_a_model_chose_are_not_counted(rows, suggested, counted, notes):
    arrays = {
        "rows": np.arange(rows),
        "labels": np.zeros(rows, int),
        "probabilities": np.full((rows, 2), 0.5, np.float32),
    }
    chosen = np.arange(rows) < suggested
    found = Evidence.of(**arrays, suggested=chosen)
    assert (found.counted.sum(), found.notes) == (counted, notes)
    assert (found.counted == ~chosen).all()
    assert len(found.wrong) == counted


def test_with_too_few_other_rows_all_are_counted_and_a_note_says_what_to_do():
    evidence = made(rows=60, suggested=60 - FEWEST + 1, notes=("something else.",))
    assert evidence.counted.all()
    assert evidence.notes == (
        f"Measured also on {60 - FEWEST + 1} labels of suggested rows, which are harder than others, because only "
        f"{FEWEST - 1} labels are of other rows: the error is too large; label some random rows to measure it.",
        "something else.",
    )


def test_the_temperature_is_fitted_to_the_counted_rows_only():
    evidence = made(suggested=20)
    counted = evidence.counted
    assert evidence.temperature == fit_temperature(evidence.probabilities[counted], evidence.labels[counted])
    assert evidence.temperature > 1.1  # the logits were doubled
    assert evidence.cautious_temperature > evidence.temperature
    nonsense = evidence.labels.copy()
    nonsense[~counted] = (nonsense[~counted] + 1) % 3
    assert replace(evidence, labels=nonsense).temperature == evidence.temperature
    assert evidence.confidence == pytest.approx(
        tempered(evidence.probabilities[counted], evidence.temperature).max(axis=1)
    )


def test_rows_are_answered_by_the_lowest_confidence_that_keeps_the_expected_error():
    evidence = made(rows=400)
    assert evidence.model_temperature == FINAL * evidence.temperature
    assert replace(evidence, folds=0).model_temperature == evidence.temperature
    known = np.sort(tempered(evidence.probabilities, evidence.cautious_temperature).max(axis=1))[::-1]
    new = np.random.default_rng(1).dirichlet([0.3, 0.3, 0.3], 200)
    confidence = tempered(new, FINAL * evidence.cautious_temperature).max(axis=1)
    for max_error in (0.5, 2, 5, 10, 40):
        kept = [count for count in range(1, 401) if 100 * np.mean(1 - known[:count]) <= max_error]
        least = 0 if len(kept) == 400 else known[kept[-1] - 1] if kept else 2
        assert evidence.is_sure(new, max_error).tolist() == (confidence >= least).tolist()
    assert not evidence.is_sure(new, 1e-9).any()
    assert evidence.is_sure(new[:0], 5).shape == (0,)


def test_what_is_answered_is_wrong_about_as_often_as_allowed():
    evidence, later = made(rows=450, ease=4), made(rows=490, ease=4, seed=1)
    wrong = later.probabilities.argmax(axis=1) != later.labels
    assert 100 * wrong.mean() > 10
    for max_error in (2, 4, 6):
        sure = evidence.is_sure(later.probabilities, max_error)
        assert sure.sum() > 100
        assert 100 * wrong[sure].mean() <= max_error + 3
    shares = [evidence.is_sure(later.probabilities, each).mean() for each in (1, 3, 6, 12, 99)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.95


# Files


def test_it_is_kept_and_read_again_to_the_bit(tmp_path):
    for evidence in (made(suggested=9, notes=("größer", "two")), replace(made(), others={}), replace(made(), folds=0)):
        evidence.save(tmp_path, "this run")
        content = (tmp_path / FILE).read_bytes()
        assert same(Evidence.load(tmp_path, "this run", 3), evidence)
        evidence.save(tmp_path, "this run")
        assert (tmp_path / FILE).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_evidence_of_another_run_or_of_other_classes_counts_as_none(tmp_path):
    made().save(tmp_path, "this run")
    assert Evidence.load(tmp_path, "another run", 3) is None
    assert Evidence.load(tmp_path, "this run", 4) is None
    assert Evidence.load(tmp_path / "elsewhere", "this run", 3) is None


def about(**values):
    known = {"run": "this run", "folds": 5, "notes": [], "others": ["one", "another"]} | values
    return json.dumps({name: value for name, value in known.items() if value is not ...})


TENSORS = {
    "rows negative": {"rows": -torch.ones(60, dtype=torch.int64)},
    "rows of floats": {"rows": torch.zeros(60)},
    "too few rows": {"rows": torch.zeros(59, dtype=torch.int64)},
    "rows of two dimensions": {"rows": torch.zeros(60, 1, dtype=torch.int64)},
    "rows of none": {"rows": torch.tensor(3)},
    "no rows": {name: torch.zeros(0, dtype=torch.int64) for name in ("rows", "labels")}
    | {
        "probabilities": torch.zeros(0, 3),
        "others": torch.zeros(2, 0, dtype=torch.int64),
        "counted": torch.zeros(0).bool(),
    },
    "a pool of other classes": {"pool": torch.full((9, 4), 0.25)},
    "a pool of one dimension": {"pool": torch.full((9,), 0.25)},
    "a pool that is not a number": {"pool": torch.full((9, 3), torch.nan)},
    "no pool": {"pool": None},
    "labels unknown": {"labels": torch.full((60,), -1)},
    "labels too large": {"labels": torch.full((60,), 3)},
    "labels of floats": {"labels": torch.zeros(60)},
    "labels missing": {"labels": None},
    "too many classes": {"probabilities": torch.full((60, 4), 0.25)},
    "one dimension": {"probabilities": torch.zeros(180)},
    "not a number": {"probabilities": torch.full((60, 3), torch.nan)},
    "infinite": {"probabilities": torch.full((60, 3), torch.inf)},
    "half brain floats": {"probabilities": torch.zeros(60, 3, dtype=torch.bfloat16)},
    "probabilities missing": {"probabilities": None},
    "nothing counted": {"counted": torch.zeros(60, dtype=torch.bool)},
    "counted by numbers": {"counted": torch.ones(60, dtype=torch.int64)},
    "counted missing": {"counted": None},
    "too few others": {"others": torch.zeros(1, 60, dtype=torch.int64)},
    "others too large": {"others": torch.full((2, 60), 9)},
    "others of floats": {"others": torch.zeros(2, 60)},
    "others missing": {"others": None},
}


@pytest.mark.parametrize("changes", TENSORS.values(), ids=TENSORS)
def test_tensors_that_do_not_fit_together_count_as_none(tmp_path, changes):
    made().save(tmp_path, "this run")
    tensors = load_file(tmp_path / FILE) | changes
    save_file({name: each for name, each in tensors.items() if each is not None}, tmp_path / FILE, {"about": about()})
    assert Evidence.load(tmp_path, "this run", 3) is None


METADATA = {
    "none": None,
    "empty": {},
    "not JSON": {"about": "{"},
    "nested deeply": {"about": "[" * 100_000},
    "a list": {"about": "[]"},
    "a number": {"about": "5"},
    "no run": {"about": about(run=...)},
    "another run": {"about": about(run="another")},
    "no folds": {"about": about(folds=...)},
    "folds as text": {"about": about(folds="5")},
    "folds as a fraction": {"about": about(folds=2.5)},
    "folds as a truth": {"about": about(folds=True)},
    "notes that are numbers": {"about": about(notes=[1])},
    "notes that are a number": {"about": about(notes=1)},
    "too many names": {"about": about(others=["one", "two", "three"])},
    "names that are none": {"about": about(others=None)},
    "names that are lists": {"about": about(others=[[], []])},
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA)
def test_strings_that_do_not_fit_count_as_none(tmp_path, metadata):
    made().save(tmp_path, "this run")
    save_file(load_file(tmp_path / FILE), tmp_path / FILE, {"about": about()})
    assert Evidence.load(tmp_path, "this run", 3) is not None
    save_file(load_file(tmp_path / FILE), tmp_path / FILE, metadata)
    assert Evidence.load(tmp_path, "this run", 3) is None


def test_a_file_that_is_cut_short_anywhere_or_is_no_file_counts_as_none(tmp_path):
    made().save(tmp_path, "this run")
    path = tmp_path / FILE
    whole = path.read_bytes()
    for length in (*range(60), *range(60, len(whole), 97)):
        path.write_bytes(whole[:length])
        assert Evidence.load(tmp_path, "this run", 3) is None
    path.unlink()
    path.mkdir()
    assert Evidence.load(tmp_path, "this run", 3) is None
    path.rmdir()
    os.mkfifo(path)
    assert Evidence.load(tmp_path, "this run", 3) is None


def test_a_file_with_any_byte_changed_is_read_or_counts_as_none(tmp_path):
    made(rows=20).save(tmp_path, "this run")
    path, random = tmp_path / FILE, np.random.default_rng(0)
    whole = path.read_bytes()
    for place in random.integers(0, len(whole), 100):
        path.write_bytes(whole[:place] + bytes([random.integers(256)]) + whole[place + 1 :])
        found = Evidence.load(tmp_path, "this run", 3)
        assert found is None or (0 < found.error_interval[1] <= 100 and found.temperature > 0)


# By folds


def naive_by_folds(settings, dataset, evidence, folder):
    """Train each fold by hand: the labels of the other folds, all rows, the hidden ones as test rows."""
    labels = dataset.train_labels.copy()
    probabilities, others = np.zeros_like(evidence.probabilities), {}
    raw = np.asarray(dataset.raw)[dataset.train_rows]
    kept = settings.with_values("labels", count=None)
    pool = {}
    for number, (hidden, seen) in enumerate(parts(settings, dataset, evidence)):
        is_hidden = np.isin(np.arange(len(labels)), evidence.rows[hidden])
        assert not is_hidden[seen].any()
        known = np.full(len(labels), UNLABELED)
        known[evidence.rows] = evidence.labels
        both = Dataset.from_arrays(raw[seen], known[seen], raw[is_hidden], known[is_hidden], classes=dataset.classes)
        run = train(kept, folder / str(number), dataset=both)
        probabilities[hidden] = run.test_probabilities[np.argsort(np.argsort(evidence.rows[hidden]))]
        unseen = np.setdiff1d(np.flatnonzero(known == UNLABELED), seen)
        assert len(unseen) == pytest.approx((known == UNLABELED).sum() / 2 / evidence.folds, abs=1)
        pool |= dict(zip(unseen.tolist(), run.predict_proba(raw[unseen]), strict=True))
        scaler = StandardScaler().fit(raw[seen])
        x, y, tested = scaler.transform(raw[seen]), known[seen], scaler.transform(raw[evidence.rows[hidden]])
        models = {
            "logistic regression": LogisticRegression(max_iter=1000).fit(x[y >= 0], y[y >= 0]),
            "self-training": SelfTrainingClassifier(LogisticRegression(max_iter=1000)).fit(x, y),
        }
        for name, model in models.items():
            others.setdefault(name, np.zeros(len(evidence.rows), int))[hidden] = model.predict(tested)
    most = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(evidence.rows), 1)), evidence.labels)
    others["chance (largest class)"] = most.predict(np.zeros((len(evidence.rows), 1)))
    return probabilities, others, np.stack([pool[row] for row in sorted(pool)])


def parts(settings, dataset, evidence):
    """The positions of the labels that each fold hides, and the rows that it trains on, in the order of the folds."""
    hidden = []
    original = Dataset.with_split

    def watched(self, train_rows, test_rows, labels):
        hidden.append((np.flatnonzero(np.isin(evidence.rows, test_rows)), train_rows))
        return original(self, train_rows, test_rows, labels)

    Dataset.with_split = watched
    try:
        evidence_by_folds(settings, dataset, evidence.folds)
    finally:
        Dataset.with_split = original
    return hidden


def test_evidence_by_folds_is_that_of_a_loop_over_folds_by_hand(tmp_path):
    dataset, settings = features(test_rows=0), config(epochs=2)
    evidence = evidence_by_folds(settings, dataset, 3)
    run = train(settings, tmp_path / "run", dataset=dataset)
    assert evidence.rows.tolist() == run.labels.rows.tolist()
    assert evidence.labels.tolist() == run.labels.labels.tolist()
    assert (evidence.folds, evidence.notes, evidence.counted.all()) == (3, (), True)
    probabilities, others, pool = naive_by_folds(settings, dataset, evidence, tmp_path)
    np.testing.assert_allclose(evidence.probabilities, probabilities, atol=1e-6)
    np.testing.assert_allclose(evidence.pool, pool, atol=1e-6)
    assert set(evidence.others) == {*others, "random forest", "boosted trees"}  # the trees have a test of their own
    for name, classes in others.items():
        assert evidence.others[name].tolist() == classes.tolist()


def test_folds_hide_every_label_once_and_divide_each_class_evenly():
    dataset, settings = features(test_rows=0), config("supervised", "labels.count=24", epochs=1)
    evidence = evidence_by_folds(settings, dataset, 4)
    hidden = [part for part, _ in parts(settings, dataset, evidence)]
    assert np.sort(np.concatenate(hidden)).tolist() == list(range(24))
    for part in hidden:
        assert np.bincount(evidence.labels[part], minlength=3).tolist() == [2, 2, 2]
    again = evidence_by_folds(settings, dataset, 4)
    assert same(evidence, again)


def test_suggested_rows_are_measured_on_too_and_the_correction_makes_up_for_that():
    dataset = features(test_rows=0)
    settings = config("supervised", "labels.count=24", epochs=1)
    plain = evidence_by_folds(settings, dataset, 3)
    marked = evidence_by_folds(settings, replace(dataset, suggested=np.isin(np.arange(ROWS), plain.rows[:5])), 3)
    assert (marked.probabilities == plain.probabilities).all()
    assert (marked.counted.all(), marked.num_random, marked.notes[1:]) == (True, 19, plain.notes)
    assert marked.notes[0] == (
        "Measured also on 5 labels of suggested rows, which are harder than others; the correction takes that into account."
    )


def test_without_unlabeled_rows_suggested_ones_are_not_counted():
    dataset = features(test_rows=0)
    settings = config("supervised", "labels.count=all", epochs=1)
    chosen = np.isin(np.arange(ROWS), [3, 4, 5, 30, 59])
    evidence = evidence_by_folds(settings, replace(dataset, suggested=chosen), 3)
    assert evidence.rows[~evidence.counted].tolist() == [3, 4, 5, 30, 59]
    assert (len(evidence.wrong), evidence.correction) == (ROWS - 5, 0)
    assert (evidence.probabilities == evidence_by_folds(settings, dataset, 3).probabilities).all()


def test_without_unlabeled_rows_nothing_is_corrected_and_certain_rows_are_expected_to_be_right():
    pool = np.tile(np.array([1, 0, 0], np.float32), (9, 1))
    evidence = made(rows=45, suggested=15, pool=pool)
    assert replace(evidence, pool=pool[:0]).correction == 0
    certain = replace(evidence, labels=evidence.probabilities.argmax(axis=1))
    assert (certain.error, certain.error_interval[0]) == (0, 0)


def test_corrected_errors_are_right_on_average_and_vary_less():
    """Labeled rows are drawn from a population whose error is known; the probabilities are true."""
    random = np.random.default_rng(4)
    population = random.dirichlet([0.3, 0.3, 0.3], 20_000)
    classes = (population.cumsum(axis=1) > random.random((len(population), 1))).argmax(axis=1)
    truth, plain, corrected = 100 * np.mean(population.argmax(axis=1) != classes), [], []
    for _ in range(300):
        rows = random.permutation(len(population))
        labeled, pool = rows[:60], rows[60:1060]
        found = Evidence.of(
            rows=labeled,
            labels=classes[labeled],
            probabilities=population[labeled].astype(np.float32),
            pool=population[pool].astype(np.float32),
            suggested=np.zeros(60, bool),
        )
        plain.append(100 * found.wrong.mean() - truth)
        corrected.append(found.error - truth)
    assert abs(np.mean(corrected)) < 1.5  # these probabilities need no temperature, which is expected to be above 1
    assert np.std(corrected) < 0.92 * np.std(plain)


def test_errors_on_rows_that_were_chosen_because_they_are_hard_are_corrected():
    """Each draw has 60 random rows, and the 50 least certain of the others."""
    random = np.random.default_rng(5)
    population = random.dirichlet([0.3, 0.3, 0.3], 20_000)
    classes = (population.cumsum(axis=1) > random.random((len(population), 1))).argmax(axis=1)
    truth, plain, corrected = 100 * np.mean(population.argmax(axis=1) != classes), [], []
    for _ in range(100):
        rows = random.permutation(len(population))[:1500]
        hard = rows[60:][np.argsort(population[rows[60:]].max(axis=1))[:50]]
        labeled, pool = np.concatenate([rows[:60], hard]), np.setdiff1d(rows[60:], hard)
        found = Evidence.of(
            rows=labeled,
            labels=classes[labeled],
            probabilities=population[labeled].astype(np.float32),
            pool=population[pool].astype(np.float32),
            suggested=np.arange(110) >= 60,
        )
        plain.append(100 * found.wrong.mean() - truth)
        corrected.append(found.error - truth)
    assert np.mean(plain) > 10
    assert abs(np.mean(corrected)) < 2.5


def test_the_only_label_of_a_class_is_never_hidden_and_it_is_said():
    x, y = blobs(30)
    y = np.where(np.arange(30) < 12, np.minimum(y, 1), -1)
    y[11] = 2
    dataset = Dataset.from_arrays(x, y)
    evidence = evidence_by_folds(config("supervised", "labels.count=all", epochs=1), dataset, 2)
    assert 11 not in evidence.rows
    assert len(evidence.rows) == 11
    assert evidence.notes == ("Never held out, because the class has only one label: '2'.",)


def test_folds_that_cannot_be_made_are_refused():
    dataset, settings = features(test_rows=0), config("supervised", epochs=1)
    for folds in (0, 1, 13):
        with pytest.raises(
            DataError, match=f"{folds} folds were asked for; expected 2 to 12, as many as labels can be"
        ):
            evidence_by_folds(settings, dataset, folds)
    x, y = blobs(30)
    single = Dataset.from_arrays(x, np.where(np.arange(30) < 3, y, -1))
    with pytest.raises(DataError, match="no class has more than one labeled row, so there can be no folds"):
        evidence_by_folds(config("supervised", "labels.count=all", epochs=1), single)
    with pytest.raises(ConfigError, match="config is 5"):
        evidence_by_folds(5, dataset)


def test_five_folds_are_usual_and_fewer_if_there_are_fewer_labels():
    labels = np.array([0, 0, 0, 1, 1, 2, -1, -1])
    assert default_folds(labels) == 5
    assert default_folds(labels[1:]) == 4
    assert default_folds(labels, 3) == 3
    assert default_folds(np.array([0, 1, 2, -1])) == 0
    assert default_folds(np.array([-1, -1])) == 0


# A run is measured


def test_a_run_with_enough_test_rows_is_measured_on_them(tmp_path):
    dataset = features(test_rows=30)
    run = train(config(), tmp_path / "run", dataset=dataset)
    assert run.evidence is None
    assert run.temperature == 1
    measure.measure(run)
    evidence = load_run(tmp_path / "run").evidence
    assert same(evidence, run.evidence)
    assert (evidence.folds, evidence.rows.tolist()) == (0, list(range(30)))
    assert (evidence.probabilities == run.test_probabilities).all()
    assert evidence.error == pytest.approx(run.test_error)
    assert load_run(tmp_path / "run").temperature == evidence.temperature


def test_with_fewer_test_rows_than_labels_folds_say_more(tmp_path):
    dataset = features(test_rows=9)
    run = train(config(), tmp_path / "run", dataset=dataset)
    measure.measure(run, can_train=False)
    assert (run.evidence.folds, len(run.evidence.rows)) == (0, 9)
    again = train(config(), tmp_path / "again", dataset=dataset)
    measure.measure(again)
    assert (again.evidence.folds, len(again.evidence.rows)) == (5, 12)
    assert same(again.evidence, evidence_by_folds(again.config, dataset, 5))


def test_a_run_is_measured_once_and_only_when_it_is_finished(tmp_path):
    run = train(config(), tmp_path / "run", dataset=features())
    run.keep_evidence(made())
    measure.measure(run)
    assert same(run.evidence, made())
    with crashed():
        train(
            config("temporal", "training.checkpoint_every=1"),
            tmp_path / "half",
            dataset=features(),
            progress=At(2, 2, crash),
        )
    half = load_run(tmp_path / "half")
    measure.measure(half)
    assert half.evidence is None


def test_folds_that_would_take_longer_than_the_limit_are_left_out(tmp_path):
    run = train(config(), tmp_path / "run", dataset=features(test_rows=0))
    measure.measure(run, limit=0.0)
    assert run.evidence is None
    measure.measure(run, limit=1e6)
    assert run.evidence.folds == 5


def test_probabilities_are_divided_by_the_temperature_and_others_are_not(tmp_path):
    dataset = features()
    run = train(config(epochs=30), tmp_path / "run", dataset=dataset)
    x = blobs(20, seed=7)[0]
    raw, trained_on = run.predict_proba(x), run.predict_training_rows()
    measure.measure(run)
    assert run.temperature != 1
    assert run.predict_proba(x) == pytest.approx(tempered(raw, run.temperature), abs=1e-5)
    assert (run.predict(x) == np.array(run.classes)[raw.argmax(axis=1)]).all()
    assert (run.predict_training_rows() == trained_on).all()
    assert (load_run(run.path).predict_proba(x) == run.predict_proba(x)).all()


# By command

SMALL = ["--epochs", "2", "--set", "network.width=8", "--method", "supervised", "--set", "training.batch_size=20"]


@pytest.fixture
def npz(tmp_path):
    """Twenty labels and no test rows."""
    return write_npz(tmp_path / "data.npz", x_test=None, y_test=None)


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory):
    from selfens.cli import main

    folder = tmp_path_factory.mktemp("measured")
    data = write_npz(folder / "data.npz", x_test=None, y_test=None)
    with pytest.raises(SystemExit) as end:
        main(["train", str(data), "--run", str(folder / "run"), *SMALL, "--quiet"])
    assert not end.value.code
    return folder / "run"


@pytest.fixture
def measured(measured_once, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(measured_once, tmp_path / "run")


def test_the_command_measures_by_folds_and_says_the_interval(typed, npz):
    code, said, _ = typed("train", npz, "--run", "run", "--no-report", *SMALL)
    assert code == 0
    run = load_run("run")
    evidence = run.evidence
    assert same(evidence, evidence_by_folds(run.config, run.data().dataset, 5))
    low, high = evidence.error_interval
    assert (
        f"error {evidence.error:.2f} % (90 % interval {low:.1f} to {high:.1f}), by 5-fold cross-validation on 20 labeled rows"
        in said
    )


def test_predictions_are_calibrated_and_not_sure_where_more_would_be_wrong(typed, measured):
    run, new = load_run(measured), np.concatenate([blobs(30, seed=4)[0], np.zeros((5, 6), np.float32)])
    np.savez("new.npz", x=new)
    raw = replace(run.model, temperature=1.0).predict_proba(new, "the run")
    for words, sure in (((), np.ones(35, bool)), (("--max-error", "20"), run.evidence.is_sure(raw, 20))):
        code, _, complained = typed("predict", measured, "new.npz", "-o", "out.csv", "--all-classes", *words)
        assert code == 0
        with open("out.csv", newline="") as file:
            lines = [*csv.DictReader(file)]
        expected = np.where(sure, np.array(run.classes)[raw.argmax(axis=1)], "not sure")
        assert [line["class"] for line in lines] == expected.tolist()
        found = np.array([[float(line[f"probability of {name}"]) for name in run.classes] for line in lines])
        assert found == pytest.approx(tempered(raw, run.temperature), abs=2e-6)
        assert [float(line["probability"]) for line in lines] == found.max(axis=1).tolist()
        second = np.argsort(-raw, axis=1)[:, 1]
        assert [line["runner_up"] for line in lines] == np.array(run.classes)[second].tolist()
        if words:
            about = f", about {100 * (1 - found[sure].max(axis=1).mean()):.1f} % of these wrongly" if sure.any() else ""
            share = f"{100 * sure.mean():.0f} % of the rows are answered{about}; --max-error allows 20 %."
            assert complained.splitlines() == [share]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--max-error", "0"), "--max-error is 0; expected percent of the answers, above 0 and below 100."),
        (("--max-error", "100"), "--max-error is 100; expected percent of the answers, above 0 and below 100."),
        (("--max-error", "-3"), "--max-error is -3; expected percent of the answers, above 0 and below 100."),
        (("--max-error", "nan"), "--max-error is nan; expected percent of the answers, above 0 and below 100."),
    ],
)
def test_a_share_that_is_no_percentage_is_refused(typed, measured, words, sentence):
    np.savez("new.npz", x=blobs(5)[0])
    code, _, complained = typed("predict", measured, "new.npz", "-o", "out.csv", *words)
    assert (code, complained.strip()) == (1, f"error: {sentence}")
    assert not Path("out.csv").exists()


def test_without_evidence_nothing_is_known_about_errors(typed, measured):
    (measured / FILE).unlink()
    np.savez("new.npz", x=blobs(5)[0])
    code, _, complained = typed("predict", measured, "new.npz", "-o", "out.csv", "--max-error", 5)
    assert code == 1
    assert f"the errors of {measured} were not measured; run selfens evaluate {measured} --folds 5 first." in complained
    assert typed("evaluate", measured, "--folds", 3, "--quiet")[0] == 0
    assert load_run(measured).evidence.folds == 3
    assert typed("predict", measured, "new.npz", "-o", "out.csv", "--max-error", 5)[0] == 0


def test_more_folds_replace_the_evidence_and_the_page(typed, measured):
    before = (measured / "report.html").read_text()
    code, said, _ = typed("evaluate", measured, "--folds", 2, "--quiet")
    evidence = load_run(measured).evidence
    assert (code, evidence.folds) == (0, 2)
    assert f"{evidence.error:.2f}" in said
    page = (measured / "report.html").read_text()
    assert page != before
    assert f"{evidence.error:.1f}\u00a0%" in page


def test_a_page_is_written_and_commands_work_with_damaged_evidence(typed, measured):
    good = load_file(measured / FILE)
    run = load_run(measured)
    text = {"about": about(run=run.info.id, others=list(run.evidence.others))}
    outside = good | {"rows": good["rows"] + 10**6}
    alone = good | {"others": good["others"][:0].clone()}
    for tensors, metadata in (
        (outside, text),
        (alone, {"about": about(run=run.info.id, others=[])}),
        (good | {"counted": torch.zeros(len(good["rows"]), dtype=torch.bool)}, text),
    ):
        save_file(tensors, measured / FILE, metadata)
        for words in (
            ("report", measured, "-o", "page.html", "--no-baselines"),
            ("report", measured, "-o", "page.html"),
        ):
            code, _, complained = typed(*words)
            assert (code, "missing" in complained) == (0, False)
        assert typed("evaluate", measured)[0] == (0 if tensors is alone else 1)
        assert typed("audit", measured, "-o", "issues.csv", "--quiet")[0] == 0
    save_file(outside, measured / FILE, text)
    assert load_run(measured).evidence is None


# Stopped while it was measured


def files_to_repeat(path):
    return {name: content for name, content in contents(path).items() if name in (FILE, "novelty.safetensors")}


def kill_in_a_fold(npz, run, how):
    """Stop the process in the second fold."""
    import support

    from selfens.tools import folds

    original = folds.train

    def stopping(settings, path, **more):
        if str(path).endswith("fold-2-of-5"):
            support.crash() if how == "kill" else support.interrupt()
        return original(settings, path, **more)

    folds.train = stopping
    try:
        run_cli(["train", str(npz), "--run", str(run), "--no-report", *SMALL])
    except support.Crash:
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize(("how", "code"), [("kill", -9), ("interrupt", 130)])
def test_a_run_that_was_stopped_while_it_was_measured_is_complete_and_resume_measures_it(
    typed, npz, tmp_path, how, code
):
    whole = tmp_path / "whole"
    assert typed("train", npz, "--run", whole, "--no-report", *SMALL)[0] == 0
    half = tmp_path / "half"
    assert finish(child(tmp_path / "said", kill_in_a_fold, npz, half, how)) == code
    run = load_run(half)
    assert run.finished
    assert run.evidence is None
    assert run.predict_proba(blobs(5)[0]).shape == (5, 3)
    assert differences(left_behind(half), left_behind(whole)) == []
    if how == "interrupt":
        said = (tmp_path / "said").read_text()
        assert f"stopped in fold 2 of 5; nothing was written. To continue: selfens resume {half}" in said
    code, said, complained = typed("resume", half)
    assert (code, complained.count("warning")) == (0, 0)
    assert same(load_run(half).evidence, load_run(whole).evidence)
    assert files_to_repeat(half).keys() == files_to_repeat(whole).keys()
    assert "by 5-fold cross-validation on 20 labeled rows" in said
    assert (half / "report.html").is_file()
    before = contents(half)
    assert typed("resume", half)[0] == 0
    assert contents(half) == before


def test_an_interrupt_leaves_the_evidence_that_there_was(typed, measured, monkeypatch):
    from selfens.tools import folds

    before = contents(measured)
    monkeypatch.setattr(folds, "train", lambda *_, **__: interrupt())
    code, _, complained = typed("evaluate", measured, "--folds", 3)
    assert code == 130
    assert "stopped in fold 1 of 3; nothing was written." in complained
    assert contents(measured) == before


def test_the_curve_of_error_over_share_ends_at_the_error():
    evidence = made(suggested=10)
    curve = answered(evidence.confidence, evidence.wrong)
    assert (curve.share[-1], curve.error[-1]) == (1, pytest.approx(evidence.error))


def test_hurried_folds_train_a_committee_for_a_fifth_of_the_epochs_and_other_methods_in_full(monkeypatch):
    x, y = blobs(60)
    trained = []

    def watched(config, *args, **more):
        trained.append(config)
        return train(config, *args, **more)

    monkeypatch.setattr("selfens.tools.folds.train", watched)
    dataset = Dataset.from_arrays(x, np.where(np.arange(60) < 12, y, UNLABELED))
    usual = config_for_dataset(dataset, device="cpu").with_values("training", min_steps_per_epoch=1)
    assert (usual.method.name, usual.schedule.epochs) == ("committee", 50)
    for hurry, epochs, rate, decay in (
        (True, 10, 7 * usual.optimizer.learning_rate, 0.99**5),
        (False, 50, 0.002, 0.99),
    ):
        trained.clear()
        evidence_by_folds(usual, dataset, 2, hurry=hurry)
        assert {each.schedule.epochs for each in trained} == {epochs}
        first = trained[0]
        assert (first.optimizer.learning_rate, first.method.decay) == pytest.approx((rate, decay))
        assert first.schedule.weight_rampup_epochs == epochs / 10
    short = usual.with_epochs(12)
    assert hurried(short).schedule.epochs == 10  # at least ten
    assert hurried(usual.with_epochs(6)) == usual.with_epochs(6)
    other = config_for_dataset(dataset, "temporal", device="cpu")
    assert hurried(other) == other


def test_folders_of_killed_processes_are_removed_and_those_in_use_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, young, foreign = tmp_path / "selfens-dead", tmp_path / "selfens-young", tmp_path / "selfens-foreign"
    for folder in (dead, young, foreign):
        folder.mkdir()
        (folder / "weights").write_text("...")
    for folder in (dead, young):
        (folder / ".lock").touch()
    os.utime(dead / ".lock", (1, 1))
    with scratch_folder() as used:
        os.utime(used / ".lock", (1, 1))
        with scratch_folder() as other:
            assert used.is_dir()
            assert other.is_dir()
        assert not dead.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"selfens-young", "selfens-foreign"}
