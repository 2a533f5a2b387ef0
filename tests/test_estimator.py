"""SelfEnsemblingClassifier: scikit-learn's checks and tools (pipelines, searches, joblib, pickle), labels and images."""

import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from support import blobs, environment, images
from torch import nn

from selfens.config import Config
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError, DataError, RunError, SelfensWarning
from selfens.estimator import SelfEnsemblingClassifier
from selfens.runs.evidence import CAUTION, FINAL
from selfens.runs.run import load_run
from selfens.runs.statistics import fit_temperature
from selfens.tools.folds import evidence_by_folds

SMALL = {"network.width": 16, "optimizer.learning_rate": 0.01, "training.threads": 1, "training.batch_size": 20}
NARROW = SMALL | {"network.width": 4}
EXPECTED_FAILURES = {
    "check_classifiers_classes": "fits the classes -1 and 1, but -1 means unlabeled here; the check exempts "
    "scikit-learn's own semi-supervised classifiers by their names"
}


def classifier(**changes):
    """Fits in a fraction of a second."""
    fixed = {"method": "temporal", "epochs": 10, "random_state": 0, "device": "cpu", "config": SMALL}
    return SelfEnsemblingClassifier(**(fixed | changes))


def few_labels(rows=60, labeled=30, seed=0):
    x, y = blobs(rows, seed)
    return x, np.where(np.arange(rows) < labeled, y, -1), y


@pytest.fixture(scope="module")
def fitted():
    x, y, _ = few_labels()
    return classifier(epochs=30).fit(x, y)


