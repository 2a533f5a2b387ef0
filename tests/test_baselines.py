"""Baselines: the simple methods, against scikit-learn called directly."""

import warnings

import numpy as np
import pytest
import sklearn.preprocessing
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from support import blobs

from selfens.tools import baselines
from selfens.tools.baselines import BOOSTED, CHANCE, FOREST, LOGISTIC, SELF_TRAINING, predictions

TREES = [FOREST, BOOSTED]
LABELS, TESTED = np.where(np.arange(60) < 12, np.arange(60) % 3, -1), blobs(30, seed=1)


def errors(predicted, truth):
    return {name: 100 * float(np.mean(classes != truth)) for name, classes in predicted.items()}


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
        FOREST: RandomForestClassifier(random_state=0).fit(scaled[known], LABELS[known]),
        BOOSTED: HistGradientBoostingClassifier(min_samples_leaf=3, max_iter=60, random_state=0).fit(
            scaled[known], LABELS[known]
        ),
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
        (np.arange(60) % 3, [LOGISTIC, *TREES, CHANCE]),  # nothing is unlabeled
        (np.r_[0, 0, 0, 1, 1, 2, np.full(54, -1)], [LOGISTIC, SELF_TRAINING, *TREES, CHANCE]),  # a class with one label
        (np.r_[0, 1, np.full(58, -1)], [LOGISTIC, SELF_TRAINING, *TREES, CHANCE]),  # two classes
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
