"""Whole runs of the methods against double precision twins, and what every method of the registry must do."""

import numpy as np
import pytest
import torch
from reference import schedules as twin_schedules
from reference.algorithms import NormalizedNetwork, PlainNetwork, Trainer
from reference.temporal_teacher import TemporalTeacherTwin
from support import At, config, differences, features, images, interrupt, left_behind, training_rows
from torch import nn

from selfens import networks, resume, train
from selfens.config import Config, OptimizerConfig, ScheduleConfig, TrainingConfig
from selfens.core.batch import Batch
from selfens.core.evaluate import logits
from selfens.core.optim import Adam
from selfens.core.views import Views, ViewsConfig
from selfens.data.dataset import Dataset
from selfens.data.loader import Loader
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.networks.layers import NormalizedLinear
from selfens.training.components import rates_at
from selfens.training.step import Step

ROWS, FEATURES, CLASSES, BATCH, EPOCHS = 23, 4, 3, 5, 5  # 4 steps an epoch, 3 rows left out of each
SCHEDULE = ScheduleConfig(epochs=EPOCHS, rampup_epochs=3, rampdown_epochs=2)
LEARNING_RATE, WEIGHT = 0.02, 10.0


class RecordedNoise(nn.Module):
    """Noise in training; keeps what came in and what went out of every training pass, of a teacher's too."""

    def __init__(self):
        super().__init__()
        self.passes = []
        self.generator = torch.Generator().manual_seed(5)

    def __deepcopy__(self, memo):
        copied = RecordedNoise()
        copied.passes, copied.generator = self.passes, self.generator
        return copied

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


def follow(twin, passes, inputs, num_passes, weight_max, batch=BATCH):
    """Let the twin train on the passes that the networks saw."""
    row_of = {row.tobytes(): number for number, row in enumerate(inputs)}
    passes, steps = iter(passes), ROWS // (batch - twin.num_labeled)
    for epoch in range(EPOCHS):
        rates = (
            twin_schedules.learning_rate(epoch, LEARNING_RATE, EPOCHS, up=3, down=2),
            twin_schedules.beta1(epoch, epochs=EPOCHS, down=2),
            twin_schedules.weight(epoch, weight_max, up=3),
        )
        visited = []
        for _ in range(steps):
            views = [next(passes) for _ in range(num_passes)]
            rows = [row_of[row.tobytes()] for row in views[0][0][:batch]]
            assert all(np.array_equal(clean[:batch], views[0][0][:batch]) for clean, _ in views)
            twin.step(rows, [noisy for _, noisy in views], *rates)
            visited += rows[twin.num_labeled :]
        assert len(set(visited)) == len(visited) == steps * (batch - twin.num_labeled)
        twin.end_epoch()
    assert next(passes, None) is None


def assert_same_ensemble(ensemble, twin):
    np.testing.assert_allclose(ensemble.mean, [twin.ensemble.mean(row) for row in range(ROWS)], rtol=1e-5, atol=1e-5)
    counts = ensemble.count.tolist()
    assert counts == [len(past) for past in twin.ensemble.past]
    assert len(set(counts)) > 1  # some rows were left out of an epoch, and kept Z and count


def assert_same_parameters(network, parameters):
    for ours, theirs in zip(network.parameters(), parameters, strict=True):
        np.testing.assert_allclose(double(ours), theirs, rtol=1e-5, atol=1e-5)


def loader_of(inputs, labels, seed=0, batch=BATCH, num_labeled=0):
    sampler = Sampler(np.arange(ROWS), labels != -1, batch, seed, num_labeled=num_labeled)
    views = Views((FEATURES,), ViewsConfig(noise=0.0, feature_dropout=0.0))
    return Loader(torch.from_numpy(inputs), torch.from_numpy(labels), sampler, views)


def build(name, **options):
    return METHODS.build(METHODS.options(name, **options))


WHOLE = [
    ("supervised", {}),
    ("pi", {}),
    ("temporal", {}),
    ("mean-teacher", {"decay": 0.8}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.45}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.4, "alignment": "labels"}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.4, "alignment": "uniform"}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.95}),
    *(
        ("temporal-teacher", {"decay": 0.8, **options})
        for options in (
            {"memory": 0.0, "alignment": "labels", "temperature": 0.5, "threshold": 0.0},
            {"memory": 0.6, "alignment": "uniform", "temperature": 0.3, "threshold": 0.4},
            {"memory": 0.9, "alignment": "none", "temperature": 1.0, "threshold": 0.0},
        )
    ),
]  # committee's twin is in test_committee.py


