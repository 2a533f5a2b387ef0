"""Whole runs of the methods against double precision twins, and what every method of the registry must do."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from reference import schedules as twin_schedules
from reference.algorithms import NormalizedNetwork, PlainNetwork, Trainer
from support import At, config, differences, environment, features, images, left_behind
from torch import nn

from selfens import methods, networks, resume, train
from selfens.config import Config, DataConfig, OptimizerConfig, ScheduleConfig, TrainingConfig
from selfens.core.batch import Batch
from selfens.core.evaluate import logits
from selfens.core.optim import Adam
from selfens.core.views import Views
from selfens.data.dataset import Dataset
from selfens.data.loader import Loader
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError
from selfens.methods import METHODS, Pi, Temporal, TrainingRows
from selfens.networks.layers import NormalizedLinear
from selfens.training.setup import _rates as rates_of
from selfens.training.step import Step

ROWS, FEATURES, CLASSES, BATCH, EPOCHS = 23, 4, 3, 5, 5  # 4 steps an epoch, 3 rows left out of each
SCHEDULE = ScheduleConfig(epochs=EPOCHS, rampup_epochs=3, rampdown_epochs=2)
LEARNING_RATE, WEIGHT = 0.02, 10.0
CPU = torch.device("cpu")


class RecordedNoise(nn.Module):
    """Noise in training; keeps what came in and what went out of every training pass, of a teacher's too."""

    def __init__(self):
        super().__init__()
        self.passes = []
        self.generator = torch.Generator().manual_seed(5)

    def __deepcopy__(self, memo):
        return self

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
    passes, steps = iter(passes), ROWS // (batch - twin.first)
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
            visited += rows[twin.first :]
        assert len(set(visited)) == len(visited) == steps * (batch - twin.first)
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


def loader_of(inputs, labels, seed=0, batch=BATCH, first=0):
    sampler = Sampler(np.arange(ROWS), labels != -1, batch, seed, first=first)
    views = Views((FEATURES,), noise=0.0, feature_dropout=0.0)
    return Loader(torch.from_numpy(inputs), torch.from_numpy(labels), sampler, views)


def rows_of(labels, num_rows=None, num_classes=CLASSES):
    counts = torch.bincount(labels[labels >= 0], minlength=num_classes).float()
    inputs = torch.randn(num_rows or len(labels), FEATURES, generator=torch.Generator().manual_seed(7))
    known = torch.cat([labels, labels.new_full((len(inputs) - len(labels),), -1)])
    return TrainingRows(len(inputs), tuple(map(str, range(num_classes))), known, counts, CPU, lambda: [inputs])


WHOLE = [
    ("supervised", {}),
    ("pi", {}),
    ("temporal", {}),
    ("mean-teacher", {"decay": 0.8}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.45}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.4, "alignment": True}),
    ("fixmatch", {"decay": 0.8, "threshold": 0.95}),
]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize(("name", "options"), WHOLE, ids=str)
def test_steps_follow_the_algorithm_for_five_epochs(name, options, first):
    inputs, labels = inputs_and_labels()
    network, twin_network = plain_network()
    method, batch = methods.build(methods.options(name, **options)), BATCH + first
    loader = loader_of(inputs, labels, 1, batch, first)
    optimizer = Adam(network)
    method.setup(network, rows_of(torch.from_numpy(labels)))
    step = Step(network=network, method=method, optimizer=optimizer, loader=loader)
    rates = rates_of(Config(optimizer=OptimizerConfig(learning_rate=LEARNING_RATE), schedule=SCHEDULE), WEIGHT)
    history = []
    for epoch in range(EPOCHS):
        step.set(**rates(epoch))
        for rows in loader.order(epoch):
            step(rows)
        method.end_epoch()
        means = step.take_means()
        history.append([float(means[part]) for part in method.parts])

    twin = Trainer(name, twin_network, labels, CLASSES, first=first, **options)
    follow(twin, network[0].passes, inputs, 2 if name in ("pi", "mean-teacher") else 1, WEIGHT, batch)
    assert_same_parameters(network, twin_network.parameters)
    np.testing.assert_allclose([record[:2] for record in history], twin.history, rtol=1e-5, atol=1e-6)
    if method.ensemble:
        assert_same_ensemble(method.ensemble, twin)
    if method.evaluated(network) is not network:
        assert_same_parameters(method.evaluated(network), twin.teacher.parameters)
        assert not np.allclose(twin.teacher.parameters[0], twin_network.parameters[0], rtol=1e-3)
    if name == "fixmatch":
        np.testing.assert_allclose(method.predicted, twin.predicted, rtol=1e-5)
        kept = np.array([record[2] for record in history])
        assert (kept == 0).all() if options["threshold"] == 0.95 else ((kept > 0) & (kept < 1)).any()


