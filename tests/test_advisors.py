"""Advisors: trees and a linear model as plain tensors, against scikit-learn; what they vote for; the shares of the classes."""

import numpy as np
import pytest
import torch
from reference import committee as twin
from sklearn.datasets import load_wine, make_classification
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from support import differences, left_behind, training_rows

from selfens import SelfEnsemblingClassifier, auto, encoders, load_run, networks, resume, train
from selfens.config import NetworkConfig
from selfens.core.alignment import estimated_shares, look_chosen, wanted_shares
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.networks.advisors import Advisors, Trees
from selfens.training.progress import Progress


def rows_of(seed=0, count=300, features=7, classes=4):
    x, y = make_classification(count, features, n_informative=5, n_classes=classes, random_state=seed)
    x[::5] = x[::5].round()  # ties, and thresholds on values
    return x.astype(np.float32), y


def test_trees_are_those_of_scikit_learn():
    x, y = rows_of()
    known = y[:80] % 3  # the last class has no label
    forests = [kind(20, random_state=1).fit(x[:80], known) for kind in (RandomForestClassifier, ExtraTreesClassifier)]
    trees = Trees(4)
    trees.load_forests(forests, 4)
    expected = np.mean([forest.predict_proba(x) for forest in forests], axis=0)
    made = trees(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(made[:, :3], expected, atol=1e-6)
    assert (made[:, 3] == 0).all()
    plain = [twin.leaf(forest, tree.tree_, row) for row in x[:20] for forest in forests for tree in forest.estimators_]
    np.testing.assert_allclose(made[:20, :3], np.reshape(plain, (20, 40, 3)).mean(axis=1), atol=1e-6)


def test_thresholds_keep_their_side_in_float32():
    x = np.float32([[0.1], [0.3], [0.30000004], [0.5]])
    forest = RandomForestClassifier(50, random_state=0).fit(x, [0, 0, 1, 1])
    trees = Trees(2)
    trees.load_forests([forest], 2)
    np.testing.assert_allclose(trees(torch.from_numpy(x)).numpy(), forest.predict_proba(x), atol=1e-6)


def test_advisors_average_trees_and_a_linear_model():
    x, y = rows_of(classes=3)
    advisors = Advisors(7, 3)
    advisors.fit(torch.from_numpy(x[:60]), torch.from_numpy(y[:60]))
    forest, bagged = (
        RandomForestClassifier(100, max_features=m, random_state=0).fit(x[:60], y[:60]) for m in ("sqrt", None)
    )
    linear = LogisticRegression(C=0.1, max_iter=300).fit(x[:60], y[:60])
    expected = np.mean([each.predict_proba(x) for each in (forest, bagged, linear)], axis=0)
    np.testing.assert_allclose(advisors(torch.from_numpy(x)).numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_class_without_a_label_does_not_confuse_the_linear_model(classes):
    x, y = rows_of(classes=3)
    advisors = Advisors(7, classes)
    advisors.fit(torch.from_numpy(x[:60]), torch.from_numpy((y[:60] > 0).astype(int)), "linear")
    linear = LogisticRegression(max_iter=300).fit(x[:60], y[:60] > 0)
    np.testing.assert_allclose(advisors(torch.from_numpy(x)).numpy()[:, :2], linear.predict_proba(x), atol=1e-3)


def test_a_network_takes_the_size_of_its_trees_from_a_state_and_refuses_what_are_no_trees():
    x, y = rows_of(classes=3)
    build = lambda: networks.build(NetworkConfig(name="committee"), (7,), 3).eval()  # noqa: E731
    first, second = build(), build()
    first.advisors.fit(torch.from_numpy(x[:60]), torch.from_numpy(y[:60]))
    before, state = first(torch.from_numpy(x)), first.state_dict()
    second.load_state_dict(state)
    assert second.advisors.can_vote
    torch.testing.assert_close(second(torch.from_numpy(x)), before, rtol=0, atol=0)
    damages = {
        "left": lambda t: t.fill_(0),
        "right": lambda t: t.fill_(len(t)),
        "feature": lambda t: t[:-1],
        "roots": lambda t: t - 1,
    }
    for name, damage in damages.items():
        key = f"advisors.trees.{name}"
        with pytest.raises(RuntimeError, match="trees|size mismatch"):
            build().load_state_dict(state | {key: damage(state[key].clone())})


def test_heads_and_advisors_vote_and_the_ensemble_holds_their_vote():
    x, y = rows_of(classes=3)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(np.where(np.arange(len(y)) < 30, y, -1))
    torch.manual_seed(0)
    network = networks.build(NetworkConfig(name="committee", dropout=0.0), (7,), 3)
    method = METHODS.build(METHODS.options("committee"))
    method.setup(network, training_rows(inputs, labels)._replace(is_mixed=True))
    heads = np.mean([head.softmax(dim=1).detach().numpy() for head in network.heads(inputs)], axis=0)
    advice = network.advisors(inputs).numpy()
    softened = heads**0.4 / (heads**0.4).sum(axis=1, keepdims=True)
    with torch.no_grad():
        voted = network.eval()(inputs).exp().numpy()
    np.testing.assert_allclose(voted, 0.3 * softened + 0.7 * advice, atol=1e-5)
    np.testing.assert_allclose(method._votes(inputs[5:9], torch.arange(5, 9)), voted[5:9], atol=1e-5)


# Shares


def test_labels_look_chosen_only_if_they_are_equally_many():
    assert look_chosen(torch.tensor([10.0, 10.0, 9.0]))
    assert not look_chosen(torch.tensor([20.0, 15.0]))
    assert not look_chosen(torch.tensor([10.0, 10.0, 0.0]))


def test_estimated_shares_are_those_of_the_twin_and_nearer_to_the_truth():
    random = np.random.default_rng(0)
    truth = np.array([0.9, 0.1])
    classes = random.choice(2, size=4000, p=truth)
    evidence = np.stack([random.normal(classes, 0.6), np.zeros(4000)], axis=1)
    likelihood = np.exp(-((evidence[:, :1] - [[0, 1]]) ** 2) / (2 * 0.6**2))
    probabilities = likelihood / likelihood.sum(axis=1, keepdims=True)  # right for equal shares
    counts = torch.tensor([50.0, 50.0])
    found = estimated_shares(torch.from_numpy(probabilities), counts.double()).numpy()
    np.testing.assert_allclose(found, twin.estimated_shares(probabilities, 50), atol=1e-6)
    assert 0.75 < found[0] < 0.92
    few = estimated_shares(torch.from_numpy(probabilities), counts.double() / 10).numpy()
    assert 0.5 < few[0] < found[0]  # fewer labels: more caution


def test_shares_are_taken_from_the_labels_given_or_estimated():
    equal, uneven = torch.tensor([10.0, 10.0]), torch.tensor([30.0, 10.0])
    probabilities = torch.tensor([[0.9, 0.1]]).repeat(50, 1)
    of_labels = wanted_shares("auto", ("no", "yes"), uneven, probabilities)
    torch.testing.assert_close(of_labels.wanted, torch.tensor([31.0, 11.0]) / 42)
    assert of_labels.remark(("no", "yes")) == ""
    estimated = wanted_shares("auto", ("no", "yes"), equal, probabilities)
    assert estimated.wanted[0] > 0.6
    assert "estimated" in estimated.remark(("no", "yes"))
    given = wanted_shares("yes=10%,no=90%", ("no", "yes"), equal)
    torch.testing.assert_close(given.wanted, torch.tensor([0.9, 0.1]))
    assert given.remark(("no", "yes")) == "class shares as given: no 90 %, yes 10 %"
    for wrong, said in (("maybe=1,no=9", "'maybe' is not one"), ("no=1", "'yes' has no share")):
        with pytest.raises(ConfigError, match=said):
            wanted_shares(wrong, ("no", "yes"), equal)
    for wrong in ("no", "no=x,yes=1", "no=-1,yes=2", "no=1,no=2"):
        with pytest.raises(ConfigError, match="a share for each class"):
            METHODS.options("committee", class_shares=wrong)


# The whole


def wine(labels=10):
    """As a table with a category."""
    x, y = load_wine(return_X_y=True, as_frame=True)
    x["taste"] = np.where(x.iloc[:, 0] > 13, "strong", "light")
    partial = np.where([np.sum(y[:row] == y[row]) < labels for row in range(len(y))], y, -1)
    return x, y.to_numpy(), partial


def test_a_classifier_knows_the_shares_of_rows_that_were_labeled_by_class(tmp_path):
    random = np.random.default_rng(0)
    truth = (random.random(1500) < 0.1).astype(int)
    x = np.column_stack([truth * 1.5 + random.normal(size=1500) * 0.7, random.normal(size=1500)])
    partial = np.full(1500, -1)
    for number in (0, 1):
        rows = np.flatnonzero(truth == number)[:15]
        partial[rows] = number
    errors = {}
    for shares in ("auto", "labels", "0=0.9,1=0.1"):
        config = {"method.class_shares": shares}
        model = SelfEnsemblingClassifier(
            epochs=8, random_state=0, device="cpu", config=config, run_dir=tmp_path / shares[:4]
        )
        errors[shares] = np.mean(model.fit(x, partial).predict(x) != truth)
    assert errors["auto"] < errors["labels"]
    assert errors["0=0.9,1=0.1"] < errors["labels"]
    assert "estimated from the unlabeled rows" in load_run(tmp_path / "auto").info.note


def test_a_run_with_advisors_predicts_the_same_when_it_is_read_again(tmp_path):
    x, y, partial = wine()
    model = SelfEnsemblingClassifier(epochs=3, random_state=0, device="cpu", run_dir=tmp_path / "run").fit(x, partial)
    run = load_run(tmp_path / "run", device="cpu")
    assert run.network.advisors.can_vote
    np.testing.assert_allclose(run.predict_proba(x), model.predict_proba(x), atol=1e-6)
    assert np.mean(model.predict(x) != y) < 0.1


def test_a_run_with_advisors_is_the_same_after_a_resume(tmp_path):
    x, _, partial = wine()
    table = x.assign(kind=[str(label) if label >= 0 else "" for label in partial])
    table.to_csv(tmp_path / "wine.csv", index=False)
    config, _ = auto.config_for(str(tmp_path / "wine.csv"), label="kind", device="cpu")
    config = config.with_epochs(4).with_values("training", checkpoint_every=1, threads=1)
    train(config, tmp_path / "whole")

    class Stop(Progress):
        def epoch(self, record):
            if record["epoch"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "resumed", progress=Stop())
    resume(tmp_path / "resumed")
    assert load_run(tmp_path / "resumed").network.advisors.can_vote
    assert not differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "resumed"))


