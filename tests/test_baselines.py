"""Baselines: against scikit-learn called directly, the words of a comparison, the file in the run, and what commands print."""

import json
import pickle
import re
import warnings

import numpy as np
import pytest
import sklearn.preprocessing
from scipy.stats import binomtest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from support import SMALL_IMAGES, At, blobs, config, crash, crashed, features, images, sets, write_npz
from torch import nn

from selfens import load_run, presets, resume, train, write_report
from selfens.auto import config_for
from selfens.data import sources
from selfens.errors import DataError
from selfens.estimator import SelfEnsemblingClassifier
from selfens.runs.model import Model
from selfens.tools import audit, baselines, folds
from selfens.tools.baselines import (
    CHANCE,
    LOGISTIC,
    OURS,
    SELF_TRAINING,
    compare,
    compare_run,
    one_class,
    predictions,
    stored,
)

QUICK = sets(["network.width=8", "training.threads=1", "training.batch_size=20"])
LABELS, TESTED = np.where(np.arange(60) < 12, np.arange(60) % 3, -1), blobs(30, seed=1)


def errors(predicted, truth):
    return {name: 100 * float(np.mean(classes != truth)) for name, classes in predicted.items()}


# The fits


@pytest.mark.parametrize("offset", [0, 1e6])
def test_the_baselines_are_those_of_scikit_learn_on_the_same_rows(offset):
    scales = [1, 50, 1, 1, 0.01, 1]
    x, tested = blobs()[0] * scales + offset, TESTED[0] * scales + offset
    found, notes = predictions(x, LABELS, tested)
    scaler, known = StandardScaler().fit(x), LABELS >= 0
    scaled = scaler.transform(x)
    direct = {
        LOGISTIC: LogisticRegression(max_iter=1000).fit(scaled[known], LABELS[known]),
        SELF_TRAINING: SelfTrainingClassifier(LogisticRegression(max_iter=1000)).fit(scaled, LABELS),
        CHANCE: DummyClassifier(strategy="most_frequent").fit(scaled[known], LABELS[known]),
    }
    assert [*found] == [*direct]
    for name, model in direct.items():
        assert (found[name] == model.predict(scaler.transform(tested))).all()
    assert errors(found, TESTED[1])[LOGISTIC] < errors(found, TESTED[1])[CHANCE]
    assert notes == []


def test_the_scaler_sees_training_rows_only(monkeypatch):
    x, _ = blobs()
    seen = []

    class Watched(StandardScaler):
        def partial_fit(self, rows, *more):
            seen.append(rows.copy())
            return super().partial_fit(rows, *more)

    monkeypatch.setattr(sklearn.preprocessing, "StandardScaler", Watched)
    far = [predictions(x, LABELS, TESTED[0] + shift)[0] for shift in (0, 1000)]
    assert len(seen) == 2
    assert all((rows == x).all() for rows in seen)
    assert (far[0][LOGISTIC] != far[1][LOGISTIC]).any()


def test_a_table_is_not_standardized_a_second_time():
    random = np.random.default_rng(0)
    x = np.c_[random.normal(size=(60, 2)), random.random((60, 1)) < 0.05].astype(np.float32)
    y, labels = (x[:, 0] + 3 * x[:, 2] > 0).astype(np.int64), np.full(60, -1)
    labels[:20] = y[:20]
    found, _ = predictions(x, labels, x, standardize=False)
    expected = LogisticRegression(max_iter=1000).fit(x[:20].astype(np.float64), y[:20]).predict(x)
    np.testing.assert_array_equal(found[LOGISTIC], expected)


def test_images_are_flattened_and_large_ones_reduced_by_means():
    large = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 48), dtype=np.uint8)
    means = large.reshape(60, 3, 16, 2, 16, 3).mean(axis=(3, 5))
    for pixels, vectors, notes in (
        (large, means, ["The baselines see images reduced to 16 pixels a side."]),
        (large[:, :, :16, :8], large[:, :, :16, :8], []),
    ):
        found, said = predictions(pixels[:40], LABELS[:40], pixels[40:])
        flat = vectors.reshape(60, -1)
        expected, _ = predictions(flat[:40], LABELS[:40], flat[40:])
        assert all((found[name] == expected[name]).all() for name in expected)
        assert said == notes


