"""train() and resume() from Python: what a run does, and what it leaves behind."""

import itertools
import json
import random
import signal
import threading
import warnings

import numpy as np
import pytest
import torch
from support import (
    BATCH,
    CLASSES,
    FEATURES,
    ROWS,
    SMALL_IMAGES,
    STEPS,
    Crash,
    config,
    crashed,
    differences,
    features,
    images,
    left_behind,
    weights,
)
from torch import nn

import selfens
from selfens import methods
from selfens.config import Config
from selfens.core import evaluate
from selfens.core.device import float32_mode
from selfens.core.losses import cross_entropy, squared_difference
from selfens.core.schedules import gaussian_rampup
from selfens.core.teacher import EmaTeacher
from selfens.data.loader import Loader
from selfens.errors import ConfigError, DivergedError, RunError, SelfensWarning
from selfens.methods import METHODS, Losses, Method, WeightedOptions
from selfens.training import setup
from selfens.training.distributed import Group
from selfens.training.evaluate import EvaluatedRows, misclassified
from selfens.training.progress import Lines, Silent
from selfens.training.step import Step

HISTORY_FIELDS = {
    "epoch",
    "supervised",
    "unsupervised",
    "total",
    "validation_error",
    "test_error",
    "learning_rate",
    "beta1",
    "weight",
    "ensemble_variance",
    "seconds",
    "images_per_second",
}


class CrashAt(Silent):
    """The process ends after this step of this epoch."""

    def __init__(self, epoch: int, step: int) -> None:
        self.countdown = epoch * STEPS + step

    def step(self, epoch: int, step: int) -> None:
        if self.countdown == 0:
            raise Crash
        self.countdown -= 1


def plain_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


class OwnTeacher(Method):
    """Targets from a running average of the weights; the average is what is tested."""

    Options = WeightedOptions
    views = ("weak", "weak")

    def setup(self, network, rows):
        self.teacher = EmaTeacher(network, 0.9)

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        z = logits.softmax(dim=1)
        supervised = cross_entropy(logits, batch.labels, batch.labeled)
        unsupervised = squared_difference(z, self.teacher.probabilities(batch.views[1]))
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z.detach())

    def after_step(self, network, rows, predictions):
        self.teacher.update()

    def evaluated(self, network):
        return self.teacher.network


@pytest.fixture
def visits(monkeypatch):
    """The rows of every batch that is drawn, the one of the initialization included."""
    seen: list[np.ndarray] = []
    draw = Loader.batch

    def batch(self, rows, views):
        seen.append(rows.numpy())
        return draw(self, rows, views)

    monkeypatch.setattr(Loader, "batch", batch)
    return seen