@pytest.mark.parametrize("num_labeled", [0, 2, 4])
@pytest.mark.parametrize(("name", "options"), WHOLE, ids=str)
def test_steps_follow_the_algorithm_for_five_epochs(name, options, num_labeled):
    inputs, labels = inputs_and_labels()
    network, twin_network = plain_network()
    method, batch = build(name, **options), BATCH + num_labeled
    loader = loader_of(inputs, labels, 1, batch, num_labeled)
    method.setup(network, training_rows(*map(torch.from_numpy, (inputs, labels))))
    step = Step(network=network, method=method, optimizer=Adam(network), loader=loader)
    config = Config(optimizer=OptimizerConfig(learning_rate=LEARNING_RATE), schedule=SCHEDULE)
    history = []
    for epoch in range(EPOCHS):
        step.set(**rates_at(epoch, config, WEIGHT))
        for rows in loader.order(epoch):
            step(rows)
        method.end_epoch()
        means = step.take_means()
        history.append([float(means[part]) for part in method.parts])

    if name == "temporal-teacher":
        twin = TemporalTeacherTwin(
            twin_network, inputs.astype(np.float64), labels, CLASSES, num_labeled=num_labeled, **options
        )
    else:
        twin = Trainer(name, twin_network, labels, CLASSES, num_labeled=num_labeled, **options)
    follow(twin, network[0].passes, inputs, 2 if name in ("pi", "mean-teacher") else 1, WEIGHT, batch)
    assert_same_parameters(network, twin_network.parameters)
    np.testing.assert_allclose(history, twin.history, rtol=2e-5, atol=1e-6)
    if method.ensemble:
        assert_same_ensemble(method.ensemble, twin)
    if method.teacher:
        assert_same_parameters(method.evaluated(network), twin.teacher.parameters)
        assert not np.allclose(twin.teacher.parameters[0], twin_network.parameters[0], rtol=1e-3)
    if threshold := options.get("threshold"):
        np.testing.assert_allclose(method.alignment.predicted, twin.predicted, rtol=1e-5)
        kept = np.array([record[2] for record in history])
        assert (kept == 0).all() if threshold == 0.95 else ((kept > 0) & (kept < 1)).any()


@pytest.mark.parametrize(
    ("name", "scale", "factor"),
    [("pi", "paper", 6 / ROWS), ("temporal", "original", 6 / ROWS), ("temporal", "none", 1)],
)
def test_a_run_with_normalized_layers_follows_the_algorithm_for_five_epochs(tmp_path, name, scale, factor):
    inputs, labels = inputs_and_labels()
    data = Dataset.from_arrays(inputs, labels, inputs[:4], [0, 1, 2, 0])
    network, twin_network = normalized_network()
    networks.calibrate(network, torch.from_numpy(inputs[:BATCH]))  # a module that is passed is taken as it is
    settings = Config(
        method=METHODS.options(name, weight_max=WEIGHT, weight_scale=scale),
        optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
        schedule=SCHEDULE,
        training=TrainingConfig(batch_size=BATCH, device="cpu"),
    )
    run = train(settings, tmp_path / "run", dataset=data, network=network)

    passes = network[0].passes
    twin_network.calibrate(passes[0][1])  # one training pass before the first step, noise included
    twin = Trainer(name, twin_network, labels, CLASSES)
    follow(twin, passes[1:], inputs, len(METHODS.find(name).views), WEIGHT * factor)
    assert_same_parameters(network, twin_network.parameters)
    for layer, mean in zip(network[1:], twin_network.running_means, strict=True):
        np.testing.assert_allclose(double(layer.running_mean), mean, rtol=1e-5, atol=1e-5)
    ours = [(epoch["supervised"], epoch["unsupervised"]) for epoch in run.history]
    np.testing.assert_allclose(ours, twin.history, rtol=1e-5, atol=1e-6)
    if name == "temporal":
        assert_same_ensemble(run.ensemble, twin)


# The registry