def test_much_data_is_thinned_out_and_said(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_UNLABELED", 60)
    monkeypatch.setattr(baselines, "MAX_LABELED", 36)
    monkeypatch.setattr(baselines, "MAX_ITERATIONS", 20)
    x, y = blobs()
    _, notes = predictions(x, LABELS, x)
    assert notes[:2] == ["They see 6 of the 12 labeled rows.", "Self-training sees 10 of 48 unlabeled rows."]
    monkeypatch.setattr(baselines, "WORK", 0)
    monkeypatch.setattr(baselines, "MIN_ITERATIONS", 2)
    assert predictions(x, y, x)[1][-1] == "Logistic regression was stopped after 2 iterations."


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.arange(60) % 3, [LOGISTIC, CHANCE]),  # nothing is unlabeled
        (np.r_[0, 0, 0, 1, 1, 2, np.full(54, -1)], [LOGISTIC, SELF_TRAINING, CHANCE]),  # a class with one label
        (np.r_[0, 1, np.full(58, -1)], [LOGISTIC, SELF_TRAINING, CHANCE]),  # two classes
    ],
)
@pytest.mark.parametrize("scale", [1, 0, 1e30])
def test_whatever_is_given_nothing_is_said_on_the_screen(labels, names, scale, capfd):
    x, _ = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = predictions(scale * x.astype(np.float32), labels, scale * x[:7])
    assert [*found] == names
    assert all(set(classes) <= set(labels) - {-1} for classes in found.values())
    assert capfd.readouterr() == ("", "")


# Words


def compared(ours, logistic, chance, **about):
    """Of predictions that are right in this many of 200 rows of two classes, the first ones."""
    truth = np.arange(200) % 2
    rights = {OURS: ours, LOGISTIC: logistic, CHANCE: chance}
    predicted = {name: np.where(np.arange(200) < right, truth, 1 - truth) for name, right in rights.items()}
    return compare(predicted, truth, labels=1250, **about)


UNSURE = "though 200 rows are too few to be sure"


def test_a_win_is_said_in_one_sentence():
    won = compared(180, 150, 100)
    others = "logistic regression on the same 1,250 labels 25.00 %, chance (largest class) 50.00 %"
    assert won.numbers == f"This model misclassifies 10.00 % of 200 test rows; {others}."
    assert won.judgment == "It is better than logistic regression by 15.00 points."
    assert won.table == [("", "error %"), (OURS, "10.00"), (LOGISTIC, "25.00"), (CHANCE, "50.00")]
    assert won.errors == {OURS: 10, LOGISTIC: 25, CHANCE: 50}
    assert str(won).splitlines()[1] == "this model                10.00"
    assert "balanced" not in str(won)


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ((150, 180, 100), "Logistic regression is better by 15.00 points: use it, or try another method, more epochs"),
        ((150, 150, 100), f"Logistic regression does as well, {UNSURE}: use it, or try another"),
        ((90, 80, 100), "Always predicting the largest class is better by 5.00 points: try another method"),
        ((100, 80, 100), f"Always predicting the largest class does as well, {UNSURE}: try"),
        ((150, 152, 100), f"is better by 1.00 points, {UNSURE}: use it"),
        ((152, 150, 100), f"It is better than logistic regression by 1.00 points, {UNSURE}."),
    ],
)
def test_a_loss_or_a_tie_says_so_and_what_to_try(rights, words):
    assert words in compared(*rights).judgment
    advice = "try features of a pretrained backbone, more epochs or more labels."
    assert (advice in compared(*rights, is_images=True).judgment) == (rights[0] <= max(rights[1:]))


