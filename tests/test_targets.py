"""EnsembleTargets against Algorithm 2 and against a loop over rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.targets import RowEnsemble, algorithm_2

from selfens.targets import EnsembleTargets

ROWS, CLASSES = 6, 3
# A value is at most 1 and a handful of roundings of 6e-8 away; 1/(1 - 0.95) = 20 magnifies them.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}

decays = st.sampled_from([0.0, 0.3, 0.6, 0.9, 0.95])
# An epoch is a list of minibatches, each a list of rows: rows may be left out, repeated, or all absent.
epochs = st.lists(st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), max_size=4), max_size=8)


def predictions(seed, rows=ROWS):
    return np.random.default_rng(seed).dirichlet(np.ones(CLASSES), size=rows).astype(np.float32)


def write(ensemble, rows, probabilities):
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
            z = predictions([t, b], len(rows))
            write(ensemble, rows, z)
            twin.write(rows, z)
            assert_like_twin(ensemble, twin)  # what is pending is not seen
        ensemble.commit()
        twin.commit()
        assert_like_twin(ensemble, twin)


@given(st.integers(1, 12), decays, st.integers(0, 1000))
def test_with_every_row_visited_it_is_algorithm_2(num_epochs, decay, seed):
    ensemble = EnsembleTargets(ROWS, CLASSES, decay)
    z = [predictions([seed, t]) for t in range(num_epochs)]
    for t, expected in enumerate(algorithm_2(z, decay)):
        write(ensemble, list(range(ROWS)), z[t])
        ensemble.commit()
        np.testing.assert_allclose(ensemble.all().probabilities, expected, **CLOSE)


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.9, 0.99, 0.999, 0.9999])
def test_targets_are_probabilities_for_any_memory(decay):
    ensemble = EnsembleTargets(ROWS, CLASSES, decay)
    for t in range(3):
        write(ensemble, list(range(ROWS)), predictions(t))
        ensemble.commit()
        np.testing.assert_allclose(ensemble.all().probabilities.sum(dim=1), 1.0, rtol=1e-5)


def test_no_momentum_keeps_the_last_prediction_alone():
    ensemble = EnsembleTargets(ROWS, CLASSES, 0.0)
    for t in range(3):
        write(ensemble, list(range(ROWS)), predictions(t))
        ensemble.commit()
        np.testing.assert_array_equal(ensemble.all().probabilities, predictions(t))


def test_unseen_rows_are_unknown_and_zero():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    write(ensemble, [1], predictions(0, 1))
    ensemble.commit()
    targets = ensemble.get(torch.tensor([0, 1, 5]))
    assert targets.known.tolist() == [False, True, False]
    assert not targets.probabilities[[0, 2]].any()


def test_targets_stay_constant_within_an_epoch():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    write(ensemble, [0, 1], predictions(0, 2))
    ensemble.commit()
    before = ensemble.get(torch.tensor([0, 1, 2]))
    write(ensemble, [0, 2], predictions(1, 2))
    after = ensemble.get(torch.tensor([0, 1, 2]))
    assert torch.equal(before.probabilities, after.probabilities)
    assert torch.equal(before.known, after.known)


def test_of_two_writes_to_a_row_the_last_counts_once():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    write(ensemble, [3], predictions(0, 1))
    write(ensemble, [3], predictions(1, 1))
    ensemble.commit()
    np.testing.assert_allclose(ensemble.get(torch.tensor([3])).probabilities, predictions(1, 1), **CLOSE)
    assert ensemble.count[3] == 1


def test_epoch_with_nothing_written_changes_nothing():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    write(ensemble, [0, 4], predictions(0, 2))
    ensemble.commit()
    mean, count = ensemble.mean.clone(), ensemble.count.clone()
    ensemble.commit()
    assert torch.equal(ensemble.mean, mean)
    assert torch.equal(ensemble.count, count)


def test_targets_asked_for_earlier_do_not_change_later():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    write(ensemble, [0], predictions(0, 1))
    ensemble.commit()
    held = ensemble.get(torch.tensor([0])).probabilities
    kept = held.clone()
    write(ensemble, [0], predictions(1, 1))
    ensemble.commit()
    assert torch.equal(held, kept)


def test_predictions_with_gradient_are_stored_without():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    ensemble.write(torch.tensor([0]), torch.randn(1, CLASSES, requires_grad=True).softmax(dim=1))
    ensemble.commit()
    assert not ensemble.get(torch.tensor([0])).probabilities.requires_grad


def test_half_precision_predictions_are_averaged_in_single_precision():
    ensemble = EnsembleTargets(1, 2)
    ensemble.write(torch.tensor([0]), torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16))
    ensemble.commit()
    assert ensemble.mean.dtype == torch.float32
    np.testing.assert_allclose(ensemble.all().probabilities, [[0.25, 0.75]], rtol=1e-6)


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
        write(other, [0, 2], predictions(77, 2))
        other.commit()
        write(other, [1], predictions(78, 1))
    other.load_state({name: tensor.clone() for name, tensor in ensemble.state().items()})
    for each in (ensemble, other):
        write(each, last_rows, predictions(99, len(last_rows)))
        each.commit()
    assert torch.equal(ensemble.all().probabilities, other.all().probabilities)
    assert torch.equal(ensemble.count, other.count)


def test_pending_predictions_are_saved_only_within_an_epoch():
    ensemble = EnsembleTargets(ROWS, CLASSES)
    assert set(ensemble.state()) == {"mean", "count", "decay"}
    write(ensemble, [0], predictions(0, 1))
    assert set(ensemble.state()) == {"mean", "count", "decay", "pending", "written"}
    ensemble.commit()
    assert set(ensemble.state()) == {"mean", "count", "decay"}


def test_state_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected \(6, 3\)"):
        EnsembleTargets(ROWS, CLASSES).load_state(EnsembleTargets(2, CLASSES).state())


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match="decay is"):
        EnsembleTargets(ROWS, CLASSES, decay)
