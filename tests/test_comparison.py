"""Comparison: its words and numbers, evidence from test rows and from folds, what a run keeps, and what commands print."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score
from support import SMALL_IMAGES, At, blobs, config, crash, crashed, features, images, interrupt, sets, write_npz
from torch import nn

from selfens import load_run, presets, resume, train, write_report
from selfens.auto import config_for
from selfens.data import sources
from selfens.estimator import SelfEnsemblingClassifier
from selfens.files.tensors import load_tensors, save_tensors
from selfens.runs import evidence as evidences
from selfens.runs.evidence import Evidence
from selfens.runs.model import Model
from selfens.tools import audit, folds
from selfens.tools import measure as measuring
from selfens.tools.baselines import CHANCE, LOGISTIC, SELF_TRAINING, predictions
from selfens.tools.comparison import OURS, Comparison, comparison_of, one_class
from selfens.tools.folds import evidence_by_folds
from selfens.tools.measure import evidence_on_test_rows, measure

QUICK = sets(["network.width=8", "training.threads=1", "training.batch_size=20"])
TESTED = blobs(30, seed=1)
NONE = {"x_test": None, "y_test": None}


def errors(predicted, truth):
    return {name: 100 * float(np.mean(classes != truth)) for name, classes in predicted.items()}


# Words


def made(truth, ours, labels=10, is_images=False, suggested=None, **others):
    """A comparison of a model that is certain of the classes `ours` with what others predict."""
    chosen = np.zeros(len(truth), bool) if suggested is None else suggested
    probabilities = np.eye(max(truth.max(), ours.max()) + 1, dtype=np.float32)[ours]
    about = {key: others.pop(key) for key in ("folds", "notes") if key in others}
    named = {{"logistic": LOGISTIC, "chance": CHANCE}[name]: classes for name, classes in others.items()}
    rows = np.arange(len(truth))
    found = Evidence.of(rows=rows, labels=truth, probabilities=probabilities, others=named, suggested=chosen, **about)
    return Comparison(found, labels, is_images=is_images)


def compared(ours, logistic, chance, **about):
    """Return the comparison of predictions that are right in this many of 200 rows, the first ones."""
    truth = np.arange(200) % 2
    rights = {"ours": ours, "logistic": logistic, "chance": chance}
    predicted = {name: np.where(np.arange(200) < right, truth, 1 - truth) for name, right in rights.items()}
    return made(truth, labels=1250, **predicted, **about)


def test_a_win_is_said_in_one_sentence():
    won = compared(180, 150, 100)
    others = "logistic regression on the same 1,250 labels 25.00 %, chance (largest class) 50.00 %"
    assert won.numbers == (f"This model misclassifies 10.00 % of 200 test rows (90 % interval 7.0 to 14.0); {others}.")
    assert won.judgment == "It is better than logistic regression by 15.00 points."
    header = ("", "error %", "90 % interval")
    lines = [(OURS, "10.00", "7.0 to 14.0"), (LOGISTIC, "25.00", "20.3 to 30.3"), (CHANCE, "50.00", "44.2 to 55.8")]
    assert won.table == [header, *lines]
    assert won.errors == {OURS: 10, LOGISTIC: 25, CHANCE: 50}
    assert str(won).splitlines()[1] == "this model                10.00    7.0 to 14.0"
    assert won.lines[-1] == f"{won.numbers} {won.judgment}"
    assert "balanced" not in str(won)


def test_every_error_has_its_interval():
    for result, wrong in zip(compared(180, 150, 0).results, (20, 50, 200), strict=True):
        found = binomtest(wrong, 200).proportion_ci(confidence_level=0.9, method="wilson")
        assert result.interval == pytest.approx((100 * found.low, 100 * found.high))


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ((150, 180, 100), "Logistic regression is better by 15.00 points: try another method, more epochs"),
        ((80, 70, 100), "Always predicting the largest class is better by 10.00 points: try another method"),
        ((150, 150, 100), "200 rows are too few to tell whether logistic regression is better or worse."),
        ((150, 152, 100), "200 rows are too few to tell whether logistic regression is better or worse."),
        ((152, 150, 100), "200 rows are too few to tell whether logistic regression is better or worse."),
        ((100, 80, 100), "too few to tell whether always predicting the largest class is better or worse."),
        ((200, 200, 100), "Logistic regression makes no mistakes either."),
    ],
)
def test_a_winner_is_named_only_if_chance_does_not_explain_it_and_a_loss_says_what_to_try(rights, words):
    assert words in compared(*rights).judgment
    advice = "try features of a pretrained backbone, more epochs or more labels."
    assert (advice in compared(*rights, is_images=True).judgment) == ("is better by" in words)


@pytest.mark.parametrize(("only_ours", "only_theirs"), [(0, 0), (0, 4), (0, 9), (3, 20), (10, 12), (40, 20)])
def test_a_difference_counts_if_it_is_significant_by_the_exact_test_too(only_ours, only_theirs):
    truth = np.zeros(100, int)
    ours, theirs = truth.copy(), truth.copy()
    ours[:only_ours], theirs[50 : 50 + only_theirs] = 1, 1
    found, count = made(truth, ours, logistic=theirs).results[1], only_ours + only_theirs
    assert found.differs == (count > 0 and binomtest(only_ours, count).pvalue < 0.05)
    assert found.balanced_differs == found.differs  # of one class, the balanced error is the error


def test_uneven_classes_show_the_balanced_error_beside_the_error():
    truth = np.r_[np.zeros(180, int), np.ones(20, int)]
    predicted = {"ours": np.zeros(200, int), "logistic": np.r_[np.ones(30, int), np.zeros(150, int), np.ones(20, int)]}
    found = made(truth, **predicted)
    assert (
        "misclassifies 10.00 % of 200 test rows (90 % interval 7.0 to 14.0; balanced error 50.00 %);" in found.numbers
    )
    assert found.judgment.startswith("Logistic regression is better by 41.67 points of the balanced error: try")
    assert found.table[0] == ("", "error %", "90 % interval", "balanced error %")
    assert found.table[1] == (OURS, "10.00", "7.0 to 14.0", "50.00")
    for result, classes in zip(found.results, predicted.values(), strict=True):
        expected = 100 * (1 - balanced_accuracy_score(truth, classes))
        assert result.balanced_error == pytest.approx(expected)


def test_a_lower_error_does_not_hide_a_worse_balanced_error_and_the_reverse():
    truth = np.r_[np.zeros(180, int), np.ones(20, int)]
    ours, theirs = truth.copy(), truth.copy()
    ours[180:], theirs[:60] = 0, 1  # 10 % and 30 % wrong; balanced 50 % and 16.7 %
    words = made(truth, ours, logistic=theirs).judgment
    assert words.startswith("Logistic regression is better by 33.33 points of the balanced error: try")
    assert made(truth, theirs, logistic=ours).judgment.startswith("Logistic regression is better by 20.00 points: try")


@pytest.mark.parametrize(("rare", "wins"), [(1, False), (2, False), (4, False), (6, True), (20, True)])
def test_a_few_rows_of_a_rare_class_make_no_winner(rare, wins):
    """Ours gets all of them wrong and the other all right; if they are few, this may be chance."""
    truth = np.r_[np.zeros(40, int), np.ones(rare, int)]
    found = made(truth, np.zeros_like(truth), logistic=truth)
    assert wins == (binomtest(rare, rare).pvalue < 0.05)
    assert found.results[1].balanced_differs == wins
    assert found.judgment.startswith("Logistic regression is better by" if wins else f"{40 + rare} rows are too few")


def test_errors_are_measured_on_rows_that_no_model_chose():
    truth = np.arange(60) % 2
    hard = np.arange(60) >= 30
    ours = np.where(hard, 1 - truth, truth)
    ours[:3] = 1 - truth[:3]
    found = made(truth, ours, logistic=1 - truth, suggested=hard)
    assert found.errors == {OURS: 10, LOGISTIC: 100}
    assert found.numbers.startswith("This model misclassifies 10.00 % of 30 test rows (90 %")
    assert found.lines[-1] == "Not measured on 30 labels of suggested rows, which are harder than others."
    few = made(truth, ours, logistic=1 - truth, suggested=np.arange(60) >= 19)
    assert few.errors[OURS] == pytest.approx(55)
    assert few.lines[-1] == (
        "Measured also on 41 labels of suggested rows, which are harder than others, because only 19 labels are of other rows: "
        "the error is too large; label some random rows to measure it."
    )


def test_a_model_that_gives_most_rows_one_class_is_told_by_its_words():
    truth, names = np.arange(100) % 10, [f"Class {n}" for n in range(10)]
    words = one_class(np.where(np.arange(100) < 93, 3, truth), truth, names)
    assert words.startswith("The model predicts 'Class 3' for 94 % of the rows, while 10 % should be of that class")
    assert one_class(truth, truth, names) == ""
    rare = np.r_[np.zeros(95, int), np.ones(5, int)]
    assert one_class(rare, rare, names) == ""  # most rows are of one class, rightly
    assert one_class(np.zeros(100, int), rare, names) != ""


def test_an_audit_by_a_model_that_is_mostly_wrong_says_so():
    half = audit.rank(np.array([0, 1]), [[0.9, 0.1], [0.8, 0.2]])
    assert audit.warning(half, 12.0) == audit.warning(half, None) == ""
    assert audit.warning(half, 76.8).startswith("The model misclassifies 76.80 % of its test rows, so most labels")
    most = audit.rank(np.array([1, 1]), [[0.9, 0.1], [0.8, 0.2]])
    assert audit.warning(most, None) == audit.warning(most, 10.0) != ""


# A run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = train(config("temporal"), tmp_path_factory.mktemp("comparison") / "run", dataset=features())
    run.data(features())
    return run


@pytest.mark.parametrize("setting", ["", "labels.validation=0.25", "training.rows=labeled", "labels.noise=50"])
def test_a_run_is_compared_on_the_rows_and_labels_it_saw(tmp_path, monkeypatch, setting):
    given = []
    monkeypatch.setattr(measuring, "predictions", lambda *arrays, **how: given.append(arrays) or predictions(*arrays))
    data, method = features(), "supervised" if "rows" in setting else "temporal"
    run = train(config(method, *filter(None, [setting])), tmp_path / "run", dataset=data)
    measure(run)
    found, (inputs, labels, tested) = comparison_of(run), given[0]
    assert found.errors[OURS] == pytest.approx(run.test_error)
    direct, _ = predictions(inputs, labels, tested)
    assert {name: found.errors[name] for name in direct} == errors(direct, data.test_labels)
    assert len(inputs) == len(labels) == (12 if "rows" in setting else 60 - len(run.labels.validation))
    assert sorted(labels[labels >= 0]) == sorted(run.labels.labels)
    assert (SELF_TRAINING in found.errors) == ("rows" not in setting)
    assert (found.num_labels, len(found.evidence.rows), found.evidence.folds) == (len(run.labels.rows), 30, 0)
    assert (found.evidence.probabilities == run.test_probabilities).all()
    assert (found.evidence.labels == data.test_labels).all()


@pytest.mark.parametrize(("labels", "test_rows", "by_folds"), [(12, 12, 0), (12, 11, 5), (12, 0, 5), (120, 100, 0)])
def test_as_many_test_rows_as_labels_or_a_hundred_are_enough(tmp_path, labels, test_rows, by_folds):
    data = features(rows=150, test_rows=test_rows)
    run = train(config("temporal", f"labels.count={labels}", epochs=1), tmp_path / "run", dataset=data)
    measure(run)
    assert (run.evidence.folds, len(run.evidence.rows)) == (by_folds, labels if by_folds else test_rows)
    measure(run, can_train=False)
    assert run.evidence.folds == by_folds  # what is already measured is not measured again


def test_without_training_or_the_time_for_it_there_are_only_the_test_rows(tmp_path):
    for test_rows in (0, 5):
        run = train(config(epochs=1), tmp_path / f"{test_rows}", dataset=features(test_rows=test_rows))
        for how in ({"can_train": False}, {"limit": 1e-9}):
            measure(run, **how)
            assert (run.evidence is None) == (test_rows == 0)
    run = train(config(epochs=1), tmp_path / "enough", dataset=features(test_rows=0))
    measure(run, limit=1e9)
    assert run.evidence.folds == 5


def test_a_slow_run_has_fewer_folds_and_one_with_a_module_of_ones_own_has_none(tmp_path, monkeypatch):
    run = train(config(epochs=1), tmp_path / "own", network=nn.Linear(6, 3), dataset=features(test_rows=5))
    measure(run)
    assert (run.evidence.folds, len(run.evidence.rows)) == (0, 5)
    monkeypatch.setattr(measuring, "SLOW", 0)
    run = train(config(epochs=1), tmp_path / "slow", dataset=features(test_rows=5))
    measure(run)
    assert (run.evidence.folds, len(run.evidence.rows)) == (3, 12)


def test_what_was_measured_survives_in_the_run_and_is_not_measured_twice(trained, monkeypatch, tmp_path):
    measure(trained)
    found = comparison_of(trained)
    monkeypatch.setattr(measuring, "predictions", lambda *arrays, **how: pytest.fail("fitted again"))
    again = load_run(trained.path)
    again.data(features())
    measure(again)
    assert comparison_of(again).lines == found.lines
    for name in evidences.ARRAYS:
        one, other = getattr(again.evidence, name), getattr(trained.evidence, name)
        assert list(one) == list(other) if name == "others" else (one == other).all()
    assert again.temperature == trained.temperature == found.evidence.temperature
    page = write_report(trained, tmp_path / "page.html").read_text()
    assert found.numbers.replace(" %", "\N{NO-BREAK SPACE}%") in page
    assert "logistic" not in write_report(trained, tmp_path / "page.html", baselines=False).read_text()


def altered(**changes):
    """Change some arrays of the evidence's file, or their metadata."""

    def change(tensors, about):
        arrays = {name: changed(tensors[name]) for name, changed in changes.items() if name in tensors}
        return tensors | arrays, about | {name: value for name, value in changes.items() if name not in tensors}

    return change


