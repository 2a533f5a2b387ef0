"""SelfEnsemblingClassifier: scikit-learn's battery, its company (pipelines, searches, joblib, pickle), and what is its own."""

import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from support import blobs, environment, images
from torch import nn

from selfens import presets
from selfens.config import Config
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError, DataError, RunError, SelfensWarning
from selfens.estimator import CHECKPOINT_EVERY, SelfEnsemblingClassifier, default_config, is_labeled
from selfens.runs.run import load_run

SMALL = {"network.width": 16, "optimizer.learning_rate": 0.01, "training.threads": 1, "training.batch_size": 20}
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


# scikit-learn's battery


@parametrize_with_checks(
    [classifier(epochs=30), classifier(method="auto", epochs=4, config={"training.threads": 1, "network.width": 32})],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_battery_of_scikit_learn(estimator, check):
    check(estimator)


# Labels


def test_unlabeled_rows_get_classes(fitted):
    x, given, truth = few_labels()
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.transduction_.shape == (60,)
    assert (fitted.transduction_ == truth)[given == -1].mean() > 0.65
    assert fitted.score(x, truth) > 0.75


def test_the_distributions_are_probabilities_and_agree_with_the_transduction(fitted):
    assert fitted.label_distributions_.shape == (60, 3)
    assert fitted.label_distributions_.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert (fitted.label_distributions_.argmax(axis=1) == fitted.transduction_).all()


def test_the_distributions_of_temporal_ensembling_are_the_ensemble(fitted):
    x, _, _ = few_labels()
    assert not np.allclose(fitted.label_distributions_, fitted.predict_proba(x), atol=1e-3)


@pytest.mark.parametrize("method", ["pi", "supervised"])
def test_other_methods_give_the_networks_own_predictions(method):
    x, y, _ = few_labels()
    model = classifier(method=method).fit(x, y)
    assert model.label_distributions_ == pytest.approx(model.predict_proba(x), abs=1e-6)


def test_rows_never_visited_have_predictions_too():
    x, y, _ = few_labels(rows=50)  # one epoch of two batches of 20 leaves ten rows out
    model = classifier(epochs=1).fit(x, y)
    assert model.label_distributions_.sum(axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", [object, str])
def test_string_labels(kind):
    x, y, truth = few_labels()
    names = np.array(["ant", "bee", "cow"])
    words = [-1 if number == -1 else names[number] for number in y]
    model = classifier(epochs=30).fit(x, np.array(words, dtype=kind))
    assert model.classes_.tolist() == ["ant", "bee", "cow"]
    assert set(model.predict(x)) <= set(names)
    assert model.score(x, names[truth]) > 0.75
    assert model.score(x, np.array(words, dtype=kind)) > 0.75


def test_any_numbers_may_be_classes():
    x, y, _ = few_labels()
    model = classifier().fit(x, np.where(y == -1, -1, y * 10 - 7))
    assert model.classes_.tolist() == [-7, 3, 13]
    assert set(model.predict(x)) <= {-7, 3, 13}


@pytest.mark.parametrize("unknown", [-1, None, ""], ids=repr)
@pytest.mark.parametrize("names", [[0, 1, 2], ["a", "b", "c"]], ids=["numbers", "strings"])
def test_minus_one_none_and_nothing_are_unlabeled(names, unknown):
    x, y, truth = few_labels()
    given = np.array([unknown if label == -1 else names[label] for label in y], dtype=object)
    model = classifier().fit(x, given)
    assert model.classes_.tolist() == names
    expected = classifier().fit(x, y)
    assert (model.label_distributions_ == expected.label_distributions_).all()
    assert model.score(x, given) == expected.score(x, y)


def test_nothing_among_plain_strings_is_unlabeled():
    x, y, _ = few_labels()
    model = classifier(epochs=1).fit(x, ["" if label == -1 else f"class {label}" for label in y])
    assert model.classes_.tolist() == ["class 0", "class 1", "class 2"]


def test_is_labeled():
    assert is_labeled(np.array([0, -1, 2])).tolist() == [True, False, True]
    assert is_labeled(np.array([0.0, -1.0])).tolist() == [True, False]
    assert is_labeled(np.array(["a", "-1"])).tolist() == [True, False]
    assert is_labeled(np.array([True, False])).tolist() == [True, True]


def test_everything_labeled_is_no_cause_for_a_warning():
    x, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classifier(epochs=30).fit(x, y).score(x, y) > 0.75


def test_a_warning_worth_having_is_one_of_ours():
    x, y, _ = few_labels()
    with pytest.warns(SelfensWarning, match="supervised training in all but"):
        classifier(config=SMALL | {"method.weight_max": 0}).fit(x, y)


# Scores


def test_score_leaves_out_unlabeled_rows(fitted):
    x, y, _ = few_labels()
    known = y != -1
    assert fitted.score(x, y) == fitted.score(x[known], y[known])


def test_score_weighs_rows(fitted):
    x, y, truth = few_labels(seed=3)
    right = fitted.predict(x) == truth
    weights = np.where(right, 3.0, 1.0)
    assert fitted.score(x, truth, weights) == pytest.approx(weights[right].sum() / weights.sum())
    assert fitted.score(x, y, weights) == pytest.approx(weights[right & (y != -1)].sum() / weights[y != -1].sum())


def test_score_without_a_label_is_refused(fitted):
    x, y, _ = few_labels()
    with pytest.raises(DataError, match="every one of y is -1"):
        fitted.score(x, np.full(len(x), -1))


# Sizes and kinds of data


@pytest.mark.parametrize("method", ["auto", "temporal", "pi", "supervised"])
@pytest.mark.parametrize("rows", [2, 3, 5])
def test_a_few_rows_of_one_feature(rows, method):
    x = np.arange(rows, dtype=float)[:, None]
    y = np.array([0, 1, -1, -1, -1])[:rows]
    model = SelfEnsemblingClassifier(method, epochs=5, random_state=0, device="cpu").fit(x, y)
    assert model.predict_proba(x).shape == (rows, 2)
    assert model.n_features_in_ == 1


def test_a_constant_feature_does_no_harm():
    x, y, truth = few_labels()
    assert (
        classifier(epochs=30).fit(np.c_[x, np.full(len(x), 5.0)], y).score(np.c_[x, np.full(len(x), 5.0)], truth) > 0.75
    )


def test_features_of_any_scale_are_standardized():
    x, y, _ = few_labels()
    scale = np.array([1e-3, 1, 1e3, 1e5, 1, 10])
    plain, scaled = classifier().fit(x, y), classifier().fit(x * scale, y)
    assert plain.predict_proba(x) == pytest.approx(scaled.predict_proba(x * scale), abs=1e-2)


def bright_corners(rows=60, kind="uint8"):
    y = np.arange(rows) % 2
    x = np.random.default_rng(0).integers(0, 100, size=(rows, 8, 8)).astype("uint8")
    x[y == 1, :4, :4] += 120
    return (x if kind == "uint8" else x / 255.0), np.where(np.arange(rows) < 20, y, -1), y


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("layout", ["NHW", "NHWC", "NCHW"])
def test_images(kind, layout):
    x, y, truth = bright_corners(kind=kind)
    x = {"NHW": x, "NHWC": np.repeat(x[..., None], 3, axis=3), "NCHW": np.repeat(x[:, None], 3, axis=1)}[layout]
    model = classifier(epochs=50, config=SMALL | {"network.width": 8}).fit(x, y)
    assert model.config_.network.name == "small"
    assert model.n_features_in_ == (64 if layout == "NHW" else 192)
    assert model.score(x, truth) > 0.75


@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_bytes_and_floats_from_0_to_1_are_predicted_alike_by_a_model_of_either(kind):
    x, y, _ = bright_corners()
    model = classifier(epochs=2, config=SMALL | {"network.width": 4}).fit(bright_corners(kind=kind)[0], y)
    for same in (x / 255.0, x.astype(int), x.tolist()):
        assert model.predict_proba(same) == pytest.approx(model.predict_proba(x), abs=1e-5)
    assert model.predict_proba(1.1 * x / 255).shape == (60, 2)
    for other in (x.astype(float), x / 127.5 - 1, x.astype(int) * 257):
        with pytest.raises(DataError, match="trained on bytes, or floats from 0 to 1; give them on the same scale"):
            model.predict(other)


@pytest.mark.parametrize("mask", [False, True])
def test_whole_numbers_are_taken_as_they_are_if_they_are_on_the_scale_of_the_floats(mask):
    x, y, _ = bright_corners()
    x = (x > 100).astype("uint8") if mask else x
    model = classifier(epochs=2, config=SMALL | {"network.width": 4}).fit(x.astype(float), y)
    for same in (x, x.astype(int), x.tolist()):
        assert (model.predict_proba(same) == model.predict_proba(x.astype(float))).all()


def test_dark_images_do_not_change_the_scale():
    x, y, _ = bright_corners()
    of_bytes = classifier(epochs=2, config=SMALL | {"network.width": 4}).fit(x, y)
    black = (x > 100).astype("uint8")
    assert of_bytes.predict_proba(black) == pytest.approx(of_bytes.predict_proba(black / 255), abs=1e-5)
    of_dark = classifier(epochs=2, config=SMALL | {"network.width": 4}).fit(0.3 * x / 255, y)
    assert of_dark.predict_proba(x) == pytest.approx(of_dark.predict_proba(x / 255), abs=1e-5)


def test_pixels_are_refused_by_a_model_of_standardized_images():
    x, y, _ = bright_corners()
    model = classifier(epochs=2, config=SMALL | {"network.width": 4}).fit((x - 60.0) / 50, y)
    for pixels in (x, x.astype(float)):
        with pytest.raises(
            DataError, match=r"from 0 to 219, but this classifier was trained on images from -1.2 to 3.18; give"
        ):
            model.predict(pixels)
    assert model.predict((x - 60.0) / 40).shape == y.shape


def test_images_of_another_shape_are_refused():
    x, y, _ = bright_corners()
    model = classifier(epochs=1, config=SMALL | {"network.width": 4}).fit(x, y)
    for other in (x[:, :6, :6], x.reshape(len(x), 64), np.zeros((3, 5, 5, 2))):
        with pytest.raises(DataError, match="trained on"):
            model.predict(other)


# Parameters


def test_a_random_state_repeats_a_fit():
    x, y, _ = few_labels()
    first, again, other = (classifier(random_state=seed).fit(x, y).predict_proba(x) for seed in (5, 5, 6))
    assert (first == again).all()
    assert not np.allclose(first, other)


def test_fits_in_threads_take_turns_and_give_what_they_give_alone():
    """Images, because their network draws noise and dropout at every step, and augmentation draws too."""
    data = images()
    x, y = data.inputs, np.where(np.arange(len(data.labels)) < 12, data.labels, -1)
    model = classifier(epochs=8, config={**SMALL, "network.width": 4})
    alone = clone(model).fit(x, y).label_distributions_
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda _: clone(model).fit(x, y).label_distributions_, range(6)))
    assert [(each == alone).all() for each in together] == [True] * 6