@parametrize_with_checks(
    [classifier(epochs=30), classifier(method="auto", epochs=4, config={"training.threads": 1, "network.width": 32})],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


# Labels


def test_unlabeled_rows_get_classes(fitted):
    x, given, truth = few_labels()
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert (fitted.transduction_ == truth)[given == -1].mean() > 0.65
    assert fitted.score(x, truth) > 0.75
    assert fitted.label_distributions_.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert (fitted.label_distributions_.argmax(axis=1) == fitted.transduction_).all()


@pytest.mark.parametrize(("method", "has_ensemble"), [("temporal", True), ("pi", False), ("supervised", False)])
def test_the_distributions_are_the_ensembles_if_there_is_one_and_else_the_networks(method, has_ensemble):
    x, y, _ = few_labels()
    model = classifier(method=method).fit(x, y)
    assert np.allclose(model.label_distributions_, model.predict_proba(x), atol=1e-6) != has_ensemble


def test_rows_that_were_never_visited_have_distributions_too():
    x, y, _ = few_labels(rows=50)  # one epoch of two batches of 20 leaves ten rows out
    model = classifier(epochs=1).fit(x, y)
    assert model.label_distributions_.sum(axis=1) == pytest.approx(1, abs=1e-5)


class Missing:
    """Behaves as pandas' NA does: a comparison with it is neither true nor false."""

    def __eq__(self, other):
        return self

    __ne__, __hash__ = __eq__, None

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


NUMBERS, NAMES = [0, 1, 2], ["ant", "bee", "cow"]


@pytest.mark.parametrize(
    ("names", "unknown", "kind"),
    [
        *((names, unknown, object) for names in (NUMBERS, NAMES) for unknown in (-1, None, "", np.nan, Missing())),
        (NUMBERS, -1, np.int8),
        (NUMBERS, np.nan, float),
        (NAMES, -1, str),
        (NAMES, "", str),
        (NAMES, "", list),
        (NAMES, np.nan, list),
        *((NUMBERS, None, kind) for kind in ("Int64", "category")),
        *((NAMES, None, kind) for kind in ("string", "str", "category")),
    ],
    ids=lambda value: "Missing" if isinstance(value, Missing) else None,
)
def test_labels_of_any_kind_with_any_word_for_unknown_are_learned_alike(names, unknown, kind):
    x, y, _ = few_labels()
    given = [unknown if label == -1 else names[label] for label in y]
    if isinstance(kind, str):
        given = pytest.importorskip("pandas").Series(given, dtype=kind)
    elif kind is not list:
        given = np.array(given, dtype=kind)
    model, expected = classifier(epochs=2).fit(x, given), classifier(epochs=2).fit(x, y)
    assert model.classes_.tolist() == names
    assert model.classes_.dtype.kind in ("iuf" if names is NUMBERS else "UO")
    assert (model.label_distributions_ == expected.label_distributions_).all()
    assert set(model.predict(x)) <= set(names)
    assert model.score(x, given) == expected.score(x, y)
    if kind is object or isinstance(kind, str):  # as Dataset takes them
        data = Dataset.from_arrays(x, given)
        assert (data.classes, data.labels.tolist()) == (tuple(map(str, names)), y.tolist())


def test_any_numbers_may_be_classes():
    x, y, _ = few_labels()
    model = classifier(epochs=2).fit(x, np.where(y == -1, -1, y * 10 - 7))
    assert model.classes_.tolist() == [-7, 3, 13]
    assert set(model.predict(x)) <= {-7, 3, 13}


def test_rows_that_are_all_labeled_cause_no_warning_and_a_useless_weight_does():
    x, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classifier(epochs=30).fit(x, y).score(x, y) > 0.75
    with pytest.warns(SelfensWarning, match="supervised training in all but"):
        classifier(config=SMALL | {"method.weight_max": 0}).fit(*few_labels()[:2])


def test_the_score_leaves_out_unlabeled_rows_and_weighs_the_others(fitted):
    x, y, truth = few_labels(seed=3)
    known, right = y != -1, fitted.predict(x) == truth
    weights = np.where(right, 3.0, 1.0)
    assert fitted.score(x, y) == fitted.score(x[known], y[known])
    assert fitted.score(x, truth, weights) == pytest.approx(weights[right].sum() / weights.sum())
    assert fitted.score(x, y, weights) == pytest.approx(weights[right & known].sum() / weights[known].sum())
    with pytest.raises(DataError, match="every one of y is -1"):
        fitted.score(x, np.full(len(x), -1))


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.where(np.arange(60) < 9, 1, -1), r"one class only \('1'\).*-1, which means unlabeled"),
        (np.full(60, -1), "names no class"),
        (np.array([["a"], [1], [-1]] * 20, dtype=object)[:, 0], "mix strings and numbers"),
        (np.linspace(0, 1, 60), "Unknown label type"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(y, sentence):
    with pytest.raises(ValueError, match=sentence):
        classifier().fit(blobs()[0], y)


# Sizes and kinds of data


@pytest.mark.parametrize("method", ["auto", "temporal", "pi", "supervised"])
@pytest.mark.parametrize("rows", [2, 3, 5])
def test_a_few_rows_of_one_feature(rows, method):
    x = np.arange(rows, dtype=float)[:, None]
    y = np.array([0, 1, -1, -1, -1])[:rows]
    model = SelfEnsemblingClassifier(method, epochs=5, random_state=0, device="cpu").fit(x, y)
    assert model.predict_proba(x).shape == (rows, 2)
    assert model.n_features_in_ == 1


def test_features_are_standardized_and_a_constant_one_does_no_harm():
    x, y, _ = few_labels()
    x = np.c_[x, np.full(len(x), 5.0)]
    scale = np.array([1e-3, 1, 1e3, 1e5, 1, 10, 1])
    plain, scaled = classifier(epochs=30).fit(x, y), classifier(epochs=30).fit(x * scale, y)
    assert plain.score(x, y) > 0.75
    assert plain.predict_proba(x) == pytest.approx(scaled.predict_proba(x * scale), abs=1e-2)


def test_values_too_large_for_the_network_are_refused_by_row():
    x, y = blobs()
    model = classifier(epochs=1).fit(x / 1000, y)
    large = x.copy()
    large[3], large[5, 0] = 1e38, -3e38
    for method in (model.predict, model.predict_proba, lambda rows: model.score(rows, y)):
        with pytest.raises(DataError, match=r"too large for the network in 2 rows \(the first is row 3\)"):
            method(large)
    large[:10], large[10:] = 3e38, -3e38
    large = large.astype(float)  # in which scikit-learn can add them
    with pytest.raises(
        DataError, match=r"^the training inputs hold NaN, or values too large to compute with in \d+ rows"
    ):
        classifier(epochs=1).fit(large, y)


def bright_corners(rows=60):
    y = np.arange(rows) % 2
    x = np.random.default_rng(0).integers(0, 100, size=(rows, 8, 8)).astype("uint8")
    x[y == 1, :4, :4] += 120
    return x, np.where(np.arange(rows) < 20, y, -1), y


def narrow(x, y):
    return classifier(epochs=2, config=NARROW).fit(x, y)


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("layout", ["NHW", "NHWC", "NCHW"])
def test_images_of_any_layout(kind, layout):
    x, y, truth = bright_corners()
    x = x if kind == "uint8" else x / 255
    x = {"NHW": x, "NHWC": np.repeat(x[..., None], 3, axis=3), "NCHW": np.repeat(x[:, None], 3, axis=1)}[layout]
    model = classifier(epochs=50, config=SMALL | {"network.width": 8}).fit(x, y)
    assert model.config_.network.name == "small"
    assert model.n_features_in_ == (64 if layout == "NHW" else 192)
    assert model.score(x, truth) > 0.75
    for other in (x[:, :6, :6], x.reshape(len(x), -1), np.zeros((3, 5, 5, 2))):
        with pytest.raises(DataError, match="trained on"):
            model.predict(other)


@pytest.mark.parametrize("divisor", [1, 255.0], ids=["bytes", "floats"])
def test_bytes_and_floats_from_0_to_1_are_predicted_alike_by_a_model_of_either(divisor):
    x, y, _ = bright_corners()
    model = narrow(x if divisor == 1 else x / divisor, y)
    for same in (x / 255.0, x.astype(int), x.tolist()):
        assert model.predict_proba(same) == pytest.approx(model.predict_proba(x), abs=1e-5)
    assert model.predict_proba(1.1 * x / 255).shape == (60, 2)
    for other in (x.astype(float), x / 127.5 - 1, x.astype(int) * 257):
        with pytest.raises(DataError, match="was trained on bytes, or floats from 0 to 1; use the same scale"):
            model.predict(other)


@pytest.mark.parametrize("mask", [False, True])
def test_integers_are_taken_as_they_are_if_they_are_on_the_scale_of_the_floats(mask):
    x, y, _ = bright_corners()
    x = (x > 100).astype("uint8") if mask else x
    model = narrow(x.astype(float), y)
    for same in (x, x.astype(int), x.tolist()):
        assert (model.predict_proba(same) == model.predict_proba(x.astype(float))).all()


def test_dark_images_do_not_change_the_scale():
    x, y, _ = bright_corners()
    black = (x > 100).astype("uint8")
    for model, given in ((narrow(x, y), black), (narrow(0.3 * x / 255, y), x)):
        assert model.predict_proba(given) == pytest.approx(model.predict_proba(given / 255), abs=1e-5)


def test_pixels_are_refused_by_a_model_of_standardized_images():
    x, y, _ = bright_corners()
    model = narrow((x - 60.0) / 50, y)
    for pixels in (x, x.astype(float)):
        message = r"range from 0 to 219, but this classifier was trained on images from -1.2 to 3.18; use the same"
        with pytest.raises(DataError, match=message):
            model.predict(pixels)
    assert model.predict((x - 60.0) / 40).shape == y.shape


# Parameters


def test_a_random_state_repeats_a_fit_and_a_generator_moves_on():
    x, y, _ = few_labels()
    first, again, other = (classifier(random_state=seed).fit(x, y).predict_proba(x) for seed in (5, 5, 6))
    assert (first == again).all()
    assert not np.allclose(first, other)
    before = torch.get_rng_state()
    model = classifier(random_state=np.random.RandomState(0))  # noqa: NPY002  scikit-learn's kind
    assert not np.allclose(model.fit(x, y).predict_proba(x), model.fit(x, y).predict_proba(x))
    assert torch.equal(before, torch.get_rng_state())


def test_fits_in_threads_give_what_they_give_alone():
    """Images, because their network draws noise and dropout at every step, and augmentation draws too."""
    data = images()
    x = data.raw[data.train_rows]
    y = np.where(np.arange(len(x)) < 12, data.train_labels, -1)
    model = classifier(epochs=8, config=NARROW)
    alone = clone(model).fit(x, y).label_distributions_
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda _: clone(model).fit(x, y).label_distributions_, range(6)))
    assert [(each == alone).all() for each in together] == [True] * 6