@pytest.mark.parametrize(
    "change",
    [
        altered(run="another"),
        altered(rows=lambda rows: rows[:0]),
        altered(rows=lambda rows: rows.float()),
        altered(rows=lambda rows: -1 - rows),
        altered(rows=lambda rows: rows + 1),  # beyond the last test row
        altered(rows=lambda rows: rows + 10**15),
        altered(labels=lambda labels: labels + 1),
        altered(labels=lambda labels: labels - 1),
        altered(others=lambda others: others[1:]),
        altered(others=lambda others: others + 10**6),
        altered(counted=lambda counted: counted & False),
        altered(counted=lambda counted: counted.long()),
        altered(probabilities=lambda probabilities: probabilities[:, :2]),
        altered(probabilities=lambda probabilities: probabilities * torch.nan),
        altered(folds="many"),
        altered(folds=None),
        altered(notes=[["<b>"]]),
        altered(notes=5),
        lambda tensors, about: ({"rows": tensors["rows"]}, about),
        lambda tensors, about: (tensors, [1, 2]),
        lambda tensors, about: (tensors, {}),
        lambda tensors, about: (tensors, None),
    ],
)
def test_damaged_evidence_is_as_none(trained, change):
    trained.keep_evidence(evidence_on_test_rows(trained))
    path = trained.path / evidences.FILE
    assert load_run(trained.path).evidence is not None
    tensors, metadata = load_tensors(path)
    tensors, about = change(tensors, json.loads(metadata["about"]))
    save_tensors(path, {name: tensor.contiguous() for name, tensor in tensors.items()}, {"about": json.dumps(about)})
    damaged = load_run(trained.path)
    assert damaged.evidence is None
    assert damaged.temperature == 1
    assert comparison_of(damaged) is None
    path.write_bytes(path.read_bytes()[:-9])
    assert load_run(trained.path).evidence is None
    path.unlink()