def test_a_generator_moves_on_from_fit_to_fit():
    x, y, _ = few_labels()
    model = classifier(random_state=np.random.RandomState(0))  # noqa: NPY002  scikit-learn's kind
    assert not np.allclose(model.fit(x, y).predict_proba(x), model.fit(x, y).predict_proba(x))


def test_fitting_leaves_torchs_random_state_alone():
    import torch

    before = torch.get_rng_state()
    x, y, _ = few_labels()
    classifier(epochs=1).fit(x, y)
    assert torch.equal(before, torch.get_rng_state())


def test_fields_of_the_config_override_the_defaults():
    x, y, _ = few_labels()
    model = classifier(epochs=np.int64(3), config=SMALL | {"method.decay": 0.5, "schedule.rampup_epochs": None}).fit(
        x, y
    )
    assert model.config_.method.decay == 0.5
    assert model.config_.network.width == 16
    assert len(model.history_) == 3


def test_a_whole_config_replaces_the_defaults():
    x, y, _ = few_labels()
    config = Config().with_overrides(
        ["network.name=mlp", "method.name=pi", "schedule.epochs=2", "training.device=cpu", "seed.base=3"]
    )
    model = SelfEnsemblingClassifier(config=config).fit(x, y)
    assert model.config_ == config
    assert SelfEnsemblingClassifier(config=config, random_state=1).fit(x, y).config_.seed.base != 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "temporale"}, "did you mean 'temporal'"),
        ({"network": "mpl"}, "did you mean 'mlp'"),
        ({"epochs": 0}, "expected at least 1"),
        ({"epochs": 2.5}, "expected a whole number"),
        ({"epochs": "10"}, "expected a whole number"),
        ({"config": {"method.weightmax": 1}}, "did you mean 'weight_max'"),
        ({"device": "tpu"}, "choice for training.device"),
        ({"config": "method.weight_max=1"}, r"config is 'method.weight_max=1' \(str\); expected a Config, or fields"),
    ],
)
def test_a_wrong_parameter_is_named(changes, sentence):
    x, y, _ = few_labels()
    with pytest.raises(ConfigError, match=sentence):
        classifier(**changes).fit(x, y)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.where(np.arange(60) < 9, 1, -1), r"one class only \('1'\).*-1, which means unlabeled"),
        (np.full(60, -1), "names no class"),
        (np.array([["a"], [1], [-1]] * 20, dtype=object)[:, 0], "mix strings and numbers"),
        (np.linspace(0, 1, 60), "Unknown label type"),
    ],
)
def test_labels_that_cannot_be_learned(y, sentence):
    x, _ = blobs()
    with pytest.raises(ValueError, match=sentence):
        classifier().fit(x, y)


