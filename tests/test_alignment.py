"""Sharpening and distribution alignment against loops over rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import alignment as twin
from reference.losses import softmax

from selfens.core.alignment import RunningDistribution, align, normalize, sharpen

shapes = st.tuples(st.integers(1, 12), st.integers(2, 7), st.integers(0, 2**32 - 1))


def predictions(rows, classes, seed):
    return np.array(softmax(np.random.default_rng(seed).normal(0, 2, (rows, classes))))


@given(shapes, st.floats(0.1, 3))
def test_sharpening_is_the_twins(shape, temperature):
    z = predictions(*shape)
    ours = sharpen(torch.from_numpy(z), temperature)
    np.testing.assert_allclose(ours, twin.sharpen(z, temperature), rtol=1e-9)


@given(shapes)
def test_alignment_is_the_twins(shape):
    z, present, wanted = predictions(*shape), predictions(1, shape[1], 1)[0], predictions(1, shape[1], 2)[0]
    ours = align(*(torch.from_numpy(part) for part in (z, present, wanted)))
    np.testing.assert_allclose(ours, twin.align(z, present, wanted), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_cannot_be_divided_stays_finite(dtype):
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype)
    for result in (
        sharpen(certain, 0.01),
        align(certain, torch.tensor([1.0, 0.0], dtype=dtype), torch.tensor([0.5, 0.5], dtype=dtype)),
        normalize(certain),
    ):
        assert torch.equal(result, certain)
    assert not normalize(torch.zeros(2, 2, dtype=dtype)).any()


def test_predictions_aligned_with_their_own_mean_become_the_wanted_distribution():
    z = torch.from_numpy(predictions(4000, 3, 0))
    wanted = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for _ in range(50):  # each time nearer
        z = align(z, z.mean(dim=0), wanted)
    torch.testing.assert_close(z.mean(dim=0), wanted, rtol=0.02, atol=0)


def test_the_running_distribution_averages_the_mean_predictions():
    running, expected = RunningDistribution(torch.tensor([0.5, 0.3, 0.2]), momentum=0.9), np.array([0.5, 0.3, 0.2])
    for seed in range(20):
        z = predictions(7, 3, seed)
        running.update(torch.from_numpy(z).float())
        expected = 0.9 * expected + 0.1 * z.mean(axis=0)
    np.testing.assert_allclose(running.mean, expected, rtol=1e-5)
    resumed = RunningDistribution(torch.zeros(3))
    resumed.load_state_dict(running.state_dict())
    assert torch.equal(resumed.mean, running.mean)


def test_the_running_distribution_changes_nothing_it_was_given():
    initial = torch.tensor([0.5, 0.5])
    RunningDistribution(initial).update(torch.tensor([[1.0, 0.0]]))
    assert torch.equal(initial, torch.tensor([0.5, 0.5]))
