"""EnsembleTargets against Algorithm 2 and against a loop over rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.targets import RowEnsemble, algorithm_2

from selfens.core import targets as core_targets
from selfens.core.targets import EnsembleTargets

ROWS, CLASSES = 6, 3
# A value is at most 1 and a handful of roundings of 6e-8 away; 1/(1 - 0.95) = 20 magnifies them.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}

decays = st.sampled_from([0.0, 0.3, 0.6, 0.9, 0.95])
# An epoch is a list of minibatches, each a list of rows: rows may be left out, repeated, or all absent.
epochs = st.lists(st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), max_size=4), max_size=8)


def predictions(seed, rows=ROWS):
    return np.random.default_rng(seed).dirichlet(np.ones(CLASSES), size=rows).astype(np.float32)


def write(ensemble, rows, probabilities):
    """To an ensemble or its twin."""
    if isinstance(ensemble, RowEnsemble):
        ensemble.write(rows, probabilities)
    else:
        ensemble.write(torch.tensor(rows, dtype=torch.int64), torch.from_numpy(probabilities))


def assert_like_twin(ensemble, twin):
    targets = ensemble.all()
    np.testing.assert_allclose(targets.probabilities, [twin.target(row) for row in range(ROWS)], **CLOSE)
    np.testing.assert_allclose(ensemble.mean, [twin.mean(row) for row in range(ROWS)], **CLOSE)
    assert targets.known.tolist() == [twin.known(row) for row in range(ROWS)]
    assert ensemble.count.tolist() == [len(past) for past in twin.past]


@given(epochs, decays)
def test_any_pattern_of_visits_follows_the_row_by_row_twin(pattern, decay):
    ensemble, twin = EnsembleTargets(ROWS, CLASSES, decay), RowEnsemble(ROWS, CLASSES, decay)
    for t, batches in enumerate(pattern):
        for b, rows in enumerate(batches):
            rows = list(dict.fromkeys(rows))  # within a minibatch each row is there once
            for each in (ensemble, twin):
                write(each, rows, predictions([t, b], len(rows)))
            assert_like_twin(ensemble, twin)  # what is pending is not seen
        ensemble.commit()
        twin.commit()
        assert_like_twin(ensemble, twin)


@given(epochs, decays)
def test_averages_and_variances_are_those_of_the_twin(pattern, decay):
    ensemble, twin = EnsembleTargets(ROWS, CLASSES, decay), RowEnsemble(ROWS, CLASSES, decay)
    for t, batches in enumerate(pattern):
        for b, rows in enumerate(batches):
            rows = list(dict.fromkeys(rows))
            for each in (ensemble, twin):
                write(each, rows, predictions([t, b], len(rows)))
        ensemble.commit()
        twin.commit()
    targets, variance = ensemble.all(), ensemble.variance(torch.arange(ROWS))
    np.testing.assert_allclose(targets.probabilities, [twin.target(row) for row in range(ROWS)], **CLOSE)
    np.testing.assert_allclose(variance, [twin.variance(row) for row in range(ROWS)], **CLOSE)
    assert targets.known.tolist() == [twin.known(row) for row in range(ROWS)]
    assert targets.count.tolist() == ensemble.count.tolist() == [len(past) for past in twin.past]


def after(*epochs, **options):
    """An ensemble after epochs of these rows."""
    ensemble = EnsembleTargets(ROWS, CLASSES, **options)
    for t, rows in enumerate(epochs):
        write(ensemble, rows, predictions(t, len(rows)))
        ensemble.commit()
    return ensemble


def test_a_commit_leaves_the_predictions_as_they_were_written():
    """They may be those of a caller who looks at them."""
    np.testing.assert_array_equal(after([0, 3]).pending[[0, 3]], predictions(0, 2))


def test_commits_in_many_chunks_are_commits_in_one(monkeypatch):
    results = []
    for size in (1 << 22, 8):
        monkeypatch.setattr(core_targets, "CHUNK_BYTES", size)
        ensemble = after([0, 1, 5], [1, 2, 5], [2, 3, 5])
        results.append([ensemble.mean, ensemble.square, ensemble.count])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_targets_asked_for_earlier_do_not_change_later_and_have_no_gradient():
    ensemble = after([0])
    held = ensemble.get(torch.tensor([0])).probabilities
    kept = held.clone()
    ensemble.write(torch.tensor([0]), torch.randn(1, CLASSES, requires_grad=True).softmax(dim=1))
    ensemble.commit()
    assert torch.equal(held, kept)
    assert not ensemble.get(torch.tensor([0])).probabilities.requires_grad


def test_half_precision_predictions_are_averaged_in_single_precision():
    ensemble = EnsembleTargets(1, 2)
    ensemble.write(torch.tensor([0]), torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16))
    ensemble.commit()
    assert ensemble.mean.dtype == torch.float32
    np.testing.assert_allclose(ensemble.all().probabilities, [[0.25, 0.75]], rtol=1e-6)


# Variance


def test_the_variance_of_one_prediction_and_of_none_is_zero():
    assert not after([1]).variance(torch.arange(ROWS)).any()


def test_the_spread_of_an_epoch_is_that_of_the_rows_it_visited():
    ensemble, twin = EnsembleTargets(ROWS, CLASSES), RowEnsemble(ROWS, CLASSES, 0.6)
    assert ensemble.spread.isnan()
    for t, rows in enumerate([[0, 1, 2], [0, 1], [1, 2, 4]]):
        for each in (ensemble, twin):
            write(each, rows, predictions(t, len(rows)))
            each.commit()
        expected = np.mean([twin.variance(row).sum() for row in rows])
        assert float(ensemble.spread) == pytest.approx(expected, abs=1e-7)


# Algorithm 2


@given(st.integers(1, 12), decays, st.integers(0, 1000))
def test_with_every_row_visited_it_is_algorithm_2(num_epochs, decay, seed):
    ensemble = EnsembleTargets(ROWS, CLASSES, decay)
    z = [predictions([seed, t]) for t in range(num_epochs)]
    for t, expected in enumerate(algorithm_2(z, decay)):
        write(ensemble, range(ROWS), z[t])
        ensemble.commit()
        np.testing.assert_allclose(ensemble.all().probabilities, expected, **CLOSE)


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.9, 0.99, 0.999, 0.9999])
def test_targets_are_probabilities_for_any_memory(decay):
    for epochs in (1, 2, 3):
        ensemble = after(*[range(ROWS)] * epochs, decay=decay)
        np.testing.assert_allclose(ensemble.all().probabilities.sum(dim=1), 1.0, rtol=1e-5)


# Saving


@given(epochs, st.lists(st.integers(0, ROWS - 1), unique=True), st.booleans())
def test_a_state_saved_within_an_epoch_goes_on_as_if_never_saved(pattern, last_rows, used_before):
    ensemble, other = EnsembleTargets(ROWS, CLASSES), EnsembleTargets(ROWS, CLASSES)
    for t, batches in enumerate(pattern):
        for b, rows in enumerate(batches):
            rows = list(dict.fromkeys(rows))
            write(ensemble, rows, predictions([t, b], len(rows)))
        if t < len(pattern) - 1:
            ensemble.commit()
    if used_before:  # loading must also forget what the other was doing
        other = after([0, 2])
        write(other, [1], predictions(78, 1))
    other.load_state_dict({name: tensor.clone() for name, tensor in ensemble.state_dict().items()})
    for each in (ensemble, other):
        write(each, last_rows, predictions(99, len(last_rows)))
        each.commit()
    assert torch.equal(ensemble.all().probabilities, other.all().probabilities)
    assert torch.equal(ensemble.count, other.count)


def test_pending_predictions_are_saved_only_within_an_epoch():
    ensemble = after([0])
    committed = {"mean", "square", "count", "decay"}
    assert set(ensemble.state_dict()) == committed
    write(ensemble, [0], predictions(0, 1))
    assert set(ensemble.state_dict()) == {*committed, "pending", "written"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(({"decay": decay}, "decay is .*; expected at least 0 and below 1") for decay in (-0.1, 1.0, float("nan"))),
        ({"num_rows": 0}, "the targets have 0 rows and 3 classes; expected at least 1"),
    ],
)
def test_options_that_no_ensemble_can_have_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        EnsembleTargets(**{"num_rows": ROWS, "num_classes": CLASSES, **options})


def test_the_state_of_another_size_or_type_is_refused():
    ensemble, other = EnsembleTargets(ROWS, CLASSES), EnsembleTargets(2, CLASSES).state_dict()
    with pytest.raises(ValueError, match=r"are torch.float32 \(2, 3\); expected torch.float32 \(6, 3\)"):
        ensemble.load_state_dict(other)
    with pytest.raises(ValueError, match=r"are torch.float64 \(6, 3\); expected torch.float32 \(6, 3\)"):
        ensemble.load_state_dict(ensemble.state_dict() | {"mean": ensemble.mean.double()})