def test_fields_of_the_config_override_the_defaults():
    x, y, _ = few_labels()
    fields = SMALL | {"method.decay": 0.5, "schedule.rampup_epochs": None}
    model = classifier(epochs=np.int64(3), config=fields).fit(x, y)
    assert (model.config_.method.decay, model.config_.network.width, len(model.history_)) == (0.5, 16, 3)


def test_a_whole_config_replaces_the_defaults():
    x, y, _ = few_labels()
    overrides = ["network.name=mlp", "method.name=pi", "schedule.epochs=2", "training.device=cpu", "seed.base=3"]
    config = Config().with_overrides(overrides)
    model = SelfEnsemblingClassifier(config=config).fit(x, y)
    for section in ("network", "method", "schedule", "training", "seed"):
        assert getattr(model.config_, section) == getattr(config, section)
    assert SelfEnsemblingClassifier(config=config, random_state=1).fit(x, y).config_.seed.base != 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "temporale"}, "did you mean 'temporal'"),
        ({"network": "mpl"}, "did you mean 'mlp'"),
        ({"network": 3}, "expected a name, or a module"),
        ({"epochs": 0}, "expected at least 1"),
        ({"epochs": 2.5}, "expected a whole number"),
        ({"epochs": "10"}, "expected a whole number"),
        ({"config": {"method.weightmax": 1}}, "did you mean 'weight_max'"),
        ({"device": "tpu"}, "there is no device 'tpu'"),
        ({"config": "method.weight_max=1"}, r"config is 'method.weight_max=1' \(str\); expected a Config, or fields"),
    ],
)
def test_a_wrong_parameter_is_named(changes, sentence):
    x, y, _ = few_labels()
    with pytest.raises(ConfigError, match=sentence):
        classifier(**changes).fit(x, y)


