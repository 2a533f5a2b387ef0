"""Whole runs of the methods against double precision twins, and what every method of the registry must do."""

import numpy as np
import pytest
import torch
from reference import losses as twin_losses
from reference import schedules as twin_schedules
from reference.algorithms import NormalizedNetwork, PlainNetwork, Trainer
from torch import nn

from selfens import methods, networks, train
from selfens.config import (
    AugmentConfig,
    Config,
    DataConfig,
    MethodConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from selfens.core import schedules
from selfens.core.batch import Batch
from selfens.core.optim import Adam
from selfens.core.targets import EnsembleTargets
from selfens.data.dataset import Dataset
from selfens.data.loader import Loader
from selfens.data.sampler import Order
from selfens.errors import ConfigError
from selfens.methods import METHODS, Pi, Temporal
from selfens.networks.layers import NormalizedLinear
from selfens.training.step import Step

ROWS, FEATURES, CLASSES, BATCH, EPOCHS = 23, 4, 3, 5, 5  # 4 steps an epoch, 3 rows left out of each
SCHEDULE = ScheduleConfig(epochs=EPOCHS, rampup_epochs=3, rampdown_epochs=2)
LEARNING_RATE, WEIGHT = 0.02, 10.0
CPU = torch.device("cpu")


class RecordedNoise(nn.Module):
    """Noise in training; keeps what came in and what went out of every training pass."""

    def __init__(self):
        super().__init__()
        self.passes = []
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        if not self.training:
            return x
        noisy = x + 0.3 * torch.randn(x.shape, generator=self.generator)
        self.passes.append((x.numpy(), noisy.numpy().astype(np.float64)))
        return noisy


def inputs_and_labels():
    random = np.random.default_rng(3)
    labels = np.full(ROWS, -1)
    labels[[0, 4, 9, 13, 17, 22]] = [0, 1, 2, 0, 1, 2]
    return random.normal(size=(ROWS, FEATURES)).astype(np.float32), labels


def plain_network():
    torch.manual_seed(0)
    network = nn.Sequential(RecordedNoise(), nn.Linear(FEATURES, 6), nn.LeakyReLU(0.1), nn.Linear(6, CLASSES))
    return network, PlainNetwork(*[p.detach().numpy() for p in network.parameters()])


def normalized_network():
    torch.manual_seed(0)
    first = NormalizedLinear(FEATURES, 4, momentum=0.9, slope=0.1)
    second = NormalizedLinear(4, CLASSES, momentum=0.9)
    directions = [layer.direction.detach().numpy().copy() for layer in (first, second)]
    return nn.Sequential(RecordedNoise(), first, second), NormalizedNetwork(*directions, momentum=0.9)


def double(tensor):
    return tensor.detach().numpy().astype(np.float64)


def follow(twin, passes, inputs, num_views, weight_max):
    """Let the twin train on the passes that the network saw."""
    row_of = {row.tobytes(): number for number, row in enumerate(inputs)}
    passes = iter(passes)
    for epoch in range(EPOCHS):
        rates = (
            twin_schedules.learning_rate(epoch, LEARNING_RATE, EPOCHS, up=3, down=2),
            twin_schedules.beta1(epoch, epochs=EPOCHS, down=2),
            twin_schedules.weight(epoch, weight_max, up=3),
        )
        visited = []
        for _ in range(ROWS // BATCH):
            views = [next(passes) for _ in range(num_views)]
            rows = [row_of[row.tobytes()] for row in views[0][0]]
            assert all(np.array_equal(clean, views[0][0]) for clean, _ in views)
            twin.step(rows, [noisy for _, noisy in views], *rates)
            visited += rows
        assert len(set(visited)) == len(visited) == ROWS // BATCH * BATCH
        twin.end_epoch()
    assert next(passes, None) is None


def assert_same_ensemble(ensemble, twin):
    np.testing.assert_allclose(ensemble.mean, [twin.ensemble.mean(row) for row in range(ROWS)], rtol=1e-5, atol=1e-5)
    counts = ensemble.count.tolist()
    assert counts == [len(past) for past in twin.ensemble.past]
    assert sum(counts) == EPOCHS * (ROWS // BATCH) * BATCH
    assert len(set(counts)) > 1  # some rows were left out of an epoch, and kept Z and count


def assert_same_parameters(network, twin):
    for ours, theirs in zip(network.parameters(), twin.network.parameters, strict=True):
        np.testing.assert_allclose(double(ours), theirs, rtol=1e-5, atol=1e-5)


def loader_of(inputs, labels, seed=0):
    order = Order(np.arange(ROWS), labels != -1, BATCH, seed)
    return Loader(torch.from_numpy(inputs), torch.from_numpy(labels), order, AugmentConfig())


@pytest.mark.parametrize("name", ["supervised", "pi", "temporal"])
def test_steps_follow_the_algorithm_for_five_epochs(name):
    inputs, labels = inputs_and_labels()
    network, twin_network = plain_network()
    method = methods.build(MethodConfig(name=name), ROWS, CLASSES, CPU)
    loader = loader_of(inputs, labels, seed=1)
    optimizer = Adam(network.parameters())
    step = Step(network=network, method=method, optimizer=optimizer, loader=loader, num_classes=CLASSES)
    history = []
    rate, beta1, weight = (
        schedules.learning_rate(SCHEDULE, LEARNING_RATE),
        schedules.beta1(SCHEDULE, OptimizerConfig()),
        schedules.unsupervised_weight(SCHEDULE, WEIGHT),
    )
    for epoch in range(EPOCHS):
        step.set(learning_rate=rate(epoch), beta1=beta1(epoch), weight=weight(epoch))
        for rows in loader.order(epoch):
            step(rows)
        method.end_epoch()
        means = step.take_means()
        history.append((float(means["supervised"]), float(means["unsupervised"])))

    twin = Trainer(name, twin_network, labels, CLASSES)
    follow(twin, network[0].passes, inputs, method.num_views, WEIGHT)
    assert_same_parameters(network, twin)
    np.testing.assert_allclose(history, twin.history, rtol=1e-5, atol=1e-6)
    if method.ensemble:
        assert_same_ensemble(method.ensemble, twin)


def config_of(name, **method):
    return Config(
        data=DataConfig(name="mine"),
        method=MethodConfig(name=name, weight_max=WEIGHT, **method),
        optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
        schedule=SCHEDULE,
        training=TrainingConfig(batch_size=BATCH, device="cpu"),
    )


@pytest.mark.parametrize("name", ["pi", "temporal"])
@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("paper", 6 / ROWS), ("original", 6 / ROWS)])
def test_a_run_with_normalised_layers_follows_the_algorithm_for_five_epochs(tmp_path, name, scale, factor):
    inputs, labels = inputs_and_labels()
    data = Dataset.from_arrays(inputs, labels, inputs[:4], [0, 1, 2, 0])
    network, twin_network = normalized_network()
    networks.calibrate(network, torch.from_numpy(inputs[:BATCH]))  # a module that is passed is taken as it is
    run = train(config_of(name, weight_scale=scale), tmp_path / "run", dataset=data, network=network)

    passes = network[0].passes
    twin_network.calibrate(passes[0][1])  # one training pass before the first step, noise included
    twin = Trainer(name, twin_network, labels, CLASSES)
    follow(twin, passes[1:], inputs, METHODS[name](MethodConfig(), 1, 1, CPU).num_views, WEIGHT * factor)
    assert_same_parameters(network, twin)
    for layer, mean in zip(network[1:], twin_network.running_means, strict=True):
        np.testing.assert_allclose(double(layer.running_mean), mean, rtol=1e-5, atol=1e-5)
    ours = [(epoch["supervised"], epoch["unsupervised"]) for epoch in run.history]
    np.testing.assert_allclose(ours, twin.history, rtol=1e-5, atol=1e-6)
    if name == "temporal":
        assert_same_ensemble(run.ensemble, twin)


# every method


def options_for(name):
    return MethodConfig(name=name)


@pytest.fixture
def batch():
    torch.manual_seed(1)
    labels = torch.tensor([0, -1, 2, -1, -1, 1])
    views = tuple(torch.randn(6, FEATURES) for _ in range(4))
    return Batch(torch.tensor([3, 0, 8, 5, 1, 7]), views, labels, labels >= 0)


def small_network():
    torch.manual_seed(2)
    return nn.Sequential(NormalizedLinear(FEATURES, 5, slope=0.1), NormalizedLinear(5, CLASSES))


def seen_before(method, rows):
    """A method one epoch old."""
    if method.ensemble:
        z = torch.softmax(torch.randn(len(rows), CLASSES, generator=torch.Generator().manual_seed(9)), dim=1)
        method.ensemble.write(rows, z)
        method.ensemble.commit()
    return method


@pytest.fixture(params=METHODS)
def method(request, batch):
    return seen_before(methods.build(options_for(request.param), 10, CLASSES, CPU), batch.rows)


def losses_of(method, network, batch, weight=2.0):
    batch = batch._replace(views=batch.views[: method.num_views])
    return method.losses(network, batch, method.targets(batch.rows), torch.tensor(weight))


def gradients_of(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)


def test_losses_are_finite_numbers_and_add_up(method, batch):
    losses = losses_of(method, small_network(), batch)
    for loss in losses[:3]:
        assert loss.shape == ()
        assert loss.dtype == torch.float32
        assert loss.isfinite()
    torch.testing.assert_close(losses.total, losses.supervised + 2.0 * losses.unsupervised, rtol=1e-6, atol=0)
    assert (losses.unsupervised > 0) == method.uses_unlabeled


def test_probabilities_are_those_of_the_first_view_without_gradient(method, batch):
    network = small_network()
    losses = losses_of(method, network, batch)
    assert not losses.probabilities.requires_grad
    torch.testing.assert_close(losses.probabilities.sum(dim=1), torch.ones(6), rtol=1e-6, atol=0)
    expected = network(batch.views[0]).detach().softmax(dim=1)
    torch.testing.assert_close(losses.probabilities, expected, rtol=1e-6, atol=1e-7)


def test_weight_zero_gives_the_supervised_gradient(method, batch):
    network = small_network()
    losses = losses_of(method, network, batch, weight=0.0)
    both = gradients_of(losses.total, network), gradients_of(losses.supervised, network)
    for total, supervised in zip(*both, strict=True):
        torch.testing.assert_close(total, supervised, rtol=1e-6, atol=1e-8)


def test_cross_entropy_is_on_the_first_view_alone(method, batch):
    network = small_network()
    views = tuple(view.clone().requires_grad_() for view in batch.views[: method.num_views])
    losses = losses_of(method, network, batch._replace(views=views))
    first, *others = torch.autograd.grad(losses.supervised, views, allow_unused=True)
    assert first.any()
    assert all(other is None or not other.any() for other in others)


def test_batch_without_labels_is_learnt_from_by_consistency_alone(method, batch):
    unlabelled = batch._replace(labels=torch.full((6,), -1), labelled=torch.zeros(6, dtype=torch.bool))
    losses = losses_of(method, small_network(), unlabelled)
    assert losses.supervised == 0
    assert losses.total.isfinite()
    assert (losses.total > 0) == method.uses_unlabeled


def test_losses_change_neither_network_nor_batch_nor_ensemble(method, batch):
    network = small_network()
    ensemble = {} if method.ensemble is None else method.ensemble.state_dict()
    state = network.state_dict() | {f"method.{k}": v for k, v in method.state_dict().items()}
    things = [*state.values(), *ensemble.values(), *batch.views, batch.rows, batch.labels, batch.labelled]
    before = [thing.clone() for thing in things]
    losses_of(method, network, batch).total.backward()
    assert all(torch.equal(thing, kept) for thing, kept in zip(things, before, strict=True))


def test_after_a_step_nothing_is_remembered_but_the_ensemble(method, batch):
    before = {name: value.clone() for name, value in method.state_dict().items()}
    losses = losses_of(method, small_network(), batch)
    method.after_step(batch.rows, losses)
    method.end_epoch()
    assert set(method.state_dict()) == set(before)
    if method.ensemble:
        seen = torch.zeros(10, dtype=torch.bool)
        seen[batch.rows] = True
        assert method.ensemble.count.tolist() == [2.0 if s else 0.0 for s in seen]
        old_weight, new_weight = 0.6 * 0.4, 0.4  # of the two predictions so far
        corrected = (method.ensemble.get(batch.rows).probabilities * (1 - 0.6**2)).numpy()
        rest = corrected - new_weight * losses.probabilities.numpy()
        np.testing.assert_allclose(rest.sum(axis=1), old_weight, rtol=1e-5)


def test_the_network_itself_is_evaluated(method):
    network = small_network()
    assert method.evaluated(network) is network


def test_unknown_method_names_the_nearest():
    with pytest.raises(ConfigError, match="no method 'temporel'; did you mean 'temporal'"):
        methods.build(MethodConfig(name="temporel"), 10, 3, CPU)


# each method


def test_pi_draws_both_branches_towards_each_other(batch):
    views = tuple(view.clone().requires_grad_() for view in batch.views[:2])
    losses = losses_of(Pi(), small_network(), batch._replace(views=views))
    first, second = torch.autograd.grad(losses.unsupervised, views)
    assert first.any()
    assert second.any()


def test_pi_has_no_consistency_loss_for_two_like_views(batch):
    same = batch._replace(views=(batch.views[0], batch.views[0]))
    assert losses_of(Pi(), small_network(), same).unsupervised == 0


def test_pi_passes_are_two_batches_with_means_of_their_own(batch):
    network, views = small_network(), (batch.views[0], batch.views[1] + 5)
    losses = losses_of(Pi(), network, batch._replace(views=views))
    z, z_tilde = (network(view).detach().softmax(dim=1) for view in views)
    expected = ((z - z_tilde) ** 2).sum() / (6 * CLASSES)
    torch.testing.assert_close(losses.unsupervised.detach(), expected, rtol=1e-5, atol=0)


def test_running_means_after_a_pi_step_come_from_the_second_pass():
    inputs, labels = inputs_and_labels()
    noise, layer = RecordedNoise(), NormalizedLinear(FEATURES, CLASSES, momentum=0.999)
    network, weight = nn.Sequential(noise, layer), double(layer.weight())
    loader = loader_of(inputs, labels)
    optimizer = Adam(network.parameters())
    step = Step(network=network, method=Pi(), optimizer=optimizer, loader=loader, num_classes=CLASSES)
    step.set(learning_rate=0.5, beta1=0.9, weight=1.0)
    step(loader.order(0)[0])
    first, second = (noisy for _, noisy in noise.passes)
    np.testing.assert_allclose(double(layer.running_mean), 0.001 * (second @ weight.T).mean(axis=0), rtol=1e-4)
    assert not np.allclose(double(layer.running_mean), 0.001 * (first @ weight.T).mean(axis=0), rtol=1e-2)


@pytest.mark.parametrize("skip", [True, False])
def test_temporal_skips_unseen_rows_or_compares_them_with_zeros(batch, skip):
    ensemble = EnsembleTargets(10, CLASSES)
    known = torch.tensor([True, True, False, False, True, False])
    z_old = torch.softmax(torch.randn(3, CLASSES), dim=1)
    ensemble.write(batch.rows[known], z_old)
    ensemble.commit()
    losses = losses_of(Temporal(ensemble, skip_unseen=skip), small_network(), batch)
    targets = torch.zeros(6, CLASSES)
    targets[known] = z_old
    each = (losses.probabilities - targets).square().sum(dim=1)
    expected = (each[known] if skip else each).sum() / (6 * CLASSES)
    torch.testing.assert_close(losses.unsupervised.detach(), expected, rtol=1e-5, atol=0)


def test_temporal_with_certainty_weighs_rows_by_their_targets(batch):
    ensemble = EnsembleTargets(10, CLASSES)
    known = torch.tensor([True, True, False, False, True, False])
    z_old = torch.tensor([[0.9, 0.1, 0.0], [0.4, 0.3, 0.3], [0.2, 0.8, 0.0]])
    ensemble.write(batch.rows[known], z_old)
    ensemble.commit()
    losses = losses_of(Temporal(ensemble, certainty=True), small_network(), batch)
    targets = torch.zeros(6, CLASSES)
    targets[known] = z_old
    counted = twin_losses.certainty(targets.tolist(), known)
    expected = twin_losses.squared_difference(losses.probabilities.tolist(), targets.tolist(), counted)
    assert float(losses.unsupervised.detach()) == pytest.approx(expected, rel=1e-4)
    assert not torch.isclose(
        losses.unsupervised, losses_of(Temporal(ensemble), small_network(), batch).unsupervised, rtol=1e-3
    )


def test_options_reach_the_methods():
    method = methods.build(MethodConfig(certainty=True, variance=False, targets_type="float16"), 10, CLASSES, CPU)
    assert (method.certainty, method.ensemble.square, method.ensemble.mean.dtype) == (True, None, torch.float16)
    for unseen, skip in (("skip", True), ("zero", False)):
        options = MethodConfig(decay=0.3, unseen_rows=unseen, consistency="cross_entropy")
        method = methods.build(options, 10, CLASSES, CPU)
        assert (method.ensemble.decay, method.skip_unseen) == (0.3, skip)
        assert method.ensemble.mean.shape == (10, CLASSES)
    batch = Batch(torch.arange(2), (torch.eye(2), torch.eye(2)), torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool))
    squared, entropy = (
        losses_of(methods.build(MethodConfig(name="pi", consistency=c), 2, 2, CPU), nn.Identity(), batch).unsupervised
        for c in ("squared", "cross_entropy")
    )
    assert squared == 0
    assert entropy > 0.1