def test_images_are_trained_as_the_command_line_trains_them():
    data = images(side=16)
    for on_gpu in (False, True):
        config = default_config(data, "auto", on_gpu=on_gpu)
        expected = presets.for_arrays(data.name, images_side=16, rows=data.num_rows, on_gpu=on_gpu)
        assert config == expected.with_values("training", checkpoint_every=CHECKPOINT_EVERY)


def test_epochs_are_counted_by_steps():
    from selfens.data.dataset import Dataset

    def epochs(rows):
        return default_config(Dataset.from_arrays(np.zeros((rows, 2)), np.arange(rows) % 2), "pi").schedule.epochs

    assert epochs(10) == epochs(100) >= epochs(1000) >= epochs(100_000) >= 20


def test_a_network_of_ones_own_is_trained_and_the_given_one_is_not():
    x, y, truth = few_labels()
    module = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, 3))
    before = module[0].weight.detach().clone()
    model = classifier(network=module, epochs=60).fit(x, y)
    assert (module[0].weight == before).all()
    assert isinstance(model.network_, nn.Sequential)
    assert model.score(x, truth) > 0.75
    assert (pickle.loads(pickle.dumps(model)).predict(x) == model.predict(x)).all()


def test_a_run_directory_is_kept_and_can_be_read(tmp_path):
    x, y, _ = few_labels()
    model = classifier(run_dir=tmp_path / "run").fit(x, y)
    run = load_run(tmp_path / "run", device="cpu")
    assert run.predict_proba(x) == pytest.approx(model.predict_proba(x), abs=1e-6)
    assert model.run_dir_ == tmp_path / "run"