# What a run leaves behind


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run of each method, only to be looked at."""
    folder = tmp_path_factory.mktemp("done")
    return {method: selfens.train(config(method), folder / method, dataset=features()) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_the_history_has_one_record_per_epoch_with_all_fields_that_add_up(done, method):
    run = done[method]
    assert [record["epoch"] for record in run.history] == [0, 1, 2]
    for record in run.history:
        assert set(record) == HISTORY_FIELDS | set(methods.find(method).parts)
        assert min(record["seconds"], record["images_per_second"]) > 0
        assert record["total"] == pytest.approx(record["supervised"] + record["weight"] * record["unsupervised"])
    assert run.finished


@pytest.mark.parametrize("method", METHODS)
def test_the_run_directory_holds_the_documented_files_and_no_others(done, method):
    documented = {"config.json", "run.json", "labels.json", "preprocess.safetensors", "history.jsonl"}
    assert {path.name for path in done[method].path.iterdir()} == documented | {"checkpoint.safetensors", "lock"}
    assert {path.name for path in done[method].path.parent.iterdir()} == set(METHODS)


def test_the_config_comes_back_equal(tmp_path):
    settings = config("pi", "optimizer.beta2=0.99", "seed.labels=3")
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    assert run.config == settings
    assert Config.from_json((tmp_path / "run" / "config.json").read_text()) == settings


def test_labels_json_holds_the_rows_in_use_and_their_labels(done):
    data, run = features(), done["pi"]
    raw = json.loads((run.path / "labels.json").read_text())
    assert len(raw["rows"]) == 12
    assert raw["labels"] == data.labels[raw["rows"]].tolist()
    assert np.bincount(raw["labels"]).tolist() == [4, 4, 4]
    assert run.labels.rows.tolist() == raw["rows"]
    assert raw["corrupted"] == raw["validation"] == []


def test_run_json_says_what_the_run_ran_on(done):
    data = features()
    about = json.loads((done["pi"].path / "run.json").read_text())
    assert about["format"] == "2"
    assert about["fingerprint"] == data.fingerprint()
    assert (about["rows"], about["labeled"], about["test_rows"]) == (ROWS, 12, 30)
    assert about["classes"] == ["0", "1", "2"]
    assert about["input_shape"] == [FEATURES]
    assert about["input_type"] == "float32"
    assert about["own_data"] is True
    assert about["own_network"] is False
    recorded = about["environment"]
    assert recorded["torch"] == torch.__version__
    assert recorded["selfens"] == selfens.__version__
    assert recorded["threads"] == 1
    assert (recorded["device_type"], recorded["precision"]) == ("cpu", "fp32")


def test_two_methods_keep_an_ensemble_which_has_seen_every_row_once_per_epoch(done):
    assert [name for name, run in done.items() if run.ensemble is not None] == ["temporal", "committee"]
    ensemble = done["temporal"].ensemble
    assert ensemble.count.tolist() == [3] * ROWS
    assert torch.allclose(ensemble.all().probabilities.sum(dim=1), torch.ones(ROWS))


def test_a_run_predicts_class_names(tmp_path):
    data = features()
    named = selfens.Dataset.from_arrays(data.inputs, np.array(["a", "b", "c"])[data.labels])
    run = selfens.train(config(), tmp_path / "run", dataset=named)
    probabilities = run.predict_proba(data.test_inputs)
    assert probabilities.shape == (30, 3)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert run.predict(data.test_inputs).tolist() == [["a", "b", "c"][i] for i in probabilities.argmax(axis=1)]


# Every method on every kind of data


@pytest.mark.filterwarnings("ignore:strong views change no colors")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_small_images_too(tmp_path, method):
    data = images()
    run = selfens.train(config(method, *SMALL_IMAGES, epochs=2), tmp_path / "run", dataset=data)
    assert all(np.isfinite(record["total"]) for record in run.history)
    assert run.evaluate(data)["test_error"] == run.test_error


@pytest.mark.parametrize("method", METHODS)
def test_training_lowers_the_error_of_every_method(tmp_path, method):
    teacher = ["method.decay=0.9"] * (method in ("mean-teacher", "fixmatch"))
    run = selfens.train(config(method, "network.dropout=0", *teacher, epochs=30), tmp_path / "run", dataset=features())
    assert run.test_error < 25  # chance is 67


COSINE = ("schedule.name=cosine", "schedule.warmup_epochs=0.5", "schedule.weight_rampup_epochs=1")
OTHER_PARTS = {
    "sgd": ("optimizer.name=sgd", "optimizer.weight_decay=1e-3"),
    "adamw": ("optimizer.name=adamw", "optimizer.weight_decay=0.1", "optimizer.multipliers=hidden1:0.5"),
    "cosine": COSINE,
    "split": ("training.labeled_per_batch=4",),
    "after views": ("data.preprocess_after_views=true", "training.residence=ram"),
}


@pytest.mark.parametrize("parts", OTHER_PARTS)
def test_every_optimizer_schedule_and_sampler_trains(tmp_path, parts):
    settings = config("temporal", "network.dropout=0", *OTHER_PARTS[parts], epochs=20)
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    assert run.test_error < 40
    assert ("beta1" in run.history[0]) == (parts != "sgd")


# Seeds


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_before(tmp_path, done, method):
    torch.manual_seed(123)
    np.random.seed(5)  # noqa: NPY002  the global state is the point
    again = selfens.train(config(method), tmp_path / "again", dataset=features())
    assert differences(left_behind(done[method].path), left_behind(again.path)) == []


def test_datasets_of_the_same_fingerprint_give_the_same_bits_whatever_their_layout(tmp_path):
    data = images()
    pixels = np.array(data.inputs.transpose(0, 2, 3, 1).tolist(), dtype=np.uint8)
    layouts = {"NHWC": pixels, "NCHW": pixels.reshape(ROWS, 1, 8, 8), "no channels": pixels.reshape(ROWS, 8, 8)}
    given = {name: selfens.Dataset.from_arrays(x, data.labels, x[:20], data.labels[:20]) for name, x in layouts.items()}
    for name, dataset in given.items():
        selfens.train(config("pi", *SMALL_IMAGES), tmp_path / name, dataset=dataset)
    assert len({dataset.fingerprint() for dataset in given.values()}) == 1
    assert len({weights(tmp_path / name) for name in given}) == 1


def test_another_seed_gives_other_labels_and_weights(tmp_path, done):
    one = done["temporal"]
    two = selfens.train(config("temporal", "seed.base=1"), tmp_path / "two", dataset=features())
    assert one.labels.rows.tolist() != two.labels.rows.tolist()
    assert weights(one.path) != weights(two.path)


def test_the_label_seed_changes_only_the_labels(tmp_path, visits):
    one = selfens.train(config(), tmp_path / "one", dataset=features())
    first, visits[:] = list(visits), []
    two = selfens.train(config("temporal", "seed.labels=1"), tmp_path / "two", dataset=features())
    assert one.labels.rows.tolist() != two.labels.rows.tolist()
    assert np.array_equal(first, visits)  # the order is of the training seed


def test_the_training_seed_changes_only_the_training(tmp_path, done):
    one = done["temporal"]
    two = selfens.train(config("temporal", "seed.training=1"), tmp_path / "two", dataset=features())
    assert one.labels.rows.tolist() == two.labels.rows.tolist()
    assert weights(one.path) != weights(two.path)


def test_the_split_seed_changes_only_the_validation_rows(tmp_path):
    runs = [
        selfens.train(
            config("temporal", "data.validation=0.5", f"seed.split={seed}"), tmp_path / str(seed), dataset=features()
        )
        for seed in (0, 1)
    ]
    one, two = (set(run.labels.validation.tolist()) for run in runs)
    assert one != two
    assert one | set(runs[0].labels.rows.tolist()) == two | set(runs[1].labels.rows.tolist())


# Which rows are visited


def test_validation_rows_are_reported_on_and_never_visited(tmp_path, visits):
    run = selfens.train(config("temporal", "data.validation=0.5"), tmp_path / "run", dataset=features())
    held_out = set(run.labels.validation.tolist())
    assert len(held_out) == 6
    assert held_out.isdisjoint(np.concatenate(visits).tolist())
    assert held_out.isdisjoint(run.labels.rows.tolist())
    assert all(0 <= record["validation_error"] <= 100 for record in run.history)
    assert run.ensemble.count[sorted(held_out)].sum() == 0


def test_without_a_validation_split_there_is_no_validation_error(done):
    assert {record["validation_error"] for record in done["temporal"].history} == {None}


def test_the_split_sampler_begins_each_batch_with_labeled_rows_and_only_the_others_write_targets(tmp_path, visits):
    settings = config("temporal", "training.labeled_per_batch=4", "training.batch_size=10", epochs=2)
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    labeled = set(run.labels.rows.tolist())
    for rows in visits:
        assert set(rows[:4].tolist()) <= labeled
    each_epoch = ROWS // 6
    others = np.concatenate([rows[4:] for rows in visits[1 : each_epoch + 1]])
    assert sorted(others) == list(range(ROWS))
    assert run.ensemble.count.tolist() == [2] * ROWS
    assert run.history[-1]["weight"] == run.config.method.weight_max  # not scaled by M/N


def test_more_labeled_rows_per_batch_than_there_are_is_refused_before_a_run_is_made(tmp_path):
    settings = config("fixmatch", "training.labeled_per_batch=13", "training.batch_size=20")
    with pytest.raises(ConfigError, match=r"labeled_per_batch is 13, but there are only 12 labeled rows"):
        selfens.train(settings, tmp_path / "run", dataset=features())
    assert not (tmp_path / "run").exists()


def test_every_row_is_visited_once_per_epoch(tmp_path, visits):
    selfens.train(config(epochs=2), tmp_path / "run", dataset=features())
    first, second = visits[1 : STEPS + 1], visits[STEPS + 1 :]  # the very first batch initializes
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second)) == list(range(ROWS))
    assert not np.array_equal(first, second)


def test_an_incomplete_last_batch_is_left_out_and_its_rows_keep_their_targets(tmp_path, visits):
    run = selfens.train(config("temporal", "training.batch_size=25", epochs=4), tmp_path / "run", dataset=features())
    assert {len(rows) for rows in visits} == {25}
    assert len(visits) == 1 + 4 * 2
    seen = np.bincount(np.concatenate(visits[1:]), minlength=ROWS)
    assert run.ensemble.count.tolist() == seen.tolist()
    assert seen.min() < seen.max()


def test_fewer_rows_than_a_batch_make_one_smaller_batch(tmp_path, visits):
    run = selfens.train(config("temporal", "training.batch_size=100"), tmp_path / "run", dataset=features())
    assert {len(rows) for rows in visits} == {ROWS}
    assert len(visits) == 1 + 3
    assert run.finished


def test_only_labeled_rows_can_be_trained_on(tmp_path, visits):
    settings = config("supervised", "training.rows=labeled", "training.batch_size=6")
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    assert set(np.concatenate(visits).tolist()) == set(run.labels.rows.tolist())


def test_label_noise_redraws_that_share_of_the_labels_in_use(tmp_path):
    data = features()
    run = selfens.train(config("temporal", "data.label_noise=50"), tmp_path / "run", dataset=data)
    choice = run.labels
    assert len(choice.corrupted) == 6
    changed = choice.rows[choice.labels != data.labels[choice.rows]]
    assert len(changed) > 0
    assert set(changed.tolist()) <= set(choice.corrupted.tolist())


# A network and a method of one's own


def test_a_module_of_ones_own_is_trained_and_resumed_to_the_same_bits(tmp_path):
    data = features()
    selfens.train(config(), tmp_path / "whole", dataset=data, network=plain_network())
    with crashed():
        selfens.train(config(), tmp_path / "cut", dataset=data, network=plain_network(), progress=CrashAt(2, 3))
    run = selfens.resume(tmp_path / "cut", dataset=data, network=plain_network(seed=7))
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "cut")) == []
    assert run.evaluate(data)["test_error"] == run.test_error


def test_a_module_of_ones_own_must_be_passed_again(tmp_path):
    selfens.train(config(), tmp_path / "run", dataset=features(), network=plain_network())
    with pytest.raises(RunError, match=r"started with a network of your own.*resume\(path, network="):
        selfens.resume(tmp_path / "run", dataset=features())
    with pytest.raises(RunError, match=r"load_run\(path, network="):
        _ = selfens.load_run(tmp_path / "run").network


def test_another_module_than_the_one_trained_is_refused(tmp_path):
    selfens.train(config(), tmp_path / "run", dataset=features(), network=plain_network())
    with pytest.raises(RunError, match="do not fit"):
        _ = selfens.load_run(tmp_path / "run", network=nn.Linear(FEATURES, CLASSES)).network
    with pytest.raises(RunError, match="does not fit"):
        selfens.resume(tmp_path / "run", dataset=features(), network=nn.Linear(FEATURES, CLASSES))


class Tied(nn.Module):
    """One weight under two names, as in an autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(FEATURES, FEATURES)
        self.two = nn.Linear(FEATURES, FEATURES)
        self.two.weight = self.one.weight
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.last(self.two(self.one(x).relu()).relu())


