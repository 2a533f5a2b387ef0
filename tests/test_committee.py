"""The method `committee` and its network: against plain twins, on hostile data, and against logistic regression."""

import numpy as np
import pytest
import torch
from reference import committee as twin
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from support import config, features, left_behind, training_rows

from selfens import SelfEnsemblingClassifier, networks, train
from selfens.config import NetworkConfig
from selfens.core import neighbors
from selfens.core.batch import Batch
from selfens.core.evaluate import logits
from selfens.core.targets import EnsembleTargets
from selfens.errors import DataError
from selfens.methods import METHODS
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
    method = METHODS.build(METHODS.options("committee", **options))
    method.setup(network(), training_rows(inputs, labels))
    return method


def predictions(epochs):
    """Far more of the last class than its labels say."""
    random = np.random.default_rng(2)
    return [random.dirichlet([0.3, 0.3, 1.2], size=ROWS) for _ in range(epochs)]


def test_targets_and_losses_are_those_of_the_twin(inputs, labels):
    method, student = set_up(inputs, labels, memory=0.7), network()
    near = twin.neighbors(inputs.double().numpy(), neighbors.NEIGHBORS)
    rows = torch.cat([torch.tensor([2, 0, 1]), torch.arange(10, 30)])
    known = torch.cat([labels[rows[:3]], torch.full((20,), -1)])
    batch = Batch(rows, (inputs[rows],), known, known >= 0, num_labeled=3)
    heads = [head.detach().double().numpy() for head in student.heads(inputs[rows])]
    for epochs in range(1, 4):
        made = predictions(epochs)
        for some in torch.arange(ROWS).split(9):
            method.ensemble.write(some, torch.from_numpy(made[-1][some]).float())
        method.end_epoch()
        targets, factors = twin.targets(twin.averages(made, 0.7), labels.tolist(), near, PRIOR)
        np.testing.assert_allclose(method.factors, factors, rtol=1e-4)
        assert factors.min() < 0.95  # the alignment has had something to do
        found = method.losses(student, batch, method.targets(rows[3:]), torch.tensor(0.5))
        wanted = [targets[row] for row in rows[3:]]
        supervised, unsupervised = twin.losses(heads, known[:3].tolist(), wanted)
        assert found.parts["supervised"].item() == pytest.approx(supervised, rel=1e-5)
        assert found.parts["unsupervised"].item() == pytest.approx(unsupervised, rel=1e-4)
        assert found.total.item() == pytest.approx(supervised + 0.5 * unsupervised, rel=1e-4)
        kept = np.mean([target is not None for target in wanted])
        assert found.parts["kept"].item() == pytest.approx(kept)
        assert 0 < kept < 1
        taught = logits(method.teacher.network, inputs[rows]).softmax(dim=1)
        torch.testing.assert_close(found.predictions, taught)


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


def nearest(inputs, count, pieces=33):
    return neighbors.Neighborhood(lambda: inputs.split(pieces), torch.full((len(inputs),), -1), count).nearest


def test_vectors_of_many_features_are_compared_by_angle_in_fewer_dimensions():
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(20, 300, generator=random)
    x = centers.repeat(5, 1) * (1 + torch.rand(100, 1, generator=random))  # others of a center differ in length only
    found = nearest(x, 4)
    assert all({row % 20} == {other % 20 for other in others} for row, others in enumerate(found.tolist()))
    assert torch.equal(found, nearest(x, 4))


def test_very_many_rows_look_for_neighbors_among_a_selection(monkeypatch):
    monkeypatch.setattr(neighbors, "CANDIDATES", 10)
    monkeypatch.setattr(neighbors, "BLOCK", 35)
    found = nearest(torch.arange(30.0)[:, None], 2)
    assert found[0].tolist() == [3, 6]
    assert sorted(found[7].tolist()) == [6, 9]
    assert (found % 3 == 0).all()


def test_many_classes_are_averaged_a_few_rows_at_a_time(monkeypatch):
    labels = torch.arange(30).where(torch.arange(30) < 9, -1)
    vectors = torch.randn(30, 4)
    around = neighbors.Neighborhood(lambda: [vectors], labels)
    ensemble = EnsembleTargets(30, 10)
    ensemble.write(torch.arange(20), torch.rand(20, 10))
    ensemble.commit()
    expected, asked, genuine = around.averaged(ensemble, 0.5), [], ensemble.get
    monkeypatch.setattr(neighbors, "AVERAGED", 500)  # of 10 classes and 10 neighbors, four rows
    monkeypatch.setattr(ensemble, "get", lambda rows: asked.append(len(rows)) or genuine(rows))
    assert torch.equal(around.averaged(ensemble, 0.5), expected)
    assert asked == [44] * 7 + [22]


def test_inputs_in_ram_give_the_same_run(tmp_path):
    for residence in ("device", "ram"):
        settings = config("committee", "network.name=committee", f"training.residence={residence}", epochs=2)
        train(settings, tmp_path / residence, dataset=features())
    first, second = (left_behind(tmp_path / name) for name in ("device", "ram"))
    averaged = [key for key in first if key.startswith("evaluated/")]
    assert averaged
    assert all(first[key] == second[key] for key in averaged)


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


@pytest.mark.parametrize(("labeled", "more_columns"), [(12, 1), (60, 0)], ids=["a constant column", "all rows labeled"])
def test_blobs_are_told_apart(labeled, more_columns):
    data = features(test_rows=0)
    x = np.hstack([data.raw, np.full((60, more_columns), 3.0)])
    model = fit(x, np.where(np.arange(60) < labeled, data.labels, -1), epochs=10)
    assert model.score(x, data.labels) > 0.8


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