def test_public_data_sets_are_not_measured_unless_asked_for(tmp_path):
    run = train(presets.get("digits-supervised").with_overrides(["schedule.epochs=1"]), tmp_path / "run")
    write_report(run, tmp_path / "page.html")
    assert run.evidence is None
    write_report(run, tmp_path / "page.html", baselines=True)
    assert (len(run.evidence.rows), run.evidence.folds) == (500, 0)
    assert comparison_of(run).errors[OURS] == pytest.approx(run.test_error)


def test_a_run_that_is_not_finished_or_has_no_test_rows_is_not_compared_by_its_page(tmp_path):
    with crashed():
        train(config("temporal"), tmp_path / "run", dataset=features(), progress=At(1, 0, crash))
    stopped = load_run(tmp_path / "run")
    stopped.data(features())
    measure(stopped)
    assert stopped.evidence is None
    whole = resume(tmp_path / "run", dataset=features())
    measure(whole)
    assert whole.evidence is not None
    untested = features(test_rows=0)
    run = train(config(), tmp_path / "untested", dataset=untested)
    page = write_report(run, tmp_path / "p.html", dataset=untested, baselines=True).read_text()
    assert run.evidence is None  # a page trains nothing
    assert "logistic" not in page


def test_test_rows_are_predicted_once(typed, tmp_path, monkeypatch):
    write_npz(tmp_path / "my.npz")
    predicted, genuine = [], Model.predict_inputs
    monkeypatch.setattr(
        Model, "predict_inputs", lambda model, rows, *more: predicted.append(rows) or genuine(model, rows, *more)
    )
    assert typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK)[0] == 0
    assert "Confusion matrix" in (tmp_path / "run/report.html").read_text()
    assert [len(rows) for rows in predicted].count(30) == 1


