"""Methods, networks and teachers of a user's own: what they keep is saved, and what was passed is not spoilt."""

import pickle
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from support import CLASSES, FEATURES, config, features
from torch import nn

from selfens import EnsembleTargets, SelfEnsemblingClassifier, load_run, resume, train
from selfens.core.losses import supervised
from selfens.errors import ConfigError, RunError
from selfens.methods import Losses, Method, Options
from selfens.report.comparison import compare
from selfens.report.page import write_report
from selfens.training.progress import Silent

EPOCHS = 3


class StoppedHere(Exception):
    pass


class StopAfter(Silent):
    def __init__(self, epochs):
        self.epochs = epochs

    def epoch(self, record):
        if record["epoch"] + 1 == self.epochs:
            raise StoppedHere


class Remembering(Method):
    """Keeps a plain tensor that each step changes and the next one uses, and names the loss's parts as it likes."""

    parts = ("cost",)

    @dataclass(frozen=True, kw_only=True)
    class Options(Options):
        targets: Literal["soft", "hard"] = "soft"  # no setting(), and a name that another method uses for a file

    def setup(self, network, rows):
        self.mean = torch.zeros(rows.num_classes)

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        z = logits.softmax(dim=1)
        total = supervised(logits, batch) + (z.mean(dim=0) - self.mean).square().sum()
        return Losses(total, {"cost": total}, z.detach())

    def after_step(self, network, rows, predictions):
        self.mean.lerp_(predictions.mean(dim=0), 0.3)


class InAList(Remembering):
    def setup(self, network, rows):
        super().setup(network, rows)
        self.others = [torch.zeros(2)]


class InAFile(Remembering):
    """Keeps an ensemble in a file."""

    path = ""

    def setup(self, network, rows):
        super().setup(network, rows)
        self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes, storage=self.path)

    def after_step(self, network, rows, predictions):
        super().after_step(network, rows, predictions)
        self.ensemble.write(rows, predictions)

    def end_epoch(self):
        self.ensemble.commit()


@pytest.mark.parametrize("kind", [Remembering, InAFile])
def test_a_resumed_run_remembers_what_the_method_kept(tmp_path, kind):
    def run(name, **more):
        kind.path = str(tmp_path / f"{name}.targets")
        return tmp_path / name, {"dataset": features(), "method": kind(), **more}

    path, given = run("whole")
    whole = train(config("temporal", epochs=EPOCHS), path, **given).history
    path, given = run("stopped")
    with pytest.raises(StoppedHere):
        train(config("temporal", epochs=EPOCHS), path, **given, progress=StopAfter(2))
    resumed = resume(path, dataset=features(), method=kind()).history
    assert [record["cost"] for record in resumed] == [record["cost"] for record in whole]


def test_what_would_not_be_saved_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="InAList keeps 'others' in a list, which is not saved"):
        train(config(epochs=1), tmp_path / "run", dataset=features(), method=InAList())


def test_a_run_with_parts_of_its_own_has_a_page(tmp_path):
    run = train(config(epochs=2), tmp_path / "run", dataset=features(), method=Remembering())
    page = write_report(run.path, tmp_path / "page.html", dataset=features()).read_text()
    assert "has not finished an epoch" not in page
    assert "Cost" in page


def test_parts_of_a_module_that_are_frozen_stay_frozen(tmp_path):
    frozen = nn.BatchNorm1d(FEATURES).eval()
    network = nn.Sequential(frozen, nn.Linear(FEATURES, CLASSES))
    network.training = True
    train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), network=network)
    assert not frozen.training
    assert torch.equal(frozen.running_mean, torch.zeros(FEATURES))


def test_predicting_with_the_teacher_leaves_the_module_that_was_trained(tmp_path):
    network = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    run = train(config("mean-teacher", epochs=2), tmp_path / "run", dataset=features(), network=network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    load_run(run.path, network=network).predict(features().test_inputs)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_fitted_module_is_pickled_once():
    x, y = features().inputs, features().labels
    module = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(20)), nn.Linear(FEATURES, CLASSES))
    alone = len(pickle.dumps(module))
    model = SelfEnsemblingClassifier("supervised", module, epochs=1, device="cpu").fit(x, y)
    assert len(pickle.dumps(model.network_)) < 2 * alone


