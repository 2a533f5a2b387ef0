"""The order of an epoch: every promise about which rows a batch holds, over sizes drawn at random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfens.data.sampler import Order
from selfens.errors import ConfigError

ALL, EPOCHS = ("shuffled", "stratified", "repeated"), st.integers(0, 50)
NONE, ONE = st.none(), st.integers(0, 200)


@st.composite
def orders(draw, batches, per_epoch=NONE):
    """Any number of rows, any of them labelled, with gaps between their numbers as held-out rows leave them."""
    labelled = np.array(draw(st.lists(st.booleans(), min_size=2, max_size=120)))
    visited = np.flatnonzero(draw(st.permutations([True] * len(labelled) + [False] * 7))).astype(np.int64)
    others = int((~labelled).sum())
    wanted = draw(per_epoch)
    wanted = None if wanted is None or others == 0 else 1 + wanted % others
    size = draw(st.integers(2, 40))
    return Order(visited, labelled, size, draw(st.integers(0, 99)), draw(st.sampled_from(batches)), wanted)


def labelled_rows(order):
    return order.visited[order.labelled]


def counts_per_batch(order, epoch):
    return np.isin(order.of_epoch(epoch), labelled_rows(order)).sum(axis=1)


@given(orders(ALL, NONE | ONE), EPOCHS)
def test_an_epoch_is_full_batches_of_visited_rows_and_depends_on_seed_and_epoch_alone(order, epoch):
    rows = order.of_epoch(epoch)
    assert rows.shape == (order.steps, order.batch_size)
    assert order.steps == order.rows_per_epoch // order.batch_size
    assert np.isin(rows, order.visited).all()
    np.testing.assert_array_equal(rows, order.of_epoch(epoch))


@given(orders(("shuffled", "stratified"), NONE | ONE), EPOCHS)
def test_no_row_is_visited_twice(order, epoch):
    rows = order.of_epoch(epoch)
    assert len(np.unique(rows)) == rows.size


@given(orders(("stratified", "repeated"), NONE | ONE), EPOCHS)
def test_labelled_rows_are_spread_evenly(order, epoch):
    counts = counts_per_batch(order, epoch)
    assert counts.max() - counts.min() <= 1
    wanted = max(len(labelled_rows(order)), order.steps if order.batches == "repeated" and order.labelled.any() else 0)
    assert counts.sum() == min(wanted, order.steps * order.batch_size)


@given(orders(("stratified",)), EPOCHS)
def test_batches_without_a_labelled_row_are_spread_too(order, epoch):
    """Between two batches with one lie as many without, or one more."""
    with_one = np.flatnonzero(counts_per_batch(order, epoch))
    if 2 < len(with_one) < order.steps:
        gaps = np.diff(with_one)
        assert gaps.max() - gaps.min() <= 1


@given(orders(("repeated",), NONE | ONE), EPOCHS)
def test_with_repeats_no_batch_lacks_a_labelled_row_nor_holds_one_twice(order, epoch):
    rows = order.of_epoch(epoch)
    if order.labelled.any():
        assert counts_per_batch(order, epoch).min() >= 1
    assert all(len(np.unique(batch)) == len(batch) for batch in rows)
    others, times = np.unique(rows[~np.isin(rows, labelled_rows(order))], return_counts=True)
    assert (times == 1).all()
    repeats = np.array([(rows == row).sum() for row in labelled_rows(order)])
    if len(repeats) and len(repeats) <= order.steps * order.batch_size:
        assert repeats.max() - repeats.min() <= 1


@given(orders(("shuffled", "stratified"), ONE), EPOCHS)
def test_all_labelled_rows_and_so_many_others_are_drawn(order, epoch):
    rows = order.of_epoch(epoch)
    found = np.isin(labelled_rows(order), rows).sum()
    assert found == min(len(labelled_rows(order)), rows.size)
    if order.per_epoch is not None:
        assert order.per_epoch - order.batch_size < rows.size - found <= order.per_epoch


def test_other_rows_are_drawn_each_epoch_and_all_of_them_in_time():
    order = Order(np.arange(60), np.arange(60) < 20, 10, 3, per_epoch=10)
    drawn = [set(order.of_epoch(epoch).ravel()) - set(range(20)) for epoch in range(40)]
    assert all(len(rows) == 10 for rows in drawn)
    assert len({frozenset(rows) for rows in drawn}) > 30
    assert set.union(*drawn) == set(range(20, 60))


def test_another_seed_is_another_order():
    orders = [Order(np.arange(50), np.arange(50) < 3, 10, seed, batches) for seed in (0, 1) for batches in ALL]
    assert len({order.of_epoch(0).tobytes() for order in orders}) == len(orders)


def test_more_than_there_are_is_refused_with_their_number():
    with pytest.raises(ConfigError, match="extra_per_epoch is 46, but there are only 45 unlabeled rows"):
        Order(np.arange(50), np.arange(50) < 5, 10, 0, per_epoch=46)
