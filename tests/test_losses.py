"""The two terms of the loss against loops over rows, and their gradients against differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import alignment
from reference import losses as twin
from reference.differences import numerical_gradient

from selfens.core.batch import Batch
from selfens.core.losses import (
    CONSISTENCY,
    align,
    consistency_cross_entropy,
    cross_entropy,
    joint_pass,
    sharpen,
    squared_difference,
    supervised,
)

# Single precision against double: a few of its 1.2e-7 steps for each of at most 60 terms.
CLOSE = {"rel": 1e-5, "abs": 1e-6}
shapes = st.tuples(st.integers(1, 12), st.integers(2, 7), st.integers(0, 2**32 - 1))
PAIRS = [(squared_difference, twin.squared_difference), (consistency_cross_entropy, twin.consistency_cross_entropy)]


def example(rows, classes, seed):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, classes)).astype(np.float32)
    labeled = random.random(rows) < 0.5
    labels = np.where(labeled, random.integers(classes, size=rows), -1)
    return logits, labels, labeled


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


def two_predictions(rows, classes, seed):
    random = np.random.default_rng(seed)
    return (np.array(twin.softmax(random.normal(0, 2, (rows, classes)))) for _ in range(2))


@given(shapes)
def test_cross_entropy_is_the_twins(shape):
    logits, labels, labeled = example(*shape)
    expected = twin.cross_entropy(logits.astype(np.float64).tolist(), labels, labeled)
    assert float(cross_entropy(*tensors(logits, labels, labeled))) == pytest.approx(expected, **CLOSE)


@given(shapes, st.sampled_from(PAIRS), st.booleans())
def test_consistency_is_the_twins_with_and_without_a_mask(shape, pair, masked):
    ours, theirs = pair
    first, second = two_predictions(*shape)
    counted = np.random.default_rng(shape[2]).random(shape[0]) < 0.5 if masked else None
    mask = None if counted is None else torch.from_numpy(counted)
    value = ours(*tensors(first.astype(np.float32), second.astype(np.float32)), mask)
    assert float(value) == pytest.approx(theirs(first.tolist(), second.tolist(), counted), **CLOSE)


def test_cross_entropy_is_divided_by_the_whole_batch():
    logits, labels = torch.zeros(8, 4), torch.tensor([2] + [-1] * 7)
    assert float(cross_entropy(logits, labels, labels >= 0)) == pytest.approx(np.log(4) / 8, rel=1e-6)


def test_the_cross_entropy_of_a_split_batch_is_the_mean_over_its_first_part():
    logits, labels = torch.randn(7, 4), torch.tensor([2, 0, 3, -1, -1, -1, -1])
    plain = Batch(torch.arange(7), (), labels, labels >= 0)
    whole, split = supervised(logits, plain), supervised(logits, plain._replace(first=3))
    torch.testing.assert_close(whole, cross_entropy(logits, labels, labels >= 0))
    torch.testing.assert_close(split, whole * 7 / 3)


def test_inputs_of_a_joint_pass_share_their_batch_statistics():
    network = torch.nn.BatchNorm1d(2)
    one, other = torch.randn(5, 2), torch.randn(3, 2) + 4
    first, second = joint_pass(network, one, other)
    torch.testing.assert_close(torch.cat([first, second]), network(torch.cat([one, other])))
    assert (first.shape, second.shape) == ((5, 2), (3, 2))
    assert not torch.allclose(first, network(one))


def test_squared_difference_is_divided_by_rows_times_classes():
    first, second = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert float(squared_difference(first, second)) == 2 / 4
    assert float(squared_difference(first, second, torch.tensor([False, True]))) == 0
    assert float(squared_difference(first, second, torch.tensor([True, False]))) == 2 / 4


def test_batch_without_labels_has_no_cross_entropy_and_no_gradient():
    logits = torch.randn(5, 3, requires_grad=True)
    loss = cross_entropy(logits, torch.full((5,), -1), torch.zeros(5, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(5, 3))


@pytest.mark.parametrize("junk", [-1, -100, 7, 2**40])
def test_labels_that_are_not_in_use_do_not_matter(junk):
    logits, labeled = torch.randn(4, 3, requires_grad=True), torch.tensor([True, False, True, False])
    results = []
    for unused in (0, junk):
        loss = cross_entropy(logits, torch.tensor([1, unused, 2, unused]), labeled)
        results.append((float(loss.detach()), torch.autograd.grad(loss, logits)[0]))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[1][1][~labeled], torch.zeros(2, 3))


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
def test_extreme_logits_give_no_nan(size):
    logits = torch.tensor([[size, -size], [-size, size], [size, size], [-size, size]], requires_grad=True)
    labels, labeled = torch.tensor([0, 0, 1, -1]), torch.tensor([True, True, True, False])
    loss = cross_entropy(logits, labels, labeled)
    loss.backward()
    assert loss.item() == pytest.approx((2 * size + np.log(2)) / 4, rel=1e-6)
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("consistency", CONSISTENCY.values())
def test_certain_and_opposite_predictions_give_a_finite_loss_and_gradient(consistency):
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    loss = consistency(logits.softmax(dim=1), logits.flip(0).softmax(dim=1))
    loss.backward()
    assert loss.item() > 0
    assert torch.isfinite(loss)
    assert logits.grad.isfinite().all()


def test_half_precision_logits_are_compared_in_single_precision():
    logits = torch.tensor([[3.0, -2.0, 0.5]])
    half = cross_entropy(logits.bfloat16(), torch.tensor([0]), torch.tensor([True]))
    assert half.dtype == torch.float32
    assert float(half) == float(cross_entropy(logits, torch.tensor([0]), torch.tensor([True])))


@given(shapes)
def test_gradient_of_cross_entropy_is_that_of_differences(shape):
    logits, labels, labeled = example(*shape)
    ours = torch.from_numpy(logits).requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(ours, *tensors(labels, labeled)), ours)
    x = logits.astype(np.float64)
    expected = numerical_gradient(lambda: twin.cross_entropy(x.tolist(), labels, labeled), x)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-6)


@given(shapes, st.sampled_from(PAIRS))
def test_gradients_of_consistency_flow_into_both_predictions(shape, pair):
    ours, theirs = pair
    arrays = [np.random.default_rng([shape[2], i]).normal(0, 2, shape[:2]) for i in range(2)]
    counted = np.random.default_rng(shape[2]).random(shape[0]) < 0.7
    a, b = (torch.from_numpy(array).float().requires_grad_() for array in arrays)
    loss = ours(a.softmax(dim=1), b.softmax(dim=1), torch.from_numpy(counted))
    gradients = torch.autograd.grad(loss, (a, b))
    for gradient, array in zip(gradients, arrays, strict=True):
        expected = numerical_gradient(lambda: theirs(*(twin.softmax(each) for each in arrays), counted), array)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-6)
        assert not gradient[torch.from_numpy(~counted)].any()


def test_every_consistency_is_tested_above():
    assert set(CONSISTENCY.values()) == {ours for ours, _ in PAIRS}


# Distribution alignment


@given(shapes)
def test_alignment_is_the_twins(shape):
    z, _ = two_predictions(*shape)
    present, wanted = two_predictions(1, shape[1], 1)
    ours = align(*tensors(z, present[0], wanted[0]))
    np.testing.assert_allclose(ours, alignment.align(z, present[0], wanted[0]), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_cannot_be_divided_stays_finite(dtype):
    certain, half = torch.eye(2, dtype=dtype), torch.full((2,), 0.5, dtype=dtype)
    assert torch.equal(align(certain, torch.tensor([1.0, 0.0], dtype=dtype), half), certain)
    assert not align(torch.zeros(2, 2, dtype=dtype), half, half).any()


def test_predictions_aligned_with_their_own_mean_become_the_wanted_distribution():
    z, _ = tensors(*two_predictions(4000, 3, 0))
    wanted = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for _ in range(50):  # each time nearer
        z = align(z, z.mean(dim=0), wanted)
    torch.testing.assert_close(z.mean(dim=0), wanted, rtol=0.02, atol=0)


def test_sharpening_never_loses_a_row():
    rows = torch.tensor([[0.5, 0.3, 0.2], [0.34, 0.33, 0.33]])
    for temperature in (1.0, 0.5, 0.02, 1e-3):
        sharp = sharpen(rows, temperature)
        torch.testing.assert_close(sharp.sum(dim=1), torch.ones(2))
        assert (sharp.argmax(dim=1) == 0).all()
    torch.testing.assert_close(sharpen(rows, 1.0), rows)