def test_as_many_mistakes_with_a_lower_balanced_error_is_no_reason_to_change():
    truth = np.array([0] * 8 + [1] * 2)
    ours, theirs = truth.copy(), truth.copy()
    ours[:2], theirs[8:] = 1, 0
    found = compare({OURS: ours, LOGISTIC: theirs}, truth, labels=10)
    assert found.judgment == "Logistic regression makes as many mistakes, but its balanced error is higher."
    found = compare({OURS: truth, LOGISTIC: truth}, truth, labels=10)
    assert found.judgment == "Logistic regression makes no mistakes either."


@pytest.mark.parametrize(("only_ours", "only_theirs"), [(0, 0), (0, 4), (0, 9), (3, 20), (10, 12), (40, 20)])
def test_a_significant_difference_is_one_by_the_exact_test_too(only_ours, only_theirs):
    truth = np.zeros(100, int)
    ours, theirs = truth.copy(), truth.copy()
    ours[:only_ours], theirs[50 : 50 + only_theirs] = 1, 1
    found = compare({OURS: ours, LOGISTIC: theirs}, truth, labels=9).results[1].is_significant
    count = only_ours + only_theirs
    assert found == (count > 0 and binomtest(only_ours, count).pvalue < 0.05)


def test_uneven_classes_show_the_balanced_error_beside_the_error():
    truth = np.r_[np.zeros(180, int), np.ones(20, int)]
    predicted = {OURS: np.zeros(200, int), LOGISTIC: np.r_[np.ones(30, int), np.zeros(150, int), np.ones(20, int)]}
    found = compare(predicted, truth, labels=10)
    assert "misclassifies 10.00 % of 200 test rows (balanced error 50.00 %);" in found.numbers
    assert found.judgment.startswith(
        "By the balanced error logistic regression is better, 8.33 % against 50.00 %: use it"
    )
    assert found.table[1] == (OURS, "10.00", "50.00")
    for result in found.results:
        expected = 100 * (1 - balanced_accuracy_score(truth, predicted[result.name]))
        assert result.balanced_error == pytest.approx(expected)


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
    run = train(config("temporal"), tmp_path_factory.mktemp("baselines") / "run", dataset=features())
    run.data(features())
    return run


@pytest.mark.parametrize("setting", ["", "labels.validation=0.25", "training.rows=labeled", "labels.noise=50"])
def test_a_run_is_compared_on_the_rows_and_labels_it_saw(tmp_path, monkeypatch, setting):
    given = []
    monkeypatch.setattr(baselines, "predictions", lambda *arrays, **how: given.append(arrays) or predictions(*arrays))
    data, method = features(), "supervised" if "rows" in setting else "temporal"
    run = train(config(method, *filter(None, [setting])), tmp_path / "run", dataset=data)
    found, (inputs, labels, tested) = compare_run(run), given[0]
    assert found.errors[OURS] == pytest.approx(run.test_error)
    direct, _ = predictions(inputs, labels, tested)
    assert {name: found.errors[name] for name in direct} == errors(direct, data.test_labels)
    assert len(inputs) == len(labels) == (12 if "rows" in setting else 60 - len(run.labels.validation))
    assert sorted(labels[labels >= 0]) == sorted(run.labels.labels)
    assert (SELF_TRAINING in found.errors) == ("rows" not in setting)
    assert (found.labels, found.rows, found.folds) == (len(run.labels.rows), 30, 0)


def test_a_comparison_survives_in_the_run_and_is_not_made_twice(trained, monkeypatch, tmp_path):
    found = compare_run(trained)
    baselines.store(trained, found)
    monkeypatch.setattr(baselines, "predictions", lambda *arrays, **how: pytest.fail("fitted again"))
    assert compare_run(load_run(trained.path)) == found
    page = write_report(trained, tmp_path / "page.html").read_text()
    assert found.numbers.replace(" %", "\N{NO-BREAK SPACE}%") in page
    assert compare_run(trained, wanted=False) is None
    assert "logistic" not in write_report(trained, tmp_path / "page.html", baselines=False).read_text()
    (trained.path / baselines.FILE).unlink()


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw | {"run": "another"},
        lambda raw: raw | {"results": []},
        lambda raw: raw | {"rows": "many"},
        lambda raw: raw | {"unknown": 1},
        lambda raw: raw | {"results": [raw["results"][0] | {"error": 10**400}, raw["results"][1]]},
        lambda raw: raw | {"notes": [["<b>"]]},
        lambda raw: [1, 2],
        lambda raw: {},
        lambda raw: None,
    ],
)
def test_a_damaged_comparison_is_as_none(trained, change):
    baselines.store(trained, compared(3, 2, 1))
    path = trained.path / baselines.FILE
    assert stored(trained) is not None
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert stored(trained) is None
    path.write_text(path.read_text()[:-9])
    assert stored(trained) is None
    path.unlink()