def test_a_module_with_shared_weights_is_trained_and_loaded(tmp_path):
    run = selfens.train(config(), tmp_path / "run", dataset=features(), network=Tied())
    loaded = selfens.load_run(tmp_path / "run", network=Tied())
    assert loaded.evaluate(features())["test_error"] == run.test_error


def test_a_factory_by_name_is_trained_resumed_and_loaded(tmp_path, monkeypatch):
    (tmp_path / "my_factory.py").write_text(
        "from torch import nn\n\ndef build(input_shape, num_classes):\n    return nn.Linear(input_shape[0], num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = config("pi", "network.name=my_factory:build")
    selfens.train(settings, tmp_path / "whole", dataset=features())
    with crashed():
        selfens.train(settings, tmp_path / "cut", dataset=features(), progress=CrashAt(1, 2))
    selfens.resume(tmp_path / "cut", dataset=features(), trust_code=True)
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "cut")) == []
    assert isinstance(selfens.load_run(tmp_path / "cut", trust_code=True).network, nn.Linear)


def test_a_module_without_parameters_is_refused_before_a_run_is_made(tmp_path):
    class FirstFeatures(nn.Module):
        def forward(self, x):
            return x[:, :CLASSES]

    with pytest.raises(ConfigError, match="no trainable parameters"):
        selfens.train(config(), tmp_path / "run", dataset=features(), network=FirstFeatures())
    assert list(tmp_path.iterdir()) == []