# Folds


def test_folds_fit_ours_and_the_baselines_on_the_same_rows_and_hide_the_others(monkeypatch):
    given = []
    monkeypatch.setattr(folds, "predictions", lambda *arrays, **how: given.append(arrays) or predictions(*arrays))
    data = features(test_rows=0)
    found = evidence_by_folds(config("temporal"), data, 3)
    assert (found.folds, len(found.rows)) == (3, 12)
    hidden = np.concatenate([arrays[2][:] for arrays in given])
    assert len(np.unique(hidden, axis=0)) == 12
    assert {row.tobytes() for row in hidden} == {data.raw[row].tobytes() for row in found.rows}
    for inputs, labels, tested in given:
        assert (len(inputs), (labels >= 0).sum(), len(tested)) == (48, 8, 4)  # without 8 of 48 unlabeled rows
        assert not (inputs[:][:, None] == tested[:][None]).all(axis=2).any()


def test_the_evidence_of_folds_is_what_each_of_its_models_predicts_for_the_rows_it_did_not_see(tmp_path, monkeypatch):
    trained_on, data = [], features(rows=60, test_rows=30)

    def remember(settings, path, *, dataset, **more):
        trained_on.append((settings, dataset))
        return train(settings, path, dataset=dataset, **more)

    monkeypatch.setattr(folds, "train", remember)
    found = evidence_by_folds(config("temporal"), data, 3)
    number_of = {row.tobytes(): number for number, row in enumerate(data.raw[data.train_rows])}
    position = {row: place for place, row in enumerate(found.rows.tolist())}
    assert (found.labels == data.train_labels[found.rows]).all()
    assert found.counted.all()
    for number, (settings, part) in enumerate(trained_on):
        run = train(settings, tmp_path / f"{number}", dataset=part)
        places = [position[number_of[row.tobytes()]] for row in part.raw[part.test_rows]]
        assert found.probabilities[places] == pytest.approx(run.test_probabilities, abs=1e-6)
        others, _ = predictions(part.raw[part.train_rows], part.train_labels, part.raw[part.test_rows])
        for name in (LOGISTIC, SELF_TRAINING):
            assert (found.others[name][places] == others[name]).all()


