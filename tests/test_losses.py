"""The terms of the loss, sharpening and class alignment against loops over rows, and gradients against differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import alignment
from reference import losses as twin
from reference.differences import numerical_gradient

from selfens.core.alignment import Alignment, class_factors
from selfens.core.batch import Batch
from selfens.core.losses import (
    CONSISTENCY,
    cross_entropy,
    joint_pass,
    normalize,
    sharpen,
    squared_difference,
    supervised,
)

# Single precision against double: a few of its 1.2e-7 steps for each of at most 60 terms.
CLOSE = {"rel": 1e-5, "abs": 1e-6}
shapes = st.tuples(st.integers(1, 12), st.integers(2, 7), st.integers(0, 2**32 - 1))
TWINS = {"squared": twin.squared_difference, "cross_entropy": twin.consistency_cross_entropy}


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


def two_predictions(rows, classes, seed):
    random = np.random.default_rng(seed)
    return (np.array(twin.softmax(random.normal(0, 2, (rows, classes)))) for _ in range(2))


@given(shapes)
def test_cross_entropy_and_its_gradient_are_the_twins(shape):
    rows, classes, seed = shape
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, classes)).astype(np.float32)
    labeled = random.random(rows) < 0.5
    labels = np.where(labeled, random.integers(classes, size=rows), -1)
    ours, x = torch.from_numpy(logits).requires_grad_(), logits.astype(np.float64)
    loss = cross_entropy(ours, *tensors(labels, labeled))
    assert float(loss.detach()) == pytest.approx(twin.cross_entropy(x.tolist(), labels, labeled), **CLOSE)
    expected = numerical_gradient(lambda: twin.cross_entropy(x.tolist(), labels, labeled), x)
    np.testing.assert_allclose(torch.autograd.grad(loss, ours)[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CONSISTENCY)
@given(shape=shapes, masked=st.booleans())
def test_consistency_and_its_gradients_by_both_predictions_are_the_twins(name, shape, masked):
    arrays = [np.random.default_rng([shape[2], i]).normal(0, 2, shape[:2]) for i in range(2)]
    counted = np.random.default_rng(shape[2]).random(shape[0]) < 0.7 if masked else None
    a, b = (torch.from_numpy(array).float().requires_grad_() for array in arrays)
    loss = CONSISTENCY[name](a.softmax(dim=1), b.softmax(dim=1), torch.from_numpy(counted) if masked else None)

    def theirs():
        return TWINS[name](*(twin.softmax(each) for each in arrays), counted)

    assert float(loss.detach()) == pytest.approx(theirs(), **CLOSE)
    for gradient, array in zip(torch.autograd.grad(loss, (a, b)), arrays, strict=True):
        np.testing.assert_allclose(gradient, numerical_gradient(theirs, array), rtol=1e-4, atol=1e-6)
        assert not masked or not gradient[torch.from_numpy(~counted)].any()


def test_both_terms_are_divided_by_the_whole_batch():
    logits, labels = torch.zeros(8, 4), torch.tensor([2] + [-1] * 7)
    assert float(cross_entropy(logits, labels, labels >= 0)) == pytest.approx(np.log(4) / 8, rel=1e-6)
    first, second = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert float(squared_difference(first, second)) == 2 / 4
    assert float(squared_difference(first, second, torch.tensor([True, False]))) == 2 / 4


def test_the_cross_entropy_of_a_split_batch_is_the_mean_over_its_labeled_rows():
    logits, labels = torch.randn(7, 4), torch.tensor([2, 0, 3, -1, -1, -1, -1])
    plain = Batch(torch.arange(7), (), labels, labels >= 0)
    whole, split = supervised(logits, plain), supervised(logits, plain._replace(num_labeled=3))
    torch.testing.assert_close(whole, cross_entropy(logits, labels, labels >= 0))
    torch.testing.assert_close(split, whole * 7 / 3)


def test_inputs_of_a_joint_pass_share_their_batch_statistics():
    network = torch.nn.BatchNorm1d(2)
    one, other = torch.randn(5, 2), torch.randn(3, 2) + 4
    first, second = joint_pass(network, one, other)
    torch.testing.assert_close(torch.cat([first, second]), network(torch.cat([one, other])))
    assert (first.shape, second.shape) == ((5, 2), (3, 2))
    assert not torch.allclose(first, network(one))


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


@pytest.mark.parametrize("consistency", CONSISTENCY.values(), ids=list(CONSISTENCY))
def test_certain_and_opposite_predictions_give_a_finite_loss_and_gradient(consistency):
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    loss = consistency(logits.softmax(dim=1), logits.flip(0).softmax(dim=1))
    loss.backward()
    assert 0 < loss.item() < float("inf")
    assert logits.grad.isfinite().all()


def test_half_precision_logits_are_compared_in_single_precision():
    logits = torch.tensor([[3.0, -2.0, 0.5]])
    half = cross_entropy(logits.bfloat16(), torch.tensor([0]), torch.tensor([True]))
    assert half.dtype == torch.float32
    assert float(half) == float(cross_entropy(logits, torch.tensor([0]), torch.tensor([True])))


def test_sharpening_never_loses_a_row():
    rows = torch.tensor([[0.5, 0.3, 0.2], [0.34, 0.33, 0.33]])
    for temperature in (1.0, 0.5, 0.02, 1e-3):
        sharp = sharpen(rows, temperature)
        torch.testing.assert_close(sharp.sum(dim=1), torch.ones(2))
        assert (sharp.argmax(dim=1) == 0).all()
    torch.testing.assert_close(sharpen(rows, 1.0), rows)


# Class alignment


def align(z, predicted, wanted):
    aligned = Alignment("uniform", torch.ones_like(wanted))
    aligned.predicted, aligned.wanted = predicted, wanted
    return aligned.align(z)


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


def test_class_factors_leave_shares_that_the_labels_allow_and_never_make_classes_equal():
    rows, every = torch.tensor([[0.9, 0.1]] * 8 + [[0.2, 0.8]] * 2), torch.ones(10, dtype=torch.bool)
    assert class_factors(rows, every, torch.tensor([0.7, 0.3]), 1.5).tolist() == [1, 1]
    for wanted in ([0.5, 0.5], [0.98, 0.02], [0.2, 0.8]):
        factors = class_factors(rows, every, torch.tensor(wanted), 1.5, rounds=50)
        shares = normalize(rows * factors).mean(dim=0)
        low, high = torch.tensor(wanted) / 1.5, torch.tensor(wanted) * 1.5
        assert ((shares >= low - 1e-3) & (shares <= high + 1e-3)).all()
    assert class_factors(rows, ~every, torch.tensor([0.1, 0.9]), 1.5).tolist() == [1, 1]
