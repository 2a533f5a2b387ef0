"""Fingerprints and draws that run directories and records hold: the first edition computed these, so they must not change."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfens.config import Config, DataConfig
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.labels import choose_labels

KNOWN = json.loads(Path(__file__).with_name("unchanged.json").read_text())


def arrays():
    random = np.random.default_rng(11)
    x = random.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    y = np.array(["ant", "bee", "", "cow"])[random.integers(0, 4, 40)]
    return {"x_train": x, "y_train": y, "x_test": x[:9, ::-1], "y_test": np.array(["ant", "bee", "cow"] * 3)}


def written(tmp_path, kind):
    given = arrays()
    if kind == "npz":
        np.savez(tmp_path / "d.npz", **given)
        return tmp_path / "d.npz"
    if kind == "npy":
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
        return tmp_path
    for number, (image, label) in enumerate(zip(given["x_train"], given["y_train"], strict=True)):
        place = tmp_path / "photos" / (str(label) or "unlabeled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    np.save(tmp_path / "more.npy", given["x_train"][::-1])
    if kind == "folder":
        return tmp_path / "photos"
    files = sorted((tmp_path / "photos").rglob("*.png"))
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("file,label\n" + "\n".join(lines))
    return tmp_path / "list.csv"


def loaded(tmp_path, kind, official):
    if kind.startswith("digits"):
        return sources.load("digits", split_seed=int(kind[-1]))
    if kind in ("cifar10", "cifar100"):
        official.cifar(tmp_path, kind, "python2")
        return sources.load(kind, data_dir=tmp_path, offline=True)
    if kind == "svhn":
        official.svhn(tmp_path)
        return sources.load(kind, data_dir=tmp_path, offline=True)
    if "extra" in kind:
        options = {"name": str(written(tmp_path, "folder")), "extra": str(tmp_path / "more.npy"), "image_size": 8}
        return sources.from_config(Config(data=DataConfig(**options)))
    return sources.load(written(tmp_path, kind.split()[0]), image_size=8, split_seed=3 if "seed" in kind else 0)


SETS = ["digits 0", "digits 5", "cifar10", "cifar100", "svhn", "npz", "npy", "folder", "folder seed", "csv"]
SETS += ["extra"]


@pytest.mark.parametrize("kind", SETS)
def test_the_fingerprint_of_a_data_set_is_the_first_editions(tmp_path, official, kind):
    data = loaded(tmp_path, kind, official)
    assert [data.fingerprint(), data.test_fingerprint()] == KNOWN[kind]


CHOICES = {
    "balanced": {"labels": 23},
    "original": {"labels": 40, "label_choice": "original"},
    "noise and validation": {"labels": 60, "label_noise": 30.0, "validation": 0.25},
    "all": {"validation": 0.1},
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("seed", [0, 1001])
def test_a_seed_draws_the_labels_it_drew_in_the_first_edition(name, seed):
    labels = np.random.default_rng(3).integers(-1, 5, 300)
    data = Dataset.from_arrays(np.zeros((300, 2)), labels).with_extra(np.ones((50, 2)))
    choice = choose_labels(data, DataConfig(**CHOICES[name]), label_seed=seed, split_seed=seed + 1)
    assert hashlib.sha256(choice.to_json().encode()).hexdigest() == KNOWN[f"labels {name} {seed}"]
