"""What would not fit into memory is refused before any of it is taken, or read again whenever it is needed."""

import resource
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from support import SMALL_IMAGES, config, differences, features, images, left_behind

from selfens import load_run, networks, train
from selfens.config import NetworkConfig
from selfens.core import memory
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError


@pytest.fixture
def little(monkeypatch):
    """A machine with so many bytes left."""
    return lambda size: monkeypatch.setattr(memory, "available", lambda device=None: size)


def test_an_absurd_width_is_refused_before_memory_is_taken(tmp_path):
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        ConfigError, match=r"^training the network 'small' .* at least 1,[\d,.]+ GiB, but only .* are available; ch"
    ):
        train(config("pi", *SMALL_IMAGES, "network.width=65536"), tmp_path / "run", dataset=images())
    with pytest.raises(ConfigError, match=r"the network 'small' would take at least"):
        networks.build(NetworkConfig(name="small", width=65536), (3, 32, 32), 10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 100_000  # kilobytes
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("conv13", (3, 32, 32)), ("conv13", (1, 45, 21)), ("small", (2, 9, 8)), ("mlp", (3, 4, 5)), ("mlp", (7,))],
)
def test_the_weights_counted_are_those_of_a_real_network(name, shape):
    network = networks.build(NetworkConfig(name=name), shape, 10)
    weights = sum(weight.numel() for weight in network.parameters())
    assert networks.count_weights(NetworkConfig(name=name), shape, 10) == weights


@pytest.mark.parametrize(("optimizer", "copies"), [("adam", 4), ("sgd", 3)])
def test_what_training_needs_is_counted(tmp_path, little, optimizer, copies):
    """60 rows of 6 features: layers of 6 x 8, 8 x 8 and 8 x 3 weights with two numbers per unit."""
    needed = copies * 4 * (6 * 8 + 16 + 8 * 8 + 16 + 8 * 3 + 6)
    settings = config("pi", f"optimizer.name={optimizer}", "training.residence=device", epochs=1)
    little(needed - 1)
    with pytest.raises(ConfigError, match=r"training the network 'mlp' on inputs of shape \(6,\) would take"):
        train(settings, tmp_path / "run", dataset=features())
    little(needed)
    train(settings, tmp_path / "run", dataset=features())


def test_counting_draws_no_random_numbers(tmp_path, monkeypatch):
    train(config(), tmp_path / "a", dataset=features())
    monkeypatch.setattr(networks, "count_weights", lambda *_: 0)
    train(config(), tmp_path / "b", dataset=features())
    assert differences(left_behind(tmp_path / "a"), left_behind(tmp_path / "b")) == []


def test_very_many_classes_are_refused_before_their_targets_are_made(tmp_path, little):
    x = np.random.default_rng(0).normal(size=(4000, 2))
    data = Dataset.from_arrays(x, np.arange(4000))
    little(100_000_000)
    with pytest.raises(
        ConfigError, match=r"^targets of 4,000 rows of 4,000 classes in float32 .* use fewer rows or classes"
    ):
        train(config("temporal", "labels.count=none"), tmp_path / "run", dataset=data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("folders", ["a b", "train/a train/b test/a test/b"])
@pytest.mark.filterwarnings("ignore:every image has a class")
def test_images_that_do_not_fit_are_decoded_again_for_the_same_bits(tmp_path, little, folders):
    random = np.random.default_rng(0)
    for name in folders.split():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    settings = config("pi", *SMALL_IMAGES, "labels.count=all", "training.residence=ram", name=tmp_path / "photos")
    train(settings, tmp_path / "a")
    little(2 * 40 * 3 * 8 * 8 - 1)
    again = train(settings, tmp_path / "b")
    assert not isinstance(again.data().inputs, np.ndarray)
    assert differences(left_behind(tmp_path / "a"), left_behind(tmp_path / "b")) == []


def test_a_network_that_was_passed_is_trained_however_little_seems_left(tmp_path, little):
    little(1_000_000)
    network = torch.nn.Linear(6, 3)
    run = train(config("pi"), tmp_path / "run", dataset=features(), network=network)
    assert load_run(run.path, network=network).finished


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_what_is_available_is_less_than_there_is_and_shared(monkeypatch):
    everything = memory.available(torch.device("cpu"))
    assert 0 < everything < 2**50
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory.available() == pytest.approx(everything / 4, rel=0.2)