def config_of(name, **method):
    return Config(
        data=DataConfig(name="mine"),
        method=methods.options(name, weight_max=WEIGHT, **method),
        optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
        schedule=SCHEDULE,
        training=TrainingConfig(batch_size=BATCH, device="cpu"),
    )


@pytest.mark.parametrize(
    ("name", "scale", "factor"),
    [("pi", "paper", 6 / ROWS), ("temporal", "original", 6 / ROWS), ("temporal", "none", 1)],
)
def test_a_run_with_normalized_layers_follows_the_algorithm_for_five_epochs(tmp_path, name, scale, factor):
    inputs, labels = inputs_and_labels()
    data = Dataset.from_arrays(inputs, labels, inputs[:4], [0, 1, 2, 0])
    network, twin_network = normalized_network()
    networks.calibrate(network, torch.from_numpy(inputs[:BATCH]))  # a module that is passed is taken as it is
    run = train(config_of(name, weight_scale=scale), tmp_path / "run", dataset=data, network=network)

    passes = network[0].passes
    twin_network.calibrate(passes[0][1])  # one training pass before the first step, noise included
    twin = Trainer(name, twin_network, labels, CLASSES)
    follow(twin, passes[1:], inputs, len(methods.find(name).views), WEIGHT * factor)
    assert_same_parameters(network, twin_network.parameters)
    for layer, mean in zip(network[1:], twin_network.running_means, strict=True):
        np.testing.assert_allclose(double(layer.running_mean), mean, rtol=1e-5, atol=1e-5)
    ours = [(epoch["supervised"], epoch["unsupervised"]) for epoch in run.history]
    np.testing.assert_allclose(ours, twin.history, rtol=1e-5, atol=1e-6)
    if name == "temporal":
        assert_same_ensemble(run.ensemble, twin)


# the registry


@pytest.mark.parametrize("name", METHODS)
def test_options_survive_json(name):
    for options in (methods.options(name), changed(methods.options(name))):
        whole = Config(method=options)
        again = Config.from_json(whole.to_json())
        assert again == whole
        assert type(again.method) is methods.find(name).Options
        assert again.method.name == name


def changed(options):
    """Every number, switch and choice another than the default."""
    values = {}
    for item, _, expected, _ in type(options).describe():
        value = getattr(options, item)
        if isinstance(value, bool):
            values[item] = not value
        elif isinstance(value, float):
            values[item] = value / 2
        elif item != "targets":
            values[item] = expected.split(", ")[-1]
    assert not values or values != {item: getattr(options, item) for item in values}
    return methods.options(options.name, **values)


@pytest.mark.parametrize("name", METHODS)
def test_what_an_option_cannot_be_is_refused_in_a_sentence(name):
    for item, default, expected, _ in methods.find(name).Options.describe():
        wrong = ["x" * 40, None, [1]] if default in ("true", "false") or item != "targets" else [None, 3]
        wrong += [float("nan"), float("inf")] if expected.startswith(("from", "at least", "more")) else []
        wrong += [-0.5] if expected.startswith(("from 0", "at least 0")) else []
        wrong += [1.0] if expected.endswith("below 1") else []
        wrong += [1.5] if expected.endswith("to 1") else []
        for value in wrong:
            with pytest.raises(ConfigError, match=rf"method\.{item}.*[.?]$") as refusal:
                methods.options(name, **{item: value})
            assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match=f"{name} option 'deacy'"):
        methods.options(name, deacy=0.5)