def test_a_second_fit_keeps_a_second_run(tmp_path):
    x, y, _ = few_labels()
    model = classifier(epochs=1, run_dir=tmp_path / "run").fit(x, y)
    assert [model.fit(x, y).run_dir_.name for _ in range(2)] == ["run-2", "run-3"]
    assert all(load_run(tmp_path / name).finished for name in ("run", "run-2", "run-3"))


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    x, y, _ = few_labels()
    with pytest.raises(RunError, match="exists and is not a run"):
        classifier(epochs=1, run_dir=tmp_path).fit(x, y)


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    x, y, _ = few_labels()
    classifier(epochs=1).fit(x, y)
    assert list(tmp_path.iterdir()) == []


def test_verbose_shows_progress_and_otherwise_nothing_is_printed(capsys):
    x, y, _ = few_labels()
    classifier(epochs=2).fit(x, y)
    assert capsys.readouterr() == ("", "")
    classifier(epochs=2, verbose=True).fit(x, y)
    assert "epoch 2/2" in capsys.readouterr().out


# Company


def test_before_a_fit_nothing_is_predicted():
    with pytest.raises(NotFittedError):
        classifier().predict(blobs()[0])


def test_pickling(fitted):
    x, _, _ = few_labels()
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()
    assert again.history_ == fitted.history_