def test_public_data_sets_have_no_baselines_unless_asked_for(tmp_path):
    run = train(presets.get("digits-supervised").with_overrides(["schedule.epochs=1"]), tmp_path / "run")
    assert compare_run(run) is None
    assert compare_run(run, wanted=True).rows == 500


def test_a_run_that_is_not_finished_or_has_no_test_rows_is_not_compared(tmp_path):
    with crashed():
        train(config("temporal"), tmp_path / "run", dataset=features(), progress=At(1, 0, crash))
    stopped = load_run(tmp_path / "run")
    stopped.data(features())
    assert compare_run(stopped) is None
    assert compare_run(resume(tmp_path / "run", dataset=features())) is not None
    untested = features(test_rows=0)
    run = train(config(), tmp_path / "untested", dataset=untested)
    assert compare_run(run, wanted=True) is None
    page = write_report(run, tmp_path / "p.html", dataset=untested).read_text()
    assert "Without test rows the model was not compared" in page


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
    found = folds.compare_folds(config("temporal"), features(test_rows=0), 3)
    assert (found.folds, found.rows, found.labels) == (3, 12, 12)
    hidden = np.concatenate([arrays[2][:] for arrays in given])
    assert len(np.unique(hidden, axis=0)) == 12
    for inputs, labels, tested in given:
        assert (len(inputs), (labels >= 0).sum(), len(tested)) == (56, 8, 4)
        assert not (inputs[:][:, None] == tested[:][None]).all(axis=2).any()


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
    assert folds.compare_folds(quick, sources.load(quick.source), 4).rows == 20
    SelfEnsemblingClassifier(epochs=1, baselines=True, random_state=0).fit(frame[["a", "b"]], frame["y"])
    assert [len(each.inputs) for each in trained_on] == [35] * 4 + [36] * 5
    for each in trained_on:
        numbers, words = np.split(each.inputs[:] / np.sqrt(each.encoder.width / 2), [1], axis=1)
        assert abs(numbers.mean()) < 1e-5
        assert numbers.std() == pytest.approx(1, rel=1e-5)
        assert each.encoder.columns[1].rare  # a value whose other row is hidden is there only once
        assert (words[:, :-1].round().sum(axis=0) == 2).all()


def test_chance_in_folds_is_the_largest_class_of_all_labels():
    for count in (2, 3, 12):  # in twelfths, the largest of the others is never the hidden row's own class
        found = folds.compare_folds(config("supervised", epochs=1), features(test_rows=0), count)
        assert found.errors[CHANCE] == pytest.approx(100 * 2 / 3)


