"""Several processes as one: what they exchange, and that training in them is training in one. All on gloo."""

import multiprocessing
import os
import socket
import traceback

import numpy as np
import pytest
import torch
from torch import nn

from selfens import distributed, networks
from selfens.config import NetworkConfig
from selfens.distributed import Group, joined
from selfens.networks.layers import synchronize_means

CPU = torch.device("cpu")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _process(rank, size, port, function, arguments, answers):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        with joined(CPU) as group:
            answers.put((rank, function(group, *arguments)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        raise


def in_processes(size, function, *arguments):
    """What `function(group, *arguments)` gives in each of several processes, forked because torch is imported already."""
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    processes = [
        context.Process(target=_process, args=(rank, size, port, function, arguments, answers)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    results = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0, results
    return [results[rank] for rank in range(size)]


SIZES = [1, 2, 3]


# What is exchanged


def exchange(group):
    tensor = torch.arange(3.0) + group.rank
    low, high = torch.tensor(group.rank), torch.tensor(group.rank)
    group.total(low, torch.distributed.ReduceOp.MIN)
    group.total(high, torch.distributed.ReduceOp.MAX)
    gradients = group.averaged([tensor.clone(), None, torch.full((2, 2), float(group.rank))])
    own = torch.full((group.rank + 1, 2), group.rank)
    parts = group.gathered(own, [(rank + 1, 2) for rank in range(group.size)])
    taken = torch.full((2,), float(group.rank))
    group.take_from_first([taken])
    return {
        "total": group.total(tensor.clone()).tolist(),
        "mean": group.mean(tensor.clone()).tolist(),
        "low": int(low),
        "high": int(high),
        "gradients": [None if g is None else g.tolist() for g in gradients],
        "any": (group.any(False), group.any(group.rank == group.size - 1)),
        "first": group.first_says(f"from {group.rank}"),
        "gathered": None if parts is None else [part.tolist() for part in parts],
        "taken": taken.tolist(),
    }


@pytest.mark.parametrize("size", SIZES)
def test_processes_tell_each_other_what_they_should(size):
    ranks = range(size)
    for rank, told in enumerate(in_processes(size, exchange)):
        assert told["total"] == [sum(k + r for r in ranks) for k in range(3)]
        assert told["mean"] == pytest.approx([sum(k + r for r in ranks) / size for k in range(3)])
        assert (told["low"], told["high"]) == (0, size - 1)
        first, middle, last = told["gradients"]
        assert first == pytest.approx(told["mean"])
        assert middle is None
        assert last == pytest.approx(np.full((2, 2), sum(ranks) / size))
        assert told["any"] == (False, True)
        assert told["first"] == "from 0"
        assert told["taken"] == [0.0, 0.0]
        expected = [[[r, r]] * (r + 1) for r in ranks]
        assert told["gathered"] == (expected if rank == 0 else None)


@pytest.mark.parametrize("size", SIZES)
def test_every_row_has_one_owner_and_labelled_rows_are_spread(size):
    rows, labelled = np.arange(5, 105), np.zeros(100, dtype=bool)
    labelled[[3, 50, 51, 52, 90, 97, 98]] = True
    shares = [Group(rank, size).share(rows, labelled) for rank in range(size)]
    assert sorted(np.concatenate(shares)) == rows.tolist()
    counts = [int(np.isin(share, rows[labelled]).sum()) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all((np.diff(share) > 0).all() for share in shares)
    assert Group(0, size).share(rows, labelled, rank=size - 1).tolist() == shares[-1].tolist()


# Gradients


def made_up_batch():
    random = np.random.default_rng(0)
    return torch.from_numpy(random.normal(size=(12, 1, 8, 8))).float(), torch.arange(12) % 3


def small_network():
    torch.manual_seed(0)
    return networks.build(NetworkConfig(name="small", width=4, dropout=0.0, noise=0.0), (1, 8, 8), 3).train()


def gradients_of(network, x, y):
    loss = nn.functional.cross_entropy(network(x), y)
    return torch.autograd.grad(loss, list(network.parameters()))


def gradients_in_a_group(group):
    network, (x, y) = small_network(), made_up_batch()
    synchronize_means(network, group.mean_with_gradient)
    own = slice(group.rank, None, group.size)
    means = [layer.batch_mean.numpy() for layer in networks.layers.normalized_layers(network)]
    return [g.numpy() for g in group.averaged(gradients_of(network, x[own], y[own]))], means


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_with_synchronised_means_are_those_of_the_joint_batch(size):
    network, (x, y) = small_network(), made_up_batch()
    expected = [g.numpy() for g in gradients_of(network, x, y)]
    means = [layer.batch_mean.numpy() for layer in networks.layers.normalized_layers(network)]
    for gradients, own_means in in_processes(size, gradients_in_a_group):
        for gradient, other in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, other, atol=1e-6, rtol=1e-4)
        for mean, other in zip(own_means, means, strict=True):
            np.testing.assert_allclose(mean, other, atol=1e-6)


def test_a_process_alone_needs_no_torchrun():
    assert distributed.is_first_process()
    with joined(CPU) as group:
        assert (group.rank, group.size, group.is_first) == (0, 1, True)