def test_a_method_of_ones_own_is_resumed_with_the_same_options(tmp_path):
    settings, hard = config("supervised", epochs=EPOCHS), Remembering.Options(targets="hard")
    with pytest.raises(StoppedHere):
        train(settings, tmp_path / "run", dataset=features(), method=Remembering(hard), progress=StopAfter(1))
    with pytest.raises(RunError, match=r"targets='hard'\); resume it with the same, not .*targets='soft'"):
        resume(tmp_path / "run", dataset=features(), method=Remembering())
    assert len(resume(tmp_path / "run", dataset=features(), method=Remembering(hard)).history) == EPOCHS


def test_runs_of_methods_of_ones_own_with_other_options_are_no_seeds_of_each_other(tmp_path):
    runs = []
    for seed in (0, 1):
        settings = config("supervised", f"seed.base={seed}", epochs=1)
        method = Remembering(Remembering.Options(targets=("soft", "hard")[seed]))
        runs.append(train(settings, tmp_path / f"seed{seed}", dataset=features(), method=method))
    assert "other seed" not in compare(runs)["sentence"]


def test_parts_that_the_history_uses_itself_or_that_come_twice_are_refused(tmp_path):
    for parts in (("learning_rate",), ("ensemble_variance",), ("cost", "cost")):
        method = type("Own", (Remembering,), {"parts": parts})()
        with pytest.raises(ConfigError, match="choose another name|expected each name once"):
            train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), method=method)


@pytest.mark.parametrize(
    "wrong", [{"predictions": None}, {"predictions": torch.zeros(2, 3)}, {"parts": {"cost": 0.0}}, {"total": 0.5}]
)
def test_losses_that_are_no_tensors_are_refused(tmp_path, wrong):
    class Own(Remembering):
        def losses(self, *arguments):
            return super().losses(*arguments)._replace(**wrong)

    with pytest.raises(ConfigError, match="is no zero-dimensional tensor|are no tensor of|expected Losses"):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), method=Own())


class Growing(nn.Linear):
    """A buffer that changes its shape with every step."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, torch.zeros(1)])
        return super().forward(x)


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}


def test_tensors_that_change_their_shape_are_noticed_at_the_next_checkpoint(tmp_path):
    with pytest.raises(ConfigError, match="network/seen is not as it was when training began"):
        train(config("supervised", epochs=2), tmp_path / "run", dataset=features(), network=Growing())


def test_what_cannot_be_saved_is_refused_before_a_run_is_made(tmp_path):
    network = WithExtraState(FEATURES, CLASSES)
    with pytest.raises(ConfigError, match="network/_extra_state cannot be saved with the run"):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), network=network)
    untested = type("Own", (Remembering,), {"evaluated": lambda self, network: None})()
    with pytest.raises(ConfigError, match="`evaluated` returns is None"):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), method=untested)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [["weak"], (), (1,), None, "weak"])
@pytest.mark.parametrize("name", ["views", "parts"])
def test_names_that_are_no_tuple_are_refused(tmp_path, name, wrong):
    method = type("Own", (Remembering,), {name: wrong})()
    with pytest.raises(ConfigError, match=rf"Own\.{name} is .*; expected a tuple of names"):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), method=method)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (nn.Linear(FEATURES, CLASSES + 1), "makes shape .* expected logits of shape"),
        (nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0)), "makes shape"),
        (nn.Linear(FEATURES + 1, CLASSES), "cannot take inputs of shape"),
        (nn.LSTM(FEATURES, CLASSES), "makes a tuple"),
    ],
)
def test_a_network_that_makes_no_logits_is_refused_before_a_run_is_made(tmp_path, network, sentence):
    with pytest.raises(ConfigError, match=f"the network {sentence}"):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), network=network)
    assert not (tmp_path / "run").exists()