def test_a_network_of_ones_own_is_trained_and_the_given_one_is_not():
    x, y, truth = few_labels()
    module = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, 3))
    before = module[0].weight.detach().clone()
    model = classifier(network=module, epochs=60).fit(x, y)
    assert (module[0].weight == before).all()
    assert model.score(x, truth) > 0.75
    assert (pickle.loads(pickle.dumps(model)).predict(x) == model.predict(x)).all()


def test_runs_are_kept_beside_each_other_and_can_be_read(tmp_path):
    x, y, _ = few_labels()
    model = classifier(epochs=1, run_dir=tmp_path / "run")
    for name in ("run", "run-2", "run-3"):
        assert model.fit(x, y).run_dir_ == tmp_path / name
        run = load_run(tmp_path / name, device="cpu")
        assert run.predict_proba(x) == pytest.approx(model.predict_proba(x), abs=1e-6)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="exists and is not a run"):
        classifier(epochs=1, run_dir=tmp_path / "thesis").fit(x, y)


def test_nothing_is_left_in_the_temporary_folder_and_only_a_verbose_fit_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    x, y, _ = few_labels()
    classifier(epochs=2).fit(x, y)
    assert capsys.readouterr() == ("", "")
    classifier(epochs=2, verbose=True).fit(x, y)
    assert "epoch 2/2" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# Errors measured by folds, rows that are too uncertain, rows unlike the training rows


@pytest.fixture(scope="module")
def measured():
    x, y, _ = few_labels()
    names = np.array(["cat", "dog", "Eel", ""])[y]
    return classifier(measure=True).fit(x, names), classifier().fit(x, names)


def test_the_error_is_measured_by_folds_if_asked_for_and_measuring_changes_no_prediction(measured):
    model, plain = measured
    x, y, _ = few_labels()
    data = Dataset.from_arrays(x, np.array([1, 2, 0, -1])[y], classes=["Eel", "cat", "dog"])
    expected = evidence_by_folds(model.config_, data, 5)
    found = model.comparison_.evidence
    assert (found.folds, found.rows.tolist()) == (5, [*range(30)])
    assert (found.labels == expected.labels).all()
    assert (found.probabilities == expected.probabilities).all()
    wrong = expected.probabilities.argmax(axis=1) != expected.labels
    assert model.error_ == pytest.approx(100 * wrong.mean() + expected.correction)
    assert model.error_interval_ == expected.error_interval
    trees = ["random forest", "boosted trees"]
    names = ["this model", "logistic regression", "self-training", *trees, "chance (largest class)"]
    assert [*model.comparison_.errors] == names
    assert model.comparison_.errors["this model"] == model.error_
    assert (plain.comparison_, plain.error_, plain.error_interval_, plain.temperature_) == (None, None, None, 1.0)
    assert (plain.predict(x) == model.predict(x)).all()
    assert (plain.label_distributions_ == model.label_distributions_).all()


def test_probabilities_are_calibrated_by_the_temperature_that_was_measured(measured):
    model, plain = measured
    x, _ = blobs(40, seed=5)
    found = model.comparison_.evidence
    assert model.temperature_ == FINAL * fit_temperature(found.probabilities, found.labels)
    assert model.temperature_ != 1
    expected = softmax(np.log(plain.predict_proba(x)) / model.temperature_, axis=1)
    assert model.predict_proba(x) == pytest.approx(expected, abs=1e-6)