def test_options_are_made_without_torch():
    program = """
import sys
import selfens.config
from selfens import methods, presets
for name in methods.METHODS:
    methods.options(name)
    selfens.config.Config().with_overrides([f"method.name={name}"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=environment())


def test_unknown_method_names_the_nearest():
    with pytest.raises(ConfigError, match="no method 'temporel'; did you mean 'temporal'"):
        methods.options("temporel")


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_resumed_in_mid_epoch_is_the_run_never_stopped(tmp_path, name, split):
    """On images, preprocessed after the views, with sgd and a cosine, if split; on vectors in the usual way if not."""
    more = (
        "training.labeled_per_batch=4",
        "optimizer.name=sgd",
        "schedule.name=cosine",
        "optimizer.weight_decay=0.01",
    )
    more += ("network.name=small", "data.preprocess_after_views=true", "augment.flip=true", "augment.translation=1")
    settings = config(name, *(more if split else ()), epochs=2)
    data = images() if split else features()
    run = train(settings, tmp_path / "whole", dataset=data)
    assert len(run.history) == 2
    assert set(methods.find(name).parts) <= set(run.history[-1])
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", dataset=data, progress=At(0, 3, interrupt))
    resume(tmp_path / "run", dataset=data)
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "run")) == []


def interrupt():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", ["mean-teacher", "fixmatch", "committee"])
def test_a_saved_run_predicts_with_the_averaged_weights(tmp_path, name):
    run = train(config(name, "optimizer.learning_rate=0.05", epochs=2), tmp_path / "run", dataset=features())
    state, x = left_behind(tmp_path / "run"), torch.from_numpy(features().test_inputs)
    evaluated = {key.removeprefix("evaluated/") for key in state if key.startswith("evaluated/")}
    assert evaluated == set(run.network.state_dict())
    assert any(state[f"evaluated/{key}"] != state[f"network/{key}"] for key in evaluated)
    for key, tensor in run.network.state_dict().items():
        assert state[f"evaluated/{key}"][2] == tensor.numpy().tobytes()
    assert logits(run.network, x).isfinite().all()


def test_with_split_batches_only_the_second_part_is_remembered_and_w_is_not_scaled(tmp_path):
    settings = ("training.labeled_per_batch=5", "method.weight_max=7", "schedule.rampup_epochs=0")
    run = train(config("temporal", *settings, epochs=2), tmp_path / "run", dataset=features())
    assert run.ensemble.count.tolist() == [2.0] * len(features().labels)  # 12 steps of 5 rows, each row once an epoch
    assert [record["weight"] for record in run.history] == [0, 7]


def test_alignment_without_a_label_of_each_class_is_refused():
    method = methods.build(methods.options("fixmatch", alignment=True))
    with pytest.raises(ConfigError, match="the class '1' has no label"):
        method.setup(small_network(), rows_of(torch.tensor([0, 2, -1])))


# every method


@pytest.fixture
def batch():
    torch.manual_seed(1)
    labels = torch.tensor([0, -1, 2, -1, -1, 1])
    views = tuple(torch.randn(6, FEATURES) for _ in range(4))
    return Batch(torch.tensor([3, 0, 8, 5, 1, 7]), views, labels, labels >= 0)


def small_network():
    torch.manual_seed(2)
    return nn.Sequential(NormalizedLinear(FEATURES, 5, slope=0.1), NormalizedLinear(5, CLASSES))


def set_up(options, network, batch):
    """A method one epoch old, whose teacher is another network than the student."""
    method = methods.build(options)
    method.setup(network, rows_of(torch.tensor([0, 1, 2]), num_rows=10))
    if method.ensemble:
        z = torch.softmax(torch.randn(len(batch.rows), CLASSES, generator=torch.Generator().manual_seed(9)), dim=1)
        method.ensemble.write(batch.rows, z)
        method.ensemble.commit()
    if method.evaluated(network) is not network:
        with torch.no_grad():
            for parameter in method.evaluated(network).parameters():
                parameter.mul_(1.1)
    return method


OPTIONS = {"fixmatch": {"threshold": 0.4}, "committee": {"threshold": 0.4}}


@pytest.fixture
def network():
    return small_network()


@pytest.fixture(params=METHODS)
def method(request, network, batch):
    return set_up(methods.options(request.param, **OPTIONS.get(request.param, {})), network, batch)


def losses_of(method, network, batch, weight=2.0):
    batch = batch._replace(views=batch.views[: len(method.views)])
    torch.manual_seed(0)  # a method may draw random numbers
    return method.losses(network, batch, method.targets(batch.rows[batch.unlabeled]), torch.tensor(weight))


def gradients_of(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)


def may_be_zero(method):
    """A method with a threshold learns nothing from rows that it is not certain of; FixMatch's is low in these tests."""
    return getattr(method.options, "threshold", 0) > 0.5


