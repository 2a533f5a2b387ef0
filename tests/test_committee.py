"""The method `committee` and its network: against plain twins, resumed, on hostile data, and against logistic regression."""

import numpy as np
import pytest
import torch
from reference import committee as twin
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from support import At, differences, features, left_behind

from selfens import SelfEnsemblingClassifier, methods, networks, presets, resume, train
from selfens.config import NetworkConfig
from selfens.core import losses, neighbors
from selfens.core.batch import Batch
from selfens.core.evaluate import logits
from selfens.core.targets import EnsembleTargets
from selfens.data.dataset import Dataset
from selfens.errors import DataError
from selfens.methods import TrainingRows
from selfens.networks.committee import Dropout

ROWS, FEATURES, CLASSES = 40, 5, 3
PRIOR = np.array([3, 2, 1]) / 6  # of the labels below, one added to each class


@pytest.fixture
def inputs():
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labels():
    return torch.tensor([0, 0, 1] + [-1] * (ROWS - 3))


def network(dropout=0.0, features=FEATURES):
    torch.manual_seed(3)
    made = networks.build(NetworkConfig(name="committee", dropout=dropout, width=8), (features,), CLASSES)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def set_up(inputs, labels, **options):
    method = methods.build(methods.options("committee", **options))
    counts = torch.bincount(labels[labels >= 0], minlength=CLASSES).float()
    rows = TrainingRows(
        len(inputs), tuple(map(str, range(CLASSES))), labels, counts, torch.device("cpu"), lambda: inputs.split(7)
    )
    method.setup(network(), rows)
    return method


def predictions(epochs):
    """Far more of the last class than its labels say."""
    random = np.random.default_rng(2)
    return [random.dirichlet([0.3, 0.3, 1.2], size=ROWS) for _ in range(epochs)]


def test_targets_are_those_of_the_twin(inputs, labels):
    method = set_up(inputs, labels, memory=0.7)
    near = twin.neighbors(inputs.double().numpy(), neighbors.NEIGHBORS)
    assert method.around.nearest.tolist() == near
    for done in range(1, 4):
        made = predictions(done)
        for rows in torch.arange(ROWS).split(9):
            method.ensemble.write(rows, torch.from_numpy(made[-1][rows]).float())
        method.end_epoch()
        expected, factors = twin.targets(twin.averages(made, 0.7), labels.tolist(), near, PRIOR)
        np.testing.assert_allclose(method.factors, factors, rtol=1e-4)
        assert factors.min() < 0.95  # the alignment has had something to do
        found = method.targets(torch.arange(ROWS))
        assert found.known.tolist() == [target is not None for target in expected]
        assert 0 < sum(found.known) < ROWS
        for probabilities, target in zip(found.probabilities, expected, strict=True):
            if target is not None:
                np.testing.assert_allclose(probabilities, target, rtol=1e-4, atol=1e-6)


def test_losses_are_those_of_the_twin(inputs, labels):
    method, student = set_up(inputs, labels, memory=0.0), network()
    method.ensemble.write(torch.arange(ROWS), torch.from_numpy(predictions(1)[0]).float())
    method.end_epoch()
    rows = torch.cat([torch.tensor([2, 0, 1]), torch.arange(10, 30)])
    known = torch.cat([labels[rows[:3]], torch.full((20,), -1)])
    batch = Batch(rows, (inputs[rows],), known, known >= 0, first=3)
    found = method.losses(student, batch, method.targets(rows[3:]), torch.tensor(0.5))
    near = method.around.nearest.tolist()
    wanted, _ = twin.targets(predictions(1)[0], labels.tolist(), near, PRIOR)
    heads = [head.detach().double().numpy() for head in student.heads(inputs[rows])]
    supervised, unsupervised = twin.losses(heads, known[:3].tolist(), [wanted[row] for row in rows[3:]])
    assert found.parts["supervised"].item() == pytest.approx(supervised, rel=1e-5)
    assert found.parts["unsupervised"].item() == pytest.approx(unsupervised, rel=1e-4)
    assert found.total.item() == pytest.approx(supervised + 0.5 * unsupervised, rel=1e-4)
    taught = logits(method.teacher.network, inputs[rows]).softmax(dim=1)
    torch.testing.assert_close(found.predictions, taught)