def test_each_fold_is_one_line_and_warns_once(typed, tmp_path):
    lines = ["id,a,y", *(f"r{n},{n % 7},{'xz'[n % 2]}" for n in range(40)), "r40,much,x"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert typed("train", "t.csv", "--label", "y", "--epochs", 2, "--run", "run", "--quiet", "--no-report")[0] == 0
    for command in ("evaluate", "audit"):
        code, out, err = typed(command, "run", "--folds", 3)
        first, *each = out.splitlines()[:4]
        assert (code, first) == (0, "training 3 times for 2 epochs, each time with part of the labels held out")
        assert [re.fullmatch(r"fold (\d/3)  \d+ s  \d+ s left", line)[1] for line in each] == ["1/3", "2/3", "3/3"]
        assert "/tmp" not in out
        assert err.count("not a number") == 1


def test_folds_of_images_and_of_extra_rows_work():
    found = folds.compare_folds(config("supervised", *SMALL_IMAGES, epochs=1), images(), 2)
    assert found.is_images
    more = features(test_rows=0).with_extra(blobs(20, seed=5)[0])
    assert folds.compare_folds(config("temporal", epochs=1), more, 2).rows == 12


def test_the_estimator_compares_by_folds_if_asked_to():
    x, y = blobs()
    y = np.array(["cat", "dog", "Eel"])[y]
    y[12:] = ""
    fast = {"epochs": 2, "random_state": 0, "config": {"network.width": 8}}
    model = SelfEnsemblingClassifier(baselines=True, **fast).fit(x, y)
    assert [*model.baselines_.errors] == [OURS, LOGISTIC, SELF_TRAINING, CHANCE]
    assert model.baselines_.folds == 5
    assert pickle.loads(pickle.dumps(model)).baselines_ == model.baselines_
    plain = SelfEnsemblingClassifier(**fast).fit(x, y)
    assert plain.baselines_ is None
    assert (plain.predict_proba(x) == model.predict_proba(x)).all()  # the comparison changes nothing
    few = SelfEnsemblingClassifier(baselines=True, **fast).fit(x, np.where(np.arange(60) < 5, y, ""))
    assert (few.baselines_.folds, few.baselines_.rows) == (4, 4)  # the only Eel is always trained on
    one = SelfEnsemblingClassifier(baselines=True, **fast)
    with pytest.raises(DataError, match="no class has more than one labeled row; leave baselines out"):
        one.fit(x, np.where(np.arange(60) < 3, y, ""))
    assert not hasattr(one, "model_")


def test_folds_train_copies_of_a_module_that_was_given():
    module = nn.Linear(6, 3)
    before = module.weight.detach().clone()
    SelfEnsemblingClassifier(network=module, epochs=1, baselines=True, random_state=0).fit(blobs()[0], LABELS)
    assert (module.weight == before).all()


# Commands


def test_train_on_custom_data_prints_a_table_and_a_sentence(typed, tmp_path):
    write_npz(tmp_path / "my.npz", classes=np.array(["ant", "Bee", "cow"]))
    code, out, err = typed("train", "my.npz", "--epochs", 2, "--run", "run", *QUICK)
    found = stored(load_run(tmp_path / "run"))
    lines = out.splitlines()
    assert code == 0
    header = next(number for number, line in enumerate(lines) if line.strip() == "error %")
    assert str(found).splitlines()[:5] == lines[header:][:5]
    assert f"{found.numbers} {found.judgment}" in lines
    assert "Warning" not in out + err
    page = (tmp_path / "run/report.html").read_text()
    assert page.index("<h1>This model misclassifies") < page.index("Training")
    assert typed("resume", "run")[1].count(found.numbers) == 1
    typed("report", "run", "--no-baselines", "-o", "page.html")
    assert "logistic" not in (tmp_path / "page.html").read_text()


def test_resume_makes_the_comparison_and_page_that_a_complete_run_lacks(typed, tmp_path):
    """As if it had been killed after its last checkpoint."""
    write_npz(tmp_path / "my.npz")
    typed("train", "my.npz", "--epochs", 1, "--run", "run", "--no-report", "--no-baselines", *QUICK)
    weights = (tmp_path / "run/checkpoint.safetensors").read_bytes()
    code, out, _ = typed("resume", "run")
    assert code == 0
    assert out.startswith("run is complete; writing what is missing.\n")
    assert stored(load_run(tmp_path / "run")).numbers in out
    assert "logistic" in (tmp_path / "run/report.html").read_text()
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == weights
    assert typed("resume", "run")[1].startswith("run is complete; there is nothing to resume.\n")
    (tmp_path / "run/report.html").unlink()
    (tmp_path / "my.npz").rename(tmp_path / "moved.npz")
    code, out, err = typed("resume", "run")
    assert (code, "test error" in out) == (0, True)
    assert "warning: this could not be written: the data of run cannot be loaded" in err
    assert "--data PATH" in err
    assert typed("resume", "run", "--data", "moved.npz", "--quiet")[0] == 0
    assert (tmp_path / "run/report.html").exists()


@pytest.mark.parametrize("words", [["--no-baselines"], ["--quiet"]])
def test_without_baselines_and_quietly(typed, tmp_path, words):
    write_npz(tmp_path / "my.npz")
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK, *words)
    assert "logistic" not in out
    assert (tmp_path / "run" / baselines.FILE).exists() == (words == ["--quiet"])
    assert ("logistic" in (tmp_path / "run/report.html").read_text()) == (words == ["--quiet"])
    assert len(out.splitlines()) == 1 or words != ["--quiet"]