def test_a_pickle_is_used_by_another_process(fitted, tmp_path):
    x, _, _ = few_labels()
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(fitted))
    np.save(tmp_path / "x.npy", x)
    code = "import pickle, numpy as np; m = pickle.load(open('model.pickle', 'rb')); print(m.predict(np.load('x.npy')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == str(fitted.predict(x)), done.stderr


def test_a_clone_is_unfitted_and_alike(fitted):
    assert clone(fitted).get_params() == fitted.get_params()
    assert not hasattr(clone(fitted), "classes_")


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


def test_cross_validation_with_unlabeled_rows_in_the_folds():
    x, y, _ = few_labels()
    assert cross_val_score(classifier(epochs=30), x, y, cv=3).mean() > 0.7


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


def test_not_a_number_among_names_is_no_class():
    x, y = np.random.default_rng(0).normal(size=(30, 4)), ["a", np.nan, "b"] * 10
    fitted = SelfEnsemblingClassifier(epochs=1).fit(x, y)
    assert fitted.classes_.tolist() == ["a", "b"]
    assert len(fitted.label_distributions_) == 30


@pytest.mark.parametrize("kind", [float, object])
def test_labels_that_are_missing_may_be_nan(kind):
    x, y = (part.copy() for part in blobs())
    known, missing = y.copy(), y.astype(kind)
    known[10:], missing[10:] = -1, np.nan
    fitted = [
        SelfEnsemblingClassifier(epochs=2, device="cpu", random_state=0).fit(x, labels) for labels in (known, missing)
    ]
    assert fitted[1].classes_.tolist() == fitted[0].classes_.tolist()
    np.testing.assert_array_equal(fitted[0].predict_proba(x), fitted[1].predict_proba(x))


class Missing:
    """Behaves as pandas' NA does: a comparison with it is neither true nor false."""

    def __eq__(self, other):
        return self

    __ne__, __hash__ = __eq__, None

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def nullable(values, kind):
    """A column of a table with missing values: pandas' own, or what numpy makes of it if there is no pandas."""
    if kind == "objects":
        return np.array([Missing() if value is None else value for value in values], dtype=object)
    return pytest.importorskip("pandas").Series(values, dtype=kind)


@pytest.mark.parametrize(
    ("names", "kind"),
    [([3, 7], "objects"), ("ab", "objects"), ([3, 7], "Int64"), ("ab", "string"), ("ab", "str"), ("ab", "category")],
)
def test_columns_with_missing_labels_keep_their_type(names, kind):
    x, y = np.random.default_rng(0).normal(size=(30, 4)), nullable([*names, None] * 10, kind)
    fitted = SelfEnsemblingClassifier(epochs=1, device="cpu", random_state=0).fit(x, y)
    assert fitted.classes_.tolist() == list(names)
    assert fitted.classes_.dtype.kind in "iUO"
    plain = [*names, -1] * 10
    np.testing.assert_array_equal(fitted.label_distributions_, clone(fitted).fit(x, plain).label_distributions_)
    assert fitted.score(x, y) == fitted.score(x, np.array(plain, dtype=object))
    dataset = Dataset.from_arrays(x, y)
    assert dataset.classes == tuple(map(str, names))
    assert dataset.labels.tolist() == [0, 1, -1] * 10


def test_values_too_large_for_the_network_are_refused_by_row():
    x, y = blobs()
    fitted = classifier(epochs=1).fit(x / 1000, y)
    large = x.copy()
    large[3], large[5, 0] = 1e38, -3e38
    for method in (fitted.predict, fitted.predict_proba, lambda rows: fitted.score(rows, y)):
        with pytest.raises(DataError, match=r"too large for the network in 2 rows \(the first is row 3\)"):
            method(large)
    large[:10], large[10:] = 3e38, -3e38
    large = large.astype(float)  # in which scikit-learn can add them
    with pytest.raises(DataError, match=r"^the training inputs hold values too large to compute with in \d+ rows"):
        classifier(epochs=1).fit(large, y)
