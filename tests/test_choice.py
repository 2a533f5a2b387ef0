"""Automatic settings for a user's own data, and the line that explains them."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support import blobs, features, images, sets, write_npz

from selfens import Config, auto, load_run, presets
from selfens.config import NetworkConfig
from selfens.data.dataset import Dataset
from selfens.data.sources import SOURCES, Peek
from selfens.encoders import ENCODERS
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.networks import build
from selfens.networks.layers import BatchNorm, BatchNormConv2d
from selfens.report.page import write_report

MEMORY = SOURCES.options("memory")


def chosen(side=28, rows=10_000, **more):
    return auto.settings_for(MEMORY, Peek(rows, side), **more)


def photos(folder, classes, number=6, side=16):
    random = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for image in range(number):
            pixels = random.integers(0, 255, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{image}.png")
    return folder


# Settings


@pytest.mark.parametrize(
    ("side", "on_gpu", "network", "translation"),
    [
        (None, True, "committee", 0),
        (8, True, "small", 0),
        (8, False, "small", 0),
        (12, False, "tiny", 1),
        (23, True, "small", 1),
        (24, True, "conv13", 2),
        (24, False, "tiny", 2),
    ],
)
def test_settings_fit_the_size_of_the_data_and_the_device(side, on_gpu, network, translation):
    config = chosen(side, 1000, on_gpu=on_gpu)
    assert (config.network.name, config.views.translation) == (network, translation)
    assert (config.source, config.preprocess.kind) == (MEMORY, "channel")


@pytest.mark.parametrize(("rows", "epochs"), [(2, 50), (150, 50), (5120, 50), (10_000, 25), (50_000, 10), (10**6, 10)])
def test_vectors_get_a_thousand_steps_and_ten_visits_or_more(rows, epochs):
    config = chosen(None, rows)
    assert config.method == METHODS.options("committee")
    assert config.schedule.epochs == epochs
    each = max(rows // round(0.8 * config.training.batch_size), 20)
    assert each * epochs >= 950


def test_images_on_a_cpu_have_a_quick_network_and_strong_views():
    config = chosen()
    assert (config.method.name, config.network.name, config.optimizer.name) == ("temporal-teacher", "tiny", "adamw")
    assert config.preprocess.is_after_views(METHODS.find(config.method.name).views)
    per_epoch = 10_000 // round(0.8 * config.training.batch_size)
    assert auto.ON_CPU.steps <= config.schedule.epochs * per_epoch < auto.ON_CPU.steps + per_epoch


@pytest.mark.parametrize(
    ("on_gpu", "rows", "side", "epochs"),
    [
        *((False, *numbers) for numbers in ((50, 32, 1100), (1000, 32, 275), (10**6, 32, 3), (1000, 64, 92))),
        *((True, *numbers) for numbers in ((50, 28, 100), (20_000, 32, 100), (50_000, 32, 40), (10**6, 32, 3))),
        (False, 1000, 640, 92),
        (True, 1000, 64, 34),
    ],
)
def test_the_more_rows_and_the_larger_the_images_the_fewer_epochs(on_gpu, rows, side, epochs):
    assert chosen(side, rows, on_gpu=on_gpu).schedule.epochs == epochs


def test_images_on_a_gpu_have_the_settings_of_cifar10():
    config, modern = chosen(rows=50, on_gpu=True), presets.get("cifar10-modern")
    assert (config.method, config.network, config.optimizer) == (modern.method, modern.network, modern.optimizer)
    assert (config.schedule.name, config.schedule.weight_rampup_epochs) == ("cosine", 0)
    assert config.training.min_steps_per_epoch == 200


@pytest.mark.parametrize("on_gpu", [False, True])
def test_fixmatch_has_the_same_settings_and_a_threshold(on_gpu):
    config, other = (chosen(method=name, on_gpu=on_gpu) for name in ("fixmatch", None))
    assert (config.method.name, config.method.threshold, config.method.decay) == ("fixmatch", 0.8, other.method.decay)
    assert (config.network, config.optimizer) == (other.network, other.optimizer)


@pytest.mark.parametrize("side", [None, 28])
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("committee", *presets.STRONG_METHODS)])
def test_another_method_has_its_own_options_and_about_a_thousand_steps_of_the_papers_schedule(method, side):
    config = chosen(side, 1000, method=method)
    assert config.method == METHODS.options(method)
    assert (config.network.name, config.optimizer.name) == ("mlp" if side is None else "small", "adam")
    assert (config.schedule.name, config.schedule.epochs, config.training) == ("paper", 100, Config().training)


def test_images_on_a_gpu_may_have_any_network():
    config = chosen(rows=100, on_gpu=True)
    for name in ("conv13", "small", "tiny", "mlp", "wrn-28-2"):
        network = build(replace(config.network, name=name), (1, 28, 28), 10)
        assert any(isinstance(each, BatchNorm | BatchNormConv2d) for each in network.modules()), name


def test_the_tiny_network_needs_images_of_some_size():
    assert sum(p.numel() for p in build(NetworkConfig(name="tiny"), (1, 28, 28), 10).parameters()) == 24_314
    with pytest.raises(ConfigError, match=r"'tiny' was given inputs of shape \(1, 8, 8\).*at least 12x12"):
        build(NetworkConfig(name="tiny"), (1, 8, 8), 10)


def test_features_of_a_pretrained_network_have_the_settings_of_vectors():
    backbone = ENCODERS.options("backbone", model="timm:lite")
    assert chosen(encoder=backbone) == replace(chosen(None), encoder=backbone)
    with pytest.raises(ConfigError, match="the encoder 'backbone' needs images, but arrays does not hold any"):
        chosen(None, encoder=backbone)


@pytest.mark.parametrize(
    ("classes", "flip"),
    [(("cat", "dog"), True), (("0", "1", "12"), False), (("a", "B"), False), (("7", "zero"), True)],
)
def test_photos_are_flipped_and_digits_and_letters_are_not(tmp_path, classes, flip):
    config, peek = auto.config_for(str(photos(tmp_path / "photos", classes, 2)), device="cpu")
    assert (config.views.flip, peek.flips, peek.rows, peek.image_side) == (flip, flip, 2 * len(classes), 16)


# The same settings for a file and for the same data in memory


def a_file_of_vectors(folder):
    return write_npz(folder / "vectors.npz"), {}, features()


def a_file_of_images(folder):
    data = images(side=16)
    pixels = np.asarray(data.raw)[data.train_rows]
    arrays = {"x_train": pixels.transpose(0, 2, 3, 1), "y_train": data.train_labels, "x_test": None, "y_test": None}
    return write_npz(folder / "images.npz", **arrays), {}, Dataset.from_arrays(pixels, data.train_labels)


def a_table(folder):
    """The number of rows is such that one more would cost an epoch."""
    frame = pytest.importorskip("pandas").DataFrame(blobs(auto.VECTORS_ROWS)[0]).add_prefix("column")
    labels = [("cat", "dog", None)[row % 3] for row in range(len(frame))]
    frame.assign(kind=labels).to_csv(folder / "table.csv", index=False)
    return folder / "table.csv", {"label": "kind"}, Dataset.from_labels(frame, labels)


@pytest.mark.parametrize("made", [a_file_of_vectors, a_file_of_images, a_table])
def test_a_file_and_the_same_data_in_memory_get_the_same_settings_with_every_method(tmp_path, made):
    path, options, data = made(tmp_path)
    for method in (None, *METHODS):
        config, peek = auto.config_for(str(path), method=method, device="cpu", **options)
        assert peek.rows == data.num_train
        in_memory = auto.config_for_dataset(data, method, device="cpu")
        assert config.source.path == str(path)
        assert (in_memory.source.name, in_memory.source.extra) == ("memory", None)
        assert replace(in_memory, source=config.source) == config, method


# The line


def why(side=28, rows=10_000, overrides=(), timed=False, **facts):
    peek = Peek(rows, side, **{"why": "because arrays do not say whether left and right matter"} | facts)
    config = auto.settings_for(MEMORY, peek)
    used = config.with_overrides(["training.device=cpu", *overrides])
    return auto.explain(peek, config, used, timed=timed)


def test_the_line_says_what_was_chosen_and_why():
    assert why() == (
        "chosen: method temporal-teacher; network tiny, for images without a GPU; 23 epochs, for this number of rows; "
        "shifts of up to 2 pixels; no flips, because arrays do not say whether left and right matter"
    )
    assert why(flips=True, why="because image files are assumed to be photos").endswith(
        "; flips, because image files are assumed to be photos"
    )
    assert why(None, 9) == (
        "chosen: method committee; network committee, for vectors without a GPU; 50 epochs, for this number of rows"
    )
    backbone = ENCODERS.options("backbone", model="timm:lite")
    peek = Peek(9, 32, flips=True, why="because")
    config = auto.settings_for(MEMORY, peek, encoder=backbone).with_values("training", device="cpu")
    assert auto.explain(peek, config, config) == why(None, 9)


def test_the_line_leaves_out_what_the_user_has_set():
    own = ("views.flip=true", "network.width=8", "labels.count=9", "seed.base=3", "source.extra=svhn")
    assert why(overrides=own).endswith("shifts of up to 2 pixels")
    line = why(overrides=["schedule.epochs=46"])
    assert "for this number of rows" not in line
    assert "epochs" not in why(timed=True)


def test_the_line_is_printed_kept_and_reported(tmp_path, typed):
    folder = photos(tmp_path / "photos", ("cat", "dog"))
    words = ("--epochs", 2, "--set", "network.width=4", "--device", "cpu")
    code, said, _ = typed("train", folder, "--run", "run", *words)
    assert code == 0
    run = load_run("run")
    line = run.info.note
    assert line.startswith("chosen: method temporal-teacher; network tiny, for images without a GPU; ")
    assert (
        "; flips, because image files are assumed to be photos (set views.flip=false if left and right matter)" in line
    )
    assert "epochs" not in line
    assert line in said.splitlines()
    assert line in (run.path / "report.html").read_text()
    assert line in write_report(run, tmp_path / "again.html").read_text()
    assert "features of a pretrained network usually do better on photos: --backbone timm:" in said
    written = typed("train", photos(tmp_path / "digits", "12"), "--run", "other", *words)[1]
    assert "no flips, because the classes are numbers or letters" in written
    assert "--backbone" not in written


def test_a_preset_has_no_such_line(typed):
    config, peek = auto.config_for("digits", device="cpu")
    assert (config, peek) == (presets.get("digits"), None)
    words = ("--epochs", 1, "--set", "network.width=2", "--no-report", "--run", "run")
    assert "chosen: " not in typed("train", "digits", *words)[1]
    assert load_run("run").info.note == ""


def test_overrides_win(tmp_path, typed):
    own = ["views.flip=false", "network.name=small", "network.width=4", "schedule.epochs=1"]
    assert typed("train", photos(tmp_path / "photos", ("cat", "dog")), "--run", "run", *sets(own))[0] == 0
    config = load_run("run").config
    assert (config.views.flip, config.network.name, config.schedule.epochs) == (False, "small", 1)
