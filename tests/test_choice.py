"""What is chosen for a user's own images, and the line that says so."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support import write_npz

from selfens import Config, load_run, named, presets
from selfens.cli import main
from selfens.config import NetworkConfig
from selfens.errors import ConfigError
from selfens.networks import build
from selfens.networks.layers import BatchNorm, BatchNormConv2d
from selfens.report.page import write_report


def photos(folder, classes, number=6, side=16):
    random = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for image in range(number):
            pixels = random.integers(0, 255, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{image}.png")
    return folder


def trained(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main(["train", *map(str, words)])
    said = capsys.readouterr()
    assert not done.value.code, said.err
    return said.out


# Settings


def test_images_on_a_cpu_have_a_quick_network_and_strong_views():
    config = presets.for_arrays("mine", images_side=28, rows=10_000)
    assert (config.method.name, config.network.name, config.optimizer.name) == ("temporal-teacher", "tiny", "adamw")
    assert config.data.preprocess_after_views
    per_epoch = 10_000 // round(0.8 * config.training.batch_size)
    assert presets.ON_CPU.steps <= config.schedule.epochs * per_epoch < presets.ON_CPU.steps + per_epoch


@pytest.mark.parametrize(
    ("rows", "side", "epochs"), [(50, 32, 1100), (1_000, 32, 275), (10**6, 32, 3), (1_000, 64, 92), (1_000, 640, 92)]
)
def test_the_more_rows_and_the_larger_the_images_the_fewer_epochs(rows, side, epochs):
    assert presets.for_arrays("mine", images_side=side, rows=rows).schedule.epochs == epochs


@pytest.mark.parametrize("on_gpu", [False, True])
def test_fixmatch_has_the_same_settings_and_a_threshold(on_gpu):
    facts = {"images_side": 28, "rows": 10_000, "on_gpu": on_gpu}
    config, other = (presets.for_arrays("mine", method=name, **facts) for name in ("fixmatch", None))
    assert (config.method.name, config.method.threshold, config.method.decay) == ("fixmatch", 0.8, other.method.decay)
    assert (config.network, config.optimizer) == (other.network, other.optimizer)


def test_images_on_a_gpu_may_have_any_network():
    config = presets.for_arrays("mine", images_side=28, rows=100, on_gpu=True)
    for name in ("conv13", "small", "tiny", "mlp", "wrn-28-2"):
        network = build(replace(config.network, name=name), (1, 28, 28), 10)
        assert any(isinstance(each, BatchNorm | BatchNormConv2d) for each in network.modules()), name


@pytest.mark.parametrize("method", ["temporal", "pi", "supervised"])
def test_another_method_has_its_own_settings(method):
    config = presets.for_arrays("mine", images_side=28, rows=10_000, method=method)
    assert (config.method.name, config.network.name) == (method, "small")
    assert (config.optimizer, config.schedule.name, config.training) == (Config().optimizer, "paper", Config().training)


@pytest.mark.parametrize(
    ("rows", "side", "epochs"), [(50, 28, 100), (20_000, 32, 100), (50_000, 32, 40), (10**6, 32, 3), (1_000, 64, 34)]
)
def test_images_on_a_gpu_have_the_settings_of_cifar10_and_twenty_thousand_steps(rows, side, epochs):
    config = presets.for_arrays("mine", images_side=side, rows=rows, on_gpu=True)
    modern = presets.get("cifar10-modern")
    assert (config.method, config.network, config.optimizer) == (modern.method, modern.network, modern.optimizer)
    assert (config.schedule.name, config.schedule.weight_rampup_epochs) == ("cosine", 0)
    assert (config.schedule.epochs, config.training.min_steps_per_epoch) == (epochs, 200)


def test_the_tiny_network_needs_images_of_some_size():
    assert sum(p.numel() for p in build(NetworkConfig(name="tiny"), (1, 28, 28), 10).parameters()) == 24_314
    with pytest.raises(ConfigError, match=r"'tiny' was given inputs of shape \(1, 8, 8\).*at least 12x12"):
        build(NetworkConfig(name="tiny"), (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("classes", "flip"),
    [(("cat", "dog"), True), (("0", "1", "12"), False), (("a", "B"), False), (("7", "none"), True)],
)
def test_photos_are_flipped_and_digits_and_letters_are_not(tmp_path, classes, flip):
    assert named.config_for(str(photos(tmp_path / "photos", classes, 2)), device="cpu").augment.flip is flip


def test_arrays_are_not_flipped(tmp_path):
    images = np.zeros((20, 16, 16, 3), np.uint8)
    npz = write_npz(tmp_path / "data.npz", x_train=images, y_train=np.arange(20) % 2, x_test=None, y_test=None)
    assert not named.config_for(str(npz), device="cpu").augment.flip


# The line


def why(config, *overrides, **facts):
    facts = {"on_gpu": False, "images": "arrays"} | facts
    return presets.why(config, config.with_overrides(overrides), **facts)


def test_the_line_says_what_was_chosen_and_why():
    assert why(presets.for_arrays("mine", images_side=28, rows=10_000)) == (
        "chosen: method temporal-teacher; network tiny, for images without a GPU; 23 epochs, for this number of rows; shifts "
        "of up to 2 pixels; no flips, because arrays do not say whether left and right matter"
    )
    photos = presets.for_arrays("mine", images_side=28, rows=10_000, on_gpu=True, photos=True)
    line = why(photos, on_gpu=True, images="files")
    assert "method temporal-teacher; network conv13, for images on a GPU" in line
    assert line.endswith(
        "flips, because files of images are taken for photos (augment.flip=false if left and right matter)"
    )
    assert why(presets.for_arrays("mine", images_side=28, rows=9), images="files").endswith(
        "the classes are numbers or letters"
    )
    vectors = presets.for_arrays("mine", images_side=None, rows=9)
    assert why(vectors, images="") == (
        "chosen: method committee; network committee, for vectors without a GPU; 50 epochs, for this number of rows"
    )


def test_the_line_says_what_the_user_has_set_instead():
    config = presets.for_arrays("mine", images_side=28, rows=10_000)
    line = why(config, "augment.flip=true", "network.width=8", "data.labels=9", "seed.base=3", "training.device=cpu")
    assert line.endswith("shifts of up to 2 pixels; set by you: augment.flip=True, network.width=8")
    assert "epochs" not in why(config, timed=True)


def test_a_preset_has_no_such_line():
    assert named.note("digits", Config(), Config(), timed=False) == ""


def test_the_line_is_printed_kept_and_reported(tmp_path, capsys):
    folder = photos(tmp_path / "photos", ("cat", "dog"))
    words = ("--run", tmp_path / "run", "--epochs", 2, "--set", "network.width=4", "--device", "cpu")
    said = trained(capsys, folder, *words)
    run = load_run(tmp_path / "run")
    line = run.about["note"]
    assert line.startswith("chosen: method temporal-teacher; network tiny, for images without a GPU; ")
    assert line.endswith("set by you: network.width=4, schedule.epochs=2")
    assert line in said.splitlines()
    assert line in (run.path / "report.html").read_text()
    assert line in write_report(run, tmp_path / "again.html").read_text()
    assert "features of a pretrained network usually do better on photos: --backbone timm:" in said
    written = trained(capsys, photos(tmp_path / "digits", "12"), *words[2:], "--run", tmp_path / "other")
    assert "--backbone" not in written


def test_overrides_win(tmp_path, capsys):
    folder = photos(tmp_path / "photos", ("cat", "dog"))
    own = ["augment.flip=false", "network.name=small", "network.width=4", "schedule.epochs=1"]
    trained(capsys, folder, "--run", tmp_path / "run", *(word for each in own for word in ("--set", each)))
    config = load_run(tmp_path / "run").config
    assert (config.augment.flip, config.network.name, config.schedule.epochs) == (False, "small", 1)