@pytest.mark.parametrize("name", METHODS)
def test_what_an_option_cannot_be_is_refused_in_a_sentence(name):
    for item, _, expected, _ in METHODS.find(name).Options.describe():
        wrong = ["x" * 40, None, [1]]
        if expected.startswith(("at least 0", "above 0")):
            wrong += [float("nan"), float("inf"), -0.5]
        wrong += [{"below 1": 1.0, "at most 1": 1.5, "at most 0.9999": 1.0}.get(expected.rpartition(" and ")[2])]
        for value in wrong:
            with pytest.raises(ConfigError, match=rf"method\.{item}.*[.?]$") as refusal:
                METHODS.options(name, **{item: value})
            assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match=f"{name} option 'deacy'"):
        METHODS.options(name, deacy=0.5)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_resumed_in_mid_epoch_is_the_run_never_stopped(tmp_path, name, split):
    """On images, preprocessed after the views, with sgd and a cosine, if split; on vectors in the usual way if not."""
    settings, data = config(name, epochs=2), features()
    if name == "committee":
        settings = settings.with_values("network", name="committee")
    if split:
        data, settings = (
            images(),
            config(
                *(name, "training.labeled_per_batch=4", "network.name=small", "preprocess.after_views=on"),
                *("views.flip=true", "views.translation=1", "optimizer.name=sgd", "optimizer.weight_decay=0.01"),
                *("schedule.name=cosine",),
                epochs=2,
            ),
        )
    run = train(settings, tmp_path / "whole", dataset=data)
    assert len(run.history) == 2
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", dataset=data, progress=At(0, 3, interrupt))
    resume(tmp_path / "run", dataset=data)
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "run")) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_run_predicts_with_the_averaged_weights_if_the_method_has_a_teacher(tmp_path, name):
    run = train(config(name, "optimizer.learning_rate=0.05", epochs=2), tmp_path / "run", dataset=features())
    has_teacher = name in ("mean-teacher", "fixmatch", "committee", "temporal-teacher", "ict")
    tensors = run.directory.load_checkpoint().tensors
    assert ("evaluated" in tensors) == has_teacher
    used, trained = run.network.state_dict(), tensors["network"]
    saved = tensors.get("evaluated", trained)
    assert used.keys() == saved.keys()
    assert all(torch.equal(used[key], saved[key]) for key in used)
    assert any(not torch.equal(used[key], trained[key]) for key in used) == has_teacher


@pytest.mark.parametrize("name", ["fixmatch", "temporal-teacher"])
def test_alignment_to_the_labels_without_a_label_of_each_class_is_refused(name):
    rows = training_rows(torch.zeros(3, FEATURES), torch.tensor([0, 2, -1]))
    for alignment in ("uniform", "none"):
        build(name, alignment=alignment).setup(small_network(), rows)
    with pytest.raises(ConfigError, match="the class '1' has no label; label a row of each class"):
        build(name, alignment="labels").setup(small_network(), rows)


# Every method


def ten_rows():
    inputs = torch.randn(10, FEATURES, generator=torch.Generator().manual_seed(7))
    return training_rows(inputs, torch.tensor([0, 1, 2] + [-1] * 7))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    labels = torch.tensor([0, -1, 2, -1, -1, 1])
    views = tuple(torch.randn(6, FEATURES) for _ in range(4))
    return Batch(torch.tensor([3, 0, 8, 5, 1, 7]), views, labels, labels >= 0)


def small_network():
    torch.manual_seed(2)
    return nn.Sequential(NormalizedLinear(FEATURES, 5, slope=0.1), NormalizedLinear(5, CLASSES))


@pytest.fixture
def network():
    return small_network()


@pytest.fixture(params=METHODS)
def method(request, network, batch):
    """One epoch old, its teacher another network than the student; a threshold is low enough to learn something."""
    low = {"threshold": 0.4} if request.param in ("fixmatch", "committee") else {}
    method = build(request.param, **low)
    method.setup(network, ten_rows())
    if method.ensemble:
        z = torch.softmax(torch.randn(len(batch.rows), CLASSES, generator=torch.Generator().manual_seed(9)), dim=1)
        method.ensemble.write(batch.rows, z)
        method.ensemble.commit()
    if method.teacher:
        with torch.no_grad():
            for parameter in method.evaluated(network).parameters():
                parameter.mul_(1.1)
    return method


def losses_of(method, network, batch, weight=2.0):
    batch = batch._replace(views=batch.views[: len(method.views)])
    torch.manual_seed(0)  # a method may draw random numbers
    return method.losses(network, batch, method.targets(batch.rows[batch.unlabeled]), torch.tensor(weight))


def gradients_of(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)


def test_losses_are_finite_numbers_and_add_up(method, network, batch):
    losses = losses_of(method, network, batch)
    assert list(losses.parts) == list(method.parts)
    for loss in (losses.total, *losses.parts.values()):
        assert loss.shape == ()
        assert loss.dtype == torch.float32
        assert loss.isfinite()
    expected = losses.parts["supervised"] + 2.0 * losses.parts["unsupervised"]
    torch.testing.assert_close(losses.total, expected, rtol=1e-6, atol=0)
    assert (losses.parts["unsupervised"] != 0) == method.uses_unlabeled  # elr's is negative


def test_predictions_are_those_of_the_first_view_without_gradient(method, network, batch):
    losses = losses_of(method, network, batch)
    assert not losses.predictions.requires_grad
    torch.testing.assert_close(losses.predictions.sum(dim=1), torch.ones(6), rtol=1e-6, atol=0)
    together = "strong" in method.views  # one pass, so the views share their batch means
    inputs = torch.cat(batch.views[:2]) if together else batch.views[0]
    if method.options.name in ("committee", "temporal-teacher"):  # those of the teacher, as it is tested
        expected = logits(method.teacher.network, batch.views[0]).softmax(dim=1)
    else:
        expected = network(inputs).detach().softmax(dim=1)[:6]
    torch.testing.assert_close(losses.predictions, expected, rtol=1e-6, atol=1e-7)


