"""Temporal teacher against a naive twin, and what is its own among the methods."""

import numpy as np
import pytest
import torch
from reference import schedules as twin_schedules
from reference.temporal_teacher import TemporalTeacherTwin
from test_methods import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    LEARNING_RATE,
    SCHEDULE,
    WEIGHT,
    RecordedNoise,
    assert_same_ensemble,
    assert_same_parameters,
    inputs_and_labels,
    loader_of,
    plain_network,
    rows_of,
)
from torch import nn

import selfens
from selfens import methods, presets
from selfens.config import Config, OptimizerConfig
from selfens.core.batch import Batch
from selfens.core.optim import Adam
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError
from selfens.training.setup import _rates as rates_of
from selfens.training.step import Step

SETTINGS = [
    {"memory": 0.0, "alignment": "labels", "temperature": 0.5, "threshold": 0.0},
    {"memory": 0.6, "alignment": "uniform", "temperature": 0.3, "threshold": 0.4},
    {"memory": 0.9, "alignment": "none", "temperature": 1.0, "threshold": 0.0},
]


class StudentsNoise(RecordedNoise):
    """Its copy, the teacher's, is another one, which stays in evaluation mode."""

    def __deepcopy__(self, memo):
        return RecordedNoise()


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_steps_follow_the_twin_for_five_epochs(settings, first):
    inputs, labels = inputs_and_labels()
    network, twin_network = plain_network()
    network[0] = StudentsNoise()
    method = methods.build(methods.options("temporal-teacher", decay=0.8, **settings))
    loader = loader_of(inputs, labels, 1, BATCH + first, first)
    method.setup(network, rows_of(torch.from_numpy(labels)))
    step = Step(network=network, method=method, optimizer=Adam(network), loader=loader)
    rates = rates_of(Config(optimizer=OptimizerConfig(learning_rate=LEARNING_RATE), schedule=SCHEDULE), WEIGHT)
    settings = {name: value for name, value in settings.items() if name != "alignment"} | {
        "align": settings["alignment"]
    }
    twin = TemporalTeacherTwin(twin_network, labels, CLASSES, first=first, decay=0.8, **settings)
    history = []
    for epoch in range(EPOCHS):
        step.set(**rates(epoch))
        for rows in loader.order(epoch):
            step(rows)
            (clean, seen), *others = network[0].passes
            network[0].passes.clear()
            assert not others  # the teacher's pass has no noise, so it leaves none
            np.testing.assert_array_equal(clean, inputs[rows])
            twin.step(
                rows.tolist(),
                seen,
                inputs[rows].astype(np.float64),
                twin_schedules.learning_rate(epoch, LEARNING_RATE, EPOCHS, up=3, down=2),
                twin_schedules.beta1(epoch, epochs=EPOCHS, down=2),
                twin_schedules.weight(epoch, WEIGHT, up=3),
            )
        method.end_epoch()
        twin.end_epoch()
        means = step.take_means()
        history.append([float(means[part]) for part in method.parts])
    np.testing.assert_allclose(history, twin.history, rtol=1e-4, atol=1e-6)
    assert_same_parameters(network, twin_network.parameters)
    assert_same_parameters(method.evaluated(network), twin.teacher.parameters)
    np.testing.assert_allclose(method.predicted, twin.predicted, rtol=1e-5)
    kept = np.array(history)[:, 2]
    assert ((kept > 0) & (kept < 1)).any() if settings["threshold"] else (kept == 1).all()
    if method.ensemble:
        assert_same_ensemble(method.ensemble, twin)


def one_batch(first):
    torch.manual_seed(1)
    views = tuple(torch.randn(8, FEATURES, requires_grad=True) for _ in range(2))
    labels = torch.tensor([0, 1, 2, 0, -1, -1, -1, -1]) if first else torch.tensor([0, -1, 2, -1, -1, 1, -1, -1])
    return Batch(torch.arange(8), views, labels, labels >= 0, first)


def set_up(network, **options):
    method = methods.build(methods.options("temporal-teacher", **options))
    method.setup(network, rows_of(torch.tensor([0, 1, 2]), num_rows=10))
    return method


def test_labeled_rows_are_learned_on_both_views_and_no_gradient_flows_into_the_targets():
    network = nn.Linear(FEATURES, CLASSES)
    batch = one_batch(first=4)
    losses = set_up(network).losses(network, batch, None, torch.tensor(1.0))
    weak, strong = torch.autograd.grad(losses.parts["supervised"], batch.views, retain_graph=True)
    assert [bool(row.any()) for row in weak] == [True] * 2 + [False] * 6
    assert [bool(row.any()) for row in strong] == [False] * 2 + [True] * 2 + [False] * 4
    weak, strong = torch.autograd.grad(losses.parts["unsupervised"], batch.views, allow_unused=True)
    assert not weak.any()
    assert [bool(row.any()) for row in strong] == [False] * 4 + [True] * 4


def test_a_threshold_that_nothing_reaches_leaves_the_supervised_loss():
    network = nn.Linear(FEATURES, CLASSES)
    losses = set_up(network, threshold=0.999).losses(network, one_batch(4), None, torch.tensor(1.0))
    total, supervised, unsupervised, kept = (float(x.detach()) for x in (losses.total, *losses.parts.values()))
    assert unsupervised == kept == 0
    assert total == supervised > 0


def test_bad_input_gets_a_sentence():
    with pytest.raises(ConfigError, match=r"method.memory is 1.0; expected"):
        methods.options("temporal-teacher", memory=1.0)
    network = nn.Linear(FEATURES, CLASSES)
    for alignment in ("uniform", "none"):
        methods.build(methods.options("temporal-teacher", alignment=alignment)).setup(
            network, rows_of(torch.tensor([0, 2, -1]))
        )
    with pytest.raises(ConfigError, match="the class '1' has no label, so its share is not known"):
        methods.build(methods.options("temporal-teacher")).setup(network, rows_of(torch.tensor([0, 2, -1])))


@pytest.mark.parametrize("network", [["network.name=small"], ["network.name=wrn-28-2", "network.normalization=mean"]])
def test_joint_means_need_layers_that_have_them(tmp_path, network):
    config = presets.get("digits-modern").with_overrides(["training.means=joint", "network.width=4", *network])
    with pytest.raises(ConfigError, match="means is joint, but the network has no layers of mean-only batch"):
        selfens.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batches_begin_with_a_share_of_labeled_rows_but_never_with_more_than_there_are(tmp_path, monkeypatch):
    made, genuine = [], Sampler.of_epoch
    monkeypatch.setattr(Sampler, "of_epoch", lambda self, epoch: made.append(self.first) or genuine(self, epoch))
    inputs = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    labels = np.array([0, 1, 2] + [-1] * 57)
    data = selfens.Dataset.from_arrays(inputs, labels)
    config = presets.for_arrays("mine", images_side=None, rows=60, method="temporal-teacher")
    config = config.with_overrides(["schedule.epochs=1", "training.batch_size=20", "training.device=cpu"])
    for size, first in ((20, 3), (10, 2)):
        sized = config.with_values("training", batch_size=size)
        selfens.train(sized, tmp_path / f"run{size}", dataset=data)
        assert {*made} == {first}  # a fifth of the batch, or the 3 labeled rows
        made.clear()
    too_many = config.with_overrides(["training.labeled_per_batch=4"])
    with pytest.raises(ConfigError, match="labeled_per_batch is 4, but there are only 3 labeled rows"):
        selfens.train(too_many, tmp_path / "other", dataset=data)