def test_labels_of_suggested_rows_are_trained_on_and_not_measured_if_all_rows_are_labeled():
    data = features(rows=90, test_rows=0)
    chosen = np.arange(90) >= 60
    found = evidence_by_folds(config("supervised", "labels.count=all", epochs=1), replace(data, suggested=chosen), 3)
    assert (found.counted == ~chosen).all()
    assert len(found.rows) == 90
    assert found.notes[0] == "Not measured on 30 labels of suggested rows, which are harder than others."
    plain = evidence_by_folds(config("supervised", "labels.count=all", epochs=1), data, 3)
    assert (plain.probabilities == found.probabilities).all()
    assert found.error == pytest.approx(100 * np.mean(plain.wrong[:60]))


def test_in_folds_of_a_table_nothing_is_fitted_on_hidden_rows(monkeypatch, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(40.0) ** 2, "b": [f"v{n // 2}" for n in range(40)], "y": [*"uv"] * 20})
    frame.loc[[3, 17], "a"] = None
    frame.loc[20:, "y"] = ""
    frame.to_csv(tmp_path / "t.csv", index=False)
    trained_on = []

    def remember(*arguments, **more):
        run = train(*arguments, **more)
        trained_on.append(run.data())
        return run

    monkeypatch.setattr(folds, "train", remember)
    chosen, _ = config_for(tmp_path / "t.csv", label="y")
    quick = chosen.with_overrides(["schedule.epochs=1", "network.width=8"])
    assert len(evidence_by_folds(quick, sources.load(quick.source), 4).rows) == 20
    SelfEnsemblingClassifier(epochs=1, measure=True, random_state=0).fit(frame[["a", "b"]], frame["y"])
    assert [len(each.inputs) for each in trained_on] == [32, 32, 33, 33] + [34] * 5
    for each in trained_on:
        numbers, words = np.split(each.inputs[:] / np.sqrt(each.encoder.width / 2), [1], axis=1)
        assert abs(numbers.mean()) < 1e-5
        assert numbers.std() == pytest.approx(1, rel=1e-5)
        assert each.encoder.columns[1].rare  # a value whose other row is hidden is there only once
        assert (words[:, :-1].round().sum(axis=0) == 2).all()


def test_chance_in_folds_is_the_largest_class_of_all_labels():
    for count in (2, 3, 12):  # in twelfths, the largest of the others is never the hidden row's own class
        found = evidence_by_folds(config("supervised", epochs=1), features(test_rows=0), count)
        assert errors(found.others, found.labels)[CHANCE] == pytest.approx(100 * 2 / 3)


