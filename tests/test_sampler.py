"""The order of an epoch: what is promised about the rows of a batch, over sizes drawn at random."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfens.core.views import Views
from selfens.data.loader import Loader
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError

EPOCHS = st.integers(0, 50)
NONE, ONE = st.none(), st.integers(0, 200)


@st.composite
def samplers(draw, per_epoch):
    """Any number of rows, any of them labeled, with gaps between their numbers as held-out rows leave them."""
    labeled = np.array(draw(st.lists(st.booleans(), min_size=2, max_size=120)))
    visited = np.flatnonzero(draw(st.permutations([True] * len(labeled) + [False] * 7))).astype(np.int64)
    others = int((~labeled).sum())
    wanted = draw(per_epoch)
    wanted = None if wanted is None or others == 0 else 1 + wanted % others
    size = draw(st.integers(2, 40))
    return Sampler(visited, labeled, size, draw(st.integers(0, 99)), wanted)


def labeled_rows(sampler):
    return sampler.visited[sampler.labeled]


@given(samplers(NONE | ONE), EPOCHS)
def test_an_epoch_is_full_batches_of_visited_rows_each_once_and_depends_only_on_seed_and_epoch(sampler, epoch):
    rows = sampler.of_epoch(epoch)
    assert rows.shape == (sampler.steps, sampler.batch_size)
    assert sampler.steps == sampler.rows_per_epoch // sampler.batch_size
    assert np.isin(rows, sampler.visited).all()
    assert len(np.unique(rows)) == rows.size
    np.testing.assert_array_equal(rows, sampler.of_epoch(epoch))


@given(samplers(ONE), EPOCHS)
def test_all_labeled_rows_and_so_many_others_are_drawn(sampler, epoch):
    rows = sampler.of_epoch(epoch)
    found = np.isin(labeled_rows(sampler), rows).sum()
    assert found == min(len(labeled_rows(sampler)), rows.size)
    if sampler.per_epoch is not None:
        assert sampler.per_epoch - sampler.batch_size < rows.size - found <= sampler.per_epoch


def test_other_rows_are_drawn_each_epoch_and_all_of_them_in_time():
    sampler = Sampler(np.arange(60), np.arange(60) < 20, 10, 3, per_epoch=10)
    drawn = [set(sampler.of_epoch(epoch).ravel()) - set(range(20)) for epoch in range(40)]
    assert all(len(rows) == 10 for rows in drawn)
    assert len({frozenset(rows) for rows in drawn}) > 30
    assert set.union(*drawn) == set(range(20, 60))


def test_another_seed_is_another_order():
    orders = [Sampler(np.arange(50), np.arange(50) < 3, 10, seed, each) for seed in (0, 1) for each in (None, 40)]
    assert len({sampler.of_epoch(0).tobytes() for sampler in orders}) == len(orders)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"per_epoch": 46}, "unlabeled_per_epoch is 46, but there are only 45 unlabeled rows"),
        ({"num_labeled": 6}, "labeled_per_batch is 6, but there are only 5 labeled rows"),
    ],
)
def test_more_rows_than_there_are_are_refused_with_their_number(asked, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Sampler(np.arange(50), np.arange(50) < 5, 10, 0, **asked)


# Batches that begin with labeled rows


@st.composite
def split_samplers(draw):
    labeled = np.array(draw(st.lists(st.booleans(), min_size=2, max_size=120).filter(any)))
    visited = np.flatnonzero(draw(st.permutations([True] * len(labeled) + [False] * 7))).astype(np.int64)
    num_labeled = draw(st.integers(1, int(labeled.sum())))
    size, seed = num_labeled + draw(st.integers(1, 30)), draw(st.integers(0, 99))
    return Sampler(visited, labeled, size, seed, num_labeled=num_labeled)


@given(split_samplers(), EPOCHS)
def test_a_split_batch_begins_with_labeled_rows_and_the_rest_visits_each_row_once(sampler, epoch):
    rows = sampler.of_epoch(epoch)
    each = sampler.batch_size - sampler.num_labeled
    assert rows.shape == (sampler.steps, sampler.batch_size)
    assert sampler.steps == len(sampler.visited) // each
    labeled, others = rows[:, : sampler.num_labeled], rows[:, sampler.num_labeled :]
    assert np.isin(labeled, labeled_rows(sampler)).all()
    times = np.array([(labeled == row).sum() for row in labeled_rows(sampler)])
    assert times.max() - times.min() <= 1
    assert len(np.unique(others)) == others.size > len(sampler.visited) - each
    assert np.isin(others, sampler.visited).all()
    np.testing.assert_array_equal(rows, sampler.of_epoch(epoch))


def test_labeled_rows_of_split_batches_come_in_another_order_each_round_and_epoch():
    sampler = Sampler(np.arange(60), np.arange(60) < 4, 6, 0, num_labeled=4)
    rounds = [tuple(batch[:4]) for epoch in range(3) for batch in sampler.of_epoch(epoch)]
    assert all(sorted(batch) == [0, 1, 2, 3] for batch in rounds)
    assert len(set(rounds)) > 15


def test_a_set_smaller_than_a_split_batch_is_one_step():
    sampler = Sampler(np.arange(10), np.arange(10) < 4, 100, 0, num_labeled=3)
    assert (sampler.steps, sampler.batch_size) == (1, 13)
    assert sorted(sampler.of_epoch(0)[0, 3:]) == list(range(10))


def test_a_least_number_of_steps_is_only_for_batches_that_begin_with_labeled_rows():
    assert Sampler(np.arange(50), np.arange(50) < 4, 10, 0, min_steps=30).steps == 5


@pytest.mark.parametrize(("rows", "steps"), [(30, 12), (64, 12), (65, 12), (200, 25)])
def test_a_split_epoch_has_at_least_so_many_steps(rows, steps):
    """The rows are visited again and again: each visit is complete before the next begins."""
    sampler = Sampler(np.arange(rows), np.arange(rows) < 5, 11, 0, num_labeled=3, min_steps=12)
    order = sampler.of_epoch(1)
    assert order.shape == (sampler.steps, 11) == (steps, 11)
    others = order[:, 3:].flatten()
    for start in range(0, len(others) // rows * rows, rows):
        assert sorted(others[start : start + rows]) == list(range(rows))
    assert len(set(others[len(others) // rows * rows :])) == len(others) % rows
    assert not np.array_equal(order, sampler.of_epoch(2))


@pytest.mark.parametrize("num_labeled", [0, 3])
def test_the_loader_hides_the_labels_after_the_labeled_rows_and_no_others(num_labeled):
    labels = torch.where(torch.arange(40) < 30, torch.arange(40) % 3, -1)
    sampler = Sampler(np.arange(40), (labels >= 0).numpy(), 8, 0, num_labeled=num_labeled)
    loader = Loader(torch.arange(40.0)[:, None], labels, sampler, Views((1,)))
    for rows in loader.visit(loader.order(0)):
        batch = loader.batch(rows, ("none",))
        known = labels[rows].clone()
        if num_labeled:
            known[num_labeled:] = -1
        assert torch.equal(batch.labels, known)
        assert torch.equal(batch.labeled, known >= 0)
        assert torch.equal(batch.views[0][:, 0].long(), batch.rows)
        assert torch.equal(batch.rows[batch.unlabeled], rows[num_labeled:])