def test_losses_are_finite_numbers_and_add_up(method, network, batch):
    losses = losses_of(method, network, batch)
    assert list(losses.parts) == list(method.parts)
    for loss in (losses.total, *losses.parts.values()):
        assert loss.shape == ()
        assert loss.dtype == torch.float32
        assert loss.isfinite()
    expected = losses.parts["supervised"] + 2.0 * losses.parts["unsupervised"]
    torch.testing.assert_close(losses.total, expected, rtol=1e-6, atol=0)
    assert may_be_zero(method) or (losses.parts["unsupervised"] > 0) == method.uses_unlabeled


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


def test_cross_entropy_is_only_on_the_first_view(method, batch):
    if method.options.name == "temporal-teacher":
        pytest.skip("learns labeled rows on both views, see test_temporal_teacher.py")
    network = nn.Linear(FEATURES, CLASSES)  # without batch means, through which each row reaches all others
    method.setup(network, rows_of(torch.tensor([0, 1, 2]), num_rows=10))
    views = tuple(view.clone().requires_grad_() for view in batch.views[: len(method.views)])
    losses = losses_of(method, network, batch._replace(views=views))
    first, *others = torch.autograd.grad(losses.parts["supervised"], views, allow_unused=True)
    assert first.any()
    assert all(other is None or not other.any() for other in others)


def test_batch_without_labels_is_learned_from_only_by_consistency(method, network, batch):
    unlabeled = batch._replace(labels=torch.full((6,), -1), labeled=torch.zeros(6, dtype=torch.bool))
    losses = losses_of(method, network, unlabeled)
    assert losses.parts["supervised"] == 0
    assert losses.total.isfinite()
    assert may_be_zero(method) or (losses.total > 0) == method.uses_unlabeled


def test_a_split_batch_has_a_mean_of_each_part(method, batch):
    """The labeled part twice over changes neither term, because each is divided by its own part."""
    network = nn.Linear(FEATURES, CLASSES)
    torch.nn.init.normal_(network.weight)
    method.setup(network, rows_of(torch.tensor([0, 1, 2]), num_rows=10))
    if method.ensemble:
        method.ensemble.write(torch.arange(10), torch.eye(3)[torch.arange(10) % 3])
        method.ensemble.commit()
    once = [0, 2, 5, 1, 3, 4]
    results = []
    for order, first in ((once, 3), (once[:3] + once, 6)):
        views = tuple(view[order] for view in batch.views)
        if method.options.name == "temporal-teacher":  # it sees half of the labeled rows in another view
            views = views[:1] * 2
        split = Batch(batch.rows[order], views, batch.labels[order], batch.labeled[order], first)
        results.append(losses_of(method, network, split).parts)
    for part in ("supervised", "unsupervised"):
        torch.testing.assert_close(results[0][part], results[1][part], rtol=1e-5, atol=1e-7)
        assert results[0][part] > 0 or not method.uses_unlabeled


def test_losses_change_neither_network_nor_batch_nor_what_is_remembered(method, network, batch):
    ensemble = {} if method.ensemble is None else method.ensemble.state_dict()
    state = network.state_dict() | {f"method.{k}": v for k, v in method.state_dict().items()}
    things = [*state.values(), *ensemble.values(), *batch.views, batch.rows, batch.labels, batch.labeled]
    before = [thing.clone() for thing in things]
    losses_of(method, network, batch).total.backward()
    assert all(torch.equal(thing, kept) for thing, kept in zip(things, before, strict=True))


def test_what_is_remembered_survives_a_round_trip(method, network, batch):
    for _ in range(3):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(0.9)
        method.after_step(network, batch.rows, losses_of(method, network, batch).predictions)
    method.end_epoch()
    state = {name: value.clone() for name, value in method.state_dict().items()}
    fresh = set_up(method.options, network, batch)
    fresh.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())
    if method.ensemble:
        fresh.ensemble.load_state_dict(method.ensemble.state_dict())
    expected = losses_of(method, network, batch).total
    assert torch.equal(losses_of(fresh, network, batch).total, expected)


def test_only_a_method_with_averaged_weights_evaluates_another_network(method, network):
    averages = hasattr(method, "teacher") or hasattr(method, "average")
    assert (method.evaluated(network) is network) == (not averages)


def test_a_part_that_is_missing_is_said():
    class Forgetful(methods.Method):
        parts = ("supervised", "extra")

        def losses(self, network, batch, targets, weight):
            total = network(batch.views[0]).sum()
            return methods.Losses(total, {"supervised": total}, torch.zeros(len(batch.rows), CLASSES))

    network, loader = nn.Linear(FEATURES, CLASSES), loader_of(*inputs_and_labels())
    step = Step(network=network, method=Forgetful(), optimizer=Adam(network), loader=loader)
    with pytest.raises(ConfigError, match="losses lack the part 'extra'"):
        step(loader.order(0)[0])