def test_each_fold_is_one_line_and_warns_once(typed, tmp_path):
    lines = ["id,a,y", *(f"r{n},{n % 7},{'xz'[n % 2]}" for n in range(40)), "r40,much,x"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    words = (
        "train",
        "t.csv",
        "--label",
        "y",
        "--epochs",
        2,
        "--run",
        "run",
        "--quiet",
        "--no-report",
        "--no-baselines",
    )
    assert typed(*words)[0] == 0
    for command in ("evaluate", "audit"):
        code, out, err = typed(command, "run", "--folds", 3)
        first, *each = out.splitlines()[:4]
        assert (code, first) == (0, "training 3 times for 2 epochs, each time with part of the labels held out")
        assert [re.fullmatch(r"fold (\d/3)  \d+ s  \d+ s left", line)[1] for line in each] == ["1/3", "2/3", "3/3"]
        assert "/tmp" not in out.replace(str(tmp_path), "")
        assert err.count("not a number") == (command == "audit") or err.count("not a number") == 1
        (tmp_path / "run" / evidences.FILE).unlink(missing_ok=True)


def test_folds_of_images_and_of_extra_rows_work(tmp_path):
    data = images()
    found = evidence_by_folds(config("supervised", *SMALL_IMAGES, epochs=1), data, 2)
    assert (len(found.rows), len(set(found.rows.tolist()))) == (12, 12)
    run = train(config("supervised", *SMALL_IMAGES, epochs=1), tmp_path / "run", dataset=data)
    measure(run)
    assert comparison_of(run).is_images
    more = features(test_rows=0).with_extra(blobs(20, seed=5)[0])
    assert len(evidence_by_folds(config("temporal", epochs=1), more, 2).rows) == 12


def test_folds_train_copies_of_a_module_that_was_given():
    module, labels = nn.Linear(6, 3), np.where(np.arange(60) < 12, np.arange(60) % 3, -1)
    before = module.weight.detach().clone()
    SelfEnsemblingClassifier(network=module, epochs=1, measure=True, random_state=0).fit(blobs()[0], labels)
    assert (module.weight == before).all()


# Commands


def tensors_of(run):
    return {name: tensor.numpy().tobytes() for name, tensor in load_tensors(run.path / evidences.FILE)[0].items()}


def test_train_on_custom_data_prints_a_table_and_a_sentence(typed, tmp_path):
    write_npz(tmp_path / "my.npz", classes=np.array(["ant", "Bee", "cow"]))
    code, out, err = typed("train", "my.npz", "--epochs", 2, "--run", "run", *QUICK)
    run = load_run(tmp_path / "run")
    found, lines = comparison_of(run), out.splitlines()
    assert code == 0
    low, high = run.evidence.error_interval
    result = (
        f"error {run.test_error:.2f} % (90 % interval {low:.1f} to {high:.1f}), on 30 test rows; trained 2 epochs in"
    )
    header = next(number for number, line in enumerate(lines) if line.split() == ["error", "%", "90", "%", "interval"])
    assert lines[header - 1].startswith(result)
    assert found.lines == lines[header : header + len(found.lines)]
    assert f"{found.numbers} {found.judgment}" in lines
    assert "Warning" not in out + err
    page = (tmp_path / "run/report.html").read_text()
    assert page.index('<h1 class="headline">') < page.index(found.judgment) < page.index("Training")
    assert typed("resume", "run")[1].count(found.numbers) == 1
    typed("report", "run", "--no-baselines", "-o", "page.html")
    assert "logistic" not in (tmp_path / "page.html").read_text()


def test_resume_makes_the_comparison_and_page_that_a_complete_run_lacks(typed, tmp_path):
    """The run looks as if it had been killed after its last checkpoint."""
    write_npz(tmp_path / "my.npz")
    typed("train", "my.npz", "--epochs", 1, "--run", "run", "--no-report", "--no-baselines", *QUICK)
    weights = (tmp_path / "run/checkpoint.safetensors").read_bytes()
    code, out, _ = typed("resume", "run")
    assert code == 0
    assert out.startswith("run is complete; writing what is missing.\n")
    assert comparison_of(load_run(tmp_path / "run")).numbers in out
    assert "logistic" in (tmp_path / "run/report.html").read_text()
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == weights
    assert typed("resume", "run")[1].startswith("run is complete; there is nothing to resume.\n")
    page, target = tmp_path / "run/report.html", tmp_path / "elsewhere.html"
    page.rename(target)
    page.symlink_to(target)
    before = target.read_bytes()
    assert "report in run/report.html" not in typed("resume", "run", "--no-report")[1]
    assert typed("resume", "run")[1].startswith("run is complete; writing what is missing.\n")
    assert (page.is_symlink(), target.read_bytes() == before) == (False, True)
    (tmp_path / "run/report.html").unlink()
    (tmp_path / "my.npz").rename(tmp_path / "moved.npz")
    code, out, err = typed("resume", "run")
    assert (code, "on 30 test rows; trained 1 epoch in" in out) == (0, True)
    assert "warning: the missing files could not be written: the data of run cannot be loaded" in err
    assert "--data PATH" in err
    assert typed("resume", "run", "--data", "moved.npz", "--quiet")[0] == 0
    assert (tmp_path / "run/report.html").exists()


def test_a_run_that_is_interrupted_in_its_folds_is_complete_and_resume_measures_the_same(typed, tmp_path, monkeypatch):
    write_npz(tmp_path / "my.npz", **NONE)
    words = ("train", "my.npz", "--epochs", 1, *QUICK)
    assert typed(*words, "--run", "whole")[0] == 0
    genuine, done = folds.train, []

    def stopped(*given, **more):
        if len(done) == 2:
            interrupt()
        done.append(given)
        return genuine(*given, **more)

    monkeypatch.setattr(folds, "train", stopped)
    code, _, err = typed(*words, "--run", "run")
    assert (code, err) == (130, "stopped in fold 3 of 5; nothing was written. To continue: selfens resume run\n")
    assert load_run(tmp_path / "run").evidence is None
    monkeypatch.setattr(folds, "train", genuine)
    code, out, _ = typed("resume", "run")
    assert (code, "by 5-fold cross-validation on 20 labeled rows" in out) == (0, True)
    assert tensors_of(load_run(tmp_path / "run")) == tensors_of(load_run(tmp_path / "whole"))


@pytest.mark.parametrize("words", [["--no-baselines"], ["--quiet"]])
def test_without_baselines_and_quietly(typed, tmp_path, words):
    write_npz(tmp_path / "my.npz")
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK, *words)
    assert "logistic" not in out
    assert (tmp_path / "run" / evidences.FILE).exists() == (words == ["--quiet"])
    assert ("logistic" in (tmp_path / "run/report.html").read_text()) == (words == ["--quiet"])
    assert len(out.splitlines()) == 1 or words != ["--quiet"]


