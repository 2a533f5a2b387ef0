"""Intervals, calibration and abstaining, against naive twins and simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from selfens.runs.statistics import (
    LEVEL,
    answered,
    calibration,
    fit_temperature,
    half_width,
    interval,
    least_confidence,
    tempered,
)


@given(st.integers(1, 400), st.integers(0, 400))
def test_the_interval_is_wilsons(rows, wrong):
    wrong = min(wrong, rows)
    low, high = interval(wrong, rows)
    found = stats.binomtest(wrong, rows).proportion_ci(confidence_level=LEVEL, method="wilson")
    assert (low, high) == pytest.approx((100 * found.low, 100 * found.high), abs=1e-9)
    assert 0 <= low <= 100 * wrong / rows + 1e-9
    assert 100 * wrong / rows - 1e-9 <= high <= 100


def test_half_the_width_is_largest_at_an_error_of_one_half():
    assert half_width(100) == pytest.approx(8.1, abs=0.1)
    low, high = interval(20, 100)
    assert (high - low) / 2 < half_width(100) < half_width(50)


def simulated(rows, classes, temperature, seed=0):
    """Labels drawn from probabilities, and the same probabilities made too certain by 1/temperature."""
    random = np.random.default_rng(seed)
    true = tempered(random.dirichlet(np.full(classes, 0.5), rows), 1.0)
    labels = np.array([random.choice(classes, p=row) for row in true])
    return tempered(true, 1 / temperature), labels


def test_the_temperature_is_recovered_and_repairs_the_calibration():
    for temperature in (0.6, 1.0, 2.5):
        probabilities, labels = simulated(4000, 4, temperature)
        found = fit_temperature(probabilities, labels)
        assert found == pytest.approx(temperature, rel=0.1)
        before, after = (calibration(labels, each)[2] for each in (probabilities, tempered(probabilities, found)))
        assert after <= 0.02
        assert after <= before + 0.005


def test_the_temperature_is_a_quantile_of_its_posterior():
    probabilities, labels = simulated(60, 3, 2.0, seed=3)

    def density(logarithm):
        rows = np.array([np.exp(np.log(row) / math.exp(logarithm)) for row in probabilities])
        rows = rows / rows.sum(axis=1, keepdims=True)
        fit = sum(math.log(row[label]) for row, label in zip(rows, labels, strict=True))
        return math.exp(fit - (logarithm - math.log(1.3)) ** 2 / (2 * 0.5**2) + 60)

    points = np.linspace(-1.6, 3, 2000)
    area = np.cumsum([density(point) for point in points])
    for quantile in (0.2, 0.5, 0.8):
        expected = points[np.searchsorted(area, quantile * area[-1])]
        assert math.log(fit_temperature(probabilities, labels, quantile)) == pytest.approx(expected, abs=0.03)


def test_a_few_rows_without_a_mistake_do_not_make_a_model_certain():
    probabilities = np.full((8, 2), [0.9, 0.1])
    assert 0.8 <= fit_temperature(probabilities, np.zeros(8, np.int64)) <= 1.5
    certain = np.full((8, 2), [1.0, 0.0])
    assert math.isfinite(fit_temperature(certain, np.ones(8, np.int64)))


@given(st.integers(2, 6), st.integers(0, 1000), st.floats(0.3, 5))
def test_a_temperature_keeps_the_order_of_the_classes(classes, seed, temperature):
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(classes), 5)
    made = tempered(probabilities, temperature)
    assert made.sum(axis=1) == pytest.approx(1)
    assert (made.argmax(axis=1) == probabilities.argmax(axis=1)).all()
    assert tempered(probabilities, 1.0) == pytest.approx(probabilities, abs=1e-9)


def test_the_calibration_error_is_the_mean_distance_over_bins():
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.65, 0.35], [0.4, 0.6]])
    labels = np.array([0, 1, 0, 1])
    confidence, accuracy, error = calibration(labels, probabilities)
    assert confidence == pytest.approx([0.6, 0.65, 0.95])
    assert accuracy == pytest.approx([1, 1, 0.5])
    assert error == pytest.approx((0.4 + 0.35 + 2 * 0.45) / 4)


def test_answering_the_most_confident_rows():
    share, error = answered(np.array([0.6, 0.9, 0.8, 0.7]), np.array([True, False, False, True]))
    assert share == pytest.approx([0.25, 0.5, 0.75, 1])
    assert error == pytest.approx([0, 0, 100 / 3, 50])


@given(st.lists(st.floats(0.2, 1), min_size=1, max_size=50), st.floats(0, 60))
def test_the_least_confidence_answers_as_many_rows_as_the_error_allows(confidence, max_error):
    given_rows = np.array(confidence)
    least = least_confidence(given_rows, max_error)
    kept = np.sort(given_rows[given_rows >= least])
    naive = [k for k in range(1, len(given_rows) + 1) if 100 * np.mean(1 - np.sort(given_rows)[::-1][:k]) <= max_error]
    assert len(kept) >= max(naive, default=0)
    if naive:
        assert 100 * np.mean(1 - kept) <= max_error + 1e-9 or len(set(kept)) < len(kept)
    else:
        assert least > 1