def test_a_method_of_ones_own_is_trained_tested_by_its_own_network_and_resumed(tmp_path):
    data = features()

    def parts():
        return {"dataset": data, "network": plain_network(), "method": OwnTeacher()}

    whole = selfens.train(config(epochs=4), tmp_path / "whole", **parts())
    with crashed():
        selfens.train(config(epochs=4), tmp_path / "cut", **parts(), progress=CrashAt(2, 1))
    cut = selfens.resume(tmp_path / "cut", **parts())
    assert differences(left_behind(whole.path), left_behind(cut.path)) == []
    tensors = whole.directory.load_checkpoint().tensors
    assert not torch.equal(tensors["evaluated"]["0.weight"], tensors["network"]["0.weight"])
    again = selfens.load_run(whole.path, network=plain_network())
    assert again.evaluate(data)["test_error"] == whole.test_error
    assert torch.equal(again.network.state_dict()["0.weight"], tensors["evaluated"]["0.weight"])


class Halved(Method):
    """Supervised-only with half the loss, under a name of its own: nothing to save, so no file could tell."""

    parts = ("half",)
    uses_unlabeled = False

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        loss = cross_entropy(logits, batch.labels, batch.labeled) / 2
        return Losses(loss, {"half": loss}, logits.detach().softmax(dim=1))


def test_a_method_with_parts_of_its_own_reports_them(tmp_path, capsys):
    run = selfens.train(config(epochs=2), tmp_path / "run", dataset=features(), method=Halved(), progress=Lines())
    assert [record["half"] for record in run.history] == [record["total"] for record in run.history]
    assert f"loss {run.history[1]['total']:.4f}  test error" in capsys.readouterr().out


class PartMissing(Halved):
    parts = ("half", "quarter")


def test_a_method_that_does_not_give_its_parts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the method's losses lack the part 'quarter'"):
        selfens.train(config(epochs=2), tmp_path / "run", dataset=features(), method=PartMissing())


def test_a_place_for_targets_that_a_method_of_ones_own_does_not_heed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"method\.targets is .*, but a method of your own was passed"):
        selfens.train(config("temporal", "method.targets=ram"), tmp_path / "run", dataset=features(), method=Halved())
    assert not (tmp_path / "run").exists()


class ForOtherRows(Halved):
    def setup(self, network, rows):
        self.ensemble = selfens.EnsembleTargets(rows.num_rows + 1, rows.num_classes)


def test_an_ensemble_of_other_rows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=f"the method's ensemble has {ROWS + 1} rows; expected {ROWS}"):
        selfens.train(config(), tmp_path / "run", dataset=features(), method=ForOtherRows())