def test_without_test_rows_the_error_is_measured_by_folds(typed, tmp_path):
    write_npz(tmp_path / "my.npz", **NONE)
    code, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK)
    run = load_run(tmp_path / "run")
    found = comparison_of(run)
    assert (code, run.evidence.folds, len(run.evidence.rows)) == (0, 5, 20)
    assert "training 5 times for 1 epoch, each time with part of the labels held out" in out
    low, high = run.evidence.error_interval
    how = "by 5-fold cross-validation on 20 labeled"
    assert f"error {run.evidence.error:.2f} % (90 % interval {low:.1f} to {high:.1f}), {how}" in out
    estimate = (
        f"an estimated {run.evidence.error:.2f} % of rows like yours, measured on 20 labeled rows that it did not see"
    )
    assert f"This model misclassifies {estimate} (90 %" in out
    assert "logistic regression on the same 5 folds" in (tmp_path / "run/report.html").read_text()
    assert typed("evaluate", "run")[1].splitlines() == found.lines  # what is already measured is printed again

    code, out, _ = typed("evaluate", "run", "--folds", 3, "--quiet")
    again = load_run(tmp_path / "run")
    assert (code, again.evidence.folds) == (0, 3)
    assert out.splitlines() == comparison_of(again).lines
    expected = evidence_by_folds(again.config, sources.load(again.config.source), 3)
    assert (again.evidence.probabilities == expected.probabilities).all()
    typed("report", "run", "-o", "page.html")
    for page in ("page.html", "run/report.html"):
        assert "logistic regression on the same 3 folds" in (tmp_path / page).read_text()
    for number in (0, 1, 50):
        refusal = f"error: {number} folds were asked for; expected 2 to 20, as many as labels can be hidden.\n"
        assert typed("evaluate", "run", "--folds", number) == (1, "", refusal)
    assert load_run(tmp_path / "run").evidence.folds == 3


def test_folds_replace_what_was_measured_on_test_rows(typed, tmp_path):
    write_npz(tmp_path / "my.npz")
    typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK)
    page = (tmp_path / "run/report.html").read_text()
    assert load_run(tmp_path / "run").evidence.folds == 0
    assert typed("evaluate", "run", "--folds", 2, "--quiet")[0] == 0
    run = load_run(tmp_path / "run")
    assert (run.evidence.folds, run.evidence.rows.tolist()) == (2, [*range(20)])
    assert "on the same 2 folds" not in page
    assert "on the same 2 folds" in (tmp_path / "run/report.html").read_text()
    out = typed("evaluate", "run")[1]
    assert out.startswith(f"test error {run.test_error:.2f} % (")  # of the test rows, as asked for
    assert "of 30 rows; 90 % interval" in out


@pytest.mark.parametrize(("labeled", "advice"), [(3, ""), (4, "selfens evaluate run --folds 2"), (9, "--folds 5")])
def test_folds_are_suggested_only_if_they_can_be_made(typed, tmp_path, labeled, advice):
    x, y = blobs(60)
    write_npz(tmp_path / "my.npz", **NONE, y_train=np.where(np.arange(60) < labeled, y, -1))
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK, "--no-report", "--no-baselines")
    assert "trained 1 epoch in" in out
    assert "its error was not measured" in out
    assert (advice in out, "--folds" in out) == (True, bool(advice))
    _, _, err = typed("evaluate", "run")
    assert (advice in err, "--folds" in err, "run has no test rows to evaluate on" in err) == (True, bool(advice), True)
    if advice:
        assert typed(*out.partition("selfens ")[2].partition("\n")[0].split())[0] == 0
    else:
        code, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "other", *QUICK)
        assert (code, load_run(tmp_path / "other").evidence) == (0, None)
        assert "its error was not measured" in out