def test_alignment_leaves_a_share_that_the_labels_allow_and_never_makes_classes_equal():
    rows = torch.tensor([[0.9, 0.1]] * 8 + [[0.2, 0.8]] * 2)
    every = torch.ones(10, dtype=torch.bool)
    assert losses.class_factors(rows, every, torch.tensor([0.7, 0.3]), 1.5).tolist() == [1, 1]
    for wanted in ([0.5, 0.5], [0.98, 0.02], [0.2, 0.8]):
        factors = losses.class_factors(rows, every, torch.tensor(wanted), 1.5, rounds=50)
        shares = losses.normalized(rows * factors).mean(dim=0)
        low, high = torch.tensor(wanted) / 1.5, torch.tensor(wanted) * 1.5
        assert ((shares >= low - 1e-3) & (shares <= high + 1e-3)).all()
    none = torch.zeros(10, dtype=torch.bool)
    assert losses.class_factors(rows, none, torch.tensor([0.1, 0.9]), 1.5).tolist() == [1, 1]


def test_the_prediction_is_the_mean_of_the_heads(inputs):
    made = network(dropout=0.5)
    with torch.no_grad():
        heads = [head.softmax(dim=1) for head in made.eval().heads(inputs)]
        torch.testing.assert_close(made(inputs).softmax(dim=1), sum(heads) / 3)
        assert not torch.equal(made.train()(inputs), made(inputs))  # dropout
    assert len(network(features=100).heads(torch.randn(4, 100))) == 2  # too many for waves


def test_dropout_keeps_the_mean_and_draws_again():
    dropout, x = Dropout(0.3), torch.ones(320, 50)
    made = torch.stack([dropout(x) for _ in range(200)])
    assert made.mean().item() == pytest.approx(1, abs=0.01)
    assert made.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert not torch.equal(made[0], made[1])
    assert torch.equal(dropout.eval()(x), x)


# Neighbors


def test_vectors_of_many_features_are_compared_by_angle_in_fewer_dimensions():
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(20, 300, generator=random)
    x = centers.repeat(5, 1) * (1 + torch.rand(100, 1, generator=random))  # others of a center differ in length only
    found = neighbors.nearest(neighbors.compared(lambda: x.split(33), 100), 4)
    assert all({row % 20} == {other % 20 for other in others} for row, others in enumerate(found.tolist()))
    again = neighbors.nearest(neighbors.compared(lambda: x.split(33), 100), 4)
    assert torch.equal(found, again)


def test_very_many_rows_look_for_neighbors_among_a_selection(monkeypatch):
    monkeypatch.setattr(neighbors, "CANDIDATES", 10)
    monkeypatch.setattr(neighbors, "BLOCK", 35)
    found = neighbors.nearest(torch.arange(30.0)[:, None], 2)
    assert found[0].tolist() == [3, 6]
    assert sorted(found[7].tolist()) == [6, 9]
    assert (found % 3 == 0).all()


# Runs


def settings(*overrides):
    """The defaults for vectors, quick."""
    few = ["data.labels=12", "network.width=8", "schedule.epochs=3", "training.threads=1", "training.device=cpu"]
    quick = ["training.min_steps_per_epoch=5", "schedule.weight_rampup_epochs=1", "training.batch_size=40"]
    return presets.for_arrays("mine", images_side=None, rows=60).with_overrides([*few, *quick, *overrides])


def interrupt():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)


def test_many_classes_are_averaged_a_few_rows_at_a_time(monkeypatch):
    labels = torch.arange(30).where(torch.arange(30) < 9, -1)
    vectors = torch.randn(30, 4)
    around = neighbors.Neighborhood(lambda: [vectors], labels)
    ensemble = EnsembleTargets(30, 10)
    ensemble.write(torch.arange(20), torch.rand(20, 10))
    ensemble.commit()
    expected, asked, genuine = around.all_averaged(ensemble, 0.5), [], ensemble.get
    monkeypatch.setattr(neighbors, "AVERAGED", 500)  # of 10 classes and 10 neighbors, four rows
    monkeypatch.setattr(ensemble, "get", lambda rows: asked.append(len(rows)) or genuine(rows))
    assert torch.equal(around.all_averaged(ensemble, 0.5), expected)
    assert asked == [44] * 7 + [22]


def test_a_resumed_run_is_the_run_never_stopped(tmp_path):
    train(settings(), tmp_path / "whole", dataset=features())
    with pytest.raises(KeyboardInterrupt):
        train(settings(), tmp_path / "run", dataset=features(), progress=At(1, 3, interrupt))
    resume(tmp_path / "run", dataset=features())
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "run")) == []