def test_without_advisors_only_heads_vote():
    x, _, partial = wine()
    model = SelfEnsemblingClassifier(epochs=1, device="cpu", config={"method.advisors": 0}).fit(x, partial)
    assert not model.network_.advisors.can_vote


# The columns that number the rows


@pytest.mark.parametrize(
    ("values", "is_counter"),
    [
        (np.arange(1, 41), True),
        (np.arange(40)[::-1] * 7 + 1000, True),  # gaps, in order
        (np.random.default_rng(0).permutation(40) + 500, True),  # shuffled
        (np.random.default_rng(0).permutation(4000)[:40], False),  # a measurement without ties
        (np.arange(40) / 2, False),
        (np.r_[np.arange(39), 38], False),
    ],
)
def test_row_numbers_are_left_out_and_named(values, is_counter):
    from pandas import DataFrame

    frame = DataFrame({"rownames": values, "x": np.tile([0.5, 1.5, 2.5, 3.5], 10)})
    encoder = encoders.build(encoders.ENCODERS.options("columns"))
    encoder.fit(frame, np.arange(40))
    assert encoder.unused == ({"rownames": "differs in each row"} if is_counter else {})


# The command


def test_a_forest_that_is_clearly_better_is_kept_as_a_run_that_can_do_everything(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 4)).astype(np.float32)
    y = (np.abs(x[:, 0]) > 0.67).astype(int)  # no line divides the classes
    np.savez("rows.npz", x_train=x, y_train=np.where(np.arange(300) < 90, y, -1))
    words = ["--epochs", "1", "--set", "optimizer.learning_rate=1e-6", "--no-report", "--run", "run", "--use-best"]
    code, out, err = typed("train", "rows.npz", *words)
    assert code == 0, err
    assert "--use-best: random forest is clearly better, so it is kept as run-best; use that run." in out
    best = load_run("run-best", device="cpu")
    forest = RandomForestClassifier(random_state=0).fit(x[:90], y[:90])
    assert (best.predict_proba(x).argmax(axis=1) == forest.predict(x)).mean() > 0.99
    assert best.evidence.error < load_run("run").evidence.error - 10
    np.save("new.npy", x[:5])
    for words in (["predict", "run-best", "new.npy", "-o", "p.csv"], ["audit", "run-best"], ["suggest", "run-best"]):
        code, _, err = typed(*words)
        assert code == 0, err


def test_class_shares_are_for_methods_that_use_them(typed, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((9, 2)), y_train=np.r_[0, 1, np.full(7, -1)])
    code, _, err = typed("train", str(tmp_path / "a.npz"), "--method", "pi", "--class-shares", "equal")
    assert (code, err.count("\n")) == (1, 1)
    assert "--class-shares is for the method committee" in err
