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
    CLASSES,
    FEATURES,
    ROWS,
    SMALL_IMAGES,
    STEPS,
    At,
    config,
    differences,
    features,
    images,
    interrupt,
    left_behind,
    weights,
)
from torch import nn

import selfens
from selfens.config import Config
from selfens.core.device import float32_mode
from selfens.data.loader import Loader
from selfens.data.sources import SOURCES
from selfens.errors import ConfigError, DataError, DivergedError, RunError, SelfensWarning
from selfens.methods import METHODS
from selfens.runs.history import FIELDS
from selfens.training.components import misclassified
from selfens.training.distributed import Group
from selfens.training.progress import Lines
from selfens.training.step import Step

BYTES, LABELS = images().raw[:ROWS], images().labels[:ROWS]


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
    """A finished run of each method. Tests must not change it."""
    folder = tmp_path_factory.mktemp("done")
    return {method: selfens.train(config(method), folder / method, dataset=features()) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_the_history_has_one_record_per_epoch_with_all_fields_that_add_up(done, method):
    run = done[method]
    assert [record["epoch"] for record in run.history] == [0, 1, 2]
    for record in run.history:
        assert set(record) == FIELDS.keys() - {"prior"} | set(METHODS.find(method).parts)  # no prior was given
        assert min(record["seconds"], record["images_per_second"]) > 0
        total = record["supervised"] + record["weight"] * record["unsupervised"]
        assert record["total"] == pytest.approx(total, abs=1e-7)  # elr's parts nearly cancel
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
    assert Config.from_dict(json.loads((tmp_path / "run" / "config.json").read_text())) == settings


def test_labels_json_and_run_json_say_what_was_trained_on(done):
    data, run = features(), done["pi"]
    raw = json.loads((run.path / "labels.json").read_text())
    assert raw["labels"] == data.labels[raw["rows"]].tolist()
    assert np.bincount(raw["labels"]).tolist() == [4, 4, 4]
    assert run.labels.rows.tolist() == raw["rows"]
    assert raw["corrupted"] == raw["validation"] == []
    info, environment = run.info, run.info.environment
    assert (info.rows, info.labeled, info.test_rows) == (ROWS, 12, 30)
    assert (info.classes, info.input_shape) == (("0", "1", "2"), (FEATURES,))
    assert (info.custom_network, info.custom_method) == (False, False)
    assert info.fingerprint == run.data(data).fingerprint
    assert (environment["torch"], environment["selfens"]) == (torch.__version__, selfens.__version__)
    assert [environment[key] for key in ("threads", "device_type", "precision")] == [1, "cpu", "fp32"]


def test_three_methods_keep_an_ensemble_which_has_seen_every_row_once_per_epoch(done):
    assert [name for name, run in done.items() if run.ensemble is not None] == ["temporal", "committee", "elr"]
    ensemble = done["temporal"].ensemble
    assert ensemble.count.tolist() == [3] * ROWS
    assert torch.allclose(ensemble.all().probabilities.sum(dim=1), torch.ones(ROWS))


def test_a_run_predicts_class_names(tmp_path):
    data = features(test_rows=0)
    named = selfens.Dataset.from_arrays(data.raw, np.array(["a", "b", "c"])[data.labels])
    run = selfens.train(config(), tmp_path / "run", dataset=named)
    probabilities = run.predict_proba(data.raw)
    assert probabilities.shape == (ROWS, 3)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert run.predict(data.raw).tolist() == [["a", "b", "c"][i] for i in probabilities.argmax(axis=1)]


# Every method on every kind of data


@pytest.mark.filterwarnings("ignore:strong views do not change colors")
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


OTHER_PARTS = {
    "sgd": ("optimizer.name=sgd", "optimizer.weight_decay=1e-3"),
    "adamw": ("optimizer.name=adamw", "optimizer.weight_decay=0.1", "optimizer.multipliers=hidden1:0.5"),
    "cosine": ("schedule.name=cosine", "schedule.warmup_epochs=0.5", "schedule.weight_rampup_epochs=1"),
    "split": ("training.labeled_per_batch=4",),
    "after views": ("preprocess.after_views=on", "training.residence=ram"),
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
    pixels, y = BYTES.reshape(ROWS, 8, 8, 1), LABELS
    layouts = {"NHWC": pixels, "NCHW": pixels.reshape(ROWS, 1, 8, 8), "no channels": pixels.reshape(ROWS, 8, 8)}
    given = {name: selfens.Dataset.from_arrays(x, y, x[:20], y[:20]) for name, x in layouts.items()}
    runs = [selfens.train(config("pi", *SMALL_IMAGES), tmp_path / name, dataset=given[name]) for name in given]
    assert len({run.info.fingerprint for run in runs}) == 1
    assert len({weights(run.path) for run in runs}) == 1


@pytest.mark.parametrize(
    ("seed", "other_labels", "other_training"),
    [("base", True, True), ("labels", True, False), ("training", False, True)],
)
def test_a_seed_changes_what_it_is_for_and_nothing_else(tmp_path, visits, seed, other_labels, other_training):
    one = selfens.train(config(), tmp_path / "one", dataset=features())
    first, visits[:] = list(visits), []
    two = selfens.train(config("temporal", f"seed.{seed}=1"), tmp_path / "two", dataset=features())
    assert (one.labels.rows.tolist() != two.labels.rows.tolist()) == other_labels
    assert (not np.array_equal(first, visits)) == other_training
    assert weights(one.path) != weights(two.path)


def test_the_split_seed_changes_only_the_validation_rows(tmp_path):
    runs = [
        selfens.train(
            config("temporal", "labels.validation=0.5", f"seed.split={seed}"), tmp_path / str(seed), dataset=features()
        )
        for seed in (0, 1)
    ]
    one, two = (set(run.labels.validation.tolist()) for run in runs)
    assert one != two
    assert one | set(runs[0].labels.rows.tolist()) == two | set(runs[1].labels.rows.tolist())


# Which rows are visited


def test_validation_rows_are_reported_on_and_never_visited(tmp_path, visits, done):
    options = ("labels.validation=0.5", "method.weight_max=20", "schedule.rampup_epochs=1")
    run = selfens.train(config("temporal", *options), tmp_path / "run", dataset=features())
    held_out = set(run.labels.validation.tolist())
    assert len(held_out) == 6
    assert held_out.isdisjoint(np.concatenate(visits).tolist())
    assert held_out.isdisjoint(run.labels.rows.tolist())
    assert all(0 <= record["validation_error"] <= 100 for record in run.history)
    assert run.ensemble.count[sorted(held_out)].sum() == 0
    assert run.history[1]["weight"] == pytest.approx(20 * 6 / 54)  # they count neither as labeled nor as rows
    assert {record["validation_error"] for record in done["temporal"].history} == {None}


@pytest.mark.parametrize(("asked", "size"), [(10, 10), (25, 25), (100, ROWS)])
def test_an_incomplete_last_batch_is_left_out_and_its_rows_keep_their_targets(tmp_path, visits, asked, size):
    settings = config("temporal", f"training.batch_size={asked}", epochs=4)
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    assert {len(rows) for rows in visits} == {size}
    assert len(visits) == 1 + 4 * (ROWS // size)  # the very first batch initializes
    seen = np.bincount(np.concatenate(visits[1:]), minlength=ROWS)
    assert run.ensemble.count.tolist() == seen.tolist()
    assert (seen.min() == seen.max() == 4) == (ROWS % size == 0)


def test_the_split_sampler_begins_each_batch_with_labeled_rows_and_only_the_others_write_targets(tmp_path, visits):
    settings = config("temporal", "training.labeled_per_batch=4", epochs=2)
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    labeled, each_epoch = set(run.labels.rows.tolist()), ROWS // 6
    assert all(set(rows[:4].tolist()) <= labeled for rows in visits)
    others = np.concatenate([rows[4:] for rows in visits[1 : each_epoch + 1]])
    assert sorted(others) == list(range(ROWS))
    assert run.ensemble.count.tolist() == [2] * ROWS
    assert run.history[-1]["weight"] == run.config.method.weight_max  # not scaled by M/N


@pytest.mark.parametrize("size", [10, 20])
@pytest.mark.parametrize("method", METHODS)
def test_batches_begin_with_the_methods_share_of_labeled_rows_but_never_with_more_than_there_are(
    tmp_path, visits, method, size
):
    settings = config(method, "labels.count=3", f"training.batch_size={size}", epochs=2)
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    expected = min(round(METHODS.find(method).labeled_share * size), 3)
    is_labeled = np.isin(visits, run.labels.rows)
    assert is_labeled[:, :expected].all()
    assert not is_labeled[:, : expected + 1].all()


def test_only_labeled_rows_can_be_trained_on(tmp_path, visits):
    settings = config("supervised", "training.rows=labeled", "training.batch_size=6")
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    assert set(np.concatenate(visits).tolist()) == set(run.labels.rows.tolist())


def test_label_noise_redraws_that_share_of_the_labels_in_use(tmp_path):
    data = features()
    choice = selfens.train(config("temporal", "labels.noise=50"), tmp_path / "run", dataset=data).labels
    assert len(choice.corrupted) == 6
    changed = choice.rows[choice.labels != data.labels[choice.rows]]
    assert len(changed) > 0
    assert set(changed.tolist()) <= set(choice.corrupted.tolist())


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
    settings = config("temporal", "training.checkpoint_every=1", epochs=6)
    with pytest.raises(DivergedError) as raised:
        selfens.train(settings, tmp_path / "run", dataset=features(), network=Exploding(after=2 * STEPS + 1))
    message = str(raised.value)
    assert "stopped being finite in epoch 3" in message
    assert f"after epoch 2, is in {tmp_path / 'run'}" in message
    assert "lower optimizer.learning_rate" in message
    assert "optimizer.beta2=0.99" in message
    assert "schedule.rampup_epochs=3.2" in message
    assert "\n" not in message
    run = selfens.load_run(tmp_path / "run", network=Exploding(after=10**6))
    assert (run.directory.position()[0], len(run.history), run.finished) == (2, 2, False)
    assert np.isfinite(run.predict_proba(features().raw[:5])).all()
    assert selfens.resume(tmp_path / "run", dataset=features(), network=Exploding(after=10**6)).finished


def test_divergence_in_the_first_epoch_says_that_there_is_no_checkpoint(tmp_path):
    with pytest.raises(DivergedError, match="in epoch 1; no checkpoint was reached"):
        selfens.train(config(), tmp_path / "run", dataset=features(), network=Exploding(after=2))


def test_divergence_by_a_learning_rate_far_too_large(tmp_path):
    with pytest.raises(DivergedError, match="lower optimizer.learning_rate"):
        selfens.train(config("pi", "optimizer.learning_rate=1e38"), tmp_path / "run", dataset=features())


def test_a_stop_after_the_loss_diverged_does_not_replace_the_last_good_checkpoint(tmp_path):
    network, settings = Exploding(after=2 * STEPS + 1), config("temporal", "training.checkpoint_every=1")
    with pytest.raises((KeyboardInterrupt, DivergedError)):
        selfens.train(settings, tmp_path / "run", dataset=features(), network=network, progress=At(2, 3, interrupt))
    saved = selfens.load_run(tmp_path / "run", network=network).directory.load_checkpoint()
    assert saved.epoch == 2
    assert all(tensor.isfinite().all() for tensor in saved.tensors["network"].values())


def test_divergence_after_a_stop_in_mid_epoch_names_the_checkpoint_there_is(tmp_path):
    network, stop = Exploding(after=10**6), At(0, 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        selfens.train(config(), tmp_path / "run", dataset=features(), network=network, progress=stop)
    with pytest.raises(DivergedError, match="after epoch 0 and 3 steps, is in"):
        selfens.resume(tmp_path / "run", dataset=features(), network=Exploding(after=1))


# What is said about the data and the method


def test_nothing_unlabeled_and_nothing_to_test_on_is_said_in_the_title(tmp_path, capsys):
    settings, data = config("pi", "labels.count=all", epochs=1), features(test_rows=0)
    assert selfens.train(settings, tmp_path / "run", dataset=data, progress=Lines()).test_error is None
    assert f"{ROWS} rows, all labeled, 0 to test on" in capsys.readouterr().out


def test_a_negligible_weight_is_warned_of(tmp_path):
    with pytest.warns(SelfensWarning, match="reaches only 2e-05"):
        selfens.train(config("temporal", "method.weight_max=1e-4", epochs=1), tmp_path / "run", dataset=features())


def dataset_of(x, test_x=None):
    return selfens.Dataset.from_arrays(x, LABELS, x[:20] if test_x is None else test_x, LABELS[:20])


@pytest.mark.parametrize(
    ("x", "known"), [(BYTES, True), ((BYTES / 255).astype(np.float32), True), (BYTES + np.float32(0.5), False)]
)
def test_colors_of_pixels_are_changed_and_others_are_preprocessed_first(tmp_path, x, known):
    """For other images gray is unknown, so views fill empty areas with 0, which must be the mean after preprocessing."""
    losses = {}
    for later in ("auto", "on", "off"):
        settings = config("fixmatch", *SMALL_IMAGES, f"preprocess.after_views={later}", epochs=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses[later] = selfens.train(settings, tmp_path / later, dataset=dataset_of(x)).history[0]["total"]
        said = [str(each.message) for each in caught if "strong views do not change colors" in str(each.message)]
        assert bool(said) == (not known or later == "off")
        assert all(
            ("set preprocess.after_views=on" if known else "white is 1, or 255 in bytes") in each for each in said
        )
    assert losses["auto"] == losses["on"]
    assert (losses["on"] == losses["off"]) == (not known)


def test_test_images_on_another_scale_are_doubted(tmp_path):
    settings, x = config("supervised", *SMALL_IMAGES, epochs=1), BYTES / 255
    with pytest.warns(
        UserWarning, match=r"to 0.858824, and the test images from 0 to 219; are they on the same scale\?"
    ):
        selfens.train(settings, tmp_path / "run", dataset=dataset_of(x, 255 * x[:20]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selfens.train(settings, tmp_path / "brighter", dataset=dataset_of(0.3 * x, x[:20]))


def test_a_run_on_floats_from_0_to_1_takes_bytes(tmp_path):
    selfens.train(config("supervised", *SMALL_IMAGES, epochs=1), tmp_path / "run", dataset=dataset_of(BYTES / 255))
    run = selfens.load_run(tmp_path / "run")
    assert run.predict_proba(BYTES) == pytest.approx(run.predict_proba(BYTES / 255), abs=1e-5)
    with pytest.raises(DataError, match="trained on bytes, or floats from 0 to 1; use the same scale"):
        run.predict(2 * (BYTES / 255) - 1)


def test_a_threshold_that_nothing_passes_is_warned_of_at_the_end(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = selfens.train(config("fixmatch", "method.threshold=1", epochs=2), tmp_path / "run", dataset=features())
        settings = config("fixmatch", "method.threshold=1", "labels.count=all", epochs=1)
        selfens.train(settings, tmp_path / "all", dataset=features())  # no unlabeled rows to learn from
    said = [str(each.message) for each in caught]
    assert [record["kept"] for record in run.history] == [0, 0]
    assert len(said) == 1
    assert said[0].endswith("nothing was learned from unlabeled rows; lower method.threshold (it is 1.0).")


# The caller's process


def float32_settings():
    backends = torch.backends
    parts = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
    return [part.fp32_precision for part in parts]


def surroundings():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    settings = [torch.get_num_threads(), *float32_settings(), torch.is_grad_enabled()]
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()), handlers, settings  # noqa: NPY002


def test_the_callers_random_state_threads_and_signal_handlers_are_left_alone_also_if_training_fails(tmp_path):
    before, more = surroundings(), f"training.threads={torch.get_num_threads() + 1}"
    selfens.train(config("temporal", more), tmp_path / "run", dataset=features())
    assert surroundings() == before
    network = Exploding(after=3)
    before = surroundings()
    with pytest.raises(DivergedError):
        selfens.train(config("temporal", more), tmp_path / "failed", dataset=features(), network=network)
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
        older = "high" if mode == "tf32" else "highest"  # a compiler asks for it
        assert torch.get_float32_matmul_precision() == older
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


# What changes with time


@pytest.mark.parametrize(("labels", "factor"), [("12", 12 / ROWS), ("all", 1)])
@pytest.mark.parametrize("scale", ["original", "paper", "none"])
def test_the_weight_is_scaled_as_the_option_says(tmp_path, scale, labels, factor):
    options = (f"method.weight_scale={scale}", f"labels.count={labels}", "method.weight_max=20")
    settings = config("temporal", *options, "schedule.rampup_epochs=1", epochs=2)
    run = selfens.train(settings, tmp_path / "run", dataset=features())
    assert run.history[1]["weight"] == pytest.approx(20 * (1 if scale == "none" else factor))


def test_the_ramp_of_the_weight_can_be_its_own(tmp_path):
    settings = config("fixmatch", "schedule.weight_rampup_epochs=0", "schedule.rampup_epochs=2", epochs=3)
    history = selfens.train(settings, tmp_path / "run", dataset=features()).history
    assert [record["weight"] for record in history] == [1.0] * 3  # from the first step, and not scaled by default
    assert history[0]["learning_rate"] < history[2]["learning_rate"]


def test_the_weight_of_supervised_training_is_zero(done):
    assert {record["weight"] for record in done["supervised"].history} == {0.0}
    assert {record["unsupervised"] for record in done["supervised"].history} == {0.0}


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


# What is refused


@pytest.mark.parametrize(
    ("settings", "data", "sentence"),
    [
        ("digits", features, r"config is 'digits' \(str\); expected a Config, such as presets.get"),
        (config(), lambda: "w.npz", r"dataset is 'w.npz' \(str\); expected a Dataset"),
        (
            config("fixmatch", "training.labeled_per_batch=13", "training.batch_size=20"),
            features,
            "labeled_per_batch is 13, but there are only 12 labeled rows",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_run_is_made(tmp_path, settings, data, sentence):
    with pytest.raises(ConfigError, match=sentence):
        selfens.train(settings, tmp_path / "run", dataset=data())
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_was_passed_must_be_passed_again(done, tmp_path):
    path = done["temporal"].path
    with pytest.raises(ConfigError, match=r"dataset is 'w.npz' \(str\); expected a Dataset"):
        selfens.resume(path, dataset="w.npz")
    for again in (selfens.resume, lambda path: selfens.load_run(path).evaluate()):
        with pytest.raises(RunError, match="was trained on a dataset passed in Python; pass it"):
            again(path)
    with pytest.raises(DataError, match=r"passed in Python; pass it to train\(..., dataset=...\)"):
        selfens.train(Config(source=SOURCES.options("memory")), tmp_path / "new")


# What is reported


def test_the_error_reported_is_the_last_epochs_not_the_best(tmp_path):
    history = selfens.train(config(), tmp_path / "run", dataset=features()).path / "history.jsonl"
    records = zip(history.read_text().splitlines(), [12.0, 3.0, 9.0], strict=True)
    lines = [json.dumps(json.loads(line) | {"test_error": error}) + "\n" for line, error in records]
    history.write_text("".join(lines))
    assert selfens.load_run(tmp_path / "run").test_error == 9


@pytest.mark.parametrize("method", METHODS)
def test_evaluate_gives_the_last_epochs_error_again(done, method):
    data, run = features(), done[method]
    again = selfens.load_run(run.path).evaluate(data)
    assert again["test_error"] == run.test_error == run.history[-1]["test_error"]
    assert (again["rows"], set(again["per_class"])) == (30, {"0", "1", "2"})
    wrong = run.predict(data.raw[data.test_rows]) != np.array(data.classes)[data.test_labels]
    assert again["errors"] == wrong.sum()


def test_the_share_misclassified_is_over_every_row():
    labels = torch.arange(2531) % CLASSES  # more than a batch
    inputs = nn.functional.one_hot(labels, CLASSES).float()
    inputs[-2:] = inputs[-2:].roll(1, dims=1)
    network = nn.Identity()
    assert misclassified(network, inputs, labels, "fp32", Group()) == 100 * 2 / 2531
    assert misclassified(network, inputs[:0], labels[:0], "fp32", Group()) is None