def test_a_view_that_does_not_exist_is_refused(tmp_path):
    class Sideways(Halved):
        views = ("weak", "sideways")

    with pytest.raises(ConfigError, match="sideways"):
        selfens.train(config(), tmp_path / "run", dataset=features(), method=Sideways())


def test_a_method_of_ones_own_must_be_passed_again(tmp_path):
    with crashed():
        selfens.train(config(), tmp_path / "run", dataset=features(), method=Halved(), progress=CrashAt(1, 0))
    with pytest.raises(RunError, match="started with a method of your own.*method="):
        selfens.resume(tmp_path / "run", dataset=features())


def test_arrays_of_ones_own_must_be_passed_again(done):
    for again in (selfens.resume, lambda path: selfens.load_run(path).evaluate()):
        with pytest.raises(RunError, match="pass the dataset again"):
            again(done["temporal"].path)


@pytest.mark.parametrize("part", ["network", "method"])
def test_a_part_of_ones_own_is_not_passed_to_a_run_that_was_begun_without(done, part):
    given = {"network": plain_network(), "method": Halved()}[part]
    with pytest.raises(RunError, match=f"started without a {part} of your own"):
        selfens.resume(done["temporal"].path, dataset=features(), **{part: given})


# The loss stops being finite


class Exploding(nn.Module):
    """Gives infinite logits from one training step on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.inner, self.after, self.calls = nn.Linear(FEATURES, CLASSES), after, 0

    def forward(self, x):
        self.calls += self.training
        return self.inner(x) * (float("inf") if self.calls > self.after else 1.0)


def test_a_loss_that_stops_being_finite_is_explained_and_the_last_good_checkpoint_survives(tmp_path):
    with pytest.raises(DivergedError) as raised:
        selfens.train(config(epochs=6), tmp_path / "run", dataset=features(), network=Exploding(after=2 * STEPS + 1))
    message = str(raised.value)
    assert "stopped being finite in epoch 3" in message
    assert f"after epoch 2, is in {tmp_path / 'run'}" in message
    assert "optimizer.beta2=0.99" in message
    assert "schedule.rampup_epochs=3.2" in message
    assert "\n" not in message
    run = selfens.load_run(tmp_path / "run", network=Exploding(after=10**6))
    assert (run.directory.reached()[0], len(run.history), run.finished) == (2, 2, False)
    assert np.isfinite(run.predict_proba(features().test_inputs)).all()
    finished = selfens.resume(tmp_path / "run", dataset=features(), network=Exploding(after=10**6))
    assert finished.finished


def test_divergence_in_the_first_epoch_says_that_there_is_no_checkpoint(tmp_path):
    with pytest.raises(DivergedError, match="in epoch 1; no checkpoint was reached"):
        selfens.train(config(), tmp_path / "run", dataset=features(), network=Exploding(after=2))


def test_divergence_by_a_learning_rate_far_too_large(tmp_path):
    with pytest.raises(DivergedError, match="lower optimizer.learning_rate"):
        selfens.train(config("pi", "optimizer.learning_rate=1e38"), tmp_path / "run", dataset=features())


class SignalAt(CrashAt):
    """Ctrl-C during this step of this epoch."""

    def step(self, epoch: int, step: int) -> None:
        if self.countdown == 0:
            signal.raise_signal(signal.SIGINT)
        self.countdown -= 1


class Around(nn.Module):
    """In evaluation mode itself, around a network that is trained."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.training = False

    def forward(self, x):
        return self.network(x)


def test_an_evaluation_leaves_each_part_in_the_mode_it_was_in():
    network = plain_network().train()
    frozen = next(module for module in network.modules() if not list(module.children()))
    frozen.eval()
    before = {name: module.training for name, module in Around(network).named_modules()}
    assert len(set(before.values())) == 2
    around = Around(network)
    evaluate.logits(around, torch.zeros(3, FEATURES))
    assert {name: module.training for name, module in around.named_modules()} == before


def test_a_network_without_shapes_yet_gets_them_from_the_data(tmp_path):
    def lazy():
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))

    with crashed():
        selfens.train(config(), tmp_path / "run", dataset=features(), network=lazy(), progress=CrashAt(1, 2))
    run = selfens.resume(tmp_path / "run", dataset=features(), network=lazy())
    again = selfens.load_run(tmp_path / "run", network=lazy())
    assert again.evaluate(features())["test_error"] == run.test_error


class OnePartUnknown(Method):
    """Reports an unsupervised part that is not a number, and does not train on it."""

    uses_unlabeled = False

    def losses(self, network, batch, targets, weight):
        scores = network(batch.views[0])
        loss = cross_entropy(scores, batch.labels, batch.labeled)
        parts = {"supervised": loss, "unsupervised": loss.detach() * float("nan")}
        return Losses(loss, parts, scores.detach().softmax(dim=1))


def test_a_reported_part_that_is_no_number_does_not_end_a_run_whose_loss_is(tmp_path):
    run = selfens.train(config(epochs=2), tmp_path / "run", dataset=features(), method=OnePartUnknown())
    assert len(run.history) == 2