def test_without_test_rows_nothing_is_claimed_until_folds_are_asked_for(typed, tmp_path):
    write_npz(tmp_path / "my.npz", x_test=None, y_test=None)
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK)
    assert "no test rows, so it was not compared with simple methods" in out
    assert "selfens evaluate run --folds 5" in out
    assert "logistic" not in out + (tmp_path / "run/report.html").read_text()
    code, out, _ = typed("evaluate", "run", "--folds", 3, "--quiet")
    assert code == 0
    assert "of 20 labeled rows that it did not see" in out
    typed("report", "run", "-o", "page.html")
    for page in ("page.html", "run/report.html"):
        assert "logistic regression on the same 3 folds" in (tmp_path / page).read_text()
    refusal = "error: 50 folds were asked for; expected 2 to 20, as many as labels can be hidden.\n"
    assert typed("evaluate", "run", "--folds", 50) == (1, "", refusal)


@pytest.mark.parametrize(("labeled", "advice"), [(3, ""), (4, "selfens evaluate run --folds 2"), (9, "--folds 5")])
def test_folds_are_suggested_only_if_they_can_be_made(typed, tmp_path, labeled, advice):
    x, y = blobs(60)
    write_npz(tmp_path / "my.npz", x_test=None, y_test=None, y_train=np.where(np.arange(60) < labeled, y, -1))
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK, "--no-report")
    assert (advice in out, "--folds" in out) == (True, bool(advice))
    _, _, err = typed("evaluate", "run")
    assert (advice in err, "--folds" in err, "run has no test rows to evaluate on" in err) == (True, bool(advice), True)
    if advice:
        assert typed(*out.partition("selfens ")[2].partition("\n")[0].split())[0] == 0


def test_with_few_test_rows_folds_are_suggested(typed, tmp_path):
    write_npz(tmp_path / "my.npz", x_test=TESTED[0][:10], y_test=TESTED[1][:10])
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK, "--no-report")
    sentence = (
        "there are more labels than test rows, so cross-validation is more accurate: selfens evaluate run --folds 5"
    )
    assert f"{sentence}\n" in out


def test_a_model_that_has_learned_nothing_is_warned_about(typed, tmp_path):
    write_npz(tmp_path / "my.npz", x_train=np.ones((60, 6)), x_test=np.ones((30, 6)))  # there is nothing to learn
    settings = sets(["network.noise=0", "training.threads=1"])
    _, out, _ = typed("train", "my.npz", "--epochs", 1, "--run", "run", *settings)
    assert "' for 100 % of the rows, while " in out
    assert "hardly tells the classes apart" in (tmp_path / "run/report.html").read_text()
    assert "does as well" in out
    _, out, _ = typed("audit", "run")
    assert "The model misclassifies" in out
    assert 'class="warning">The model misclassifies' in (tmp_path / "issues.html").read_text()


def test_a_comparison_that_fails_costs_a_warning_only(typed, tmp_path, monkeypatch):
    def fail(*arrays, **how):
        raise MemoryError("no room")

    monkeypatch.setattr(baselines, "predictions", fail)
    write_npz(tmp_path / "my.npz")
    code, out, err = typed("train", "my.npz", "--epochs", 1, "--run", "run", *QUICK)
    assert code == 0
    assert "The comparison with the baselines is missing: MemoryError" in (tmp_path / "run/report.html").read_text()
    assert "could not be compared with the baselines (MemoryError: no room)" in out + err
    assert out.splitlines()[-1].startswith("to predict")