# each method


def test_pi_draws_both_branches_toward_each_other(batch):
    views = tuple(view.clone().requires_grad_() for view in batch.views[:2])
    losses = losses_of(Pi(), small_network(), batch._replace(views=views))
    first, second = torch.autograd.grad(losses.parts["unsupervised"], views)
    assert first.any()
    assert second.any()


def test_pi_has_no_consistency_loss_for_two_like_views(batch):
    same = batch._replace(views=(batch.views[0], batch.views[0]))
    assert losses_of(Pi(), small_network(), same).parts["unsupervised"] == 0


def test_pi_passes_are_two_batches_with_means_of_their_own(batch):
    network, views = small_network(), (batch.views[0], batch.views[1] + 5)
    losses = losses_of(Pi(), network, batch._replace(views=views))
    z, z_tilde = (network(view).detach().softmax(dim=1) for view in views)
    expected = ((z - z_tilde) ** 2).sum() / (6 * CLASSES)
    torch.testing.assert_close(losses.parts["unsupervised"].detach(), expected, rtol=1e-5, atol=0)


def test_running_means_after_a_pi_step_come_from_the_second_pass():
    inputs, labels = inputs_and_labels()
    noise, layer = RecordedNoise(), NormalizedLinear(FEATURES, CLASSES, momentum=0.999)
    network, weight = nn.Sequential(noise, layer), double(layer.weight())
    loader = loader_of(inputs, labels)
    optimizer = Adam(network)
    step = Step(network=network, method=Pi(), optimizer=optimizer, loader=loader)
    step.set(learning_rate=0.5, beta1=0.9, weight=1.0)
    step(loader.order(0)[0])
    first, second = (noisy for _, noisy in noise.passes)
    np.testing.assert_allclose(double(layer.running_mean), 0.001 * (second @ weight.T).mean(axis=0), rtol=1e-4)
    assert not np.allclose(double(layer.running_mean), 0.001 * (first @ weight.T).mean(axis=0), rtol=1e-2)


def with_targets(batch, z_old, known, **options):
    """Temporal ensembling that has seen some of the rows once."""
    method = Temporal(methods.options("temporal", **options))
    method.setup(nn.Identity(), rows_of(torch.tensor([0, 1, 2]), num_rows=10))
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


def test_options_reach_the_ensemble(batch):
    known = torch.ones(6, dtype=torch.bool)
    options = {"decay": 0.3, "variance": False, "targets_type": "float16"}
    ensemble = with_targets(batch, torch.full((6, CLASSES), 1 / 3), known, **options).ensemble
    assert (ensemble.decay, ensemble.square, ensemble.mean.dtype) == (0.3, None, torch.float16)
    assert ensemble.mean.shape == (10, CLASSES)


@pytest.mark.parametrize("name", ["pi", "mean-teacher"])
def test_the_way_predictions_are_compared_is_an_option(name, batch):
    same = batch._replace(views=(batch.views[0], batch.views[0]))
    for consistency, low, high in (("squared", -1e-9, 1e-9), ("cross_entropy", 0.1, 10)):
        network, method = nn.Linear(FEATURES, CLASSES), methods.build(methods.options(name, consistency=consistency))
        method.setup(network, rows_of(torch.tensor([0, 1, 2]), num_rows=10))
        assert low < float(losses_of(method, network, same).parts["unsupervised"].detach()) < high


def test_no_gradient_flows_into_the_labels_of_fixmatch_nor_into_views_below_the_threshold(batch):
    network = nn.Linear(FEATURES, CLASSES)
    for threshold in (0.0, 1.0):
        method = methods.build(methods.options("fixmatch", threshold=threshold))
        method.setup(network, rows_of(torch.tensor([0, 1, 2]), num_rows=10))
        views = tuple(view.clone().requires_grad_() for view in batch.views[:2])
        losses = losses_of(method, network, batch._replace(views=views))
        weak, strong = torch.autograd.grad(losses.parts["unsupervised"], views, allow_unused=True)
        assert not weak.any()
        assert bool(strong.any()) == (threshold == 0)
        assert float(losses.parts["kept"]) == (threshold == 0)