def test_what_was_measured_is_in_a_pickle(measured):
    model, _ = measured
    x, _, _ = few_labels()
    again = pickle.loads(pickle.dumps(model))
    assert (again.error_, again.error_interval_, again.temperature_) == (
        model.error_,
        model.error_interval_,
        model.temperature_,
    )
    assert str(again.comparison_) == str(model.comparison_)
    assert (again.predict_proba(x) == model.predict_proba(x)).all()
    assert (again.predict(x, max_error=10) == model.predict(x, max_error=10)).all()
    assert (again.novelty(x) == model.novelty(x)).all()


def test_a_second_fit_forgets_what_the_first_one_measured():
    x, y, _ = few_labels()
    model = classifier(measure=True, epochs=1).fit(x, y)
    model.set_params(measure=False).fit(x, y)
    assert (model.comparison_, model.error_, model.temperature_) == (None, None, 1.0)


def test_few_labels_make_fewer_folds_and_too_few_are_refused():
    x, y = blobs()
    few = classifier(measure=True, epochs=1).fit(x, np.where(np.arange(60) < 5, y, -1))
    assert few.comparison_.evidence.folds == 4
    assert len(few.comparison_.evidence.rows) == 4  # the only label of the third class is always trained on
    one = classifier(measure=True, epochs=1)
    with pytest.raises(DataError, match="no class has more than one labeled row; leave measure out"):
        one.fit(x, np.where(np.arange(60) < 3, y, -1))
    assert not hasattr(one, "model_")


@pytest.mark.parametrize("max_error", [1e-6, 2, 10, 30, 99])
def test_rows_that_are_too_uncertain_for_an_error_get_another_answer(measured, max_error):
    model, plain = measured
    x, _ = blobs(200, seed=5)
    found = model.comparison_.evidence
    caution = fit_temperature(found.probabilities, found.labels, CAUTION)
    assert caution > model.temperature_
    known, new = (
        softmax(np.log(np.maximum(each, 1e-12)) / temperature, axis=1).max(axis=1)
        for each, temperature in (
            (found.probabilities.astype(float), caution),
            (plain.predict_proba(x), FINAL * caution),
        )
    )
    ranked = sorted(known, reverse=True)
    allowed = [k for k in range(1, 31) if 100 * np.mean([1 - each for each in ranked[:k]]) <= max_error]
    least = 2 if not allowed else 0 if max(allowed) == len(ranked) else ranked[max(allowed) - 1]
    expected = np.where(new >= least - 1e-9, plain.predict(x).astype(object), "not sure")
    assert (model.predict(x, max_error=max_error, not_sure="not sure") == expected).all()
    if max_error <= 2:
        assert (expected == "not sure").any()
    assert ((model.predict(x, max_error=max_error) == -1) == (expected == "not sure")).all()
    assert model.predict(x, max_error=max_error, not_sure=None).tolist().count(None) == (expected == "not sure").sum()


def test_if_all_rows_are_answered_the_answers_are_as_always(measured):
    model, plain = measured
    x, _, _ = few_labels()
    x = x[model.predict(x, max_error=45) != -1]
    assert len(x) > 10
    found = model.predict(x, max_error=45)
    assert found.dtype == plain.predict(x).dtype
    assert (found == plain.predict(x)).all()


def test_an_answer_without_an_error_that_says_when_is_refused(measured):
    (model, _), x = measured, blobs()[0]
    for other in ("?", None, 7):
        with pytest.raises(ConfigError, match="not_sure was given without max_error"):
            model.predict(x[:2], not_sure=other)


@pytest.mark.parametrize("word", ["NA", "unlabeled", "Unknown"])
def test_words_that_mean_no_label_in_a_file_are_classes_and_counted(word):
    x, y = blobs(30)
    y = np.array(["a", "b", word], dtype=object)[y]
    said = f"rows 10 of class '{word}': if this means that they have no label, give them -1 as a label"
    with pytest.warns(SelfensWarning, match=said):
        model = classifier(epochs=1).fit(x, y)
    assert word in model.classes_


@pytest.mark.parametrize("max_error", [0, -5, 100, float("nan")])
def test_an_error_that_is_no_percentage_is_refused(measured, max_error):
    model, plain = measured
    x, _ = blobs()
    with pytest.raises(ConfigError, match=r"max_error is .*; expected percent of the answers, above 0 and below 100"):
        model.predict(x, max_error=max_error)
    with pytest.raises(ConfigError, match=r"max_error is '5' \(str\); expected percent of the answers"):
        model.predict(x, max_error="5")
    with pytest.raises(ConfigError, match="max_error needs a measured error; fit with measure=True"):
        plain.predict(x, max_error=5)