def test_with_fewer_test_rows_than_labels_folds_are_made(typed, tmp_path):
    write_npz(tmp_path / "my.npz", x_test=TESTED[0][:10], y_test=TESTED[1][:10])
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK, "--no-report")
    assert "by 5-fold cross-validation on 20 labeled rows; trained 1 epoch" in out
    assert load_run(tmp_path / "run").evidence.folds == 5


def test_a_model_that_has_learned_nothing_is_warned_about(typed, tmp_path):
    write_npz(tmp_path / "my.npz", x_train=np.ones((60, 6)), x_test=np.ones((30, 6)))  # there is nothing to learn
    settings = sets(["network.noise=0", "training.threads=1"])
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *settings)
    assert "' for 100 % of the rows, while " in out
    assert "hardly tells the classes apart" in (tmp_path / "run/report.html").read_text()
    assert "rows are too few to tell whether" in out
    _, out, _ = typed("audit", "run")
    assert "The model misclassifies" in out
    assert 'class="warning">The model misclassifies' in (tmp_path / "issues.html").read_text()


def test_a_comparison_that_fails_costs_a_warning_only(typed, tmp_path, monkeypatch):
    def fail(*arrays, **how):
        raise MemoryError("no room")

    monkeypatch.setattr(measuring, "predictions", fail)
    write_npz(tmp_path / "my.npz")
    code, out, err = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK)
    assert code == 0
    assert "its errors could not be measured (MemoryError: no room)" in out + err
    page = (tmp_path / "run/report.html").read_text()
    assert "The comparison with simple methods is missing: MemoryError: no room" in page
    assert "Confusion matrix" in page
    assert out.splitlines()[-1].startswith("to predict")


def test_test_rows_that_training_has_seen_are_not_measured_on(typed, tmp_path):
    x, y = blobs(60)
    random = np.random.default_rng(0)
    for copies, num_folds in ((60, 5), (20, 0)):  # with copies only, folds say more
        tests, wrong = np.concatenate([x[:copies], TESTED[0][: 60 - copies]]), random.permutation(y)
        known = np.where(np.arange(60) < 20, wrong, -1)
        write_npz(tmp_path / "my.npz", x_train=x, y_train=known, x_test=tests, y_test=np.tile(wrong, 2)[: len(tests)])
        name = f"run{copies}"
        code, out, err = typed("train", "my.npz", "--epochs", 1, "--run", name, "--no-report", *QUICK)
        found = load_run(tmp_path / name).evidence
        assert (code, found.folds) == (0, num_folds)
        assert (
            f"{copies} of these rows have copies or look-alikes among the training rows" in typed("evaluate", name)[1]
        )
        assert "which makes the test error too low" in err
        if not num_folds:
            assert len(found.wrong) == len(tests) - copies
            assert f"Not measured on {copies} test rows with copies or look-alikes among the training rows." in out


def test_novelty_is_kept_even_if_nothing_is_measured(typed, tmp_path):
    write_npz(tmp_path / "my.npz", **NONE)
    words = ("--epochs", 1, "--run", "run", "--no-report", "--no-baselines", *QUICK)
    assert typed("train", "my.npz", *words)[0] == 0
    assert load_run(tmp_path / "run").novelty is not None
    np.savez(tmp_path / "new.npz", x=TESTED[0])
    assert typed("predict", "run", "new.npz", "-o", "out.csv")[0] == 0
    assert "novelty" in (tmp_path / "out.csv").read_text().partition("\n")[0].split(",")


def test_rows_that_repeat_in_training_too_are_measured_on(typed, tmp_path):
    random = np.random.default_rng(0)
    x, tests = (random.integers(0, 3, (rows, 3)).astype(np.float32) for rows in (90, 40))
    known = np.where(np.arange(90) < 20, x[:, 0] > 0, -1)
    write_npz(tmp_path / "my.npz", x_train=x, y_train=known, x_test=tests, y_test=(tests[:, 0] > 0).astype(int))
    assert typed("train", "my.npz", "--epochs", 1, "--run", "run", "--no-report", *QUICK)[0] == 0
    found = load_run(tmp_path / "run").evidence
    assert (found.folds, len(found.wrong)) == (0, 40)