def test_weight_zero_gives_the_supervised_gradient(method, network, batch):
    losses = losses_of(method, network, batch, weight=0.0)
    both = gradients_of(losses.total, network), gradients_of(losses.parts["supervised"], network)
    for total, supervised in zip(*both, strict=True):
        torch.testing.assert_close(total, supervised, rtol=1e-6, atol=1e-8)


def test_batch_without_labels_is_learned_from_only_by_consistency(method, network, batch):
    unlabeled = batch._replace(labels=torch.full((6,), -1), labeled=torch.zeros(6, dtype=torch.bool))
    losses = losses_of(method, network, unlabeled)
    assert losses.parts["supervised"] == 0
    assert losses.total.isfinite()
    assert (losses.total != 0) == method.uses_unlabeled


def test_a_split_batch_has_a_mean_of_each_part(method, batch):
    """The labeled part twice over changes neither term, because each is divided by its own part."""
    if method.options.name == "gamma":  # other noise for another number of rows
        method = build("gamma", noise=0.0)
    network = nn.Linear(FEATURES, CLASSES)
    torch.nn.init.normal_(network.weight)
    method.setup(network, ten_rows())
    if method.ensemble:
        method.ensemble.write(torch.arange(10), torch.eye(3)[torch.arange(10) % 3])
        method.ensemble.commit()
    once = [0, 2, 5, 1, 3, 4]
    results = []
    for order, num_labeled in ((once, 3), (once[:3] + once, 6)):
        views = tuple(view[order] for view in batch.views)
        if method.options.name == "temporal-teacher":  # it sees half of the labeled rows in another view
            views = views[:1] * 2
        split = Batch(batch.rows[order], views, batch.labels[order], batch.labeled[order], num_labeled)
        results.append(losses_of(method, network, split).parts)
    for part in ("supervised", "unsupervised"):
        torch.testing.assert_close(results[0][part], results[1][part], rtol=1e-5, atol=1e-7)
        assert results[0][part] != 0 or not method.uses_unlabeled


def test_losses_change_neither_network_nor_batch_nor_what_is_remembered(method, network, batch):
    ensemble = {} if method.ensemble is None else method.ensemble.state_dict()
    state = network.state_dict() | {f"method.{k}": v for k, v in method.state_dict().items()}
    things = [*state.values(), *ensemble.values(), *batch.views, batch.rows, batch.labels, batch.labeled]
    before = [thing.clone() for thing in things]
    losses_of(method, network, batch).total.backward()
    assert all(torch.equal(thing, kept) for thing, kept in zip(things, before, strict=True))


# Each method


def with_targets(batch, z_old, known, **options):
    """Temporal ensembling that has seen some of the rows once."""
    method = build("temporal", **options)
    method.setup(nn.Identity(), ten_rows())
    method.ensemble.write(batch.rows[known], z_old)
    method.ensemble.commit()
    return method


@pytest.mark.parametrize("unseen", ["skip", "zero"])
def test_temporal_skips_unseen_rows_or_compares_them_with_zeros(batch, unseen):
    known = torch.tensor([True, True, False, False, True, False])
    z_old = torch.softmax(torch.randn(3, CLASSES), dim=1)
    losses = losses_of(with_targets(batch, z_old, known, unseen_rows=unseen), small_network(), batch)
    targets = torch.zeros(6, CLASSES)
    targets[known] = z_old
    each = (losses.predictions - targets).square().sum(dim=1)
    expected = (each[known] if unseen == "skip" else each).sum() / (6 * CLASSES)
    torch.testing.assert_close(losses.parts["unsupervised"].detach(), expected, rtol=1e-5, atol=0)


def test_options_of_temporal_reach_the_ensemble(batch):
    known = torch.ones(6, dtype=torch.bool)
    ensemble = with_targets(batch, torch.full((6, CLASSES), 1 / 3), known, decay=0.3).ensemble
    assert (ensemble.decay, ensemble.mean.shape) == (0.3, (10, CLASSES))


@pytest.mark.parametrize("name", ["pi", "mean-teacher"])
def test_the_way_predictions_are_compared_is_an_option(name, batch):
    same = batch._replace(views=(batch.views[0], batch.views[0]))
    for consistency, low, high in (("squared", -1e-9, 1e-9), ("cross_entropy", 0.1, 10)):
        network, method = nn.Linear(FEATURES, CLASSES), build(name, consistency=consistency)
        method.setup(network, ten_rows())
        assert low < float(losses_of(method, network, same).parts["unsupervised"].detach()) < high