def test_inputs_in_ram_give_the_same_run(tmp_path):
    train(settings(), tmp_path / "device", dataset=features())
    train(settings("training.residence=ram"), tmp_path / "ram", dataset=features())
    first, second = (left_behind(tmp_path / name) for name in ("device", "ram"))
    weights = [key for key in first if key.startswith("evaluated/")]
    assert weights
    assert all(first[key] == second[key] for key in weights)


def test_held_out_rows_are_not_learned_from(tmp_path):
    run = train(settings("data.validation=0.5"), tmp_path / "run", dataset=features())
    held_out = run.labels.validation
    assert len(held_out) == 6
    assert (run.ensemble.count[held_out] == 0).all()
    assert (run.ensemble.count > 0).sum() == 54


# Data that could go wrong


def fit(x, y, **changes):
    fixed = {"epochs": 3, "random_state": 0, "device": "cpu", "config": {"training.threads": 1}}
    return SelfEnsemblingClassifier(**(fixed | changes)).fit(x, y)


@pytest.mark.parametrize("rows", [2, 3, 7, 11])
def test_fewer_rows_than_neighbors(rows):
    x = np.arange(rows, dtype=float)[:, None] * [1, -2]
    y = np.full(rows, -1)
    y[0], y[-1] = 0, 1
    model = fit(x, y, config={"training.threads": 1, "method.threshold": 0.5})
    assert model.predict(x[[0, -1]]).tolist() == [0, 1]
    assert np.isfinite(model.label_distributions_).all()


def test_features_that_are_all_equal_give_the_classes_shares():
    y = np.array([0, 0, 0, 1] + [-1] * 36)
    model = fit(np.full((40, 3), 7.0), y, epochs=20)
    assert (model.predict(np.full((2, 3), 7.0)) == 0).all()
    assert np.isfinite(model.predict_proba(np.full((2, 3), 7.0))).all()


def test_a_constant_column_changes_little():
    x, y = features().inputs, features().labels
    y = np.where(np.arange(len(y)) < 12, y, -1)
    model = fit(np.hstack([x, np.full((len(x), 1), 3.0)]), y, epochs=10)
    assert model.score(np.hstack([x, np.full((len(x), 1), 3.0)]), features().labels) > 0.8


def test_rows_that_are_all_labeled():
    x, y = features().inputs, features().labels
    assert fit(x, y, epochs=10).score(x, y) > 0.8


def test_one_class_is_refused():
    with pytest.raises(DataError, match="one class only"):
        fit(np.zeros((5, 2)), [1, 1, -1, -1, -1])


def test_uneven_classes_stay_uneven():
    """One row in twenty is of the rare class; a method that evened out the classes would find ten times as many."""
    random = np.random.default_rng(0)
    truth = (np.arange(600) % 20 == 0).astype(int)
    x = random.normal(size=(600, 4)) + 2.5 * truth[:, None]
    y = np.where(np.arange(600) < 60, truth, -1)
    model = fit(x, y, epochs=20)
    assert 0.02 < (model.predict(x) == 1).mean() < 0.1
    assert model.score(x, truth) > 0.97


def test_the_default_beats_logistic_regression_with_few_labels():
    x, truth = load_digits(return_X_y=True)
    x, truth = x[:1000], truth[:1000]
    y = np.full(1000, -1)
    for number in range(10):
        y[np.flatnonzero(truth == number)[:4]] = number
    model = fit(x, y, epochs=30)
    assert model.config_.method.name == model.config_.network.name == "committee"
    scaled = StandardScaler().fit_transform(x)
    linear = LogisticRegression(max_iter=1000).fit(scaled[y >= 0], y[y >= 0]).score(scaled[y < 0], truth[y < 0])
    assert (model.predict(x) == truth)[y < 0].mean() > linear + 0.04


def test_the_command_line_default_for_vectors(tmp_path):
    from support import write_npz

    from selfens.named import config_for

    path = write_npz(tmp_path / "mine.npz")
    assert config_for(str(path)).method.name == "committee"
    assert config_for(str(path)).network.name == "committee"
    assert config_for(str(path), "temporal").network.name == "mlp"
    assert Dataset.from_npz(path).input_shape == (6,)
