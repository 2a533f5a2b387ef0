"""What is particular to the temporal teacher; its whole runs follow a twin in test_methods.py."""

import pytest
import torch
from support import CLASSES, FEATURES, training_rows
from torch import nn

from selfens.core.batch import Batch
from selfens.errors import ConfigError
from selfens.methods import METHODS


def losses_of(batch, **options):
    method, network = METHODS.build(METHODS.options("temporal-teacher", **options)), nn.Linear(FEATURES, CLASSES)
    method.setup(network, training_rows(torch.zeros(10, FEATURES), torch.arange(10) % CLASSES))
    return method.losses(network, batch, None, torch.tensor(1.0))


@pytest.fixture
def batch():
    """Four labeled rows, then four others."""
    torch.manual_seed(1)
    views = tuple(torch.randn(8, FEATURES, requires_grad=True) for _ in range(2))
    labels = torch.tensor([0, 1, 2, 0, -1, -1, -1, -1])
    return Batch(torch.arange(8), views, labels, labels >= 0, num_labeled=4)


def test_labeled_rows_are_learned_on_both_views_and_no_gradient_flows_into_the_targets(batch):
    losses = losses_of(batch)
    weak, strong = torch.autograd.grad(losses.parts["supervised"], batch.views, retain_graph=True)
    assert [bool(row.any()) for row in weak] == [True] * 2 + [False] * 6
    assert [bool(row.any()) for row in strong] == [False] * 2 + [True] * 2 + [False] * 4
    weak, strong = torch.autograd.grad(losses.parts["unsupervised"], batch.views, allow_unused=True)
    assert not weak.any()
    assert [bool(row.any()) for row in strong] == [False] * 4 + [True] * 4


def test_a_threshold_that_nothing_reaches_leaves_the_supervised_loss(batch):
    losses = losses_of(batch, threshold=0.999)
    total, supervised, unsupervised, kept = (float(x.detach()) for x in (losses.total, *losses.parts.values()))
    assert unsupervised == kept == 0
    assert total == supervised > 0


def test_a_memory_that_float32_cannot_keep_is_refused():
    with pytest.raises(ConfigError, match=r"method\.memory is 0.99999; expected at least 0 and at most 0.9999"):
        METHODS.options("temporal-teacher", memory=0.99999)