def test_a_stop_after_the_loss_diverged_does_not_replace_the_last_good_checkpoint(tmp_path):
    network = Exploding(after=2 * STEPS + 1)
    with pytest.raises((KeyboardInterrupt, DivergedError)):
        selfens.train(config(), tmp_path / "run", dataset=features(), network=network, progress=SignalAt(2, 3))
    saved = selfens.load_run(tmp_path / "run", network=network).directory.load_checkpoint().tensors["network"]
    assert all(tensor.isfinite().all() for tensor in saved.values())


def test_divergence_after_a_stop_in_mid_epoch_names_the_checkpoint_there_is(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        selfens.train(
            config(),
            tmp_path / "run",
            dataset=features(),
            network=Exploding(after=10**6),
            progress=SignalAt(0, 2),
        )
    with pytest.raises(DivergedError) as raised:
        selfens.resume(tmp_path / "run", dataset=features(), network=Exploding(after=1))
    assert "no checkpoint" not in str(raised.value)


# Warnings if self-ensembling cannot be working


def test_nothing_unlabeled_and_nothing_to_test_on_is_said_in_the_title(tmp_path, capsys):
    settings, data = config("pi", "data.labels=none", epochs=1), features(test_rows=0)
    assert selfens.train(settings, tmp_path / "run", dataset=data, progress=Lines()).test_error is None
    assert f"{ROWS} rows, all labeled, 0 to test on" in capsys.readouterr().out


def test_a_negligible_weight_is_warned_of(tmp_path):
    with pytest.warns(SelfensWarning, match="reaches only 2e-05"):
        selfens.train(config("temporal", "method.weight_max=1e-4", epochs=1), tmp_path / "run", dataset=features())


BYTES = np.asarray(images().inputs)


@pytest.mark.parametrize(
    ("x", "known"), [(BYTES, True), ((BYTES / 255).astype(np.float32), True), (BYTES + np.float32(0.5), False)]
)
def test_colors_of_pixels_are_changed_and_others_are_preprocessed_first(tmp_path, x, known):
    """Of others gray is not known: what views leave empty is filled with 0, which must be the mean by then."""
    labels, losses = images().labels, []
    data = selfens.Dataset.from_arrays(x, labels, x[:20], labels[:20])
    for later in (True, False):
        settings = config("fixmatch", *SMALL_IMAGES, f"data.preprocess_after_views={later}", epochs=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses.append(selfens.train(settings, tmp_path / str(later), dataset=data).history[0]["total"])
        said = [str(each.message) for each in caught if "strong views change no colors" in str(each.message)]
        assert bool(said) == (not known or not later)
        assert all(
            ("set data.preprocess_after_views=true" if known else "white is 1, or 255 of bytes") in each
            for each in said
        )
    assert (losses[0] == losses[1]) == (not known)


def test_test_images_on_another_scale_are_doubted(tmp_path):
    labels, x = images().labels, BYTES / 255
    data = selfens.Dataset.from_arrays(x, labels, 255 * x[:20], labels[:20])
    with pytest.warns(
        UserWarning, match=r"to 0.858824, and the test images from 0 to 219; are they on the same scale\?"
    ):
        selfens.train(config("supervised", *SMALL_IMAGES, epochs=1), tmp_path / "run", dataset=data)


def test_brighter_test_images_are_not_doubted(tmp_path):
    labels, x = images().labels, BYTES / 255
    data = selfens.Dataset.from_arrays(0.3 * x, labels, x[:20], labels[:20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selfens.train(config("supervised", *SMALL_IMAGES, epochs=1), tmp_path / "run", dataset=data)


def test_a_run_on_floats_from_0_to_1_takes_bytes(tmp_path):
    data = selfens.Dataset.from_arrays(BYTES / 255, images().labels)
    selfens.train(config("supervised", *SMALL_IMAGES, epochs=1), tmp_path / "run", dataset=data)
    run, about = selfens.load_run(tmp_path / "run"), tmp_path / "run" / "run.json"
    assert run.predict_proba(BYTES) == pytest.approx(run.predict_proba(BYTES / 255), abs=1e-5)
    with pytest.raises(selfens.errors.DataError, match="give them on the same scale"):
        run.predict(2 * BYTES / 255 - 1)
    known = json.loads(about.read_text())
    del known["input_range"]  # as earlier versions wrote it
    about.write_text(json.dumps(known))
    before = selfens.load_run(tmp_path / "run")
    assert (before.predict_proba(BYTES) == before.predict_proba(BYTES.astype(float))).all()
    about.write_text(json.dumps(known | {"input_range": [0]}))
    with pytest.raises(selfens.errors.RunError, match="run.json is missing fields or holds invalid values"):
        selfens.load_run(tmp_path / "run")


def test_a_threshold_that_nothing_passes_is_warned_of_at_the_end(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = selfens.train(config("fixmatch", "method.threshold=1", epochs=2), tmp_path / "run", dataset=features())
        settings = config("fixmatch", "method.threshold=1", "data.labels=none", epochs=1)
        selfens.train(settings, tmp_path / "all", dataset=features())  # nothing unlabeled that could teach
    said = [str(each.message) for each in caught]
    assert [record["kept"] for record in run.history] == [0, 0]
    assert len(said) == 1
    assert said[0].endswith("unlabeled rows taught nothing; lower method.threshold (it is 1.0).")


# The caller's process


def float32_settings():
    backends = torch.backends
    parts = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
    return [part.fp32_precision for part in parts]


def surroundings():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    settings = [torch.get_num_threads(), *float32_settings(), torch.is_grad_enabled()]
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()), handlers, settings  # noqa: NPY002


def test_the_callers_random_state_threads_and_signal_handlers_are_left_alone(tmp_path):
    data = features()
    before, threads = surroundings(), torch.get_num_threads()
    selfens.train(config("temporal", f"training.threads={threads + 1}"), tmp_path / "run", dataset=data)
    assert surroundings() == before


@pytest.fixture(params=["high", "medium", "matmul", "conv", "general"])
def a_caller_who_wants_speed(request):
    backends, asked = torch.backends, request.param
    before, older = float32_settings(), torch.get_float32_matmul_precision()
    parts = {"matmul": backends.cuda.matmul, "conv": backends.cudnn.conv, "general": backends}
    if asked in parts:
        parts[asked].fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision(asked)
    yield
    torch.set_float32_matmul_precision(older)
    for part in (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends, backends.cudnn):
        part.fp32_precision = "none"
    backends.cudnn.conv.fp32_precision = "tf32"
    assert float32_settings() == before


@pytest.mark.parametrize(("precision", "mode"), [("fp32", "ieee"), ("bf16", "ieee"), ("tf32", "tf32")])
def test_float32_is_what_was_asked_for_whatever_the_caller_has_set(a_caller_who_wants_speed, precision, mode):
    before = float32_settings()
    with float32_mode(precision):
        assert set(float32_settings()) == {mode}
        assert torch.get_float32_matmul_precision() == (
            "high" if mode == "tf32" else "highest"
        )  # a compiler asks for it
        with float32_mode("fp32"):
            assert set(float32_settings()) == {"ieee"}
        assert set(float32_settings()) == {mode}
    assert float32_settings() == before


def test_threads_that_set_float32_take_turns():
    before, first_left = float32_settings(), threading.Event()

    def other():
        with float32_mode("tf32"):
            assert first_left.is_set()

    with float32_mode("fp32"):
        second = threading.Thread(target=other)
        second.start()
        assert set(float32_settings()) == {"ieee"}
        first_left.set()
    second.join()
    assert float32_settings() == before


def test_they_are_left_alone_if_training_fails(tmp_path):
    data, network = features(), Exploding(after=3)
    before = surroundings()
    with pytest.raises(DivergedError):
        selfens.train(config(), tmp_path / "run", dataset=data, network=network)
    assert surroundings() == before


def test_training_works_outside_the_main_thread_and_in_two_at_once(tmp_path, done):
    def start(name):
        given = {"args": (config(), tmp_path / name), "kwargs": {"dataset": features()}}
        worker = threading.Thread(target=selfens.train, daemon=True, **given)
        worker.start()
        return worker

    for worker in [start("one"), start("two")]:
        worker.join(60)
    assert weights(tmp_path / "one") == weights(tmp_path / "two") == weights(done["temporal"].path)


def test_nothing_is_printed_by_default(tmp_path, capfd):
    selfens.train(config(), tmp_path / "run", dataset=features())
    assert capfd.readouterr() == ("", "")


# The unsupervised weight


@pytest.mark.parametrize("method", ["pi", "temporal", "mean-teacher"])
def test_the_weight_is_w_max_times_m_over_n_times_the_ramp_and_zero_in_epoch_0(tmp_path, method):
    settings = config(method, "method.weight_max=20", "schedule.rampup_epochs=4", epochs=6)
    found = [record["weight"] for record in selfens.train(settings, tmp_path / "run", dataset=features()).history]
    ramp = gaussian_rampup(4)
    assert found[0] == 0
    assert found[1:] == pytest.approx([20 * 12 / ROWS * ramp(epoch) for epoch in range(1, 6)])


def test_the_ramp_of_the_weight_can_be_its_own(tmp_path):
    settings = config("fixmatch", "schedule.weight_rampup_epochs=0", "schedule.rampup_epochs=2", epochs=3)
    history = selfens.train(settings, tmp_path / "run", dataset=features()).history
    assert [record["weight"] for record in history] == [1.0] * 3  # from the first step, and not scaled by default
    assert history[0]["learning_rate"] < history[2]["learning_rate"]


def test_a_cosine_falls_at_every_step(tmp_path, monkeypatch):
    seen = []
    genuine = Step.set

    def watched(self, **rates):
        seen.append(rates["learning_rate"])
        genuine(self, **rates)

    monkeypatch.setattr(Step, "set", watched)
    settings = config("pi", "schedule.name=cosine", "schedule.warmup_epochs=1", epochs=3)
    history = selfens.train(settings, tmp_path / "run", dataset=features()).history
    progress = np.arange(3 * STEPS) / STEPS
    cosine = 0.01 * (1 + np.cos(np.pi * (progress - 1) / 2)) / 2
    assert seen == pytest.approx(np.where(progress < 1, 0.01 * progress, cosine), abs=0.01 / STEPS)
    assert all(one != next_one for one, next_one in itertools.pairwise(seen))
    assert [record["learning_rate"] for record in history] == seen[::STEPS]


def test_the_weight_of_supervised_training_is_zero(done):
    run = done["supervised"]
    assert {record["weight"] for record in run.history} == {0.0}
    assert {record["unsupervised"] for record in run.history} == {0.0}


@pytest.mark.parametrize(
    ("scale", "labels", "factor"),
    [
        ("original", "12", 12 / ROWS),
        ("paper", "12", 12 / ROWS),
        ("none", "12", 1),
        ("original", "none", 1),
        ("paper", "none", 1),
        ("none", "none", 1),
    ],
)
def test_the_weight_is_scaled_as_the_option_says(tmp_path, scale, labels, factor):
    options = (
        f"method.weight_scale={scale}",
        f"data.labels={labels}",
        "method.weight_max=20",
        "schedule.rampup_epochs=1",
    )
    run = selfens.train(config("temporal", *options, epochs=2), tmp_path / "run", dataset=features())
    assert run.history[1]["weight"] == pytest.approx(20 * factor)


def test_validation_rows_count_neither_as_labeled_nor_as_rows(tmp_path):
    options = ("data.validation=0.5", "method.weight_max=20", "schedule.rampup_epochs=1")
    run = selfens.train(config("temporal", *options, epochs=2), tmp_path / "run", dataset=features())
    assert run.history[1]["weight"] == pytest.approx(20 * 6 / 54)


def test_learning_rate_and_beta1_follow_their_ramps(tmp_path):
    settings = config("pi", "schedule.rampup_epochs=2", "schedule.rampdown_epochs=2", epochs=6)
    history = selfens.train(settings, tmp_path / "run", dataset=features()).history
    down = np.exp(-12.5 * 0.25)
    rates = [np.exp(-5), np.exp(-1.25), 1, 1, 1, down]
    assert [record["learning_rate"] for record in history] == pytest.approx([0.01 * rate for rate in rates])
    assert [record["beta1"] for record in history] == pytest.approx([0.9] * 5 + [0.9 * down + 0.5 * (1 - down)])


# What is given


def test_an_argument_of_another_kind_is_named(tmp_path, done):
    for settings, given, sentence in [
        ("digits", {}, r"config is 'digits' \(str\); expected a Config, such as presets.get"),
        (config(), {"dataset": "w.npz"}, r"dataset is 'w.npz' \(str\); expected a Dataset"),
        (config(), {"network": "mlp"}, r"network is 'mlp' \(str\); expected a module"),
        (config(), {"method": "pi"}, r"method is 'pi' \(str\); expected an instance of a Method"),
        (config(), {"method": Halved}, r"method is .*Halved.*; expected an instance of a Method"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            selfens.train(settings, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"dataset is 'w.npz' \(str\); expected a Dataset"):
        selfens.resume(done["temporal"].path, dataset="w.npz")


# What is reported


def test_the_error_reported_is_the_last_epochs_not_the_best(tmp_path, monkeypatch):
    errors = iter([12.0, 3.0, 9.0])
    monkeypatch.setattr(setup, "misclassified", lambda network, rows, *more: next(errors) if rows.total else None)
    run = selfens.train(config(), tmp_path / "run", dataset=features())
    assert run.test_error == 9


@pytest.mark.parametrize("method", METHODS)
def test_evaluate_gives_the_last_epochs_error_again(done, method):
    data, run = features(), done[method]
    again = selfens.load_run(run.path).evaluate(data)
    assert again["test_error"] == run.test_error == run.history[-1]["test_error"]
    assert (again["rows"], set(again["per_class"])) == (30, {"0", "1", "2"})
    wrong = run.predict(data.test_inputs) != np.array(data.classes)[data.test_labels]
    assert again["errors"] == wrong.sum()


def test_the_share_misclassified_is_over_every_row(monkeypatch):
    monkeypatch.setattr(evaluate, "BATCH", 7)
    labels = torch.arange(31) % CLASSES
    inputs = nn.functional.one_hot(labels, CLASSES).float()
    inputs[-2:] = inputs[-2:].roll(1, dims=1)
    network = nn.Identity()
    assert misclassified(network, EvaluatedRows(inputs, labels, 31), "fp32", Group()) == 100 * 2 / 31
    assert misclassified(network, EvaluatedRows(inputs[:0], labels[:0], 31), "fp32", Group()) == 0
    assert misclassified(network, EvaluatedRows(inputs[:0], labels[:0], 0), "fp32", Group()) is None


def test_the_batch_size_is_what_was_asked_for(tmp_path, visits):
    selfens.train(config(), tmp_path / "run", dataset=features())
    assert {len(rows) for rows in visits} == {BATCH}