@pytest.mark.parametrize("scale", [1, np.array([1e-3, 1, 1e3, 1e6, 1, 10])])
def test_novelty_is_the_share_of_training_rows_that_are_nearer_to_the_others(scale):
    x, y, _ = few_labels()
    near, far = blobs(40, seed=5)[0], blobs(5, seed=6)[0] + 30
    new = np.concatenate([near, far])
    model = classifier(epochs=1).fit(x * scale + scale, y)
    standard = StandardScaler().fit(x)
    rows, others = standard.transform(x), standard.transform(new)
    neighbors = NearestNeighbors(n_neighbors=6).fit(rows)
    own, theirs = neighbors.kneighbors(rows)[0][:, 5], neighbors.kneighbors(others)[0][:, 4]
    expected = [np.mean(own < distance) for distance in theirs]
    found = model.novelty(new * scale + scale)
    assert found == pytest.approx(expected, abs=1 / 60 + 1e-6)  # two distances may be equal but for rounding
    assert np.mean(np.abs(found - expected) > 1e-6) < 0.1
    assert (found[40:] == 1).all()
    assert found[:40].mean() < 0.9


def test_novelty_of_images_and_of_a_frame():
    x, y, _ = bright_corners()
    model = narrow(x, y)
    inverted = 255 - x[:10]
    assert model.novelty(inverted).min() > np.median(model.novelty(x))
    with pytest.raises(DataError, match="trained on"):
        model.novelty(x[:, :6, :6])
    pandas = pytest.importorskip("pandas")
    values, labels, _ = few_labels()
    frame = pandas.DataFrame(values, columns=[*"abcdef"])
    model = classifier(epochs=1).fit(frame, labels)
    assert (model.novelty(frame + 30) == 1).all()
    assert model.novelty(frame).mean() < 0.9
    with pytest.raises(NotFittedError):
        classifier().novelty(frame)


# With the rest of scikit-learn


def test_before_a_fit_nothing_is_predicted(fitted):
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).predict(blobs()[0])


def test_a_pickle_is_used_here_and_by_another_process(fitted, tmp_path):
    x, _, _ = few_labels()
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()
    assert again.history_ == fitted.history_
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(fitted))
    np.save(tmp_path / "x.npy", x)
    code = "import pickle, numpy as np; m = pickle.load(open('model.pickle', 'rb')); print(m.predict(np.load('x.npy')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == str(fitted.predict(x)), done.stderr


def test_in_a_pipeline():
    x, y, truth = few_labels()
    model = make_pipeline(StandardScaler(), classifier(epochs=30)).fit(x, y)
    assert model.score(x, truth) > 0.75


def folds_over_labeled_rows(x, y, folds):
    """As docs/estimator.md has it."""
    labeled, unlabeled = np.flatnonzero(y != -1), np.flatnonzero(y == -1)
    parts = StratifiedKFold(folds).split(x[labeled], y[labeled])
    return [(np.concatenate([labeled[train], unlabeled]), labeled[test]) for train, test in parts]


def test_cross_validation_over_the_labeled_rows_also_in_other_processes():
    x, y, _ = few_labels()
    folds = folds_over_labeled_rows(x, y, 3)
    alone = cross_val_score(classifier(epochs=30), x, y, cv=folds)
    together = cross_val_score(classifier(epochs=30), x, y, cv=folds, n_jobs=2)
    assert alone.mean() > 0.7
    assert alone == pytest.approx(together)
    assert cross_val_score(classifier(epochs=30), x, y, cv=3).mean() > 0.7  # with unlabeled rows in the folds


def test_a_grid_search_over_parameters_and_config():
    x, y, _ = few_labels()
    grid = {"method": ["pi", "temporal"], "config": [SMALL, SMALL | {"network.width": 8}]}
    search = GridSearchCV(classifier(), grid, cv=folds_over_labeled_rows(x, y, 2)).fit(x, y)
    assert search.best_params_["method"] in ("pi", "temporal")
    assert search.predict(x).shape == (60,)


def test_digits_at_few_labels_and_with_the_defaults():
    x, truth = load_digits(return_X_y=True)
    y = np.where(np.random.default_rng(0).random(len(truth)) < 0.06, truth, -1)  # 112 labels
    model = SelfEnsemblingClassifier(random_state=0, device="cpu").fit(x, y)
    assert (model.transduction_ == truth)[y == -1].mean() > 0.85
